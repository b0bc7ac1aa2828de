//! FUSE over io_uring (Linux 6.14): a queue per CPU, served on that CPU.
//!
//! A request goes to the queue of the CPU on which it is made. Each queue is served by several
//! threads that stay on its CPU, each with a ring and one entry of its own: a handler that waits
//! for storage holds up no other, and no thread wakes another CPU. The kernel gives a request to
//! the entry that became free last, so the threads in use are few, and warm; the others cost a
//! stack and a buffer that were never touched.
//!
//! All threads are there from the start, and one is added for each that ends. The kernel looks at
//! what waits when some entry commits, but not when one is registered, so a thread that came later
//! would need a request of our own to be seen; and such a request makes the mount busy when
//! a user is about to unmount it.
//!
//! Another thread may answer for a thread whose caller was killed ([`interrupt`]). The kernel takes
//! a reply from any ring of the process, and puts the next request where the entry was registered
//! to have it; so a new thread takes the entry over, with fresh memory behind its [`Window`], and
//! the old one ends when it is done.
//!
//! Buffers of an entry: 288 bytes of headers (128 for the header of request or reply, 128 for the
//! fixed argument, 32 for the ring's own), and the payload. An entry is registered once; afterwards
//! each command commits a reply and fetches the next request. Either is answered by a completion
//! when a request is there, or when the connection has ended.
//!
//! A thread that replies in bulk may leave the CPU for that time ([`Place`]). While a queue is hot
//! its threads are of the class that leaves clients where they are (see [`scheduling_class`]).
//!
//! FORGET and INTERRUPT still come over the device. A thread reads them now and then, for they are
//! not urgent and waking it for each would cost more than the request that caused it.

use super::buffer::{Buffer, View, Window};
use super::cpu::{BULK_REPLY_BYTES, Place};
use super::interrupt::{self, Asked, Pending, Sitting};
use super::ring::Ring;
use super::scheduling_class::{self, Pulse, Watch};
use super::{Config, Outcome, Request, Shared, classic, cpu, device};
use crate::protocol::{ARGUMENT_BYTES, HEADER_BYTES, Header, REPLY_HEADER_BYTES, reply};
use io_uring::{opcode, squeue, types};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

const COMMAND_REGISTER: u32 = 1;
const COMMAND_COMMIT_AND_FETCH: u32 = 2;

/// Where in the headers what lies.
const CALLER_OFFSET: usize = 32;
const ARGUMENT_OFFSET: usize = 128;
const ENTRY_OFFSET: usize = 256;
const COMMIT_ID_OFFSET: usize = ENTRY_OFFSET + 8;
const PAYLOAD_LENGTH_OFFSET: usize = ENTRY_OFFSET + 16;
const HEADERS_BYTES: usize = 288;

/// Threads for each CPU: so many requests on it may wait for storage before another does.
const THREADS_PER_CPU: usize = 16;
/// The same on machines of many CPUs.
const THREADS_PER_CPU_OF_MANY: usize = 8;
/// From so many CPUs on they are many.
const MANY_CPUS: usize = 32;
/// The threads of a CPU that come first (those that registered last) have the memory of their
/// payloads in one piece from the start, as long as there are not too many of them: the system
/// takes milliseconds for that, which their first clients would wait.
const GATHERED_THREADS_PER_CPU: usize = 3;
const MAX_GATHERED_THREADS: usize = 16;
/// How long FORGETs may gather. The removal of a tree has those of a directory served before the
/// directory goes, so the fewer are left for it the better; this thread runs where no client waits.
const FORGET_PAUSE: Duration = Duration::from_millis(2);

/// Threads with a ring each, waiting for the connection to be ready.
pub(super) struct Rings {
    queues: Vec<Arc<Queue>>,
    watch: Arc<Watch>,
    waiting: Vec<Waiting>,
}

/// A thread that has its ring: `go` tells it to register, `registered` what came of that.
struct Waiting {
    go: SyncSender<Arc<Shared>>,
    registered: Receiver<io::Result<()>>,
    thread: std::thread::JoinHandle<()>,
}

/// The threads of one CPU.
struct Queue {
    cpu: usize,
    /// Threads whose entry is registered.
    registered: AtomicUsize,
    pulse: Pulse,
    watch: Arc<Watch>,
}

impl AsRef<Pulse> for Queue {
    fn as_ref(&self) -> &Pulse {
        &self.pulse
    }
}

