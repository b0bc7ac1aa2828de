//! Dirty pages: what the kernel has of a file and the server has not yet.
//!
//! The kernel answers `read` from its pages, but passes LSEEK and the number of blocks on to the
//! server without writing dirty pages first. A page becomes dirty by a store through a shared
//! mapping, and with `-o writeback` by `write` too, which then may also lie behind the end of the
//! file as the server knows it.
//!
//! The protocol of LSEEK: only a hole can hide data. So the server finds the hole that decides the
//! answer, has the kernel write the pages in it and drop them (`FUSE_NOTIFY_INVAL_INODE` with a
//! range), and looks again.
//!
//! Invariants:
//!
//! 1. *A range is called a hole only if the kernel has written its dirty pages there* since the
//!    question came. A file without holes needs nothing, unless the kernel keeps what is written.
//! 2. *What waits for the kernel can be served meanwhile.* The kernel waits for the replies to the
//!    WRITEs that it sends, and for READs of pages in the range, while it handles the notification;
//!    LSEEK holds the lock of the inode, which neither takes. So at most [`MOST_FLUSHES`] handlers
//!    wait in a notification at once, and none does where no more threads than that serve: one is
//!    always left. What is beyond that limit is answered without the kernel's pages, by what cannot
//!    be wrong: all is data. With `-o writeback` only the kernel knows where that ends, so LSEEK is
//!    refused with ENOSYS, and the kernel answers so by itself from then on.
//! 3. *No file that may have data has 0 blocks*: `tar -S` takes 0 for a promise that all is hole. A
//!    file with a length and without data counts one unit of 512 bytes, with `-o writeback` an
//!    empty file as well.
//!
//! With `-o writeback` the kernel does not ask for the blocks again when it has written pages, so
//! it is told to ([`Dispatcher::blocks_changed`]), before an `fsync` returns in any case.
//!
//! Kernels before 6.16 write from copies of pages, and call a page clean while its copy is on its
//! way: there a notification returns too early, so no hole is reported at all.

use super::errno::{Errno, of};
use super::{Dispatcher, Small};
use crate::protocol::notify::Notification;
use crate::protocol::reply;
use crate::transport;
use espalier_fs::{NodeId, Seek};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Handlers that may wait at once until the kernel has written pages.
const MOST_FLUSHES: usize = 6;

/// What is known of pages that the server has not seen.
#[derive(Default)]
pub(super) struct DirtyPages {
    /// `write` leaves dirty pages too (`-o writeback`).
    pub(super) has_written_data: bool,
    flushes: AtomicUsize,
    /// Nodes of whose new number of blocks the kernel is about to be told.
    recounted: Arc<Mutex<HashSet<u64>>>,
}

/// Leave to wait for the kernel, until it is dropped.
struct Leave<'a>(&'a AtomicUsize);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl DirtyPages {
    /// Leave to wait for the kernel, if one more handler may.
    fn leave(&self) -> Option<Leave<'_>> {
        if transport::serving_threads() <= MOST_FLUSHES {
            return None;
        }
        let more = |flushes: usize| (flushes < MOST_FLUSHES).then_some(flushes + 1);
        self.flushes.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Leave(&self.flushes))
    }

    /// Attributes as the kernel is to have them; see the module.
    pub(super) fn counted(&self, mut attributes: reply::Attributes) -> reply::Attributes {
        let is_file = attributes.mode & libc::S_IFMT == libc::S_IFREG;
        if is_file && attributes.blocks == 0 && (attributes.size > 0 || self.has_written_data) {
            attributes.blocks = 1;
        }
        attributes
    }
}

impl Dispatcher {
    /// LSEEK: the next data, or the next hole, at or after `offset`.
    pub(super) fn seek(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64, Errno> {
        let is_written_back = self.dirty_pages.has_written_data;
        // A snapshot is not written.
        let mut clean = if self.tag == 0 { offset..offset } else { 0..u64::MAX };
        let mut from = offset;
        loop {
            let (hole, size) = of(self.fs.next_hole(node, from), || self.name(node))?;
            let end_is_known = !is_written_back || clean.end == u64::MAX;
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
            if !self.write_dirty_pages(node, &hole) {
                return match what {
                    _ if is_written_back => Err(Errno(libc::ENOSYS)),
                    Seek::Data => Ok(offset),
                    Seek::Hole => Ok(size),
                };
            }
            from = hole.start;
            clean = hole;
        }
    }

    /// Has the kernel write the dirty pages of `range` and drop the pages there; true if it has.
    fn write_dirty_pages(&self, node: NodeId, range: &Range<u64>) -> bool {
        let Some(notifier) = self.notifier.get().filter(|_| *WAITS_FOR_WRITES) else { return false };
        let Some(_leave) = self.dirty_pages.leave() else { return false };
        // Length 0: to the end.
        let length = if range.end == u64::MAX { 0 } else { range.end - range.start };
        notifier.notify_here(&Notification::Inode { node: node.0, data: Some((range.start, length)) })
    }

    /// The kernel has written pages of `node` that it had kept; see the module.
    pub(super) fn blocks_changed(&self, node: NodeId) {
        if !self.dirty_pages.has_written_data {
            return;
        }
        let Some(notifier) = self.notifier.get() else { return };
        let recounted = &self.dirty_pages.recounted;
        if recounted.lock().insert(node.0) {
            let recounted = Arc::clone(recounted);
            // The kernel may give up the inode with that, and wait for this very request: so it is
            // not for this thread to tell it.
            notifier.notify_later(move || {
                recounted.lock().remove(&node.0);
                vec![Notification::Inode { node: node.0, data: None }]
            });
        }
    }

    /// `fsync` of `node` is about to return.
    pub(super) fn synced(&self, node: NodeId) {
        if self.dirty_pages.has_written_data
            && let Some(notifier) = self.notifier.get()
        {
            notifier.attributes_changed(node.0);
        }
    }

    /// A reply with attributes as the kernel is to have them.
    pub(super) fn counted(&self, small: Small) -> Small {
        let counted = |attributes| self.dirty_pages.counted(attributes);
        match small {
            Small::Entry(node, attributes) => Small::Entry(node, counted(attributes)),
            Small::Opened(node, attributes) => Small::Opened(node, counted(attributes)),
            Small::Attributes(attributes) => Small::Attributes(counted(attributes)),
            Small::Statx(attributes) => Small::Statx(counted(attributes)),
            small => small,
        }
    }
}

/// The kernel waits until pages are written before it calls them clean; see the module.
static WAITS_FOR_WRITES: LazyLock<bool> = LazyLock::new(crate::mount::kernel_waits_for_writes);
