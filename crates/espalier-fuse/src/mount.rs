//! A mount, from the system call that makes it to the last request.
//!
//! [`Mount::start`] mounts, agrees with the kernel on how to talk, and serves in threads of its
//! own; [`Mount::wait`] returns when the kernel has ended the connection: after an unmount, or an
//! abort. Nothing here closes the file system: that is for its owner, after `wait`.

mod error;
mod forget_hook;
mod handover;
mod kernel;
mod options;

use crate::client_access::{self, ClientAccess, MountIdentity};
use crate::dispatch::{ClientSocket, Dispatcher, Fullness};
use crate::kernel_release;
use crate::metrics::Metrics;
use crate::notifier::Notifier;
use crate::prefetch::Prefetch;
use crate::protocol::flags::init as bit;
use crate::protocol::init::{Dialect, InitParameters};
use crate::protocol::notify::Notification;
use crate::transport::{self, Config, Handler, Kind, RequestMaker, Serving};
pub use error::MountError;
use espalier_fs::{FileSystem, NodeId, SurplusNode, WireReader};
use espalier_sync::{Condvar, Mutex, MutexGuard};
pub use forget_hook::ForgetHook;
use handover::{FillerStarter, Served};
pub use handover::{HandedMount, Handover, PausedMount};
use kernel::{DeviceNumber, Mounted};
pub use options::{ListAttributes, MountOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The largest READ and WRITE, bytes; more gains nothing.
const MAX_TRANSFER_BYTES: u32 = 1 << 20;

/// How a mount ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By an unmount or an abort.
    Unmounted,
    /// A request made the file system panic earlier on, and everything since was refused. What the
    /// memory holds cannot be trusted: leave the store as after a crash.
    Poisoned,
}

/// Changes how the kernel treats the mount at `point`: `ro`, `rw`, `nosuid` and the like, as `mount
/// -o remount` does. Flags that `options` do not ask for are taken away. The server is not asked,
/// so the caller makes sure that it can write before it asks for a writable mount.
///
/// # Errors
/// What the system says; the process needs the rights of root.
pub fn remount(point: &Path, options: &MountOptions) -> io::Result<()> {
    kernel::remount(point, options)
}

/// Makes the mount at `from` appear at `to` as well. Of `options` it takes those that the kernel
/// keeps for each place: read-only, set-id bits, devices, programs, symbolic links.
///
/// # Errors
/// What the system says; the process needs the rights of root.
pub fn bind(from: &Path, to: &Path, options: &MountOptions) -> io::Result<()> {
    kernel::bind(from, to, options)
}

/// A mounted file system.
pub struct Mount {
    point: PathBuf,
    serving: Serving,
    notifier: Arc<Notifier>,
    ticker: Option<SyncTicker>,
    prefetch: Option<Arc<Prefetch>>,
    block: bool,
    /// `None` where the kernel's table of mounts does not show it.
    device: Option<DeviceNumber>,
    /// Root only.
    control: Option<kernel::ControlFileSystem>,
    watcher: Mutex<Option<kernel::Watcher>>,
    /// `None` for a mount of another handler.
    served: Option<Served>,
    request_maker: Option<RequestMaker>,
    /// The mount is this server's; false while another one may still go on with it.
    owned: AtomicBool,
}

impl Mount {
    /// Mounts `fs` on the directory `point`. The mount answers when this returns.
    ///
    /// # Errors
    /// [`MountError`]; then nothing is mounted.
    pub fn start(fs: Arc<FileSystem>, point: &Path, options: &MountOptions) -> Result<Self, MountError> {
        let mut options = options.clone();
        let dispatcher = Arc::new(dispatcher_of(&fs, &mut options));
        let mut mount = Self::start_handler(Arc::clone(&dispatcher) as Arc<dyn Handler>, point, &options)?;
        mount.serve_with(Served { fs, dispatcher }, &options)?;
        Ok(mount)
    }