impl Rings {
    /// Makes the threads and rings, which fails where FUSE or the system have no io_uring for us.
    pub(super) fn prepare(config: &Config) -> io::Result<Self> {
        let enabled = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
        if !enabled.is_ok_and(|value| value.trim() == "Y") {
            return Err(io::Error::other("/sys/module/fuse/parameters/enable_uring does not say Y"));
        }
        let count = cpu::possible();
        let each = config.threads_per_cpu.unwrap_or(if count < MANY_CPUS {
            THREADS_PER_CPU
        } else {
            THREADS_PER_CPU_OF_MANY
        });
        let watch = Arc::new(Watch::new(config.background));
        let queues: Vec<_> = (0..count).map(|cpu| Arc::new(Queue::new(cpu, &watch))).collect();
        let online = cpu::allowed();
        let gathered = GATHERED_THREADS_PER_CPU.min(MAX_GATHERED_THREADS / online.len().max(1));
        let mut waiting = Vec::new();
        for queue in &queues {
            // A queue of a CPU that is not in use needs a thread all the same: requests wait until
            // all queues have one.
            let threads = if online.contains(&queue.cpu) { each.max(1) } else { 1 };
            for place in (0..threads).rev() {
                waiting.push(Waiting::spawn(queue, place < gathered && threads > 1)?);
            }
        }
        Ok(Self { queues, watch, waiting })
    }

    /// Registers everything and starts to serve.
    pub(super) fn start(self, shared: &Arc<Shared>) -> io::Result<()> {
        for waiting in &self.waiting {
            // A thread that is gone shows below.
            let _ = waiting.go.send(Arc::clone(shared));
        }
        let mut result = Ok(());
        for waiting in self.waiting {
            let registered = waiting.registered.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
            result = result.and(registered);
            shared.threads.lock().push(waiting.thread);
        }
        // With every queue served at least once the connection lives, even if some thread failed.
        if self.queues.iter().any(|queue| queue.registered.load(Ordering::Acquire) == 0) {
            return result.and_then(|()| Err(io::ErrorKind::Other.into()));
        }
        scheduling_class::spawn(shared, &self.watch, self.queues)?;
        let watch = self.watch;
        // There is one set of rings for a connection.
        let _ = shared.watch.set(Arc::clone(&watch));
        shared.spawn("fuse-device".into(), move |shared| {
            let _apart = watch.join_affinity();
            if let Err(error) = serve_device(&shared)
                && !device::is_end(&error)
            {
                tracing::error!(%error, "FORGETs can no longer be read");
            }
            shared.end();
            watch.end();
        })
    }
}

impl Waiting {
    /// Starts a thread for `queue`, and returns when it has its ring.
    fn spawn(queue: &Arc<Queue>, gathered: bool) -> io::Result<Self> {
        let (go, start) = sync_channel::<Arc<Shared>>(1);
        let (ready, made) = sync_channel(1);
        let (report, registered) = sync_channel(1);
        let queue = Arc::clone(queue);
        let thread = std::thread::Builder::new().name(format!("fuse-{}", queue.cpu)).spawn(move || {
            let place = Place::on(queue.cpu);
            let ring = match Ring::new() {
                Ok(ring) => ring,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            // The channel is closed if another ring could not be had.
            let Ok(shared) = start.recv() else { return };
            match Entry::register(&shared, &queue, ring, gathered) {
                Ok(entry) => {
                    queue.registered.fetch_add(1, Ordering::AcqRel);
                    let _ = report.send(Ok(()));
                    serve(&shared, entry, place);
                }
                Err(error) => drop(report.send(Err(error))),
            }
        })?;
        made.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(Self { go, registered, thread })
    }
}

/// Serves what `entry` is given until the end, or until another thread has the entry.
fn serve(shared: &Arc<Shared>, mut entry: Entry, mut place: Place) {
    let seat = Arc::new(Seat { queue: Arc::clone(&entry.queue), pending: Pending::none() });
    shared.callers.enter(&seat);
    let _sitting = Sitting::at(&seat);
    let queue = &seat.queue;
    let member = queue.pulse.join();
    loop {
        match entry.wait() {
            Ok(()) => {}
            Err(error) => {
                if !device::is_end(&error) {
                    tracing::error!(cpu = queue.cpu, %error, "a thread can no longer serve the mount");
                }
                return;
            }
        }
        if member.beat(entry.asker()) {
            queue.watch.wake();
        }
        let Some((unique, outcome)) = entry.serve(shared, &seat) else { return };
        if let Outcome::Reply(bytes) = outcome {
            place.replied(bytes);
        }
        if let Err(error) = entry.commit(unique, outcome) {
            return tracing::error!(cpu = queue.cpu, %error, "a reply could not be sent");
        }
    }
}

/// What a thread of a queue serves.
struct Seat {
    queue: Arc<Queue>,
    pending: Pending<Side>,
}

impl interrupt::Seat for Seat {
    fn asked(&self) -> Option<Asked> {
        self.pending.asked()
    }

