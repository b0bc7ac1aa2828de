//! Prefetch: stores the content of files in the kernel's pages before an application reads them.
//!
//! An application that goes through a tree and reads every file waits for a request for each: two
//! switches between processes, and the copying between them, while other CPUs have nothing to do.
//! But which files it will read next is known once it has listed a directory and read its first
//! files in order (`sequence_detector`). So the prefetch thread reads them and stores them in the
//! kernel's pages (`FUSE_NOTIFY_STORE`), where the reader finds them without a request.
//!
//! The kernel stores without a check: it overwrites whatever is in those pages, even if an
//! application changed it a moment ago and the server has not been told. So the invariant is that
//! *nothing is stored in a page that can have had any other content*:
//!
//! 1. Only the content of an *untouched* file is stored: the kernel learned of the file by a
//!    listing and has made no request for it since ([`Prefetch::before`] hears of each request
//!    before it is served). So the kernel has none of its pages, and no application has written
//!    any. Whether that listing was the first to name the file is checked after requests are
//!    watched ([`Prefetch::listed`]).
//! 2. A file is stored once, from the first byte on, in one piece or several. From the beginning of
//!    that it counts as *prefetched*, and is never begun again.
//! 3. A request for a file that is being stored *revokes* the store first: when the request is
//!    served, no further page is stored, and the page under way is locked until it is complete. The
//!    store may wait meanwhile for a page that is locked for the same request. So the request does
//!    not wait for the store: the memory from which the kernel copies is taken away
//!    (`page_buffer`).
//! 4. Only a request that changes the length waits for the end of the store, since a store makes a
//!    file at least as long, whether the data can be copied or not. That request locks no page, and
//!    there is another thread to serve those that do.
//!
//! A file that grows is no exception. Its last page is stored with zeros behind the end, and the
//! kernel raises the size to that end before it copies; but the end is the one of the listing,
//! which the kernel knows already, and a change of length waits (4). The append of an application
//! makes a request first, which revokes (3); the page that is locked then is complete before the
//! append can lock it, and the size grows after the append has put its data there. What is stored
//! is never read from the file after that.
//!
//! That a request comes before pages are changed is the behaviour of the kernel: the first `write`
//! to a file asks whether it has capabilities (`security.capability`); a mapping reads a page
//! first; truncating, punching and copying are requests of their own. With `-o noxattr` the kernel
//! does not ask, and with `-o writeback` it keeps changed data to itself: then nothing is stored. A
//! write without such a request before it (its caller may have been killed before the server heard
//! of it) ends prefetching for the mount. If the file has been prefetched, such a write fails,
//! because its data may have been overwritten.

mod page_buffer;
mod sequence_detector;

