//! Handing a mount over to another server: the pause, what is handed over, and going on with it.
//!
//! The server that has the mount pauses it (`Mount::pause`): nothing is served any more, and
//! nothing is on its way to the kernel. What it knows goes to the other one as bytes
//! ([`PausedMount::hand_over`]), with a descriptor of the connection. That server gets everything
//! ready (`Mount::take_over`) and begins to serve when it is told to (`Mount::begin`). If it is
//! never told, nothing has happened: the first goes on when its pause is dropped.
//!
//! Over io_uring the answers of the last requests are not sent, but handed over with the rings: see
//! docs/design/handover.md. To have every ring full a process of our own makes requests.
//!
//! Notifications: while the kernel handles one it may wait for requests to be served. So a pause
//! counts only if none is on its way at its end; otherwise requests are served again, and it is
//! tried anew.

use super::kernel::{DeviceNumber, Watcher};
use crate::dispatch::Dispatcher;
use crate::notifier::Notifier;
use crate::prefetch::Prefetch;
use crate::protocol::Dialect;
use crate::protocol::notify::Notification;
use crate::transport::{Filler, HandedEntry, HandedRings, Kind, RequestMaker, Serving, Terms};
use espalier_fs::{FileSystem, FsError, FsErrorKind, NodeId, WireReader, WireWriter};
use espalier_sync::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long one attempt to pause may take: so long requests wait in vain if it fails.
const ATTEMPT_LIMIT: Duration = Duration::from_millis(300);
/// The same over io_uring, where every entry of every ring has to get a request.
const RINGS_ATTEMPT_LIMIT: Duration = Duration::from_secs(1);

/// What a mount that another server takes over consists of, beside the options and the file system.
#[derive(Debug)]
pub struct HandedMount {
    /// What was agreed on with the kernel.
    pub terms: Terms,
    /// The rings, over io_uring.
    pub rings: Option<HandedRings>,
    /// The mount is a `fuseblk`.
    pub block: bool,
    /// What the dispatcher needs.
    pub dispatcher: Vec<u8>,
}

/// What is handed over.
#[derive(Debug)]
pub struct Handover {
    /// The mount.
    pub mount: HandedMount,
    /// The file system, for [`FileSystem::open_handed_over`].
    pub file_system: Vec<u8>,
}

impl Handover {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = WireWriter::default();
        let HandedMount { terms, rings, block, dispatcher } = &self.mount;
        out.u32(terms.dialect.minor);
        out.u64(terms.dialect.flags);
        out.u64(terms.payload_bytes as u64);
        out.bool(rings.is_some());
        if let Some(rings) = rings {
            encode_rings(rings, &mut out);
        }
        out.bool(*block);
        out.bytes(dispatcher);
        out.bytes(&self.file_system);
        out.finish()
    }

    /// From the bytes of [`Handover::encode`].
    ///
    /// # Errors
    /// Bytes that cannot be understood.
    pub fn decode(bytes: &[u8]) -> Result<Self, FsError> {
        let mut state = WireReader::new(bytes);
        let dialect = Dialect { minor: state.u32()?, flags: state.u64()? };
        let terms = Terms { dialect, payload_bytes: state.u64()? as usize };
        let rings = if state.bool()? { Some(decode_rings(&mut state)?) } else { None };
        let (block, dispatcher) = (state.bool()?, state.bytes()?.to_vec());
        let file_system = state.bytes()?.to_vec();
        state.finish()?;
        Ok(Self { mount: HandedMount { terms, rings, block, dispatcher }, file_system })
    }
}

fn encode_rings(rings: &HandedRings, out: &mut WireWriter) {
    out.u64(rings.base);
    out.len(rings.entries.len());
    for HandedEntry { cpu, commit_id } in &rings.entries {
        out.u32(*cpu as u32);
        out.bool(commit_id.is_some());
        out.u64(commit_id.unwrap_or(0));
    }
}

fn decode_rings(state: &mut WireReader<'_>) -> Result<HandedRings, FsError> {
    let (base, count) = (state.u64()?, state.len(13)?);
    let entry = |_| {
        let (cpu, is_held, id) = (state.u32()? as usize, state.bool()?, state.u64()?);
        if cpu > usize::from(u16::MAX) {
            return Err(FsError::new(FsErrorKind::Invalid, format!("there is no CPU {cpu}")));
        }
        Ok(HandedEntry { cpu, commit_id: is_held.then_some(id) })
    };
    Ok(HandedRings { base, entries: (0..count).map(entry).collect::<Result<_, FsError>>()? })
}

/// How a [`Filler`] is started, the process that has every entry of every ring get a request.
pub(super) struct FillerStarter<'a> {
    pub(super) maker: Option<RequestMaker>,
    pub(super) point: &'a Path,
    /// That of the mount, if it is known.
    pub(super) device: Option<DeviceNumber>,
}

impl FillerStarter<'_> {
    /// Starts the process, if the directory shows this mount: it is to make requests of no other.
    fn start(&self) -> io::Result<Filler> {
        let other = |message| io::Error::new(io::ErrorKind::Unsupported, message);
        let maker = self.maker.ok_or_else(|| other("this program cannot pause a mount over io_uring"))?;
        // The root, and not what may be mounted over it.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(self.point, flags, Mode::empty())?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&root, "", flags, StatxFlags::INO)?;
        let found = DeviceNumber { major: found.stx_dev_major, minor: found.stx_dev_minor };
        match self.device {
            Some(device) if device == found => {}
            Some(_) => return Err(other("its directory shows another file system")),
            None => return Err(other("the table of mounts did not show it when it was made")),
        }
        Filler::start(maker, root)
    }
}

