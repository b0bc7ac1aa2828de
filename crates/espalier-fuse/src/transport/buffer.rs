//! Page-aligned memory that the kernel fills.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::OwnedFd;
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

/// Where the kernel puts payloads and takes them from: an address that stays, and memory behind it that can be changed.
///
/// Whoever serves a request has the same memory at another address, the [`View`]. So the address can be given other
/// memory for the next request while the last one still uses what it came in.
pub(super) struct Window {
    start: NonNull<u8>,
    length: usize,
}

/// The memory behind a [`Window`], now or formerly.
pub(super) struct View {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a window gives no access to its memory, only to its address.
unsafe impl Send for Window {}
// SAFETY: the view owns its mapping, and gives access through `&mut self` only.
unsafe impl Send for View {}

impl Window {
    /// A window of `length` bytes, rounded up to pages, and the memory behind it, zeroed. Pages that are never touched
    /// cost nothing.
    pub(super) fn new(length: usize) -> io::Result<(Self, View)> {
        let length = length.max(1).next_multiple_of(PAGE);
        let memory = memory(length)?;
        let window = Self { start: map(None, &memory, length)?, length };
        Ok((window, View { start: map(None, &memory, length)?, length }))
    }

    /// Puts fresh memory behind the window, and returns it. Not to be called while the kernel may use the window.
    pub(super) fn renew(&mut self) -> io::Result<View> {
        let memory = memory(self.length)?;
        let view = View { start: map(None, &memory, self.length)?, length: self.length };
        map(Some(self.start), &memory, self.length)?;
        Ok(view)
    }

    /// Its address, for the kernel.
    pub(super) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> usize {
        self.length
    }
}

impl View {
    /// The content. Not to be called while the kernel may write to the window before it.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is initialized (zeroed at first), owned by `self` and borrowed for as long as the slice
        // lives. The window on the same memory is read and written by the kernel only.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

fn memory(length: usize) -> io::Result<OwnedFd> {
    let memory = memfd_create("fuse-payload", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, length as u64)?;
    Ok(memory)
}

/// Maps `memory` anywhere, or in place of what is mapped at an address.
fn map(at: Option<NonNull<u8>>, memory: &OwnedFd, length: usize) -> io::Result<NonNull<u8>> {
    let fixed = if at.is_some() { MapFlags::FIXED } else { MapFlags::empty() };
    let address = at.map_or(std::ptr::null_mut(), |at| at.as_ptr().cast());
    // SAFETY: either the kernel chooses an address that nobody uses, or `at` is the start of a window's mapping of
    // this length, to which no references exist.
    let mapped = unsafe {
        mmap(address, length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | fixed, memory, 0)?
    };
    NonNull::new(mapped.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

fn unmap(start: NonNull<u8>, length: usize) {
    // SAFETY: the mapping was made by `map` with this length, and its owner is being dropped.
    if let Err(error) = unsafe { munmap(start.as_ptr().cast(), length) } {
        tracing::debug!(%error, "a buffer could not be unmapped");
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        unmap(self.start, self.length);
    }
}

impl Drop for View {
    fn drop(&mut self) {
        unmap(self.start, self.length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads what the kernel would find at the window.
    fn seen(window: &Window) -> u8 {
        // SAFETY: the window is mapped, and nobody writes meanwhile.
        unsafe { window.address().read_volatile() }
    }

    #[test]
    fn a_window_shows_the_newest_memory_and_the_older_one_stays() {
        let (mut window, mut first) = Window::new(PAGE + 1).unwrap();
        assert_eq!((window.len(), first.bytes().len()), (2 * PAGE, 2 * PAGE));
        first.bytes()[0] = 1;
        assert_eq!(seen(&window), 1);
        let mut second = window.renew().unwrap();
        assert_eq!(seen(&window), 0);
        second.bytes()[0] = 2;
        first.bytes()[0] = 3;
        assert_eq!((seen(&window), second.bytes()[0], first.bytes()[0]), (2, 2, 3));
        drop(window);
        assert_eq!(second.bytes()[0], 2);
    }
}
