//! How a file is opened, and what happens to one that is there.

use std::time::Duration;

/// What a device is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Reading, together with other readers.
    ReadOnly,
    /// Reading and writing, alone.
    ReadWrite,
}

/// What to do with a file that is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Refuse it, unless it is empty.
    Refuse,
    /// Throw its content away.
    Replace,
}

/// How to open a device.
#[derive(Debug, Clone, Copy)]
pub struct FileOptions {
    /// What for.
    pub mode: OpenMode,
    /// How long to wait for another process's lock.
    pub wait: Duration,
    /// Try direct I/O; without it, requests go through the page cache.
    pub direct: bool,
}

impl FileOptions {
    /// Direct I/O, and no waiting for the lock.
    pub fn new(mode: OpenMode) -> Self {
        Self { mode, wait: Duration::ZERO, direct: true }
    }

    /// Waits up to `wait` for another process's lock.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}
