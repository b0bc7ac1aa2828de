//! Comparison of the messages that only one side sees: which keys they do not agree on.
//!
//! The pieces of each side are merged to one stream of keys, each with its messages from all
//! pieces, newest first; the entry of a leaf is the oldest. Streams of both sides are compared key
//! by key. So a part that was written anew, for one change or because its run was merged with
//! others, costs one pass over its entries and those of what it replaced, and no look-up of a key.
//!
//! Why equal messages give equal values: see "Comparison" in `docs/design/tree.md`.

use crate::Result;
use crate::message::Messages;
use crate::model::ids::Msn;
use crate::model::key::{KeyRange, before_end};
use crate::model::view::View;
use crate::pieces::PartCursor;
use crate::tree::inspect::suspects::{MAX_SUSPECT_KEYS, Suspects};
use crate::tree::part_slot::PartSlot;
use crate::tree::trees::Trees;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::sync::Arc;

/// A part, and what only one side sees of it.
pub(super) struct SidePiece {
    /// Behind the prefix of the side.
    pub(super) range: KeyRange,
    pub(super) slot: Arc<PartSlot>,
    /// From the part to the keys behind the prefix.
    pub(super) view: View,
    /// The side sees it in a leaf.
    pub(super) in_leaf: bool,
}

/// The messages that one side shows in pieces, by key.
struct Stream<'a> {
    trees: &'a Trees,
    /// Pieces that lie behind; the first one comes last.
    waiting: Vec<SidePiece>,
    /// The piece that has the smallest key. It stays here from key to key, for mostly it is alone.
    current: Option<OpenPiece>,
    /// Other pieces in whose midst the stream stands.
    open: BinaryHeap<Reverse<OpenPiece>>,
    looked_at: u64,
}

/// A piece with the place of the stream in it.
struct OpenPiece {
    /// The key that the stream stands on, or one that comes later; the cursor stands on its newest
    /// message.
    key: Vec<u8>,
    cursor: PartCursor,
    piece: SidePiece,
}

