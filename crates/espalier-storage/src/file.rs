//! An image file or a block device.
//!
//! Protocol: opening takes a lock that lasts until the device is dropped (shared for
//! [`OpenMode::ReadOnly`], exclusive for [`OpenMode::ReadWrite`]; it belongs to the open file, so a
//! child that `fork` made shares it). Then requests go to the file directly, past the page cache;
//! where the file system refuses direct I/O they go through the page cache, which a warning says.
//!
//! Invariants:
//! - no other process that keeps to the lock has the file open while we may write;
//! - a failed sync is remembered: Linux reports it once and drops the pages, so everything that
//!   would write or sync afterwards fails too.

mod open;
mod options;
mod system;
#[cfg(test)]
mod tests;

pub use options::{Existing, FileOptions, OpenMode};

use crate::request::{check_discard, check_read, check_write};
use crate::{BLOCK, Device, Error, ErrorKind, Operation, Result};
use espalier_sync::{Condvar, Mutex};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use system::{block_device_discard, block_device_len, retry};

/// Linux takes at most this many buffers in one call (`IOV_MAX`).
const MAX_BUFFERS_PER_CALL: usize = 1024;

/// Reads of so many bytes take turns.
const LARGE_READ_BYTES: usize = 256 << 10;
/// At most two large reads are in the device's queue. With all of them queued, all would finish
/// together: no caller could go on early, and the device would then idle.
const MAX_CONCURRENT_LARGE_READS: u64 = 2;

/// The turns of large reads, in the order in which they came.
#[derive(Debug, Default)]
struct Turns {
    state: Mutex<TurnState>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct TurnState {
    /// Turns that were given out, and those that are over.
    given: u64,
    over: u64,
}

/// A turn, which is over when this is dropped.
struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for a turn.
    fn take(&self) -> Turn<'_> {
        let mut state = self.state.lock();
        let mine = state.given;
        state.given += 1;
        self.ended.wait_while(&mut state, |state| mine >= state.over + MAX_CONCURRENT_LARGE_READS);
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.state.lock().over += 1;
        self.0.ended.notify_all();
    }
}

/// A device in an image file or on a block device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    name: String,
    len: AtomicU64,
    mode: OpenMode,
    block_device: bool,
    direct: bool,
    /// Keeps other programs from mounting the block device; see [`FileDevice::release_claim`].
    claim: Mutex<Option<OwnedFd>>,
    /// False once the file has shown that it cannot discard.
    discards: AtomicBool,
    /// True once a sync has failed.
    sync_failed: AtomicBool,
    large_reads: Turns,
}

impl FileDevice {
    /// The path it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if requests go past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// True for a block device, false for an image file.
    pub fn is_block_device(&self) -> bool {
        self.block_device
    }

    /// How it was opened.
    pub fn mode(&self) -> OpenMode {
        self.mode
    }

    /// Gives up the kernel's exclusive claim on a block device, so that the kernel itself can claim
    /// it: a `fuseblk` mount does. The lock stays. Does nothing for image files.
    pub fn release_claim(&self) {
        *self.claim.lock() = None;
    }

    /// How long the file or block device is by now; [`Device::len`] says how much of it is used.
    ///
    /// # Errors
    /// What the system says.
    pub fn size(&self) -> Result<u64> {
        let size = if self.block_device {
            block_device_len(self.file.as_fd())
        } else {
            rustix::fs::fstat(&self.file).map(|stat| stat.st_size as u64)
        };
        size.map_err(|e| Error::system(Operation::Resize, &self.name, e))
    }

    /// Makes an image file longer, up to `len` bytes rounded down to whole blocks; the new part
    /// reads as zeros. Durable when it returns.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if `len` is below the present length, or for a block device other
    /// than up to the size that it has by now; otherwise what the system says.
    pub fn grow(&self, len: u64) -> Result<()> {
        let refuse = |kind, message: String| Err(Error::new(kind, Operation::Resize, &self.name, message));
        self.check_writable(Operation::Resize, 0, 0)?;
        let len = len / BLOCK as u64 * BLOCK as u64;
        if len < self.len() {
            let message = format!("it has {} bytes and cannot shrink to {len}", self.len());
            return refuse(ErrorKind::Unsupported, message);
        }
        if self.block_device {
            let size = block_device_len(self.file.as_fd())
                .map_err(|e| Error::system(Operation::Resize, &self.name, e))?;
            if len > size {
                let message = format!("the block device has {size} bytes; enlarge it first");
                return refuse(ErrorKind::Unsupported, message);
            }
        } else {
            self.file.set_len(len).map_err(|e| Error::system(Operation::Resize, &self.name, e))?;
            self.sync()?;
        }
        self.len.fetch_max(len, Ordering::AcqRel);
        Ok(())
    }

