//! Space that ranges take: what walks over headers ask and answer.

use crate::Result;
use crate::model::ids::PieceId;
use crate::model::key::KeyRange;
use crate::model::view::View;
use crate::tree::run::ViewedPart;
use std::sync::Arc;

/// Space on the device, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Of all pieces that hold something of the ranges. A piece on a border counts as a whole.
    pub bytes: u64,
    /// Of those that hold nothing else: about what deleting the ranges would give back.
    pub exclusive: u64,
    /// Messages wait above nodes that belong to the ranges alone, and may replace or delete what
    /// counts. Told where bytes that are held are asked for.
    pub is_unsettled: bool,
    /// How many messages of their own wait above leaves. Told where bytes that are held are asked
    /// for.
    pub messages: u64,
    /// Something else refers to part of what the ranges hold. Told where bytes that are held are
    /// asked for.
    pub is_sharing: bool,
}

/// What the tables say of a piece.
pub(crate) struct Counted {
    /// How many references to it count.
    pub(crate) count: u64,
    pub(crate) bytes: u64,
    /// Of a value part the live bytes.
    pub(crate) live: u64,
}

/// Asks the tables about a piece.
pub(crate) type Look<'a> = dyn Fn(PieceId) -> Result<Counted> + 'a;

/// Where a node appears, and which keys of that place are asked for.
pub(super) type Place = (View, Arc<[KeyRange]>);

/// True if one of the ranges covers what is shown.
pub(super) fn covers(ranges: &[KeyRange], shown: &KeyRange) -> bool {
    ranges.iter().any(|range| range.covers(shown))
}

/// Where a part appears that a node shows through `view`.
pub(super) fn shown_of(part: &ViewedPart, view: &View) -> KeyRange {
    let last = part.last.as_ref().map(|last| [&**last, &[0]].concat().into());
    view.range_to_outer(&KeyRange { start: part.first.clone(), end: last })
}
