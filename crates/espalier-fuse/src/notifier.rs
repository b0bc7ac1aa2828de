//! Tells the kernel of changes that it did not ask for: a clone that appears, a subtree that is gone.
//!
//! A thread of its own writes the notifications, because the kernel takes locks while it handles one, which a
//! request in work may hold. So: finish the change, release every lock, notify, and only then answer.

use crate::protocol::notify::Notification;
use crate::transport::Device;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Sends notifications in order.
pub struct Notifier {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Notification>,
    queued: u64,
    sent: u64,
    stopped: bool,
}

impl Notifier {
    pub(crate) fn start(device: Device) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("fuse-notify".into())
            .spawn(move || of_thread.send_all(&device))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Queues notifications and returns at once.
    pub fn notify(&self, notifications: impl IntoIterator<Item = Notification>) {
        self.queue(notifications);
    }

    /// Queues notifications and returns when the kernel has taken the last of them (or the mount has ended).
    /// Not to be called with a lock held that a request may need.
    pub fn notify_and_wait(&self, notifications: impl IntoIterator<Item = Notification>) {
        let upto = self.queue(notifications);
        let mut state = self.shared.state.lock();
        while state.sent < upto && !state.stopped {
            self.shared.changed.wait(&mut state);
        }
    }

    fn queue(&self, notifications: impl IntoIterator<Item = Notification>) -> u64 {
        let mut state = self.shared.state.lock();
        let before = state.queue.len();
        state.queue.extend(notifications);
        state.queued += (state.queue.len() - before) as u64;
        self.shared.changed.notify_all();
        state.queued
    }

    pub(crate) fn stop(&self) {
        self.shared.state.lock().stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A panic there has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn send_all(&self, device: &Device) {
        let mut state = self.state.lock();
        while !state.stopped {
            let Some(notification) = state.queue.pop_front() else {
                self.changed.wait(&mut state);
                continue;
            };
            drop(state);
            if let Err(error) = device.notify(&notification.encode()) {
                tracing::debug!(%error, ?notification, "the kernel did not take a notification");
            }
            state = self.state.lock();
            state.sent += 1;
            self.changed.notify_all();
        }
    }
}
