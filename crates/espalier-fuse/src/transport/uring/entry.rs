//! An entry of a queue: where the kernel puts one request at a time, and takes the reply.
//!
//! Its buffers: 288 bytes of headers (128 for the header of request or reply, 128 for the fixed
//! argument, 32 for the ring's own), and the payload. An entry is registered once; afterwards each
//! command commits a reply and fetches the next request. Either is answered by a completion when a
//! request is there, or when the connection has ended. The kernel knows an entry by its buffers: a
//! process that has them at the same addresses may commit what lies there, and the entry is its own
//! from then on.

use super::hold::HeldAnswer;
use super::queue::Queue;
use crate::metrics::{Arrival, Recorder};
use crate::protocol::{ARGUMENT_BYTES, HEADER_BYTES, Header, REPLY_HEADER_BYTES, reply};
use crate::transport::arena::{Arena, Headers};
use crate::transport::connection::Connection;
use crate::transport::cpu::BULK_REPLY_BYTES;
use crate::transport::handler::{Outcome, Request};
use crate::transport::payload::{PayloadView, PayloadWindow};
use crate::transport::reply_slot::ReplySlot;
use crate::transport::ring::Ring;
use io_uring::{opcode, squeue, types};
use std::io;
use std::sync::Arc;

const COMMAND_REGISTER: u32 = 1;
const COMMAND_COMMIT_AND_FETCH: u32 = 2;

/// Offsets in the headers, in bytes.
const CALLER_OFFSET: usize = 32;
const ARGUMENT_OFFSET: usize = 128;
const ENTRY_OFFSET: usize = 256;
const COMMIT_ID_OFFSET: usize = ENTRY_OFFSET + 8;
const PAYLOAD_LENGTH_OFFSET: usize = ENTRY_OFFSET + 16;
const HEADERS_BYTES: usize = 288;

/// The kernel's side of an entry: where it puts requests and takes replies from.
///
/// Between a command and its completion the kernel owns both; they are touched only after a
/// completion and before the next command, by the owner of this.
pub(super) struct KernelSide {
    /// Which entry it is.
    slot: usize,
    headers: Headers,
    payload: PayloadWindow,
    /// Behind the window lies other memory than at first.
    renewed: bool,
}

/// An entry of a queue, and the ring that only its thread uses. The fields drop in order: the ring
/// goes before the buffers that it may fill.
pub(super) struct Entry {
    ring: Ring,
    /// In the reply slot while a request is served.
    side: Option<KernelSide>,
    /// The memory behind the payload's window.
    view: PayloadView,
    /// That memory is one piece, as far as it can be.
    gathered: bool,
    queue: Arc<Queue>,
    /// A completion that came early.
    early: Option<i32>,
}

impl KernelSide {
    /// That of entry `slot`, for which this is called once, and the memory of the payload.
    pub(super) fn new(arena: &Arc<Arena>, slot: usize) -> io::Result<(Self, PayloadView)> {
        let (payload, view) = PayloadWindow::new(arena, slot)?;
        Ok((Self { slot, headers: Headers::new(arena, slot), payload, renewed: false }, view))
    }

    /// Puts fresh memory behind the payload, and returns it.
    pub(super) fn renew_payload(&mut self) -> io::Result<PayloadView> {
        let view = self.payload.renew()?;
        self.renewed = true;
        Ok(view)
    }

    /// By which the kernel knows the request that is here.
    fn commit_id(&mut self) -> u64 {
        let mut id = [0; 8];
        id.copy_from_slice(&self.headers.bytes()[COMMIT_ID_OFFSET..COMMIT_ID_OFFSET + 8]);
        u64::from_ne_bytes(id)
    }
}

impl Entry {
    pub(super) fn new(ring: Ring, side: KernelSide, view: PayloadView, queue: &Arc<Queue>) -> Self {
        Self { ring, side: Some(side), view, gathered: false, queue: Arc::clone(queue), early: None }
    }

    /// The queue of which it is an entry.
    pub(super) fn queue(&self) -> Arc<Queue> {
        Arc::clone(&self.queue)
    }

    /// Its commands are for the connection from now on.
    pub(super) fn attach(&self, connection: &Connection) -> io::Result<()> {
        self.ring.register(connection.device.raw())
    }

    /// Registers it.
    pub(super) fn register(&mut self) -> io::Result<()> {
        let side = self.side();
        // The kernel reads these while the command is submitted; afterwards it knows them.
        let vectors = [
            libc::iovec { iov_base: side.headers.address().cast(), iov_len: HEADERS_BYTES },
            libc::iovec { iov_base: side.payload.address().cast(), iov_len: side.payload.len() },
        ];
        let mut command = self.command(COMMAND_REGISTER, 0)?;
        // The binding has no way to set these fields of the kernel's `io_uring_sqe`.
        const ADDRESS_OFFSET: usize = 16;
        const LENGTH_OFFSET: usize = 24;
        let start = (&raw mut command).cast::<u8>();
        // SAFETY: a 128-byte entry is a plain `io_uring_sqe` followed by 64 bytes, in which these
        // two fields of 8 and 4 bytes lie at the given offsets; `command` is borrowed
        // nowhere else.
        unsafe {
            start.add(ADDRESS_OFFSET).cast::<u64>().write_unaligned(vectors.as_ptr() as u64);
            start.add(LENGTH_OFFSET).cast::<u32>().write_unaligned(vectors.len() as u32);
        }
        self.push(&command)?;
        self.ring.enter(false)?;
        if self.ring.queued() > 0 {
            // The vectors will be gone when it is submitted.
            return Err(io::ErrorKind::Interrupted.into());
        }
        // A refusal is there at once; so may be a request.
        match self.ring.completion() {
            Some(result) if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            early => {
                self.early = early;
                Ok(())
            }
        }
    }

