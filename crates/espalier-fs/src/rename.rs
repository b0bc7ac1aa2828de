//! Rename.
//!
//! An entry that moves takes along what belongs to it: a file its blocks, a directory everything
//! below. All keys move in one batch, values by reference, so the cost is that of the keys. Renames
//! of directories exclude every other operation while they run; those of files only lock the two
//! directories.

use crate::create::{New, count_entry, uncount_entry};
use crate::error::{FsError, FsErrorKind, Result, fail};
use crate::fs::{Deferred, FileSystem, Held, Tree, check_name};
use crate::layout::{self, DATA, LINKS, METADATA};
use crate::lookup::no_entry;
use crate::node::{Known, Names, Node, Place, State, States};
use crate::record::{Inode, Link};
use crate::remove::{Name, check_empty};
use crate::types::*;
use espalier_engine::{Batch, IndexId, Key, Value};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Batches with no more operations than this fit into any log.
const SMALL_BATCH: usize = 256;

/// How far a rename came.
#[derive(PartialEq)]
enum Outcome {
    Done,
    /// A directory is concerned: the exclusive lock is needed.
    NeedExclusive,
}

/// The locked names of one or two directories.
struct Pair<'a> {
    from: MutexGuard<'a, Names>,
    to: Option<MutexGuard<'a, Names>>,
}

impl<'a> Pair<'a> {
    /// Locks ancestors first.
    fn lock(from: &'a Arc<Node>, to: &'a Arc<Node>) -> Self {
        if from.id == to.id {
            return Self { from: from.dir().names.lock(), to: None };
        }
        if to.contains(from) {
            let second = to.dir().names.lock();
            return Self { from: from.dir().names.lock(), to: Some(second) };
        }
        let first = from.dir().names.lock();
        Self { from: first, to: Some(to.dir().names.lock()) }
    }

    fn to(&mut self) -> &mut Names {
        self.to.as_mut().unwrap_or(&mut self.from)
    }
}

/// Keys and values to insert, after everything that goes was deleted.
type Puts = Vec<(IndexId, Key, Value)>;

/// The two entries of a rename, as asked for.
struct Request<'a> {
    from: &'a Arc<Node>,
    name: &'a [u8],
    to: &'a Arc<Node>,
    new_name: &'a [u8],
    mode: RenameMode,
}

