//! The memory of a connection's entries: where the kernel puts requests and takes replies from.
//!
//! Invariants:
//! 1. *All of it is one file in memory*, mapped at one place. Another process that has the file can
//!    map it at the same addresses, and go on with an entry whose addresses the kernel knows. So it
//!    lies where neither a heap nor other mappings of any process come to lie by themselves. If
//!    that place is taken it lies anywhere; then a handover may fail, and nothing else.
//! 2. *An address that the kernel knows stays mapped* until the last entry is dropped. What lies
//!    behind that of a payload can change ([`PayloadWindow::renew`]): the thread that serves a
//!    request has the same memory at another address, the [`PayloadView`], so the address can be
//!    given other memory for the next request while the last one still uses what it came in.
//!
//! The file has a slot for the payload of each entry, and after all of these a page for the headers
//! of each. Pages that are never touched cost nothing.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
/// Length and alignment of memory that the system can keep as one piece.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Where arenas are tried to be put, on address spaces of 47 bits: far above what the allocator
/// asks for, far below programs and what the kernel places.
const FIRST_BASE: usize = 0x3000_0000_0000;
/// From one place to the next; several mounts of one process need as many.
const BASE_STEP: usize = 1 << 40;
const BASES: usize = 16;

/// The memory of all entries.
pub(super) struct Arena {
    memory: OwnedFd,
    start: NonNull<u8>,
    /// What was mapped to have `start` at a multiple of [`HUGE_PAGE_BYTES`]: start and length.
    mapped: (NonNull<u8>, usize),
    slots: usize,
    slot_bytes: usize,
    payload_bytes: usize,
}

// SAFETY: an arena gives no access to its memory but to the owner of a slot.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Memory for so many entries with payloads of `payload_bytes` bytes, zeroed.
    pub(super) fn new(slots: usize, payload_bytes: usize) -> io::Result<Arc<Self>> {
        let payload_bytes = payload_bytes.max(1).next_multiple_of(PAGE_BYTES);
        let length = length(slots, payload_bytes);
        let memory = memfd_create("fuse-rings", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, length as u64)?;
        let fixed =
            (0..BASES).find_map(|number| map_at(FIRST_BASE + number * BASE_STEP, length, &memory).ok());
        let (start, mapped) = match fixed {
            Some(start) => (start, (start, length)),
            None => {
                tracing::debug!("the buffers of the rings cannot lie where another server finds them");
                let mut anywhere = Mapping::new(&memory, 0, length)?;
                (anywhere.start, anywhere.release())
            }
        };
        Ok(Self::of(memory, start, mapped, slots, payload_bytes))
    }

    /// The memory that another process has at `base`, mapped at the same place.
    ///
    /// # Errors
    /// The place is taken here, or `memory` is not what it should be.
    pub(super) fn adopt(
        memory: OwnedFd,
        base: u64,
        slots: usize,
        payload_bytes: usize,
    ) -> io::Result<Arc<Self>> {
        let payload_bytes = payload_bytes.max(1).next_multiple_of(PAGE_BYTES);
        let length = length(slots, payload_bytes);
        // Of a shorter file the end could not be touched.
        if rustix::fs::fstat(&memory)?.st_size.cast_unsigned() != length as u64 {
            return Err(io::Error::other("the memory of the other server's rings is damaged"));
        }
        let start = usize::try_from(base).map_err(io::Error::other)?;
        let start = map_at(start, length, &memory).map_err(|error| {
            io::Error::other(format!(
                "the buffers of the rings cannot lie where the other server has them ({error})"
            ))
        })?;
        Ok(Self::of(memory, start, (start, length), slots, payload_bytes))
    }

    fn of(
        memory: OwnedFd,
        start: NonNull<u8>,
        mapped: (NonNull<u8>, usize),
        slots: usize,
        payload_bytes: usize,
    ) -> Arc<Self> {
        let slot_bytes = slot_bytes(payload_bytes);
        Arc::new(Self { memory, start, mapped, slots, slot_bytes, payload_bytes })
    }

    /// Where it lies.
    pub(super) fn base(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// The file, for another process.
    pub(super) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    /// Puts `payload` where another process finds it in `slot`, behind whose window lies other
    /// memory here.
    pub(super) fn put(&self, slot: usize, payload: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < payload.len() {
            let at = slot * self.slot_bytes + done;
            match rustix::io::pwrite(&self.memory, &payload[done..], at as u64)? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                more => done += more,
            }
        }
        Ok(())
    }

    fn at(&self, offset: usize) -> NonNull<u8> {
        // SAFETY: all offsets are those of slots, inside the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        unmap(self.mapped);
    }
}

/// How much lies from one slot to the next: if that is long, whole pieces.
fn slot_bytes(payload_bytes: usize) -> usize {
    if payload_bytes < HUGE_PAGE_BYTES / 2 {
        payload_bytes
    } else {
        payload_bytes.next_multiple_of(HUGE_PAGE_BYTES)
    }
}

fn length(slots: usize, payload_bytes: usize) -> usize {
    slots * (slot_bytes(payload_bytes) + PAGE_BYTES)
}