    /// The kernel's side.
    fn side(&mut self) -> &mut KernelSide {
        let Some(side) = &mut self.side else { unreachable!("it is here except while a request is served") };
        side
    }

    fn command(&self, command: u32, commit: u64) -> io::Result<squeue::Entry128> {
        // `struct fuse_uring_cmd_req`: flags, commit id, queue, padding.
        let mut argument = [0; 80];
        let queue = u16::try_from(self.queue.cpu).map_err(io::Error::other)?;
        argument[8..16].copy_from_slice(&commit.to_ne_bytes());
        argument[16..18].copy_from_slice(&queue.to_ne_bytes());
        Ok(opcode::UringCmd80::new(types::Fixed(0), command).cmd(argument).build())
    }

    fn push(&mut self, command: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: what the kernel fills because of the command is the buffers in `self.side`, which
        // are not touched before its completion and dropped after the ring; what COMMAND_REGISTER
        // points at lives until it is submitted.
        unsafe { self.ring.push(command) }
    }

    /// Submits what is pending and waits for a request.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        loop {
            match self.early.take().or_else(|| self.ring.completion()) {
                Some(0) => return Ok(()),
                Some(result) => return Err(io::Error::from_raw_os_error(-result)),
                None => {}
            }
            // Where the client takes the CPU now, this thread stays ready to run instead of going
            // to sleep (see `scheduling_class`).
            let replies = self.ring.queued() > 0;
            self.ring.enter(!(replies && self.queue.activity.is_idle_class()))?;
        }
    }

    /// The thread that made the request which is at the kernel's side.
    pub(super) fn client(&mut self) -> u32 {
        let headers = self.side().headers.bytes();
        headers[CALLER_OFFSET..CALLER_OFFSET + 4].try_into().map_or(0, u32::from_ne_bytes)
    }

    /// Serves the request that is at the kernel's side, which lies in `slot` meanwhile: its number,
    /// and what to reply. It came at `arrival` and is counted by `recorder`. `None`: another thread
    /// has answered it, and has that side now.
    pub(super) fn serve(
        &mut self,
        connection: &Connection,
        slot: &ReplySlot<KernelSide>,
        recorder: &Recorder,
        arrival: Arrival,
    ) -> Option<(u64, Outcome)> {
        let mut side = self.side.take()?;
        let mut headers = [0; HEADERS_BYTES];
        headers.copy_from_slice(&side.headers.bytes()[..HEADERS_BYTES]);
        let number = |at: usize| headers[at..at + 4].try_into().map_or(0, u32::from_ne_bytes);
        let received = number(PAYLOAD_LENGTH_OFFSET) as usize;
        let (head, rest) = headers.split_at(ARGUMENT_OFFSET);
        let header = match Header::decode(&head[..HEADER_BYTES]) {
            Ok(header) => header,
            Err(_) => unreachable!("the slice has a header's length"),
        };
        let (argument, dialect) = (&rest[..ARGUMENT_BYTES], &connection.dialect);
        let request = Request { header, argument, dialect, recorder, arrival };
        let payload = self.view.bytes();
        let received = received.min(payload.len());
        let (outcome, side) = connection.serve(slot, side, &request, payload, received)?;
        self.side = Some(side);
        if received >= BULK_REPLY_BYTES
            || matches!(outcome, Outcome::Reply(bytes) if bytes >= BULK_REPLY_BYTES)
        {
            self.gather();
        }
        Some((header.unique, outcome))
    }

    /// Makes the memory behind the payload's window one piece.
    pub(super) fn gather(&mut self) {
        if !self.gathered {
            self.view.gather();
            self.gathered = true;
        }
    }

    /// Puts the reply to request `unique` where the kernel takes it from.
    pub(super) fn answer(&mut self, unique: u64, outcome: Outcome) {
        let side = self.side();
        let (body, errno) = match outcome {
            Outcome::Reply(body) => (body.min(side.payload.len()), 0),
            Outcome::Error(errno) => (0, errno),
            // Nothing that comes over a ring goes without a reply.
            Outcome::Silent => (0, 0),
        };
        let headers = side.headers.bytes();
        headers[..REPLY_HEADER_BYTES].copy_from_slice(&reply::header(body, errno, unique));
        headers[ENTRY_OFFSET..ENTRY_OFFSET + 8].fill(0);
        headers[PAYLOAD_LENGTH_OFFSET..PAYLOAD_LENGTH_OFFSET + 4]
            .copy_from_slice(&(body as u32).to_ne_bytes());
    }

    /// The answer that was put there, for another process to commit.
    pub(super) fn held(&mut self) -> HeldAnswer {
        let cpu = self.queue.cpu;
        let side = self.side();
        let (slot, commit_id, renewed) = (side.slot, side.commit_id(), side.renewed);
        let at = PAYLOAD_LENGTH_OFFSET;
        let length = side.headers.bytes()[at..at + 4].try_into().map_or(0, u32::from_ne_bytes) as usize;
        let payload = renewed.then(|| self.view.bytes()[..length].to_vec());
        HeldAnswer { slot, cpu, commit_id, payload }
    }

    /// Queues the commit of the answer; the next [`Entry::wait`] submits it.
    pub(super) fn commit(&mut self) -> io::Result<()> {
        let commit_id = self.side().commit_id();
        let command = self.command(COMMAND_COMMIT_AND_FETCH, commit_id)?;
        self.push(&command)
    }
}
