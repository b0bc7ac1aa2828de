//! Shared mappings of files.

use rustix::io::Result;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::File;

/// A shared mapping of the start of a file, and its bytes.
pub(crate) struct Mapped(*mut std::ffi::c_void, usize);

impl Mapped {
    pub(crate) fn of(file: &File, length: usize) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so nothing of ours lies there.
        let at = unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, 0) };
        Self(at.unwrap(), length)
    }

    /// Stores a byte.
    pub(crate) fn put(&self, at: u64, byte: u8) {
        assert!((at as usize) < self.1);
        // SAFETY: mapped, and within the file.
        unsafe { self.0.byte_add(at as usize).cast::<u8>().write_volatile(byte) }
    }

    /// Has the kernel write all pages back.
    pub(crate) fn sync(&self) -> Result<()> {
        // SAFETY: mapped, and the call changes no byte.
        unsafe { msync(self.0, self.1, MsyncFlags::SYNC) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it is not in use any more.
        unsafe { munmap(self.0, self.1) }.unwrap();
    }
}
