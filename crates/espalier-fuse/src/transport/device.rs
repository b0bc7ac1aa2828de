//! `/dev/fuse`: one message per read, one per write.

use crate::protocol::reply;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

/// `FUSE_DEV_IOC_CLONE`: attaches a freshly opened device to the connection of another.
const IOC_CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;

/// A descriptor of a FUSE connection.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Opens the device, not yet connected to a mount.
    ///
    /// # Errors
    /// No FUSE in this kernel, or no right to use it.
    pub fn open() -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open("/dev/fuse", flags, Mode::empty())?))
    }

    /// A device that was opened elsewhere.
    pub fn from_descriptor(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }

    /// Another descriptor of the same connection, with a queue of its own for requests in work;
    /// where the device may not be opened (a mount made by a helper), a duplicate, which does the
    /// same more slowly.
    pub(super) fn another(&self) -> io::Result<Self> {
        self.cloned().or_else(|_| Ok(Self(rustix::io::fcntl_dupfd_cloexec(&self.0, 3)?)))
    }

    fn cloned(&self) -> io::Result<Self> {
        let device = Self::open()?;
        let mut source = self.0.as_raw_fd() as u32;
        // SAFETY: the ioctl reads one u32, which lives on the stack for the length of the call.
        if unsafe { libc::ioctl(device.0.as_raw_fd(), IOC_CLONE, &raw mut source) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(device)
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    /// True once a message (or the end of the connection) is there to be read; waits at most
    /// `milliseconds`, for ever if that is negative.
    pub(super) fn ready(&self, milliseconds: Option<u32>) -> io::Result<bool> {
        let timeout = milliseconds.map(|ms| rustix::event::Timespec {
            tv_sec: i64::from(ms / 1000),
            tv_nsec: i64::from(ms % 1000) * 1_000_000,
        });
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout.as_ref()) {
            Ok(ready) => Ok(ready != 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads one message; waits for it.
    ///
    /// # Errors
    /// ENODEV or ECONNABORTED when the connection has ended; EINTR when a signal came, and no
    /// message was read.
    pub(super) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                // The caller took the request back.
                Err(Errno::NOENT) => {}
                // The descriptor is shared with one that does not wait.
                Err(Errno::AGAIN) => {
                    poll(&mut [PollFd::new(&self.0, PollFlags::IN)], None)?;
                }
                result => return Ok(result?),
            }
        }
    }

    /// Answers a request with a body or a positive errno. A request that is no longer there is no
    /// error.
    ///
    /// # Errors
    /// What the device says, for instance that the connection has ended.
    pub(super) fn reply(&self, unique: u64, answer: Result<&[u8], i32>) -> io::Result<()> {
        let (body, errno) = match answer {
            Ok(body) => (body, 0),
            Err(errno) => (&[][..], errno),
        };
        let header = reply::header(body.len(), errno, unique);
        self.put(&[IoSlice::new(&header), IoSlice::new(body)])
    }

    /// Writes a message of several parts.
    pub(super) fn put(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        loop {
            match rustix::io::writev(&self.0, parts) {
                Err(Errno::INTR) => {}
                Err(Errno::NOENT) | Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Sends a notification. `Ok(false)`: the kernel does not have what it is about, which is as
    /// good.
    ///
    /// # Errors
    /// What the device says; a kernel that does not know the notification says `EINVAL`.
    pub fn notify(&self, message: &[u8]) -> io::Result<bool> {
        loop {
            match rustix::io::write(&self.0, message) {
                Err(Errno::INTR) => {}
                Err(Errno::NOENT) => return Ok(false),
                Ok(_) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// As [`Device::notify`], of a message in parts, some of which may be closed to the kernel
    /// meanwhile: then it is `EFAULT`. What was interrupted (`EINTR`) is not begun anew.
    pub(crate) fn notify_parts(&self, parts: &[libc::iovec]) -> io::Result<bool> {
        let (descriptor, count) = (self.0.as_raw_fd(), parts.len() as libc::c_int);
        // SAFETY: the kernel only reads the parts, and looks itself whether it may.
        if unsafe { libc::writev(descriptor, parts.as_ptr(), count) } >= 0 {
            return Ok(true);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() == Some(libc::ENOENT) { Ok(false) } else { Err(error) }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// True for the errors that mean that the kernel has ended the connection.
pub(super) fn is_end(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENODEV | libc::ECONNABORTED | libc::ENOTCONN))
}