    fn check_writable(&self, operation: Operation, offset: u64, length: u64) -> Result<()> {
        if self.mode == OpenMode::ReadOnly {
            let message = "it is open read-only";
            return Err(Error::new(ErrorKind::ReadOnly, operation, &self.name, message).at(offset, length));
        }
        if self.sync_failed.load(Ordering::Acquire) {
            let message = "an earlier sync failed, so what is stored is uncertain";
            return Err(Error::new(ErrorKind::Io, operation, &self.name, message).at(offset, length));
        }
        Ok(())
    }

    fn ended(&self, operation: Operation) -> Error {
        let message = "the file has become shorter than it was when it was opened";
        Error::new(ErrorKind::Io, operation, &self.name, message)
    }
}

/// The descriptor, for callers that submit requests in their own way.
impl AsFd for FileDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        check_read(self, offset, buffer)?;
        let length = buffer.len();
        let _turn = (length >= LARGE_READ_BYTES).then(|| self.large_reads.take());
        let (mut done, mut stalled) = (0, false);
        while done < length {
            let mut rest = [IoSliceMut::new(&mut buffer[done..])];
            let moved = retry(|| rustix::io::preadv(&self.file, &mut rest, offset + done as u64))
                .map_err(|e| Error::system(Operation::Read, &self.name, e))
                .and_then(|n| if n == 0 { Err(self.ended(Operation::Read)) } else { Ok(n) })
                .map_err(|e| e.at(offset, length as u64))?;
            let resume = resume_at(done, moved, length);
            // A signal may cut one transfer short, the end of the file cuts each.
            if resume == done && std::mem::replace(&mut stalled, true) {
                return Err(self.ended(Operation::Read).at(offset, length as u64));
            }
            stalled = resume == done;
            done = resume;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        let length = check_write(self, offset, buffers)?;
        self.check_writable(Operation::Write, offset, length)?;
        write_all(offset, buffers, |slices, at| rustix::io::pwritev(&self.file, slices, at))
            .map_err(|e| Error::system(Operation::Write, &self.name, e).at(offset, length))
    }

    fn sync(&self) -> Result<()> {
        if self.mode == OpenMode::ReadOnly {
            return Ok(());
        }
        self.check_writable(Operation::Sync, 0, 0)?;
        retry(|| rustix::fs::fdatasync(&self.file)).map_err(|e| {
            self.sync_failed.store(true, Ordering::Release);
            Error::system(Operation::Sync, &self.name, e)
        })
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        check_discard(self, offset, length)?;
        self.check_writable(Operation::Discard, offset, length)?;
        if length == 0 || !self.discards.load(Ordering::Relaxed) {
            return Ok(());
        }
        let outcome = if self.block_device {
            block_device_discard(self.file.as_fd(), offset, length)
        } else {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            retry(|| rustix::fs::fallocate(&self.file, flags, offset, length))
        };
        match outcome {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY) => {
                self.discards.store(false, Ordering::Relaxed);
                tracing::debug!(device = self.name, "discard is not supported here");
                Ok(())
            }
            other => other.map_err(|e| Error::system(Operation::Discard, &self.name, e).at(offset, length)),
        }
    }
}

/// Where to go on after a transfer of `moved` bytes at `done`: direct I/O must resume at a whole
/// block, so what a short transfer moved of a block is moved again.
fn resume_at(done: usize, moved: usize, length: usize) -> usize {
    if done + moved == length { length } else { (done + moved) / BLOCK * BLOCK }
}

/// Writes all of `buffers` with as few calls of `write` as the limit on buffers and short transfers
/// allow. A call that moves less than a block is an error unless it ends the transfer, or two such
/// in a row would never end.
fn write_all(
    offset: u64,
    buffers: &[&[u8]],
    mut write: impl FnMut(&[IoSlice<'_>], u64) -> rustix::io::Result<usize>,
) -> rustix::io::Result<()> {
    let mut at = offset;
    let mut rest = buffers.iter().copied().filter(|b| !b.is_empty());
    loop {
        let mut batch: Vec<&[u8]> = rest.by_ref().take(MAX_BUFFERS_PER_CALL).collect();
        let mut left: usize = batch.iter().map(|b| b.len()).sum();
        if left == 0 {
            return Ok(());
        }
        let mut stalled = false;
        while left > 0 {
            let slices: Vec<IoSlice<'_>> = batch.iter().map(|b| IoSlice::new(b)).collect();
            let moved = resume_at(0, retry(|| write(&slices, at))?, left);
            if moved == 0 && std::mem::replace(&mut stalled, true) {
                return Err(Errno::NOSPC);
            }
            stalled &= moved == 0;
            advance(&mut batch, moved);
            left -= moved;
            at += moved as u64;
        }
    }
}

/// Drops the first `count` bytes of the concatenation of `buffers`.
fn advance(buffers: &mut Vec<&[u8]>, mut count: usize) {
    let whole = buffers.iter().take_while(|b| {
        let fits = b.len() <= count;
        if fits {
            count -= b.len();
        }
        fits
    });
    let whole = whole.count();
    buffers.drain(..whole);
    if count > 0 {
        buffers[0] = &buffers[0][count..];
    }
}
