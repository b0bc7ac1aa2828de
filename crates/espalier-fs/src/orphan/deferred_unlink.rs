//! Small unlinked files that the kernel has forgotten, whose data is still to go.
//!
//! A program that removes a tree unlinks all files of a directory and then the directory, whose
//! removal takes everything below with one range. So the data of a small file is not deleted when
//! its last reference goes, by a batch of its own, but with others: with its directory, or when
//! there are many, or at the next sync.
//!
//! Until then the file is what it was before the kernel forgot it: its record names where its data
//! lies ([`crate::orphan::orphan_area`]), the reference that was the last one is kept, and whoever needs the
//! place finds it in `detached`. A crash leaves the record, as ever. Only a mount does this: what
//! is used as a library has no ticker that would come for what waits.

use crate::data::file_data::FEW_BLOCKS;
use crate::file_system::FileSystem;
use crate::inode::node::{Node, Orphan, State};
use crate::model::types::FileKind;
use crate::orphan::orphan_area::record_key;
use espalier_engine::{Batch, KeyRange};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// So many files wait at most.
const MOST_FILES: usize = 256;
/// They hold so many bytes at most, together.
const MOST_BYTES: u64 = 8 << 20;

/// A file with its last reference, and where its data lay when that was given up.
struct File {
    node: Arc<Node>,
    base: Arc<[u8]>,
    bytes: u64,
}

impl File {
    fn new(node: &Arc<Node>, base: &Arc<[u8]>, size: u64) -> Self {
        // A sparse file may have any size, and more than all may have need not be told apart.
        Self { node: node.clone(), base: base.clone(), bytes: size.min(MOST_BYTES + 1) }
    }
}

/// The files that wait.
#[derive(Default)]
pub(crate) struct Forgotten {
    files: Vec<File>,
    /// What they hold together.
    bytes: u64,
}

impl Forgotten {
    /// True if nothing waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    fn add(&mut self, files: impl IntoIterator<Item = File>) {
        let bytes = &mut self.bytes;
        self.files.extend(files.into_iter().inspect(|file| *bytes += file.bytes));
    }

    fn is_full(&self) -> bool {
        self.files.len() >= MOST_FILES || self.bytes > MOST_BYTES
    }

    fn take(&mut self, which: impl Fn(&File) -> bool) -> Vec<File> {
        let taken: Vec<_> = self.files.extract_if(.., |file| which(file)).collect();
        self.bytes -= taken.iter().map(|file| file.bytes).sum::<u64>();
        taken
    }
}

impl FileSystem {
    /// Keeps the last reference on an unlinked file, to remove its data with that of others; false
    /// if it is to be removed at once.
    pub(crate) fn put_off(&self, node: &Arc<Node>) -> bool {
        if self.volume.options.forget_drain.is_none() {
            return false;
        }
        let file = {
            let state = node.state();
            let (Orphan::Data(base), inode) = (&state.orphan, &state.inode) else { return false };
            let few = inode.kind == FileKind::Regular
                && !inode.has_large_xattrs()
                && self.block_count(inode.size) <= FEW_BLOCKS;
            if !few {
                return false;
            }
            File::new(node, base, inode.size)
        };
        let full = {
            let mut waiting = self.forgotten.lock();
            waiting.add([file]);
            waiting.is_full()
        };
        if full {
            self.remove_forgotten();
        }
        true
    }

    /// Keeps the last reference on an unlinked file whose data could not be removed, to try it
    /// again; false if it has none.
    pub(crate) fn try_later(&self, node: &Arc<Node>) -> bool {
        let file = {
            let state = node.state();
            let Orphan::Data(base) = &state.orphan else { return false };
            File::new(node, base, state.inode.size)
        };
        self.forgotten.lock().add([file]);
        true
    }

    /// Removes what forgotten files hold. Called without states.
    pub(crate) fn remove_forgotten(&self) {
        let all = std::mem::take(&mut *self.forgotten.lock());
        self.remove_files(all.files);
    }

    /// Removes what forgotten files hold in `range`. Called without states.
    pub(crate) fn remove_forgotten_in(&self, range: &KeyRange) {
        let files = self.take_forgotten(range);
        self.remove_files(files);
    }

    fn take_forgotten(&self, range: &KeyRange) -> Vec<File> {
        self.forgotten.lock().take(|file| range.contains(&file.base))
    }

