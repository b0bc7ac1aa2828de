//! Opening and creating: checks, locks, the claim on block devices, direct I/O where it works.

use super::options::{Existing, FileOptions, OpenMode};
use super::system::{block_device_len, retry};
use super::{FileDevice, Turns};
use crate::{AlignedBuf, BLOCK, Device, Error, ErrorKind, Operation, Result};
use espalier_sync::Mutex;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

/// How often a lock that another process holds is tried.
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(20);

impl FileDevice {
    /// Opens an image file or block device with direct I/O, without waiting for the lock.
    ///
    /// # Errors
    /// As for [`FileDevice::open_with`].
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Self> {
        Self::open_with(path, &FileOptions::new(mode))
    }

    /// Opens an image file or block device.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`], [`ErrorKind::PermissionDenied`], [`ErrorKind::ReadOnly`];
    /// [`ErrorKind::Busy`] if another process holds the lock or the block device is mounted;
    /// [`ErrorKind::Unsupported`] for a directory or another thing that is no storage.
    pub fn open_with(path: impl AsRef<Path>, options: &FileOptions) -> Result<Self> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let system = |e: Errno| Error::system(Operation::Open, &name, e);
        // Before the open, because opening a tape drive or a pipe has effects of its own.
        let Some(block_device) = is_block_device(path).map_err(system)? else {
            return Err(not_storage(&name, path));
        };
        let access = match options.mode {
            OpenMode::ReadOnly => OFlags::RDONLY,
            OpenMode::ReadWrite => OFlags::RDWR,
        };
        let claim = if block_device && options.mode == OpenMode::ReadWrite {
            Some(claim_block_device(path, &name, options.wait)?)
        } else {
            None
        };
        let (file, direct) = open_file(path, access, options.direct).map_err(system)?;
        lock(&file, &name, options)?;
        let len = storage_len(&file, block_device).map_err(system)?;
        let direct = direct && direct_works(&file, len);
        if !direct {
            buffered(&file, options.direct, &name).map_err(system)?;
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            name,
            len: AtomicU64::new(len / BLOCK as u64 * BLOCK as u64),
            mode: options.mode,
            block_device,
            direct,
            claim: Mutex::new(claim),
            discards: AtomicBool::new(true),
            sync_failed: AtomicBool::new(false),
            large_reads: Turns::default(),
        })
    }

    /// The device that another process has open as `file`, a descriptor that it passed on: its lock
    /// belongs to both, and ends with the last of them. `path` is how that process opened it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for something that is no storage; what the system says.
    pub fn from_descriptor(file: OwnedFd, path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let name = path.display().to_string();
        let system = |e: Errno| Error::system(Operation::Open, &name, e);
        let block_device = match FileType::from_raw_mode(rustix::fs::fstat(&file).map_err(system)?.st_mode) {
            FileType::BlockDevice => true,
            FileType::RegularFile => false,
            _ => return Err(not_storage(&name, path)),
        };
        let flags = rustix::fs::fcntl_getfl(&file).map_err(system)?;
        let writes = flags.contains(OFlags::RDWR);
        let file = File::from(file);
        let len = storage_len(&file, block_device).map_err(system)?;
        Ok(Self {
            file,
            path: path.to_owned(),
            name,
            len: AtomicU64::new(len / BLOCK as u64 * BLOCK as u64),
            mode: if writes { OpenMode::ReadWrite } else { OpenMode::ReadOnly },
            block_device,
            direct: flags.contains(OFlags::DIRECT),
            claim: Mutex::new(None),
            discards: AtomicBool::new(true),
            sync_failed: AtomicBool::new(false),
            large_reads: Turns::default(),
        })
    }

    /// Creates a sparse image file of `len` bytes, rounded down to whole blocks, and opens it. An
    /// empty file that is there already is used.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if a file with content is there; else as for
    /// [`FileDevice::open_with`], and [`ErrorKind::NoSpace`] if the file cannot be so long.
    pub fn create(path: impl AsRef<Path>, len: u64) -> Result<Self> {
        Self::create_with(path, len, Existing::Refuse)
    }

    /// [`FileDevice::create`] with a say in what happens to an existing file. A block device keeps
    /// its size, which must be at least `len`, and is not touched.
    ///
    /// # Errors
    /// As for [`FileDevice::create`].
    pub fn create_with(path: impl AsRef<Path>, len: u64, existing: Existing) -> Result<Self> {
        let path = path.as_ref();
        let name = path.display().to_string();
        // Only the owner may read an image: it holds the files of all users.
        let mode = Mode::RUSR | Mode::WUSR;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let created = match rustix::fs::open(path, flags, mode) {
            Ok(_) => true,
            Err(Errno::EXIST) => false,
            Err(e) => return Err(Error::system(Operation::Open, &name, e)),
        };
        let prepared = Self::open(path, OpenMode::ReadWrite)
            .and_then(|mut device| device.prepare(len, existing).map(|()| device));
        if prepared.as_ref().is_err_and(|e| created && e.kind != ErrorKind::Busy) {
            // Best effort: the error that matters is the first.
            let _ = std::fs::remove_file(path);
        }
        prepared
    }

    /// Brings a file just opened to its length and makes its name durable.
    fn prepare(&mut self, len: u64, existing: Existing) -> Result<()> {
        let name = self.name.clone();
        let error = |kind, message: String| Err(Error::new(kind, Operation::Open, &name, message));
        let system = |e: std::io::Error| Error::system(Operation::Resize, &name, e);
        let present = storage_len(&self.file, self.block_device).map_err(|e| system(e.into()))?;
        if self.block_device {
            return if present >= len {
                Ok(())
            } else {
                error(
                    ErrorKind::NoSpace,
                    format!("the block device has only {present} bytes, {len} are wanted"),
                )
            };
        }
        if present != 0 {
            if existing == Existing::Refuse {
                let message = format!("a file with {present} bytes is there already; it was left as it is");
                return error(ErrorKind::AlreadyExists, message);
            }
            self.file.set_len(0).map_err(system)?;
            self.len.store(0, std::sync::atomic::Ordering::Release);
        }
        self.grow(len)?;
        if self.direct && !direct_works(&self.file, self.len()) {
            buffered(&self.file, true, &self.name).map_err(|e| system(e.into()))?;
            self.direct = false;
        }
        self.file.sync_all().map_err(system)?;
        sync_parent(&self.path).map_err(system)
    }
}

