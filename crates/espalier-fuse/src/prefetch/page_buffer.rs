//! The page buffer: memory from which the kernel copies prefetched pages, and which can be made
//! inaccessible to it meanwhile.

use crate::transport::Device;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// Page-aligned memory of one owner, which fills it and has the kernel copy it.
pub(super) struct PageBuffer(Arc<PageMapping>);

/// Keeps the kernel from going on to copy out of a [`PageBuffer`]; from any thread.
#[derive(Clone)]
pub(super) struct Gate(Arc<PageMapping>);

struct PageMapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: a mapping gives no access to its memory but through the `&mut` of the one buffer that
// has it.
unsafe impl Send for PageMapping {}
// SAFETY: as above; what a gate does is a system call on addresses.
unsafe impl Sync for PageMapping {}

impl PageBuffer {
    /// Memory of `length` bytes, and its gate, which is open. Pages that are never touched cost
    /// nothing.
    pub(super) fn new(length: usize) -> io::Result<(Self, Gate)> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that is not in use.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, access, MapFlags::PRIVATE)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Arc::new(PageMapping { start, length });
        Ok((Self(Arc::clone(&mapping)), Gate(mapping)))
    }

    /// Bytes that it holds.
    pub(super) fn len(&self) -> usize {
        self.0.length
    }

    /// Its content. To be used only while the gate is open; access through a closed one ends the
    /// process.
    pub(super) fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is initialized (zeroed at first), and borrowed with `self`, of which
        // there is one.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.length) }
    }

    /// Sends a notification whose data are the first `length` bytes. The gate may be closed
    /// meanwhile.
    ///
    /// # Errors
    /// As for [`Device::notify`]; `EFAULT` if the gate was closed before all was copied.
    pub(super) fn send(&self, device: &Device, header: &[u8], length: usize) -> io::Result<bool> {
        debug_assert!(length <= self.len());
        let part =
            |start: *const u8, length| libc::iovec { iov_base: start.cast_mut().cast(), iov_len: length };
        // No reference to memory that may be closed.
        let parts = [part(header.as_ptr(), header.len()), part(self.0.start.as_ptr(), length)];
        device.notify_parts(&parts)
    }
}

impl Gate {
    /// From the return of this until [`Gate::open`] the kernel begins to copy no further page. The
    /// page under way it may copy to its end: it has locked the page that it copies to before it
    /// takes the one that it copies from.
    ///
    /// # Errors
    /// What the system says; then the gate stays open.
    pub(super) fn close(&self) -> io::Result<()> {
        self.protect(MprotectFlags::empty())
    }

    /// Makes the memory accessible again.
    ///
    /// # Errors
    /// What the system says; then the gate stays closed.
    pub(super) fn open(&self) -> io::Result<()> {
        self.protect(MprotectFlags::READ | MprotectFlags::WRITE)
    }

    fn protect(&self, access: MprotectFlags) -> io::Result<()> {
        // SAFETY: the mapping lives as long as the gate. No code reads or writes what is closed:
        // `PageBuffer::bytes` forbids it.
        unsafe { mprotect(self.0.start.as_ptr().cast(), self.0.length, access)? };
        Ok(())
    }
}

impl Drop for PageMapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and neither a buffer nor a gate is left.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.length) } {
            tracing::debug!(%error, "page buffer could not be unmapped");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;

    #[test]
    fn nothing_leaves_through_a_closed_gate() {
        let (mut buffer, gate) = PageBuffer::new(8192).unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        let device = Device::from_descriptor(OwnedFd::from(writer));
        buffer.bytes()[..5].copy_from_slice(b"first");
        assert!(buffer.send(&device, b"to: ", 5).unwrap());
        let mut came = [0; 9];
        reader.read_exact(&mut came).unwrap();
        assert_eq!(&came, b"to: first");
        gate.close().unwrap();
        // A pipe takes what comes before that, and says so.
        let sent = buffer.send(&device, b"", 5).map_err(|error| error.raw_os_error());
        assert_eq!(sent, Err(Some(libc::EFAULT)));
        gate.open().unwrap();
        assert_eq!(&buffer.bytes()[..5], b"first");
        assert!(buffer.send(&device, b"", 5).unwrap());
        let mut again = [0; 5];
        reader.read_exact(&mut again).unwrap();
        assert_eq!(&again, b"first");
    }
}
