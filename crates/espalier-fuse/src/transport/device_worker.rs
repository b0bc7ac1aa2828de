//! A worker that reads requests from a descriptor of the device and writes the replies there.
//!
//! Any thread may write a reply to the descriptor from which its request was read. So the thread
//! that finds that a caller was killed replies in place of the worker.

use super::connection::Connection;
use super::device::{self, Device};
use super::handler::{Outcome, Request};
use super::reply_slot::{InFlight, ReplySlot, Slot};
use super::worker::{CurrentWorker, Worker};
use crate::metrics::{Arrival, Recorder};
use crate::protocol::{HEADER_BYTES, Header, REPLY_HEADER_BYTES, flags, reply};
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Threads at most for each CPU, all waiting for storage.
pub(super) const MAX_THREADS_PER_CPU: usize = 16;

/// A descriptor from which requests are read, by one thread at a time.
pub(super) struct DeviceWorker {
    connection: Arc<Connection>,
    device: Device,
    slot: ReplySlot<()>,
    /// For the thread's normal loop. Requests served in between, see [`DeviceWorker::serve_next`],
    /// have recorders of their own.
    recorder: Recorder,
}

impl Worker for DeviceWorker {
    fn slot(&self) -> &dyn Slot {
        &self.slot
    }

    fn threads(&self) -> usize {
        MAX_THREADS_PER_CPU
    }

    fn interrupt(self: Arc<Self>, request: InFlight) -> io::Result<()> {
        match self.slot.take(request.unique, |()| Ok(()))? {
            Some(_) => self.device.reply(request.unique, Err(request.interrupt_errno)),
            None => {
                self.connection.interrupts.abandoned_ended();
                Ok(())
            }
        }
    }
}

impl DeviceWorker {
    /// A worker with a descriptor of its own.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(super) fn new(connection: &Arc<Connection>) -> io::Result<Arc<Self>> {
        let device = connection.device.another()?;
        let (connection, recorder) = (Arc::clone(connection), Recorder::new(&connection.metrics));
        let worker = Arc::new(Self { connection, device, slot: ReplySlot::idle(), recorder });
        worker.connection.interrupts.register(&worker);
        Ok(worker)
    }

    /// True if a message is there to be read.
    pub(super) fn is_ready(&self) -> io::Result<bool> {
        self.device.ready(Some(0))
    }

    /// Reads one message into `buffer`, which is large enough for any; the result is its length.
    /// Also: when it came. Fails as [`Device::read`].
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<(usize, Arrival)> {
        let wait = self.recorder.wait();
        Ok((self.device.read(buffer)?, wait.arrived()))
    }

    /// Reads one message into `buffer`, which is large enough for any, and serves it, perhaps while
    /// the calling thread serves another request.
    pub(super) fn serve_next(self: &Arc<Self>, buffer: &mut [u8]) -> io::Result<()> {
        let (length, arrival) = match self.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            read => read?,
        };
        let _current = CurrentWorker::enter(self);
        self.serve(buffer, length, arrival)
    }

    /// Serves the message in the first `length` bytes of `message`, which came at `arrival`. Fails
    /// only if the connection has ended.
    pub(super) fn serve(&self, message: &mut [u8], length: usize, arrival: Arrival) -> io::Result<()> {
        let Ok(header) = Header::decode(&message[..length]) else {
            return Err(io::Error::other("a message on the FUSE device has no header"));
        };
        let dialect = &self.connection.dialect;
        let fixed = dialect.argument_bytes(header.opcode).min(length - HEADER_BYTES);
        let start = HEADER_BYTES + fixed;
        let (head, payload) = message.split_at_mut(start);
        let argument = &head[HEADER_BYTES..];
        let request = Request { header, argument, dialect, recorder: &self.recorder, arrival };
        if header.opcode == flags::opcode::INTERRUPT {
            // Killed callers are found without it.
            return Ok(());
        }
        let served = self.connection.serve(&self.slot, (), &request, payload, length - start);
        let Some((outcome, ())) = served else { return Ok(()) };
        let sent = match outcome {
            Outcome::Silent => return Ok(()),
            Outcome::Error(errno) => self.device.reply(header.unique, Err(errno)),
            Outcome::Reply(body) => {
                // The header goes right before the body, so that the reply is one piece.
                let begin = start - REPLY_HEADER_BYTES;
                let reply_header = reply::header(body, 0, header.unique);
                message[begin..start].copy_from_slice(&reply_header);
                self.device.put(&[IoSlice::new(&message[begin..start + body])])
            }
        };
        match sent {
            Err(error) if device::is_end(&error) => Err(error),
            Err(error) => {
                tracing::error!(opcode = header.opcode, %error, "the kernel did not take a reply");
                // The caller must not wait for ever.
                self.device.reply(header.unique, Err(libc::EIO))
            }
            Ok(()) => Ok(()),
        }
    }
}
