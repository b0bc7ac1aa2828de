//! What a server in the foreground tells systemd: that the mount answers, that it begins to end,
//! and that it is alive (sd_notify(3)). Without systemd nothing is told.

use espalier_fs::{FileSystem, NodeId};
use sd_notify::NotifyState;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// By which systemd tells a service where it listens and how long it waits.
pub(super) const SERVICE_VARIABLES: [&str; 2] = ["NOTIFY_SOCKET", "WATCHDOG_USEC"];

/// The unit that this server is, if it is one.
#[derive(Default)]
pub(super) struct Service {
    /// The mount is gone, and what is left is made durable.
    ending: Arc<AtomicBool>,
}

impl Service {
    /// The process is no service: what systemd has told the caller, and what the caller tells
    /// systemd, is not the concern of a server in the background. One that goes on in place of a
    /// service becomes it later.
    pub(super) fn leave() {
        for name in SERVICE_VARIABLES.into_iter().chain(["WATCHDOG_PID"]) {
            // SAFETY: the process has one thread: no thread reads the environment meanwhile.
            unsafe { std::env::remove_var(name) };
        }
    }

    /// The mount at `dir` answers. From now on systemd hears that `fs` is alive, if it wants to.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(super) fn ready(&self, dir: &Path, fs: &Arc<FileSystem>) -> std::io::Result<()> {
        tell(&[NotifyState::Ready, NotifyState::Status(&format!("mounted at {}", dir.display()))]);
        let Some(limit) = sd_notify::watchdog_enabled() else { return Ok(()) };
        let (fs, ending) = (Arc::downgrade(fs), Arc::clone(&self.ending));
        let body = move || show_life(limit / 2, &fs, &ending);
        std::thread::Builder::new().name("watchdog".into()).spawn(body).map(drop)
    }

    /// The mount is gone; what is left is made durable now.
    pub(super) fn ending(&self) {
        self.ending.store(true, Ordering::Relaxed);
        tell(&[NotifyState::Stopping, NotifyState::Status("making everything durable")]);
    }
}

/// Tells systemd at each interval that the server is alive. The proof is that the file system finds
/// its root, which a server whose locks are never released does not. It asks the file system and
/// not the mount: a thread that waits for an answer of its own process could not be killed. Nor
/// does it need the device, whose silence is no reason to kill a server. While the server ends the
/// time limit of the unit counts.
fn show_life(interval: Duration, fs: &Weak<FileSystem>, ending: &AtomicBool) {
    loop {
        if !ending.load(Ordering::Relaxed)
            && let Some(fs) = fs.upgrade()
            && let Ok(root) = fs.lookup(NodeId::ROOT, b".")
        {
            fs.forget(root.node, 1);
        }
        tell(&[NotifyState::Watchdog]);
        std::thread::sleep(interval);
    }
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "systemd cannot be told of the state of the server");
    }
}
