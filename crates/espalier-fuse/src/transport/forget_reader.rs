//! Beside io_uring: reads what still comes over the device.
//!
//! These are FORGETs and INTERRUPTs, and whatever was asked before the rings existed. They are not
//! urgent, and waking a thread for each would cost more than the request that caused it. So a
//! thread reads them every [`FORGET_PAUSE`], or the file system asks for them to be served at once.

use super::buffer::Buffer;
use super::connection::Connection;
use super::device_worker::DeviceWorker;
use espalier_sync::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long FORGETs may gather. The removal of a tree has those of a directory served before the
/// directory goes, so the fewer are left for it the better; this thread runs where no client waits.
const FORGET_PAUSE: Duration = Duration::from_millis(2);

/// Room for a message beside its payload, bytes.
const MESSAGE_HEAD_BYTES: usize = 4096;

/// A worker for the device, and the buffer for one message.
pub(super) struct ForgetReader {
    connection: Arc<Connection>,
    worker: Arc<DeviceWorker>,
    buffer: Mutex<Buffer>,
}

impl ForgetReader {
    /// Gets ready to read.
    ///
    /// # Errors
    /// No descriptor or no memory is left.
    pub(super) fn new(connection: &Arc<Connection>) -> io::Result<Self> {
        let buffer = Mutex::new(Buffer::new(connection.payload_bytes + MESSAGE_HEAD_BYTES)?);
        Ok(Self { worker: DeviceWorker::new(connection)?, connection: Arc::clone(connection), buffer })
    }

    /// Serves what comes until the connection ends.
    ///
    /// # Errors
    /// What ended it.
    pub(super) fn run(&self) -> io::Result<()> {
        let reader = self.connection.pause.join();
        loop {
            // Sleeps without a timeout while nothing comes, and lets messages gather when one does.
            if reader.read(|| self.connection.device.ready(None))? {
                self.serve_pending(&mut self.buffer.lock())?;
                reader.rest(|| std::thread::sleep(FORGET_PAUSE));
            }
        }
    }

    /// Serves what is there now, on the calling thread, unless another thread does so already.
    pub(super) fn drain(&self) {
        if let Some(mut buffer) = self.buffer.try_lock()
            && let Err(error) = self.serve_pending(&mut buffer)
        {
            tracing::debug!(%error, "FORGETs could not be read");
        }
    }

    fn serve_pending(&self, buffer: &mut Buffer) -> io::Result<()> {
        while self.worker.is_ready()? {
            self.worker.serve_next(buffer.bytes())?;
        }
        Ok(())
    }
}
