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
//! For a handover each entry is given a request whose answer is [held](hold); another process that
//! has the [buffers](super::arena) at the same addresses commits it and has the entry
//! ([`Rings::adopt`]).
//!
//! FORGET and INTERRUPT still come over the device ([`forget_reader`](super::forget_reader)).

mod entry;
mod filler;
mod hold;
mod queue;
mod ring_set;
mod serve;

use super::arena::Arena;
use super::config::{Config, HandedRings, ThreadLister};
use super::connection::Connection;
use super::cpu::{self, CpuPlacement};
use super::device;
use super::forget_reader::ForgetReader;
use super::handshake;
use super::ring::Ring;
use super::scheduling_class::{LoadMonitor, MonitoredQueue};
use entry::{Entry, KernelSide};
pub use filler::{Filler, make_requests};
use hold::Hold;
use queue::{Queue, Registration};
pub(super) use ring_set::RingSet;
use serve::{Start, serve};
use std::io;
use std::os::fd::OwnedFd;
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
pub(super) struct UringParts {
    pub(super) monitor: Arc<LoadMonitor>,
    pub(super) forgets: Arc<ForgetReader>,
    pub(super) rings: RingSet,
}

/// Threads with a ring each, waiting for the connection to be ready.
pub(super) struct Rings {
    set: RingSet,
    monitor: Arc<LoadMonitor>,
    threads: Vec<PreparedThread>,
}

/// A thread that has its ring, and waits until the connection is ready.
struct PreparedThread {
    /// Tells it to begin.
    start: SyncSender<Arc<Connection>>,
    /// Whether its entry is registered, or about to be this process's.
    registered: Receiver<io::Result<()>>,
    thread: std::thread::JoinHandle<()>,
}

