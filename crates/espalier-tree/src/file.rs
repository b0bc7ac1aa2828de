//! Open files: of a mount the kernel's, of an image the library's.

use crate::error::{Error, Result};
use espalier_bridge::stat_of;
use espalier_client::Stat;
use espalier_fs::Handle;
use rustix::fs::{AtFlags, StatxFlags};
use std::os::unix::fs::FileExt;

/// How a file is opened; the default opens nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenHow {
    /// To read.
    pub read: bool,
    /// To write.
    pub write: bool,
    /// A file that does not exist is made with this mode, less the umask.
    pub create: Option<u32>,
    /// With `create`: it must not exist.
    pub exclusive: bool,
    /// It is emptied.
    pub truncate: bool,
}

impl OpenHow {
    /// To read.
    pub fn read() -> Self {
        Self { read: true, ..Self::default() }
    }

    /// To read and write a file that exists.
    pub fn write() -> Self {
        Self { read: true, write: true, ..Self::default() }
    }

    /// To read and write a file that is made with `mode` if it does not exist.
    pub fn create(mode: u32) -> Self {
        Self { create: Some(mode), ..Self::write() }
    }
}

/// An open regular file. Rights were checked when it was opened; it stays the same file whatever
/// happens to its name. On a mount it is a descriptor of the kernel.
pub struct File(Opened);

enum Opened {
    Mounted(std::fs::File),
    Image(Handle),
}

impl File {
    pub(crate) fn of_mount(file: std::fs::File) -> Self {
        Self(Opened::Mounted(file))
    }

    pub(crate) fn of_image(handle: Handle) -> Self {
        Self(Opened::Image(handle))
    }

    /// Reads at byte `offset` (`pread`); returns how many bytes there were, 0 at the end.
    ///
    /// # Errors
    /// Those of `pread`; EBADF if it is not open to read.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        match &self.0 {
            Opened::Mounted(file) => Ok(file.read_at(out, offset)?),
            Opened::Image(handle) => handle.read_at(offset, out).map_err(not_opened),
        }
    }

    /// Writes all of `data` at byte `offset`.
    ///
    /// # Errors
    /// Those of `pwrite`; EBADF if it is not open to write. What was written before an error stays.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        match &self.0 {
            Opened::Mounted(file) => Ok(file.write_all_at(data, offset)?),
            Opened::Image(handle) => write_all(handle, offset, data).map_err(not_opened),
        }
    }

    /// The attributes.
    ///
    /// # Errors
    /// Those of `fstat`.
    pub fn stat(&self) -> Result<Stat> {
        match &self.0 {
            Opened::Mounted(file) => stat_of_system(file),
            Opened::Image(handle) => Ok(stat_of(&handle.stat()?)),
        }
    }

    /// Gives the file `size` bytes.
    ///
    /// # Errors
    /// Those of `ftruncate`.
    pub fn truncate(&self, size: u64) -> Result<()> {
        match &self.0 {
            Opened::Mounted(file) => Ok(file.set_len(size)?),
            Opened::Image(handle) => Ok(handle.truncate(size)?),
        }
    }

    /// Makes the content durable.
    ///
    /// # Errors
    /// EIO if the device fails.
    pub fn sync(&self) -> Result<()> {
        match &self.0 {
            Opened::Mounted(file) => Ok(file.sync_all()?),
            Opened::Image(handle) => Ok(handle.sync()?),
        }
    }
}

/// Writes all of `data`; where room is short, in pieces.
pub(crate) fn write_all(handle: &Handle, offset: u64, data: &[u8]) -> espalier_fs::Result<()> {
    let mut done = 0;
    while done < data.len() {
        done += handle.write_at(offset.saturating_add(done as u64), &data[done..])?;
    }
    Ok(())
}

/// A file that was not opened for the call is EBADF for the kernel.
fn not_opened(error: espalier_fs::FsError) -> Error {
    match error.kind() {
        espalier_fs::FsErrorKind::AccessDenied => Error::new(libc::EBADF, error.to_string()),
        _ => error.into(),
    }
}

/// Attributes of an open file of a mount.
fn stat_of_system(file: &std::fs::File) -> Result<Stat> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let stat = rustix::fs::statx(file, c"", AtFlags::EMPTY_PATH, wanted).map_err(std::io::Error::from)?;
    let nanoseconds = |time: rustix::fs::StatxTimestamp| {
        time.tv_sec.saturating_mul(1_000_000_000).saturating_add(time.tv_nsec.into())
    };
    Ok(Stat {
        ino: stat.stx_ino,
        mode: stat.stx_mode.into(),
        nlink: stat.stx_nlink,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        blocks: stat.stx_blocks,
        blksize: stat.stx_blksize,
        atime: nanoseconds(stat.stx_atime),
        mtime: nanoseconds(stat.stx_mtime),
        ctime: nanoseconds(stat.stx_ctime),
        btime: nanoseconds(stat.stx_btime),
    })
}
