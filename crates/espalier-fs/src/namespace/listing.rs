//! Listings of directories, with cookies that stay good without any open state.
//!
//! Order: `.` and `..`, then what is no directory, then directories, each in the order of names, so
//! that a program that recurses walks in key order. A cookie is a position: the kind of the entry
//! and a hash of its name ([`crate::model::position`]). The name behind which it leads is looked up
//! among recent listings; if it is not there, the directory is searched for the name that has the
//! hash. Only if that name was removed *and* the listing is no longer remembered does a listing
//! begin its kind anew: it then repeats entries, but never skips one.

use crate::inode::access_times::AccessTimes;
use crate::inode::names::Known;
use crate::inode::node::Node;
use crate::model::error::{FsError, FsErrorKind, Result};
use crate::model::layout;
use crate::model::position::{self, DOT, DOTDOT, Positions, SHORT_MAX_ENTRIES};
use crate::model::record::Record;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::namespace::listing_cache::*;
use crate::namespace::lookup::{Stamp, at_entry, stamp};
use crate::references::HeldNode;
use espalier_engine::{Cursor, Key, Value};
use std::sync::Arc;

/// Names of directories with more entries are not remembered when they are listed.
const LEARN_MAX_ENTRIES: u64 = 64 << 10;
/// Entries for which a listing reserves memory at most before it has seen them.
const RESERVE_MAX_ENTRIES: u64 = 256;
/// A listing reads the entries of a directory of no more than so many before it shows the first.
const READ_FIRST_MAX_ENTRIES: u64 = 1024;
/// Directories that a walk sets aside while it shows the rest, so that it need not walk twice.
const ASIDE_MAX_DIRECTORIES: usize = 1024;

type Each<'a> = &'a mut dyn FnMut(DirEntry<'_>) -> bool;

pub(crate) struct Listings {
    namespace: Arc<Namespace>,
    access_times: Arc<AccessTimes>,
    cache: ListingCache,
}

/// Whether entries are given with their nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum WithNodes {
    No,
    Yes,
    /// These, unless they have just been given.
    Once(ListedNodes),
}

impl WithNodes {
    /// Which entries are given with their nodes, where they have not been.
    fn wanted(self) -> WantedNodes {
        match self {
            Self::No => WantedNodes { of_files: false, of_directories: false, left: 0 },
            Self::Yes | Self::Once(ListedNodes::All) => {
                WantedNodes { of_files: true, of_directories: true, left: 0 }
            }
            Self::Once(ListedNodes::AllButOneFile) => {
                WantedNodes { of_files: true, of_directories: true, left: 1 }
            }
            Self::Once(ListedNodes::Directories) => {
                WantedNodes { of_files: false, of_directories: true, left: 0 }
            }
        }
    }
}

/// Which entries one listing gives with their nodes.
#[derive(Clone, Copy)]
struct WantedNodes {
    of_files: bool,
    of_directories: bool,
    /// So many files are still left out.
    left: usize,
}

impl WantedNodes {
    /// Whether the next entry, which is of this kind, is given with its node.
    fn wants(self, kind: FileKind) -> bool {
        match kind {
            FileKind::Directory => self.of_directories,
            _ => self.of_files && self.left == 0,
        }
    }

    /// True if the nodes of files are not all given.
    fn leaves_files_out(self) -> bool {
        !self.of_files || self.left > 0
    }

    /// An entry of this kind was given.
    fn note(&mut self, kind: FileKind) {
        if kind != FileKind::Directory {
            self.left = self.left.saturating_sub(1);
        }
    }
}

/// One walk over a directory's entries.
struct Walk<'a> {
    listings: &'a Listings,
    dir: &'a Arc<Node>,
    prefix: Arc<[u8]>,
    stamp: Stamp,
    cursor: Cursor,
    has_directories: bool,
    /// The number of entries that the directory counts.
    entries: u64,
    positions: Positions,
    /// Entries that were read before the first was shown; they come before those of the cursor.
    read: std::vec::IntoIter<(Arc<[u8]>, Record)>,
    /// What is added to the numbers of links.
    link_area_sum: u64,
    listed: Vec<ListedEntry>,
    /// The answer begins with the first entry.
    from_start: bool,
    /// Nothing follows the answer.
    to_end: bool,
    wanted: WantedNodes,
    /// A file was shown without its node, although nodes are wanted.
    left_out: bool,
    /// Names seen whose nodes are not wanted, where the directory is small enough to know them all.
    learned: Option<Vec<Arc<[u8]>>>,
}

