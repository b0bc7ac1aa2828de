//! A recording: how long each operation of a step took, and how many there were in each moment.

use espalier_fuse::metrics::{Histogram, SharedHistogram};
use std::time::{Duration, Instant};

/// Moments that are told apart at most.
const MAX_MOMENTS: usize = 200;
/// The shortest moment.
const SHORTEST_MOMENT: Duration = Duration::from_millis(5);

/// The operations of one step, and how many ended in each moment.
#[derive(Debug)]
pub struct Recording {
    begun: Instant,
    times: SharedHistogram,
    longest: Duration,
    bytes: u64,
    /// Operations and bytes that ended in each moment.
    moments: Vec<[u64; 2]>,
    moment: Duration,
    total: Duration,
}

impl Recording {
    /// A step begins now.
    pub(super) fn begin() -> Self {
        Self {
            begun: Instant::now(),
            times: SharedHistogram::default(),
            longest: Duration::ZERO,
            bytes: 0,
            moments: Vec::new(),
            moment: SHORTEST_MOMENT,
            total: Duration::ZERO,
        }
    }

    /// Does an operation on so many bytes, and records it.
    pub(super) fn operation<T, E>(
        &mut self,
        bytes: u64,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let begun = Instant::now();
        let result = work();
        let ended = Instant::now();
        self.add(ended - self.begun, ended - begun, bytes);
        result
    }

    /// An operation that took `time` ended `at` after the beginning.
    fn add(&mut self, at: Duration, time: Duration, bytes: u64) {
        self.times.count(time);
        self.longest = self.longest.max(time);
        self.bytes += bytes;
        let mut moment = (at.as_nanos() / self.moment.as_nanos()) as usize;
        while moment >= MAX_MOMENTS {
            self.moments = self
                .moments
                .chunks(2)
                .map(|pair| pair.iter().fold([0, 0], |sum, moment| [sum[0] + moment[0], sum[1] + moment[1]]))
                .collect();
            self.moment *= 2;
            moment /= 2;
        }
        if self.moments.len() <= moment {
            self.moments.resize(moment + 1, [0, 0]);
        }
        self.moments[moment][0] += 1;
        self.moments[moment][1] += bytes;
    }

    /// Everything is durable now.
    pub(super) fn end(mut self) -> Self {
        self.total = self.begun.elapsed();
        self
    }

    /// How long the step took until everything was durable.
    pub fn seconds(&self) -> f64 {
        self.total.as_secs_f64()
    }

    /// How long each operation took.
    pub fn times(&self) -> Histogram {
        self.times.snapshot()
    }

    /// The longest of them.
    pub fn longest(&self) -> Duration {
        self.longest
    }

    /// Bytes of data of all operations.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The length of a moment in seconds, and the operations and bytes of each.
    pub fn moments(&self) -> (f64, &[[u64; 2]]) {
        (self.moment.as_secs_f64(), &self.moments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_become_longer_and_none_is_lost() {
        let mut recording = Recording::begin();
        for at in 0..1000 {
            recording.add(Duration::from_millis(5 * at), Duration::from_micros(at), 2);
        }
        let (length, moments) = recording.moments();
        assert!((length - 0.04).abs() < 1e-9 && moments.len() == 125, "{length} {}", moments.len());
        assert!(moments.iter().all(|moment| *moment == [8, 16]), "{moments:?}");
        assert_eq!((recording.times().count(), recording.bytes()), (1000, 2000));
        assert_eq!(recording.longest(), Duration::from_micros(999));
    }
}
