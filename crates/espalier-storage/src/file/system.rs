//! Calls to the system that opening and using a file share.

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Calls until no signal interrupts.
pub(super) fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Length in bytes of a block device. Nothing here uses the file position.
pub(super) fn block_device_len(file: BorrowedFd<'_>) -> rustix::io::Result<u64> {
    rustix::fs::seek(file, SeekFrom::End(0))
}

/// `BLKDISCARD` of a byte range.
pub(super) fn block_device_discard(file: BorrowedFd<'_>, offset: u64, length: u64) -> rustix::io::Result<()> {
    const BLKDISCARD: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
    retry(|| {
        // SAFETY: BLKDISCARD reads two 64-bit integers, start and length, through its argument.
        let request = unsafe { rustix::ioctl::Setter::<BLKDISCARD, [u64; 2]>::new([offset, length]) };
        // SAFETY: the request matches its argument; it touches no memory of ours.
        unsafe { rustix::ioctl::ioctl(file, request) }
    })
}
