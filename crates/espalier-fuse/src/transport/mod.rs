//! How requests come and replies go: over io_uring, or over the classic device.
//!
//! A [`Handler`] gets each request in the buffer in which the kernel put it and leaves the body of
//! the reply in the same buffer, so data is copied by the kernel only. Handlers may block: while
//! all threads of a CPU wait, another takes their place.
//!
//! The protocol: [`prepare`] makes the rings where they can be had, [`Prepared::start`] answers
//! INIT and starts to serve, [`Serving::wait`] returns when the kernel has ended the connection.
//! What decides between the transports is known before INIT is answered, for a connection that was
//! promised rings and gets none hangs.
//!
//! The components, from the top down (`layers.txt`): a transport (`uring`, `classic`) has threads,
//! each of which is a *worker*; a *connection* holds what all workers use: the device, the guarded
//! handler, the group of threads and the interrupt table; a worker has a *reply slot* for the
//! request that it serves. The *load monitor* (`scheduling_class`) watches how many come.

mod affinity;
mod arena;
mod buffer;
mod caller_liveness;
mod classic;
mod config;
mod connection;
mod cpu;
mod device;
mod device_worker;
mod forget_reader;
mod guarded_handler;
mod handler;
mod handshake;
mod interrupt;
mod mapping;
mod pause;
mod payload;
mod reply_slot;
mod ring;
mod scheduling_class;
mod thread_group;
mod uring;
mod worker;

use crate::metrics::Metrics;
use crate::protocol::{self, Dialect};
pub use config::{
    Config, HandedConnection, HandedEntry, HandedRings, Kind, RequestMaker, Terms, ThreadLister,
};
use connection::Connection;
pub use device::Device;
use forget_reader::ForgetReader;
use guarded_handler::GuardedHandler;
pub use handler::{Handler, Outcome, Request};
use pause::PauseGate;
use scheduling_class::LoadMonitor;
pub use scheduling_class::leave_serving;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use uring::{Filler, make_requests};
use uring::{RingSet, Rings, UringParts};
pub(crate) use worker::serving_threads;
pub use worker::{is_caller_waiting, may_commit};

/// A device with whatever is needed to serve it, before INIT.
pub struct Prepared {
    device: Device,
    config: Config,
    rings: Option<Rings>,
}

/// Gets ready to serve `device`: decides on the transport as far as that is possible, and makes the
/// rings.
///
/// # Errors
/// Rings that are asked for by [`Config::kind`] and cannot be had.
pub fn prepare(device: Device, config: Config) -> io::Result<Prepared> {
    let wanted = config.kind != Some(Kind::Classic);
    let rings = match wanted.then(|| Rings::prepare(&config)) {
        None => None,
        Some(Ok(rings)) => Some(rings),
        Some(Err(error)) if config.kind == Some(Kind::Uring) => return Err(error),
        Some(Err(error)) => {
            tracing::info!(%error, "no io_uring for FUSE: using the classic device");
            None
        }
    };
    Ok(Prepared { device, config, rings })
}

impl Prepared {
    /// Answers INIT and starts to serve. The mount answers when this returns.
    ///
    /// # Errors
    /// A kernel whose protocol is too old, a device that fails, threads that cannot be started, and
    /// io_uring that was asked for by name and is refused.
    pub fn start(mut self, handler: Arc<dyn Handler>) -> io::Result<Serving> {
        let mut init_parameters = self.config.init_parameters;
        if self.rings.is_some() {
            init_parameters.flags |= protocol::flags::init::OVER_IO_URING;
        }
        let dialect = handshake::greet(&self.device, &init_parameters)?;
        let payload_bytes = handshake::payload_bytes(&init_parameters);
        let handler = GuardedHandler::new(handler);
        let (metrics, pause) = (self.config.metrics, PauseGate::default());
        let connection =
            Arc::new(Connection::new(self.device, dialect, payload_bytes, handler, metrics, pause));
        let granted = dialect.has(protocol::flags::init::OVER_IO_URING);
        let (over_rings, monitor) =
            match self.rings.take().filter(|_| granted).map(|rings| rings.start(&connection)) {
                Some(Ok(UringParts { monitor, forgets, rings })) => {
                    (Some(OverRings { forgets, rings }), monitor)
                }
                failed if self.config.kind == Some(Kind::Uring) => {
                    let reason = "the kernel does not serve FUSE over io_uring; write Y to \
                              /sys/module/fuse/parameters/enable_uring as root, or use the classic device";
                    return Err(failed.and_then(Result::err).unwrap_or_else(|| io::Error::other(reason)));
                }
                failed => {
                    if let Some(Err(error)) = failed {
                        tracing::warn!(%error, "FUSE over io_uring was refused: using the classic device");
                    }
                    (None, classic::start(&connection, self.config.background)?)
                }
            };
        watch_callers(&connection)?;
        Ok(Serving { connection, over_rings, monitor })
    }
}

/// Starts the thread that looks after callers that are killed.
fn watch_callers(connection: &Arc<Connection>) -> io::Result<()> {
    let checked = Arc::clone(connection);
    connection.threads.spawn("fuse-callers".into(), move || checked.interrupts.run())
}