    /// Goes on with a mount at `point` that another server has served until now and hands over:
    /// `device` is its connection, `rings` the memory of its rings. The options are those of the
    /// other server. Requests are served from [`Mount::begin`] on.
    ///
    /// # Errors
    /// [`MountError`]; the mount is still the other server's.
    pub fn take_over(
        fs: Arc<FileSystem>,
        point: &Path,
        (device, rings): (OwnedFd, Option<OwnedFd>),
        handed: &HandedMount,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let mut options = options.clone();
        let failed = |source| MountError::Serve { point: point.to_owned(), source };
        let over_rings = if handed.rings.is_some() { bit::OVER_IO_URING } else { 0 };
        let known = init_parameters(&options, handed.block).flags | over_rings;
        let flags = handed.terms.dialect.flags & !known;
        if flags != 0 {
            let message =
                format!("the other server agreed on what this one does not know (flags {flags:#x})");
            return Err(failed(io::Error::other(message)));
        }
        let dispatcher = Arc::new(dispatcher_of(&fs, &mut options));
        dispatcher
            .take_over(&mut WireReader::new(&handed.dispatcher))
            .map_err(|e| failed(io::Error::other(e)))?;
        let metrics = options.metrics.clone().unwrap_or_default();
        let handler = Arc::clone(&dispatcher) as Arc<dyn Handler>;
        let connection = transport::HandedConnection {
            device: transport::Device::from_descriptor(device),
            terms: handed.terms,
            rings: handed.rings.as_ref().zip(rings),
        };
        if handed.rings.is_some() != connection.rings.is_some() {
            return Err(failed(io::Error::other("the memory of the rings was not handed over")));
        }
        let serving =
            transport::take_over(connection, handler, metrics, options.background).map_err(failed)?;
        let watcher = match options.auto_unmount {
            true => Some(kernel::Watcher::start(point).map_err(|source| MountError::NoHelper { source })?),
            false => None,
        };
        let mut mount = Self::of(serving, point.to_owned(), handed.block, watcher).map_err(failed)?;
        mount.owned = AtomicBool::new(false);
        mount.request_maker = options.request_maker;
        if let Some(hook) = &options.forgets {
            hook.attach(mount.serving.forget_drain());
        }
        mount.serve_with(Served { fs, dispatcher }, &options)?;
        Ok(mount)
    }

    /// Begins to serve a mount that was [taken over](Mount::take_over).
    pub fn begin(&self) {
        self.owned.store(true, Ordering::Release);
        handover::resume(&self.serving, &self.notifier);
    }

