//! Clock for the times of requests: two readings of it belong to each.
//!
//! Where the kernel itself takes its time from the processor's counter, and so vouches for it, that
//! counter is read directly, which costs half as much as asking for the system's time or less. Its
//! rate is found by comparing both. Elsewhere it is the system's clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Says what the kernel's clock is.
const SOURCE_PATH: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// After so long a comparison is exact enough to be kept.
const COMPARED_FOR: Duration = Duration::from_millis(50);

/// See the [module](self).
pub(super) struct Clock {
    begun: Instant,
    begun_ticks: u64,
    counts: bool,
    /// The bits of the nanoseconds in a tick; 0: not known yet.
    nanos_per_tick: AtomicU64,
}

/// A moment of one clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(u64);

impl Clock {
    /// Begins now.
    pub(super) fn begin() -> Self {
        let source = std::fs::read_to_string(SOURCE_PATH).unwrap_or_default();
        Self::new(source.trim() == "tsc" && ticks().is_some())
    }

    fn new(counts: bool) -> Self {
        let begun_ticks = ticks().unwrap_or(0);
        Self { begun: Instant::now(), begun_ticks, counts, nanos_per_tick: AtomicU64::new(0) }
    }

    /// Now.
    pub(super) fn now(&self) -> Stamp {
        match ticks().filter(|_| self.counts) {
            Some(ticks) => Stamp(ticks.saturating_sub(self.begun_ticks)),
            None => Stamp(self.begun.elapsed().as_nanos() as u64),
        }
    }

    /// The time from one moment to a later one.
    pub(super) fn between(&self, from: Stamp, to: Stamp) -> Duration {
        let length = to.0.saturating_sub(from.0);
        match self.counts {
            true => Duration::from_nanos((length as f64 * self.nanos_per_tick()) as u64),
            false => Duration::from_nanos(length),
        }
    }

    /// The time since the clock began.
    pub(super) fn since_begun(&self, at: Stamp) -> Duration {
        self.between(Stamp(0), at)
    }

    fn nanos_per_tick(&self) -> f64 {
        match self.nanos_per_tick.load(Ordering::Relaxed) {
            0 => self.compare(),
            known => f64::from_bits(known),
        }
    }

    #[cold]
    fn compare(&self) -> f64 {
        let (elapsed, ticks) = (self.begun.elapsed(), self.now().0.max(1));
        let rate = elapsed.as_nanos() as f64 / ticks as f64;
        if elapsed >= COMPARED_FOR {
            self.nanos_per_tick.store(rate.to_bits(), Ordering::Relaxed);
        }
        rate
    }
}

/// The processor's counter, where there is one that is known here.
#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: the instruction reads a register and changes nothing.
    Some(unsafe { std::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_clocks_tell_the_time() {
        for counts in [false, Clock::begin().counts] {
            let clock = Clock::new(counts);
            let (system, first) = (Instant::now(), clock.now());
            while system.elapsed() < 2 * COMPARED_FOR {
                assert!(clock.now() >= first);
            }
            let told = clock.between(first, clock.now());
            // The thread may have lost its CPU between two readings.
            assert!(told >= COMPARED_FOR && told <= system.elapsed() + COMPARED_FOR, "{counts}: {told:?}");
            assert_eq!(clock.between(clock.now(), first), Duration::ZERO);
        }
    }
}