    fn remove_files(&self, mut files: Vec<File>) {
        if files.is_empty() {
            return;
        }
        // In the order in which states are locked everywhere.
        files.sort_unstable_by_key(|file| file.node.id);
        {
            let mut states: Vec<_> = files.iter().map(|file| file.node.state()).collect();
            let mut batch = Batch::new();
            for (file, state) in files.iter().zip(&states) {
                // Somebody may have needed the place and moved it.
                if let Orphan::Data(base) = &state.orphan {
                    self.delete_data(base, &state.inode, &mut batch);
                    batch.delete(self.volume.metadata(), &record_key(file.node.id));
                }
            }
            let removed = self.volume.commit_internal(batch).is_ok();
            for (file, state) in files.iter().zip(&mut states) {
                if removed {
                    self.forget_data(state);
                } else if let Err(error) = self.remove_orphan_file(&file.node, state) {
                    // One by one, as a store that is full may have room for a little only.
                    tracing::debug!(%error, node = file.node.id.0, "the data of an unlinked file cannot be removed yet");
                }
            }
        }
        // Where that failed the place is not free: the file waits for the next occasion.
        let stays = |file: &File| matches!(file.node.state().orphan, Orphan::Data(_));
        let (kept, gone): (Vec<_>, Vec<_>) = files.into_iter().partition(stays);
        self.forgotten.lock().add(kept);
        gone.iter().for_each(|file| self.release(file.node.id, 1));
    }

    /// In memory, a file without a name has no data any more.
    pub(crate) fn forget_data(&self, state: &mut State) {
        if let Orphan::Data(base) = std::mem::replace(&mut state.orphan, Orphan::Empty) {
            self.detached.lock().remove(&base);
            self.volume.counters.orphans.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes the forgotten files whose data lies in a directory, for whose removal the caller adds
    /// their records to its batch ([`Swallowed::add_to`]). The caller holds the directory's names,
    /// so nobody else needs their places.
    pub(crate) fn swallow(&self, content: &KeyRange) -> Swallowed<'_> {
        let taken = self.take_forgotten(content);
        let mut detached = self.detached.lock();
        let is_here = |file: &File| detached.get(&file.base) == Some(&file.node.id);
        let (files, away): (Vec<_>, Vec<_>) = taken.into_iter().partition(is_here);
        for file in &files {
            detached.remove(&file.base);
        }
        drop(detached);
        // What was moved does not go with the directory.
        self.forgotten.lock().add(away);
        Swallowed { fs: self, files }
    }
}

/// Forgotten files that go with their directory; as they were before if it stays.
pub(crate) struct Swallowed<'a> {
    fs: &'a FileSystem,
    files: Vec<File>,
}

impl Swallowed<'_> {
    /// Adds to the batch that removes the directory that the records of the files go.
    pub(crate) fn add_to(&self, batch: &mut Batch) {
        self.files.iter().for_each(|file| batch.delete(self.fs.volume.metadata(), &record_key(file.node.id)));
    }

    /// The directory is gone, with their data.
    pub(crate) fn gone(mut self) {
        for file in self.files.drain(..) {
            self.fs.forget_data(&mut file.node.state());
            self.fs.release(file.node.id, 1);
        }
    }
}

impl Drop for Swallowed<'_> {
    fn drop(&mut self) {
        if !self.files.is_empty() {
            let mut detached = self.fs.detached.lock();
            for file in &self.files {
                detached.insert(file.base.clone(), file.node.id);
            }
            drop(detached);
            self.fs.forgotten.lock().add(self.files.drain(..));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::model::types::{Caller, NewNode, NodeId};

    /// Or a crash would remove what somebody else keeps there by then.
    #[test]
    fn the_place_of_data_that_cannot_be_removed_is_not_free() {
        let (store, _, fs) = crate::test_support::empty();
        let caller = Caller::default();
        let file = fs.mknod(NodeId::ROOT, b"file", NewNode::Regular, 0o644, &caller).unwrap().node;
        fs.write(file, 0, b"data", false).unwrap();
        fs.unlink(NodeId::ROOT, b"file").unwrap();
        store.close().unwrap();
        fs.forget(file, 1);
        assert_eq!((fs.detached.lock().len(), fs.forgotten.lock().files.len()), (1, 1));
        assert!(fs.nodes.get(file).is_some());
        fs.remove_forgotten();
        assert_eq!((fs.detached.lock().len(), fs.forgotten.lock().files.len()), (1, 1));
    }
}