impl FileSystem {
    /// Moves an entry. The cost grows with the number of blocks of a file, and for a directory with
    /// the number of entries and blocks below it.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`], [`FsErrorKind::Exists`] with [`RenameMode::NoReplace`], [`FsErrorKind::NotEmpty`],
    /// [`FsErrorKind::IsDirectory`], [`FsErrorKind::NotDirectory`], [`FsErrorKind::Invalid`] to move a directory
    /// into itself, [`FsErrorKind::NameTooLong`] if a path below would become too long,
    /// [`FsErrorKind::CrossArea`] if there is more to move than fits into the log; of the store.
    pub fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        let (from, to) = (self.dir(parent)?, self.dir(new_parent)?);
        check_name(name)?;
        check_name(new_name)?;
        self.writable()?;
        let request = Request { from: &from, name, to: &to, new_name, mode };
        let is_dir = |held: Option<Held<'_>>| held.is_some_and(|h| h.is_dir());
        let exclusive = is_dir(self.find(&from, name)?) || is_dir(self.find(&to, new_name)?);
        if !exclusive && self.rename_shared(&request)? == Outcome::Done {
            return Ok(());
        }
        self.drain_below(&from, name);
        self.drain_below(&to, new_name);
        self.rename_exclusive(&request)
    }

    fn rename_shared(&self, request: &Request<'_>) -> Result<Outcome> {
        let mut deferred = Deferred::new(self);
        let mut held = Vec::new();
        let tree = self.enter();
        let _renames = (request.from.id != request.to.id).then(|| self.renames.lock());
        self.rename_locked(&tree, request, false, &mut held, &mut deferred)
    }

    fn rename_exclusive(&self, request: &Request<'_>) -> Result<()> {
        let mut deferred = Deferred::new(self);
        let mut held = Vec::new();
        let _guard = self.tree.write();
        // Readers without lock see that something moves. What is computed during the move must not
        // be taken for what holds afterwards, hence the second step.
        let epoch = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        let tree = Tree::exclusive(epoch);
        let result = self.rename_locked(&tree, request, true, &mut held, &mut deferred);
        self.epoch.fetch_add(1, Ordering::AcqRel);
        result.map(drop)
    }

    fn rename_locked<'a>(
        &'a self,
        tree: &Tree<'_>,
        request: &Request<'_>,
        exclusive: bool,
        held: &mut Vec<Held<'a>>,
        deferred: &mut Deferred<'_>,
    ) -> Result<Outcome> {
        let Request { from, name, to, new_name, mode } = *request;
        let mut names = Pair::lock(from, to);
        if names.from.dead || names.to().dead {
            return fail(FsErrorKind::NotFound, "the directory was removed");
        }
        held.push(self.resolve(tree, from, &mut names.from, name)?.ok_or_else(|| no_entry(name))?);
        let source = held[0].clone();
        let target = self.resolve(tree, to, names.to(), new_name)?.map(|target| {
            let node = target.clone();
            held.push(target);
            node
        });
        match (&target, mode) {
            (Some(_), RenameMode::NoReplace | RenameMode::Whiteout { replace: false, .. }) => {
                return fail(
                    FsErrorKind::Exists,
                    format!("there is an entry {} already", layout::show(new_name)),
                );
            }
            (None, RenameMode::Exchange) => return Err(no_entry(new_name)),
            _ => {}
        }
        let target = target.as_ref();
        if target.is_some_and(|t| t.id == source.id) {
            return Ok(Outcome::Done);
        }
        if !exclusive && (source.is_dir() || target.is_some_and(|t| t.is_dir())) {
            return Ok(Outcome::NeedExclusive);
        }
        check_nesting(request, &source, target)?;
        let source = Name { dir: from, name, node: &source };
        let target = target.map(|node| Name { dir: to, name: new_name, node });
        self.check_key(&layout::entry_key(&to.content_prefix(tree.epoch), new_name))?;
        self.make_way(tree, request, &source, target.as_ref())?;
        self.move_entries(tree, request, &source, target.as_ref(), &mut names, deferred)
    }

    /// Moves data of unlinked files away from what moves or is replaced.
    fn make_way(
        &self,
        tree: &Tree<'_>,
        request: &Request<'_>,
        source: &Name<'_>,
        target: Option<&Name<'_>>,
    ) -> Result<()> {
        for dir in [Some(source), target].into_iter().flatten().filter(|n| n.node.is_dir()) {
            self.evacuate(&layout::content_range(&dir.node.content_prefix(tree.epoch)))?;
        }
        if target.is_none() {
            self.evacuate_file(&layout::entry_key(&request.to.content_prefix(tree.epoch), request.new_name))?;
        }
        Ok(())
    }

    fn move_entries(
        &self,
        tree: &Tree<'_>,
        request: &Request<'_>,
        source: &Name<'_>,
        target: Option<&Name<'_>>,
        names: &mut Pair<'_>,
        deferred: &mut Deferred<'_>,
    ) -> Result<Outcome> {
        let Request { from, to, mode, .. } = *request;
        let exchange = mode == RenameMode::Exchange;
        let now = self.now();
        let mut nodes = vec![from, to, source.node];
        nodes.extend(target.map(|t| t.node));
        let mut states = States::lock(&nodes);
        let mut batch = Batch::new();
        let mut puts = Puts::new();

        let mut removal = None;
        let mut swapped = None;
        match target {
            Some(target) if exchange => {
                swapped = Some(self.move_entry(
                    tree,
                    target,
                    source,
                    states.of(target.node),
                    now,
                    &mut batch,
                    &mut puts,
                )?);
            }
            Some(target) if target.node.is_dir() => {
                self.remove_dir(tree, target.node, states.of(target.node), &mut batch);
            }
            Some(target) => {
                removal =
                    Some(self.remove_name(tree, target, states.of(target.node), now, true, &mut batch)?);
            }
            None => {}
        }
        let goal = Name { dir: to, name: request.new_name, node: source.node };
        let moved =
            self.move_entry(tree, source, &goal, states.of(source.node), now, &mut batch, &mut puts)?;

        let mut above = states.of(from).inode.clone();
        uncount_entry(&mut above, source.node.kind, now);
        if let Some(swapped) = &swapped {
            count_entry(&mut above, swapped, now)?;
        }
        let whiteout = self.leave_whiteout(tree, request, &mut states, now, &mut batch)?;
        if let Some(whiteout) = &whiteout {
            count_entry(&mut above, whiteout, now)?;
            batch.insert(self.metadata(), &source.key(tree), whiteout.encode());
        }
        let mut above_new = if from.id == to.id { above.clone() } else { states.of(to).inode.clone() };
        if let Some(target) = target {
            uncount_entry(&mut above_new, target.node.kind, now);
        }
        count_entry(&mut above_new, &moved, now)?;
        if from.id != to.id {
            self.put(tree, from, states.of(from), &above, &mut batch);
        }
        self.put(tree, to, states.of(to), &above_new, &mut batch);
        puts.into_iter().for_each(|(index, key, value)| batch.insert(index, &key, value));
        let is_small = batch.len() <= SMALL_BATCH;
        let lsn = self.commit(batch).map_err(|error| match error.kind() {
            FsErrorKind::Invalid if !is_small => {
                FsError::new(FsErrorKind::CrossArea, format!("more than can move at once; copy it: {error}"))
            }
            _ => error,
        })?;

        if from.id != to.id {
            self.take_over(from, states.of(from), above, lsn);
        }
        self.take_over(to, states.of(to), above_new, lsn);
        if let Some(removal) = removal.zip(target) {
            self.removed(removal.1.node, states.of(removal.1.node), removal.0, lsn, deferred);
        }
        if let Some(target) = target.filter(|t| !exchange && t.node.is_dir()) {
            target.node.dir().names.lock().dead = true;
            self.removed_dir(target.node, states.of(target.node), now, lsn);
        }
        // A node is where its entry is, unless it is a name of a file in the link area.
        let was_at_source = source.node.is_at(from, source.name);
        let was_at_target = target.is_some_and(|t| exchange && t.node.is_at(to, t.name));
        self.take_over(source.node, states.of(source.node), moved, lsn);
        if was_at_source {
            self.replace(source.node, to, request.new_name, deferred);
        }
        if let Some((target, swapped)) = target.zip(swapped) {
            self.take_over(target.node, states.of(target.node), swapped, lsn);
            if was_at_target {
                self.replace(target.node, from, source.name, deferred);
            }
        }
        let left = match target.filter(|_| exchange) {
            Some(target) => Known::Present(target.node.id),
            // It has no node yet.
            None if whiteout.is_some() => Known::Present(NodeId(0)),
            None => Known::Absent,
        };
        self.set_name(from, &mut names.from, source.name, left);
        names.from.version += 1;
        self.set_name(to, names.to(), request.new_name, Known::Present(source.node.id));
        names.to().version += 1;
        Ok(Outcome::Done)
    }

    /// The inode of what a rename leaves in the place of the entry, if it leaves anything.
    fn leave_whiteout(
        &self,
        tree: &Tree<'_>,
        request: &Request<'_>,
        states: &mut States<'_>,
        now: i64,
        batch: &mut Batch,
    ) -> Result<Option<Inode>> {
        let RenameMode::Whiteout { uid, gid, .. } = request.mode else { return Ok(None) };
        let dir = request.from;
        let number = self.fresh_number()?.wrapping_sub(dir.dir().sum);
        let key = layout::entry_key(&dir.content_prefix(tree.epoch), request.name);
        let new = New { kind: FileKind::CharDevice, mode: 0, rdev: 0, target: None };
        let caller = Caller { uid, gid, ..Caller::default() };
        let state = states.of(dir);
        self.new_inode(tree, dir, state, &key, &new, &caller, number, now, batch).map(Some)
    }

    /// In memory, a node moves to another place.
    fn replace(&self, node: &Arc<Node>, dir: &Arc<Node>, name: &[u8], deferred: &mut Deferred<'_>) {
        self.nodes.acquire(dir.id);
        let old = node.set_place(Place { parent: Some(dir.clone()), name: name.into() });
        if let Some(parent) = old.parent {
            deferred.release(parent.id);
        }
    }

    /// Adds to a batch what goes when the entry `from` moves to the place of `to`, and to `puts` what
    /// comes. Returns the node's new inode.
    #[allow(clippy::too_many_arguments, reason = "one step of one operation, used in both directions")]
    fn move_entry(
        &self,
        tree: &Tree<'_>,
        from: &Name<'_>,
        to: &Name<'_>,
        state: &State,
        now: i64,
        batch: &mut Batch,
        puts: &mut Puts,
    ) -> Result<Inode> {
        let node = from.node;
        let (old, new) = (from.key(tree), to.key(tree));
        let mut inode = state.inode.clone();
        inode.ctime = now;
        batch.delete(self.metadata(), &old);
        let mut put = |index, key: &[u8], value: Vec<u8>| puts.push((index, key.into(), value.into()));
        if !node.is_at(from.dir, from.name) {
            let id = layout::area_id(&node.place().name).unwrap_or_default();
            let link = Link { kind: inode.kind, id, number: node.ino.wrapping_sub(self.links.dir().sum) };
            batch.delete(self.link_index(), &old);
            put(self.metadata(), &new, link.encode());
            put(self.link_index(), &new, id.to_le_bytes().to_vec());
            put(self.metadata(), &node.entry_key(tree.epoch), inode.encode());
            return Ok(inode);
        }
        // The number that users see stays, whatever the directories above add to it.
        match &node.directory {
            Some(directory) => inode.delta = directory.sum.wrapping_sub(to.dir.dir().sum),
            None => inode.number = node.ino.wrapping_sub(to.dir.dir().sum),
        }
        put(self.metadata(), &new, inode.encode());
        node.version.fetch_add(1, Ordering::AcqRel);
        if inode.has_data() {
            let data = self.data();
            self.read_file(&inode, &old, |key, value| {
                puts.push((data, layout::rebase(key, &old, &new), value))
            })?;
            self.delete_data(&old, &inode, batch);
        }
        if node.is_dir() {
            let old = node.content_prefix(tree.epoch);
            let new = layout::content_prefix(&to.dir.content_prefix(tree.epoch), to.name);
            for index in [METADATA, DATA, LINKS] {
                self.move_range(index, layout::content_range(&old), (&old, &new), batch, puts)?;
            }
        }
        Ok(inode)
    }

    /// Adds to a batch that a range goes, and to `puts` that it comes with another prefix.
    fn move_range(
        &self,
        index: u8,
        range: espalier_engine::KeyRange,
        (old, new): (&[u8], &[u8]),
        batch: &mut Batch,
        puts: &mut Puts,
    ) -> Result<()> {
        let index = IndexId { volume: self.volume, index };
        let mut cursor = self.store.cursor(index, range.clone())?;
        let before = puts.len();
        while let Some(entry) = cursor.next()? {
            let key = layout::rebase(&entry.key, old, new);
            if index.index == METADATA {
                self.check_key(&key).map_err(|e| e.context("below the directory that moves"))?;
            }
            puts.push((index, key, entry.value));
        }
        if puts.len() > before {
            batch.delete_range(index, range);
        }
        Ok(())
    }
}

/// Refuses to move a directory into itself, or to replace what cannot be replaced.
fn check_nesting(request: &Request<'_>, source: &Arc<Node>, target: Option<&Arc<Node>>) -> Result<()> {
    if source.is_dir() && source.contains(request.to) {
        return fail(FsErrorKind::Invalid, "a directory cannot move into itself");
    }
    let Some(target) = target else { return Ok(()) };
    if request.mode == RenameMode::Exchange {
        if target.is_dir() && target.contains(request.from) {
            return fail(FsErrorKind::Invalid, "a directory cannot change places with something in it");
        }
        return Ok(());
    }
    match (source.is_dir(), target.is_dir()) {
        (true, false) => fail(FsErrorKind::NotDirectory, "a directory cannot replace a file"),
        (false, true) => fail(FsErrorKind::IsDirectory, "a file cannot replace a directory"),
        (true, true) => check_empty(target),
        (false, false) => Ok(()),
    }
}
