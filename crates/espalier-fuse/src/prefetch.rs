//! Gives the kernel the content of files before it asks for it.
//!
//! Who goes through a tree and reads every file waits for a request for each: two switches between processes, and the copying between them,
//! while other CPUs have nothing to do. But what he will read next is known once he has listed a directory and
//! read its first files in order (`trail`). So a thread of its own reads them and stores them in the kernel's pages
//! (`FUSE_NOTIFY_STORE`), where he finds them and asks for nothing.
//!
//! The kernel stores without looking: whatever is in those pages is overwritten, even if somebody changed it a moment ago and we have not been
//! told. So the invariant is that *nothing is stored in a page in which anything else can have been*:
//!
//! 1. Stored is only what belongs to an *untouched* file: the kernel learned of it by a listing and has asked for nothing of it since
//!    ([`Prefetch::before`] hears of each request before it is served). So it has none of its pages, and nobody has written any.
//! 2. It is stored once, from the first byte to the last; from the beginning of that on the file is not untouched any more.
//! 3. Who asks for something of a file that is being stored *revokes* it first: when his request is served, no further page is stored,
//!    and the one under way is locked until it is there. Storing may wait meanwhile for a page that is locked for his
//!    own request, so nobody waits for it: the memory out of which the kernel copies is taken from it (`staging`).
//!
//! That everybody asks before he changes pages is the kernel's way: `write` wants to know whether the file has capabilities
//! (`security.capability`), by whoever and whenever it is first called; a mapping reads a page first; truncating, punching and copying are requests of their own.
//! With `-o noxattr` the kernel does not ask, with `-o writeback` it keeps what was changed to itself: then nothing is stored. And if a write
//! should come that nobody has asked for, there is no more of it on this mount.

mod staging;
mod trail;

use crate::protocol::Operation;
use crate::protocol::notify;
use crate::transport::{Beside, Device};
use espalier_fs::{FileSystem, NodeId};
use parking_lot::{Condvar, Mutex};
use staging::{Gate, Staging};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
pub(crate) use trail::File;
use trail::{LARGEST, Trail};

