//! Deferred unlinks: small unlinked files that the kernel has forgotten, whose data is still to be
//! deleted.
//!
//! A program that removes a tree unlinks all files of a directory and then the directory, whose
//! removal deletes everything below with one range. So the data of a small file is not deleted by a
//! batch of its own when its last reference goes, but together with that of others: with its
//! directory, when many files wait, or at the next sync.
//!
//! Until then the file is what it was before the kernel forgot it: its record names where its data
//! lies ([`crate::orphan::detached`]), its last reference is kept, and an operation that needs the
//! place finds it among the detached files. A crash leaves the record, as for every unlinked file.
//! Only a mount defers unlinks: a program that uses this layer as a library has no ticker that
//! would delete the data later.

use crate::data::blocks::{self, SINGLE_DELETES_MAX_BLOCKS};
use crate::inode::node::{Node, Orphan, State};
use crate::inode::node_table::NodeTable;
use crate::lock_order::{Rank, RankedGuard, RankedMutex};
use crate::model::error::Result;
use crate::model::types::FileKind;
use crate::orphan::detached::DetachedFiles;
use crate::volume::context::VolumeContext;
use espalier_engine::{Batch, KeyRange};
use std::sync::Arc;

/// Files that may wait at the same time.
const WAITING_MAX_FILES: usize = 256;
/// Bytes of data that they may hold together.
const WAITING_MAX_BYTES: u64 = 8 << 20;

/// A file with its last reference, and where its data lay when that was given up.
struct WaitingFile {
    node: Arc<Node>,
    base: Arc<[u8]>,
    bytes: u64,
}

impl WaitingFile {
    fn new(node: &Arc<Node>, base: &Arc<[u8]>, size: u64) -> Self {
        // A sparse file may have any size; sizes above the limit for all need no distinction.
        Self { node: node.clone(), base: base.clone(), bytes: size.min(WAITING_MAX_BYTES + 1) }
    }
}

/// The files that wait.
#[derive(Default)]
struct Waiting {
    files: Vec<WaitingFile>,
    /// Bytes that they hold together.
    bytes: u64,
}

impl Waiting {
    fn add(&mut self, files: impl IntoIterator<Item = WaitingFile>) {
        let bytes = &mut self.bytes;
        self.files.extend(files.into_iter().inspect(|file| *bytes += file.bytes));
    }

    fn is_full(&self) -> bool {
        self.files.len() >= WAITING_MAX_FILES || self.bytes > WAITING_MAX_BYTES
    }

    fn take(&mut self, which: impl Fn(&WaitingFile) -> bool) -> Vec<WaitingFile> {
        let taken: Vec<_> = self.files.extract_if(.., |file| which(file)).collect();
        self.bytes -= taken.iter().map(|file| file.bytes).sum::<u64>();
        taken
    }
}

pub(crate) struct DeferredUnlinks {
    volume: Arc<VolumeContext>,
    nodes: Arc<NodeTable>,
    detached: Arc<DetachedFiles>,
    waiting: RankedMutex<Waiting>,
}

impl DeferredUnlinks {
    pub(crate) fn new(
        volume: Arc<VolumeContext>,
        nodes: Arc<NodeTable>,
        detached: Arc<DetachedFiles>,
    ) -> Self {
        Self { volume, nodes, detached, waiting: RankedMutex::new(Rank::Table, Waiting::default()) }
    }

