//! Link areas: where files with several names live.
//!
//! A file with several names lies in the link area of the nearest directory above that has one: the
//! root, and the top directories of clones that hold links. The names are entries that tell its
//! number in the area; the links index lists them by path, and has a mark at the content prefix of
//! every directory with an area of its own, so that a walk over the names that one area serves can
//! step over what another does.
//!
//! A clone whose links led to an area outside of it gets a copy of that area at its own top. The
//! copy also holds files without names there, and its files count names that were not cloned. The
//! mark then says that the area is *unsettled*: how many names a file has is counted, once, when
//! somebody asks, and the background corrects the counts and drops what has no name
//! ([`FileSystem::settle`]).

use crate::file_system::{FileSystem, Held};
use crate::inode::node::{Counts, Node, Role};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, LINK_COUNTS_RIGHT, LINK_COUNTS_STALE, Record};
use crate::model::types::NodeId;
use espalier_engine::{Batch, IndexId, Key, KeyRange};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Operations in one batch of corrections.
const SETTLE_BATCH: usize = 1024;

impl Node {
    /// Takes note that a file in this area has so many names now.
    pub(crate) fn count_names(&self, id: u64, names: u32) {
        if let Some(directory) = &self.directory
            && let Counts::Counted(counts) = &mut *directory.counts.lock()
        {
            counts.insert(id, names);
        }
    }

    /// How many names a file in this area has, if its inode may be wrong about that.
    pub(crate) fn counted_names(&self, id: u64) -> Option<u32> {
        match &*self.directory.as_ref()?.counts.lock() {
            Counts::Counted(counts) => Some(counts.get(&id).copied().unwrap_or(0)),
            _ => None,
        }
    }
}

