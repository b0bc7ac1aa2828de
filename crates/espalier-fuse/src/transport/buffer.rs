//! Page-aligned memory for messages of the device.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;

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
        let length = length.max(1).next_multiple_of(PAGE_BYTES);
        let layout = Layout::from_size_align(length, PAGE_BYTES).map_err(io::Error::other)?;
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let start = NonNull::new(start).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, layout })
    }

    /// Its content.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory is initialized (zeroed at first, then whatever was written), owned by
        // `self`, and borrowed for as long as the slice lives.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed nowhere else.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
