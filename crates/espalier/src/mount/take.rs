//! A server takes a mount over from the one that has it (`espalier mount --replace`).
//!
//! It asks that one by a command, gets its descriptors and what it knows, opens the store over the
//! image that the other one still has open, and makes everything ready. All that it wants to write
//! meanwhile waits. Whatever fails before [`Taking::take`] ends this process, and the other server
//! goes on ([`give`](super::give)).

use super::channel::{Channel, Kind, Message};
use super::give::{LIMITS, OOM_SCORE_PATH, REPLACE, STATE_VERSION};
use super::options::Settings;
use super::plan::Plan;
use super::service::SERVICE_VARIABLES;
use crate::info;
use crate::ui::say;
use anyhow::{Context, Result, bail, ensure};
use espalier_fuse::{COMMAND_XATTR, Handover};
use espalier_storage::{FileDevice, GatedDevice};
use rustix::process::{PidfdFlags, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest answer to the command, in bytes.
const MAX_ANSWER_BYTES: usize = 4096;
/// How long the other server may take to answer, with a checkpoint in between.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
/// How long a server whose end of the channel is closed may take to be gone.
const DEATH_LIMIT: Duration = Duration::from_secs(1);
/// How long requests that were made for the handover may take to be answered.
const IN_USE_LIMIT: Duration = Duration::from_secs(5);
/// How long it may take to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// The plan of a server that goes on with the mount at `dir`: that of the server which has it.
///
/// # Errors
/// There is no such mount, or this user may not ask its server.
pub(super) fn plan(dir: &Path) -> Result<Plan> {
    let mount = info::mount_around(dir)?;
    let described = info::ask_server(&mount.dir)?;
    let words = described["mount"]["options"].as_str().unwrap_or_default().to_owned();
    let settings = Settings::new(&[words], None)
        .with_context(|| format!("the server of {} runs with other options", mount.dir.display()))?;
    // There may be further places where it appears.
    let dir = described["mount"]["directory"].as_str().map_or(mount.dir, PathBuf::from);
    Ok(Plan { source: mount.source, dir, take_over: false, settings })
}

/// A mount that another server has paused and described.
pub(super) struct Taking {
    channel: Channel,
    /// The process of the other server, where it can be seen.
    other: Option<OwnedFd>,
    /// What the other server knows.
    pub(super) handover: Handover,
    /// The connection to the kernel.
    pub(super) connection: OwnedFd,
    /// The memory of the rings, and what is at its end when the mount is not in use by the handover
    /// any more.
    pub(super) rings: Option<(OwnedFd, OwnedFd)>,
    /// The image.
    pub(super) image: OwnedFd,
    /// Where metrics are to be had.
    pub(super) listener: Option<OwnedFd>,
    /// When callers began to wait.
    begun: Instant,
}

impl Taking {
    /// Asks the server that has the mount of `plan`, and returns when that has paused.
    ///
    /// # Errors
    /// The other server refuses or does not answer, or hands over what this one does not
    /// understand. It goes on then.
    pub(super) fn ask(plan: &Plan) -> Result<Self> {
        let shown = plan.dir.display();
        let mut random = [0; 16];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = format!("espalier-{:032x}", u128::from_ne_bytes(random));
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?;
        let command = format!("{COMMAND_XATTR}{REPLACE}{name}");
        let answer = info::ask_for(&plan.dir, &command, MAX_ANSWER_BYTES, "replace its server");
        let answer = answer.with_context(|| format!("the server of {shown} cannot be replaced"))?;
        if let Some(error) = answer["error"].as_str() {
            bail!("{shown}: {error}");
        }
        let mut channel = accept(&listener)?;
        let (user, process) = channel.peer()?;
        ensure!(
            user == rustix::process::geteuid().as_raw(),
            "{shown} is served by user {user}; become that user"
        );
        let offer = channel.expect(Kind::Offer, Some(ANSWER_LIMIT))?;
        let offer: Value = serde_json::from_slice(&offer.bytes)?;
        if offer["state"].as_u64() != Some(STATE_VERSION) {
            let message = format!(
                "version {} hands over state {}, version {} understands state {STATE_VERSION}; unmount {shown} and mount it",
                offer["version"].as_str().unwrap_or("?"),
                offer["state"],
                env!("CARGO_PKG_VERSION"),
            );
            channel.send(Kind::Failed, message.as_bytes(), &[])?;
            bail!(message);
        }
        become_service(&offer);
        take_limits(&offer["limits"]);
        // Before the other server can send its state, so that the number is still its own.
        let other = rustix::process::Pid::from_raw(process)
            .and_then(|process| rustix::process::pidfd_open(process, PidfdFlags::empty()).ok());
        channel.send(Kind::Accept, &[], &[])?;
        let state = channel.expect(Kind::State, Some(ANSWER_LIMIT)).context("the other server")?;
        Self::from_state(channel, other, state)
    }

    fn from_state(channel: Channel, other: Option<OwnedFd>, state: Message) -> Result<Self> {
        let begun = Instant::now();
        let described: Value = serde_json::from_slice(&state.bytes)?;
        let mut descriptors = state.descriptors.into_iter();
        let mut next = || descriptors.next().context("a descriptor is missing");
        let (connection, image, memory) = (next()?, next()?, next()?);
        let rings = if described["rings"] == true { Some((next()?, next()?)) } else { None };
        let bytes = read_state(memory, &described)?;
        let handover = Handover::decode(&bytes).context("what was handed over cannot be understood")?;
        let listener = descriptors.next();
        Ok(Self { channel, other, handover, connection, rings, image, listener, begun })
    }

    /// Everything is ready: takes the mount. When this returns it is this server's, and `gate` is
    /// open. If the other server dies meanwhile that does not matter: its state is complete and all
    /// of it durable, no request is in its hands, and a dead process changes nothing.
    ///
    /// # Errors
    /// The other server goes on.
    pub(super) fn take(mut self, gate: &GatedDevice) -> Result<Taken> {
        let sent = self.channel.send(Kind::Ready, &[], &[]);
        let agreed = match sent.and_then(|()| self.channel.receive(Some(ANSWER_LIMIT))) {
            Ok(Message { kind: Kind::Go, .. }) => self.channel.send(Kind::Taken, &[], &[]),
            Ok(other) => bail!("the other server goes on: {}", String::from_utf8_lossy(&other.bytes)),
            Err(error) => Err(error),
        };
        if let Err(error) = agreed {
            if !is_left_alone(&mut self.channel, self.other.as_ref()) {
                return Err(error.context("the other server goes on"));
            }
            tracing::warn!("the other server has died while it handed its mount over; this one goes on");
        }
        gate.open();
        Ok(Taken { begun: self.begun, in_use: self.rings.take().map(|(_, in_use)| in_use) })
    }

    /// Why this server cannot go on, for the log of the other one.
    pub(super) fn give_up(mut self, why: &str) {
        // It may be gone.
        let _ = self.channel.send(Kind::Failed, why.as_bytes(), &[]);
    }
}

/// A mount that was taken.
pub(super) struct Taken {
    begun: Instant,
    /// At its end when the mount is not in use by the handover any more.
    in_use: Option<OwnedFd>,
}

impl Taken {
    /// Says what has happened. The mount is served already, and can be unmounted afterwards.
    pub(super) fn say(&self, plan: &Plan) {
        let took = self.begun.elapsed();
        if let Some(in_use) = &self.in_use
            && !is_readable(in_use, IN_USE_LIMIT).unwrap_or(true)
        {
            tracing::warn!("a process that made requests for the handover has not ended");
        }
        let dir = plan.dir.display();
        let (version, process) = (env!("CARGO_PKG_VERSION"), std::process::id());
        say!(
            "{dir} is served by version {version}, process {process}; taken over in {} ms",
            took.as_millis()
        );
    }
}

/// The image that another server passed on as `file`.
pub(super) fn image(file: OwnedFd, plan: &Plan) -> Result<FileDevice> {
    FileDevice::from_descriptor(file, &plan.source)
        .with_context(|| format!("{} cannot be taken over", plan.source.display()))
}

/// True if the other server has died and had not gone on, which it says before it does.
fn is_left_alone(channel: &mut Channel, other: Option<&OwnedFd>) -> bool {
    if !other.is_some_and(has_died) {
        return false;
    }
    // All that it ever said is in the channel now.
    while let Ok(message) = channel.receive(Some(DEATH_LIMIT)) {
        if message.kind == Kind::Failed {
            return false;
        }
    }
    true
}

/// True if a process has ended with all its threads, or does within [`DEATH_LIMIT`].
fn has_died(process: &OwnedFd) -> bool {
    is_readable(process, DEATH_LIMIT).unwrap_or(false)
}

fn is_readable(file: &impl AsFd, limit: Duration) -> Result<bool> {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let limit = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: 0 };
    Ok(poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&limit))? > 0)
}

