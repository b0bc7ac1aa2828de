//! The server that has a mount hands it over to another one, which asked for it.
//!
//! `espalier mount --replace` gives the command [`REPLACE`] with the name of an abstract socket, at
//! which it listens. The server connects, and the messages of [`channel`](super::channel) follow.
//! While they do the server is able to go on at any time, and does if the other one fails: it has
//! written everything and keeps from writing more, and the other one changes nothing before
//! [`Kind::Taken`]. Only after [`Kind::Go`] it waits without limit, because then the other one may
//! have begun; what is left for that one to do is to say so.

use super::channel::{Channel, Kind};
use super::clients::Clients;
use super::service::SERVICE_VARIABLES;
use crate::backing::Backing;
use anyhow::{Context, Result, bail, ensure};
use espalier_engine::Store;
use espalier_fuse::transport::leave_serving;
use espalier_fuse::{Mount, PausedMount};
use espalier_storage::GatedDevice;
use espalier_sync::Mutex;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// What the name of the command begins with; the name of a socket follows.
pub(super) const REPLACE: &str = "replace.";

/// The version of all that is handed over. With every change of what the bytes mean it counts up.
pub(super) const STATE_VERSION: u64 = 3;

/// How long the other server may take for its first answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long it may take to get ready, while callers wait.
const READY_LIMIT: Duration = Duration::from_secs(10);
/// How long requests under way may take.
const PAUSE_LIMIT: Duration = Duration::from_secs(3);
/// A checkpoint that took longer is followed by another one, so that the other server finds a
/// short log.
const SHORT_CHECKPOINT: Duration = Duration::from_millis(100);
const MAX_CHECKPOINTS: usize = 4;

/// Limits that a server passes on.
pub(super) const LIMITS: [(&str, Resource); 3] =
    [("open files", Resource::Nofile), ("locked memory", Resource::Memlock), ("nice", Resource::Nice)];
/// Where the kernel has how readily it ends this process for want of memory.
pub(super) const OOM_SCORE_PATH: &str = "/proc/self/oom_score_adj";

/// What a server hands over, beside the mount.
pub(super) struct Giver {
    backing: Backing,
    gate: Arc<GatedDevice>,
    store: Weak<Store>,
    /// Where metrics are to be had.
    listener: Option<OwnedFd>,
    /// Set when the mount is there.
    mount: OnceLock<(Weak<Mount>, Arc<Clients>)>,
    /// Held while it is handed over.
    giving: Mutex<()>,
}

impl Giver {
    pub(super) fn new(
        backing: &Backing,
        gate: &Arc<GatedDevice>,
        store: &Arc<Store>,
        listener: Option<OwnedFd>,
    ) -> Arc<Self> {
        Arc::new(Self {
            backing: backing.clone(),
            gate: Arc::clone(gate),
            store: Arc::downgrade(store),
            listener,
            mount: OnceLock::new(),
            giving: Mutex::new(()),
        })
    }

    /// The mount is there, and its clients.
    pub(super) fn attach(&self, mount: &Arc<Mount>, clients: &Arc<Clients>) {
        // There is one mount, so it is set once.
        let _ = self.mount.set((Arc::downgrade(mount), Arc::clone(clients)));
    }

    fn mount(&self) -> Option<Arc<Mount>> {
        self.mount.get().and_then(|(mount, _)| mount.upgrade())
    }

    /// What the server answers to [`REPLACE`]; `None` for other commands. The rest happens when the
    /// command has its answer.
    pub(super) fn answer(self: &Arc<Self>, command: &str) -> Option<String> {
        let name = command.strip_prefix(REPLACE)?.to_owned();
        let giver = Arc::clone(self);
        let body = move || {
            // It was started by the thread that served the command.
            leave_serving();
            if let Err(error) = giver.give(&name) {
                tracing::warn!("the mount is not handed over, and this server goes on: {error:#}");
            }
        };
        let refused = self.refusal().or_else(|| {
            let spawned = std::thread::Builder::new().name("replace".into()).spawn(body);
            spawned.err().map(|error| format!("no thread can be started: {error}"))
        });
        Some(match refused {
            Some(reason) => json!({ "error": reason }).to_string(),
            None => json!({ "replacing": true }).to_string(),
        })
    }

    /// Why the mount cannot be handed over at all.
    fn refusal(&self) -> Option<String> {
        let Backing::File(_) = self.backing else {
            return Some(
                "it lies in an object store, whose lease cannot be handed over; unmount and mount it".into(),
            );
        };
        None
    }

