//! Listings of directories, with cookies that stay good without any open state.
//!
//! Order: `.` and `..`, then what is no directory, then directories, each in the order of names, so
//! that who recurses walks in key order. A cookie is the kind of the entry and a hash of its name.
//! Where a cookie leads is looked up among the listings of late; if it is not there, the directory
//! is searched for the name that has the hash. Only if that name was removed *and* the listing was
//! forgotten does a listing begin its kind anew: it then repeats entries, but never skips one.

use crate::file_system::{FileSystem, Held};
use crate::inode::node::{Known, Node};
use crate::model::error::Result;
use crate::model::layout;
use crate::model::record::Record;
use crate::model::types::*;
use crate::namespace::lookup::Stamp;
use espalier_engine::{Cursor, Key};
use std::collections::VecDeque;
use std::sync::Arc;

const COOKIE_DOT: u64 = 1;
const COOKIE_DOTDOT: u64 = 2;
/// The bit that tells directories from the rest.
const COOKIE_DIRECTORY: u64 = 1 << 62;
/// Answers that are remembered.
const REMEMBERED: usize = 1024;
/// Names that are remembered, in all answers.
const REMEMBERED_NAMES: usize = 64 << 10;
/// The newest answers, among which a listing that is asked for again is looked for.
const RECENT: usize = 8;
/// Names of directories with more entries are not taken up by listing them.
const LEARN_LIMIT: u64 = 64 << 10;
/// Entries for which a listing sets memory aside at most before it has seen them.
const MOST_EXPECTED: u64 = 256;
/// Directories that a walk sets aside while it shows the rest, so that it need not walk twice.
const SET_ASIDE: usize = 1024;

type Each<'a> = &'a mut dyn FnMut(DirEntry<'_>) -> bool;

/// The cookie that leads behind an entry.
fn cookie_of(name: &[u8], kind: FileKind) -> u64 {
    let hash = xxhash_rust::xxh3::xxh3_64(name) & (COOKIE_DIRECTORY - 1);
    let directory = if kind == FileKind::Directory { COOKIE_DIRECTORY } else { 0 };
    directory | hash.max(COOKIE_DOTDOT + 1)
}

/// The answers of late: which cookie stands for which name.
#[derive(Default)]
pub(crate) struct Listings {
    answers: VecDeque<Answer>,
    names: usize,
}

struct Answer {
    dir: NodeId,
    entries: Arc<Vec<Told>>,
    /// Each came with its node.
    has_nodes: bool,
    /// The state of the directory that was listed.
    stamp: Stamp,
    /// It began with the first entry.
    from_start: bool,
    /// Nothing follows.
    to_end: bool,
}

/// An entry that was part of an answer.
struct Told {
    cookie: u64,
    name: Arc<[u8]>,
    ino: u64,
    kind: FileKind,
}

/// Whether entries are given with their nodes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nodes {
    Without,
    With,
    /// Unless they have just been given.
    Once,
}

impl Listings {
    fn remember(&mut self, answer: Answer) {
        if answer.entries.is_empty() {
            return;
        }
        self.names += answer.entries.len();
        self.answers.push_front(answer);
        while self.answers.len() > REMEMBERED || (self.names > REMEMBERED_NAMES && self.answers.len() > 1) {
            self.names -= self.answers.pop_back().map_or(0, |a| a.entries.len());
        }
    }

    fn name(&self, dir: NodeId, cookie: u64) -> Option<Arc<[u8]>> {
        let mut answers = self.answers.iter().filter(|a| a.dir == dir);
        answers.find_map(|a| a.entries.iter().rev().find(|t| t.cookie == cookie).map(|t| t.name.clone()))
    }

    /// True if nothing follows `cookie` in the directory whose state is `stamp`.
    fn is_last(&self, dir: NodeId, stamp: Stamp, cookie: u64) -> bool {
        let last = |a: &Answer| a.to_end && a.entries.last().is_some_and(|last| last.cookie == cookie);
        self.answers.iter().take(RECENT).any(|a| a.dir == dir && a.stamp == stamp && last(a))
    }

