//! Gives the kernel the content of files before it asks for it.
//!
//! A program that goes through a tree and reads every file waits for a request for each: two
//! switches between processes, and the copying between them, while other CPUs have nothing to do.
//! But which files it will read next is known once it has listed a directory and read its first
//! files in order (`sequence_detector`). So the prefetch thread reads them and stores them in the
//! kernel's pages (`FUSE_NOTIFY_STORE`), where the reader finds them without a request.
//!
//! The kernel stores without a check: it overwrites whatever is in those pages, even if a program
//! changed it a moment ago and the server has not been told. So the invariant is that *nothing is
//! stored in a page in which anything else can have been*:
//!
//! 1. Only the content of an *untouched* file is stored: the kernel learned of the file by a
//!    listing and has asked for nothing of it since ([`Prefetch::before`] hears of each request
//!    before it is served). So the kernel has none of its pages, and no program has written any.
//!    That the listing was the first to tell is checked when requests are watched already
//!    ([`Prefetch::listed`]).
//! 2. It is stored once, from the first byte on, in one piece or several; from the beginning of
//!    that on the file is *given*, and never begun again.
//! 3. A request for a file that is being stored *revokes* the storing first: when the request is
//!    served, no further page is stored, and the one under way is locked until it is there. Storing
//!    may wait meanwhile for a page that is locked for the same request, so no request waits for
//!    it: the memory out of which the kernel copies is taken from it (`page_buffer`).
//! 4. Only a request that changes the length waits for the end of it, since storing makes a file at
//!    least as long, whether the data can be copied or not. That request locks no page, and there
//!    is another thread to serve those that do.
//!
//! A file that grows is no exception. Its last page is stored with zeros behind the end, and the
//! kernel raises the size to that end before it copies; but the end is the one of the listing,
//! which the kernel knows already, and a change of length waits (4). A program that appends asks
//! first, which revokes (3); the page that is locked then is complete before the append can lock
//! it, and the size grows after the append has put its data there. What is stored is never read
//! from the file after that.
//!
//! That there is a request before pages are changed is the kernel's way: `write` asks whether the
//! file has capabilities (`security.capability`) when it is first called for a file that the kernel
//! knows; a mapping reads a page first; truncating, punching and copying are requests of their own.
//! With `-o noxattr` the kernel does not ask, with `-o writeback` it keeps what was changed to
//! itself: then nothing is stored. And a write without such a request before it (its caller may
//! have been killed before the server heard of it) ends all this for the mount. If the file has
//! been given, such a write fails: what it brings may have been overwritten.

mod page_buffer;
mod sequence_detector;

use crate::protocol::Operation;
use crate::protocol::notify;
use crate::transport::{BackgroundAccess, Device};
use espalier_fs::{FileSystem, NodeId};
use page_buffer::{Gate, PageBuffer};
use parking_lot::{Condvar, Mutex};
pub(crate) use sequence_detector::File;
use sequence_detector::{Before, PIECE_BYTES, Piece, SequenceDetector};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Stores files in the kernel's pages before they are read.
pub(crate) struct Prefetch {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What files are read from, from a byte on, into memory; `None` once that is not to be trusted.
type Read<'a> = dyn Fn(u64, u64, &mut [u8]) -> Option<usize> + 'a;

struct Shared {
    table: Mutex<Table>,
    /// Files are wanted, or it is over.
    changed: Condvar,
    /// What was being stored is not any more.
    landed: Condvar,
    /// Requests matter: some file is untouched or given.
    watching: AtomicBool,
    gate: Gate,
    stored: Arc<AtomicU64>,
}

#[derive(Default)]
struct Table {
    detector: SequenceDetector,
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
    /// Into the page buffer.
    Reading,
    /// The kernel copies, or is about to.
    Storing,
    /// There was a request for the file.
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
        access: BackgroundAccess,
        stored: Arc<AtomicU64>,
    ) -> io::Result<Self> {
        let (buffer, gate) = PageBuffer::new(PIECE_BYTES as usize)?;
        let shared = Arc::new(Shared::new(gate, stored));
        let of_thread = Arc::clone(&shared);
        let body = move || {
            let _apart = access.keep_off_busy_cpus();
            let read = |node, offset, out: &mut [u8]| {
                // A real reader of the file meets its errors.
                access.call(|| fs.read(NodeId(node), offset, out).unwrap_or_default())
            };
            of_thread.run(buffer, &device, &read);
        };
        let thread = std::thread::Builder::new().name("fuse-prefetch".into()).spawn(body)?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// The kernel is about to be told of `files`, by one listing; `is_first` says whether it is the
    /// first to tell of a node.
    pub(crate) fn listed(&self, files: Vec<File>, is_first: impl Fn(u64) -> bool) {
        if !files.is_empty() {
            self.shared.listed(files, is_first);
        }
    }

    /// A request is about to be served.
    ///
    /// # Errors
    /// The request must not be served: something that is being stored could not be revoked, or what
    /// the request brings may have been overwritten.
    pub(crate) fn before(&self, node: u64, operation: &Operation<'_>) -> io::Result<()> {
        let shared = &self.shared;
        if !shared.watching.load(Ordering::Acquire) {
            return Ok(());
        }
        match operation {
            // What no change of content needs.
            Operation::Lookup { .. }
            | Operation::GetAttributes
            | Operation::Statx { .. }
            | Operation::ReadDirectory { .. }
            | Operation::Unlink { .. } => Ok(()),
            Operation::GetXattr { name, .. } if !name.starts_with(b"security.") => Ok(()),
            Operation::Read { offset, size, .. } => {
                shared.asked(node, Asked::Read { end: offset.saturating_add(u64::from(*size)) })
            }
            Operation::Write { from_cache: false, .. } => shared.asked(node, Asked::Write),
            Operation::SetAttributes(set) if set.size.is_some() => shared.asked(node, Asked::Resize),
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

/// What came of storing a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// The kernel has it, or some of it.
    Something,
    Nothing,
    /// And there is no use in going on.
    NeverAgain,
}

/// What is asked of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Read {
        /// Up to this byte.
        end: u64,
    },
    Write,
    Resize,
    Else,
}

impl Shared {
    fn new(gate: Gate, stored: Arc<AtomicU64>) -> Self {
        let (changed, landed) = (Condvar::new(), Condvar::new());
        Self { table: Mutex::default(), changed, landed, watching: AtomicBool::new(false), gate, stored }
    }