fn accept(listener: &UnixListener) -> Result<Channel> {
    ensure!(is_readable(listener, CONNECT_LIMIT)?, "the other server does not answer; its log may say why");
    Ok(Channel::new(listener.accept()?.0))
}

/// The bytes of what was handed over, if they are what was described.
fn read_state(memory: OwnedFd, described: &Value) -> Result<Vec<u8>> {
    use std::io::Seek;
    let mut file = File::from(memory);
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    let checksum = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(&bytes));
    let is_whole = described["bytes"] == bytes.len() && described["checksum"] == checksum.as_str();
    ensure!(is_whole, "what was handed over is damaged");
    Ok(bytes)
}

/// If the other server is a service of systemd, this one becomes it, as far as it may.
fn become_service(offer: &Value) {
    let environment = &offer["environment"];
    for name in SERVICE_VARIABLES {
        if let Some(value) = environment[name].as_str() {
            // SAFETY: the process has one thread: no thread reads the environment meanwhile.
            unsafe { std::env::set_var(name, value) };
        }
    }
    let group =
        offer["pid"].as_u64().and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok());
    let group = group.as_deref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("0::")));
    if let Some(group) = group.filter(|_| environment["NOTIFY_SOCKET"].is_string()) {
        let list = format!("/sys/fs/cgroup{group}/cgroup.procs");
        if let Err(error) = std::fs::write(&list, std::process::id().to_string()) {
            tracing::warn!(%error, list, "this server does not get the control group of the other one");
        }
    }
}

