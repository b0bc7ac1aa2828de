//! The payload of an entry: at the address that the kernel knows, and where a thread uses it.
//!
//! The thread that serves a request has the memory of the [`PayloadWindow`] at another address, the
//! [`PayloadView`]. So the window can be given other memory for the next request while the last one
//! still uses what it came in.

use super::arena::Arena;
use super::mapping::{Mapping, memory_file, show};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

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

// SAFETY: a window gives no access to its memory, only to its address.
unsafe impl Send for PayloadWindow {}
// SAFETY: the view owns its mapping, and gives access through `&mut self` only.
unsafe impl Send for PayloadView {}

impl PayloadWindow {
    /// The window of `slot`, for which this is called once, and the memory behind it.
    pub(super) fn new(arena: &Arc<Arena>, slot: usize) -> io::Result<(Self, PayloadView)> {
        let (start, offset) = arena.payload_at(slot);
        let mapping = Mapping::new(&arena.memory(), offset, arena.slot_bytes())?;
        let window = Self { arena: Arc::clone(arena), start };
        Ok((window, PayloadView { mapping, length: arena.payload_bytes() }))
    }

    /// Puts fresh memory behind the window, and returns it. Not to be called while the kernel may
    /// use the window. Another process finds what lay there at first.
    pub(super) fn renew(&mut self) -> io::Result<PayloadView> {
        let length = self.arena.slot_bytes();
        let memory = memory_file("fuse-payload", length)?;
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
        self.arena.payload_bytes()
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

#[cfg(test)]
mod tests;