/// `None` if it is neither a block device nor a regular file.
fn is_block_device(path: &Path) -> rustix::io::Result<Option<bool>> {
    match FileType::from_raw_mode(rustix::fs::stat(path)?.st_mode) {
        FileType::BlockDevice => Ok(Some(true)),
        FileType::RegularFile => Ok(Some(false)),
        _ => Ok(None),
    }
}

fn not_storage(name: &str, path: &Path) -> Error {
    let what = if path.is_dir() { "it is a directory" } else { "it is neither a file nor a block device" };
    let message = format!("{what}; name an image file or a block device");
    Error::new(ErrorKind::Unsupported, Operation::Open, name, message)
}

/// Opens for direct I/O if wanted and the file system knows it; says if it did.
fn open_file(path: &Path, access: OFlags, direct: bool) -> rustix::io::Result<(File, bool)> {
    let flags = access | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let open = |flags| rustix::fs::open(path, flags, Mode::empty()).map(File::from);
    if direct {
        match open(flags | OFlags::DIRECT) {
            Err(Errno::INVAL) => {}
            other => return other.map(|file| (file, true)),
        }
    }
    Ok((open(flags)?, false))
}

/// Direct I/O in units of [`BLOCK`] may still be refused by the first request.
fn direct_works(file: &File, len: u64) -> bool {
    if len < BLOCK as u64 {
        return true;
    }
    let mut block = AlignedBuf::zeroed(BLOCK);
    let mut slices = [IoSliceMut::new(&mut block)];
    // A medium error is for the first real reader to report.
    retry(|| rustix::io::preadv(file, &mut slices, 0)) != Err(Errno::INVAL)
}

