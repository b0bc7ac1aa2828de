//! FUSE over io_uring (Linux 6.14): a queue per CPU, served on that CPU.
//!
//! A request goes to the queue of the CPU on which it is made. Each queue is served by several
//! threads that stay on its CPU, each with a ring and one entry of its own: a handler that waits
//! for storage holds up no other, and no thread wakes another CPU. The kernel gives a request to
//! the entry that became free last, so the threads in use are few, and their caches warm; the
//! others cost a stack and a buffer that were never touched.
//!
//! All threads exist from the start, and one is added for each that ends. The kernel looks at
//! what waits when some entry commits, but not when one is registered, so a thread that came later
//! would need a request of our own to be seen; and such a request makes the mount busy when
//! a user is about to unmount it.
//!
//! If the caller of a request was killed, another thread answers in place of the serving one
//! ([`interrupt`](super::interrupt)). The kernel takes a reply from any ring of the process, and
//! puts the next request where the entry was registered to have it. So a new thread takes the entry
//! over, with fresh memory behind its payload, and the old one ends when it is done.
//!
//! A thread that replies in bulk may leave the CPU for that time ([`CpuPlacement`]). While a queue
//! is hot its threads are in the class that leaves clients where they are (see
//! [`scheduling_class`](super::scheduling_class)).
//!
//! FORGET and INTERRUPT still come over the device ([`forget_reader`](super::forget_reader)).

mod entry;
mod queue;

use super::config::Config;
use super::connection::Connection;
use super::cpu::{self, CpuPlacement};
use super::device;
use super::forget_reader::ForgetReader;
use super::handler::Outcome;
use super::reply_slot::{InFlight, ReplySlot};
use super::ring::Ring;
use super::scheduling_class::{LoadMonitor, MonitoredQueue};
use super::worker::{CurrentWorker, Worker};
use crate::metrics::Recorder;
use entry::{Entry, KernelSide};
use queue::Queue;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Threads for each CPU: so many requests on it may wait for storage at once.
const THREADS_PER_CPU: usize = 16;
/// The same on large machines.
const THREADS_PER_CPU_ON_LARGE: usize = 8;
/// A machine with so many CPUs or more is large.
const LARGE_MACHINE_CPUS: usize = 32;
/// The threads of a CPU that get requests first (those that registered last) have the memory of
/// their payloads made one piece at the start, unless there are too many of them. That takes
/// milliseconds, for which their first clients would wait otherwise.
const GATHERED_THREADS_PER_CPU: usize = 3;
const MAX_GATHERED_THREADS: usize = 16;

/// What a connection over io_uring has beside its serving threads.
#[derive(Clone)]
pub(super) struct UringParts {
    pub(super) monitor: Arc<LoadMonitor>,
    pub(super) forgets: Arc<ForgetReader>,
}

/// Threads with a ring each, waiting for the connection to be ready.
pub(super) struct Rings {
    queues: Vec<Arc<Queue>>,
    monitor: Arc<LoadMonitor>,
    threads: Vec<PreparedThread>,
}

/// A thread that has its ring, and waits until the connection is ready.
struct PreparedThread {
    /// Tells it to register its entry.
    start: SyncSender<Arc<Connection>>,
    /// Whether it could.
    registered: Receiver<io::Result<()>>,
    thread: std::thread::JoinHandle<()>,
}

impl Rings {
    /// Makes the threads and rings, which fails where FUSE or the system have no io_uring for us.
    pub(super) fn prepare(config: &Config) -> io::Result<Self> {
        let enabled = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
        if !enabled.is_ok_and(|value| value.trim() == "Y") {
            return Err(io::Error::other("/sys/module/fuse/parameters/enable_uring does not say Y"));
        }
        let count = cpu::possible();
        let each = config.threads_per_cpu.unwrap_or(if count < LARGE_MACHINE_CPUS {
            THREADS_PER_CPU
        } else {
            THREADS_PER_CPU_ON_LARGE
        });
        let monitor = Arc::new(LoadMonitor::new(config.background));
        let queues: Vec<_> = (0..count).map(|cpu| Arc::new(Queue::new(cpu, &monitor))).collect();
        let online = cpu::allowed();
        let gathered = GATHERED_THREADS_PER_CPU.min(MAX_GATHERED_THREADS / online.len().max(1));
        let mut prepared = Vec::new();
        for queue in &queues {
            // A queue of a CPU that is not in use needs a thread all the same: requests wait until
            // all queues have one.
            let threads = if online.contains(&queue.cpu) { each.max(1) } else { 1 };
            for number in (0..threads).rev() {
                prepared.push(PreparedThread::spawn(queue, number < gathered && threads > 1)?);
            }
        }
        Ok(Self { queues, monitor, threads: prepared })
    }

