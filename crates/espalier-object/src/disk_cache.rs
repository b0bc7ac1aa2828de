//! Disk cache: frames that were got and checked, in files of a local directory.
//!
//! Protocol: a frame lies, as it was got and with its trailer, in a *slot* of the file `frames`;
//! the file `index` says for each slot which frame it has. Both are written without a sync. When
//! all slots are taken, a hand goes round them and takes the first that was not read since it last
//! passed. A lock on `frames` keeps other processes out as long as the cache is open.
//!
//! Invariants:
//! - a frame is returned only if its checksum, which depends on object, session and number, is
//!   right. So accidental changes of the files, by a crash, a user or another program, lead to
//!   misses, and no order of writes has to be kept. Checksums do not stop a deliberate forgery;
//! - the files never take more than the bytes that were asked for;
//! - no failure of the local disk fails a read or a write: it ends caching at most.

mod slots;

use crate::format::{FRAME_BLOCKS, NewObject, frame_bytes, open_frame};
use bytes::Bytes;
use espalier_storage::{BLOCK, Error, ErrorKind, Operation, Result};
use espalier_sync::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use slots::{ENTRY_BYTES, Key, Slots};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a slot: those of a frame, up to the next block of the disk.
const SLOT_BYTES: u64 = frame_bytes(FRAME_BLOCKS).next_multiple_of(BLOCK) as u64;

/// The fewest slots.
const MIN_SLOTS: u64 = 16;

/// After so many failed writes in a row nothing more is written.
const MAX_FAILURES: u64 = 16;

/// Between two attempts at the lock.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// How often the lock is taken again because the file was replaced meanwhile.
const MAX_REPLACEMENTS: usize = 10;

/// What a disk cache did since it was opened, and what it has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct DiskCacheUsage {
    /// Frames that were asked for and there.
    pub hits: u64,
    /// Frames that were asked for and not there.
    pub misses: u64,
    /// Frames that were there and wrong, or could not be read.
    pub damaged: u64,
    /// Frames in it.
    pub frames: u64,
    /// Bytes of their slots.
    pub bytes: u64,
    /// Bytes that it may take.
    pub limit_bytes: u64,
    /// Frames that could not be written.
    pub failed_writes: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    damaged: AtomicU64,
    failed_writes: AtomicU64,
    /// Failed writes since the last one that succeeded.
    failures: AtomicU64,
}

/// Frames in a local directory.
#[derive(Debug)]
pub struct DiskCache {
    name: PathBuf,
    frames: File,
    index: File,
    slots: Mutex<Slots>,
    counters: Counters,
}

impl DiskCache {
    /// Opens the cache in a directory, which is made if it is not there, with at most `bytes` in
    /// it. What an earlier process left there is found again. Waits up to `wait` for a process that
    /// has it open and may just be ending.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if another process has it open; [`ErrorKind::Unsupported`] if `bytes`
    /// are too few; what the system says.
    pub fn open(directory: &Path, bytes: u64, wait: Duration) -> Result<Self> {
        let shown = || directory.display().to_string();
        let slots = bytes / (SLOT_BYTES + ENTRY_BYTES as u64);
        if slots < MIN_SLOTS {
            let least = (MIN_SLOTS * (SLOT_BYTES + ENTRY_BYTES as u64)).div_ceil(1 << 20);
            let message =
                format!("a disk cache of {bytes} bytes is too small; at least {least} MiB are needed");
            return Err(Error::new(ErrorKind::Unsupported, Operation::Open, shown(), message));
        }
        let limit = u32::try_from(slots).unwrap_or(u32::MAX);
        let failed = |error: io::Error| Error::system(Operation::Open, shown(), error);
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
        let frames = lock_before(directory, Instant::now() + wait)?;
        // A cache that was larger gives back what is too much.
        if frames.metadata().map_err(failed)?.len() > slots * SLOT_BYTES {
            frames.set_len(slots * SLOT_BYTES).map_err(failed)?;
        }
        let index = open_file(&directory.join("index")).map_err(failed)?;
        let slots = Slots::decode(&read_index(&index, limit), limit);
        index.set_len(slots.len() as u64 * ENTRY_BYTES as u64).map_err(failed)?;
        let counters = Counters::default();
        Ok(Self { name: directory.to_owned(), frames, index, slots: Mutex::new(slots), counters })
    }

    /// What it did and what it has.
    pub fn usage(&self) -> DiskCacheUsage {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let slots = self.slots.lock();
        DiskCacheUsage {
            hits: get(&self.counters.hits),
            misses: get(&self.counters.misses),
            damaged: get(&self.counters.damaged),
            frames: slots.used() as u64,
            bytes: slots.len() as u64 * SLOT_BYTES,
            limit_bytes: u64::from(slots.limit()) * SLOT_BYTES,
            failed_writes: get(&self.counters.failed_writes),
        }
    }