    /// All entries of the directory whose state is `stamp`, if one answer gave them, and whether
    /// with their nodes.
    fn whole(&self, dir: NodeId, stamp: Stamp) -> Option<(Arc<Vec<Told>>, bool)> {
        let whole = |a: &&Answer| a.dir == dir && a.stamp == stamp && a.from_start && a.to_end;
        self.answers.iter().take(RECENT).find(whole).map(|a| (a.entries.clone(), a.has_nodes))
    }
}

/// One walk over a directory's entries.
struct Walk<'a> {
    fs: &'a FileSystem,
    dir: &'a Arc<Node>,
    prefix: Arc<[u8]>,
    stamp: Stamp,
    cursor: Cursor,
    has_directories: bool,
    /// What is added to the numbers of links.
    area_sum: u64,
    told: Vec<Told>,
    /// What was told begins with the first entry.
    from_start: bool,
    /// Nothing follows what was told.
    to_end: bool,
    /// Names seen whose nodes are not wanted, where the directory is small enough to know them all.
    learned: Option<Vec<Arc<[u8]>>>,
}

impl FileSystem {
    /// Lists directory `node` from `cookie` (0: the beginning) until `each` returns false, which
    /// means that it did not keep the entry. `.` and `..` come first, then non-directories, then
    /// directories. A removed directory lists nothing.
    ///
    /// # Errors
    /// [`FsErrorKind::NotDirectory`](crate::FsErrorKind::NotDirectory); of the store.
    pub fn readdir(
        &self,
        node: NodeId,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(node, cookie, Nodes::Without, each)
    }

    /// As [`FileSystem::readdir`], and takes a reference on each entry kept, other than `.` and
    /// `..`.
    ///
    /// # Errors
    /// As for [`FileSystem::readdir`].
    pub fn readdirplus(
        &self,
        node: NodeId,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(node, cookie, Nodes::With, each)
    }

    /// As [`FileSystem::readdirplus`] for who keeps what he is given, as a kernel does: what was
    /// given whole a moment ago, and has not changed since, is given without entries and references
    /// if it is asked for again.
    ///
    /// # Errors
    /// As for [`FileSystem::readdir`].
    pub fn readdirplus_once(
        &self,
        node: NodeId,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        self.list(node, cookie, Nodes::Once, each)
    }

    fn list(&self, node: NodeId, cookie: u64, nodes: Nodes, each: Each<'_>) -> Result<()> {
        let dir = self.dir(node)?;
        if self.list_known(&dir, cookie, nodes, each)? {
            return Ok(());
        }
        let plus = nodes != Nodes::Without;
        let Some(mut walk) = self.walk(&dir, plus)? else { return Ok(()) };
        if cookie == 0 {
            self.touch(&dir);
        }
        walk.from_start = cookie <= COOKIE_DOTDOT;
        let result = if self.list_dots(&dir, cookie, each) { walk.run(cookie, plus, each) } else { Ok(()) };
        walk.finish(plus);
        result
    }

    /// Answers from memory what was answered a moment ago: that nothing follows, and the listing of
    /// a directory that has not changed and whose nodes, if they are wanted, are all in memory
    /// (programs look first whether a directory is empty, and then list it). False if it cannot;
    /// then nothing was given to `each`.
    fn list_known(&self, dir: &Arc<Node>, cookie: u64, nodes: Nodes, each: Each<'_>) -> Result<bool> {
        if cookie != 0 && cookie <= COOKIE_DOTDOT {
            return Ok(false);
        }
        let mut held = Vec::new();
        let entries = {
            let tree = self.tree.shared();
            let names = dir.dir().names.lock();
            let stamp = self.stamp(&tree, dir, &names);
            if names.dead {
                return Ok(true);
            }
            if cookie != 0 {
                return Ok(self.listings.lock().is_last(dir.id, stamp, cookie));
            }
            let Some((entries, given)) = self.listings.lock().whole(dir.id, stamp) else { return Ok(false) };
            if nodes == Nodes::With || (nodes == Nodes::Once && !given) {
                held.reserve(entries.len());
                for told in entries.iter() {
                    let Some(Known::Present(id)) = names.get(&told.name) else { return Ok(false) };
                    let Some(node) = self.nodes.acquire(id) else { return Ok(false) };
                    held.push(Held::adopt(self, node));
                }
            }
            entries
        };
        self.touch(dir);
        if !self.list_dots(dir, cookie, each) {
            return Ok(true);
        }
        let mut held = held.into_iter();
        for Told { cookie, name, ino, kind } in entries.iter() {
            let (ino, kind, cookie) = (*ino, *kind, *cookie);
            let Some(held) = held.next() else {
                if !each(DirEntry { name, ino, kind, cookie, entry: None }) {
                    break;
                }
                continue;
            };
            let entry = Entry { node: held.id, attr: self.attr(&held)? };
            if !each(DirEntry { name, ino, kind, cookie, entry: Some(&entry) }) {
                break;
            }
            held.keep();
        }
        Ok(true)
    }