    /// Registers everything and starts to serve.
    ///
    /// # Errors
    /// A queue that no thread could register for, or no memory or thread for what else is needed.
    pub(super) fn start(self, connection: &Arc<Connection>) -> io::Result<UringParts> {
        for thread in &self.threads {
            // A thread that has ended shows below.
            let _ = thread.start.send(Arc::clone(connection));
        }
        let mut result = Ok(());
        for thread in self.threads {
            let registered = thread.registered.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
            result = result.and(registered);
            connection.threads.add(thread.thread);
        }
        // With every queue served at least once the connection lives, even if some thread failed.
        if self.queues.iter().any(|queue| queue.registered() == 0) {
            return result.and_then(|()| Err(io::ErrorKind::Other.into()));
        }
        let (monitor, queues) = (Arc::clone(&self.monitor), self.queues);
        connection.threads.spawn("fuse-monitor".into(), move || {
            let queues: Vec<_> = queues.iter().map(|queue| &**queue as &dyn MonitoredQueue).collect();
            monitor.run(&queues);
        })?;
        let parts = UringParts { monitor: self.monitor, forgets: Arc::new(ForgetReader::new(connection)?) };
        let UringParts { monitor, forgets } = parts.clone();
        let reading = Arc::clone(connection);
        connection.threads.spawn("fuse-device".into(), move || {
            let _background = monitor.join_background();
            if let Err(error) = forgets.run()
                && !device::is_end(&error)
            {
                tracing::error!(%error, "FORGETs can no longer be read");
            }
            reading.end();
            monitor.end();
        })?;
        Ok(parts)
    }
}

impl PreparedThread {
    /// Starts a thread for `queue`, and returns when it has its ring.
    fn spawn(queue: &Arc<Queue>, gathered: bool) -> io::Result<Self> {
        let (start, started) = sync_channel::<Arc<Connection>>(1);
        let (ready, made) = sync_channel(1);
        let (report, registered) = sync_channel(1);
        let queue = Arc::clone(queue);
        let thread = std::thread::Builder::new().name(format!("fuse-{}", queue.cpu)).spawn(move || {
            let placement = CpuPlacement::on(queue.cpu);
            let ring = match Ring::new() {
                Ok(ring) => ring,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            // The channel is closed if another ring could not be had.
            let Ok(connection) = started.recv() else { return };
            match Entry::register(&connection, &queue, ring, gathered) {
                Ok(entry) => {
                    queue.add_registered();
                    let _ = report.send(Ok(()));
                    serve(&connection, entry, placement);
                }
                Err(error) => drop(report.send(Err(error))),
            }
        })?;
        made.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(Self { start, registered, thread })
    }
}

/// Serves what `entry` is given until the end, or until another thread has the entry.
fn serve(connection: &Arc<Connection>, mut entry: Entry, mut placement: CpuPlacement) {
    let queue = entry.queue();
    let worker = Arc::new(UringWorker {
        connection: Arc::clone(connection),
        queue: Arc::clone(&queue),
        slot: ReplySlot::idle(),
    });
    connection.interrupts.register(&worker);
    let _current = CurrentWorker::enter(&worker);
    let member = queue.activity.join();
    let recorder = Recorder::new(&connection.metrics);
    loop {
        let wait = recorder.wait();
        match entry.wait() {
            Ok(()) => {}
            Err(error) => {
                if !device::is_end(&error) {
                    tracing::error!(cpu = queue.cpu, %error, "a thread can no longer serve the mount");
                }
                return;
            }
        }
        let arrival = wait.arrived();
        if member.count_request(entry.client()) {
            queue.monitor.wake();
        }
        let served = entry.serve(connection, &worker.slot, &recorder, arrival);
        let Some((unique, outcome)) = served else { return };
        if let Outcome::Reply(bytes) = outcome {
            placement.replied(bytes);
        }
        if let Err(error) = entry.commit(unique, outcome) {
            return tracing::error!(cpu = queue.cpu, %error, "a reply could not be sent");
        }
    }
}

/// The worker of a queue: the request that its thread serves.
struct UringWorker {
    connection: Arc<Connection>,
    queue: Arc<Queue>,
    slot: ReplySlot<KernelSide>,
}

impl Worker for UringWorker {
    fn interruptible(&self) -> Option<InFlight> {
        self.slot.interruptible()
    }

    fn may_commit(&self) -> bool {
        self.slot.may_commit()
    }

    fn is_unanswered(&self) -> bool {
        self.slot.is_unanswered()
    }

    fn threads(&self) -> usize {
        self.queue.registered()
    }

    fn interrupt(self: Arc<Self>, request: InFlight) -> io::Result<()> {
        let connection = Arc::clone(&self.connection);
        // A ring belongs to the thread that made it: there must be one before anything is taken.
        let spawned = connection.threads.spawn(format!("fuse-{}", self.queue.cpu), {
            let connection = Arc::clone(&connection);
            move || {
                let placement = CpuPlacement::on(self.queue.cpu);
                let entry = self.take_over(request);
                drop(self);
                match entry {
                    Ok(Some(entry)) => serve(&connection, entry, placement),
                    Ok(None) => {}
                    Err(error) => {
                        tracing::warn!(%error, "a program that was killed has to wait for a while");
                        connection.interrupts.interrupt_failed(request.unique);
                    }
                }
            }
        });
        spawned.inspect_err(|_| connection.interrupts.abandoned_ended())
    }
}

impl UringWorker {
    /// Takes the entry from the thread that serves a request, and answers the request with an
    /// error. `None`: the request is served or committed already, or the answer could not be sent.
    /// Fails if nothing has happened.
    fn take_over(&self, request: InFlight) -> io::Result<Option<Entry>> {
        let ring = Ring::new()?;
        ring.register(self.connection.device.raw())?;
        let taken = self.slot.take(request.unique, KernelSide::renew_payload)?;
        let Some((side, view)) = taken else {
            self.connection.interrupts.abandoned_ended();
            return Ok(None);
        };
        let mut entry = Entry::new(ring, side, view, &self.queue);
        if let Err(error) = entry.commit(request.unique, Outcome::Error(request.interrupt_errno)) {
            tracing::error!(%error, "a program that was killed cannot be answered");
            return Ok(None);
        }
        Ok(Some(entry))
    }
}
