//! The memory of a connection's entries: where the kernel puts requests and takes replies from.
//!
//! Invariants:
//! 1. *All of it is one file in memory*, mapped at one place. Another process that has the file can
//!    map it at the same addresses, and go on with an entry whose addresses the kernel knows. So it
//!    lies where neither a heap nor other mappings of any process come to lie by themselves. If
//!    that place is taken it lies anywhere; then a handover may fail, and nothing else.
//! 2. *An address that the kernel knows stays mapped* until the last entry is dropped. What lies
//!    behind that of a payload can change (`payload`).
//!
//! The file has a slot for the payload of each entry, and after all of these a page for the headers
//! of each. Pages that are never touched cost nothing.

use super::mapping::{HUGE_PAGE_BYTES, Mapping, map_at, memory_file, unmap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
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
        let length = length(slots, payload_bytes);
        let memory = memory_file("fuse-rings", length)?;
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
        let (payload_bytes, slot_bytes) = (whole_pages(payload_bytes), slot_bytes(payload_bytes));
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

    /// Where the payload of `slot` lies: its address, and its place in the file.
    pub(super) fn payload_at(&self, slot: usize) -> (NonNull<u8>, usize) {
        let offset = slot * self.slot_bytes;
        (self.at(offset), offset)
    }

    /// How much is mapped for the payload of a slot.
    pub(super) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    /// The length of a payload.
    pub(super) fn payload_bytes(&self) -> usize {
        self.payload_bytes
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

/// The length of a payload in memory.
fn whole_pages(payload_bytes: usize) -> usize {
    payload_bytes.max(1).next_multiple_of(PAGE_BYTES)
}

/// How much lies from one slot to the next: if that is long, whole pieces.
fn slot_bytes(payload_bytes: usize) -> usize {
    let payload_bytes = whole_pages(payload_bytes);
    if payload_bytes < HUGE_PAGE_BYTES / 2 {
        payload_bytes
    } else {
        payload_bytes.next_multiple_of(HUGE_PAGE_BYTES)
    }
}

fn length(slots: usize, payload_bytes: usize) -> usize {
    slots * (slot_bytes(payload_bytes) + PAGE_BYTES)
}

/// The headers of an entry.
pub(super) struct Headers {
    /// Keeps them mapped.
    _arena: Arc<Arena>,
    start: NonNull<u8>,
}

// SAFETY: it gives access through `&mut self` only, and there is one for each slot.
unsafe impl Send for Headers {}

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