    /// True if a frame seems to be there.
    pub(crate) fn has(&self, object: &NewObject, frame: u32) -> bool {
        self.slots.lock().has(&Key::new(object, frame))
    }

    /// A frame with its trailer, if it is there and right.
    pub(crate) fn get(&self, object: &NewObject, frame: u32) -> Option<Bytes> {
        let key = Key::new(object, frame);
        let Some(slot) = self.slots.lock().find(&key) else {
            self.counters.misses.fetch_add(1, Ordering::Relaxed);
            return None;
        };
        let place = object.frames_at(frame..frame + 1);
        let mut bytes = vec![0; (place.end - place.start) as usize];
        let read = self.frames.read_exact_at(&mut bytes, u64::from(slot) * SLOT_BYTES);
        if read.is_ok() && open_frame(object.id, object.nonce, frame, &bytes).is_ok() {
            self.counters.hits.fetch_add(1, Ordering::Relaxed);
            return Some(bytes.into());
        }
        // Unless the slot was given to another frame while it was read.
        let damaged = self.slots.lock().forget(&key, slot);
        let counter = if damaged { &self.counters.damaged } else { &self.counters.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Keeps a frame, with its trailer, that was checked.
    pub(crate) fn insert(&self, object: &NewObject, frame: u32, bytes: &[u8]) {
        if bytes.len() as u64 > SLOT_BYTES || self.counters.failures.load(Ordering::Relaxed) >= MAX_FAILURES {
            return;
        }
        let key = Key::new(object, frame);
        let Some(slot) = self.slots.lock().begin(&key) else { return };
        let written = self
            .frames
            .write_all_at(bytes, u64::from(slot) * SLOT_BYTES)
            .and_then(|()| self.index.write_all_at(&key.encode(slot), u64::from(slot) * ENTRY_BYTES as u64));
        match written {
            Ok(()) => {
                self.slots.lock().end(&key, slot);
                self.counters.failures.store(0, Ordering::Relaxed);
            }
            Err(error) => self.failed(slot, &error),
        }
    }

    /// A slot could not be written: if the disk is full, the cache stays as large as it is.
    fn failed(&self, slot: u32, error: &io::Error) {
        let limit = self.slots.lock().give_up(slot);
        self.counters.failed_writes.fetch_add(1, Ordering::Relaxed);
        let failures = self.counters.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures == 1 {
            let bytes = u64::from(limit) * SLOT_BYTES;
            tracing::warn!(cache = %self.name.display(), %error, bytes, "the disk cache cannot grow");
        } else if failures == MAX_FAILURES {
            tracing::warn!(cache = %self.name.display(), %error, "nothing more is written to the disk cache");
        }
    }
}

fn lock_before(directory: &Path, end: Instant) -> Result<File> {
    loop {
        match lock(directory) {
            Err(error) if error.kind == ErrorKind::Busy && Instant::now() < end => {
                std::thread::sleep(LOCK_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Opens the file with the frames and takes its lock.
fn lock(directory: &Path) -> Result<File> {
    let path = directory.join("frames");
    let failed = |error: io::Error| Error::system(Operation::Open, path.display().to_string(), error);
    for _ in 0..MAX_REPLACEMENTS {
        let file = open_file(&path).map_err(failed)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let message =
                    "another process has this disk cache in use; every mount needs a directory of its own";
                let name = directory.display().to_string();
                return Err(Error::new(ErrorKind::Busy, Operation::Open, name, message));
            }
            Err(error) => return Err(failed(error.into())),
        }
        // A file that was deleted before it was locked keeps no other process out.
        let held = file.metadata().map_err(failed)?;
        let named = path.symlink_metadata();
        if named.is_ok_and(|named| (named.dev(), named.ino()) == (held.dev(), held.ino())) {
            return Ok(file);
        }
    }
    Err(failed(io::Error::other("it is deleted again and again")))
}

/// Opens a file of the cache, never through a symbolic link.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    Ok(file)
}

/// The bytes of the index, as far as they concern slots and can be read.
fn read_index(index: &File, limit: u32) -> Vec<u8> {
    let length = index.metadata().map_or(0, |metadata| metadata.len());
    let mut bytes = vec![0; length.min(u64::from(limit) * ENTRY_BYTES as u64) as usize];
    match index.read_exact_at(&mut bytes, 0) {
        Ok(()) => bytes,
        Err(error) => {
            tracing::warn!(%error, "the index of the disk cache cannot be read; the cache begins empty");
            Vec::new()
        }
    }
}
