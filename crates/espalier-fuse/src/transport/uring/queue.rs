//! A queue of io_uring: the requests of one CPU, and the threads that serve them.

use super::hold::Hold;
use crate::transport::scheduling_class::{LoadMonitor, MonitoredQueue, QueueActivity};
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

    /// A thread has registered its entry.
    pub(super) fn add_registered(&self) {
        self.hold.add_registered(self.cpu);
    }

    /// How many threads have registered their entries.
    pub(super) fn registered(&self) -> usize {
        self.hold.registered(self.cpu)
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