    /// True if no file waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.lock().files.is_empty()
    }

    /// Keeps the last reference on an unlinked file, to delete its data with that of others; false
    /// if it is to be deleted at once.
    pub(crate) fn defer(&self, node: &Arc<Node>) -> bool {
        if self.volume.options.forget_drain.is_none() {
            return false;
        }
        let file = {
            let state = node.state();
            let (Orphan::Data(base), inode) = (&state.orphan, &state.inode) else { return false };
            let is_small = inode.kind == FileKind::Regular
                && !inode.has_large_xattrs()
                && blocks::block_count(&self.volume, inode.size) <= SINGLE_DELETES_MAX_BLOCKS;
            if !is_small {
                return false;
            }
            WaitingFile::new(node, base, inode.size)
        };
        let full = {
            let mut waiting = self.waiting.lock();
            waiting.add([file]);
            waiting.is_full()
        };
        if full {
            self.remove_all();
        }
        true
    }

    /// Keeps the last reference on an unlinked file whose data could not be deleted, to try again;
    /// false if it has none.
    pub(crate) fn retry_later(&self, node: &Arc<Node>) -> bool {
        let file = {
            let state = node.state();
            let Orphan::Data(base) = &state.orphan else { return false };
            WaitingFile::new(node, base, state.inode.size)
        };
        self.waiting.lock().add([file]);
        true
    }

    /// Deletes the data of all files that wait. Called without states.
    pub(crate) fn remove_all(&self) {
        let all = std::mem::take(&mut *self.waiting.lock());
        self.remove_files(all.files);
    }

    /// Deletes the data of the files that wait in `range`. Called without states.
    pub(crate) fn remove_in(&self, range: &KeyRange) {
        let files = self.waiting.lock().take(|file| range.contains(&file.base));
        self.remove_files(files);
    }

    fn remove_files(&self, mut files: Vec<WaitingFile>) {
        if files.is_empty() {
            return;
        }
        // In the order in which states are locked.
        files.sort_unstable_by_key(|file| file.node.id);
        {
            let mut states: Vec<_> = files.iter().map(|file| file.node.state()).collect();
            let removed = self.remove_together(files.iter().zip(&states)).is_ok();
            for (file, state) in files.iter().zip(&mut states) {
                if removed {
                    self.detached.data_removed(state);
                } else if let Err(error) = self.detached.remove_file(&file.node, state) {
                    // One by one, because a full store may have space for a small batch only.
                    let node = file.node.id.0;
                    tracing::debug!(%error, node, "the data of an unlinked file cannot be deleted yet");
                }
            }
        }
        // Where that failed the place is not free, and the file waits for the next occasion.
        let stays = |file: &WaitingFile| matches!(file.node.state().orphan, Orphan::Data(_));
        let (kept, gone): (Vec<_>, Vec<_>) = files.into_iter().partition(stays);
        self.waiting.lock().add(kept);
        gone.iter().for_each(|file| self.release(file));
    }

    /// Deletes the data of these files, which have these states, with one batch.
    fn remove_together<'a>(
        &self,
        files: impl Iterator<Item = (&'a WaitingFile, &'a RankedGuard<'a, State>)>,
    ) -> Result<()> {
        let mut batch = Batch::new();
        for (file, state) in files {
            // An operation that needed the place may have moved the data.
            if let Orphan::Data(base) = &state.orphan {
                blocks::delete_all(&self.volume, base, &state.inode, &mut batch)?;
                batch.delete(self.volume.metadata(), &file.node.orphan_key());
            }
        }
        self.volume.commit_internal(batch).map(drop)
    }

    /// Gives back the last reference on a file without a name and without data.
    fn release(&self, file: &WaitingFile) {
        // No work is left: an entry that does not exist needs no time of the last read.
        self.nodes.release(file.node.id, 1, |_| true);
    }

    /// Takes the files that wait and whose data lies in a directory, for whose removal the caller
    /// adds their records to its batch ([`UnlinkedWithDirectory::add_to`]). The caller holds the
    /// directory's names, so no other operation needs their places.
    pub(crate) fn take_with_directory(&self, content: &KeyRange) -> UnlinkedWithDirectory<'_> {
        let taken = self.waiting.lock().take(|file| content.contains(&file.base));
        let is_here = |file: &WaitingFile| self.detached.take(&file.base, file.node.id);
        let (files, moved): (Vec<_>, Vec<_>) = taken.into_iter().partition(is_here);
        // Data that was moved does not go with the directory.
        self.waiting.lock().add(moved);
        UnlinkedWithDirectory { deferred: self, files }
    }
}

/// Files that wait and go with their directory; on drop they wait again.
pub(crate) struct UnlinkedWithDirectory<'a> {
    deferred: &'a DeferredUnlinks,
    files: Vec<WaitingFile>,
}

impl UnlinkedWithDirectory<'_> {
    /// Adds to the batch that removes the directory that the records of the files are deleted.
    pub(crate) fn add_to(&self, batch: &mut Batch) {
        let metadata = self.deferred.volume.metadata();
        self.files.iter().for_each(|file| batch.delete(metadata, &file.node.orphan_key()));
    }

    /// The directory is removed, with their data.
    pub(crate) fn removed(mut self) {
        for file in self.files.drain(..) {
            self.deferred.detached.data_removed(&mut file.node.state());
            self.deferred.release(&file);
        }
    }
}

impl Drop for UnlinkedWithDirectory<'_> {
    fn drop(&mut self) {
        for file in &self.files {
            self.deferred.detached.insert(file.base.clone(), file.node.id);
        }
        self.deferred.waiting.lock().add(self.files.drain(..));
    }
}

#[cfg(test)]
mod tests;