impl Listings {
    pub(crate) fn new(namespace: Arc<Namespace>, access_times: Arc<AccessTimes>) -> Self {
        Self { namespace, access_times, cache: ListingCache::default() }
    }

    /// Lists directory `node` from `cookie` (0: the beginning) until `each` returns false, which
    /// means that it did not keep the entry. True if a file was left out of those given with their
    /// nodes.
    pub(crate) fn list(&self, node: NodeId, cookie: u64, nodes: WithNodes, each: Each<'_>) -> Result<bool> {
        let dir = self.namespace.nodes.dir(node)?;
        if self.list_remembered(&dir, cookie, nodes, each)? {
            return Ok(false);
        }
        let Some(mut walk) = self.walk(&dir, nodes)? else { return Ok(false) };
        if cookie == 0 {
            self.access_times.touch(&dir);
        }
        walk.from_start = cookie <= DOTDOT;
        walk.positions = if walk.from_start { walk.choose_positions() } else { Positions::of(cookie) };
        let result = if list_dots(&dir, cookie, each) { walk.run(cookie, each) } else { Ok(()) };
        let left_out = walk.left_out;
        walk.finish();
        result.map(|()| left_out)
    }

    /// Answers from memory: that nothing follows, and the listing of a directory that has not
    /// changed and whose nodes, if they are wanted, are all in memory (programs look first whether
    /// a directory is empty, and then list it). False if it cannot; then nothing was given to
    /// `each`.
    fn list_remembered(
        &self,
        dir: &Arc<Node>,
        cookie: u64,
        nodes: WithNodes,
        each: Each<'_>,
    ) -> Result<bool> {
        if cookie != 0 && cookie <= DOTDOT {
            return Ok(false);
        }
        let namespace = &*self.namespace;
        let mut held = Vec::new();
        let entries = {
            let tree = namespace.tree.shared();
            let names = dir.dir().names.lock();
            let stamp = stamp(&tree, dir, &names);
            if names.dead {
                return Ok(true);
            }
            if cookie != 0 {
                return Ok(self.cache.is_last(dir.id, stamp, cookie));
            }
            let Some((entries, given)) = self.cache.whole(dir.id, stamp) else { return Ok(false) };
            let are_wanted = match nodes {
                WithNodes::No => false,
                WithNodes::Yes => true,
                // Files are given as well if they are at hand.
                WithNodes::Once(_) => !given,
            };
            if are_wanted {
                held.reserve(entries.len());
                for entry in entries.iter() {
                    let Some(Known::Present(id)) = names.get(&entry.name) else { return Ok(false) };
                    let Some(node) = namespace.nodes.acquire(id) else { return Ok(false) };
                    held.push(namespace.references.adopt(node));
                }
            }
            entries
        };
        self.access_times.touch(dir);
        if !list_dots(dir, cookie, each) {
            return Ok(true);
        }
        let mut held = held.into_iter();
        for ListedEntry { cookie, name, ino, kind } in entries.iter() {
            let (ino, kind, cookie) = (*ino, *kind, *cookie);
            let Some(held) = held.next() else {
                if !each(DirEntry { name, ino, kind, cookie, entry: None }) {
                    break;
                }
                continue;
            };
            let entry = namespace.lookup.entry_of(&held)?;
            if !each(DirEntry { name, ino, kind, cookie, entry: Some(&entry) }) {
                break;
            }
            held.keep();
        }
        Ok(true)
    }

    /// A walk over what the directory holds now; `None` if it was removed. The names of nodes that
    /// are wanted become known with them.
    fn walk<'a>(&'a self, dir: &'a Arc<Node>, nodes: WithNodes) -> Result<Option<Walk<'a>>> {
        let wanted = nodes.wanted();
        let namespace = &*self.namespace;
        let tree = namespace.tree.shared();
        let mut names = dir.dir().names.lock();
        if names.dead || namespace.orphans.is_in_removed_tree(dir, tree.epoch) {
            return Ok(None);
        }
        let stamp = stamp(&tree, dir, &names);
        let prefix = dir.content_prefix(tree.epoch);
        let cursor =
            namespace.volume.store.cursor(namespace.volume.metadata(), layout::entries_range(&prefix))?;
        let (entries, directories) = {
            let state = dir.state();
            (state.inode.size, state.inode.links)
        };
        // As many as one answer is likely to take; a listing of few should not grow step by step.
        let expected = entries.min(RESERVE_MAX_ENTRIES) as usize;
        let learn =
            entries <= LEARN_MAX_ENTRIES && names.present() < entries && namespace.nodes.has_name_budget();
        if learn {
            names.expect(expected);
        }
        Ok(Some(Walk {
            listings: self,
            dir,
            prefix,
            stamp,
            cursor,
            has_directories: directories > 0,
            entries,
            positions: Positions::Long,
            read: Vec::new().into_iter(),
            link_area_sum: dir.link_area_directory().map_or(0, |d| d.dir().link_area.sum),
            listed: Vec::with_capacity(expected),
            from_start: false,
            to_end: false,
            wanted,
            left_out: false,
            learned: (learn && wanted.leaves_files_out()).then(|| Vec::with_capacity(expected)),
        }))
    }
}