/// Goes on with a connection that another server has served until now, over the same transport.
/// Nothing is served before [`Serving::resume`].
///
/// # Errors
/// Threads, descriptors or memory that cannot be had.
pub fn take_over(
    handed: HandedConnection<'_>,
    handler: Arc<dyn Handler>,
    metrics: Arc<Metrics>,
    background: Option<ThreadLister>,
) -> io::Result<Serving> {
    let HandedConnection { device, terms: Terms { dialect, payload_bytes }, rings } = handed;
    let (handler, pause) = (GuardedHandler::new(handler), PauseGate::closed());
    let connection = Arc::new(Connection::new(device, dialect, payload_bytes, handler, metrics, pause));
    let (over_rings, monitor) = match rings {
        Some((rings, memory)) => {
            let rings = Rings::adopt(rings, memory, payload_bytes, background)?;
            let UringParts { monitor, forgets, rings } = rings.start(&connection)?;
            (Some(OverRings { forgets, rings }), monitor)
        }
        None => (None, classic::start(&connection, background)?),
    };
    watch_callers(&connection)?;
    Ok(Serving { connection, over_rings, monitor })
}

/// A connection that is being served.
pub struct Serving {
    connection: Arc<Connection>,
    monitor: Arc<LoadMonitor>,
    /// `None`: the classic transport serves it.
    over_rings: Option<OverRings>,
}

/// What a connection over io_uring has beside.
struct OverRings {
    forgets: Arc<ForgetReader>,
    rings: RingSet,
}

impl Serving {
    /// The transport in use.
    pub fn kind(&self) -> Kind {
        if self.over_rings.is_some() { Kind::Uring } else { Kind::Classic }
    }

    /// What INIT agreed on.
    pub fn dialect(&self) -> Dialect {
        self.connection.dialect
    }

    /// What the kernel and this server go by.
    pub fn terms(&self) -> Terms {
        Terms { dialect: self.connection.dialect, payload_bytes: self.connection.payload_bytes }
    }

    /// The descriptor of the connection, for another server.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.connection.device.as_fd()
    }

    /// Has all threads pause: when this returns no request is being served, and none is until
    /// [`Serving::resume`]. Over io_uring that takes requests of `filler`.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if requests take longer than `limit`;
    /// [`io::ErrorKind::Unsupported`] with io_uring if it cannot be. Nothing pauses then.
    pub fn pause(&self, limit: Duration, filler: Option<Filler>) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        if !self.connection.pause.close(limit) {
            return Err(pause::requests_take_long());
        }
        let Some(OverRings { rings, .. }) = &self.over_rings else { return Ok(()) };
        let unsupported = || io::Error::new(io::ErrorKind::Unsupported, "nothing fills the rings");
        let closed = filler.ok_or_else(unsupported).and_then(|filler| {
            let rest = deadline.saturating_duration_since(Instant::now());
            rings.close(filler, &self.connection.interrupts, rest)
        });
        closed.map_err(|error| {
            self.connection.pause.open();
            // The threads are gone then, and no entry gets anything.
            let ended = || io::Error::new(io::ErrorKind::NotConnected, "the mount has ended");
            if self.connection.has_ended() { ended() } else { error }
        })
    }

    /// The threads go on.
    pub fn resume(&self) {
        if let Some(OverRings { rings, .. }) = &self.over_rings {
            rings.open();
        }
        self.connection.pause.open();
    }

    /// The rings, for another server; `None` with the classic transport. Only while all pauses.
    ///
    /// # Errors
    /// No memory is left.
    pub fn hand_over_rings(&self) -> io::Result<Option<HandedRings>> {
        self.over_rings.as_ref().map(|over| over.rings.hand_over()).transpose()
    }

    /// The memory of the rings, for another server, and what is at its end when the last request of
    /// the filler is answered; `None` with the classic transport. Only while all pauses.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn ring_descriptors(&self) -> io::Result<Option<[OwnedFd; 2]>> {
        self.over_rings.as_ref().map(|over| over.rings.descriptors()).transpose()
    }

    /// Another descriptor of the same connection, for notifications.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn device(&self) -> io::Result<Device> {
        self.connection.device.another()
    }

    /// For a thread that works for the mount without serving requests.
    pub(crate) fn background_access(&self) -> BackgroundAccess {
        BackgroundAccess { handler: Arc::clone(&self.connection.handler), monitor: Arc::clone(&self.monitor) }
    }

    /// Something that has pending FORGETs served at once, on the calling thread. It may be called
    /// within a request, but with no lock held that a FORGET needs. Where FORGETs do not gather it
    /// does nothing.
    pub fn forget_drain(&self) -> impl Fn() + Send + Sync + 'static {
        let reader = self.over_rings.as_ref().map(|over| Arc::downgrade(&over.forgets));
        move || {
            if let Some(reader) = reader.as_ref().and_then(|reader| reader.upgrade()) {
                reader.drain();
            }
        }
    }

    /// True when the kernel has ended the connection.
    pub fn ended(&self) -> bool {
        self.connection.has_ended()
    }

    /// True if a handler panicked. What it was doing is half done in memory: do not write it out.
    pub fn poisoned(&self) -> bool {
        self.connection.handler.is_poisoned()
    }

    /// Returns when the kernel has ended the connection (unmount or abort) and every handler has
    /// returned.
    pub fn wait(&self) {
        self.connection.threads.join_all();
    }
}

/// The access to a connection of a thread that works for the mount without serving requests.
pub(crate) struct BackgroundAccess {
    handler: Arc<GuardedHandler>,
    monitor: Arc<LoadMonitor>,
}

impl BackgroundAccess {
    /// Calls the file system as a request would; `None` after a panic in it, or if it panics now.
    pub(crate) fn call<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        self.handler.call("the thread that prefetches files", call)
    }

    /// The calling thread keeps off CPUs on which many requests come, until the result is dropped.
    pub(crate) fn keep_off_busy_cpus(&self) -> impl Drop + '_ {
        self.monitor.join_background()
    }
}
