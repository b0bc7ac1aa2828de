//! Memtables: the newest messages of one index, sorted, in memory.
//!
//! Protocol: one thread at a time applies batches, in MSN order; any number of readers look at the
//! same time. A sealed memtable never changes again, except that its values are frozen.
//!
//! Invariants:
//! - the versions of a key are ordered by MSN;
//! - a message that no reader can see any more (a newer one ends every search, and no snapshot lies
//!   between) is gone;
//! - the bytes of values that are shared with the log or the tree are counted with the values and
//!   not here;
//! - all else that it holds is counted, with its tables. What comes first for a key lies in the
//!   [`arena`], and counts until the memtable goes, whatever becomes of it.
//!
//! Patches to a value in the memtable are made in place, so that a file that is written piece by
//! piece becomes one message ([`message_version`]). Large values are shared with the log, which
//! gives them their places, so that what the log has written is not written again. A value that
//! grew here is shared as soon as the log asks for it ([`Memtable::outcome`]) or the memtable is
//! absorbed ([`Memtable::freeze_values`]).

mod arena;
mod message_version;
pub(crate) mod source;
mod versions;

use crate::lock_order::{RankedRwLock, rank};
use crate::message::Messages;
use crate::message::range_messages::{RangeMessages, RangeOps};
use crate::message::resolve::KeyMessages;
use crate::model::ids::Msn;
use crate::model::key::{Key, KeyRange};
use crate::model::op::{MergeFunctions, Op, RangeOp};
use arena::Arena;
use bytes::Bytes;
use message_version::{MessageVersion, op_memory};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use versions::Versions;

/// What a key costs beside its bytes, in bytes: its entry in the tree of keys, whose nodes are two
/// thirds full, as random insertions leave them.
const KEY_OVERHEAD_BYTES: usize = size_of::<(Bytes, Versions)>() * 3 / 2 + 16;

/// How many older patches of a key are compared with a new one.
const MAX_COMPARED_PATCHES: usize = 16;
/// Keys whose values are frozen before readers get a turn.
const FROZEN_KEYS_PER_TURN: usize = 256;

#[derive(Default)]
pub(crate) struct Memtable {
    inner: RankedRwLock<Inner, { rank::MEMTABLE }>,
    bytes: AtomicUsize,
    /// Bytes of large values that came in.
    values: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    points: BTreeMap<Bytes, Versions>,
    ranges: RangeMessages,
    arena: Arena,
}

/// Drops the newest patches among `versions` that `op`, if it is a patch, covers. They may be
/// dropped if they are newer than `after`. Returns the memory that this gives back.
fn drop_covered(versions: &mut Versions, op: &Op, after: Msn) -> usize {
    let Op::Patch { offset, bytes } = op else { return 0 };
    let (start, end) = (*offset as usize, *offset as usize + bytes.len());
    let mut freed = 0;
    let count = versions.all().len();
    for at in (count.saturating_sub(MAX_COMPARED_PATCHES)..count).rev() {
        let (msn, version) = &versions.all()[at];
        let Some((from, to)) = version.extent().filter(|_| *msn > after) else { break };
        if start <= from && to <= end {
            freed += version.bytes();
            versions.remove(at);
        }
    }
    freed
}

impl Memtable {
    /// Roughly the memory held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Bytes of large values that came in, whether or not they are still there.
    pub(crate) fn value_bytes(&self) -> usize {
        self.values.load(Relaxed)
    }

    /// The messages that it holds.
    pub(crate) fn messages(&self) -> u64 {
        let inner = self.inner.read();
        let points = inner.points.values().map(|versions| versions.all().len()).sum::<usize>();
        points as u64 + inner.ranges.iter().count() as u64
    }

    /// True if it holds no message.
    pub(crate) fn is_empty(&self) -> bool {
        let inner = self.inner.read();
        inner.points.is_empty() && inner.ranges.is_empty()
    }