use crate::protocol::Operation;
use crate::protocol::notify;
use crate::transport::{BackgroundAccess, Device};
use espalier_fs::{FileSystem, NodeId};
use espalier_sync::{Condvar, Mutex};
use page_buffer::{Gate, PageBuffer};
pub(crate) use sequence_detector::File;
use sequence_detector::{FileState, MAX_PIECE_BYTES, Piece, SequenceDetector};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// The prefetch thread, and what requests tell it.
pub(crate) struct Prefetch {
    shared: Arc<PrefetchState>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// Reads a node from an offset on into memory; the result is the number of bytes, `None` once the
/// file system is not to be trusted.
type Read<'a> = dyn Fn(u64, u64, &mut [u8]) -> Option<usize> + 'a;

struct PrefetchState {
    table: Mutex<Table>,
    /// Files are wanted, or the thread has to stop.
    changed: Condvar,
    /// A store has ended.
    store_ended: Condvar,
    /// Requests have to be looked at: some file is untouched or prefetched.
    watching: AtomicBool,
    gate: Gate,
    /// Files stored so far.
    stored: Arc<AtomicU64>,
}

#[derive(Default)]
struct Table {
    detector: SequenceDetector,
    /// The store under way.
    active: Option<ActiveStore>,
    sleeping: bool,
    stopped: bool,
    /// Nothing is stored for now.
    paused: bool,
}

struct ActiveStore {
    node: u64,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Into the page buffer.
    Reading,
    /// The kernel copies the page buffer, or is about to.
    Storing,
    /// There was a request for the file.
    Revoked,
    /// There was one, and the gate was closed for it.
    Closed,
}

impl Prefetch {
    /// Starts to prefetch files of `fs` by notifications to `device`. `stored` counts files.
    ///
    /// # Errors
    /// No memory or no thread is left.
    pub(crate) fn start(
        fs: Arc<FileSystem>,
        device: Device,
        access: BackgroundAccess,
        stored: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (buffer, gate) = PageBuffer::new(MAX_PIECE_BYTES as usize)?;
        let shared = Arc::new(PrefetchState::new(gate, stored));
        let thread_state = Arc::clone(&shared);
        let body = move || {
            let _apart = access.keep_off_busy_cpus();
            let read = |node, offset, out: &mut [u8]| {
                // A real reader of the file meets its errors.
                access.call(|| fs.read(NodeId(node), offset, out).unwrap_or_default())
            };
            thread_state.run(buffer, &device, &read);
        };
        let thread = std::thread::Builder::new().name("fuse-prefetch".into()).spawn(body)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The kernel is about to be told of `files` by one listing; `is_first` says of a node whether
    /// that listing is the first to name it.
    pub(crate) fn listed(&self, files: Vec<File>, is_first: impl Fn(u64) -> bool) {
        if !files.is_empty() {
            self.shared.listed(files, is_first);
        }
    }

    /// A request is about to be served.
    ///
    /// # Errors
    /// The request must not be served: a store could not be revoked, or the data of the request may
    /// have been overwritten.
    pub(crate) fn before(&self, node: u64, operation: &Operation<'_>) -> io::Result<()> {
        let shared = &self.shared;
        if !shared.watching.load(Ordering::Acquire) {
            return Ok(());
        }
        match operation {
            // No change of content begins with these.
            Operation::Lookup { .. }
            | Operation::GetAttributes
            | Operation::Statx { .. }
            | Operation::ReadDirectory { .. }
            | Operation::Unlink { .. } => Ok(()),
            Operation::GetXattr { name, .. } if *name != b"security.capability" => Ok(()),
            // What is prefetched counts as read, which this program does not want.
            Operation::Read { no_atime: true, .. } => shared.on_access(node, Access::Other),
            Operation::Read { offset, size, .. } => {
                shared.on_access(node, Access::Read { end: offset.saturating_add(u64::from(*size)) })
            }
            Operation::Write { from_cache: false, .. } => shared.on_access(node, Access::Write),
            Operation::SetAttributes(set) if set.size.is_some() => shared.on_access(node, Access::Resize),
            Operation::CopyRange { target, .. } => {
                shared.on_access(node, Access::Other)?;
                shared.on_access(*target, Access::Other)
            }
            _ => shared.on_access(node, Access::Other),
        }
    }

    /// The data of a file was changed without a request. When this returns what was stored of it
    /// before is complete, and nothing is stored of it later.
    ///
    /// # Errors
    /// A store could not be revoked.
    pub(crate) fn changed(&self, node: u64) -> io::Result<()> {
        match self.shared.watching.load(Ordering::Acquire) {
            true => self.shared.on_access(node, Access::Resize),
            false => Ok(()),
        }
    }

    /// Pauses: when this returns nothing is being stored, nor read from the file system.
    pub(crate) fn pause(&self) {
        let mut table = self.shared.table.lock();
        table.paused = true;
        self.shared.store_ended.wait_while(&mut table, |table| table.active.is_some());
    }

    /// Goes on after [`Prefetch::pause`].
    pub(crate) fn resume(&self) {
        self.shared.table.lock().paused = false;
        self.shared.changed.notify_all();
    }

    /// Stops prefetching: when this returns nothing is read from the file system any more.
    pub(crate) fn stop(&self) {
        self.shared.table.lock().stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.lock().take() {
            // A panic there has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

/// What came of storing a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StoreOutcome {
    /// The kernel has the piece, or a part of it.
    Stored,
    NotStored,
    /// Nothing was stored, and nothing can be from now on.
    Refused,
}

/// What a request does to the content of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read {
        /// Where the read ends, bytes.
        end: u64,
    },
    Write,
    Resize,
    Other,
}

impl PrefetchState {
    fn new(gate: Gate, stored: Arc<AtomicU64>) -> Self {
        let (changed, store_ended) = (Condvar::new(), Condvar::new());
        Self { table: Mutex::default(), changed, store_ended, watching: AtomicBool::new(false), gate, stored }
    }

    fn listed(&self, files: Vec<File>, is_first: impl Fn(u64) -> bool) {
        let mut table = self.table.lock();
        if table.stopped {
            return;
        }
        let nodes: Vec<_> = files.iter().map(|file| file.node).collect();
        table.detector.listed(files);
        self.update_watching(&table);
        // Only now: from here on a request for one of the files is noticed.
        for node in nodes {
            // The kernel may have dropped the inode and learn of it now, while the store for it is
            // still under way: that store may go to the new inode.
            let is_active = table.active.as_ref().is_some_and(|active| active.node == node);
            if is_active || !is_first(node) {
                table.detector.touch(node);
            }
        }
    }

