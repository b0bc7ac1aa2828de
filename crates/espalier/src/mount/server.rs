//! The server: opens the store, mounts it, and serves until it is unmounted.
//!
//! SIGTERM, SIGINT and SIGHUP unmount; if the mount is busy, everything is made durable and it
//! stays. Another one that comes when the first has led to nothing for some seconds, because the
//! device does not answer, ends the server as a crash does: every waiting caller gets an error. At
//! the end the file system is closed, a checkpoint made, and the image's lock or the lease of an
//! object store given back, in this order. The lease is given back by name: threads that never end
//! hold the device, so it is not dropped before the process ends.

use super::clients::Clients;
use super::give::Giver;
use super::opening::open_file_system;
use super::plan::Plan;
use super::take::{self, Taken, Taking};
use super::{existing, fill, follower, io_uring};
use crate::backing::Backing;
use crate::image;
use crate::info::{self, ShownStore};
use crate::memory;
use crate::scrub;
use crate::snapshot;
use crate::space;
use crate::watch::device::MeteredDevice;
use crate::watch::endpoint::Endpoint;
use crate::watch::server::Watch;
use anyhow::{Context, Result, anyhow, bail};
use espalier_engine::Store;
use espalier_fs::{FileSystem, OpenOptions};
use espalier_fuse::daemon::{Signals, Termination};
use espalier_fuse::metrics::Metrics;
use espalier_fuse::transport::Kind as Transport;
use espalier_fuse::{Commands, Description, Ended, ForgetHook, Mount, MountOptions};
use espalier_storage::{Device, GatedDevice, OpenMode};
use espalier_sync::Mutex;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The command that starts a server and waits until it is ready.
pub(crate) trait Starter {
    /// True while the command waits. A server whose command was interrupted gives up.
    fn waits(&self) -> bool;

    /// The mount of `fs` answers, which the manager of services hears.
    ///
    /// # Errors
    /// If no thread can be started.
    fn serves(&mut self, fs: &Arc<FileSystem>) -> std::io::Result<()>;

    /// The command can end.
    ///
    /// # Errors
    /// If it does not wait any more, or the server cannot leave its terminal.
    fn ready(&mut self) -> std::io::Result<()>;

    /// The mount is gone, and the server begins to end.
    fn ending(&mut self);
}

/// Mounts, tells `starter` when the mount answers, and returns when it has ended and everything is
/// durable.
pub(crate) fn serve(plan: &Plan, starter: &mut dyn Starter) -> Result<()> {
    // Before any thread, so that all inherit it.
    let signals = Signals::block().context("signals")?;
    let settings = &plan.settings;
    let mode = if settings.mount.read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let wanted = || starter.waits() && !signals.is_pending();
    let device = image::open_backing_while(&plan.source, mode, &settings.object, plan.take_over, &wanted)?;
    let endpoint = settings.metrics.as_ref().map(Endpoint::bind).transpose()?;
    let gate = GatedDevice::open_before(device.device());
    let server = Server::assemble(plan, device, gate, endpoint.as_ref(), None)?;
    if settings.mount.transport != Some(Transport::Classic) {
        io_uring::enable();
    }
    // A mount of a block device claims it for the kernel; our lock stays.
    server.backing.release_claim();
    let mount = Mount::start(Arc::clone(&server.fs), &plan.dir, &server.options)?;
    server.run(mount, signals, endpoint, starter, Begun::Mounted)
}

/// As [`serve`], of a mount that another server has until now.
pub(crate) fn take_over(plan: &Plan, starter: &mut dyn Starter) -> Result<()> {
    let signals = Signals::block().context("signals")?;
    let mut taking = Taking::ask(plan)?;
    match prepare(plan, &mut taking) {
        // Programs use the mount: it is not ended by an interrupt of the command, but stays with
        // the other server.
        Ok(_) if !starter.waits() || signals.is_pending() => {
            let why = "the command was interrupted";
            taking.give_up(why);
            bail!(why)
        }
        Ok((server, mount, mut endpoint)) => {
            let taken = taking.take(&server.gate)?;
            mount.begin();
            if let (Some(endpoint), Some(address)) = (&mut endpoint, &plan.settings.metrics) {
                endpoint.own(address);
            }
            server.run(mount, signals, endpoint, starter, Begun::TakenOver(taken))
        }
        Err(error) => {
            taking.give_up(&format!("{error:#}"));
            Err(error)
        }
    }
}

