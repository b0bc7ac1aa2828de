//! Apply queue: batches that have their numbers and are still to be applied.
//!
//! What takes time about a batch is to put its messages into memtables and log, and only a caller
//! that looks there has to wait for that. So a batch is *accepted* under the commit lock, where it
//! gets its numbers, and then waits in a queue; a worker applies it, or the caller that needs it
//! done.
//!
//! Invariants: batches are applied one at a time and in the order of their numbers, by the thread
//! that holds `applying`. A thread that holds the commit lock and has emptied the queue
//! ([`CommitPipeline::lock_applied`]) knows that everything that was accepted has been applied, and
//! that nothing else will be meanwhile. So no caller can observe the queue.
//!
//! A reader of some keys need not wait for batches that do not change them: neither for those in
//! the queue, nor for the one that is being applied, whose operations the queue keeps until
//! memtables have them.
//!
//! [`CommitPipeline::lock_applied`]: super::pipeline::CommitPipeline::lock_applied

use crate::Msn;
use crate::lock_order::{RankedMutex, RankedMutexGuard, rank};
use crate::log::{LoggedBatch, LoggedOp};
use crate::model::ids::IndexId;
use crate::model::key::{Key, KeyRange};
use std::collections::VecDeque;
use std::sync::Arc;

/// With so many times the operations that are worth a worker, the thread that accepts a batch
/// applies it.
const LONG_QUEUE_FACTOR: usize = 8;

/// The same with so many bytes.
const LONG_QUEUE_BYTES: u64 = 4 << 20;

/// And with one part in so many of the memory.
const LONG_QUEUE_SHARE: u64 = 64;

/// The queue. See the [module](self).
#[derive(Debug)]
pub(crate) struct ApplyQueue {
    queue: QueueLock,
    /// Held by the thread that applies a batch.
    applying: RankedMutex<(), { rank::APPLYING }>,
    /// Operations that are worth a worker.
    worth: usize,
    /// With more bytes than these, the thread that accepts a batch applies it.
    most_bytes: u64,
}

type QueueLock = RankedMutex<Queue, { rank::APPLY_QUEUE }>;

#[derive(Debug, Default)]
struct Queue {
    batches: VecDeque<Waiting>,
    operations: usize,
    bytes: u64,
    /// A batch has been taken out and is being applied.
    is_applying: bool,
    /// That batch, until memtables have it.
    current: Option<Arc<Waiting>>,
    /// The last message that memtables have; nothing of `batches` and `current` is among those
    /// before.
    applied: Msn,
}

#[derive(Debug)]
struct Waiting {
    batch: LoggedBatch,
    /// So many of its operations come first and are messages to single keys, by index and key.
    sorted: usize,
    bytes: u64,
}

/// What the thread that accepted a batch does about the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backlog {
    /// Nothing: it is short.
    Short,
    /// Sees to it that a worker applies it.
    Worthwhile,
    /// Applies it.
    Long,
}

impl ApplyQueue {
    /// Nothing waits, and `msn` was the last message; `worth` operations are worth a worker, in a
    /// store with so many bytes of `memory`.
    pub(crate) fn behind(msn: Msn, worth: usize, memory: u64) -> Self {
        let queue = Queue { applied: msn, ..Queue::default() };
        let most_bytes = LONG_QUEUE_BYTES.min(memory / LONG_QUEUE_SHARE);
        Self { queue: RankedMutex::new(queue), applying: RankedMutex::default(), worth, most_bytes }
    }

    /// Adds the next batch, of up to `bytes` bytes, that begins with `sorted` messages to single
    /// keys in order. Under the commit lock.
    pub(crate) fn push(&self, batch: LoggedBatch, sorted: usize, bytes: u64) -> Backlog {
        let mut queue = self.queue.lock();
        queue.operations += batch.ops.len();
        queue.bytes += bytes;
        queue.batches.push_back(Waiting { batch, sorted, bytes });
        if queue.operations > LONG_QUEUE_FACTOR * self.worth || queue.bytes > self.most_bytes {
            Backlog::Long
        } else if queue.operations >= self.worth && !queue.is_applying {
            Backlog::Worthwhile
        } else {
            Backlog::Short
        }
    }

