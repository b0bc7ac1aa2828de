//! Comparison of leaf parts that only one side sees: which keys they do not agree on.
//!
//! The entry of a leaf is the oldest message for its key. So where the leaves of both sides have
//! equal entries for a key, what lies above decides, and that is compared apart. A part that was
//! written anew for one change costs one pass over its entries and those of the part that it
//! replaced, and no look-up of a key.

use crate::Result;
use crate::model::key::{Key, KeyRange, before_end};
use crate::model::view::View;
use crate::pieces::PartCursor;
use crate::tree::inspect::suspects::{MAX_SUSPECT_KEYS, Suspects};
use crate::tree::part_slot::PartSlot;
use crate::tree::trees::Trees;
use std::cmp::Ordering;
use std::sync::Arc;

/// A part of a leaf, and what only one side sees of it.
pub(super) struct LeafPiece {
    /// Behind the prefix of the side.
    pub(super) range: KeyRange,
    pub(super) slot: Arc<PartSlot>,
    /// From the part to the keys behind the prefix.
    pub(super) view: View,
}

/// The entries that one side shows in pieces, in key order.
struct Entries<'a> {
    trees: &'a Trees,
    /// The first one comes last.
    pieces: Vec<LeafPiece>,
    current: Option<(PartCursor, LeafPiece)>,
    /// The key of the entry it stands on.
    key: Vec<u8>,
    looked_at: u64,
}

/// Adds the keys for which the pieces of both sides have no equal entries.
pub(super) fn compare_leaves(
    trees: &Trees,
    pieces: [Vec<LeafPiece>; 2],
    suspects: &mut Suspects,
) -> Result<()> {
    let [old, new] = pieces;
    let (mut old, mut new) = (Entries::new(trees, old)?, Entries::new(trees, new)?);
    while suspects.keys.len() < MAX_SUSPECT_KEYS {
        let order = match (&old.current, &new.current) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((a, _)), Some((b, _))) => match old.key.cmp(&new.key) {
                Ordering::Equal if a.has_same_op(b) => {
                    old.next()?;
                    new.next()?;
                    continue;
                }
                order => order,
            },
        };
        if order.is_le() {
            suspects.add_key(old.key.as_slice().into());
        } else {
            suspects.add_key(new.key.as_slice().into());
        }
        if order.is_le() {
            old.next()?;
        }
        if order.is_ge() {
            new.next()?;
        }
    }
    for side in [old, new] {
        suspects.entries += side.looked_at;
        suspects.ranges.extend(side.rest());
    }
    Ok(())
}

impl<'a> Entries<'a> {
    fn new(trees: &'a Trees, mut pieces: Vec<LeafPiece>) -> Result<Self> {
        // What a side shows of its leaves does not overlap.
        pieces.sort_by(|a, b| b.range.start.cmp(&a.range.start));
        let mut entries = Self { trees, pieces, current: None, key: Vec::new(), looked_at: 0 };
        entries.enter()?;
        Ok(entries)
    }

    /// To the first entry of the pieces that are left.
    fn enter(&mut self) -> Result<()> {
        self.current = None;
        while let Some(piece) = self.pieces.pop() {
            let mut cursor = piece.slot.load(self.trees)?.cursor();
            cursor.seek(&piece.view.bounds.start);
            if stands_on(&cursor, &piece.view, &mut self.key) {
                self.looked_at += 1;
                self.current = Some((cursor, piece));
                break;
            }
        }
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        if let Some((cursor, piece)) = &mut self.current {
            cursor.next();
            if stands_on(cursor, &piece.view, &mut self.key) {
                self.looked_at += 1;
                return Ok(());
            }
        }
        self.enter()
    }

    /// Where the entries lie that are left.
    fn rest(self) -> impl Iterator<Item = KeyRange> {
        let start: Key = self.key.into();
        let current = self.current.map(|(_, piece)| KeyRange { start, end: piece.range.end });
        current.into_iter().chain(self.pieces.into_iter().map(|piece| piece.range))
    }
}

/// Takes the key of the entry that a cursor stands on; false if the view shows none there.
fn stands_on(cursor: &PartCursor, view: &View, key: &mut Vec<u8>) -> bool {
    if !cursor.valid() || !before_end(cursor.key(), view.bounds.end.as_deref()) {
        return false;
    }
    // Bounds lie within the prefix.
    let Some(rest) = cursor.key().strip_prefix(&*view.from) else { return false };
    key.clear();
    key.extend_from_slice(&view.to);
    key.extend_from_slice(rest);
    true
}
