//! The notifier tells the kernel of changes that no request of the kernel made: a clone appears, a
//! subtree is removed.
//!
//! Threads of the notifier write the notifications, because the kernel takes locks while it handles
//! one, which the caller of a request may hold until the request is answered. So the order is:
//! finish the change, release every lock, notify, and only then answer. One thread writes the
//! notifications for which requests wait. Another one writes those that may take the kernel long,
//! so that no request waits for them.
//!
//! # What a serving thread may wait for
//!
//! With one thread for the requests of a CPU (`-o threads=1`) a serving thread that waits for the
//! kernel can be the one for which the kernel waits:
//!
//! - An invalidated name needs the lock of its directory. The caller that holds it may wait for a
//!   request in the queue of the waiting thread.
//! - A notification drops a reference to an inode, which may be the last one. FORGET has no reply:
//!   the kernel queues it and goes on. But evicting the inode waits for its locked pages, and
//!   another eviction of the same inode is waited for. Where the server has no OPEN, kernels before
//!   the end of 2025 do not hold the inode while read-ahead of a closed file is under way (mended
//!   by "fuse: fix readahead reclaim deadlock"): there a page is locked for a READ that may be in
//!   the queue of the waiting thread.
//!
//! So a request waits for its notifications, which a thread of the notifier writes, for
//! [`MAX_WAIT`] at most, or [`MAX_WAIT_OF_ONLY_THREAD`]: then it is answered, the kernel goes on,
//! and the notification takes effect a moment after the answer.
//!
//! A serving thread writes a notification by itself only if the caller of its request has the file
//! open and stays until the answer: then the inode is not evicted. So do `fsync`
//! ([`Notifier::attributes_changed_here`]), and LSEEK, which has pages written that other threads
//! serve ([`Notifier::notify_on_this_thread`], `dispatch/dirty_pages`).

use crate::protocol::notify::Notification;
use crate::transport::{self, Device};
use espalier_sync::{Condvar, Mutex, RwLock};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a request waits for the kernel to handle its notifications.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// The same if its thread is the only one for the requests of a CPU.
const MAX_WAIT_OF_ONLY_THREAD: Duration = Duration::from_millis(100);

/// Sends notifications.
pub struct Notifier {
    /// Sends what requests wait for.
    urgent: Sender,
    /// Sends what may take the kernel long.
    deferred: Sender,
    /// For serving threads; `None` once the notifier is stopped.
    device: RwLock<Option<Arc<Device>>>,
}

/// A thread that sends notifications in order.
struct Sender {
    shared: Arc<SenderQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct SenderQueue {
    state: Mutex<SenderState>,
    changed: Condvar,
}

/// A message in the queue of a sender.
enum QueuedMessage {
    One(Notification),
    /// Sets the flag if the kernel does not know the node of one of them.
    Group(Vec<Notification>, Arc<AtomicBool>),
    /// The notifications are computed when their turn comes.
    Computed(Box<dyn FnOnce() -> Vec<Notification> + Send>),
    /// Calls the function when the kernel has handled the notification.
    Followed(Notification, Box<dyn FnOnce() + Send>),
}

#[derive(Default)]
struct SenderState {
    queue: VecDeque<QueuedMessage>,
    queued: u64,
    sent: u64,
    stopped: bool,
}

impl Notifier {
    pub(crate) fn start(device: Device) -> io::Result<Self> {
        let device = Arc::new(device);
        let urgent = Sender::start("fuse-notify", device.clone())?;
        let deferred = Sender::start("fuse-notify-late", device.clone())?;
        Ok(Self { urgent, deferred, device: RwLock::new(Some(device)) })
    }

    /// Tells the kernel that attributes of a node changed: when this returns it takes no older ones
    /// from answers that are on their way.
    pub fn attributes_changed(&self, node: u64) {
        self.notify_and_wait([Notification::Inode { node, data: None }]);
    }

    /// The same, on the calling thread if the caller of its request still waits, and is bound to
    /// wait for the answer. The caller has the file open.
    pub(crate) fn attributes_changed_here(&self, node: u64) {
        let notification = Notification::Inode { node, data: None };
        if transport::may_commit() {
            self.notify_on_this_thread(&notification);
        } else {
            // The caller was killed, and may have closed the file.
            self.notify([notification]);
        }
    }

    /// Queues that the kernel writes back all changed pages of a node and drops all its pages;
    /// afterwards `done` is called.
    pub fn write_back(&self, node: u64, done: impl FnOnce() + Send + 'static) {
        let all = Notification::Inode { node, data: Some((0, 0)) };
        self.deferred.queue([QueuedMessage::Followed(all, Box::new(done))]);
    }

    /// Sends a notification on the calling thread, and returns when the kernel has carried it out;
    /// false if it did not. Only for a request whose caller has the file open and holds no lock
    /// that the kernel takes for this notification.
    pub(crate) fn notify_on_this_thread(&self, notification: &Notification) -> bool {
        let device = self.device.read().clone();
        device.is_some_and(|device| send(&device, notification))
    }

    /// Queues notifications that may take the kernel long, and returns at once.
    pub fn notify(&self, notifications: impl IntoIterator<Item = Notification>) {
        self.deferred.queue(notifications.into_iter().map(QueuedMessage::One));
    }

    /// As [`Notifier::notify`], with notifications that take time to find out: `find` is called
    /// when their turn comes.
    pub fn notify_later(&self, find: impl FnOnce() -> Vec<Notification> + Send + 'static) {
        self.deferred.queue([QueuedMessage::Computed(Box::new(find))]);
    }

