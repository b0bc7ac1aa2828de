//! The stand-ins for the world outside: a clock that steps when told, numbers from a seed.

use espalier_storage::{Environment, JoinHandle};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Splitmix64: small, and good enough to choose operations.
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn chance(&mut self, one_in: usize) -> bool {
        self.below(one_in) == 0
    }

    pub(crate) fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

/// Time stands still between steps.
#[derive(Debug)]
pub(crate) struct World {
    now: AtomicU64,
    random: AtomicU64,
}

impl World {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self { now: AtomicU64::new(1_000_000_000), random: AtomicU64::new(seed) })
    }

    pub(crate) fn step(&self, nanoseconds: u64) -> i64 {
        (self.now.fetch_add(nanoseconds, Ordering::SeqCst) + nanoseconds) as i64
    }
}

impl Environment for World {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.now.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        self.now()
    }

    fn random(&self) -> u64 {
        Random(self.random.fetch_add(1, Ordering::SeqCst)).next()
    }

    fn threads(&self) -> usize {
        0
    }

    fn spawn(&self, name: &str, _: Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle> {
        panic!("no thread {name} may be started: threads() is 0")
    }

    fn sleep(&self, _: Duration) {}
}