    /// Adds a message to one key. `pinned` is the newest snapshot, which must go on to see what it
    /// sees.
    pub(crate) fn apply(&self, key: &[u8], msn: Msn, op: &Op, pinned: Msn, merge: &MergeFunctions) {
        self.values.fetch_add(op.large_values().iter().map(|value| value.len()).sum(), Relaxed);
        let mut inner = self.inner.write();
        let mut grown = 0isize;
        let last_range = inner.ranges.covering(key).last().map(|(msn, _)| *msn);
        if let Some(versions) = inner.points.get_mut(key) {
            let newest = versions.all().last().map_or(Msn(0), |(msn, _)| *msn);
            // A snapshot at or after `newest` sees that version as it is.
            if newest > pinned {
                if op.is_terminal() {
                    let pinned = versions.all().partition_point(|(msn, _)| *msn <= pinned);
                    grown -= versions.drop_from(pinned) as isize;
                } else if last_range.is_none_or(|range| range < newest)
                    && let Some((_, version)) = versions.pop()
                {
                    grown -= version.bytes() as isize;
                    match version.absorb(op, merge) {
                        Ok(both) => {
                            grown += both.bytes() as isize;
                            versions.push(msn, both);
                            self.grow(grown);
                            return;
                        }
                        Err(as_it_was) => {
                            grown += as_it_was.bytes() as isize;
                            versions.push(newest, as_it_was);
                        }
                    }
                }
            }
            let divide = last_range.unwrap_or(Msn(0)).max(pinned);
            grown -= drop_covered(versions, op, divide) as isize;
            versions.push(msn, MessageVersion::Op(op.clone()));
        } else {
            let Inner { points, arena, .. } = &mut *inner;
            let version = MessageVersion::First(arena.copy_op(op));
            points.insert(arena.copy(key), Versions::of(msn, version));
            grown += (key.len() + KEY_OVERHEAD_BYTES) as isize;
        }
        self.grow(grown + op_memory(op) as isize);
    }

    /// What message `msn` and those before it have come to for `key`, if it is the newest message
    /// for it and grew together with others: an insert, or a patch that stands for patches before
    /// it as well.
    pub(crate) fn outcome(&self, key: &[u8], msn: Msn, resident: &Arc<AtomicUsize>) -> Option<Op> {
        let mut inner = self.inner.write();
        let (newest, version) = inner.points.get_mut(key)?.all_mut().last_mut()?;
        if *newest != msn {
            return None;
        }
        let before = version.bytes();
        version.freeze(resident);
        self.grow(version.bytes() as isize - before as isize);
        Some(version.to_op())
    }

    /// Ends all growth: from then on all readers get the same large values. Only for sealed
    /// memtables, which lose no key; so readers may look in between.
    pub(crate) fn freeze_values(&self, resident: &Arc<AtomicUsize>) {
        let mut from = Bound::Unbounded;
        loop {
            let inner = self.inner.read();
            let (mut last, mut has_growing) = (None, false);
            for (key, versions) in
                inner.points.range((from.clone(), Bound::Unbounded)).take(FROZEN_KEYS_PER_TURN)
            {
                has_growing |= versions.all().iter().any(|(_, version)| version.is_growing_large());
                last = Some(key);
            }
            let Some(last) = last.cloned() else { return };
            drop(inner);
            if has_growing {
                self.freeze_between((from, Bound::Included(last.clone())), resident);
            }
            from = Bound::Excluded(last);
        }
    }

    fn freeze_between(&self, keys: (Bound<Bytes>, Bound<Bytes>), resident: &Arc<AtomicUsize>) {
        let mut inner = self.inner.write();
        let mut grown = 0;
        for (_, version) in inner.points.range_mut(keys).flat_map(|(_, versions)| versions.all_mut()) {
            grown -= version.bytes() as isize;
            version.freeze(resident);
            grown += version.bytes() as isize;
        }
        self.grow(grown);
    }

    /// Adds a message to every key of `range`.
    pub(crate) fn apply_range(&self, range: &KeyRange, msn: Msn, op: &RangeOp, pinned: Msn) {
        if range.is_empty() {
            return;
        }
        let mut inner = self.inner.write();
        let mut grown = 0isize;
        if *op == RangeOp::Delete {
            // Message eating [BetrFS 0.2, section 5]: what the delete covers is gone, unless a
            // snapshot still sees it.
            let eaten = inner.points.extract_if(owned_bounds(range), |_, versions| {
                versions.all().first().is_none_or(|(msn, _)| *msn > pinned)
            });
            for (_, mut versions) in eaten {
                grown -= (KEY_OVERHEAD_BYTES + versions.drop_from(0)) as isize;
            }
        }
        let keep_history = pinned > Msn(0) && inner.ranges.touches(range);
        let before = inner.ranges.memory();
        inner.ranges.insert(range, msn, op, keep_history);
        grown += inner.ranges.memory() as isize - before as isize;
        self.grow(grown);
    }

    fn grow(&self, by: isize) {
        // Wrapping addition of a negative number subtracts; never below zero as what goes came.
        self.bytes.fetch_add(by as usize, Relaxed);
    }

