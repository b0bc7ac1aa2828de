//! The threads of a connection, which are joined at its end.

use espalier_sync::Mutex;
use std::io;
use std::thread::JoinHandle;

/// Threads to join.
#[derive(Debug, Default)]
pub(super) struct ThreadGroup(Mutex<Vec<JoinHandle<()>>>);

impl ThreadGroup {
    /// Starts a thread of the group.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn spawn(&self, name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name).spawn(body)?;
        let mut threads = self.0.lock();
        // A thread that has ended keeps its stack until it is joined.
        for ended in threads.extract_if(.., |thread| thread.is_finished()) {
            let _ = ended.join();
        }
        threads.push(thread);
        Ok(())
    }

    /// Adds a thread that runs already.
    pub(super) fn add(&self, thread: JoinHandle<()>) {
        self.0.lock().push(thread);
    }

    /// Returns when all threads of the group have ended, those that start meanwhile included.
    pub(super) fn join_all(&self) {
        loop {
            let Some(thread) = self.0.lock().pop() else { return };
            // A thread that panicked outside a handler has nothing left to say.
            let _ = thread.join();
        }
    }
}