    fn give(&self, name: &str) -> Result<()> {
        // An attempt that has failed serves again a moment before it has ended.
        let _giving = self.giving.lock();
        let ended = || anyhow::anyhow!("it has ended");
        let (_, clients) = self.mount.get().with_context(ended)?;
        let mount = self.mount().with_context(ended)?;
        let store = self.store.upgrade().with_context(ended)?;
        let socket = UnixStream::connect_addr(&SocketAddr::from_abstract_name(name)?)
            .context("the command that asked for it cannot be reached")?;
        let mut channel = Channel::new(socket);
        let (user, process) = channel.peer()?;
        ensure!(user == rustix::process::geteuid().as_raw(), "user {user} asked for it");
        channel.send(Kind::Offer, offer().to_string().as_bytes(), &[])?;
        channel.expect(Kind::Accept, Some(ANSWER_LIMIT)).context("the other server")?;
        let given = checkpoint(&store).and_then(|()| {
            // While requests are served: a client's call may wait for the kernel.
            clients.stop();
            self.pause_and_give(&mut channel, &mount, &store)
        });
        if let Err(error) = &given {
            clients.start(&mount);
            // It may be gone, or has been told.
            let _ = channel.send(Kind::Failed, format!("{error:#}").as_bytes(), &[]);
        }
        let pause = given?;
        tell_service(process);
        tracing::info!(process, pause_ms = pause.as_millis(), "another server goes on; this one ends");
        // Nothing is closed, given back or written: it is all the other one's now.
        std::process::exit(0);
    }

    /// Pauses the mount and hands it over. When this returns without an error the mount is the
    /// other server's, and still paused here; the result is how long callers waited.
    fn pause_and_give(&self, channel: &mut Channel, mount: &Mount, store: &Store) -> Result<Duration> {
        let begun = Instant::now();
        let paused = mount.pause(PAUSE_LIMIT).context("it cannot pause")?;
        let handover = paused.hand_over()?;
        // The other server may not write, and so not end a checkpoint that is half written.
        let still = store.pause_checkpoints(PAUSE_LIMIT).context("a checkpoint takes long")?;
        self.gate.close();
        let given = self.give_paused(channel, &paused, &handover.encode());
        if let Err(error) = &given {
            // Before anything is served again: if this one died afterwards without a word, the
            // other one would go on with an old state.
            let _ = channel.send(Kind::Failed, format!("{error:#}").as_bytes(), &[]);
            self.gate.open();
            return given.map(|()| begun.elapsed());
        }
        // For good: this process ends.
        std::mem::forget(still);
        paused.leave();
        Ok(begun.elapsed())
    }

    fn give_paused(&self, channel: &mut Channel, paused: &PausedMount<'_>, state: &[u8]) -> Result<()> {
        let Backing::File(device) = &self.backing else { bail!("it lies in an object store") };
        let (memory, rings) = (sealed(state)?, paused.ring_descriptors()?);
        let described = json!({
            "bytes": state.len(),
            "checksum": format!("{:016x}", xxhash_rust::xxh3::xxh3_64(state)),
            "rings": rings.is_some(),
        });
        let mut descriptors = vec![paused.descriptor(), device.as_fd(), memory.as_fd()];
        descriptors.extend(rings.iter().flatten().map(|descriptor| descriptor.as_fd()));
        descriptors.extend(self.listener.as_ref().map(|listener| listener.as_fd()));
        channel.send(Kind::State, described.to_string().as_bytes(), &descriptors)?;
        channel.expect(Kind::Ready, Some(READY_LIMIT)).context("the other server")?;
        channel.send(Kind::Go, &[], &[])?;
        channel.expect(Kind::Taken, None).context("the other server has died")?;
        Ok(())
    }
}

/// What the other server has to know before it accepts.
fn offer() -> serde_json::Value {
    let variables = SERVICE_VARIABLES.iter().filter_map(|name| Some((*name, std::env::var(name).ok()?)));
    json!({
        "state": STATE_VERSION,
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "environment": variables.collect::<std::collections::BTreeMap<_, _>>(),
        "limits": limits(),
    })
}

/// The limits that the kernel sets this process.
fn limits() -> serde_json::Value {
    let mut limits = serde_json::Map::new();
    for (name, resource) in LIMITS {
        let limit = getrlimit(resource);
        limits.insert(name.into(), json!({ "current": limit.current, "maximum": limit.maximum }));
    }
    let score = std::fs::read_to_string(OOM_SCORE_PATH).ok();
    let score = score.and_then(|text| text.trim().parse::<i64>().ok());
    limits.insert("oom_score_adj".into(), json!(score));
    limits.into()
}

/// Makes the log short while requests are served.
fn checkpoint(store: &Store) -> Result<()> {
    for _ in 0..MAX_CHECKPOINTS {
        let begun = Instant::now();
        match store.checkpoint() {
            Err(error) if error.kind() == espalier_engine::ErrorKind::ReadOnly => return Ok(()),
            made => made.context("the checkpoint before the handover")?,
        }
        if begun.elapsed() < SHORT_CHECKPOINT {
            break;
        }
    }
    Ok(())
}

/// Memory with these bytes, which cannot change any more.
fn sealed(bytes: &[u8]) -> Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("espalier-handover", flags)?);
    file.write_all(bytes).context("no memory for what is handed over")?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK)?;
    Ok(file)
}

/// Tells systemd which process the service is from now on.
fn tell_service(process: i32) {
    let Ok(process) = u32::try_from(process) else { return };
    if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::MainPid(process)]) {
        tracing::debug!(%error, "systemd does not hear of the other server");
    }
}