/// Gives `.` and `..` to the caller; false if one was not kept.
fn list_dots(dir: &Arc<Node>, cookie: u64, each: Each<'_>) -> bool {
    let kind = FileKind::Directory;
    let above = dir.place().parent.map_or(dir.ino, |p| p.ino);
    let dots = [(&b"."[..], dir.ino, DOT), (b"..", above, DOTDOT)];
    let mut left = dots.into_iter().filter(|(_, _, at)| cookie < *at);
    left.all(|(name, ino, cookie)| each(DirEntry { name, ino, kind, cookie, entry: None }))
}

impl Walk<'_> {
    fn run(&mut self, cookie: u64, each: Each<'_>) -> Result<()> {
        let mut directories = cookie > DOTDOT && position::is_directory(cookie);
        // All directories so far, if the walk began with the first entry and they are not too many.
        let mut aside = (cookie <= DOTDOT).then(Vec::new);
        if cookie > DOTDOT
            && let Some(name) = self.position(cookie)?
        {
            let behind = [&layout::entry_key(&self.prefix, &name)[..], &[0]].concat();
            self.cursor.seek(&behind);
        }
        loop {
            while let Some((name, record)) = self.next()? {
                let is_directory = record.kind() == FileKind::Directory;
                if let Some(learned) = &mut self.learned {
                    learned.push(name.clone());
                }
                if is_directory == directories {
                    if !self.show(name, record, each)? {
                        return Ok(());
                    }
                } else if is_directory {
                    aside = aside.filter(|aside| aside.len() < ASIDE_MAX_DIRECTORIES);
                    aside.iter_mut().for_each(|aside| aside.push((name.clone(), record.clone())));
                }
            }
            if directories || !self.has_directories {
                break;
            }
            directories = true;
            if let Some(aside) = aside.take() {
                for (name, record) in aside {
                    if !self.show(name, record, each)? {
                        return Ok(());
                    }
                }
                break;
            }
            self.rewind();
        }
        self.to_end = true;
        Ok(())
    }

    /// The sort of positions for a listing that begins. Reads all names to find it, unless that was
    /// done since the directory changed; what is read is kept if it is little.
    fn choose_positions(&mut self) -> Positions {
        if self.entries > SHORT_MAX_ENTRIES {
            return Positions::Long;
        }
        let known = *self.dir.dir().positions.lock();
        if let Some((_, positions)) = known.filter(|(version, _)| *version == self.stamp.version) {
            return positions;
        }
        let keep = self.entries <= READ_FIRST_MAX_ENTRIES;
        let expected = self.entries as usize;
        let mut read = Vec::with_capacity(if keep { expected } else { 0 });
        let mut hashes = Vec::with_capacity(expected);
        loop {
            match self.next() {
                Ok(Some((name, record))) => {
                    hashes.push(position::hash_of(&name));
                    if keep {
                        read.push((name, record));
                    }
                }
                Ok(None) => break,
                Err(_) => {
                    // The listing shows what comes before, and meets the error again.
                    self.rewind();
                    return Positions::Long;
                }
            }
        }
        let positions = Positions::for_names(&hashes);
        *self.dir.dir().positions.lock() = Some((self.stamp.version, positions));
        if keep {
            self.read = read.into_iter();
        } else {
            self.rewind();
        }
        positions
    }

    fn rewind(&mut self) {
        self.cursor.seek(&layout::entries_range(&self.prefix).start);
    }

    /// The name behind which a cookie leads.
    fn position(&mut self, cookie: u64) -> Result<Option<Arc<[u8]>>> {
        if let Some(name) = self.listings.cache.name(self.dir.id, cookie) {
            return Ok(Some(name));
        }
        while let Some(key) = self.next_key()? {
            let name = self.name_of(&key.0)?;
            // The kind may have changed since; the place is the same.
            let found = self.positions.position(position::hash_of(&name), FileKind::Regular);
            if position::is_same_name(found, cookie) {
                return Ok(Some(name));
            }
        }
        self.rewind();
        Ok(None)
    }

    fn next_key(&mut self) -> Result<Option<(Key, Value)>> {
        Ok(self.cursor.next()?.map(|entry| (entry.key, entry.value)))
    }

    fn name_of(&self, key: &[u8]) -> Result<Arc<[u8]>> {
        let name = key.get(self.prefix.len() + 1..).and_then(layout::unescape_shared);
        let damaged = || FsError::new(FsErrorKind::Io, "an entry whose name is damaged");
        name.ok_or_else(|| at_entry(self.dir, key, damaged()))
    }

    fn next(&mut self) -> Result<Option<(Arc<[u8]>, Record)>> {
        if let Some(entry) = self.read.next() {
            return Ok(Some(entry));
        }
        let Some((key, value)) = self.next_key()? else { return Ok(None) };
        let name = self.name_of(&key)?;
        let value = match value.in_memory() {
            Some(bytes) => bytes,
            None => self.cursor.read(&value)?,
        };
        let record = Record::decode(&value).map_err(|e| at_entry(self.dir, &name, e))?;
        Ok(Some((name, record)))
    }

    /// Gives one entry to the caller; false if it was not kept.
    fn show(&mut self, name: Arc<[u8]>, record: Record, each: Each<'_>) -> Result<bool> {
        let kind = record.kind();
        let plus = self.wanted.wants(kind);
        let cookie = self.positions.position(position::hash_of(&name), kind);
        let ino;
        let kept = if plus {
            let Some(held) = self.node(&name, record)? else { return Ok(true) };
            let entry = self.listings.namespace.lookup.entry_of(&held)?;
            ino = entry.attr.ino;
            let kept = each(DirEntry { name: &name, ino, kind, cookie, entry: Some(&entry) });
            if kept {
                held.keep();
            }
            kept
        } else {
            ino = match &record {
                Record::Inode(inode) => {
                    inode.number.wrapping_add(inode.delta).wrapping_add(self.dir.dir().sum)
                }
                Record::Link(link) => link.number.wrapping_add(self.link_area_sum),
            };
            each(DirEntry { name: &name, ino, kind, cookie, entry: None })
        };
        if kept {
            self.listed.push(ListedEntry { cookie, name, ino, kind });
            self.wanted.note(kind);
            self.left_out |= !plus && self.wanted.of_directories;
        }
        Ok(kept)
    }

    /// The node of an entry that the walk has come to; `None` if the entry is gone by now, or is of
    /// another kind.
    fn node(&self, name: &Arc<[u8]>, record: Record) -> Result<Option<HeldNode<'_>>> {
        let (namespace, kind) = (&*self.listings.namespace, record.kind());
        let held;
        let tree = namespace.tree.shared();
        let mut names = self.dir.dir().names.lock();
        held = if stamp(&tree, self.dir, &names) == self.stamp {
            namespace.lookup.learn(&tree, self.dir, &mut names, name.clone(), Some(record))?
        } else {
            namespace.lookup.resolve(&tree, self.dir, &mut names, name)?
        };
        Ok(held.filter(|held| held.kind == kind))
    }

    /// Remembers where cookies lead and which names there are.
    fn finish(self) {
        // A single file that was left out is one that the caller asks for if it wants it.
        let has_nodes = self.wanted.of_directories && (self.wanted.of_files || !self.left_out);
        let Walk { dir, stamp, listed, from_start, to_end, .. } = self;
        let answer = Answer { dir: dir.id, entries: Arc::new(listed), has_nodes, stamp, from_start, to_end };
        self.listings.cache.remember(answer);
        let Some(learned) = self.learned.filter(|l| !l.is_empty()) else { return };
        let mut names = self.dir.dir().names.lock();
        if names.version != self.stamp.version || names.dead {
            return;
        }
        for name in learned {
            if names.get(&name).is_none() {
                self.listings.namespace.nodes.set_name(self.dir, &mut names, name, Known::Present(NodeId(0)));
            }
        }
    }
}