impl FileSystem {
    /// The node of the link area that serves `dir`. The caller holds the tree lock.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`] in a tree that was removed.
    pub(crate) fn area_of(&self, dir: &Arc<Node>) -> Result<Held<'_>> {
        match dir.area_directory() {
            Some(top) => Ok(self.area_at(&top)),
            None => fail(FsErrorKind::NotFound, "the directory was removed"),
        }
    }

    /// The node of the link area of `top`, which has one.
    fn area_at(&self, top: &Arc<Node>) -> Held<'_> {
        let mut area = top.dir().area.lock();
        if let Some(node) = area.and_then(|id| self.nodes.acquire(id)) {
            return Held::adopt(self, node);
        }
        let node = Node::area(self.nodes.fresh_id(), top, Role::LinkArea);
        self.nodes.acquire(top.id);
        self.nodes.add(&node);
        *area = Some(node.id);
        Held::adopt(self, node)
    }

    /// Makes sure that it is known whether the counts of names in an area are right, and what they
    /// are.
    pub(crate) fn known_counts(&self, area: &Arc<Node>) -> Result<()> {
        let mut counts = area.dir().counts.lock();
        if !matches!(*counts, Counts::Unknown) {
            return Ok(());
        }
        let Some(top) = area.place().parent else { return Ok(()) };
        let prefix = top.content_prefix(self.tree.epoch());
        let mark = self.volume.store.get(self.volume.links(), &prefix)?;
        if mark.as_deref() != Some(LINK_COUNTS_STALE) {
            *counts = Counts::Settled;
            return Ok(());
        }
        let mut found = HashMap::new();
        self.names_below(&prefix, |_, id| {
            *found.entry(id).or_insert(0u32) += 1;
            true
        })?;
        *counts = Counts::Counted(found);
        drop(counts);
        self.plan_settling(area);
        Ok(())
    }

    /// Has the background correct the counts of an area.
    pub(crate) fn plan_settling(&self, area: &Arc<Node>) {
        if self.volume.options.read_only {
            return;
        }
        let mut unsettled = self.unsettled.lock();
        if !unsettled.contains(&area.id) && self.nodes.acquire(area.id).is_some() {
            unsettled.push(area.id);
        }
    }

    /// Gives key and number of every name below content prefix `prefix` whose file lies in the area
    /// that serves that directory, until `each` returns false.
    pub(crate) fn names_below(&self, prefix: &[u8], mut each: impl FnMut(&Key, u64) -> bool) -> Result<()> {
        if !self.any_links.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut cursor = self.volume.store.cursor(self.volume.links(), KeyRange::prefix(prefix))?;
        while let Some(entry) = cursor.next()? {
            if *entry.key == *prefix {
                continue;
            }
            if layout::is_area_mark(&entry.key) {
                match KeyRange::prefix(&entry.key).end {
                    Some(behind) => cursor.seek(&behind),
                    None => return Ok(()),
                }
                continue;
            }
            let value = cursor.read(&entry.value)?;
            let Ok(id) = value[..].try_into().map(u64::from_le_bytes) else {
                return fail(FsErrorKind::Io, "an entry of the links index is damaged");
            };
            if !each(&entry.key, id) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// How many names below `prefix` each file in the area has that serves it.
    pub(crate) fn count_below(&self, prefix: &[u8]) -> Result<BTreeMap<u64, u32>> {
        let mut counts = BTreeMap::new();
        self.names_below(prefix, |_, id| {
            *counts.entry(id).or_insert(0) += 1;
            true
        })?;
        Ok(counts)
    }

    /// The inode of file `id` in the area with this content prefix, from the store.
    pub(crate) fn inode_in_area(&self, area: &[u8], id: u64) -> Result<Inode> {
        let key = layout::entry_key(area, &layout::area_name(id));
        match self.volume.store.get(self.volume.metadata(), &key)?.map(|v| Record::decode(&v)).transpose()? {
            Some(Record::Inode(inode)) if !inode.is_dir() => Ok(inode),
            _ => fail(FsErrorKind::Io, format!("file {id:#x} of a link area is missing")),
        }
    }

    /// Corrects the counts of all areas that wait for it. Called without locks.
    pub(crate) fn settle_all(&self) -> Result<()> {
        let waiting = std::mem::take(&mut *self.unsettled.lock());
        let mut result = Ok(());
        for id in waiting {
            result = result.and(self.settle(id));
            self.release(id, 1);
        }
        result
    }

    /// Corrects the counts of one area and drops what has no name in it.
    fn settle(&self, id: NodeId) -> Result<()> {
        let tree = self.tree.exclusive();
        let epoch = tree.epoch;
        let Some(area) = self.nodes.get(id) else { return Ok(()) };
        let Some(top) = area.place().parent.filter(|top| !top.is_removed()) else { return Ok(()) };
        let prefix = top.content_prefix(epoch);
        if self.volume.store.get(self.volume.links(), &prefix)?.as_deref() != Some(LINK_COUNTS_STALE) {
            return Ok(());
        }
        // Files without a name whose data still lies there are not to lose it.
        self.evacuate(&KeyRange::prefix(&layout::area_files(&prefix)))?;
        let counts = self.count_below(&prefix)?;
        let names = layout::area_prefix(&prefix);
        let mut batch = Batch::new();
        for index in [self.volume.metadata(), self.volume.data()] {
            for rest in self.nameless(index, &prefix, &counts)? {
                batch.delete_range(index, rest);
                self.commit_if_full(&mut batch)?;
            }
        }
        for (id, count) in counts {
            let mut inode = self.inode_in_area(&names, id)?;
            if inode.links != count {
                inode.links = count;
                let key = layout::entry_key(&names, &layout::area_name(id));
                batch.insert(self.volume.metadata(), &key, inode.encode());
                self.commit_if_full(&mut batch)?;
            }
        }
        batch.insert(self.volume.links(), &prefix, LINK_COUNTS_RIGHT);
        self.volume.commit_internal(batch)?;
        *area.dir().counts.lock() = Counts::Settled;
        Ok(())
    }

    fn commit_if_full(&self, batch: &mut Batch) -> Result<()> {
        if batch.len() >= SETTLE_BATCH {
            self.volume.commit_internal(std::mem::take(batch))?;
        }
        Ok(())
    }

    /// What lies in an index for the area at a content prefix besides the files that are `named`:
    /// ranges from one of those to the next. A range that holds nothing is not among them: a copy
    /// most often needs none, and each would wait in the tree as a message.
    fn nameless(&self, index: IndexId, prefix: &[u8], named: &BTreeMap<u64, u32>) -> Result<Vec<KeyRange>> {
        let all = KeyRange::prefix(&layout::area_files(prefix));
        let names = layout::area_prefix(prefix);
        let mut named = named.keys().map(|id| Key::from(layout::entry_key(&names, &layout::area_name(*id))));
        let mut found = Vec::new();
        let mut behind = all.start.clone();
        let mut next = named.next();
        let mut cursor = self.volume.store.cursor(index, all.clone())?;
        while let Some(entry) = cursor.next()? {
            while let Some(end) = next.as_deref().map(|file| Key::from([file, &[2]].concat()))
                && end <= entry.key
            {
                behind = end;
                next = named.next();
            }
            match &next {
                // One key of a file tells that it is there; it may have many blocks.
                Some(file) if *file <= entry.key => cursor.seek(&[file, &[2][..]].concat()),
                Some(file) => {
                    found.push(KeyRange { start: behind.clone(), end: Some(file.clone()) });
                    cursor.seek(file);
                }
                None => {
                    found.push(KeyRange { start: behind, end: all.end });
                    break;
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::*;

    #[test]
    fn only_what_is_there_is_dropped_from_a_copied_area() {
        let (_, _, fs) = crate::test_support::empty();
        let caller = Caller::default();
        // Files with two names each, of which those of the first, the last and some between lie in
        // one tree.
        let dirs =
            [&b"in"[..], b"out"].map(|name| fs.mkdir(NodeId::ROOT, name, 0o755, &caller).unwrap().node);
        for n in 0..40u32 {
            let dir = dirs[usize::from(n % 13 / 3 == 1)];
            let file =
                fs.mknod(dir, format!("a{n}").as_bytes(), NewNode::Regular, 0o644, &caller).unwrap().node;
            fs.write(file, 0, &[7; 5000], false).unwrap();
            fs.setxattr(file, b"user.large", &[1; 5000], XattrMode::Set, false).unwrap();
            fs.link(file, dir, format!("b{n}").as_bytes()).unwrap();
        }
        let rests = |name: &[u8]| {
            let prefix = layout::content_prefix(b"", name);
            let named = fs.count_below(&prefix).unwrap();
            [fs.volume.metadata(), fs.volume.data()].map(|index| fs.nameless(index, &prefix, &named).unwrap())
        };
        let read = |name: &[u8]| {
            let dir = fs.lookup(NodeId::ROOT, name).unwrap().node;
            let file = fs.lookup(dir, b"b12").unwrap().node;
            let mut data = [0; 5000];
            assert_eq!(fs.read(file, 0, &mut data).unwrap(), 5000);
            assert_eq!(fs.getxattr(file, b"user.large").unwrap(), [1; 5000]);
            data
        };
        let clone = |dir: NodeId, name: &[u8]| {
            fs.clone_tree(dir, NodeId::ROOT, name, &caller).unwrap();
            fs.lookup(fs.lookup(NodeId::ROOT, name).unwrap().node, b"a0").unwrap();
        };
        clone(dirs[0], b"first");
        let [metadata, data] = rests(b"first");
        assert_eq!((metadata.len(), &metadata), (3, &data), "one for each run of files of the other tree");
        fs.background_tick().unwrap();
        assert_eq!(rests(b"first"), [[], []]);
        assert_eq!(read(b"first"), [7; 5000]);
        // A copy of an area that holds nothing else.
        let first = fs.lookup(NodeId::ROOT, b"first").unwrap().node;
        clone(first, b"second");
        assert_eq!(rests(b"second"), [[], []]);
        fs.background_tick().unwrap();
        assert_eq!(read(b"second"), [7; 5000]);
    }
}