/// Takes the limits of the other server, as far as this one may: whatever gave them to that one,
/// its unit for one, did not start this one.
fn take_limits(limits: &Value) {
    let raised = |what: &str, error: &dyn std::fmt::Display| {
        tracing::warn!(%error, "this server does not get the other one's {what}");
    };
    if let Some(score) = limits["oom_score_adj"].as_i64() {
        let file = OOM_SCORE_PATH;
        let own = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<i64>().ok());
        if own != Some(score)
            && let Err(error) = std::fs::write(file, score.to_string())
        {
            raised("oom_score_adj", &error);
        }
    }
    for (name, resource) in LIMITS {
        // No number stands for no limit.
        let of = |end: &str| limits[name][end].as_u64();
        let limit = Rlimit { current: of("current"), maximum: of("maximum") };
        if limits[name].is_object()
            && limit != getrlimit(resource)
            && let Err(error) = setrlimit(resource, limit)
        {
            raised(name, &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Write;

    #[test]
    fn a_server_goes_on_in_place_of_a_dead_one_that_had_not_gone_on() -> Result<()> {
        let channels = |said: &[Kind]| -> Result<Channel> {
            let (one, other) = std::os::unix::net::UnixStream::pair()?;
            let mut one = Channel::new(one);
            said.iter().try_for_each(|kind| one.send(*kind, b"", &[]))?;
            Ok(Channel::new(other))
        };
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn()?;
        let process = rustix::process::Pid::from_child(&child);
        let process = rustix::process::pidfd_open(process, PidfdFlags::empty())?;
        assert!(!is_left_alone(&mut channels(&[])?, Some(&process)));
        child.kill()?;
        for _reaped in [false, true] {
            assert!(is_left_alone(&mut channels(&[])?, Some(&process)));
            assert!(is_left_alone(&mut channels(&[Kind::Go])?, Some(&process)));
            assert!(!is_left_alone(&mut channels(&[Kind::Failed])?, Some(&process)));
            assert!(!is_left_alone(&mut channels(&[Kind::Go, Kind::Failed])?, Some(&process)));
            assert!(!is_left_alone(&mut channels(&[])?, None));
            child.wait()?;
        }
        Ok(())
    }

    #[test]
    fn damaged_state_is_refused() -> Result<()> {
        let memory = |bytes: &[u8]| -> Result<OwnedFd> {
            let file = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC)?;
            let mut file = File::from(file);
            file.write_all(bytes)?;
            Ok(file.into())
        };
        let checksum = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(b"state"));
        let described = json!({ "bytes": 5, "checksum": checksum });
        assert_eq!(read_state(memory(b"state")?, &described)?, b"state");
        assert!(read_state(memory(b"State")?, &described).is_err());
        assert!(read_state(memory(b"state.")?, &described).is_err());
        assert!(read_state(memory(b"state")?, &json!({ "bytes": 5 })).is_err());
        Ok(())
    }
}
