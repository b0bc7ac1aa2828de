//! The io_uring of a serving thread: one command at a time, and the wait for its completion.
//!
//! A thread enters its ring once or twice for each request that it serves, so a ring is registered
//! with its thread: by its number there the kernel finds it without the table of files, which all
//! threads of the process share. That saves a tenth to a quarter of a microsecond of nine. The
//! binding can do that as well, but only in borrowed halves of a ring, and a ring must be dropped
//! before the buffers that it may fill.

use io_uring::{IoUring, cqueue, squeue};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};

/// Of `linux/io_uring.h`.
const REGISTER_RING_FDS: libc::c_uint = 20;
const UNREGISTER_RING_FDS: libc::c_uint = 21;
const ENTER_GETEVENTS: libc::c_uint = 1;
const ENTER_REGISTERED_RING: libc::c_uint = 1 << 4;

/// `struct io_uring_rsrc_update`.
#[repr(C)]
struct Update {
    /// Which number is wanted; afterwards, which it got.
    offset: u32,
    reserved: u32,
    data: u64,
}

/// A ring of the thread that made it.
pub(super) struct Ring {
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
    /// The number under which its thread has registered it.
    number: Option<u32>,
    /// Other threads cannot use the number.
    of_thread: PhantomData<*const ()>,
}

impl Ring {
    /// Makes a ring that the calling thread alone will use.
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_defer_taskrun();
        let mut ring = Self { ring: builder.build(2)?, number: None, of_thread: PhantomData };
        // Without a number the ring is used by its descriptor.
        ring.number = ring.renumber(REGISTER_RING_FDS, u32::MAX).ok();
        Ok(ring)
    }

    /// Registers the only file that commands are for.
    pub(super) fn register(&self, device: RawFd) -> io::Result<()> {
        self.ring.submitter().register_files(&[device])
    }

    /// Gives the ring a number, or takes it away: the number.
    fn renumber(&self, operation: libc::c_uint, number: u32) -> io::Result<u32> {
        let descriptor = self.ring.as_raw_fd();
        let mut update = Update { offset: number, reserved: 0, data: 0 };
        if operation == REGISTER_RING_FDS {
            update.data = descriptor as u64;
        }
        // SAFETY: the kernel reads and writes one `Update`, which lives for the length of the call.
        let done =
            unsafe { libc::syscall(libc::SYS_io_uring_register, descriptor, operation, &raw mut update, 1) };
        if done == 1 { Ok(update.offset) } else { Err(io::Error::last_os_error()) }
    }

    /// Queues a command.
    ///
    /// # Safety
    ///
    /// What the kernel reads because of it must live until it is submitted, and what it fills until
    /// its completion or until the ring is dropped.
    pub(super) unsafe fn push(&mut self, command: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: the condition is the same as that of this function.
        unsafe { self.ring.submission().push(command) }.map_err(io::Error::other)
    }

    /// How many commands are queued and not submitted.
    pub(super) fn queued(&mut self) -> usize {
        self.ring.submission().len()
    }

    /// The result of a completed command, if there is one.
    pub(super) fn completion(&mut self) -> Option<i32> {
        self.ring.completion().next().map(|completion| completion.result())
    }

    /// Submits what is queued. If `wait`, it returns when there is a completion, or a signal comes.
    pub(super) fn enter(&mut self, wait: bool) -> io::Result<()> {
        let queued = self.queued();
        let (name, by) = match self.number {
            Some(number) => (number.cast_signed(), ENTER_REGISTERED_RING),
            None => (self.ring.as_raw_fd(), 0),
        };
        let flags = by | if wait { ENTER_GETEVENTS } else { 0 };
        // SAFETY: the ring is this thread's own, and what is queued was pushed under the conditions
        // of `push`; there is no further argument.
        let entered = unsafe {
            libc::syscall(libc::SYS_io_uring_enter, name, queued, usize::from(wait), flags, 0_usize, 0_usize)
        };
        if entered < 0 {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // With its number the ring would live as long as the thread, and a command that is under
        // way could fill buffers that are gone.
        if let Some(number) = self.number.take() {
            let _ = self.renumber(UNREGISTER_RING_FDS, number);
        }
    }
}