/// How an entry comes to its thread.
#[derive(Debug, Clone, Copy)]
enum Origin {
    /// It registers the entry, whose memory is made one piece first.
    New { gathered: bool },
    /// It registers the entry when the connection is this process's: there was no request for it
    /// before, since its CPU is off.
    CpuOff,
    /// The entry holds an answer of another process.
    Answered,
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
        let online = cpu::allowed();
        let gathered = GATHERED_THREADS_PER_CPU.min(MAX_GATHERED_THREADS / online.len().max(1));
        let entries: Vec<_> = (0..count)
            .flat_map(|cpu| {
                // A queue of a CPU that is not in use needs a thread all the same: requests wait
                // until all queues have one.
                let threads = if online.contains(&cpu) { each.max(1) } else { 1 };
                let gathered = move |number| number < gathered && threads > 1;
                (0..threads).rev().map(move |number| (cpu, Origin::New { gathered: gathered(number) }))
            })
            .collect();
        let arena = Arena::new(entries.len(), handshake::payload_bytes(&config.init_parameters))?;
        Self::of(arena, &entries, Hold::opened, config.background)
    }

    /// Makes threads and rings that go on with those of another process, in whose `memory` the
    /// answers lie. They wait until the connection is opened.
    ///
    /// # Errors
    /// The memory cannot lie where it has to, or the system has no rings for us.
    pub(super) fn adopt(
        handed: &HandedRings,
        memory: OwnedFd,
        payload_bytes: usize,
        background: Option<ThreadLister>,
    ) -> io::Result<Self> {
        let arena = Arena::adopt(memory, handed.base, handed.entries.len(), payload_bytes)?;
        let origin = |held: Option<u64>| held.map_or(Origin::CpuOff, |_| Origin::Answered);
        let entries: Vec<_> =
            handed.entries.iter().map(|entry| (entry.cpu, origin(entry.commit_id))).collect();
        Self::of(arena, &entries, Hold::closed, background)
    }

    fn of(
        arena: Arc<Arena>,
        entries: &[(usize, Origin)],
        hold_for: fn(usize) -> Hold,
        background: Option<ThreadLister>,
    ) -> io::Result<Self> {
        let count = entries.iter().map(|(cpu, _)| cpu + 1).max().unwrap_or(0);
        let (monitor, hold) = (Arc::new(LoadMonitor::new(background)), Arc::new(hold_for(count)));
        let queues: Vec<_> = (0..count).map(|cpu| Arc::new(Queue::new(cpu, &monitor, &hold))).collect();
        let mut threads = Vec::new();
        for (slot, (cpu, origin)) in entries.iter().enumerate() {
            threads.push(PreparedThread::spawn(&queues[*cpu], &arena, slot, *origin)?);
        }
        let cpus = entries.iter().map(|(cpu, _)| *cpu).collect();
        Ok(Self { set: RingSet::new(arena, hold, queues, cpus), monitor, threads })
    }

    /// Registers everything and starts to serve; what another process has registered is served when
    /// the hold is opened.
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
        // With every queue served at least once the connection lives, even if some thread failed;
        // but an answer that nothing sends is waited for.
        let adopted = connection.pause.is_closed();
        if adopted || self.set.queues().iter().any(|queue| queue.registered() == 0) {
            result.and_then(|()| if adopted { Ok(()) } else { Err(io::ErrorKind::Other.into()) })?;
        }
        let (monitor, queues) = (Arc::clone(&self.monitor), self.set.queues().to_vec());
        connection.threads.spawn("fuse-monitor".into(), move || {
            let queues: Vec<_> = queues.iter().map(|queue| &**queue as &dyn MonitoredQueue).collect();
            monitor.run(&queues);
        })?;
        let parts = UringParts {
            monitor: self.monitor,
            forgets: Arc::new(ForgetReader::new(connection)?),
            rings: self.set,
        };
        let (monitor, forgets) = (Arc::clone(&parts.monitor), Arc::clone(&parts.forgets));
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
    /// Starts a thread for entry `slot`, one of `queue`, and returns when it has its ring.
    fn spawn(queue: &Arc<Queue>, arena: &Arc<Arena>, slot: usize, origin: Origin) -> io::Result<Self> {
        let (start, started) = sync_channel::<Arc<Connection>>(1);
        let (ready, made) = sync_channel(1);
        let (report, registered) = sync_channel(1);
        let (queue, arena) = (Arc::clone(queue), Arc::clone(arena));
        let thread = std::thread::Builder::new().name(format!("fuse-{}", queue.cpu)).spawn(move || {
            let placement = CpuPlacement::on(queue.cpu);
            let made = Ring::new().and_then(|ring| Ok((ring, KernelSide::new(&arena, slot)?)));
            drop(arena);
            let (ring, (side, view)) = match made {
                Ok(made) => made,
                Err(error) => return drop(ready.send(Err(error))),
            };
            let _ = ready.send(Ok(()));
            // The channel is closed if another ring could not be had.
            let Ok(connection) = started.recv() else { return };
            let mut entry = Entry::new(ring, side, view, &queue);
            let begun = entry.attach(&connection).and_then(|()| match origin {
                Origin::New { gathered } => {
                    if gathered {
                        entry.gather();
                    }
                    Registration::make(&queue, || entry.register()).map(Some)
                }
                Origin::Answered => Ok(Some(Registration::adopt(&queue))),
                Origin::CpuOff => Ok(None),
            });
            let begun = begun.map_err(|error| drop(report.send(Err(error))));
            let Ok(registration) = begun else { return };
            let _ = report.send(Ok(()));
            let registration = match registration {
                Some(registration) => registration,
                None => match Registration::make(&queue, || entry.register()) {
                    Ok(registration) => registration,
                    Err(error) => {
                        return tracing::error!(cpu = queue.cpu, %error, "a thread cannot serve the mount");
                    }
                },
            };
            let start = if matches!(origin, Origin::Answered) { Start::Answered } else { Start::Registered };
            serve(&connection, entry, placement, start, registration);
        })?;
        made.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))?;
        Ok(Self { start, registered, thread })
    }
}
