//! Walked keys: what the walks of a sequential scan found, some behind the reader, the rest ahead.
//!
//! Each key has a *turn*, its number in the scan: the prefetch queue is told which turn the reader
//! has come to.

use super::remembered::RememberedValue;
use super::walk::WalkedKey;
use crate::index::Version;
use crate::message::resolve::KeyMessages;
use crate::model::key::Key;
use crate::read::snapshot_index::Slice;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Keys from an expected position on that are compared before the binary search.
const LINEAR_SEARCH_KEYS: usize = 4;

/// Keys too many behind the reader before any of them are forgotten: the whole prefetch queue is
/// gone through when they are.
const MIN_FORGOTTEN_KEYS: usize = 64;

/// See the [module](self). In key order.
#[derive(Default)]
pub(super) struct WalkedKeys {
    keys: VecDeque<WalkedKey>,
    /// The version of the index in which their values were found.
    version: Weak<Version>,
    /// The turn of the first key.
    first_turn: u64,
    /// How many of the keys the reader has passed.
    behind: usize,
    /// The bytes of the others.
    bytes_ahead: u64,
}

impl WalkedKeys {
    pub(super) fn first(&self) -> Option<&Key> {
        self.keys.front().map(|walked| &walked.key)
    }

    /// The reader needs nothing before this turn.
    pub(super) fn first_turn(&self) -> u64 {
        self.first_turn
    }

    /// The turn of the first key of the next walk.
    pub(super) fn next_turn(&self) -> u64 {
        self.first_turn + self.keys.len() as u64
    }

    /// How many keys are ahead of the reader.
    pub(super) fn ahead(&self) -> usize {
        self.keys.len() - self.behind
    }

    /// The bytes of the keys ahead of the reader.
    pub(super) fn bytes_ahead(&self) -> u64 {
        self.bytes_ahead
    }

    /// For each slice what `version` has of its key, if that is known.
    pub(super) fn remembered(
        &self,
        version: &Arc<Version>,
        slices: &[Slice<'_>],
    ) -> Vec<Option<KeyMessages>> {
        if self.version.as_ptr() != Arc::as_ptr(version) || !version.active.is_empty() {
            return slices.iter().map(|_| None).collect();
        }
        let mut near = self.behind;
        let look = |slice: &Slice<'_>| {
            let at = self.position(slice.key, near)?;
            near = at + 1;
            self.keys[at].value.as_ref().and_then(RememberedValue::found)
        };
        slices.iter().map(look).collect()
    }

    /// The position of `key`, most likely at `near` or a little behind.
    fn position(&self, key: &[u8], near: usize) -> Option<usize> {
        for (at, walked) in self.keys.iter().enumerate().skip(near).take(LINEAR_SEARCH_KEYS) {
            match (*walked.key).cmp(key) {
                Ordering::Less => {}
                Ordering::Equal => return Some(at),
                Ordering::Greater => break,
            }
        }
        self.keys.binary_search_by(|walked| (*walked.key).cmp(key)).ok()
    }

    /// The reader is at `key`. Returns how many keys with values on the device it has passed since.
    pub(super) fn pass(&mut self, key: &[u8]) -> usize {
        let mut passed = 0;
        while let Some(walked) = self.keys.get(self.behind).filter(|walked| *walked.key < *key) {
            self.bytes_ahead -= walked.bytes;
            passed += usize::from(walked.bytes > 0);
            self.behind += 1;
        }
        passed
    }

    /// Forgets keys far behind the reader, except `most_keys` of them as far as they take half a
    /// `window` of bytes; and in good time before they take the room of other scans.
    pub(super) fn forget(&mut self, most_keys: usize, window: u64) {
        let over = self.behind - self.kept(most_keys, window / 2);
        let bytes = || self.keys.range(..over).map(|walked| walked.bytes).sum::<u64>();
        if over > MIN_FORGOTTEN_KEYS || (over > 0 && bytes() > window / 8) {
            self.keys.drain(..over);
            self.behind -= over;
            self.first_turn += over as u64;
        }
    }

    /// How many of the last keys behind the reader fit in `room` bytes, `most` at most.
    fn kept(&self, most: usize, room: u64) -> usize {
        let mut bytes = 0;
        let behind = self.keys.range(..self.behind).rev().take(most);
        let fits = |walked: &&WalkedKey| {
            bytes += walked.bytes;
            bytes <= room
        };
        behind.take_while(fits).count()
    }

    /// Adds what a walk found in `version`. Values found in another version are forgotten.
    pub(super) fn extend(&mut self, keys: Vec<WalkedKey>, version: Weak<Version>) {
        if !Weak::ptr_eq(&self.version, &version) {
            self.keys.iter_mut().for_each(|walked| walked.value = None);
            self.version = version;
        }
        self.bytes_ahead += keys.iter().map(|walked| walked.bytes).sum::<u64>();
        self.keys.extend(keys);
    }
}
