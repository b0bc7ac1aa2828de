//! Coalescing: small batches that have been accepted become one, and are applied as one.
//!
//! What applying a batch costs does not depend on how small it is: numbers, a record in the log, a
//! place in memtables for each key. So small batches of single keys join the coalesced batch first,
//! where a later one takes the place of what it wipes out: an application that removes a tree file
//! by file deletes ranges in the end that cover its earlier deletions, and these are never applied.
//!
//! Invariant: callers cannot observe it. A thread that looks at memtables, numbers or the log, or
//! changes them, closes the coalesced batch first, under the commit lock
//! ([`CommitPipeline::lock_applied`]). So the batches in it follow one another in the order of all
//! batches, and log and recovery see them as one. It consists of *points*: each is what happened to
//! one key, in order; points of different keys commute.
//!
//! [`CommitPipeline::lock_applied`]: super::pipeline::CommitPipeline::lock_applied

use crate::commit::apply_queue::sorted_prefix;
use crate::log::LoggedOp;
use crate::model::batch::{Batch, point_bytes};
use crate::model::ids::IndexId;
use crate::model::key::{Key, KeyRange};
use crate::model::op::{Op, RangeOp};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Bound;

/// A batch with more operations gains nothing by joining others.
const MOST_JOINING_OPERATIONS: usize = 16;

/// Neither does one that takes more bytes in the log, and a caller that waits for a small one to be
/// synced should not wait for it.
const MOST_JOINING_BYTES: u64 = 64 << 10;

/// Bytes in the log that make it full.
const FULL_BYTES: u64 = 256 << 10;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct CoalescedBatch {
    points: BTreeMap<IndexId, BTreeMap<Key, Point>>,
    /// Batches in it.
    batches: usize,
    /// Operations that joined it.
    operations: usize,
    /// Upper bound of what these take in the log.
    bytes: u64,
}

/// What happens to one key.
#[derive(Debug)]
struct Point {
    first: Op,
    /// What follows, none of which is terminal.
    more: Vec<Op>,
    /// The key had no value before.
    is_new: bool,
}

impl Point {
    /// See [`point_bytes`].
    fn bytes(&self, key: &Key) -> u64 {
        point_bytes(key, &self.first) + self.more.iter().map(|op| point_bytes(key, op)).sum::<u64>()
    }
}