    /// Stops serving requests, for at most `limit` until it has stopped. Requests that come
    /// meanwhile wait in the kernel.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] for a mount of another handler than a file system, or over
    /// io_uring where that cannot be; [`io::ErrorKind::TimedOut`] if requests or notifications take
    /// too long; [`io::ErrorKind::ResourceBusy`] with the reason.
    pub fn pause(&self, limit: Duration) -> io::Result<PausedMount<'_>> {
        let unsupported = || io::Error::new(io::ErrorKind::Unsupported, "this mount serves no file system");
        let served = self.served.as_ref().ok_or_else(unsupported)?;
        let poisoned = self.serving.poisoned().then_some("an internal error has ended its service");
        if let Some(reason) = poisoned.or_else(|| served.dispatcher.is_bound()) {
            return Err(io::Error::new(io::ErrorKind::ResourceBusy, reason));
        }
        let paused = PausedMount {
            serving: &self.serving,
            notifier: &self.notifier,
            prefetch: self.prefetch.as_deref(),
            served,
            watcher: &self.watcher,
            filler: FillerStarter { maker: self.request_maker, point: &self.point, device: self.device },
            block: self.block,
            _no_tick: self.ticker.as_ref().map(SyncTicker::pause),
        };
        paused.settle(limit)
    }

    /// Starts what belongs to a mount of a file system.
    fn serve_with(&mut self, served: Served, options: &MountOptions) -> Result<(), MountError> {
        let Served { fs, dispatcher } = &served;
        dispatcher.attach(&self.notifier);
        prune_surplus(fs, &self.notifier, self.serving.dialect());
        if prefetches(options) {
            self.prefetch = self.start_prefetch(fs, dispatcher, &options.metrics.clone().unwrap_or_default());
        }
        if !options.sync_interval.is_zero() && !options.read_only {
            let fullness = Arc::clone(dispatcher.fullness());
            let ticker = SyncTicker::start(
                Arc::clone(fs),
                fullness,
                Arc::clone(&self.notifier),
                options.sync_interval,
            );
            let failed = |source| MountError::Serve { point: self.point.clone(), source };
            self.ticker = Some(ticker.map_err(failed)?);
        }
        self.served = Some(served);
        Ok(())
    }

    /// As [`Mount::start`], for anything that serves requests; without a ticker.
    ///
    /// # Errors
    /// [`MountError`]; then nothing is mounted.
    pub fn start_handler(
        handler: Arc<dyn Handler>,
        point: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let point = check_point(point, options)?;
        let mounted = kernel::mount(&point, options)?;
        let config = Config {
            kind: options.transport,
            threads_per_cpu: options.threads_per_cpu,
            background: options.background,
            init_parameters: init_parameters(options, mounted.block),
            metrics: options.metrics.clone().unwrap_or_default(),
        };
        let Mounted { device, watcher, block } = mounted;
        let started = transport::prepare(device, config)
            .and_then(|prepared| prepared.start(handler))
            .and_then(|serving| Self::of(serving, point.clone(), block, watcher));
        let mut mount = started.map_err(|source| {
            if let Err(error) = kernel::unmount(&point, true) {
                tracing::warn!(%error, "could not unmount again");
            }
            MountError::Serve { point: point.clone(), source }
        })?;
        if let Some(hook) = &options.forgets {
            hook.attach(mount.serving.forget_drain());
        }
        mount.request_maker = options.request_maker;
        tracing::info!(point = %point.display(), transport = %mount.transport(), block, "mounted");
        kernel::set_bdi_limits(&mount.point, options);
        Ok(mount)
    }

    /// A mount whose requests are served.
    fn of(
        serving: Serving,
        point: PathBuf,
        block: bool,
        watcher: Option<kernel::Watcher>,
    ) -> io::Result<Self> {
        Ok(Self {
            device: DeviceNumber::of(&point),
            control: kernel::ControlFileSystem::mount().ok(),
            point,
            notifier: Arc::new(Notifier::start(serving.device()?)?),
            serving,
            ticker: None,
            prefetch: None,
            block,
            watcher: Mutex::new(watcher),
            served: None,
            request_maker: None,
            owned: AtomicBool::new(true),
        })
    }

    /// Starts to prefetch files. A mount without a prefetcher is as good, but slower.
    fn start_prefetch(
        &self,
        fs: &Arc<FileSystem>,
        handler: &Dispatcher,
        metrics: &Metrics,
    ) -> Option<Arc<Prefetch>> {
        let stored = Arc::clone(metrics.stored());
        let started = self.serving.device().and_then(|device| {
            Prefetch::start(Arc::clone(fs), device, self.serving.background_access(), stored)
        });
        let prefetch = started.map(Arc::new);
        match &prefetch {
            Ok(prefetch) => handler.prefetch(Arc::clone(prefetch)),
            Err(error) => tracing::warn!(%error, "files are not prefetched"),
        }
        prefetch.ok()
    }

    /// Stops what threads of the mount do beside serving requests.
    fn stop_others(&self) {
        if let Some(ticker) = &self.ticker {
            ticker.stop();
        }
        if let Some(prefetch) = &self.prefetch {
            prefetch.stop();
        }
        self.notifier.stop();
    }

    /// Where it is mounted.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// The transport in use.
    pub fn transport(&self) -> Kind {
        self.serving.kind()
    }

    /// True if the mount is a `fuseblk`, for which `syncfs` and `umount` wait.
    pub fn is_block(&self) -> bool {
        self.block
    }

    /// How many requests the kernel holds, those that are being served included; `None` where this
    /// process may not see it.
    pub fn kernel_requests(&self) -> Option<u64> {
        self.control.as_ref()?.waiting(self.device?)
    }

    /// The mount for a server of clients; `None` if `options` do not allow them, for a mount of
    /// another handler than a file system, and where it cannot be told which device it is.
    pub fn client_access(&self, options: &MountOptions) -> Option<ClientAccess> {
        let served = self.served.as_ref().filter(|_| options.clients)?;
        let device = client_access::device_of(&self.point)
            .inspect_err(|error| tracing::warn!(%error, "the mount has no device number"));
        let identity = MountIdentity {
            device: device.ok()?,
            owner: rustix::process::getuid().as_raw(),
            allows_others: options.allow_other.unwrap_or_else(kernel::is_root),
            is_write_back: options.writeback,
        };
        let (dispatcher, background) = (Arc::clone(&served.dispatcher), self.serving.background_access());
        Some(ClientAccess { dispatcher, background, identity })
    }

    /// The notifier, which tells the kernel of changes that no request of it made.
    pub fn notifier(&self) -> Arc<Notifier> {
        Arc::clone(&self.notifier)
    }

    /// Shows a newer state of the store than the one before, in a mount that follows another writer
    /// ([`MountOptions::follow`]). What is open stays in the state in which it was opened. At
    /// `last_current` the state that was shown before was still that of the store.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] if the mount does not follow, or too many states were in use
    /// when they were closed.
    pub fn show(&self, fs: Arc<FileSystem>, last_current: Instant) -> io::Result<()> {
        let told = self.served.as_ref().and_then(|served| served.dispatcher.show(fs, last_current));
        let message = "this mount can show no other state; unmount it, and mount again";
        let told = told.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, message))?;
        self.notifier.notify(told);
        Ok(())
    }

    /// Closes states that were replaced ([`Mount::show`]): those that the kernel does not know any
    /// more, and those that were last known to be that of the store `grace` before `now`, whose
    /// open files give ESTALE from then on. Returns how many replaced states there still are.
    pub fn close_states(&self, now: Instant, grace: Duration) -> usize {
        self.served.as_ref().map_or(0, |served| served.dispatcher.close_states(now, grace))
    }

    /// Unmounts; with `lazily`, the mount leaves the tree at once and ends when it is not in use
    /// any more.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] while it is in use (never if `lazily`), or what the
    /// system says.
    pub fn unmount(&self, lazily: bool) -> io::Result<()> {
        if self.serving.ended() {
            return Ok(());
        }
        kernel::unmount(&self.point, lazily)
    }

    /// Ends the connection, even if it is in use or no longer in the tree: what is
    /// pending fails, and so does everything later. For root, or where the control file system of
    /// FUSE is mounted.
    ///
    /// # Errors
    /// What the system says.
    pub fn abort(&self) -> io::Result<()> {
        // The kernel gives the number of a connection that has ended to another mount.
        if self.serving.ended() {
            return Ok(());
        }
        kernel::abort(&self.point, self.device)
    }

    /// Returns when the mount has ended and the last request is served.
    pub fn wait(&self) -> Ended {
        self.serving.wait();
        self.stop_others();
        if self.serving.poisoned() { Ended::Poisoned } else { Ended::Unmounted }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.stop_others();
        if !self.serving.ended()
            && self.owned.load(Ordering::Acquire)
            && let Err(error) = self.unmount(true)
        {
            tracing::debug!(%error, point = %self.point.display(), "not unmounted; perhaps it was before");
        }
    }
}