/// Adds the keys for which the pieces of both sides have no equal messages. Only keys in
/// `elsewhere`, ranges in order, may have messages in something else that is newer.
pub(super) fn compare_messages(
    trees: &Trees,
    [old, new]: [Vec<SidePiece>; 2],
    elsewhere: Vec<KeyRange>,
    suspects: &mut Suspects,
) -> Result<()> {
    let mut elsewhere = elsewhere.into_iter().peekable();
    let (mut old, mut new) = (Stream::new(trees, old)?, Stream::new(trees, new)?);
    while suspects.keys.len() < MAX_SUSPECT_KEYS {
        let order = match (&old.current, &new.current) {
            (None, None) => break,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(a), Some(b)) => a.key.cmp(&b.key),
        };
        if order.is_ne() || !old.has_same_messages(&new) {
            let smaller = if order.is_le() { &old.current } else { &new.current };
            let key = smaller.as_ref().map_or(&[][..], |piece| &piece.key);
            while elsewhere.next_if(|range| !before_end(key, range.end.as_deref())).is_some() {}
            let is_all = elsewhere.peek().is_none_or(|range| *key < *range.start);
            if order.is_ne() || !is_all || !end_the_same(&old.messages(), &new.messages()) {
                suspects.add_key(key.into());
            }
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

/// True if messages for one key, newest first, give the same value on both sides, whose other
/// messages for it are the same: then they are equal as far down as older ones matter.
fn give_the_same(old: &Messages, new: &Messages) -> bool {
    for (old, new) in old.iter().zip(new) {
        if old != new {
            return false;
        }
        if old.1.is_terminal() {
            return true;
        }
    }
    old.len() == new.len()
}

/// True if messages for one key, newest first, give the same value, whatever was there before and
/// whenever they came: where one side has applied to a leaf what waits on the other.
fn end_the_same(old: &Messages, new: &Messages) -> bool {
    let newest = old.first().zip(new.first());
    newest.is_some_and(|((_, old), (_, new))| old == new && old.is_terminal())
}

impl<'a> Stream<'a> {
    fn new(trees: &'a Trees, mut pieces: Vec<SidePiece>) -> Result<Self> {
        pieces.sort_by(|a, b| b.range.start.cmp(&a.range.start));
        let mut stream =
            Self { trees, waiting: pieces, current: None, open: BinaryHeap::new(), looked_at: 0 };
        stream.find_smallest()?;
        Ok(stream)
    }

    /// To the next key.
    fn next(&mut self) -> Result<()> {
        let Some(current) = &mut self.current else { return Ok(()) };
        while let Some(mut other) = pop_at(&mut self.open, &current.key) {
            if other.next(&mut self.looked_at) {
                self.open.push(Reverse(other));
            }
        }
        if !current.next(&mut self.looked_at) {
            self.current = None;
        }
        self.find_smallest()
    }

    /// Makes the piece with the smallest key the current one, and opens those that may have it.
    fn find_smallest(&mut self) -> Result<()> {
        loop {
            let at = self.current.as_ref().map(|piece| piece.key.as_slice());
            let open = self.open.peek().map(|Reverse(piece)| piece.key.as_slice());
            if open.is_some_and(|open| at.is_none_or(|at| open < at)) {
                let smallest = self.open.pop().map(|Reverse(piece)| piece);
                let other = std::mem::replace(&mut self.current, smallest);
                self.open.extend(other.map(Reverse));
            }
            let at = self.current.as_ref().map(|piece| piece.key.as_slice());
            let Some(piece) = self.waiting.pop_if(|piece| at.is_none_or(|at| *piece.range.start <= *at))
            else {
                return Ok(());
            };
            self.open.extend(OpenPiece::open(self.trees, piece)?.map(Reverse));
        }
    }

    /// True if both sides give the key they stand on the same value by their messages.
    fn has_same_messages(&self, other: &Self) -> bool {
        match (self.alone(), other.alone()) {
            (Some(own), Some(other)) => own.has_same_messages(other),
            _ => give_the_same(&self.messages(), &other.messages()),
        }
    }

    /// The current piece, if no other piece has a message for its key.
    fn alone(&self) -> Option<&OpenPiece> {
        let next = self.open.peek().map(|Reverse(piece)| &piece.key);
        self.current.as_ref().filter(|current| next.is_none_or(|next| *next != current.key))
    }

    /// All messages for the key that it stands on, newest first.
    fn messages(&self) -> Messages {
        let mut messages = Messages::new();
        if let Some(current) = &self.current {
            let open = self.open.iter().map(|Reverse(piece)| piece);
            for piece in open.filter(|piece| piece.key == current.key).chain([current]) {
                piece.add_messages(&mut messages);
            }
        }
        messages.sort_by_key(|(msn, _)| Reverse(*msn));
        messages
    }

    /// Where the keys lie that are left.
    fn rest(self) -> impl Iterator<Item = KeyRange> {
        let open = self.open.into_iter().map(|Reverse(piece)| piece);
        let open = self.current.into_iter().chain(open);
        let open = open.map(|open| KeyRange { start: open.key.into(), end: open.piece.range.end });
        open.chain(self.waiting.into_iter().map(|piece| piece.range))
    }
}

/// The piece with the smallest key, if that is `key`.
fn pop_at(open: &mut BinaryHeap<Reverse<OpenPiece>>, key: &[u8]) -> Option<OpenPiece> {
    open.peek().filter(|Reverse(piece)| *piece.key == *key)?;
    open.pop().map(|Reverse(piece)| piece)
}

impl OpenPiece {
    /// A piece, on its first key; `None` if it has none.
    fn open(trees: &Trees, piece: SidePiece) -> Result<Option<Self>> {
        let mut cursor = piece.slot.load(trees)?.cursor();
        cursor.seek(&piece.view.bounds.start);
        let mut key = Vec::new();
        Ok(stands_on(&cursor, &piece.view, &mut key).then_some(Self { key, cursor, piece }))
    }

    /// To the next key; false if there is none. Counts the entries that are left behind.
    fn next(&mut self, looked_at: &mut u64) -> bool {
        loop {
            self.cursor.next();
            *looked_at += 1;
            if !is_at(&self.cursor, &self.piece.view, &self.key) {
                break;
            }
        }
        stands_on(&self.cursor, &self.piece.view, &mut self.key)
    }

    /// True if two pieces, each the only one of its side, give the key the same value. Messages
    /// are compared where they lie.
    fn has_same_messages(&self, other: &Self) -> bool {
        if self.msn(&self.cursor) != other.msn(&other.cursor) || !self.cursor.has_same_op(&other.cursor) {
            return false;
        }
        if self.cursor.is_terminal() {
            return true;
        }
        let (mut own, mut others) = (Messages::new(), Messages::new());
        self.add_messages(&mut own);
        other.add_messages(&mut others);
        give_the_same(&own, &others)
    }

    /// Adds all messages for its key, newest first.
    fn add_messages(&self, messages: &mut Messages) {
        let mut cursor = self.cursor.clone();
        while is_at(&cursor, &self.piece.view, &self.key) {
            messages.push((self.msn(&cursor), cursor.op()));
            cursor.next();
        }
    }

    /// The number of the message that a cursor stands on. The entry of a leaf is older than all
    /// that waits above.
    fn msn(&self, cursor: &PartCursor) -> Msn {
        if self.piece.in_leaf { Msn(0) } else { cursor.msn() }
    }
}

impl Ord for OpenPiece {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key)
    }
}

impl PartialOrd for OpenPiece {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for OpenPiece {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for OpenPiece {}

/// True if a cursor, which stands where `view` shows something or behind, stands on an entry that
/// it shows as `key`.
fn is_at(cursor: &PartCursor, view: &View, key: &[u8]) -> bool {
    // For each entry: it compares bytes only where the lengths agree.
    let (inner, from, to) = (cursor.key(), view.from.len(), view.to.len());
    cursor.valid()
        && inner.len() + to == key.len() + from
        && inner.get(from..) == key.get(to..)
        && inner.starts_with(&view.from)
}

/// Takes the key of the entry that a cursor stands on; false if the view shows none there.
fn stands_on(cursor: &PartCursor, view: &View, key: &mut Vec<u8>) -> bool {
    if !cursor.valid() || !before_end(cursor.key(), view.bounds.end.as_deref()) {
        return false;
    }
    // Bounds lie within the prefix, so what follows it need not be compared for each entry.
    debug_assert!(cursor.key().starts_with(&view.from), "bounds lie within the prefix");
    let Some(rest) = cursor.key().get(view.from.len()..) else { return false };
    key.clear();
    key.extend_from_slice(&view.to);
    key.extend_from_slice(rest);
    true
}
