//! Growth gate: says when it is time again to give up memory that is beyond a budget.
//!
//! A sweep over everything takes time for everything, and may free nothing because all of it is in
//! use. So after a sweep the next one is due when a quarter more is held than that one left: what
//! is added pays for a few times as much to be looked at, however far the budget is exceeded.

use std::sync::atomic::{AtomicU64, Ordering};

/// See the [module](self).
pub(crate) struct GrowthGate {
    budget: u64,
    /// Held beyond this, a sweep is due; the largest number while a sweep is under way.
    next: AtomicU64,
}

impl GrowthGate {
    /// A sweep is due when more than `budget` is held.
    pub(crate) fn new(budget: u64) -> Self {
        Self { budget, next: AtomicU64::new(budget) }
    }

    /// What may be held.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// True for one caller if a sweep is due with so much held: it sweeps, and calls
    /// [`Self::end`].
    pub(crate) fn begin(&self, held: u64) -> bool {
        let next = self.next.load(Ordering::Relaxed);
        let take = || self.next.compare_exchange(next, u64::MAX, Ordering::Relaxed, Ordering::Relaxed);
        held > next && take().is_ok()
    }

    /// A sweep has left so much.
    pub(crate) fn end(&self, left: u64) {
        self.next.store(self.budget.max(left.saturating_add(left / 4)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_that_frees_nothing_is_not_repeated_at_once() {
        let gate = GrowthGate::new(100);
        assert!(!gate.begin(100) && gate.begin(101));
        // One at a time.
        assert!(!gate.begin(1000));
        gate.end(101);
        assert!(!gate.begin(126) && gate.begin(127));
        gate.end(20);
        assert!(!gate.begin(100) && gate.begin(101));
        // Sweeps become rarer as what is held grows: each of a thousand steps adds one.
        gate.end(0);
        let mut sweeps = 0;
        for held in 0..1000 {
            if gate.begin(held) {
                sweeps += 1;
                gate.end(held);
            }
        }
        assert!((5..15).contains(&sweeps), "{sweeps}");
    }
}