/// The dispatcher of a mount of `fs` with these options, which get metrics if they have none.
fn dispatcher_of(fs: &Arc<FileSystem>, options: &mut MountOptions) -> Dispatcher {
    let (description, commands) = (options.description.clone(), options.commands.clone());
    let metrics = Arc::clone(options.metrics.get_or_insert_default());
    let mut dispatcher = Dispatcher::new(Arc::clone(fs), options.xattrs, description, commands, metrics);
    if options.writeback {
        dispatcher.expect_write_back();
    }
    if options.list_attributes == ListAttributes::Always {
        dispatcher.list_all_attributes();
    }
    if options.follow {
        dispatcher.follow();
    }
    if options.clients {
        dispatcher.set_client_socket(ClientSocket::Awaited);
    }
    fs.set_kernel_keeps_times(options.writeback);
    dispatcher
}

/// The mount point as an absolute path, if it can be one.
fn check_point(point: &Path, options: &MountOptions) -> Result<PathBuf, MountError> {
    let wrong = |source| MountError::Point { point: point.to_owned(), source };
    let path = point.canonicalize().map_err(wrong)?;
    let mut entries = match path.read_dir() {
        Ok(entries) => entries,
        // A user that may not list it may still mount on it.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(path),
        Err(error) => return Err(wrong(error)),
    };
    if !options.nonempty && entries.next().is_some() {
        return Err(MountError::NotEmpty { point: path });
    }
    Ok(path)
}

