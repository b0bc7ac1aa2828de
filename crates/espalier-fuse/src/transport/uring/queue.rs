//! A queue of io_uring: the requests of one CPU, and the threads that serve them.

use super::hold::Hold;
use crate::transport::scheduling_class::{LoadMonitor, MonitoredQueue, QueueActivity};
use std::io;
use std::sync::Arc;

/// The threads of one CPU.
pub(super) struct Queue {
    pub(super) cpu: usize,
    pub(super) activity: QueueActivity,
    pub(super) monitor: Arc<LoadMonitor>,
    /// Of all queues.
    pub(super) hold: Arc<Hold>,
}

impl Queue {
    /// The queue of `cpu`, without threads.
    pub(super) fn new(cpu: usize, monitor: &Arc<LoadMonitor>, hold: &Arc<Hold>) -> Self {
        let (monitor, hold) = (Arc::clone(monitor), Arc::clone(hold));
        Self { cpu, activity: QueueActivity::default(), monitor, hold }
    }

    /// How many threads serve it, with an entry each.
    pub(super) fn registered(&self) -> usize {
        self.hold.registered(self.cpu)
    }
}

/// That a thread serves a registered entry. When this is dropped the entry is gone, and its queue
/// does not count it any more.
pub(super) struct Registration {
    /// `None`: the entry stays.
    queue: Option<Arc<Queue>>,
}

impl Registration {
    /// Calls `register` when no answer is held; it registers an entry of `queue`.
    ///
    /// # Errors
    /// Those of `register`.
    pub(super) fn make(queue: &Arc<Queue>, register: impl FnOnce() -> io::Result<()>) -> io::Result<Self> {
        queue.hold.register(queue.cpu, register)?;
        Ok(Self::of_other_thread(queue))
    }

    /// Of an entry of `queue` that another process has registered.
    pub(super) fn adopt(queue: &Arc<Queue>) -> Self {
        queue.hold.add_registered(queue.cpu);
        Self::of_other_thread(queue)
    }

    /// Of an entry of `queue` that another thread has served, and leaves to this one.
    pub(super) fn of_other_thread(queue: &Arc<Queue>) -> Self {
        Self { queue: Some(Arc::clone(queue)) }
    }

    /// Another thread serves the entry now, or the connection has ended and with it all entries.
    pub(super) fn leave(mut self) {
        self.queue = None;
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.hold.remove_registered(queue.cpu);
        }
    }
}

impl MonitoredQueue for Queue {
    fn activity(&self) -> &QueueActivity {
        &self.activity
    }

    fn cpu(&self) -> Option<usize> {
        Some(self.cpu)
    }
}
