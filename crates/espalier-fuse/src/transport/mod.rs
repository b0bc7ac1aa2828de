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

mod affinity;
mod buffer;
mod classic;
mod cpu;
mod device;
mod interrupt;
mod ring;
mod scheduling_class;
mod uring;

use crate::protocol::{self, Dialect, Header, InitRequest, init};
use buffer::Buffer;
pub use device::Device;
pub(crate) use interrupt::serving_threads;
use interrupt::{Asked, Callers};
pub use interrupt::{is_waited_for, is_wanted};
use parking_lot::Mutex;
use scheduling_class::Watch;
use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

/// A request: everything but its payload.
#[derive(Debug)]
pub struct Request<'a> {
    /// The header.
    pub header: Header,
    /// The fixed argument; it may be longer than the operation's argument.
    pub argument: &'a [u8],
    /// What INIT agreed on.
    pub dialect: &'a Dialect,
}

/// What a handler answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Success; the body of the reply, of this length, is at the start of the buffer.
    Reply(usize),
    /// A positive errno.
    Error(i32),
    /// No reply is expected.
    Silent,
}

/// What serves requests.
pub trait Handler: Send + Sync {
    /// Serves one request. `buffer` holds its payload, `received` bytes of it, and takes the body
    /// of the reply. Called from many threads at a time; may block. Its caller may be killed and
    /// answered meanwhile, so before it changes anything it must ask whether that [is
    /// wanted](is_wanted).
    fn handle(&self, request: &Request<'_>, buffer: &mut [u8], received: usize) -> Outcome;

    /// The reply `reply` to the request with this header is not sent: its caller was killed, and
    /// has been answered. References to nodes that the reply would have handed out are to be taken
    /// back.
    fn unanswered(&self, header: &Header, reply: &[u8]);
}

/// Which transport serves a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// FUSE over io_uring.
    Uring,
    /// Reads and writes of the FUSE device.
    Classic,
}

impl Request<'_> {
    /// Which one it is.
    fn asked(&self) -> Asked {
        use protocol::request::{given_up, has_caller, tells_of_changes};
        let Header { unique, opcode, pid, .. } = self.header;
        let thread = if has_caller(opcode) { pid } else { 0 };
        Asked { unique, thread, tells: tells_of_changes(opcode), errno: given_up(opcode) }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Uring => "io_uring",
            Self::Classic => "classic",
        })
    }
}

/// Calls its argument with the numbers (`gettid(2)`) of some threads of this process, none of which
/// ends meanwhile.
pub type Threads = fn(&mut dyn FnMut(i32));

/// How to serve.
#[derive(Debug, Clone)]
pub struct Config {
    /// Use this transport or fail; `None`: io_uring where it works, otherwise classic.
    pub kind: Option<Kind>,
    /// Ring threads per CPU; `None`: 16, on machines of many CPUs 8. So many requests on a CPU may
    /// wait for storage.
    pub threads_per_cpu: Option<usize>,
    /// Tells the threads that keep off CPUs on which many requests come.
    pub background: Option<Threads>,
    /// What to ask of the kernel.
    pub wishes: init::Wishes,
}

/// What all threads of a connection share.
struct Shared {
    device: Device,
    handler: Arc<dyn Handler>,
    dialect: Dialect,
    /// Bytes of payload that a buffer must hold.
    payload: usize,
    /// A handler panicked: what it left behind cannot be trusted, so nothing more is served.
    poisoned: AtomicBool,
    /// The kernel ended the connection.
    ended: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// The callers that wait for replies.
    callers: Callers,
    /// With io_uring: reads what still comes over the device.
    drain: Mutex<Option<uring::Drain>>,
    /// With io_uring: tells background threads where they are in the way.
    watch: OnceLock<Arc<Watch>>,
}

impl Shared {
    /// Calls the handler; a panic in it becomes EIO, now and for every later request.
    fn handle(&self, request: &Request<'_>, buffer: &mut [u8], received: usize) -> Outcome {
        if self.poisoned.load(Ordering::Relaxed) {
            return Outcome::Error(libc::EIO);
        }
        self.guard(request.header, || self.handler.handle(request, buffer, received))
            .unwrap_or(Outcome::Error(libc::EIO))
    }