/// Files are prefetched where that is [safe](crate::prefetch), and another CPU has time for it.
fn prefetches(options: &MountOptions) -> bool {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let asks = options.xattrs && !options.writeback;
    // A change of the length of a file waits for what is being stored of it, which may wait for a
    // page that another thread is to serve.
    let others = options.threads_per_cpu != Some(1);
    options.prefetch && !options.follow && asks && others && cpus > 1 && kernel_release::clears_stored_tails()
}

/// What the mount asks of the kernel at INIT.
fn init_parameters(options: &MountOptions, block: bool) -> InitParameters {
    // All changes pass here: the kernel need not look after attributes, names, pages or listings on
    // its own.
    let mut flags = bit::ASYNC_READ
        | bit::BIG_WRITES
        | bit::HAS_IOCTL_DIR
        | bit::DO_READDIRPLUS
        | bit::NO_OPEN_SUPPORT
        | bit::PARALLEL_DIROPS
        | bit::ABORT_ERROR
        | bit::MAX_PAGES
        | bit::CACHE_SYMLINKS
        | bit::NO_OPENDIR_SUPPORT
        | bit::EXPLICIT_INVAL_DATA
        | bit::HANDLE_KILLPRIV_V2
        | bit::SETXATTR_EXT
        | bit::INIT_EXT
        // The kernel checks permissions, so it can translate owners for idmapped mounts (6.12).
        | bit::ALLOW_IDMAP;
    if options.list_attributes == ListAttributes::Auto {
        flags |= bit::READDIRPLUS_AUTO;
    }
    if options.handles {
        // The kernel asks for `.` of any node id that was given out, and for `..`. overlayfs then
        // finds lower files by their handles: as dentries without a parent, which FUSE calls stale.
        flags |= bit::EXPORT_SUPPORT;
    }
    if options.writeback {
        flags |= bit::WRITEBACK_CACHE;
    }
    if !kernel_release::drops_pages_after_direct_writes() {
        // Where it does, it must wait for the write before that.
        flags |= bit::ASYNC_DIO;
    }
    if options.xattrs {
        // The file system gives new files what the directory's default ACL says, or else applies
        // the umask.
        flags |= bit::POSIX_ACL | bit::DONT_MASK;
    }
    tracing::debug!(flags = format_args!("{flags:#x}"), block, "asking the kernel");
    InitParameters {
        flags,
        max_readahead: options.read_ahead_kib.saturating_mul(1024),
        max_write: MAX_TRANSFER_BYTES,
        max_background: 64,
    }
}