    fn on_access(&self, node: u64, what: Access) -> io::Result<()> {
        let mut table = self.table.lock();
        let mut result = self.revoke(&mut table, node);
        // If a store could not be revoked it is the last one.
        table.stopped |= result.is_err();
        let mut wanted = result.is_err();
        match what {
            Access::Read { end } => wanted |= table.detector.read(node, end),
            Access::Write => match table.detector.touch(node) {
                FileState::Known => {}
                before => {
                    tracing::warn!(
                        "a write came without a request before it: from now on no file is prefetched"
                    );
                    (table.stopped, wanted) = (true, true);
                    if before == FileState::Prefetched {
                        result = Err(io::Error::other("what was written may have been overwritten"));
                    }
                }
            },
            Access::Resize | Access::Other => drop(table.detector.touch(node)),
        }
        let is_closed = |table: &Table| {
            table.active.as_ref().is_some_and(|active| active.node == node && active.stage == Stage::Closed)
        };
        while what == Access::Resize && is_closed(&table) {
            self.store_ended.wait(&mut table);
        }
        self.update_watching(&table);
        if wanted && std::mem::take(&mut table.sleeping) {
            drop(table);
            self.changed.notify_all();
        }
        result
    }

    /// Revokes a store of `node`: when this returns no further page of it is stored.
    fn revoke(&self, table: &mut Table, node: u64) -> io::Result<()> {
        let Some(active) = table.active.as_mut().filter(|active| active.node == node) else { return Ok(()) };
        match active.stage {
            Stage::Reading => active.stage = Stage::Revoked,
            Stage::Storing => {
                self.gate.close().inspect_err(|error| {
                    tracing::error!(%error, "a prefetch that the kernel copies cannot be revoked");
                })?;
                active.stage = Stage::Closed;
            }
            Stage::Revoked | Stage::Closed => {}
        }
        Ok(())
    }

    fn update_watching(&self, table: &Table) {
        let matters = table.active.is_some() || table.detector.watched() > 0;
        self.watching.store(matters, Ordering::Release);
    }

    /// Stores wanted files until it is stopped.
    fn run(&self, mut buffer: PageBuffer, device: &Device, read: &Read<'_>) {
        let mut table = self.table.lock();
        while !table.stopped {
            let piece = if table.paused { None } else { table.detector.next() };
            let Some(piece) = piece else {
                table.sleeping = true;
                self.changed.wait(&mut table);
                continue;
            };
            table.active = Some(ActiveStore { node: piece.file.node, stage: Stage::Reading });
            drop(table);
            let outcome = self.store(&mut buffer, device, read, piece);
            table = self.table.lock();
            let closed = table.active.take().is_some_and(|active| active.stage == Stage::Closed);
            self.store_ended.notify_all();
            let opened = if closed { self.gate.open() } else { Ok(()) };
            if let Err(error) = &opened {
                tracing::error!(%error, "from now on no file is prefetched");
            }
            match outcome {
                // Nothing of the file was stored: it does not count as prefetched any more.
                StoreOutcome::NotStored if piece.offset == 0 => drop(table.detector.touch(piece.file.node)),
                StoreOutcome::NotStored => table.detector.abandon(piece),
                StoreOutcome::Stored | StoreOutcome::Refused => {}
            }
            table.stopped |= outcome == StoreOutcome::Refused || opened.is_err();
            self.update_watching(&table);
        }
        table.detector = SequenceDetector::default();
        self.update_watching(&table);
    }

    /// Stores a piece unless it is revoked.
    fn store(&self, buffer: &mut PageBuffer, device: &Device, read: &Read<'_>, piece: Piece) -> StoreOutcome {
        let (node, length) = (piece.file.node, piece.length());
        let Some(found) = read(node, piece.offset, &mut buffer.bytes()[..length]) else {
            return StoreOutcome::Refused;
        };
        if found != length || !self.advance() {
            return StoreOutcome::NotStored;
        }
        match buffer.send(device, &notify::store(node, piece.offset, length as u32), length) {
            Ok(true) => {
                self.stored.fetch_add(u64::from(piece.offset == 0), Ordering::Relaxed);
                StoreOutcome::Stored
            }
            // The kernel has dropped the inode.
            Ok(false) => StoreOutcome::NotStored,
            // Revoked or interrupted, or there is no memory for more pages.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EINTR | libc::ENOMEM)) => {
                StoreOutcome::Stored
            }
            Err(error) => {
                tracing::debug!(%error, "the kernel does not take the content of files");
                StoreOutcome::Refused
            }
        }
    }

    /// A piece was read and is about to be stored; false if it was revoked.
    fn advance(&self) -> bool {
        let mut table = self.table.lock();
        let active = table.active.as_mut().filter(|active| active.stage == Stage::Reading);
        active.map(|active| active.stage = Stage::Storing).is_some()
    }
}

#[cfg(test)]
mod tests;