    fn decide(&self) -> bool {
        self.pending.decide()
    }

    fn is_open(&self) -> bool {
        self.pending.is_open()
    }

    fn threads(&self) -> usize {
        self.queue.registered.load(Ordering::Acquire)
    }

    fn interrupt(self: Arc<Self>, shared: &Arc<Shared>, asked: Asked) -> io::Result<()> {
        // A ring belongs to the thread that made it: there must be one before anything is taken.
        let spawned = shared.spawn(format!("fuse-{}", self.queue.cpu), move |shared| {
            let place = Place::on(self.queue.cpu);
            let entry = self.take_over(&shared, asked);
            drop(self);
            match entry {
                Ok(Some(entry)) => serve(&shared, entry, place),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(%error, "a program that was killed has to wait for a while");
                    shared.callers.failed(asked.unique);
                }
            }
        });
        spawned.inspect_err(|_| shared.callers.settle())
    }
}

impl Seat {
    /// Takes the entry from the thread that serves a request, and answers the request with an
    /// error. `None`: it is served, or its thread is the last to know of it. Fails if nothing has
    /// happened.
    fn take_over(&self, shared: &Shared, asked: Asked) -> io::Result<Option<Entry>> {
        let ring = Ring::new()?;
        ring.register(shared.device.raw())?;
        let taken = self.pending.take(asked.unique, |side| side.payload.renew())?;
        let Some((side, view)) = taken else {
            shared.callers.settle();
            return Ok(None);
        };
        let mut entry = Entry::new(ring, side, view, &self.queue);
        if let Err(error) = entry.commit(asked.unique, Outcome::Error(asked.errno)) {
            tracing::error!(%error, "a program that was killed cannot be answered");
            return Ok(None);
        }
        Ok(Some(entry))
    }
}

impl Queue {
    fn new(cpu: usize, watch: &Arc<Watch>) -> Self {
        Self { cpu, registered: 0.into(), pulse: Pulse::default(), watch: Arc::clone(watch) }
    }
}

/// The kernel's side of an entry: where it puts requests and takes replies from.
///
/// Between a command and its completion the kernel owns both; they are touched only after a
/// completion and before the next command, by the owner of this.
struct Side {
    headers: Buffer,
    payload: Window,
}

/// An entry of a queue, and the ring that only its thread uses. The fields drop in order: the ring
/// goes before the buffers that it may fill.
struct Entry {
    ring: Ring,
    /// Elsewhere while a request is served, see [`Pending`].
    side: Option<Side>,
    /// The memory behind the payload's window.
    view: View,
    /// That memory is one piece, as far as it can be.
    gathered: bool,
    queue: Arc<Queue>,
    /// A completion that came early.
    early: Option<i32>,
}

impl Entry {
    fn new(ring: Ring, side: Side, view: View, queue: &Arc<Queue>) -> Self {
        Self { ring, side: Some(side), view, gathered: false, queue: Arc::clone(queue), early: None }
    }

    /// Registers an entry of `queue`.
    fn register(shared: &Shared, queue: &Arc<Queue>, ring: Ring, gathered: bool) -> io::Result<Self> {
        ring.register(shared.device.raw())?;
        let headers = Buffer::new(HEADERS_BYTES)?;
        let (payload, view) = Window::new(shared.payload)?;
        // The kernel reads these while the command is submitted; afterwards it knows them.
        let vectors = [
            libc::iovec { iov_base: headers.address().cast(), iov_len: HEADERS_BYTES },
            libc::iovec { iov_base: payload.address().cast(), iov_len: payload.len() },
        ];
        let mut entry = Self::new(ring, Side { headers, payload }, view, queue);
        if gathered {
            entry.gather();
        }
        let mut command = entry.command(COMMAND_REGISTER, 0)?;
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
        entry.push(&command)?;
        entry.ring.enter(false)?;
        if entry.ring.queued() > 0 {
            // The vectors will be gone when it is submitted.
            return Err(io::ErrorKind::Interrupted.into());
        }
        // A refusal is there at once; so may be a request.
        match entry.ring.completion() {
            Some(result) if result < 0 => Err(io::Error::from_raw_os_error(-result)),
            early => {
                entry.early = early;
                Ok(entry)
            }
        }
    }

