//! Event loop: a thread on which the futures of `object_store` run, for callers that wait.
//!
//! Invariant: the thread ends when the loop is dropped; futures that have not ended then are
//! dropped, and their callers learn it.

use espalier_sync::Mutex;
use std::future::Future;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

/// A runtime in a thread of its own.
#[derive(Debug)]
pub(super) struct EventLoop {
    handle: Handle,
    /// Dropped to end the thread.
    end: Mutex<Option<oneshot::Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EventLoop {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no thread or no file descriptor left.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel::<()>();
        let body = move || {
            // An error means that the other end was dropped: both are the end.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("object store".into()).spawn(body)?;
        Ok(Self { handle, end: Mutex::new(Some(end)), thread: Mutex::new(Some(thread)) })
    }

    /// Begins a future; what it gives can be received once. Nothing is sent if the loop ends first,
    /// or if the future is ended by the handle.
    pub(super) fn begin<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> (mpsc::Receiver<T>, AbortHandle) {
        let (sender, receiver) = mpsc::sync_channel(1);
        let task = self.handle.spawn(async move {
            // A caller that does not wait any more does not want it.
            let _ = sender.send(future.await);
        });
        (receiver, task.abort_handle())
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        drop(self.end.lock().take());
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the object store panicked");
        }
    }
}
