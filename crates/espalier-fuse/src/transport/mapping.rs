//! Files in memory, mapped: anywhere, or at a place of one's own.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

/// Length and alignment of memory that the system can keep as one piece.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A file in memory of `length` zeros; `name` is for people.
pub(super) fn memory_file(name: &str, length: usize) -> io::Result<OwnedFd> {
    let memory = memfd_create(name, MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, length as u64)?;
    Ok(memory)
}

/// Memory at an address, which is a multiple of [`HUGE_PAGE_BYTES`] bytes.
pub(super) struct Mapping {
    pub(super) start: NonNull<u8>,
    pub(super) length: usize,
    /// What was set aside to find such an address: start and length.
    reserved: Option<(NonNull<u8>, usize)>,
}

impl Mapping {
    /// Maps `length` bytes of `memory` from `offset` on.
    pub(super) fn new(memory: &impl AsFd, offset: usize, length: usize) -> io::Result<Self> {
        let reserve = length + HUGE_PAGE_BYTES;
        // SAFETY: the kernel chooses an address that is not in use.
        let found =
            unsafe { mmap_anonymous(std::ptr::null_mut(), reserve, ProtFlags::empty(), MapFlags::PRIVATE)? };
        let first = NonNull::new(found.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let before = first.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: fewer bytes than a piece, and one more piece than needed is set aside.
        let start = unsafe { first.add(before) };
        let mapping = Self { start, length, reserved: Some((first, reserve)) };
        show(start, length, memory, offset)?;
        Ok(mapping)
    }

    /// It is not unmapped when this is dropped: what to unmap.
    pub(super) fn release(&mut self) -> (NonNull<u8>, usize) {
        self.reserved.take().unwrap_or((self.start, self.length))
    }
}

/// Maps `memory` in place of what is at `start`, which belongs to the caller.
pub(super) fn show(start: NonNull<u8>, length: usize, memory: &impl AsFd, offset: usize) -> io::Result<()> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
    // SAFETY: these addresses are set aside for the caller, and no references to what is there
    // exist.
    unsafe { mmap(start.as_ptr().cast(), length, access, flags, memory, offset as u64)? };
    Ok(())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Some(reserved) = self.reserved {
            unmap(reserved);
        }
    }
}

/// Maps `memory` at an address where nothing is.
pub(super) fn map_at(start: usize, length: usize, memory: &impl AsFd) -> io::Result<NonNull<u8>> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED_NOREPLACE);
    let wanted = std::ptr::without_provenance_mut(start);
    // SAFETY: it replaces nothing that is mapped.
    let found = unsafe { mmap(wanted, length, access, flags, memory, 0)? };
    NonNull::new(found.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

/// Unmaps what belongs to the caller: start and length.
pub(super) fn unmap((start, length): (NonNull<u8>, usize)) {
    // SAFETY: called by the owner of what was mapped there, which is being dropped.
    if let Err(error) = unsafe { munmap(start.as_ptr().cast(), length) } {
        tracing::debug!(%error, "a buffer could not be unmapped");
    }
}
