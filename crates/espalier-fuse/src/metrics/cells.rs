//! Cells: the counters of one worker, which one thread at a time writes.

use super::callers::CallerTable;
use super::histogram::{Histogram, SharedHistogram};
use super::kinds::{self, KINDS};
use espalier_sync::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// What the requests of one kind came to since the mount was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindSnapshot {
    /// The kernel's name of the kind, in lower case.
    pub kind: &'static str,
    /// Requests.
    pub requests: u64,
    /// Requests that were answered with an error.
    pub errors: u64,
    /// Bytes of data in the requests, names and attributes included.
    pub bytes_in: u64,
    /// Bytes in the answers.
    pub bytes_out: u64,
    /// How long the server worked at each, waits for storage and for locks included. Where only a
    /// sample was timed, each time counts for all that it stands for.
    pub work: Histogram,
    /// How long the thread that was given a request waited for a CPU before it began; of a sample.
    pub queue: Histogram,
}

/// Where the pseudo-random numbers of a worker begin. Every worker may begin alike.
const SEED: u64 = 0x9E37_79B9_7F4A_7C15;

/// What one worker has counted.
pub(super) struct Cells {
    pub(super) kinds: [OnceLock<Box<KindCells>>; KINDS],
    /// From which the next pseudo-random number is made; not 0.
    pub(super) chance: AtomicU64,
    pub(super) callers: Mutex<CallerTable>,
}

/// What one worker has counted of requests of one kind.
#[derive(Default)]
#[repr(C, align(64))]
pub(super) struct KindCells {
    // What every request changes is in one line of the cache.
    pub(super) requests: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) bytes_in: AtomicU64,
    pub(super) bytes_out: AtomicU64,
    pub(super) work: SharedHistogram,
    pub(super) queue: SharedHistogram,
}

impl Default for Cells {
    fn default() -> Self {
        let kinds = [const { OnceLock::new() }; KINDS];
        Self { kinds, chance: AtomicU64::new(SEED), callers: Mutex::default() }
    }
}

impl Cells {
    /// The next pseudo-random number (xorshift); for the worker's own thread.
    pub(super) fn next_random(&self) -> u64 {
        let mut number = self.chance.load(Ordering::Relaxed);
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        self.chance.store(number, Ordering::Relaxed);
        number
    }

    /// What was counted of a kind, if it came up.
    pub(super) fn kind(&self, kind: usize) -> Option<&KindCells> {
        self.kinds.get(kind)?.get().map(Box::as_ref)
    }
}

impl KindCells {
    /// What was counted.
    pub(super) fn snapshot(&self, kind: usize) -> KindSnapshot {
        KindSnapshot {
            kind: kinds::name(kind),
            requests: self.requests.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
            work: self.work.snapshot(),
            queue: self.queue.snapshot(),
        }
    }

    /// Adds what was counted to `sum`.
    pub(super) fn add_to(&self, sum: &mut KindSnapshot) {
        sum.requests += self.requests.load(Ordering::Relaxed);
        sum.errors += self.errors.load(Ordering::Relaxed);
        sum.bytes_in += self.bytes_in.load(Ordering::Relaxed);
        sum.bytes_out += self.bytes_out.load(Ordering::Relaxed);
        sum.work.add(&self.work.snapshot());
        sum.queue.add(&self.queue.snapshot());
    }
}
