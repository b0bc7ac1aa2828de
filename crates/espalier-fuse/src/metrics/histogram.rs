//! Histogram: counts of times in fixed buckets, each at most a quarter wider than its lower bound.
//!
//! A quantile is the middle of its bucket, so it is wrong by an eighth at most. Times below 256 ns
//! are one bucket, and those above 68 s another.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Buckets of a histogram.
pub const BUCKETS: usize = 2 + OCTAVES * PER_OCTAVE;

/// Times below two to this power, in nanoseconds, are the first bucket.
const LOWEST_POWER: usize = 8;
/// Doublings from there to the last bucket.
const OCTAVES: usize = 28;
/// Buckets for each doubling.
const PER_OCTAVE: usize = 4;

/// The bucket of a time.
pub(super) fn bucket_of(nanos: u64) -> usize {
    if nanos >> LOWEST_POWER == 0 {
        return 0;
    }
    let power = nanos.ilog2() as usize;
    let quarter = (nanos >> (power - 2)) as usize & (PER_OCTAVE - 1);
    (1 + (power - LOWEST_POWER) * PER_OCTAVE + quarter).min(BUCKETS - 1)
}

/// The times of a bucket in nanoseconds: the first, and the first of the next one. The last bucket
/// has no end; it is shown as twice its beginning.
pub fn bucket_bounds(bucket: usize) -> (u64, u64) {
    if bucket == 0 {
        return (0, 1 << LOWEST_POWER);
    }
    let at = bucket.min(BUCKETS - 1) - 1;
    let (power, quarter) = (LOWEST_POWER + at / PER_OCTAVE, at as u64 % PER_OCTAVE as u64);
    let step = 1u64 << (power - 2);
    let first = (PER_OCTAVE as u64 + quarter) * step;
    (first, if bucket < BUCKETS - 1 { first + step } else { 2 * first })
}

/// Counts of times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    sum_nanos: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum_nanos: 0 }
    }
}

impl Histogram {
    /// A histogram with `pairs` of bucket and count, and the sum of its times. Buckets that there
    /// are not count as the last.
    pub fn from_sparse(pairs: impl IntoIterator<Item = (usize, u64)>, sum_nanos: u64) -> Self {
        let mut new = Self { sum_nanos, ..Self::default() };
        for (bucket, count) in pairs {
            let cell = &mut new.counts[bucket.min(BUCKETS - 1)];
            *cell = cell.saturating_add(count);
        }
        new
    }

    /// The buckets that hold something, ascending, with their counts.
    pub fn sparse(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        self.counts.iter().copied().enumerate().filter(|(_, count)| *count > 0)
    }

    /// Times that were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The sum of all times in nanoseconds.
    pub fn sum_nanos(&self) -> u64 {
        self.sum_nanos
    }

    /// How many times were shorter than `nanos`, rounded down to a bucket.
    pub fn count_below(&self, nanos: u64) -> u64 {
        let below = self.sparse().filter(|(bucket, _)| bucket_bounds(*bucket).1 <= nanos);
        below.fold(0, |sum, (_, count)| sum.saturating_add(count))
    }

    /// The time that a share of all do not exceed, `share` from 0 to 1; `None` if there are none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        let rank = ((count as f64 * share).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0u64;
        let found = self.sparse().find(|(_, count)| {
            seen = seen.saturating_add(*count);
            seen >= rank
        });
        let (first, end) = bucket_bounds(found?.0);
        Some(Duration::from_nanos(first / 2 + end / 2))
    }

    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum = sum.saturating_add(count);
        }
        self.sum_nanos = self.sum_nanos.saturating_add(other.sum_nanos);
    }

    /// What came since `earlier`, which is the same histogram at an earlier time.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut new = self.clone();
        for (count, before) in new.counts.iter_mut().zip(earlier.counts) {
            *count = count.saturating_sub(before);
        }
        new.sum_nanos = new.sum_nanos.saturating_sub(earlier.sum_nanos);
        new
    }
}

/// A histogram that other threads may read.
#[derive(Debug)]
pub struct SharedHistogram {
    counts: [AtomicU64; BUCKETS],
    sum_nanos: AtomicU64,
}

impl Default for SharedHistogram {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], sum_nanos: AtomicU64::new(0) }
    }
}

impl SharedHistogram {
    /// Counts a time; any thread may do so.
    pub fn count(&self, time: Duration) {
        let nanos = nanos(time);
        self.counts[bucket_of(nanos)].fetch_add(1, Ordering::Relaxed);
        self.sum_nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Counts a time that stands for `times` requests; one thread at a time may do so, which costs
    /// less.
    pub(super) fn count_alone(&self, time: Duration, times: u64) {
        let nanos = nanos(time);
        add_alone(&self.counts[bucket_of(nanos)], times);
        add_alone(&self.sum_nanos, nanos.saturating_mul(times));
    }

    /// What was counted so far.
    pub fn snapshot(&self) -> Histogram {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Histogram { counts: self.counts.each_ref().map(read), sum_nanos: read(&self.sum_nanos) }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Adds to a counter that only one thread at a time writes.
pub(crate) fn add_alone(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