/// Maps `memory` at an address where nothing is.
fn map_at(start: usize, length: usize, memory: &OwnedFd) -> io::Result<NonNull<u8>> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED_NOREPLACE);
    let wanted = std::ptr::without_provenance_mut(start);
    // SAFETY: it replaces nothing that is mapped.
    let found = unsafe { mmap(wanted, length, access, flags, memory, 0)? };
    NonNull::new(found.cast()).ok_or(io::ErrorKind::OutOfMemory.into())
}

fn unmap((start, length): (NonNull<u8>, usize)) {
    // SAFETY: called by the owner of what was mapped there, which is being dropped.
    if let Err(error) = unsafe { munmap(start.as_ptr().cast(), length) } {
        tracing::debug!(%error, "a buffer could not be unmapped");
    }
}

/// The headers of an entry.
pub(super) struct Headers {
    /// Keeps them mapped.
    _arena: Arc<Arena>,
    start: NonNull<u8>,
}

/// The address of an entry's payload, and the memory behind it.
pub(super) struct PayloadWindow {
    arena: Arc<Arena>,
    start: NonNull<u8>,
}

/// The memory behind a [`PayloadWindow`], now or formerly.
pub(super) struct PayloadView {
    mapping: Mapping,
    length: usize,
}

// SAFETY: it gives access through `&mut self` only, and there is one for each slot.
unsafe impl Send for Headers {}
// SAFETY: a window gives no access to its memory, only to its address.
unsafe impl Send for PayloadWindow {}
// SAFETY: the view owns its mapping, and gives access through `&mut self` only.
unsafe impl Send for PayloadView {}

impl Headers {
    /// Those of `slot`, for which this is called once.
    pub(super) fn new(arena: &Arc<Arena>, slot: usize) -> Self {
        debug_assert!(slot < arena.slots);
        let start = arena.at(arena.slots * arena.slot_bytes + slot * PAGE_BYTES);
        Self { _arena: Arc::clone(arena), start }
    }

    /// Their address, for the kernel.
    pub(super) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// The content. Not to be called while the kernel may write to it.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: a page of a mapping that lives as long as the arena, of this slot alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), PAGE_BYTES) }
    }
}

impl PayloadWindow {
    /// The window of `slot`, for which this is called once, and the memory behind it.
    pub(super) fn new(arena: &Arc<Arena>, slot: usize) -> io::Result<(Self, PayloadView)> {
        let offset = slot * arena.slot_bytes;
        let mapping = Mapping::new(&arena.memory, offset, arena.slot_bytes)?;
        let window = Self { arena: Arc::clone(arena), start: arena.at(offset) };
        Ok((window, PayloadView { mapping, length: arena.payload_bytes }))
    }

    /// Puts fresh memory behind the window, and returns it. Not to be called while the kernel may
    /// use the window. Another process finds what lay there at first.
    pub(super) fn renew(&mut self) -> io::Result<PayloadView> {
        let length = self.arena.slot_bytes;
        let memory = memfd_create("fuse-payload", MemfdFlags::CLOEXEC)?;
        ftruncate(&memory, length as u64)?;
        let mapping = Mapping::new(&memory, 0, length)?;
        show(self.start, length, &memory, 0)?;
        Ok(PayloadView { mapping, length: self.len() })
    }

    /// Its address, for the kernel.
    pub(super) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> usize {
        self.arena.payload_bytes
    }
}

impl PayloadView {
    /// The content. Not to be called while the kernel may write to the window before it.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is initialized (zeroed at first), owned by `self` and borrowed for as
        // long as the slice lives. The window on the same memory is read and written by the kernel
        // only.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.start.as_ptr(), self.length) }
    }

    /// Makes the memory one piece, if the system can (Linux 6.1). Disks and copies take long pieces
    /// much faster than as many pages, but a piece is there as a whole, so this is for threads
    /// that move data in bulk. True if it is one now.
    pub(super) fn gather(&mut self) -> bool {
        // The binding does not have it: `MADV_COLLAPSE` of `linux/mman.h`.
        const MADV_COLLAPSE: libc::c_int = 25;
        // It makes no piece of nothing.
        let first = &mut self.bytes()[0];
        // SAFETY: a byte that is borrowed.
        unsafe { std::ptr::write_volatile(first, std::ptr::read_volatile(first)) };
        let (start, length) = (self.mapping.start, self.mapping.length);
        // SAFETY: the mapping is owned by `self`, and what it holds stays the same.
        let done = unsafe { libc::madvise(start.as_ptr().cast(), length, MADV_COLLAPSE) } == 0;
        if !done {
            tracing::debug!("a buffer stays in pieces: {}", io::Error::last_os_error());
        }
        done
    }
}

/// Memory at an address, which is a multiple of [`HUGE_PAGE_BYTES`] bytes.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// What was set aside to find such an address: start and length.
    reserved: Option<(NonNull<u8>, usize)>,
}

impl Mapping {
    /// Maps `length` bytes of `memory` from `offset` on.
    fn new(memory: &OwnedFd, offset: usize, length: usize) -> io::Result<Self> {
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
    fn release(&mut self) -> (NonNull<u8>, usize) {
        self.reserved.take().unwrap_or((self.start, self.length))
    }
}

/// Maps `memory` in place of what is at `start`, which belongs to the caller.
fn show(start: NonNull<u8>, length: usize, memory: &OwnedFd, offset: usize) -> io::Result<()> {
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

#[cfg(test)]
mod tests;