    /// A walk over what the directory holds now; `None` if it was removed. `plus`: nodes are
    /// wanted, whose names become known with them.
    fn walk<'a>(&'a self, dir: &'a Arc<Node>, plus: bool) -> Result<Option<Walk<'a>>> {
        let tree = self.tree.shared();
        let mut names = dir.dir().names.lock();
        if names.dead || self.is_lost(dir) {
            return Ok(None);
        }
        let stamp = self.stamp(&tree, dir, &names);
        let prefix = dir.content_prefix(tree.epoch);
        let cursor = self.volume.store.cursor(self.volume.metadata(), layout::entries_range(&prefix))?;
        let (entries, directories) = {
            let state = dir.state();
            (state.inode.size, state.inode.links)
        };
        // As many as one answer is likely to take; a listing of few should not grow piece by piece.
        let expected = entries.min(MOST_EXPECTED) as usize;
        let learn = entries <= LEARN_LIMIT
            && names.present() < entries
            && self.name_bytes.load(std::sync::atomic::Ordering::Relaxed) < self.volume.options.name_memory;
        if learn {
            names.expect(expected);
        }
        Ok(Some(Walk {
            fs: self,
            dir,
            prefix,
            stamp,
            cursor,
            has_directories: directories > 0,
            area_sum: dir.area_directory().map_or(0, |d| d.dir().area_sum),
            told: Vec::with_capacity(expected),
            from_start: false,
            to_end: false,
            learned: (learn && !plus).then(|| Vec::with_capacity(expected)),
        }))
    }

    fn list_dots(&self, dir: &Arc<Node>, cookie: u64, each: Each<'_>) -> bool {
        let kind = FileKind::Directory;
        let above = dir.place().parent.map_or(dir.ino, |p| p.ino);
        let dots = [(&b"."[..], dir.ino, COOKIE_DOT), (b"..", above, COOKIE_DOTDOT)];
        let mut left = dots.into_iter().filter(|(_, _, at)| cookie < *at);
        left.all(|(name, ino, cookie)| each(DirEntry { name, ino, kind, cookie, entry: None }))
    }
}