/// What the kernel is to drop of removed trees. While a program has something below open, the
/// kernel keeps its name when it drops the names above, and later keeps it as one that may be of
/// use: with that it keeps the tree, whose space would be free only when memory gets short.
fn names_to_drop(fs: &FileSystem) -> impl Iterator<Item = Notification> {
    let names = fs.names_in_removed_trees(MAX_NAMES_TO_DROP).into_iter();
    names.map(|(dir, name)| Notification::Entry { parent: dir.0, name: name.to_vec(), expire: false })
}

/// Has the kernel give up files and directories when more are in memory than there is memory for.
fn prune_surplus(fs: &Arc<FileSystem>, notifier: &Arc<Notifier>, dialect: Dialect) {
    // The file system outlives the mount.
    let (notifier, weak) = (Arc::downgrade(notifier), Arc::downgrade(fs));
    let can_prune = dialect.minor >= PRUNE_MINOR;
    fs.watch_surplus(Arc::new(move || {
        let (Some(notifier), fs) = (notifier.upgrade(), weak.clone()) else { return };
        // Which they are takes a while to find out.
        notifier.notify_later(move || fs.upgrade().map_or_else(Vec::new, |fs| surplus(&fs, can_prune)));
    }));
}

/// The notifications by which the kernel gives up what is in memory for longest.
fn surplus(fs: &FileSystem, can_prune: bool) -> Vec<Notification> {
    let nodes = fs.surplus_nodes();
    if can_prune {
        let ids = |nodes: &[SurplusNode]| nodes.iter().map(|surplus| surplus.node.0).collect();
        return nodes
            .chunks(MAX_PRUNED_NODES)
            .map(|nodes| Notification::Prune { nodes: ids(nodes) })
            .collect();
    }
    let places = nodes.into_iter().filter_map(|surplus| surplus.place);
    let entry = |(dir, name): (NodeId, Arc<[u8]>)| Notification::Entry {
        parent: dir.0,
        name: name.to_vec(),
        expire: false,
    };
    places.map(entry).collect()
}

/// The protocol's version that has a notification to prune nodes.
const PRUNE_MINOR: u32 = 45;

/// Nodes in one such notification.
const MAX_PRUNED_NODES: usize = 512;

/// Names of removed trees that the kernel is told to drop at a time.
const MAX_NAMES_TO_DROP: usize = 4096;

/// Calls the file system every few seconds.
struct SyncTicker {
    stopped: Arc<(Mutex<bool>, Condvar)>,
    /// Held during a call.
    calling: Arc<Mutex<()>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

impl SyncTicker {
    fn start(
        fs: Arc<FileSystem>,
        fullness: Arc<Fullness>,
        notifier: Arc<Notifier>,
        interval: Duration,
    ) -> io::Result<Self> {
        let stopped = Arc::new((Mutex::new(false), Condvar::new()));
        let shared = Arc::clone(&stopped);
        let calling: Arc<Mutex<()>> = Arc::default();
        let in_thread = Arc::clone(&calling);
        let thread = std::thread::Builder::new().name("fuse-tick".into()).spawn(move || {
            let (flag, wake) = &*shared;
            loop {
                let deadline = Instant::now() + interval;
                let mut stop = flag.lock();
                while !*stop && !wake.wait_until(&mut stop, deadline).timed_out() {}
                if *stop {
                    return;
                }
                drop(stop);
                let _calling = in_thread.lock();
                if let Err(error) = fs.background_tick() {
                    tracing::error!(%error, "what was written lately could not be made durable");
                }
                fullness.look();
                notifier.notify(names_to_drop(&fs));
            }
        })?;
        Ok(Self { stopped, calling, thread: Mutex::new(Some(thread)) })
    }

    /// Makes no call until the result is dropped.
    fn pause(&self) -> MutexGuard<'_, ()> {
        self.calling.lock()
    }

    fn stop(&self) {
        *self.stopped.0.lock() = true;
        self.stopped.1.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A tick that panicked has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}