/// Gets everything ready to go on with a mount that another server has paused. What fails here
/// changes nothing.
fn prepare<'a>(plan: &'a Plan, taking: &mut Taking) -> Result<(Server<'a>, Mount, Option<Endpoint>)> {
    let device = Backing::File(Arc::new(take::image(taking.image.try_clone()?, plan)?));
    let gate = GatedDevice::closed_before(device.device(), TAKING_LIMIT);
    let endpoint = match (&plan.settings.metrics, taking.listener.take()) {
        (Some(address), Some(listener)) => Some(Endpoint::from_descriptor(address, listener)),
        _ => None,
    };
    let handover = &taking.handover;
    let server = Server::assemble(plan, device, gate, endpoint.as_ref(), Some(&handover.file_system))?;
    let fs = Arc::clone(&server.fs);
    let rings = taking.rings.as_ref().map(|(memory, _)| memory.try_clone()).transpose()?;
    let descriptors = (taking.connection.try_clone()?, rings);
    let mount = Mount::take_over(fs, &plan.dir, descriptors, &handover.mount, &server.options)?;
    Ok((server, mount, endpoint))
}

/// How a server came to its mount.
enum Begun {
    Mounted,
    /// Programs use it already.
    TakenOver(Taken),
}

/// How long a server that takes a mount over waits with a change.
const TAKING_LIMIT: Duration = Duration::from_secs(15);

/// An open file system, and what its mount needs.
struct Server<'a> {
    plan: &'a Plan,
    backing: Backing,
    gate: Arc<GatedDevice>,
    store: Arc<Store>,
    fs: Arc<FileSystem>,
    options: MountOptions,
    transport: Arc<OnceLock<Transport>>,
    watch: Arc<Watch>,
    giver: Arc<Giver>,
    clients: Arc<Clients>,
    shown: Arc<ShownStore>,
}

impl<'a> Server<'a> {
    /// Opens the file system on `backing`, all changes of which pass `gate`; with what another
    /// server has handed over of it, if it did.
    fn assemble(
        plan: &'a Plan,
        backing: Backing,
        gate: Arc<GatedDevice>,
        endpoint: Option<&Endpoint>,
        handed: Option<&[u8]>,
    ) -> Result<Self> {
        let settings = &plan.settings;
        let metered = MeteredDevice::new(Arc::clone(&gate) as Arc<dyn Device>);
        let store = image::store_over(
            Arc::clone(&metered) as Arc<dyn Device>,
            &backing,
            settings.store_memory() / if settings.object.follows() { follower::MEMORY_SHARE } else { 1 },
            settings.mount.read_only,
            settings.discard,
        )?;
        store.expect_reads();
        let forgets = ForgetHook::default();
        let (volume, can_change) = choose_volume(plan, &store)?;
        let mut options = settings.mount.clone();
        options.read_only |= !can_change;
        let fs = open_file_system(plan, volume, options.read_only, &store, Some(&forgets), handed)?;
        options.source.clone_from(&plan.source);
        options.block_device = backing.is_block_device();
        options.forgets = Some(forgets);
        options.request_maker = Some(fill::process);
        let metrics: Arc<Metrics> = Arc::default();
        options.metrics = Some(Arc::clone(&metrics));
        let watch = Watch::new((&plan.source, &plan.dir), &metrics, &store, &fs, (&metered, &backing));
        let listener = endpoint.map(Endpoint::listener).transpose()?;
        let giver = Giver::new(&backing, &gate, &store, listener);
        let transport: Arc<OnceLock<Transport>> = Arc::default();
        let shown = ShownStore::new(&store, &fs, &backing);
        let described = info::server_side(plan, options.read_only, &transport, &shown);
        options.description = Some(Description(Arc::new(described)));
        options.follow = settings.object.follows();
        let (scrub, trim) = (scrub::server_side(&store), space::server_side(&store, &backing));
        let (list, atime) = (snapshot::server_side(&store), existing::server_side(&fs));
        let (watched, giving) = (Arc::clone(&watch), Arc::clone(&giver));
        let follows = options.follow;
        let answer = move |command: &str| {
            // They are about the state that was shown first.
            if follows {
                return watched.answer(command);
            }
            let told = scrub(command).or_else(|| trim(command)).or_else(|| list(command));
            told.or_else(|| atime(command))
                .or_else(|| watched.answer(command))
                .or_else(|| giving.answer(command))
        };
        options.commands = Some(Commands(Arc::new(answer)));
        let clients = Arc::new(Clients::new(&options));
        Ok(Self { plan, backing, gate, store, fs, options, transport, watch, giver, clients, shown })
    }

