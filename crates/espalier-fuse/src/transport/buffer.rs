//! Page-aligned memory that the kernel fills.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

const PAGE: usize = 4096;

/// Zeroed, page-aligned bytes. Pages that are never touched cost nothing.
pub(super) struct Buffer {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the buffer owns its memory, and gives access through `&mut self` only.
unsafe impl Send for Buffer {}

impl Buffer {
    /// A buffer of `length` bytes, rounded up to pages.
    pub(super) fn new(length: usize) -> io::Result<Self> {
        let length = length.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(length, PAGE).map_err(io::Error::other)?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, layout })
    }

    /// Its address, for the kernel.
    pub(super) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> usize {
        self.layout.size()
    }

    /// Its content. Not to be called while the kernel may write to it.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is initialized (zeroed at first, then whatever was written), owned by `self`,
        // and borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and nobody else frees it.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
