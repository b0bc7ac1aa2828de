//! Work on a tree by system calls, each on one file, as programs do it on any file system.

use super::bench::by_clients;
use super::work::{Work, WorkFile};
use anyhow::{Context, Result, ensure};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, open, openat, statat, symlinkat};
use rustix::io::{read, write};
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Files that a client takes at a time.
pub(super) const BATCH: usize = 256;
/// What is read at a time; most files need one call.
const READ_BYTES: usize = 256 << 10;

fn directory(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).with_context(|| path.display().to_string())
}

/// Fills the directory `top`, which is there.
pub(super) fn create(work: &Work, top: &Path, clients: usize) -> Result<()> {
    for dir in &work.directories {
        fs::create_dir(top.join(dir))?;
    }
    let (next, top) = (AtomicUsize::new(0), directory(top)?);
    by_clients(clients, |_| {
        while let Some(batch) = work.files.chunks(BATCH).nth(next.fetch_add(1, Ordering::Relaxed)) {
            batch.iter().try_for_each(|file| create_one(work, file, &top))?;
        }
        Ok(())
    })
}

fn create_one(work: &Work, file: &WorkFile, top: &OwnedFd) -> Result<()> {
    let mut content = work.content(file);
    if file.is_symlink() {
        return Ok(symlinkat(content, top, file.path.as_str())?);
    }
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let made = openat(top, file.path.as_str(), flags, Mode::from_raw_mode(file.mode))?;
    while !content.is_empty() {
        content = &content[write(&made, content)?..];
    }
    Ok(())
}

/// Lists everything below the shares, with attributes.
pub(super) fn list(work: &Work, top: &Path, clients: usize) -> Result<()> {
    let shares = work.shares(clients);
    let (next, found) = (AtomicUsize::new(0), AtomicUsize::new(0));
    by_clients(clients, |_| {
        while let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
            found.fetch_add(list_one(&top.join(&**share))?, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let (found, there) = (found.into_inner(), work.entries(clients));
    ensure!(found == there, "{found} of {there} entries were listed");
    Ok(())
}

fn list_one(dir: &Path) -> Result<usize> {
    let open = openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut entries = 0;
    for entry in rustix::fs::Dir::read_from(&open)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        entries += 1;
        let stat = statat(open.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode).is_dir() {
            entries += list_one(&dir.join(name.to_str()?))?;
        }
    }
    Ok(entries)
}

/// Reads files whole, in the order of `order`.
pub(super) fn read_all(work: &Work, top: &Path, order: &[&WorkFile], clients: usize) -> Result<()> {
    let (next, bytes, top) = (AtomicUsize::new(0), AtomicU64::new(0), directory(top)?);
    by_clients(clients, |_| {
        let mut buffer = vec![0; READ_BYTES];
        while let Some(batch) = order.chunks(BATCH).nth(next.fetch_add(1, Ordering::Relaxed)) {
            for file in batch {
                let opened =
                    openat(&top, file.path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                loop {
                    let length = read(&opened, &mut buffer)?;
                    bytes.fetch_add(length as u64, Ordering::Relaxed);
                    if length < buffer.len() {
                        break;
                    }
                }
            }
        }
        Ok(())
    })?;
    ensure!(bytes.into_inner() == work.bytes, "not all of the content was read");
    Ok(())
}

/// Removes everything.
pub(super) fn remove(work: &Work, top: &Path, clients: usize) -> Result<()> {
    let (shares, next) = (work.shares(clients), AtomicUsize::new(0));
    if clients > 1 {
        by_clients(clients, |_| {
            while let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
                fs::remove_dir_all(top.join(&**share))?;
            }
            Ok(())
        })?;
    }
    Ok(fs::remove_dir_all(top)?)
}
