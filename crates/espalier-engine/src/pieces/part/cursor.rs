//! Walks over the entries of a part, both ways.

use super::Part;
use super::entry::{self, Entry};
use crate::Msn;
use crate::model::key::common_prefix_len;
use crate::model::op::Op;
use std::sync::Arc;

/// A place among the entries of a part: on one of them, before the first, or behind the last.
///
/// Walking forward allocates nothing but the buffer for the key, which is reused.
#[derive(Clone)]
pub(crate) struct PartCursor {
    part: Arc<Part>,
    place: CursorPlace,
    /// The restart at or before the entry.
    block: usize,
    /// Where the entry begins.
    at: usize,
    /// Where the next restart (or the end of the entries) is.
    block_end: usize,
    /// The entry, if `place` is `On`.
    entry: Entry,
    key: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CursorPlace {
    Before,
    On,
    Behind,
}

impl Part {
    /// A cursor that stands before the first entry.
    pub(crate) fn cursor(self: &Arc<Self>) -> PartCursor {
        PartCursor::new(self.clone())
    }
}

impl PartCursor {
    /// Before the first entry.
    pub(super) fn new(part: Arc<Part>) -> Self {
        let nothing = Entry::default();
        Self {
            part,
            place: CursorPlace::Before,
            block: 0,
            at: 0,
            block_end: 0,
            entry: nothing,
            key: Vec::new(),
        }
    }

    /// True if it stands on an entry.
    #[inline]
    pub(crate) fn valid(&self) -> bool {
        self.place == CursorPlace::On
    }

    /// The key of the entry it stands on; meaningless on none.
    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        &self.key
    }

    /// The MSN of the entry it stands on; meaningless on none.
    #[inline]
    pub(crate) fn msn(&self) -> Msn {
        Msn(self.part.base_msn.wrapping_add(self.entry.msn))
    }

    /// The op of the entry it stands on; meaningless on none. Bytes are slices of the part's
    /// buffer.
    pub(crate) fn op(&self) -> Op {
        self.part.op(&self.entry)
    }

    /// True if both cursors stand on entries with equal ops; meaningless on none.
    pub(crate) fn has_same_op(&self, other: &Self) -> bool {
        match (self.inline_op(), other.inline_op()) {
            (Some(own), Some(other)) => own == other,
            _ => self.op() == other.op(),
        }
    }

    /// True if the op of the entry it stands on makes older ones void; meaningless on none.
    pub(crate) fn is_terminal(&self) -> bool {
        self.entry.is_terminal()
    }

    fn inline_op(&self) -> Option<(u8, u32, &[u8])> {
        self.entry.inline_op(self.part.entries())
    }

    /// Where the entry it stands on lies among the bytes of all entries of the part, and how many
    /// those are.
    pub(crate) fn position(&self) -> (usize, usize) {
        (self.at, self.part.entries_len)
    }

    /// To the first entry.
    pub(crate) fn first(&mut self) {
        self.enter(0);
    }

    /// To the last entry.
    pub(crate) fn last(&mut self) {
        self.enter(self.part.restarts().len() - 1);
        self.forward_to(self.part.entries_len);
    }

    /// To the first entry with a key at or behind `key`, or behind the last.
    pub(crate) fn seek(&mut self, key: &[u8]) {
        let part = &self.part;
        let smaller = |restart: &[u8; 4]| entry::restart_key(part.entries(), offset(*restart)) < key;
        // Entries with equal keys may straddle a restart, so start at the last one certainly
        // before.
        let before = part.restarts().partition_point(smaller);
        if before == 0 {
            return self.first();
        }
        self.enter(before - 1);
        let end = self.block_end;
        // Invariant: the current key is smaller than `key`, and they share exactly `same` bytes.
        let mut same = common_prefix_len(&self.key, key);
        while self.entry.next < end {
            self.step();
            let shared = self.entry.shared;
            if shared > same {
                continue;
            }
            if shared < same {
                return;
            }
            same += common_prefix_len(&self.key[same..], &key[same..]);
            let smaller = match (self.key.get(same), key.get(same)) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(here), Some(there)) => here < there,
            };
            if !smaller {
                return;
            }
        }
        self.next();
    }

    /// To the last entry with a key before `key`, or before the first.
    pub(crate) fn seek_before(&mut self, key: &[u8]) {
        self.seek(key);
        self.prev();
    }

    /// To the next entry; from the last one behind it, from before the first one to that.
    #[inline]
    pub(crate) fn next(&mut self) {
        match self.place {
            CursorPlace::On if self.entry.next < self.block_end => self.step(),
            CursorPlace::On => self.enter(self.block + 1),
            CursorPlace::Before => self.first(),
            CursorPlace::Behind => {}
        }
    }

    /// To the previous entry; from the first one before it, from behind the last one to that.
    pub(crate) fn prev(&mut self) {
        match self.place {
            CursorPlace::On => {
                let end = self.at;
                let start = offset(self.part.restarts()[self.block]);
                if end > start {
                    self.enter(self.block);
                } else if self.block > 0 {
                    self.enter(self.block - 1);
                } else {
                    self.place = CursorPlace::Before;
                    return;
                }
                self.forward_to(end);
            }
            CursorPlace::Behind => self.last(),
            CursorPlace::Before => {}
        }
    }

    /// To the entry at restart `block`, or behind the last if there is no such restart.
    fn enter(&mut self, block: usize) {
        let restarts = self.part.restarts();
        let Some(start) = restarts.get(block) else {
            self.place = CursorPlace::Behind;
            return;
        };
        let (start, end) =
            (offset(*start), restarts.get(block + 1).map_or(self.part.entries_len, |r| offset(*r)));
        self.block = block;
        self.block_end = end;
        self.place = CursorPlace::On;
        self.load(start);
    }

    /// Within the block to the entry that ends at `end`.
    fn forward_to(&mut self, end: usize) {
        while self.place == CursorPlace::On && self.entry.next < end {
            self.step();
        }
    }

    /// To the entry behind this one, in the same block.
    #[inline]
    fn step(&mut self) {
        self.load(self.entry.next);
    }

    #[inline]
    fn load(&mut self, at: usize) {
        let entries = self.part.entries();
        let Some(entry) = Entry::parse(entries, at) else {
            // Cannot be, for the part is valid; and if it were, a walk would still end.
            self.place = CursorPlace::Behind;
            self.entry.next = usize::MAX;
            return;
        };
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(entry.key_suffix(entries));
        self.at = at;
        self.entry = entry;
    }
}

#[inline]
fn offset(restart: [u8; 4]) -> usize {
    u32::from_le_bytes(restart) as usize
}

impl std::fmt::Debug for PartCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.place {
            CursorPlace::Before => f.write_str("PartCursor(before the first)"),
            CursorPlace::On => write!(f, "PartCursor({} at {})", self.key.escape_ascii(), self.msn().0),
            CursorPlace::Behind => f.write_str("PartCursor(behind the last)"),
        }
    }
}