/// Stores files in the kernel's pages before they are read.
pub(crate) struct Prefetch {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What files are read from, into memory; `None` once that is not to be trusted.
type Read<'a> = dyn Fn(u64, &mut [u8]) -> Option<usize> + 'a;

struct Shared {
    table: Mutex<Table>,
    /// Files are wanted, or it is over.
    changed: Condvar,
    /// Some file is untouched or being stored: requests matter.
    watching: AtomicBool,
    gate: Gate,
    stored: Arc<AtomicU64>,
}

#[derive(Default)]
struct Table {
    trail: Trail,
    /// What is being stored.
    flight: Option<Flight>,
    sleeping: bool,
    stopped: bool,
}

struct Flight {
    node: u64,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Into the staging memory.
    Reading,
    /// The kernel copies, or is about to.
    Storing,
    /// Somebody asked for something of the file.
    Revoked,
    /// The same, and the gate was closed for it.
    Closed,
}

impl Prefetch {
    /// For what `fs` has, told to `device`. `stored` counts files.
    ///
    /// # Errors
    /// No memory, no thread.
    pub(crate) fn start(
        fs: Arc<FileSystem>,
        device: Device,
        beside: Beside,
        stored: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (staging, gate) = Staging::new(LARGEST as usize)?;
        let shared = Arc::new(Shared::new(gate, stored));
        let of_thread = Arc::clone(&shared);
        let body = move || {
            let _apart = beside.keep_off();
            let read = |node, out: &mut [u8]| {
                // Who really reads the file meets its errors.
                beside.call(|| fs.read(NodeId(node), 0, out).unwrap_or_default())
            };
            of_thread.run(staging, &device, &read);
        };
        let thread = std::thread::Builder::new().name("fuse-prefetch".into()).spawn(body)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The kernel is about to be told of `files`, none of which it knew, by one listing.
    pub(crate) fn listed(&self, files: Vec<File>) {
        if !files.is_empty() {
            self.shared.listed(files);
        }
    }

    /// A request is about to be served.
    ///
    /// # Errors
    /// Something that is being stored could not be revoked: the request must not be served.
    pub(crate) fn before(&self, node: u64, operation: &Operation<'_>) -> io::Result<()> {
        let shared = &self.shared;
        if !shared.watching.load(Ordering::Acquire) {
            return Ok(());
        }
        match operation {
            // What nobody needs who changes content.
            Operation::Lookup { .. }
            | Operation::GetAttributes
            | Operation::Statx { .. }
            | Operation::ReadDirectory { .. }
            | Operation::Unlink { .. } => Ok(()),
            Operation::GetXattr { name, .. } if !name.starts_with(b"security.") => Ok(()),
            Operation::Read { .. } => shared.asked(node, Asked::Read),
            Operation::Write { from_cache: false, .. } => shared.asked(node, Asked::Write),
            Operation::CopyRange { target, .. } => {
                shared.asked(node, Asked::Else)?;
                shared.asked(*target, Asked::Else)
            }
            _ => shared.asked(node, Asked::Else),
        }
    }

    /// Ends it: nothing is read from the file system any more when this returns.
    pub(crate) fn stop(&self) {
        self.shared.table.lock().stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A panic there has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

/// What is asked of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Read,
    Write,
    Else,
}

impl Shared {
    fn new(gate: Gate, stored: Arc<AtomicU64>) -> Self {
        let (table, changed, watching) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        Self { table, changed, watching, gate, stored }
    }

    fn listed(&self, files: Vec<File>) {
        let mut table = self.table.lock();
        if !table.stopped {
            table.trail.listed(files);
            self.note(&table);
        }
    }

    fn asked(&self, node: u64, what: Asked) -> io::Result<()> {
        let mut table = self.table.lock();
        let revoked = self.revoke(&mut table, node)?;
        let wanted = match what {
            Asked::Read => table.trail.read(node),
            // Nobody has asked before: this kernel has another way.
            Asked::Write if table.trail.touch(node) || revoked => {
                tracing::warn!(
                    "this kernel does not ask before it writes: nothing is read before it is asked for"
                );
                table.stopped = true;
                true
            }
            _ => {
                table.trail.touch(node);
                false
            }
        };
        self.note(&table);
        if wanted && std::mem::take(&mut table.sleeping) {
            drop(table);
            self.changed.notify_all();
        }
        Ok(())
    }

    /// When this returns nothing more is stored of `node`; true if something would have been.
    fn revoke(&self, table: &mut Table, node: u64) -> io::Result<bool> {
        let Some(flight) = table.flight.as_mut().filter(|flight| flight.node == node) else {
            return Ok(false);
        };
        match flight.stage {
            Stage::Reading => flight.stage = Stage::Revoked,
            Stage::Storing => {
                self.gate.close().inspect_err(|error| {
                    tracing::error!(%error, "what is being given to the kernel cannot be taken back");
                })?;
                flight.stage = Stage::Closed;
            }
            Stage::Revoked | Stage::Closed => return Ok(false),
        }
        Ok(true)
    }

    fn note(&self, table: &Table) {
        let matters = table.flight.is_some() || table.trail.untouched() > 0;
        self.watching.store(matters, Ordering::Release);
    }

    /// Stores what is wanted until it is over.
    fn run(&self, mut staging: Staging, device: &Device, read: &Read<'_>) {
        let mut table = self.table.lock();
        while !table.stopped {
            let Some(file) = table.trail.next() else {
                table.sleeping = true;
                self.changed.wait(&mut table);
                continue;
            };
            table.flight = Some(Flight { node: file.node, stage: Stage::Reading });
            drop(table);
            let usable = self.store(&mut staging, device, read, file);
            table = self.table.lock();
            let closed = table.flight.take().is_some_and(|flight| flight.stage == Stage::Closed);
            let opened = if closed { self.gate.open() } else { Ok(()) };
            if let Err(error) = &opened {
                tracing::error!(%error, "nothing is read any more before it is asked for");
            }
            table.stopped |= !usable || opened.is_err();
            self.note(&table);
        }
        table.trail = Trail::default();
        self.note(&table);
    }

    /// Stores a file unless that is revoked; false if there should be no more of it.
    fn store(&self, staging: &mut Staging, device: &Device, read: &Read<'_>, file: File) -> bool {
        let length = file.size.min(staging.len() as u64) as usize;
        let Some(found) = read(file.node, &mut staging.bytes()[..length]) else { return false };
        if found as u64 != file.size || !self.advance() {
            return true;
        }
        match staging.send(device, &notify::store(file.node, 0, length as u32), length) {
            Ok(true) => drop(self.stored.fetch_add(1, Ordering::Relaxed)),
            // The kernel does not have the file any more, or revoked is what was under way.
            Ok(false) => {}
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {}
            // No memory for pages, or an end.
            Err(error) => {
                tracing::debug!(%error, "the kernel does not take the content of files");
                return error.raw_os_error() == Some(libc::ENOMEM);
            }
        }
        true
    }

    /// What was read is about to be stored; false if that is revoked.
    fn advance(&self) -> bool {
        let mut table = self.table.lock();
        let flight = table.flight.as_mut().filter(|flight| flight.stage == Stage::Reading);
        flight.map(|flight| flight.stage = Stage::Storing).is_some()
    }
}

#[cfg(test)]
mod tests;
