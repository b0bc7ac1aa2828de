//! Time and randomness that a seed decides; no threads.

use crate::{Environment, JoinHandle, Random};
use espalier_sync::Mutex;
use std::time::Duration;

/// How far the clock moves each time it is read.
const CLOCK_TICK: Duration = Duration::from_micros(10);

/// Time at the start: 2024-01-01 UTC.
const START_TIME: Duration = Duration::from_secs(1_704_067_200);

/// An environment for simulations: one seed gives one sequence of times and numbers. It has no
/// threads, so background work is stepped by the caller that would wait for it.
#[derive(Debug)]
pub struct SimulatedEnvironment {
    state: Mutex<(Duration, Random)>,
}

impl SimulatedEnvironment {
    /// The environment that `seed` names.
    pub fn new(seed: u64) -> Self {
        Self { state: Mutex::new((Duration::ZERO, Random::new(seed))) }
    }

    /// Moves the clock forward.
    pub fn advance(&self, duration: Duration) {
        self.state.lock().0 += duration;
    }
}

impl Environment for SimulatedEnvironment {
    fn now(&self) -> Duration {
        START_TIME + self.monotonic()
    }

    fn monotonic(&self) -> Duration {
        let mut state = self.state.lock();
        state.0 += CLOCK_TICK;
        state.0
    }

    fn random(&self) -> u64 {
        self.state.lock().1.next_u64()
    }

    fn threads(&self) -> usize {
        0
    }

    /// # Panics
    /// Always: the caller has not asked how many threads there may be.
    fn spawn(&self, name: &str, _body: Box<dyn FnOnce() + Send>) -> std::io::Result<JoinHandle> {
        panic!("a simulation has no threads, so it cannot start {name}");
    }

    fn sleep(&self, duration: Duration) {
        self.advance(duration);
    }
}