    /// Queues notifications and returns when the kernel has handled the last of them (or the mount
    /// has ended, or it takes too long). The calling thread must hold no lock that a request may
    /// need.
    pub fn notify_and_wait(&self, notifications: impl IntoIterator<Item = Notification>) {
        let upto = self.urgent.queue(notifications.into_iter().map(QueuedMessage::One));
        self.wait_for(upto);
    }

    /// As [`Notifier::notify_and_wait`]; false if the kernel did not know one of the nodes, or it
    /// took too long: then an answer that tells it of the node may be on its way, with what was
    /// true before.
    pub fn notify_if_known(&self, notifications: Vec<Notification>) -> bool {
        self.notify_group(notifications) == Some(true)
    }

    /// True if the kernel does not know a node. Of one that it knows it drops the attributes.
    pub(crate) fn is_unknown(&self, node: u64) -> bool {
        self.notify_group(vec![Notification::Inode { node, data: None }]) == Some(false)
    }

    /// Whether the kernel knows the nodes of all notifications; `None` if it takes too long.
    fn notify_group(&self, notifications: Vec<Notification>) -> Option<bool> {
        let unknown = Arc::new(AtomicBool::new(false));
        let upto = self.urgent.queue([QueuedMessage::Group(notifications, Arc::clone(&unknown))]);
        self.wait_for(upto).then(|| !unknown.load(Ordering::Acquire))
    }

    /// Waits until the kernel has handled urgent messages up to `upto`; false if that takes too
    /// long.
    fn wait_for(&self, upto: u64) -> bool {
        let limit = if transport::serving_threads() == 1 { MAX_WAIT_OF_ONLY_THREAD } else { MAX_WAIT };
        let handled = self.urgent.wait(upto, limit);
        if !handled {
            tracing::debug!("the kernel takes long to handle a notification: the request is answered before");
        }
        handled
    }

    /// True if nothing is left to be sent or being sent.
    pub(crate) fn is_idle(&self) -> bool {
        [&self.urgent, &self.deferred].iter().all(|sender| sender.is_idle())
    }

    /// Returns when nothing is left to be sent; false if that takes longer than `limit`.
    pub(crate) fn wait_until_idle(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        [&self.urgent, &self.deferred].iter().all(|sender| {
            let queued = sender.shared.state.lock().queued;
            sender.wait(queued, deadline.saturating_duration_since(Instant::now()))
        })
    }

    pub(crate) fn stop(&self) {
        self.device.write().take();
        self.urgent.stop();
        self.deferred.stop();
    }
}

impl Sender {
    fn start(name: &str, device: Arc<Device>) -> io::Result<Self> {
        let shared = Arc::new(SenderQueue::default());
        let thread_queue = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name(name.into());
        let thread = builder.spawn(move || thread_queue.send_all(&device))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    fn queue(&self, notifications: impl IntoIterator<Item = QueuedMessage>) -> u64 {
        let mut state = self.shared.state.lock();
        let before = state.queue.len();
        state.queue.extend(notifications);
        state.queued += (state.queue.len() - before) as u64;
        self.shared.changed.notify_all();
        state.queued
    }

    fn is_idle(&self) -> bool {
        let state = self.shared.state.lock();
        state.sent == state.queued
    }

    /// Returns when the kernel has handled the messages up to `upto`, or nothing is sent any more;
    /// false if that takes longer than `limit`.
    fn wait(&self, upto: u64, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.shared.state.lock();
        while state.sent < upto && !state.stopped {
            if self.shared.changed.wait_until(&mut state, deadline).timed_out() {
                return state.sent >= upto || state.stopped;
            }
        }
        true
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

impl SenderQueue {
    fn send_all(&self, device: &Device) {
        let mut state = self.state.lock();
        while !state.stopped {
            let Some(waiting) = state.queue.pop_front() else {
                self.changed.wait(&mut state);
                continue;
            };
            drop(state);
            match waiting {
                QueuedMessage::One(notification) => {
                    send(device, &notification);
                }
                QueuedMessage::Followed(notification, done) => {
                    send(device, &notification);
                    done();
                }
                QueuedMessage::Group(notifications, unknown) => {
                    for notification in &notifications {
                        if !send(device, notification) {
                            unknown.store(true, Ordering::Release);
                        }
                    }
                }
                QueuedMessage::Computed(find) => {
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

/// False if the kernel refused the notification, or does not know the node.
fn send(device: &Device, notification: &Notification) -> bool {
    device.notify(&notification.encode()).unwrap_or_else(|error| {
        tracing::debug!(%error, ?notification, "the kernel did not take a notification");
        false
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::{AsFd, OwnedFd};

    #[test]
    fn a_request_does_not_wait_for_ever_for_the_kernel() {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        // A device that takes no message: a full pipe.
        let size = rustix::pipe::fcntl_getpipe_size(writer.as_fd()).unwrap();
        writer.write_all(&vec![0; size]).unwrap();
        let device = Arc::new(Device::from_descriptor(OwnedFd::from(writer)));
        let sender = Sender::start("test-notify", device).unwrap();
        let message = Notification::Inode { node: 7, data: None };
        let upto = sender.queue([QueuedMessage::One(message.clone())]);
        assert!(!sender.wait(upto, Duration::ZERO), "the message cannot be sent");
        reader.read_exact(&mut vec![0; size]).unwrap();
        assert!(sender.wait(upto, Duration::MAX / 4), "there is room now");
        let mut sent = vec![0; message.encode().len()];
        reader.read_exact(&mut sent).unwrap();
        assert_eq!(sent, message.encode());
        sender.stop();
    }
}