impl Walk<'_> {
    fn run(&mut self, cookie: u64, plus: bool, each: Each<'_>) -> Result<()> {
        let mut directories = cookie & COOKIE_DIRECTORY != 0;
        // All directories so far, if the walk began with the first entry and they are not too many.
        let mut aside = (cookie <= COOKIE_DOTDOT).then(Vec::new);
        if cookie > COOKIE_DOTDOT
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
                    if !self.show(name, record, plus, each)? {
                        return Ok(());
                    }
                } else if is_directory {
                    aside = aside.filter(|aside| aside.len() < SET_ASIDE);
                    aside.iter_mut().for_each(|aside| aside.push((name.clone(), record.clone())));
                }
            }
            if directories || !self.has_directories {
                self.to_end = true;
                return Ok(());
            }
            directories = true;
            match aside.take() {
                Some(aside) => {
                    for (name, record) in aside {
                        if !self.show(name, record, plus, each)? {
                            return Ok(());
                        }
                    }
                    self.to_end = true;
                    return Ok(());
                }
                None => self.rewind(),
            }
        }
    }

    fn rewind(&mut self) {
        self.cursor.seek(&layout::entries_range(&self.prefix).start);
    }

    /// The name behind which a cookie leads.
    fn position(&mut self, cookie: u64) -> Result<Option<Arc<[u8]>>> {
        if let Some(name) = self.fs.listings.lock().name(self.dir.id, cookie) {
            return Ok(Some(name));
        }
        while let Some(key) = self.next_key()? {
            let name = self.name_of(&key.0)?;
            // The kind may have changed since; what counts is the place.
            if cookie_of(&name, FileKind::Regular) == cookie & !COOKIE_DIRECTORY {
                return Ok(Some(name));
            }
        }
        self.rewind();
        Ok(None)
    }

    fn next_key(&mut self) -> Result<Option<(Key, espalier_engine::Value)>> {
        Ok(self.cursor.next()?.map(|entry| (entry.key, entry.value)))
    }

    fn name_of(&self, key: &[u8]) -> Result<Arc<[u8]>> {
        let name = key.get(self.prefix.len() + 1..).and_then(layout::unescape_shared);
        let damaged = || crate::FsError::new(crate::FsErrorKind::Io, "an entry whose name is damaged");
        name.ok_or_else(|| self.fs.at(self.dir, key, damaged()))
    }

    fn next(&mut self) -> Result<Option<(Arc<[u8]>, Record)>> {
        let Some((key, value)) = self.next_key()? else { return Ok(None) };
        let name = self.name_of(&key)?;
        let value = match value.in_memory() {
            Some(bytes) => bytes,
            None => self.cursor.read(&value)?,
        };
        let record = Record::decode(&value).map_err(|e| self.fs.at(self.dir, &name, e))?;
        Ok(Some((name, record)))
    }

    /// Gives one entry to the caller; false if it was not kept.
    fn show(&mut self, name: Arc<[u8]>, record: Record, plus: bool, each: Each<'_>) -> Result<bool> {
        let kind = record.kind();
        let cookie = cookie_of(&name, kind);
        let ino;
        let kept = if plus {
            let Some(held) = self.node(&name, record)? else { return Ok(true) };
            let entry = Entry { node: held.id, attr: self.fs.attr(&held)? };
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
                Record::Link(link) => link.number.wrapping_add(self.area_sum),
            };
            each(DirEntry { name: &name, ino, kind, cookie, entry: None })
        };
        if kept {
            self.told.push(Told { cookie, name, ino, kind });
        }
        Ok(kept)
    }

    /// The node of an entry that the walk has come to; `None` if the entry is gone by now, or is of
    /// another kind.
    fn node(&self, name: &Arc<[u8]>, record: Record) -> Result<Option<Held<'_>>> {
        let (fs, kind) = (self.fs, record.kind());
        let held;
        let tree = fs.tree.shared();
        let mut names = self.dir.dir().names.lock();
        held = if fs.stamp(&tree, self.dir, &names) == self.stamp {
            fs.learn(self.dir, &mut names, name.clone(), Some(record))?
        } else {
            fs.resolve(&tree, self.dir, &mut names, name)?
        };
        Ok(held.filter(|held| held.kind == kind))
    }

    /// Remembers where cookies lead and which names there are.
    fn finish(self, has_nodes: bool) {
        let Walk { dir, stamp, told, from_start, to_end, .. } = self;
        let answer = Answer { dir: dir.id, entries: Arc::new(told), has_nodes, stamp, from_start, to_end };
        self.fs.listings.lock().remember(answer);
        let Some(learned) = self.learned.filter(|l| !l.is_empty()) else { return };
        let mut names = self.dir.dir().names.lock();
        if names.version != self.stamp.version || names.dead {
            return;
        }
        for name in learned {
            if names.get(&name).is_none() {
                self.fs.set_name(self.dir, &mut names, name, Known::Present(NodeId(0)));
            }
        }
    }
}
