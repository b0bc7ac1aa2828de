//! Work on a tree by clients of the mount, past the kernel, on many files with each call.

use super::bench::by_clients;
use super::system_calls::BATCH;
use super::work::{Work, WorkFile};
use anyhow::{Context, Result, ensure};
use espalier_client::{Client, Listing, Piece, Write, WriteFlags};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Fills the directory `top`, which is there.
pub(super) fn create(work: &Work, top: &Path, clients: usize) -> Result<()> {
    let next = AtomicUsize::new(0);
    by_clients(clients, |_| {
        let client = Client::connect(top)?;
        while let Some(batch) = work.files.chunks(BATCH).nth(next.fetch_add(1, Ordering::Relaxed)) {
            let files: Vec<Write<'_>> = batch.iter().map(|file| as_write(work, file)).collect();
            for written in client.write_many(&files, WriteFlags::default()) {
                written?;
            }
        }
        Ok(())
    })
}

fn as_write<'w>(work: &'w Work, file: &'w WorkFile) -> Write<'w> {
    match file.is_symlink() {
        true => Write::symlink(&file.path, work.content(file)),
        false => Write::file(&file.path, work.content(file)).with_mode(file.mode),
    }
}

/// Lists everything below the shares, with attributes.
pub(super) fn list(work: &Work, top: &Path, clients: usize) -> Result<()> {
    let shares = work.shares(clients);
    let (next, found) = (AtomicUsize::new(0), AtomicUsize::new(0));
    by_clients(clients, |_| {
        let client = Client::connect(top)?;
        while let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (mut entries, mut has_names) = (0, true);
            client.walk(share.as_bytes(), &Listing::default())?.visit(|entry| {
                has_names &= !entry.path.is_empty();
                entries += 1;
                true
            })?;
            ensure!(has_names, "an entry without a name");
            found.fetch_add(entries, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let (found, there) = (found.into_inner(), work.entries(clients));
    ensure!(found == there, "{found} of {there} entries were listed");
    Ok(())
}

/// Reads files whole, in the order of `order`.
pub(super) fn read_all(work: &Work, top: &Path, order: &[&WorkFile], clients: usize) -> Result<()> {
    let (next, bytes) = (AtomicUsize::new(0), AtomicU64::new(0));
    by_clients(clients, |_| {
        let client = Client::connect(top)?;
        while let Some(batch) = order.chunks(BATCH).nth(next.fetch_add(1, Ordering::Relaxed)) {
            let pieces: Vec<Piece<'_>> = batch
                .iter()
                .map(|file| Piece { path: file.path.as_bytes(), offset: 0, length: u64::MAX })
                .collect();
            let mut failed = None;
            client.read_many(&pieces, &mut |_, data| match data {
                Ok(data) => {
                    bytes.fetch_add(data.len() as u64, Ordering::Relaxed);
                    true
                }
                Err(error) => {
                    failed = Some(error);
                    false
                }
            })?;
            if let Some(error) = failed {
                return Err(error).context("a file was not read");
            }
        }
        Ok(())
    })?;
    ensure!(bytes.into_inner() == work.bytes, "not all of the content was read");
    Ok(())
}

/// Removes everything.
pub(super) fn remove(work: &Work, top: &Path, clients: usize) -> Result<()> {
    let above = top.parent().context("a directory at the top")?;
    let name = top.file_name().context("a directory without a name")?;
    let (shares, next) = (work.shares(clients), AtomicUsize::new(0));
    if clients > 1 {
        by_clients(clients, |_| {
            let client = Client::connect(top)?;
            while let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) {
                client.remove_tree(share.as_bytes())?;
            }
            Ok(())
        })?;
    }
    Ok(Client::connect(above)?.remove_tree(name.as_encoded_bytes())?)
}
