//! Page-aligned memory for requests and replies, which the kernel fills and reads.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;
/// Length and alignment of memory that the system can keep as one piece.
const HUGE_PAGE_BYTES: usize = 2 << 20;

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

    /// Its address, for the kernel.
    pub(super) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Its content. Not to be called while the kernel may write to it.
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

/// Where the kernel puts payloads and takes them from: an address that stays, and memory behind it
/// that can be changed.
///
/// The thread that serves a request has the same memory at another address, the [`PayloadView`]. So
/// the address can be given other memory for the next request while the last one still uses what it
/// came in.
pub(super) struct PayloadWindow {
    mapping: Mapping,
    length: usize,
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
    /// A window of `length` bytes, rounded up to pages, and the memory behind it, zeroed. Pages
    /// that are never touched cost nothing.
    pub(super) fn new(length: usize) -> io::Result<(Self, PayloadView)> {
        let length = length.max(1).next_multiple_of(PAGE_BYTES);
        let memory = memory(length)?;
        let window = Self { mapping: Mapping::new(&memory, length)?, length };
        Ok((window, PayloadView { mapping: Mapping::new(&memory, length)?, length }))
    }

    /// Puts fresh memory behind the window, and returns it. Not to be called while the kernel may
    /// use the window.
    pub(super) fn renew(&mut self) -> io::Result<PayloadView> {
        let memory = memory(self.length)?;
        let view = PayloadView { mapping: Mapping::new(&memory, self.length)?, length: self.length };
        self.mapping.show(&memory)?;
        Ok(view)
    }

    /// Its address, for the kernel.
    pub(super) fn address(&self) -> *mut u8 {
        self.mapping.start.as_ptr()
    }

    /// Its length in bytes.
    pub(super) fn len(&self) -> usize {
        self.length
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
        // SAFETY: the mapping is owned by `self`, and what it holds stays the same.
        let done =
            unsafe { libc::madvise(self.mapping.start.as_ptr().cast(), self.mapping.length, MADV_COLLAPSE) }
                == 0;
        if !done {
            tracing::debug!("a buffer stays in pieces: {}", io::Error::last_os_error());
        }
        done
    }
}

fn memory(length: usize) -> io::Result<OwnedFd> {
    let memory = memfd_create("fuse-payload", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, mapped(length) as u64)?;
    Ok(memory)
}

/// How much is mapped for a window of `length` bytes: if that is long, whole pieces.
fn mapped(length: usize) -> usize {
    if length < HUGE_PAGE_BYTES / 2 { length } else { length.next_multiple_of(HUGE_PAGE_BYTES) }
}

/// Memory at an address, which is a multiple of [`HUGE_PAGE_BYTES`] bytes.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// What was set aside to find such an address: start and length.
    reserved: (NonNull<u8>, usize),
}

impl Mapping {
    /// Maps `memory` for a window of `length` bytes.
    fn new(memory: &OwnedFd, length: usize) -> io::Result<Self> {
        let length = mapped(length);
        let reserve = length + HUGE_PAGE_BYTES;
        // SAFETY: the kernel chooses an address that is not in use.
        let found =
            unsafe { mmap_anonymous(std::ptr::null_mut(), reserve, ProtFlags::empty(), MapFlags::PRIVATE)? };
        let first = NonNull::new(found.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let before = first.as_ptr().align_offset(HUGE_PAGE_BYTES);
        // SAFETY: fewer bytes than a piece, and one more piece than needed is set aside.
        let start = unsafe { first.add(before) };
        let mut mapping = Self { start, length, reserved: (first, reserve) };
        mapping.show(memory)?;
        Ok(mapping)
    }

    /// Maps `memory` in mapping of what is there.
    fn show(&mut self, memory: &OwnedFd) -> io::Result<()> {
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: these addresses are set aside for `self`, and no references to what is there
        // exist.
        unsafe { mmap(self.start.as_ptr().cast(), self.length, access, flags, memory, 0)? };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let (first, length) = self.reserved;
        // SAFETY: all this was set aside for `self`, whose owner is being dropped.
        if let Err(error) = unsafe { munmap(first.as_ptr().cast(), length) } {
            tracing::debug!(%error, "a buffer could not be unmapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads what the kernel would find at the window.
    fn seen(window: &PayloadWindow) -> u8 {
        // SAFETY: the window is mapped, and not written meanwhile.
        unsafe { window.address().read_volatile() }
    }

    #[test]
    fn a_window_shows_the_newest_memory_and_the_older_one_stays() {
        let (mut window, mut first) = PayloadWindow::new(PAGE_BYTES + 1).unwrap();
        assert_eq!((window.len(), first.bytes().len()), (2 * PAGE_BYTES, 2 * PAGE_BYTES));
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

    #[test]
    fn gathered_memory_holds_what_it_held() {
        let (mut window, mut view) = PayloadWindow::new(HUGE_PAGE_BYTES / 2).unwrap();
        view.bytes().fill(7);
        let gathered = view.gather();
        assert!(view.bytes().iter().all(|byte| *byte == 7));
        assert_eq!(seen(&window), 7);
        let mut next = window.renew().unwrap();
        assert_eq!((seen(&window), next.bytes()[0], view.bytes()[0]), (0, 0, 7));
        // Also what was never used.
        assert_eq!(next.gather(), gathered);
        assert!(next.bytes().iter().all(|byte| *byte == 0));
    }
}