impl CoalescedBatch {
    /// True if nothing waits in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.batches == 0
    }

    /// True if a batch that takes up to `bytes` in the log may join, where `most` operations make
    /// it full.
    pub(crate) fn takes(&self, batch: &Batch, bytes: u64, most: usize) -> bool {
        batch.ops.len() <= MOST_JOINING_OPERATIONS.min(most)
            && bytes <= MOST_JOINING_BYTES
            && batch.ops.iter().all(|op| matches!(op, LoggedOp::Point { .. }))
    }

    /// True if it should wait for no more.
    pub(crate) fn is_full(&self, most: usize) -> bool {
        self.operations >= most || self.bytes >= FULL_BYTES
    }

    /// True if a batch of up to `bytes` bytes in the log, which does not join, may be applied
    /// together with it.
    pub(crate) fn may_close_with(bytes: u64) -> bool {
        bytes <= MOST_JOINING_BYTES
    }

    /// True if it may change the value of a key in `range`.
    #[inline]
    pub(crate) fn concerns(&self, index: IndexId, range: &KeyRange) -> bool {
        let points = self.points.get(&index).filter(|_| !range.is_empty());
        points.is_some_and(|points| points.range::<[u8], _>(range.bounds()).next().is_some())
    }

    /// Upper bound of the bytes that it takes in the log.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a batch that it takes; returns the bytes that were to come into the store and will not.
    pub(crate) fn join(&mut self, batch: Batch, bytes: u64) -> u64 {
        let mut wiped = 0;
        self.batches += 1;
        self.operations += batch.ops.len();
        self.bytes += bytes;
        let new = batch.new;
        for (at, op) in batch.ops.into_iter().enumerate() {
            let is_new = new.contains(at);
            if let LoggedOp::Point { index, key, op } = op {
                wiped += self.add(index, key, op, is_new);
            }
        }
        wiped
    }

    fn add(&mut self, index: IndexId, key: Key, op: Op, is_new: bool) -> u64 {
        let points = self.points.entry(index).or_default();
        let mut there = match points.entry(key) {
            Entry::Vacant(place) => {
                place.insert(Point { first: op, more: Vec::new(), is_new });
                return 0;
            }
            Entry::Occupied(there) => there,
        };
        if !op.is_terminal() {
            there.get_mut().more.push(op);
            return 0;
        }
        let wiped = there.get().bytes(there.key());
        if there.get().is_new && op == Op::Delete {
            // No reader has seen it come and go.
            let own = point_bytes(there.key(), &op);
            there.remove();
            return wiped + own;
        }
        let point = there.get_mut();
        point.first = op;
        point.more.clear();
        wiped
    }

    /// Ends it with a batch that need not be one of those that join: the operations of all, in
    /// order, and the bytes that were to come into the store and will not.
    pub(crate) fn close_with(&mut self, batch: Batch) -> (ClosedBatch, u64) {
        if self.is_empty() {
            let sorted = sorted_prefix(&batch.ops);
            return (ClosedBatch { ops: batch.ops, sorted }, 0);
        }
        let mut wiped = 0;
        let mut rest: Vec<LoggedOp> = Vec::new();
        let new = batch.new;
        for (at, op) in batch.ops.into_iter().enumerate() {
            let is_new = new.contains(at);
            match op {
                LoggedOp::Point { index, key, op }
                    if !rest.iter().any(|older| concerns(older, index, &key)) =>
                {
                    wiped += self.add(index, key, op, is_new);
                }
                LoggedOp::Range { index, range, op: RangeOp::Delete } => {
                    // A clone before it has taken along what is there.
                    let is_cloned =
                        |older: &LoggedOp| matches!(older, LoggedOp::Clone { index: of, .. } if *of == index);
                    if !range.is_empty()
                        && !rest.iter().any(is_cloned)
                        && let Some(points) = self.points.get_mut(&index)
                    {
                        let end = range.end.clone().map_or(Bound::Unbounded, Bound::Excluded);
                        let gone =
                            points.extract_if((Bound::Included(range.start.clone()), end), |_, _| true);
                        wiped += gone.map(|(key, point)| point.bytes(&key)).sum::<u64>();
                    }
                    rest.push(LoggedOp::Range { index, range, op: RangeOp::Delete });
                }
                op => rest.push(op),
            }
        }
        let mut closed = self.close();
        closed.ops.append(&mut rest);
        (closed, wiped)
    }

    /// Ends it: its operations, in an order that gives the same.
    pub(crate) fn close(&mut self) -> ClosedBatch {
        let open = std::mem::take(self);
        // Most of what joined may have been wiped out.
        let left = open.points.values().flat_map(BTreeMap::values).map(|point| 1 + point.more.len()).sum();
        let mut ops = Vec::with_capacity(left);
        for (index, points) in open.points {
            for (key, Point { first, more, .. }) in points {
                let mut last = first;
                for next in more {
                    let op = std::mem::replace(&mut last, next);
                    ops.push(LoggedOp::Point { index, key: key.clone(), op });
                }
                ops.push(LoggedOp::Point { index, key, op: last });
            }
        }
        let sorted = ops.len();
        ClosedBatch { ops, sorted }
    }
}

/// The operations of what is to be one batch.
#[derive(Debug)]
pub(crate) struct ClosedBatch {
    pub(crate) ops: Vec<LoggedOp>,
    /// So many of them come first and are messages to single keys, by index and key.
    pub(crate) sorted: usize,
}

/// True if `older` must be applied before a message to `key` of `index`.
fn concerns(older: &LoggedOp, index: IndexId, key: &Key) -> bool {
    match older {
        LoggedOp::Point { index: of, key: at, .. } => *of == index && at == key,
        LoggedOp::Range { index: of, range, .. } => *of == index && range.contains(key),
        LoggedOp::Clone { index: of, .. } => *of == index,
        LoggedOp::Superseded => false,
    }
}

#[cfg(test)]
mod tests;
