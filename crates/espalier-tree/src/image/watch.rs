//! Watches of directories of an image: what this process changes there, through this opening of it.

use crate::error::Result;
use espalier_client::Changes;
use espalier_fs::{ChangeWaiter, Links, PathCaller};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a wait asks whether it is still wanted.
const WANTED_INTERVAL: Duration = Duration::from_millis(200);

/// A watch of a directory.
pub(crate) struct ImageWatch {
    caller: PathCaller,
    /// The directory. It is looked up each time, so that one that has moved away, or was removed,
    /// ends the wait.
    path: Vec<u8>,
    position: Vec<u8>,
    /// Names the instant of the last answer exactly; empty before the first one.
    exact: Vec<u8>,
    /// What is to be told before anything else.
    first: Vec<Vec<u8>>,
}

/// What the file system wakes, for the time of one wait.
#[derive(Default)]
struct Waiter {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

/// What was changed below a directory since a position, and the exact position of this answer. If
/// that is nothing, `waiter` is woken by the next change there.
///
/// # Errors
/// As for [`Tree::changes`](crate::Tree::changes).
pub(crate) fn now(
    caller: &PathCaller,
    (path, position): (&[u8], &[u8]),
    waiter: Option<&Arc<dyn ChangeWaiter>>,
) -> Result<(Vec<u8>, Changes)> {
    let found = match waiter {
        None => caller.changed_paths(path, position)?,
        Some(waiter) => caller.changed_paths_or_wait(path, position, waiter)?,
    };
    let position = found.token.into_bytes();
    let changes = Changes { position, everything: found.everything, paths: found.paths };
    Ok((found.exact.into_bytes(), changes))
}

impl ImageWatch {
    /// Begins with what is changed after `position`.
    ///
    /// # Errors
    /// Those of `stat`.
    pub(crate) fn begin(caller: &PathCaller, path: &[u8], position: &[u8]) -> Result<Self> {
        caller.stat(path, Links::Follow)?;
        let (path, position) = (path.to_vec(), position.to_vec());
        let caller = caller.clone();
        Ok(Self { caller, path, position, exact: Vec::new(), first: Vec::new() })
    }

    /// Has these paths told before anything else.
    pub(crate) fn tell_first(&mut self, paths: Vec<Vec<u8>>) {
        self.first = paths;
    }

    /// Where the watch has come to.
    pub(crate) fn position(&self) -> &[u8] {
        &self.position
    }

    /// Waits until something is changed, and says what; an empty answer after `limit`, or when
    /// `goes_on`, which is asked now and then, returns false.
    ///
    /// # Errors
    /// As for [`now`].
    pub(crate) fn wait(
        &mut self,
        limit: Duration,
        mut goes_on: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Changes> {
        if !self.first.is_empty() {
            let paths = std::mem::take(&mut self.first);
            return Ok(Changes { position: self.position.clone(), everything: false, paths });
        }
        let deadline = Instant::now().checked_add(limit);
        // One of its own: the file system knows the waiter as long as it is there.
        let waiter = Arc::new(Waiter::default());
        let woken: Arc<dyn ChangeWaiter> = waiter.clone();
        loop {
            let since = if self.exact.is_empty() { &self.position } else { &self.exact };
            let (exact, changes) = now(&self.caller, (&self.path, since), Some(&woken))?;
            self.exact = exact;
            self.position.clone_from(&changes.position);
            let is_told = changes.everything || !changes.paths.is_empty();
            if is_told || !waiter.wait(deadline, &mut goes_on) {
                return Ok(changes);
            }
        }
    }
}

impl Waiter {
    fn lock(&self) -> MutexGuard<'_, bool> {
        // A truth value is whole at any time.
        self.is_woken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is woken; false if it is not, until the deadline or while `goes_on`.
    fn wait(&self, deadline: Option<Instant>, goes_on: &mut Option<&mut dyn FnMut() -> bool>) -> bool {
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let interval = goes_on.is_some().then_some(WANTED_INTERVAL);
            let is_woken = self.lock();
            let mut is_woken = match [left, interval].into_iter().flatten().min() {
                _ if *is_woken => is_woken,
                None => self.woken.wait(is_woken).unwrap_or_else(PoisonError::into_inner),
                Some(time) => {
                    self.woken.wait_timeout(is_woken, time).unwrap_or_else(PoisonError::into_inner).0
                }
            };
            if std::mem::take(&mut *is_woken) {
                return true;
            }
            drop(is_woken);
            if left.is_some_and(|left| left.is_zero()) || goes_on.as_mut().is_some_and(|goes_on| !goes_on()) {
                return false;
            }
        }
    }
}

impl ChangeWaiter for Waiter {
    fn wake(&self) {
        *self.lock() = true;
        self.woken.notify_all();
    }
}
