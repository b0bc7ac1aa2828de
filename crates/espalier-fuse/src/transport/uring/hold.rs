//! Keeping answers back, so that another server can send them.
//!
//! An entry that is registered can be given a request at any moment, and a commit registers it
//! again. So before another server can go on every entry has to have a request whose answer is not
//! committed: it is *held*. Three stages:
//!
//! 1. *Open*: answers are committed.
//! 2. *Holding*: requests are served, and their answers held, until every entry has one.
//! 3. *Closed*: nothing is served. A request that comes all the same (to a CPU that came to life)
//!    waits for the service to be open again.
//!
//! Opening lets every held answer be committed. A thread that was let go commits its own, even if
//! the next hold has begun meanwhile.

use espalier_sync::{Condvar, Mutex};
use std::io;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

const OPEN: u8 = 0;
const HOLDING: u8 = 1;
const CLOSED: u8 = 2;

/// How often it is looked at what no thread reports.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Whether answers are held, and which.
pub(super) struct Hold {
    stage: AtomicU8,
    state: Mutex<HoldState>,
    /// For threads that wait until it is open again, as many as there are entries.
    opened: Condvar,
    /// For the thread that closes: the last queue that had to be full is.
    filled: Condvar,
}

#[derive(Default)]
struct HoldState {
    /// How often it was opened.
    opened: u64,
    held: Vec<HeldAnswer>,
    /// By CPU.
    queues: Vec<QueueEntries>,
    /// How many queues have to be full and are not.
    missing: usize,
}

/// The entries of a queue.
#[derive(Default)]
struct QueueEntries {
    registered: usize,
    /// Those of them that hold an answer.
    held: usize,
    /// Every entry has to hold one.
    has_to_fill: bool,
}

impl QueueEntries {
    /// How many entries have to hold an answer and do not.
    fn missing(&self) -> usize {
        if self.has_to_fill { self.registered.saturating_sub(self.held) } else { 0 }
    }
}

impl HoldState {
    fn change(&mut self, cpu: usize, change: impl FnOnce(&mut QueueEntries)) {
        let queue = &mut self.queues[cpu];
        let was_missing = queue.missing() > 0;
        change(queue);
        let is_missing = queue.missing() > 0;
        self.missing = self.missing + usize::from(is_missing) - usize::from(was_missing);
    }
}

/// An answer that lies in its entry, ready to be committed.
#[derive(Debug)]
pub(super) struct HeldAnswer {
    /// The entry.
    pub(super) slot: usize,
    /// Its queue.
    pub(super) cpu: usize,
    /// By which the kernel knows the request.
    pub(super) commit_id: u64,
    /// The payload, if another process does not find it in the arena.
    pub(super) payload: Option<Vec<u8>>,
}

impl Hold {
    /// For so many queues; answers are committed.
    pub(super) fn opened(queues: usize) -> Self {
        Self::of(queues, OPEN)
    }

    /// For so many queues; nothing is committed before [`Hold::open`].
    pub(super) fn closed(queues: usize) -> Self {
        Self::of(queues, CLOSED)
    }

    fn of(queues: usize, stage: u8) -> Self {
        let queues = (0..queues).map(|_| QueueEntries::default()).collect();
        let state = Mutex::new(HoldState { queues, ..HoldState::default() });
        Self { stage: AtomicU8::new(stage), state, opened: Condvar::new(), filled: Condvar::new() }
    }

    /// An entry of the queue of `cpu` is registered.
    pub(super) fn add_registered(&self, cpu: usize) {
        self.state.lock().change(cpu, |queue| queue.registered += 1);
    }

    /// An entry of the queue of `cpu` is gone.
    pub(super) fn remove_registered(&self, cpu: usize) {
        let mut state = self.state.lock();
        state.change(cpu, |queue| queue.registered -= 1);
        if state.missing == 0 {
            self.filled.notify_one();
        }
    }