    /// The kernel's side.
    fn side(&mut self) -> &mut Side {
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
    fn wait(&mut self) -> io::Result<()> {
        loop {
            match self.early.take().or_else(|| self.ring.completion()) {
                Some(0) => return Ok(()),
                Some(result) => return Err(io::Error::from_raw_os_error(-result)),
                None => {}
            }
            // Where the client takes the CPU now, this thread stays ready to run instead of going
            // to sleep (see `scheduling_class`).
            let replies = self.ring.queued() > 0;
            self.ring.enter(!(replies && self.queue.pulse.is_idle()))?;
        }
    }

    /// The thread that made the request which is at the kernel's side.
    fn asker(&mut self) -> u32 {
        let headers = self.side().headers.bytes();
        headers[CALLER_OFFSET..CALLER_OFFSET + 4].try_into().map_or(0, u32::from_ne_bytes)
    }

    /// Serves the request that is at the kernel's side: its number, and what came of it. `None`:
    /// another thread has answered it, and has that side now.
    fn serve(&mut self, shared: &Shared, seat: &Seat) -> Option<(u64, Outcome)> {
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
        let request = Request { header, argument: &rest[..ARGUMENT_BYTES], dialect: &shared.dialect };
        let payload = self.view.bytes();
        let received = received.min(payload.len());
        seat.pending.begin(request.asked(), side);
        shared.callers.begun();
        let outcome = shared.handle(&request, payload, received);
        self.side = seat.pending.finish();
        if self.side.is_none() {
            shared.unanswered(&header, outcome, payload);
            return None;
        }
        if received >= BULK_REPLY_BYTES
            || matches!(outcome, Outcome::Reply(bytes) if bytes >= BULK_REPLY_BYTES)
        {
            self.gather();
        }
        Some((header.unique, outcome))
    }

    /// Makes the memory behind the payload's window one piece.
    fn gather(&mut self) {
        if !self.gathered {
            self.view.gather();
            self.gathered = true;
        }
    }

    /// Queues the reply to request `unique`; the next [`Entry::wait`] submits it.
    fn commit(&mut self, unique: u64, outcome: Outcome) -> io::Result<()> {
        let side = self.side();
        let (body, errno) = match outcome {
            Outcome::Reply(body) => (body.min(side.payload.len()), 0),
            Outcome::Error(errno) => (0, errno),
            // Nothing that comes over a ring goes without a reply.
            Outcome::Silent => (0, 0),
        };
        let headers = side.headers.bytes();
        let mut commit = [0; 8];
        commit.copy_from_slice(&headers[COMMIT_ID_OFFSET..COMMIT_ID_OFFSET + 8]);
        headers[..REPLY_HEADER_BYTES].copy_from_slice(&reply::header(body, errno, unique));
        headers[ENTRY_OFFSET..ENTRY_OFFSET + 8].fill(0);
        headers[PAYLOAD_LENGTH_OFFSET..PAYLOAD_LENGTH_OFFSET + 4]
            .copy_from_slice(&(body as u32).to_ne_bytes());
        let command = self.command(COMMAND_COMMIT_AND_FETCH, u64::from_ne_bytes(commit))?;
        self.push(&command)
    }
}

/// Serves what comes over the device itself, until the connection ends: FORGETs and INTERRUPTs, and
/// whatever was asked before the rings were there.
fn serve_device(shared: &Arc<Shared>) -> io::Result<()> {
    let seat = classic::Seat::new(shared, shared.device.another()?);
    *shared.drain.lock() = Some(Drain { seat, buffer: Buffer::new(shared.payload + 4096)? });
    loop {
        // Sleeps without a timeout while nothing comes, and lets things gather when something does.
        if shared.device.ready(None)? {
            if let Some(drain) = &mut *shared.drain.lock() {
                drain.run(shared)?;
            }
            std::thread::sleep(FORGET_PAUSE);
        }
    }
}

/// What it takes to read the device.
pub(super) struct Drain {
    seat: Arc<classic::Seat>,
    buffer: Buffer,
}

impl Drain {
    /// Serves what is there now.
    pub(super) fn run(&mut self, shared: &Shared) -> io::Result<()> {
        while self.seat.ready()? {
            self.seat.serve_next(shared, self.buffer.bytes())?;
        }
        Ok(())
    }
}
