//! Following: a mount for reading shows the newest state of an object store that another machine
//! writes.
//!
//! Protocol: a thread asks for the root every few seconds. If it names another state, that is
//! opened as a store of its own and shown ([`Mount::show`]); what is open stays in the state in
//! which it was opened. Old states are closed when the kernel has forgotten them, or when the
//! writer may delete what they name. While many old ones are in use, no newer one is shown: so
//! memory has a bound, and each state its time.
//!
//! Invariant: the time of a state counts from a look that began while the state was still that of
//! the store. The writer may have replaced it long before that is seen here, and the time until it
//! deletes runs from then.

use super::opening::open_file_system;
use super::plan::Plan;
use crate::backing::{Backing, LeasedDevice};
use crate::image;
use crate::info::ShownStore;
use anyhow::{Context, Result};
use espalier_fs::OpenOptions;
use espalier_fuse::Mount;
use espalier_storage::Device;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often the root is asked for.
const INTERVAL: Duration = Duration::from_secs(2);

/// How long a state is there after it was last seen to be that of the store. The writer deletes
/// nothing for ten minutes after the root that named it was replaced; one of them is for steps that
/// take long.
const GRACE: Duration = Duration::from_secs(9 * 60);

/// Most replaced states that are in use.
const MAX_OLD_STATES: usize = 4;

/// The share of the mount's memory that one state has.
pub(super) const MEMORY_SHARE: u64 = 1 + MAX_OLD_STATES as u64;

/// A store that is followed, and the mount that shows it.
trait Followed {
    /// A state of the store.
    type State;

    /// Closes old states whose time is over at `now`; returns how many there still are.
    fn close_states(&self, now: Instant) -> usize;

    /// True if the store has replaced the state that was shown last.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn is_replaced(&self) -> Result<bool>;

    /// The state that has replaced the one that was shown last, if one has.
    ///
    /// # Errors
    /// If that cannot be found out.
    fn newer(&self) -> Result<Option<Self::State>>;

    /// Shows a state. The one that was shown before was still that of the store at `last_current`.
    ///
    /// # Errors
    /// If it cannot be opened, or shown.
    fn show(&mut self, state: Self::State, last_current: Instant) -> Result<()>;
}

/// Shows the newest state, if that is another one. `now` is the present, `last_current` when the
/// state that is shown was last known to be that of the store.
///
/// # Errors
/// Of what is followed.
fn step(followed: &mut impl Followed, now: Instant, last_current: &mut Instant) -> Result<()> {
    if followed.close_states(now) >= MAX_OLD_STATES {
        // It is not shown, but asked for: otherwise the state would seem older than it is.
        if !followed.is_replaced()? {
            *last_current = now;
        }
        return Ok(());
    }
    if let Some(newer) = followed.newer()? {
        followed.show(newer, *last_current)?;
    }
    // What is shown now was that of the store when it was asked for, after this step had begun.
    *last_current = now;
    Ok(())
}

/// What follows.
struct Follower {
    plan: Plan,
    device: Arc<LeasedDevice>,
    shown: Arc<ShownStore>,
}

/// A follower and its mount, which it does not keep alive between two steps.
struct Following<'a> {
    follower: &'a mut Follower,
    mount: &'a Mount,
}

/// Starts the thread, which ends with the mount.
///
/// # Errors
/// If the system has no thread left.
pub(super) fn start(
    plan: &Plan,
    backing: &Backing,
    mount: &Arc<Mount>,
    shown: &Arc<ShownStore>,
) -> Result<()> {
    let Backing::Object(device) = backing else { return Ok(()) };
    let mut last_current = device.opening();
    let mut follower = Follower { plan: plan.clone(), device: Arc::clone(device), shown: Arc::clone(shown) };
    let mount = Arc::downgrade(mount);
    let body = move || {
        let mut told = String::new();
        loop {
            std::thread::sleep(INTERVAL);
            let Some(mount) = Weak::upgrade(&mount) else { return };
            let mut following = Following { follower: &mut follower, mount: &mount };
            // The same trouble is told once.
            match step(&mut following, Instant::now(), &mut last_current) {
                Ok(()) => told.clear(),
                Err(error) => {
                    let text = format!("{error:#}");
                    if text != told {
                        tracing::warn!(error = text, "the newest state of the store cannot be shown");
                    }
                    told = text;
                }
            }
        }
    };
    std::thread::Builder::new().name("follower".into()).spawn(body).context("a thread cannot be started")?;
    Ok(())
}

impl Followed for Following<'_> {
    type State = Arc<LeasedDevice>;

    fn close_states(&self, now: Instant) -> usize {
        self.mount.close_states(now, GRACE)
    }

    fn is_replaced(&self) -> Result<bool> {
        Ok(self.follower.device.object().is_replaced()?)
    }

    fn newer(&self) -> Result<Option<Arc<LeasedDevice>>> {
        Ok(self.follower.device.newer()?)
    }

    fn show(&mut self, newer: Arc<LeasedDevice>, last_current: Instant) -> Result<()> {
        let Follower { plan, device: shown_device, shown } = &mut *self.follower;
        let backing = Backing::Object(Arc::clone(&newer));
        let memory = plan.settings.store_memory() / MEMORY_SHARE;
        let device = Arc::clone(&newer) as Arc<dyn Device>;
        let store = image::store_over(device, &backing, memory, true, false)?;
        let volume = OpenOptions::default().volume;
        let fs = open_file_system(plan, volume, true, &store, None, None)?;
        shown.set(&store, &fs, &backing);
        self.mount.show(fs, last_current)?;
        *shown_device = newer;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