    /// The next batch, if there is one, for the thread that applies it.
    pub(crate) fn next(&self) -> Option<Applying<'_>> {
        let applying = self.applying.lock();
        let mut queue = self.queue.lock();
        let waiting = Arc::new(queue.batches.pop_front()?);
        queue.operations -= waiting.batch.ops.len();
        queue.bytes -= waiting.bytes;
        queue.is_applying = true;
        queue.current = Some(waiting.clone());
        drop(queue);
        Some(Applying { waiting, queue: &self.queue, applying })
    }

    /// True if so much waits that it is worth a worker, and none is at it.
    pub(crate) fn is_worthwhile(&self) -> bool {
        let queue = self.queue.lock();
        self.worth > 0 && queue.operations >= self.worth && !queue.is_applying
    }

    /// True if what memtables do not have yet may concern a key in `range`.
    #[inline]
    pub(crate) fn concerns(&self, index: IndexId, range: &KeyRange) -> bool {
        let queue = self.queue.lock();
        let current = queue.current.iter().map(|current| &**current);
        current.chain(&queue.batches).any(|waiting| waiting.concerns(index, range))
    }

    /// The last message of which it is known that memtables have it and those before.
    pub(crate) fn applied(&self) -> Msn {
        self.queue.lock().applied
    }
}

/// A batch that is being applied. Dropped before its end it stays what readers wait for: it has
/// been applied in part.
pub(crate) struct Applying<'a> {
    waiting: Arc<Waiting>,
    queue: &'a QueueLock,
    applying: RankedMutexGuard<'a, (), { rank::APPLYING }>,
}

impl<'a> Applying<'a> {
    /// What memtables are to have.
    pub(crate) fn batch(&self) -> &LoggedBatch {
        &self.waiting.batch
    }

    /// Memtables have it: the batch, for the log, and what is left to be done.
    pub(crate) fn in_memtables(self) -> (LoggedBatch, Ending<'a>) {
        let Self { waiting, queue, applying } = self;
        {
            // Both at once: a reader that is told that nothing concerns its keys any more must see
            // all that did.
            let mut queue = queue.lock();
            queue.current = None;
            queue.applied = Msn(waiting.batch.first_msn.0 + waiting.batch.ops.len() as u64 - 1);
        }
        let Some(Waiting { batch, .. }) = Arc::into_inner(waiting) else {
            unreachable!("all looks at it are taken under the lock of the queue")
        };
        (batch, Ending { queue, _applying: applying })
    }
}

/// A batch that only the log does not have yet, perhaps. It has been applied as soon as this goes.
pub(crate) struct Ending<'a> {
    queue: &'a QueueLock,
    _applying: RankedMutexGuard<'a, (), { rank::APPLYING }>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.queue.lock().is_applying = false;
    }
}

impl Waiting {
    fn concerns(&self, index: IndexId, range: &KeyRange) -> bool {
        let (points, rest) = self.batch.ops.split_at(self.sorted);
        let before = |op: &LoggedOp| match op {
            LoggedOp::Point { index: of, key, .. } => (*of, key) < (index, &range.start),
            _ => false,
        };
        let first = points.get(points.partition_point(before));
        first.is_some_and(|op| touches(op, index, range)) || rest.iter().any(|op| touches(op, index, range))
    }
}

/// True if an operation may change the value of a key in `range`.
fn touches(op: &LoggedOp, index: IndexId, range: &KeyRange) -> bool {
    match op {
        LoggedOp::Point { index: of, key, .. } => *of == index && range.contains(key),
        LoggedOp::Range { index: of, range: other, .. } => *of == index && range.overlaps(other),
        LoggedOp::Clone { index: of, .. } => *of == index,
        LoggedOp::Superseded => false,
    }
}

/// How many of these operations come first and are messages to single keys, by index and key.
pub(crate) fn sorted_prefix(ops: &[LoggedOp]) -> usize {
    fn place(op: &LoggedOp) -> Option<(IndexId, &Key)> {
        match op {
            LoggedOp::Point { index, key, .. } => Some((*index, key)),
            _ => None,
        }
    }
    let mut last = None;
    ops.iter().map_while(place).take_while(|next| last.replace(*next) <= Some(*next)).count()
}

#[cfg(test)]
mod tests;
