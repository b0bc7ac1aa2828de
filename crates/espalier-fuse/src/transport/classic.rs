//! The classic transport: every message is a read, every reply a write.
//!
//! One thread per CPU, kept there, with a descriptor of its own. Only when all of them are busy
//! (waiting for storage, most likely) does a spare thread read as well; it rests when they are
//! back.

use super::buffer::Buffer;
use super::connection::Connection;
use super::cpu;
use super::device;
use super::device_worker::{DeviceWorker, MAX_THREADS_PER_CPU};
use super::pause::Reader;
use super::worker::CurrentWorker;
use crate::protocol::HEADER_BYTES;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A message is read so that what follows the argument of a READ or WRITE begins at a page: data is
/// aligned.
const PAYLOAD_OFFSET: usize = 4096;
/// Length of header and argument of READ and WRITE.
const DATA_HEAD_BYTES: usize = HEADER_BYTES + 40;

/// The serving threads of a connection.
struct ThreadPool {
    connection: Arc<Connection>,
    /// Threads that wait for a message.
    idle: AtomicUsize,
    /// Threads that always read.
    permanent: usize,
    spare: Mutex<SpareThreads>,
    wake: Condvar,
}

/// The spare threads.
#[derive(Default)]
struct SpareThreads {
    resting: usize,
    /// Resting threads that were called, and have not woken up yet.
    called: usize,
    started: usize,
}

/// Starts to serve.
///
/// # Errors
/// A thread that cannot be started.
pub(super) fn start(connection: &Arc<Connection>) -> io::Result<()> {
    let cpus = cpu::allowed();
    let pool = Arc::new(ThreadPool {
        connection: Arc::clone(connection),
        idle: AtomicUsize::new(cpus.len()),
        permanent: cpus.len(),
        spare: Mutex::default(),
        wake: Condvar::new(),
    });
    for cpu in cpus {
        let pool = Arc::clone(&pool);
        connection.threads.spawn(format!("fuse-{cpu}"), move || {
            cpu::pin(cpu);
            pool.serve(true);
        })?;
    }
    Ok(())
}

impl ThreadPool {
    /// Serves with the calling thread, until the connection ends or a spare thread is not needed
    /// any more.
    fn serve(self: &Arc<Self>, permanent: bool) {
        let result = DeviceWorker::new(&self.connection).and_then(|worker| {
            let mut buffer = Buffer::new(PAYLOAD_OFFSET + self.connection.payload_bytes)?;
            let _current = CurrentWorker::enter(&worker);
            let reader = self.connection.pause.join();
            self.serve_all(permanent, &worker, &reader, &mut buffer)
        });
        self.connection.end();
        // Every resting thread must see the end. The lock orders this after a thread that is about
        // to rest.
        drop(self.spare.lock());
        self.wake.notify_all();
        if let Err(error) = result
            && !device::is_end(&error)
        {
            tracing::error!(%error, "a thread can no longer serve the mount");
        }
    }

    fn serve_all(
        self: &Arc<Self>,
        permanent: bool,
        worker: &DeviceWorker,
        reader: &Reader<'_>,
        buffer: &mut Buffer,
    ) -> io::Result<()> {
        loop {
            let message = &mut buffer.bytes()[PAYLOAD_OFFSET - DATA_HEAD_BYTES..];
            let (length, arrival) = reader.read(|| worker.read(message))?;
            if self.idle.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.call_spare();
            }
            let result = worker.serve(message, length, arrival);
            if !permanent
                && self.idle.load(Ordering::Relaxed) >= self.permanent
                && !reader.rest(|| self.rest())
            {
                return Ok(());
            }
            self.idle.fetch_add(1, Ordering::Relaxed);
            result?;
        }
    }

    /// Every thread is busy: calls a resting one, or starts one.
    fn call_spare(self: &Arc<Self>) {
        let mut spare = self.spare.lock();
        if spare.resting > spare.called {
            spare.called += 1;
            self.wake.notify_one();
        } else if spare.started < self.permanent * (MAX_THREADS_PER_CPU - 1) {
            spare.started += 1;
            let name = format!("fuse-spare-{}", spare.started);
            drop(spare);
            let pool = Arc::clone(self);
            let spawned = self.connection.threads.spawn(name, move || {
                pool.idle.fetch_add(1, Ordering::Relaxed);
                pool.serve(false);
            });
            if let Err(error) = spawned {
                tracing::warn!(%error, "no further thread can be started for the mount");
            }
        }
    }

    /// Rests until called; false when the connection has ended.
    fn rest(&self) -> bool {
        let mut spare = self.spare.lock();
        spare.resting += 1;
        while spare.called == 0 && !self.connection.has_ended() {
            self.wake.wait(&mut spare);
        }
        spare.resting -= 1;
        spare.called = spare.called.saturating_sub(1);
        !self.connection.has_ended()
    }
}