    /// Tells `starter` that the mount answers, and returns when it has ended and everything is
    /// durable.
    fn run(
        self,
        mount: Mount,
        signals: Signals,
        endpoint: Option<Endpoint>,
        starter: &mut dyn Starter,
        begun: Begun,
    ) -> Result<()> {
        let Self { plan, store, fs, clients, .. } = &self;
        let mount = Arc::new(mount);
        // There is one mount, so it is set once.
        let _ = self.transport.set(mount.transport());
        self.watch.attach(&mount);
        self.giver.attach(&mount, clients);
        clients.start(&mount);
        let _socket = endpoint.map(|endpoint| endpoint.serve(Arc::clone(&self.watch))).transpose()?;
        heed(signals, Arc::clone(&mount), Arc::clone(fs))?;
        if plan.settings.object.follows() {
            follower::start(plan, &self.backing, &mount, &self.shown)?;
        }
        memory::watch(plan.settings.store_memory() + plan.settings.name_memory())?;
        let ready = starter.serves(fs).and_then(|()| {
            // It may wait for a while, so all else is there already.
            if let Begun::TakenOver(taken) = &begun {
                taken.say(plan);
            }
            starter.ready()
        });
        if let (Err(error), Begun::TakenOver(_)) = (&ready, &begun) {
            tracing::warn!(%error, "the command that replaced the server does not hear of it");
        } else if let Err(error) = ready {
            // The thread for signals holds the mount as well, so it does not end by being dropped.
            if let Err(error) = mount.unmount(true) {
                tracing::error!(%error, dir = %plan.dir.display(), "the mount cannot be taken away");
            }
            return Err(error).context("the server gives up and unmounts");
        }
        tracing::info!(source = %plan.source.display(), dir = %plan.dir.display(), "mounted");
        let ended = mount.wait();
        self.backing.begin_close();
        clients.stop();
        starter.ending();
        let finished = match ended {
            Ended::Poisoned => Err(anyhow!(
                "{} was unmounted after an internal error; what was fsynced is safe, the rest is decided at the next mount",
                plan.source.display()
            )),
            _ => finish(plan, store, fs),
        };
        let closed = self.backing.close();
        finished?;
        closed.with_context(|| format!("the lease of {} is not given back", plan.source.display()))?;
        tracing::info!(source = %plan.source.display(), "unmounted");
        Ok(())
    }
}

/// The volume to mount, and whether it can be changed.
fn choose_volume(plan: &Plan, store: &Store) -> Result<(String, bool)> {
    let Some(name) = &plan.settings.snapshot else { return Ok((OpenOptions::default().volume, true)) };
    let snapshot = espalier_fs::find_snapshot(store, name)
        .with_context(|| format!("{} (espalier snapshot list shows all)", plan.source.display()))?;
    Ok((snapshot.volume, snapshot.writable))
}

/// Makes everything durable and lets go of the image.
fn finish(plan: &Plan, store: &Arc<Store>, fs: &FileSystem) -> Result<()> {
    let source = &plan.source;
    fs.close().with_context(|| format!("the last changes of {} are not stored", source.display()))?;
    store.close().map_err(|e| image::explain(e, source)).with_context(|| {
        format!("the last checkpoint of {} failed; the next mount recovers", source.display())
    })
}

/// How long a device may take before a second signal ends the server without it.
const DEVICE_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts the thread that turns signals into unmounts.
fn heed(signals: Signals, mount: Arc<Mount>, fs: Arc<FileSystem>) -> Result<()> {
    // When what an earlier signal asked for was begun, if it has not ended.
    let begun: Arc<Mutex<Option<Instant>>> = Arc::default();
    let body = move || {
        loop {
            let signal: Termination = signals.wait();
            let since = *begun.lock();
            match since {
                Some(since) if since.elapsed() >= DEVICE_TIMEOUT => give_up(&mount),
                Some(_) => continue,
                None => *begun.lock() = Some(Instant::now()),
            }
            match mount.unmount(false) {
                // What remains to be done before the server ends can take as long as the device
                // likes, too.
                Ok(()) => tracing::info!(?signal, "unmounting"),
                Err(error) => {
                    tracing::warn!(?signal, %error, "it cannot be unmounted now; it stays, and everything is made durable");
                    let (fs, begun) = (Arc::clone(&fs), Arc::clone(&begun));
                    let sync = move || {
                        if let Err(error) = fs.syncfs() {
                            tracing::error!(%error, "not everything could be made durable");
                        }
                        *begun.lock() = None;
                    };
                    if let Err(error) = std::thread::Builder::new().name("sync".into()).spawn(sync) {
                        tracing::error!(%error, "no thread can be started to make everything durable");
                    }
                }
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(body).context("a thread cannot be started")?;
    Ok(())
}

/// Ends the server without the device, as a crash does; callers that wait for an answer get an
/// error.
fn give_up(mount: &Mount) -> ! {
    tracing::error!("the device does not answer; the server ends, and what was not synced is lost");
    if let Err(error) = mount.abort() {
        tracing::error!(%error, "the connection cannot be ended; callers wait until umount -f or the device helps");
    }
    std::process::exit(1);
}