    /// Calls the handler for `what`; `None` if it panics.
    fn guard<T>(&self, what: impl fmt::Debug, call: impl FnOnce() -> T) -> Option<T> {
        let result = catch_unwind(AssertUnwindSafe(call));
        if result.is_err() {
            self.poisoned.store(true, Ordering::Relaxed);
            tracing::error!(
                ?what,
                "a request made the file system panic; from now on the mount answers with errors only"
            );
        }
        result.ok()
    }

    /// What `outcome` says in `buffer` is not sent: another thread has answered.
    fn unanswered(&self, header: &Header, outcome: Outcome, buffer: &[u8]) {
        self.callers.settle();
        if let Outcome::Reply(body) = outcome
            && !self.poisoned.load(Ordering::Relaxed)
        {
            let reply = &buffer[..body.min(buffer.len())];
            self.guard(header, || self.handler.unanswered(header, reply));
        }
    }

    /// The connection has ended.
    fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.callers.end();
    }

    /// Starts a thread that is waited for at the end.
    fn spawn(
        self: &Arc<Self>,
        name: String,
        body: impl FnOnce(Arc<Self>) + Send + 'static,
    ) -> io::Result<()> {
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name(name).spawn(move || body(shared))?;
        let mut threads = self.threads.lock();
        // A thread that has ended keeps its stack until it is joined.
        for ended in threads.extract_if(.., |thread| thread.is_finished()) {
            let _ = ended.join();
        }
        threads.push(thread);
        Ok(())
    }
}

/// A device with whatever is needed to serve it, before INIT.
pub struct Prepared {
    device: Device,
    config: Config,
    rings: Option<uring::Rings>,
}

/// Gets ready to serve `device`: decides on the transport as far as that is possible, and makes the
/// rings.
///
/// # Errors
/// Rings that are asked for by [`Config::kind`] and cannot be had.
pub fn prepare(device: Device, config: Config) -> io::Result<Prepared> {
    let wanted = config.kind != Some(Kind::Classic);
    let rings = match wanted.then(|| uring::Rings::prepare(&config)) {
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
        let mut wishes = self.config.wishes;
        if self.rings.is_some() {
            wishes.flags |= protocol::flags::init::OVER_IO_URING;
        }
        let dialect = greet(&self.device, &wishes)?;
        let shared = Arc::new(Shared {
            device: self.device,
            handler,
            dialect,
            payload: payload_bytes(&wishes),
            poisoned: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            threads: Mutex::default(),
            callers: Callers::default(),
            drain: Mutex::default(),
            watch: OnceLock::new(),
        });
        let granted = dialect.has(protocol::flags::init::OVER_IO_URING);
        let kind = match self.rings.take().filter(|_| granted).map(|rings| rings.start(&shared)) {
            Some(Ok(())) => Kind::Uring,
            failed if self.config.kind == Some(Kind::Uring) => {
                let reason = "the kernel does not serve FUSE over io_uring; write Y to \
                              /sys/module/fuse/parameters/enable_uring as root, or use the classic device";
                return Err(failed.and_then(Result::err).unwrap_or_else(|| io::Error::other(reason)));
            }
            failed => {
                if let Some(Err(error)) = failed {
                    tracing::warn!(%error, "FUSE over io_uring was refused: using the classic device");
                }
                classic::start(&shared)?;
                Kind::Classic
            }
        };
        shared.spawn("fuse-callers".into(), |shared| shared.callers.run(&shared))?;
        Ok(Serving { shared, kind })
    }
}

/// Bytes that a WRITE carries or a READ returns at most.
fn payload_bytes(wishes: &init::Wishes) -> usize {
    (wishes.max_write as usize).max(8192).next_multiple_of(4096)
}