/// The file system behind a mount.
pub(super) struct Served {
    pub(super) fs: Arc<FileSystem>,
    pub(super) dispatcher: Arc<Dispatcher>,
}

/// A mount of which no request is served, until this is dropped.
pub struct PausedMount<'a> {
    pub(super) serving: &'a Serving,
    pub(super) notifier: &'a Notifier,
    pub(super) prefetch: Option<&'a Prefetch>,
    pub(super) served: &'a Served,
    pub(super) watcher: &'a Mutex<Option<Watcher>>,
    pub(super) filler: FillerStarter<'a>,
    pub(super) block: bool,
    /// Keeps the file system from being called every few seconds.
    pub(super) _no_tick: Option<MutexGuard<'a, ()>>,
}

/// Has the threads of `serving` go on after a pause.
pub(super) fn resume(serving: &Serving, notifier: &Notifier) {
    serving.resume();
    if serving.kind() == Kind::Uring {
        // The answers that filled the rings say what the attributes of the root were when they were
        // made. They may reach the kernel after answers to newer changes, and it would keep them.
        notifier.notify([Notification::Inode { node: NodeId::ROOT.0, data: None }]);
    }
}

impl PausedMount<'_> {
    /// Returns when no request is being served, and nothing is on its way to the kernel.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if that takes longer than `limit`; of the transport.
    pub(super) fn settle(self, limit: Duration) -> io::Result<Self> {
        if let Some(prefetch) = self.prefetch {
            prefetch.pause();
        }
        let deadline = Instant::now() + limit;
        let over_rings = self.serving.kind() == Kind::Uring;
        let attempt = if over_rings { RINGS_ATTEMPT_LIMIT } else { ATTEMPT_LIMIT };
        loop {
            // While requests are served: to start a process takes longer than all the rest.
            let filler = over_rings.then(|| self.filler.start()).transpose()?;
            let rest = deadline.saturating_duration_since(Instant::now());
            if !self.notifier.wait_until_idle(rest) || rest.is_zero() {
                let message = "the kernel takes long to handle notifications";
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            match self.serving.pause(rest.min(attempt), filler) {
                Ok(()) if self.notifier.is_idle() => return Ok(self),
                Err(error) if error.kind() != io::ErrorKind::TimedOut || rest <= attempt => {
                    return Err(error);
                }
                Ok(()) | Err(_) => resume(self.serving, self.notifier),
            }
        }
    }

    /// Makes everything durable, and says what another server needs to go on.
    ///
    /// # Errors
    /// Of the file system.
    pub fn hand_over(&self) -> Result<Handover, FsError> {
        let mut dispatcher = WireWriter::default();
        self.served.dispatcher.hand_over(&mut dispatcher)?;
        let (terms, dispatcher) = (self.serving.terms(), dispatcher.finish());
        let failed = |error: io::Error| FsError::new(FsErrorKind::Io, error.to_string());
        let rings = self.serving.hand_over_rings().map_err(failed)?;
        let mount = HandedMount { terms, rings, block: self.block, dispatcher };
        Ok(Handover { mount, file_system: self.served.fs.hand_over()? })
    }

    /// The descriptor of the connection to the kernel.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.serving.descriptor()
    }

    /// Descriptors of the rings, over io_uring: their memory, and what is at its end when the mount
    /// is not in use by the pause any more.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn ring_descriptors(&self) -> io::Result<Option<[OwnedFd; 2]>> {
        self.serving.ring_descriptors()
    }

    /// Another server has taken over, and the end of this process says nothing about the mount. It
    /// stays paused.
    pub fn leave(self) {
        *self.watcher.lock() = None;
        std::mem::forget(self);
    }
}

impl Drop for PausedMount<'_> {
    fn drop(&mut self) {
        resume(self.serving, self.notifier);
        if let Some(prefetch) = self.prefetch {
            prefetch.resume();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_over_comes_back_and_cut_bytes_are_refused() {
        let terms = Terms { dialect: Dialect { minor: 45, flags: 1 << 33 | 7 }, payload_bytes: 1 << 20 };
        let entries = [None, Some(7), Some(u64::MAX)].map(|commit_id| HandedEntry { cpu: 3, commit_id });
        let rings = Some(HandedRings { base: 1 << 45, entries: entries.to_vec() });
        let mount = HandedMount { terms, rings: rings.clone(), block: true, dispatcher: vec![1, 2, 3] };
        let bytes = Handover { mount, file_system: vec![4; 100] }.encode();
        let back = Handover::decode(&bytes).unwrap();
        assert_eq!(back.mount.rings, rings);
        assert_eq!((back.mount.terms, back.mount.block), (terms, true));
        assert_eq!((back.mount.dispatcher, back.file_system), (vec![1, 2, 3], vec![4; 100]));
        assert!((0..bytes.len()).all(|end| Handover::decode(&bytes[..end]).is_err()));
    }
}
