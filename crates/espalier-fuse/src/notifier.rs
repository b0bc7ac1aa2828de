//! Tells the kernel of changes that it did not ask for: a clone that appears, a subtree that is
//! gone.
//!
//! Threads of their own write the notifications, because the kernel takes locks while it handles
//! one, which a request in work may hold. So: finish the change, release every lock, notify, and
//! only then answer. One thread writes what callers wait for, another one what may take the kernel
//! long, so that no caller waits for that. That attributes changed is told by the thread that
//! serves the request, before it answers: the kernel then waits for no lock and for no page.

use crate::protocol::notify::Notification;
use crate::transport::Device;
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Sends notifications.
pub struct Notifier {
    prompt: Sender,
    patient: Sender,
    /// Until it is stopped.
    device: RwLock<Option<Arc<Device>>>,
}

/// Sends notifications in order.
struct Sender {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

/// What waits to be sent.
enum Waiting {
    One(Notification),
    /// Takes note if the kernel does not know what one of them is about.
    Known(Vec<Notification>, Arc<AtomicBool>),
    /// What it takes time to find out.
    Later(Box<dyn FnOnce() -> Vec<Notification> + Send>),
    /// What follows when the kernel has dealt with it.
    Then(Notification, Box<dyn FnOnce() + Send>),
}

#[derive(Default)]
struct State {
    queue: VecDeque<Waiting>,
    queued: u64,
    sent: u64,
    stopped: bool,
}

impl Notifier {
    pub(crate) fn start(device: Device) -> io::Result<Self> {
        let device = Arc::new(device);
        let prompt = Sender::start("fuse-notify", device.clone())?;
        let patient = Sender::start("fuse-notify-late", device.clone())?;
        Ok(Self { prompt, patient, device: RwLock::new(Some(device)) })
    }

    /// Tells at once that attributes of a node changed. For a thread that serves a request: the
    /// kernel counts up the version of the attributes, so that it takes no older ones from answers
    /// on their way, and neither locks pages nor waits for requests.
    pub fn attributes_changed(&self, node: u64) {
        let device = self.device.read().clone();
        if let Some(device) = device {
            send(&device, &Notification::Inode { node, data: None });
        }
    }

    /// Has the kernel write back all changed pages of a node, and drop all its pages, when the turn
    /// of that comes; then calls `done`.
    pub fn write_back(&self, node: u64, done: impl FnOnce() + Send + 'static) {
        let all = Notification::Inode { node, data: Some((0, 0)) };
        self.patient.queue([Waiting::Then(all, Box::new(done))]);
    }

    /// Sends a notification on the calling thread, and returns when the kernel has carried it out;
    /// false if it did not. For a request whose file is open, and of which no lock is held that
    /// the kernel takes for this notification: nothing waits for the threads of the notifier.
    pub(crate) fn notify_here(&self, notification: &Notification) -> bool {
        let device = self.device.read().clone();
        device.is_some_and(|device| send(&device, notification))
    }

    /// Queues notifications that may take the kernel long, and returns at once.
    pub fn notify(&self, notifications: impl IntoIterator<Item = Notification>) {
        self.patient.queue(notifications.into_iter().map(Waiting::One));
    }

    /// As [`Notifier::notify`], for what takes time to find out: that happens when its turn comes.
    pub fn notify_later(&self, find: impl FnOnce() -> Vec<Notification> + Send + 'static) {
        self.patient.queue([Waiting::Later(Box::new(find))]);
    }

    /// Queues notifications and returns when the kernel has taken the last of them (or the mount
    /// has ended). Not to be called with a lock held that a request may need.
    pub fn notify_and_wait(&self, notifications: impl IntoIterator<Item = Notification>) {
        let upto = self.prompt.queue(notifications.into_iter().map(Waiting::One));
        self.prompt.wait(upto);
    }

    /// As [`Notifier::notify_and_wait`]; false if the kernel did not know what one of them is
    /// about: then an answer that makes it known may be on its way, with what was true before.
    pub fn notify_known(&self, notifications: Vec<Notification>) -> bool {
        let unknown = Arc::new(AtomicBool::new(false));
        let upto = self.prompt.queue([Waiting::Known(notifications, Arc::clone(&unknown))]);
        self.prompt.wait(upto);
        !unknown.load(Ordering::Acquire)
    }

    pub(crate) fn stop(&self) {
        self.device.write().take();
        self.prompt.stop();
        self.patient.stop();
    }
}

impl Sender {
    fn start(name: &str, device: Arc<Device>) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name(name.into());
        let thread = builder.spawn(move || of_thread.send_all(&device))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    fn queue(&self, notifications: impl IntoIterator<Item = Waiting>) -> u64 {
        let mut state = self.shared.state.lock();
        let before = state.queue.len();
        state.queue.extend(notifications);
        state.queued += (state.queue.len() - before) as u64;
        self.shared.changed.notify_all();
        state.queued
    }

    fn wait(&self, upto: u64) {
        let mut state = self.shared.state.lock();
        while state.sent < upto && !state.stopped {
            self.shared.changed.wait(&mut state);
        }
    }

    fn stop(&self) {
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
            let Some(waiting) = state.queue.pop_front() else {
                self.changed.wait(&mut state);
                continue;
            };
            drop(state);
            match waiting {
                Waiting::One(notification) => {
                    send(device, &notification);
                }
                Waiting::Then(notification, done) => {
                    send(device, &notification);
                    done();
                }
                Waiting::Known(notifications, unknown) => {
                    for notification in &notifications {
                        if !send(device, notification) {
                            unknown.store(true, Ordering::Release);
                        }
                    }
                }
                Waiting::Later(find) => {
                    for notification in find() {
                        if self.state.lock().stopped {
                            return;
                        }
                        send(device, &notification);
                    }
                }
            }
            state = self.state.lock();
            state.sent += 1;
            self.changed.notify_all();
        }
    }
}

/// False if the kernel did not take it, or does not know what it is about.
fn send(device: &Device, notification: &Notification) -> bool {
    device.notify(&notification.encode()).unwrap_or_else(|error| {
        tracing::debug!(%error, ?notification, "the kernel did not take a notification");
        false
    })
}
