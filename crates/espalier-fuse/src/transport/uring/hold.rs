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
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

const OPEN: u8 = 0;
const HOLDING: u8 = 1;
const CLOSED: u8 = 2;

/// How often it is looked at what no thread reports.
const LOOK_INTERVAL: Duration = Duration::from_millis(1);

/// Whether answers are held, and which.
#[derive(Default)]
pub(super) struct Hold {
    stage: AtomicU8,
    state: Mutex<HoldState>,
    changed: Condvar,
}

#[derive(Default)]
struct HoldState {
    /// How often it was opened.
    opened: u64,
    held: Vec<HeldAnswer>,
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
    /// Nothing is committed before [`Hold::open`].
    pub(super) fn closed() -> Self {
        Self { stage: AtomicU8::new(CLOSED), ..Self::default() }
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
        state.held.push(answer());
        self.changed.notify_all();
        let opened = state.opened;
        self.changed.wait_while(&mut state, |state| state.opened == opened);
    }

    /// The calling thread has got a request, or is about to register an entry: while all is closed
    /// it waits.
    pub(super) fn wait_while_closed(&self) {
        if self.stage.load(Ordering::Acquire) == CLOSED {
            let mut state = self.state.lock();
            self.changed.wait_while(&mut state, |_| self.stage.load(Ordering::Acquire) == CLOSED);
        }
    }

    /// From now on answers are held.
    pub(super) fn begin(&self) {
        let _state = self.state.lock();
        self.stage.store(HOLDING, Ordering::Release);
    }

    /// Closes as soon as `is_all` says that all is held that has to be; false if that is not before
    /// `deadline`.
    pub(super) fn close(&self, deadline: Instant, is_all: impl Fn(&[HeldAnswer]) -> bool) -> bool {
        let mut state = self.state.lock();
        while !is_all(&state.held) {
            if Instant::now() >= deadline {
                return false;
            }
            self.changed.wait_for(&mut state, LOOK_INTERVAL);
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
        drop(state);
        self.changed.notify_all();
    }

    /// Calls `look` with what is held.
    pub(super) fn with_held<T>(&self, look: impl FnOnce(&[HeldAnswer]) -> T) -> T {
        look(&self.state.lock().held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn answers_are_held_until_it_is_open_again() {
        let hold = Hold::closed();
        let (passed, far) = (AtomicUsize::new(0), Instant::now() + Duration::from_secs(60));
        let answer = |slot| HeldAnswer { slot, cpu: 0, commit_id: 7, payload: None };
        let is_all = |held: &[HeldAnswer]| held.len() == 3;
        std::thread::scope(|scope| {
            for slot in 0..3 {
                let (hold, passed) = (&hold, &passed);
                scope.spawn(move || {
                    for _ in 0..50 {
                        hold.pass(|| answer(slot));
                        passed.fetch_add(1, Ordering::SeqCst);
                        // Between two commits a thread waits for a request.
                        while hold.stage.load(Ordering::SeqCst) == OPEN {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            for round in 0..50 {
                hold.begin();
                assert!(hold.close(far, is_all));
                assert!(!hold.close(Instant::now(), |_| false), "the time is over");
                assert_eq!(passed.load(Ordering::SeqCst), 3 * round);
                hold.open();
                while passed.load(Ordering::SeqCst) < 3 * (round + 1) {
                    std::thread::yield_now();
                }
            }
            hold.begin();
        });
        hold.open();
        hold.pass(|| unreachable!("it is open"));
        hold.wait_while_closed();
    }
}