    fn listed(&self, files: Vec<File>, is_first: impl Fn(u64) -> bool) {
        let mut table = self.table.lock();
        if table.stopped {
            return;
        }
        let nodes: Vec<_> = files.iter().map(|file| file.node).collect();
        table.detector.listed(files);
        self.note(&table);
        // Now, and not before: a program that learns of a file from here on, and asks for it, is
        // noticed.
        for node in nodes {
            // What is still being stored of a file that the kernel gave up may be stored in the one
            // that it learns of now.
            let in_flight = table.flight.as_ref().is_some_and(|flight| flight.node == node);
            if in_flight || !is_first(node) {
                table.detector.touch(node);
            }
        }
    }

    fn asked(&self, node: u64, what: Asked) -> io::Result<()> {
        let mut table = self.table.lock();
        let mut result = self.revoke(&mut table, node);
        // What could not be taken back is the last that was given.
        table.stopped |= result.is_err();
        let mut wanted = result.is_err();
        match what {
            Asked::Read { end } => wanted |= table.detector.read(node, end),
            Asked::Write => match table.detector.touch(node) {
                Before::Asked => {}
                before => {
                    tracing::warn!(
                        "a write came without a request before it: from now on no file is read before it is asked for"
                    );
                    (table.stopped, wanted) = (true, true);
                    if before == Before::Given {
                        result = Err(io::Error::other("what was written may have been overwritten"));
                    }
                }
            },
            Asked::Resize | Asked::Else => drop(table.detector.touch(node)),
        }
        let is_closed = |table: &Table| {
            table.flight.as_ref().is_some_and(|flight| flight.node == node && flight.stage == Stage::Closed)
        };
        while what == Asked::Resize && is_closed(&table) {
            self.landed.wait(&mut table);
        }
        self.note(&table);
        if wanted && std::mem::take(&mut table.sleeping) {
            drop(table);
            self.changed.notify_all();
        }
        result
    }

    /// When this returns no further page of `node` is stored.
    fn revoke(&self, table: &mut Table, node: u64) -> io::Result<()> {
        let Some(flight) = table.flight.as_mut().filter(|flight| flight.node == node) else { return Ok(()) };
        match flight.stage {
            Stage::Reading => flight.stage = Stage::Revoked,
            Stage::Storing => {
                self.gate.close().inspect_err(|error| {
                    tracing::error!(%error, "what is being given to the kernel cannot be taken back");
                })?;
                flight.stage = Stage::Closed;
            }
            Stage::Revoked | Stage::Closed => {}
        }
        Ok(())
    }

    fn note(&self, table: &Table) {
        let matters = table.flight.is_some() || table.detector.watched() > 0;
        self.watching.store(matters, Ordering::Release);
    }

    /// Stores what is wanted until it is over.
    fn run(&self, mut buffer: PageBuffer, device: &Device, read: &Read<'_>) {
        let mut table = self.table.lock();
        while !table.stopped {
            let Some(piece) = table.detector.next() else {
                table.sleeping = true;
                self.changed.wait(&mut table);
                continue;
            };
            table.flight = Some(Flight { node: piece.file.node, stage: Stage::Reading });
            drop(table);
            let came_of_it = self.store(&mut buffer, device, read, piece);
            table = self.table.lock();
            let closed = table.flight.take().is_some_and(|flight| flight.stage == Stage::Closed);
            self.landed.notify_all();
            let opened = if closed { self.gate.open() } else { Ok(()) };
            if let Err(error) = &opened {
                tracing::error!(%error, "nothing is read any more before it is asked for");
            }
            match came_of_it {
                // It counts as given, and was not: so it is neither.
                Stored::Nothing if piece.offset == 0 => drop(table.detector.touch(piece.file.node)),
                Stored::Nothing => table.detector.give_up(piece),
                Stored::Something | Stored::NeverAgain => {}
            }
            table.stopped |= came_of_it == Stored::NeverAgain || opened.is_err();
            self.note(&table);
        }
        table.detector = SequenceDetector::default();
        self.note(&table);
    }

    /// Stores a piece unless that is revoked.
    fn store(&self, buffer: &mut PageBuffer, device: &Device, read: &Read<'_>, piece: Piece) -> Stored {
        let (node, length) = (piece.file.node, piece.length());
        let Some(found) = read(node, piece.offset, &mut buffer.bytes()[..length]) else {
            return Stored::NeverAgain;
        };
        if found != length || !self.advance() {
            return Stored::Nothing;
        }
        match buffer.send(device, &notify::store(node, piece.offset, length as u32), length) {
            Ok(true) => {
                self.stored.fetch_add(u64::from(piece.offset == 0), Ordering::Relaxed);
                Stored::Something
            }
            // The kernel does not have the file any more.
            Ok(false) => Stored::Nothing,
            // Revoked or interrupted, or there is no memory for more pages.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EINTR | libc::ENOMEM)) => {
                Stored::Something
            }
            Err(error) => {
                tracing::debug!(%error, "the kernel does not take the content of files");
                Stored::NeverAgain
            }
        }
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
