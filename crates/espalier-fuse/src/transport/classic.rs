//! The classic transport: every message is a read, every reply a write.
//!
//! One thread per CPU, kept there, with a descriptor of its own. Only when all of them are at work
//! (waiting for storage, most likely) does another thread read as well; it goes to rest when they
//! are back.
//!
//! A reply goes to the descriptor from which its request was read, and any thread may write it; so
//! the thread that finds that a caller was killed answers for the thread that serves it
//! ([`interrupt`]).

use super::buffer::Buffer;
use super::interrupt::{self, Asked, Pending, Sitting};
use super::{Device, Outcome, Request, Shared, cpu, device};
use crate::protocol::{HEADER_BYTES, Header, REPLY_HEADER_BYTES, flags, reply};
use parking_lot::{Condvar, Mutex};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A message is read so that what follows the argument of a READ or WRITE begins at a page: data is
/// aligned.
const PAYLOAD_OFFSET: usize = 4096;
/// Length of header and argument of READ and WRITE.
const DATA_HEAD_BYTES: usize = HEADER_BYTES + 40;
/// Threads at most for each CPU, all waiting.
const MAX_THREADS_PER_CPU: usize = 16;

/// The threads of a connection.
struct Pool {
    /// Threads that wait for a message.
    idle: AtomicUsize,
    /// Threads that always read.
    permanent: usize,
    spare: Mutex<Spare>,
    wake: Condvar,
}

/// The other threads.
#[derive(Default)]
struct Spare {
    resting: usize,
    wanted: usize,
    started: usize,
}

/// Starts the threads.
pub(super) fn start(shared: &Arc<Shared>) -> io::Result<()> {
    let cpus = cpu::allowed();
    let pool = Arc::new(Pool {
        idle: AtomicUsize::new(cpus.len()),
        permanent: cpus.len(),
        spare: Mutex::default(),
        wake: Condvar::new(),
    });
    for cpu in cpus {
        let pool = Arc::clone(&pool);
        shared.spawn(format!("fuse-{cpu}"), move |shared| {
            cpu::pin(cpu);
            serve(&shared, &pool, true);
        })?;
    }
    Ok(())
}

/// One thread's life.
fn serve(shared: &Arc<Shared>, pool: &Arc<Pool>, permanent: bool) {
    let result = shared.device.another().and_then(|device| {
        let mut buffer = Buffer::new(PAYLOAD_OFFSET + shared.payload)?;
        let seat = Seat::new(shared, device);
        let _sitting = Sitting::at(&seat);
        serve_all(shared, pool, permanent, &seat, &mut buffer)
    });
    shared.end();
    // Every resting thread must see the end. The lock orders this after a thread that is about to
    // rest.
    drop(pool.spare.lock());
    pool.wake.notify_all();
    if let Err(error) = result
        && !device::is_end(&error)
    {
        tracing::error!(%error, "a thread can no longer serve the mount");
    }
}

fn serve_all(
    shared: &Arc<Shared>,
    pool: &Arc<Pool>,
    permanent: bool,
    seat: &Seat,
    buffer: &mut Buffer,
) -> io::Result<()> {
    loop {
        let message = &mut buffer.bytes()[PAYLOAD_OFFSET - DATA_HEAD_BYTES..];
        let length = seat.device.read(message)?;
        if pool.idle.fetch_sub(1, Ordering::Relaxed) == 1 {
            pool.call_another(shared);
        }
        let result = seat.serve(shared, message, length);
        if !permanent && pool.idle.load(Ordering::Relaxed) >= pool.permanent && !pool.rest(shared) {
            return Ok(());
        }
        pool.idle.fetch_add(1, Ordering::Relaxed);
        result?;
    }
}

/// A descriptor from which requests are read, by one thread at a time, and to which replies are
/// written.
pub(super) struct Seat {
    device: Device,
    pending: Pending<()>,
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
        MAX_THREADS_PER_CPU
    }

    fn interrupt(self: Arc<Self>, shared: &Arc<Shared>, asked: Asked) -> io::Result<()> {
        match self.pending.take(asked.unique, |()| Ok(()))? {
            Some(_) => self.device.reply(asked.unique, Err(asked.errno)),
            None => {
                shared.callers.settle();
                Ok(())
            }
        }
    }
}

impl Seat {
    /// Makes `device` a place where requests are served.
    pub(super) fn new(shared: &Shared, device: Device) -> Arc<Self> {
        let seat = Arc::new(Self { device, pending: Pending::none() });
        shared.callers.enter(&seat);
        seat
    }

    /// True if a message is there to be read.
    pub(super) fn ready(&self) -> io::Result<bool> {
        self.device.ready(Some(0))
    }

    /// Reads one message into `buffer`, which is large enough for any, and serves it, perhaps while
    /// the calling thread serves something else.
    pub(super) fn serve_next(self: &Arc<Self>, shared: &Shared, buffer: &mut [u8]) -> io::Result<()> {
        let length = self.device.read(buffer)?;
        let _sitting = Sitting::at(self);
        self.serve(shared, buffer, length)
    }

    /// Serves the message at the start of `message`. Fails only if the connection has ended.
    fn serve(&self, shared: &Shared, message: &mut [u8], length: usize) -> io::Result<()> {
        let Ok(header) = Header::decode(&message[..length]) else {
            return Err(io::Error::other("a message on the FUSE device has no header"));
        };
        let fixed = shared.dialect.argument_bytes(header.opcode).min(length - HEADER_BYTES);
        let start = HEADER_BYTES + fixed;
        let (head, payload) = message.split_at_mut(start);
        let request = Request { header, argument: &head[HEADER_BYTES..], dialect: &shared.dialect };
        if header.opcode == flags::opcode::INTERRUPT {
            // Killed callers are found without it.
            return Ok(());
        }
        self.pending.begin(request.asked(), ());
        shared.callers.begun();
        let outcome = shared.handle(&request, payload, length - start);
        if self.pending.finish().is_none() {
            shared.unanswered(&header, outcome, payload);
            return Ok(());
        }
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

impl Pool {
    /// Every thread is at work: one that rests shall read, or a new one.
    fn call_another(self: &Arc<Self>, shared: &Arc<Shared>) {
        let mut spare = self.spare.lock();
        if spare.resting > spare.wanted {
            spare.wanted += 1;
            self.wake.notify_one();
        } else if spare.started < self.permanent * (MAX_THREADS_PER_CPU - 1) {
            spare.started += 1;
            let name = format!("fuse-spare-{}", spare.started);
            drop(spare);
            let pool = Arc::clone(self);
            let spawned = shared.spawn(name, move |shared| {
                pool.idle.fetch_add(1, Ordering::Relaxed);
                serve(&shared, &pool, false);
            });
            if let Err(error) = spawned {
                tracing::warn!(%error, "no further thread can be started for the mount");
            }
        }
    }

    /// Rests until called; false when the connection has ended.
    fn rest(&self, shared: &Shared) -> bool {
        let mut spare = self.spare.lock();
        spare.resting += 1;
        while spare.wanted == 0 && !shared.ended.load(Ordering::Acquire) {
            self.wake.wait(&mut spare);
        }
        spare.resting -= 1;
        spare.wanted = spare.wanted.saturating_sub(1);
        !shared.ended.load(Ordering::Acquire)
    }
}