    /// Calls `register`, which registers an entry of the queue of `cpu`, as soon as no answer is
    /// held: an entry that came later would be empty when all is closed.
    ///
    /// # Errors
    /// Those of `register`.
    pub(super) fn register(&self, cpu: usize, register: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let mut state = self.state.lock();
        self.opened.wait_while(&mut state, |_| self.stage.load(Ordering::Acquire) != OPEN);
        register()?;
        state.change(cpu, |queue| queue.registered += 1);
        Ok(())
    }

    /// How many entries of the queue of `cpu` are registered.
    pub(super) fn registered(&self, cpu: usize) -> usize {
        self.state.lock().queues[cpu].registered
    }

    /// The calling thread is about to commit `answer`; while answers are held it waits.
    pub(super) fn pass(&self, answer: impl FnOnce() -> HeldAnswer) {
        if self.stage.load(Ordering::Acquire) == OPEN {
            return;
        }
        let mut state = self.state.lock();
        if self.stage.load(Ordering::Acquire) == OPEN {
            return;
        }
        let answer = answer();
        state.change(answer.cpu, |queue| queue.held += 1);
        state.held.push(answer);
        if state.missing == 0 {
            self.filled.notify_one();
        }
        let opened = state.opened;
        self.opened.wait_while(&mut state, |state| state.opened == opened);
    }

    /// The calling thread has got a request: while all is closed it waits.
    pub(super) fn wait_while_closed(&self) {
        if self.stage.load(Ordering::Acquire) == CLOSED {
            let mut state = self.state.lock();
            self.opened.wait_while(&mut state, |_| self.stage.load(Ordering::Acquire) == CLOSED);
        }
    }

    /// From now on answers are held: in each entry of the queues of the CPUs that are `on`.
    pub(super) fn begin(&self, on: &[usize]) {
        let mut state = self.state.lock();
        for &cpu in on {
            // A CPU without a queue gets no requests.
            if cpu < state.queues.len() {
                state.change(cpu, |queue| queue.has_to_fill = true);
            }
        }
        self.stage.store(HOLDING, Ordering::Release);
    }

    /// By CPU, how many entries have to hold an answer and do not.
    pub(super) fn missing(&self) -> Vec<(usize, usize)> {
        let state = self.state.lock();
        let missing = state.queues.iter().map(QueueEntries::missing).enumerate();
        missing.filter(|(_, count)| *count > 0).collect()
    }

    /// A CPU of whose queue an answer is held, though it is none of those that are on.
    pub(super) fn unexpected(&self) -> Option<usize> {
        let state = self.state.lock();
        state.queues.iter().position(|queue| !queue.has_to_fill && queue.held > 0)
    }

    /// Closes as soon as all is held that has to be and `is_idle`; false if that is not before
    /// `deadline`.
    pub(super) fn close(&self, deadline: Instant, is_idle: impl Fn() -> bool) -> bool {
        let mut state = self.state.lock();
        // `is_idle` looks at every thread, so it is asked only when all is held.
        while state.missing > 0 || !is_idle() {
            if Instant::now() >= deadline {
                return false;
            }
            if state.missing > 0 {
                self.filled.wait_until(&mut state, deadline);
            } else {
                self.filled.wait_for(&mut state, LOOK_INTERVAL);
            }
        }
        self.stage.store(CLOSED, Ordering::Release);
        true
    }

    /// Lets all go on: held answers are committed.
    pub(super) fn open(&self) {
        let mut state = self.state.lock();
        self.stage.store(OPEN, Ordering::Release);
        state.opened += 1;
        state.held.clear();
        for queue in &mut state.queues {
            (queue.held, queue.has_to_fill) = (0, false);
        }
        state.missing = 0;
        drop(state);
        self.opened.notify_all();
    }

    /// Calls `look` with what is held.
    pub(super) fn with_held<T>(&self, look: impl FnOnce(&[HeldAnswer]) -> T) -> T {
        look(&self.state.lock().held)
    }
}

#[cfg(test)]
mod tests;