    /// Adds what the memtable holds for `key`, as a snapshot at `upto` sees it.
    pub(crate) fn find(&self, key: &[u8], upto: Msn, found: &mut KeyMessages) {
        let inner = self.inner.read();
        let ranges = seen(inner.ranges.covering(key), upto);
        match inner.points.get(key) {
            Some(versions) => found.add_level(messages(versions, upto), ranges),
            None => found.add_level([], ranges),
        }
    }

    /// The range messages that cover `key`, as a snapshot at `upto` sees them, oldest first.
    pub(crate) fn ranges_covering(&self, key: &[u8], upto: Msn) -> RangeOps {
        seen(self.inner.read().ranges.covering(key), upto).to_vec()
    }

    /// A range around `key` that range messages delete as a whole, as a snapshot at `upto` sees
    /// them; `None` if they do not delete `key`.
    pub(crate) fn deleted_around(&self, key: &[u8], upto: Msn) -> Option<KeyRange> {
        let inner = self.inner.read();
        let (range, ops) = inner.ranges.fragment_at(key)?;
        seen(ops, upto).iter().any(|(_, op)| *op == RangeOp::Delete).then_some(range)
    }

    /// True if it holds range messages that cover keys in `range`.
    pub(crate) fn has_ranges_in(&self, range: &KeyRange) -> bool {
        self.inner.read().ranges.touches(range)
    }

    /// True if it holds range messages.
    pub(crate) fn has_ranges(&self) -> bool {
        !self.inner.read().ranges.is_empty()
    }

    /// All range messages. Only for sealed memtables.
    pub(crate) fn ranges(&self) -> RangeMessages {
        self.inner.read().ranges.clone()
    }

    /// The keys that have messages of their own, in ascending order.
    pub(crate) fn keys(&self) -> Vec<Bytes> {
        self.inner.read().points.keys().cloned().collect()
    }

    /// Copies keys with their messages in ascending order, from `start` on: until there are `keys`
    /// keys or `bytes` bytes, but at least one key if there is one.
    pub(crate) fn copy_ascending(
        &self,
        start: Bound<&[u8]>,
        upto: Msn,
        keys: usize,
        bytes: usize,
    ) -> Vec<(Bytes, Messages)> {
        let inner = self.inner.read();
        copy(inner.points.range::<[u8], _>((start, Bound::Unbounded)), upto, keys, bytes)
    }

    /// The same in descending order, from the last key before `end` on.
    pub(crate) fn copy_descending(
        &self,
        end: Bound<&[u8]>,
        upto: Msn,
        keys: usize,
        bytes: usize,
    ) -> Vec<(Bytes, Messages)> {
        let inner = self.inner.read();
        copy(inner.points.range::<[u8], _>((Bound::Unbounded, end)).rev(), upto, keys, bytes)
    }
}

/// `range` as bounds over owned keys.
fn owned_bounds(range: &KeyRange) -> (Bound<Bytes>, Bound<Bytes>) {
    let end = |end: &Key| Bound::Excluded(Bytes::copy_from_slice(end));
    let start = Bound::Included(Bytes::copy_from_slice(&range.start));
    (start, range.end.as_ref().map_or(Bound::Unbounded, end))
}

/// Range operations a snapshot at `upto` sees.
fn seen(ranges: &[(Msn, RangeOp)], upto: Msn) -> &[(Msn, RangeOp)] {
    &ranges[..ranges.partition_point(|(msn, _)| *msn <= upto)]
}

/// Messages a snapshot at `upto` sees, newest first.
fn messages(versions: &Versions, upto: Msn) -> impl Iterator<Item = (Msn, Op)> + '_ {
    versions.all().iter().rev().filter(move |(msn, _)| *msn <= upto).map(|(msn, v)| (*msn, v.to_op()))
}

fn copy<'a>(
    points: impl Iterator<Item = (&'a Bytes, &'a Versions)>,
    upto: Msn,
    keys: usize,
    bytes: usize,
) -> Vec<(Bytes, Messages)> {
    let mut copied = Vec::new();
    let mut size = 0;
    for (key, versions) in points {
        let messages: Messages = messages(versions, upto).collect();
        if messages.is_empty() {
            continue;
        }
        size += messages.iter().map(|(_, op)| op_memory(op)).sum::<usize>();
        copied.push((key.clone(), messages));
        if copied.len() >= keys || size >= bytes {
            break;
        }
    }
    copied
}

#[cfg(test)]
mod tests;
