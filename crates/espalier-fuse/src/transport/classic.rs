//! The classic transport: every message is a read, every reply a write.
//!
//! The kernel gives out one request per read. There is one thread per CPU, kept there, with a
//! descriptor of its own. Only when all of them are busy (waiting for storage, most likely) does a
//! spare thread read as well; it rests when they are back. While many requests come, mostly of one
//! client after the other, one thread [leads](lead), and the others rest.

mod lead;

use super::buffer::Buffer;
use super::config::ThreadLister;
use super::connection::Connection;
use super::cpu::{self, CpuPlacement};
use super::device;
use super::device_worker::{DeviceWorker, MAX_THREADS_PER_CPU};
use super::pause::Reader;
use super::scheduling_class::{LoadMonitor, MonitoredQueue, QueueActivity};
use super::worker::CurrentWorker;
use crate::protocol::{HEADER_BYTES, Header};
use espalier_sync::{Condvar, Mutex};
use lead::{Lead, Sleeps};
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
    /// Threads that always read, unless one leads.
    permanent: usize,
    lead: Lead,
    activity: QueueActivity,
    monitor: Arc<LoadMonitor>,
    spare: Mutex<SpareThreads>,
    /// A spare thread was called, or the connection has ended.
    wake: Condvar,
    /// No thread leads any more, or the connection has ended.
    lead_ended: Condvar,
}

/// A serving thread.
struct PoolThread<'a> {
    worker: &'a DeviceWorker,
    reader: &'a Reader<'a>,
    placement: CpuPlacement,
    permanent: bool,
}

/// The spare threads.
#[derive(Default)]
struct SpareThreads {
    resting: usize,
    /// Resting threads that were called, and have not woken up yet.
    called: usize,
    started: usize,
}

/// Starts to serve. The result watches the load, and keeps `background` threads off busy CPUs.
///
/// # Errors
/// A thread that cannot be started.
pub(super) fn start(
    connection: &Arc<Connection>,
    background: Option<ThreadLister>,
) -> io::Result<Arc<LoadMonitor>> {
    let cpus = cpu::allowed();
    let monitor = Arc::new(LoadMonitor::new(background));
    let pool = Arc::new(ThreadPool {
        connection: Arc::clone(connection),
        idle: AtomicUsize::new(cpus.len()),
        permanent: cpus.len(),
        lead: Lead::none(),
        activity: QueueActivity::default(),
        monitor: Arc::clone(&monitor),
        spare: Mutex::default(),
        wake: Condvar::new(),
        lead_ended: Condvar::new(),
    });
    for cpu in cpus {
        let pool = Arc::clone(&pool);
        let serve = move || pool.serve(true, CpuPlacement::on(cpu));
        connection.threads.spawn(format!("fuse-{cpu}"), serve)?;
    }
    connection.threads.spawn("fuse-monitor".into(), move || pool.monitor.run(&[&pool]))?;
    Ok(monitor)
}

impl ThreadPool {
    /// Serves with the calling thread, until the connection ends or a spare thread is not needed
    /// any more.
    fn serve(self: &Arc<Self>, permanent: bool, placement: CpuPlacement) {
        let result = DeviceWorker::new(&self.connection).and_then(|worker| {
            let mut buffer = Buffer::new(PAYLOAD_OFFSET + self.connection.payload_bytes)?;
            let _current = CurrentWorker::enter(&worker);
            let reader = self.connection.pause.join();
            let thread = PoolThread { worker: &worker, reader: &reader, placement, permanent };
            self.serve_all(thread, &mut buffer)
        });
        self.connection.end();
        self.monitor.end();
        // Every resting thread must see the end. The lock orders this after a thread that is about
        // to rest.
        drop(self.spare.lock());
        self.wake.notify_all();
        self.lead_ended.notify_all();
        if let Err(error) = result
            && !device::is_end(&error)
        {
            tracing::error!(%error, "a thread can no longer serve the mount");
        }
    }

    fn serve_all(self: &Arc<Self>, mut thread: PoolThread<'_>, buffer: &mut Buffer) -> io::Result<()> {
        let member = self.activity.join();
        let mut sleeps = Sleeps::default();
        loop {
            let message = &mut buffer.bytes()[PAYLOAD_OFFSET - DATA_HEAD_BYTES..];
            let (length, arrival) = thread.reader.read(|| thread.worker.read(message))?;
            // Against `adapted`: either this sees that none leads, or that sees no thread idle.
            if self.idle.fetch_sub(1, Ordering::SeqCst) == 1 && !self.lead.is_on() {
                self.call_spare();
            }
            let client = Header::decode(&message[..length]).map_or(0, |header| header.pid);
            if member.count_request(client) {
                self.monitor.wake();
            }
            if self.lead.is_on() && sleeps.are_frequent() {
                self.monitor.look_soon();
            }
            self.take_place(&mut thread.placement);
            let result = thread.worker.serve(message, length, arrival);
            if self.are_enough_idle(thread.permanent) && !thread.reader.rest(|| self.rest(thread.permanent)) {
                return Ok(());
            }
            self.idle.fetch_add(1, Ordering::SeqCst);
            result?;
        }
    }

    /// Puts the calling thread on the CPU of its client, or, if none leads, on its own.
    fn take_place(&self, placement: &mut CpuPlacement) {
        if !self.lead.is_on() {
            return placement.go_home();
        }
        if let Some(cpu) = self.lead.cpu() {
            placement.follow(cpu);
        }
    }

    /// Whether the calling thread need not read: others do. The last one never rests.
    fn are_enough_idle(&self, permanent: bool) -> bool {
        let idle = self.idle.load(Ordering::SeqCst);
        if self.lead.is_on() { idle > 0 } else { !permanent && idle >= self.permanent }
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
                pool.serve(false, CpuPlacement::anywhere());
            });
            if let Err(error) = spawned {
                tracing::warn!(%error, "no further thread can be started for the mount");
            }
        }
    }

    /// Rests: a spare thread until it is called, any other until none leads. False when the
    /// connection has ended.
    fn rest(&self, permanent: bool) -> bool {
        let mut spare = self.spare.lock();
        if permanent {
            let goes_on = |_: &mut SpareThreads| self.lead.is_on() && !self.connection.has_ended();
            self.lead_ended.wait_while(&mut spare, goes_on);
            return !self.connection.has_ended();
        }
        spare.resting += 1;
        while spare.called == 0 && !self.connection.has_ended() {
            self.wake.wait(&mut spare);
        }
        spare.resting -= 1;
        spare.called = spare.called.saturating_sub(1);
        !self.connection.has_ended()
    }
}

impl MonitoredQueue for Arc<ThreadPool> {
    fn activity(&self) -> &QueueActivity {
        &self.activity
    }

    fn cpu(&self) -> Option<usize> {
        self.lead.cpu().filter(|_| self.lead.is_on())
    }

    fn look(&self) {
        if self.lead.is_on() {
            self.lead.look(&self.activity);
        }
    }

    fn is_unsuited(&self) -> bool {
        self.lead.is_unsuited(&self.activity, || self.idle.load(Ordering::SeqCst) == 0)
    }

    fn adapted(&self, is_hot: bool) {
        let ended = self.lead.set(is_hot);
        if is_hot {
            self.lead.look(&self.activity);
        } else if ended {
            // The lock orders this after a thread that is about to rest.
            drop(self.spare.lock());
            self.lead_ended.notify_all();
            if self.idle.load(Ordering::SeqCst) == 0 {
                self.call_spare();
            }
        }
    }
}
