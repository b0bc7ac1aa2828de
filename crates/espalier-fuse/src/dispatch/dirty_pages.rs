//! Dirty pages: file data that the kernel has and the server has not yet.
//!
//! The kernel answers `read` from its pages, but passes LSEEK and questions for the number of
//! blocks on to the server without writing dirty pages first. A page becomes dirty by a store
//! through a shared mapping, and with `-o writeback` by `write` too; then it may also lie behind
//! the end of the file as the server knows it.
//!
//! The protocol of LSEEK: only a hole can hide data. So the server finds the hole that decides the
//! answer, has the kernel write the pages in it and drop them (`FUSE_NOTIFY_INVAL_INODE` with a
//! range), and looks again.
//!
//! Invariants:
//!
//! 1. *A range is reported as a hole only if the kernel has written its dirty pages there* since
//!    the request came. A file without holes needs no notification, unless the kernel keeps written
//!    data.
//! 2. *What the kernel waits for can be served meanwhile.* While the kernel handles the
//!    notification it waits for the replies to the WRITEs that it sends, and for READs of pages in
//!    the range; LSEEK holds the lock of the inode, which neither takes. So at most [`MAX_FLUSHES`]
//!    handlers wait in a notification at once, and none does in a mount with no more threads than
//!    that: one thread is always left. Beyond that limit the answer does without the kernel's
//!    pages, and says what cannot be wrong: all is data. With `-o writeback` only the kernel knows
//!    where the data ends, so LSEEK is refused with ENOSYS, and the kernel answers by itself from
//!    then on.
//! 3. *No file that may have data has 0 blocks*: `tar -S` takes 0 for a promise that the whole file
//!    is a hole. A file with a length and without data counts one unit of 512 bytes, with
//!    `-o writeback` an empty file as well.
//!
//! With `-o writeback` the kernel does not ask for the blocks again when it has written pages, so
//! it is notified ([`DirtyPages::written_back`]), at the latest before an `fsync` returns.
//!
//! Kernels before 6.16 write from copies of pages, and call a page clean while its copy is on its
//! way: there a notification returns too early, so no hole is reported at all.

use super::errno::{Errno, or_errno, shown_path};
use crate::kernel_release;
use crate::notifier::Notifier;
use crate::protocol::notify::Notification;
use crate::protocol::reply;
use crate::transport;
use espalier_fs::{FileSystem, NodeId, Seek};
use espalier_sync::Mutex;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

/// Handlers that may wait at once until the kernel has written pages.
const MAX_FLUSHES: usize = 6;

/// How the kernel caches the data of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PageCaching {
    /// No file is ever written: a snapshot.
    ReadOnly,
    /// Only stores through mappings leave dirty pages.
    WriteThrough,
    /// `write` leaves dirty pages too (`-o writeback`).
    WriteBack,
}

/// Answers the questions that dirty pages would make the server answer wrongly.
pub(super) struct DirtyPages {
    caching: PageCaching,
    /// Set once the mount exists.
    notifier: OnceLock<Arc<Notifier>>,
    /// Handlers that wait now until the kernel has written pages.
    flushes: AtomicUsize,
    /// Nodes with a queued notification of their new number of blocks.
    recounted: Arc<Mutex<HashSet<u64>>>,
}

/// Counts a handler that waits for the kernel, until it is dropped.
struct FlushPermit<'a>(&'a AtomicUsize);

impl Drop for FlushPermit<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl DirtyPages {
    /// For files that the kernel caches as `caching` says.
    pub(super) fn new(caching: PageCaching) -> Self {
        Self { caching, notifier: OnceLock::new(), flushes: AtomicUsize::new(0), recounted: Arc::default() }
    }

    /// Hands over what tells the kernel to write its pages. Without it no hole is reported, but in
    /// snapshots.
    pub(super) fn attach(&self, notifier: &Arc<Notifier>) {
        // There is one mount, so it is set once.
        let _ = self.notifier.set(Arc::clone(notifier));
    }