/// Waits for INIT and answers it.
fn greet(device: &Device, wishes: &init::Wishes) -> io::Result<Dialect> {
    let mut buffer = Buffer::new(payload_bytes(wishes) + 4096)?;
    let buffer = buffer.bytes();
    loop {
        let length = device.read(buffer)?;
        let message = &buffer[..length];
        let Ok((header, operation)) = protocol::decode(message, &Dialect::default()) else {
            return Err(io::Error::other("the first message on the FUSE device is no FUSE request"));
        };
        let protocol::Operation::Init(request) = operation else {
            device.reply(header.unique, Err(libc::EIO))?;
            continue;
        };
        if request.major > init::MAJOR {
            // It asks again, in the major version that it is told here.
            let mut body = [0; init::REPLY_BYTES];
            body[..4].copy_from_slice(&init::MAJOR.to_ne_bytes());
            device.reply(header.unique, Ok(&body))?;
            continue;
        }
        return answer(device, header.unique, &request, wishes);
    }
}

fn answer(device: &Device, unique: u64, request: &InitRequest, wishes: &init::Wishes) -> io::Result<Dialect> {
    match init::negotiate(request, wishes) {
        Ok((dialect, body)) => {
            tracing::debug!(
                minor = dialect.minor,
                flags = format_args!("{:#x}", dialect.flags),
                "FUSE agreed on"
            );
            device.reply(unique, Ok(&body))?;
            Ok(dialect)
        }
        Err((major, minor)) => {
            device.reply(unique, Err(libc::EPROTO))?;
            Err(io::Error::other(format!(
                "the kernel speaks FUSE {major}.{minor}; {}.{} (Linux 5.4) or later is needed",
                init::MAJOR,
                init::OLDEST_MINOR
            )))
        }
    }
}

/// What a thread needs that works for a mount beside those that serve requests.
pub(crate) struct Beside(Arc<Shared>);

impl Beside {
    /// Calls the file system as a request would; `None` if it is not to be trusted any more, or
    /// panics now.
    pub(crate) fn call<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        if self.0.poisoned.load(Ordering::Relaxed) {
            return None;
        }
        self.0.guard("the thread that reads before it is asked to", call)
    }

    /// The calling thread keeps off CPUs on which many requests come, until the result is dropped.
    pub(crate) fn keep_off(&self) -> Option<impl Drop + '_> {
        self.0.watch.get().map(|watch| watch.join_affinity())
    }
}

/// A connection that is being served.
pub struct Serving {
    shared: Arc<Shared>,
    kind: Kind,
}

impl Serving {
    /// The transport in use.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What INIT agreed on.
    pub fn dialect(&self) -> Dialect {
        self.shared.dialect
    }

    /// Another descriptor of the same connection, for notifications.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn device(&self) -> io::Result<Device> {
        self.shared.device.another()
    }

    /// For a thread that works for the mount without serving requests.
    pub(crate) fn beside(&self) -> Beside {
        Beside(Arc::clone(&self.shared))
    }

    /// Something that has pending FORGETs served at once, on the calling thread. It may be called
    /// within a request, but with no lock held that a FORGET needs. Where FORGETs do not gather it
    /// does nothing.
    pub fn forget_drain(&self) -> impl Fn() + Send + Sync + 'static {
        let shared = Arc::downgrade(&self.shared);
        move || {
            if let Some(shared) = shared.upgrade()
                && let Some(mut drain) = shared.drain.try_lock()
                && let Some(drain) = &mut *drain
                && let Err(error) = drain.run(&shared)
            {
                tracing::debug!(%error, "FORGETs could not be read");
            }
        }
    }

    /// True when the kernel has ended the connection.
    pub fn ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire)
    }

    /// True if a handler panicked. What it was doing is half done in memory: do not write it out.
    pub fn poisoned(&self) -> bool {
        self.shared.poisoned.load(Ordering::Acquire)
    }

    /// Returns when the kernel has ended the connection (unmount or abort) and every handler has
    /// returned.
    pub fn wait(&self) {
        loop {
            let Some(thread) = self.shared.threads.lock().pop() else { return };
            // A thread that panicked outside a handler has nothing left to say.
            let _ = thread.join();
        }
    }
}
