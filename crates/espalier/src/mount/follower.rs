//! Following: a mount for reading shows the newest state of an object store that another machine
//! writes.
//!
//! Protocol: a thread asks for the root every few seconds. If it names another state, that is
//! opened as a store of its own and shown ([`Mount::show`]); what is open stays in the state in
//! which it was opened. Old states are closed when the kernel has forgotten them, or when the
//! writer may delete what they name. While many old ones are in use, no newer one is shown: so
//! memory has a bound, and each state its time.

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
use std::time::Duration;

/// How often the root is asked for.
const INTERVAL: Duration = Duration::from_secs(2);

/// How long a state is there after it was replaced. The writer deletes nothing that a root named
/// for ten minutes; one of them is for what passes before this thread sees a new root.
const GRACE: Duration = Duration::from_secs(9 * 60);

/// Most replaced states that are in use.
const MAX_OLD_STATES: usize = 4;

/// The share of the mount's memory that one state has.
pub(super) const MEMORY_SHARE: u64 = 1 + MAX_OLD_STATES as u64;

/// What follows.
struct Follower {
    plan: Plan,
    mount: Weak<Mount>,
    device: Arc<LeasedDevice>,
    shown: Arc<ShownStore>,
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
    let mut follower = Follower {
        plan: plan.clone(),
        mount: Arc::downgrade(mount),
        device: Arc::clone(device),
        shown: Arc::clone(shown),
    };
    let body = move || {
        let mut told = String::new();
        loop {
            std::thread::sleep(INTERVAL);
            let Some(mount) = follower.mount.upgrade() else { return };
            // The same trouble is told once.
            match follower.step(&mount) {
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

impl Follower {
    /// Shows the state that the root names, if it is another one.
    fn step(&mut self, mount: &Mount) -> Result<()> {
        if mount.close_states(GRACE) >= MAX_OLD_STATES {
            return Ok(());
        }
        let Some(newer) = self.device.newer()? else { return Ok(()) };
        let backing = Backing::Object(Arc::clone(&newer));
        let settings = &self.plan.settings;
        let memory = settings.store_memory() / MEMORY_SHARE;
        let device = Arc::clone(&newer) as Arc<dyn Device>;
        let store = image::store_over(device, &backing, memory, true, false)?;
        let volume = OpenOptions::default().volume;
        let fs = open_file_system(&self.plan, volume, true, &store, None, None)?;
        self.shown.set(&store, &fs, &backing);
        mount.show(fs)?;
        self.device = newer;
        Ok(())
    }
}