    fn is_write_back(&self) -> bool {
        self.caching == PageCaching::WriteBack
    }

    /// Leave to wait for the kernel; `None` if too many handlers wait already.
    fn permit(&self) -> Option<FlushPermit<'_>> {
        if transport::serving_threads() <= MAX_FLUSHES {
            return None;
        }
        let more = |flushes: usize| (flushes < MAX_FLUSHES).then_some(flushes + 1);
        self.flushes.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(FlushPermit(&self.flushes))
    }

    /// Attributes with the number of blocks that the kernel is to have: invariant 3.
    pub(super) fn adjust(&self, mut attributes: reply::Attributes) -> reply::Attributes {
        let is_file = attributes.mode & libc::S_IFMT == libc::S_IFREG;
        if is_file && attributes.blocks == 0 && (attributes.size > 0 || self.is_write_back()) {
            attributes.blocks = 1;
        }
        attributes
    }

    /// LSEEK: the next data, or the next hole, at or after `offset` in `node` of `fs`.
    pub(super) fn seek(&self, fs: &FileSystem, node: NodeId, offset: u64, what: Seek) -> Result<u64, Errno> {
        // Where the kernel has no dirty pages.
        let mut clean = if self.caching == PageCaching::ReadOnly { 0..u64::MAX } else { offset..offset };
        let mut from = offset;
        loop {
            let (hole, size) = or_errno(fs.next_hole(node, from), || shown_path(fs, node))?;
            let end_is_known = !self.is_write_back() || clean.end == u64::MAX;
            if what == Seek::Data && hole.start > offset {
                return Ok(offset);
            }
            if offset >= size && end_is_known {
                return Err(Errno(libc::ENXIO));
            }
            let is_end = hole.start >= size && end_is_known;
            if is_end || clean.contains(&hole.start) {
                return match what {
                    Seek::Hole => Ok(hole.start),
                    Seek::Data if hole.end == u64::MAX => Err(Errno(libc::ENXIO)),
                    Seek::Data => Ok(hole.end),
                };
            }
            if !self.write_pages(node, &hole) {
                return match what {
                    _ if self.is_write_back() => Err(Errno(libc::ENOSYS)),
                    Seek::Data => Ok(offset),
                    Seek::Hole => Ok(size),
                };
            }
            from = hole.start;
            clean = hole;
        }
    }

    /// Has the kernel write the dirty pages of `range` and drop the pages there; true if it has.
    pub(super) fn write_pages(&self, node: NodeId, range: &Range<u64>) -> bool {
        let Some(notifier) = self.notifier.get().filter(|_| *WAITS_FOR_WRITES) else { return false };
        let Some(_permit) = self.permit() else { return false };
        // Length 0: to the end.
        let length = if range.end == u64::MAX { 0 } else { range.end - range.start };
        notifier
            .notify_on_this_thread(&Notification::Inode { node: node.0, data: Some((range.start, length)) })
    }

    /// A WRITE from the kernel's pages is served: the number of blocks of `node` may have changed.
    pub(super) fn written_back(&self, node: NodeId) {
        if !self.is_write_back() {
            return;
        }
        let Some(notifier) = self.notifier.get() else { return };
        if self.recounted.lock().insert(node.0) {
            let recounted = Arc::clone(&self.recounted);
            // Not on this thread: the page of this very WRITE is under write-back until it is
            // answered, and the kernel may wait for such pages where it gives up an inode.
            notifier.notify_later(move || {
                recounted.lock().remove(&node.0);
                vec![Notification::Inode { node: node.0, data: None }]
            });
        }
    }

    /// `fsync` of `node` is about to return.
    pub(super) fn fsync_returns(&self, node: NodeId) {
        if self.is_write_back()
            && let Some(notifier) = self.notifier.get()
        {
            notifier.attributes_changed_here(node.0);
        }
    }
}

/// The kernel waits until pages are written before it calls them clean; see the module.
static WAITS_FOR_WRITES: LazyLock<bool> = LazyLock::new(kernel_release::waits_for_writes);