/// Goes on through the page cache, and says so if direct I/O was wanted.
fn buffered(file: &File, wanted: bool, name: &str) -> rustix::io::Result<()> {
    let flags = rustix::fs::fcntl_getfl(file)?;
    rustix::fs::fcntl_setfl(file, flags - OFlags::DIRECT)?;
    if wanted {
        tracing::warn!(device = name, "no direct I/O here; data will be cached twice");
    }
    Ok(())
}

/// Takes the lock, waiting for it as long as the options say.
fn lock(file: &File, name: &str, options: &FileOptions) -> Result<()> {
    let operation = match options.mode {
        OpenMode::ReadOnly => FlockOperation::NonBlockingLockShared,
        OpenMode::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    let outcome = wait_for(options.wait, Errno::WOULDBLOCK, || rustix::fs::flock(file, operation));
    outcome.map_err(|e| match e {
        Errno::WOULDBLOCK => {
            let message = "another process has it open; unmount it or let the other program end";
            Error::new(ErrorKind::Busy, Operation::Open, name, message)
        }
        e => Error::system(Operation::Open, name, e),
    })
}

/// Tries until the outcome is another than `busy` or the time is over.
fn wait_for<T>(
    wait: Duration,
    busy: Errno,
    mut attempt: impl FnMut() -> rustix::io::Result<T>,
) -> rustix::io::Result<T> {
    let deadline = Instant::now() + wait;
    loop {
        match retry(&mut attempt) {
            Err(e) if e == busy && Instant::now() < deadline => std::thread::sleep(LOCK_RETRY_INTERVAL),
            other => return other,
        }
    }
}

/// Opens a block device as the kernel's file systems do, so that neither can have it twice.
fn claim_block_device(path: &Path, name: &str, wait: Duration) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let busy = |message| Error::new(ErrorKind::Busy, Operation::Open, name, message);
    wait_for(wait, Errno::BUSY, || {
        if mounted_at(path).is_some() {
            Err(Errno::BUSY)
        } else {
            rustix::fs::open(path, flags, Mode::empty())
        }
    })
    .map_err(|e| match (e, mounted_at(path)) {
        (_, Some(at)) => busy(format!("it is mounted at {}; unmount it first", at.display())),
        (Errno::BUSY, None) => busy("another program or the kernel uses it".to_owned()),
        (e, None) => Error::system(Operation::Open, name, e),
    })
}

/// Where the block device is mounted, if it is.
fn mounted_at(path: &Path) -> Option<PathBuf> {
    let device = rustix::fs::stat(path).ok()?.st_rdev;
    let table = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    find_mount(&table, (rustix::fs::major(device), rustix::fs::minor(device)), |source| {
        rustix::fs::stat(source)
            .is_ok_and(|s| FileType::from_raw_mode(s.st_mode) == FileType::BlockDevice && s.st_rdev == device)
    })
}

/// Looks through a mount table (proc(5), `/proc/pid/mountinfo`) for a device, by its number or by
/// the name of the mount's source: some file systems show a number of their own.
pub(super) fn find_mount(
    table: &str,
    (major, minor): (u32, u32),
    is_device: impl Fn(&str) -> bool,
) -> Option<PathBuf> {
    let number = format!("{major}:{minor}");
    table.lines().find_map(|line| {
        let (mount, source) = line.split_once(" - ")?;
        let mut fields = mount.split(' ');
        let same = fields.nth(2)? == number;
        let point = fields.nth(1)?;
        let source = unescape(source.split(' ').nth(1)?);
        (same || (source.starts_with('/') && is_device(&source))).then(|| PathBuf::from(unescape(point)))
    })
}

/// Undoes the octal escapes of the mount table.
fn unescape(field: &str) -> String {
    [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", r"\")]
        .into_iter()
        .fold(field.to_owned(), |text, (escape, character)| text.replace(escape, character))
}

/// Length in bytes of what is open.
fn storage_len(file: &File, block_device: bool) -> rustix::io::Result<u64> {
    if block_device { block_device_len(file.as_fd()) } else { Ok(rustix::fs::fstat(file)?.st_size as u64) }
}

/// Makes the name of a new file durable.
fn sync_parent(path: &Path) -> std::io::Result<()> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}
