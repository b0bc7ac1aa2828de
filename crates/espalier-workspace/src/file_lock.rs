//! A lock of flock(2).

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::File;

/// The lock of a file, given up when this is dropped.
#[derive(Debug)]
pub(crate) struct FileLock(File);

impl FileLock {
    /// Locks the file. `None` if it is locked elsewhere and `operation` does not wait.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn take(file: File, operation: FlockOperation) -> rustix::io::Result<Option<Self>> {
        match flock(&file, operation) {
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error),
            Ok(()) => Ok(Some(Self(file))),
        }
    }

    /// The file that is locked.
    pub(crate) fn file(&self) -> &File {
        &self.0
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // To close the file is not enough: a process that another thread has forked keeps it open,
        // and locked, until it executes its program.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::FileLock;
    use rustix::fs::FlockOperation::NonBlockingLockExclusive;
    use std::fs::File;

    #[test]
    fn a_lock_ends_though_a_forked_process_still_has_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = |file| FileLock::take(file, NonBlockingLockExclusive).unwrap();
        let first = lock(File::create(&path).unwrap()).unwrap();
        let forked = first.file().try_clone().unwrap();
        assert!(lock(File::open(&path).unwrap()).is_none());
        drop(first);
        assert!(lock(File::open(&path).unwrap()).is_some());
        drop(forked);
    }
}
