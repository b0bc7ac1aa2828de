//! Rename.
//!
//! An entry that moves takes along what belongs to it: a file its blocks, a directory everything
//! below. The blocks of files that are not large move key by key, values by reference; everything
//! else moves as one range in each index, whatever it holds. Renames of directories exclude every
//! other operation for the moment that takes; those of files only lock the two directories.
//!
//! Numbers stay: the moved entry's own number, or a directory's delta, is corrected by what the
//! directories above add there and here.

use crate::file_system::{Deferred, FileSystem, Held, check_name};
use crate::inode::node::{Known, Names, Node, Place, Role, State, States};
use crate::inode::tree_lock::TreeGuard;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, Link};
use crate::model::types::*;
use crate::namespace::create::{New, count_entry, uncount_entry};
use crate::namespace::lookup::no_entry;
use crate::namespace::remove::{Name, check_empty};
use espalier_engine::{Batch, IndexId, Key, Value};
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How far a rename came.
#[derive(PartialEq)]
enum Outcome {
    Done,
    /// A directory is concerned: the exclusive lock is needed.
    NeedExclusive,
    /// Names of files with several would come to be served by another link area: the areas have to
    /// become one first.
    NeedJoin,
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

/// What comes, after everything that goes was deleted.
#[derive(Default)]
struct Puts {
    /// Prefixes that move: from, to.
    moves: Vec<(IndexId, Vec<u8>, Vec<u8>)>,
    /// Keys and values to insert, after the moves.
    keys: Vec<(IndexId, Key, Value)>,
    /// The node moves with its entry in memory.
    is_moved: bool,
}

impl Puts {
    fn put(&mut self, index: IndexId, key: &[u8], value: Vec<u8>) {
        self.keys.push((index, key.into(), value.into()));
    }

    /// Adds to a batch what `first` and `second` (of an exchange: the other direction) bring.
    fn add(first: Option<Self>, second: Self, batch: &mut Batch) {
        let first = first.unwrap_or_default();
        let aside = |n: usize| {
            let name = layout::area_name(n as u64);
            layout::content_prefix(layout::ORPHAN_AREA, &name)
        };
        // Two that change places need a third.
        for (n, (index, from, _)) in first.moves.iter().enumerate() {
            batch.move_range(*index, from, &aside(n));
        }
        for (index, from, to) in &second.moves {
            batch.move_range(*index, from, to);
        }
        for (n, (index, _, to)) in first.moves.iter().enumerate() {
            batch.move_range(*index, &aside(n), to);
        }
        for (index, key, value) in first.keys.into_iter().chain(second.keys) {
            batch.insert(index, &key, value);
        }
    }
}

/// The two entries of a rename, as asked for.
struct Request<'a> {
    from: &'a Arc<Node>,
    name: &'a [u8],
    to: &'a Arc<Node>,
    new_name: &'a [u8],
    mode: RenameMode,
}

impl FileSystem {
    /// Moves an entry; what is in use in it and below stays in use. The cost does not depend on
    /// what is below a directory, nor on the size of a large file.
    ///
    /// # Errors
    /// [`FsErrorKind::NotFound`], [`FsErrorKind::Exists`] with [`RenameMode::NoReplace`],
    /// [`FsErrorKind::NotEmpty`], [`FsErrorKind::IsDirectory`], [`FsErrorKind::NotDirectory`],
    /// [`FsErrorKind::Invalid`] to move a directory into itself, [`FsErrorKind::NameTooLong`] if a
    /// path below would become too long; of the store.
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
        self.volume.check_writable()?;
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
        let tree = self.tree.shared();
        let _renames = (request.from.id != request.to.id).then(|| self.renames.lock());
        self.rename_locked(&tree, request, false, &mut held, &mut deferred)
    }

    fn rename_exclusive(&self, request: &Request<'_>) -> Result<()> {
        let mut deferred = Deferred::new(self);
        let (mut held, mut held_again) = (Vec::new(), Vec::new());
        let tree = self.tree.exclusive_for_move();
        let result = (|| {
            if self.rename_locked(&tree, request, true, &mut held, &mut deferred)? == Outcome::NeedJoin {
                self.join_areas(&tree, request.from, request.to, &mut deferred)?;
                self.rename_locked(&tree, request, true, &mut held_again, &mut deferred)?;
            }
            Ok(())
        })();
        result
    }

    fn rename_locked<'a>(
        &'a self,
        tree: &TreeGuard<'_>,
        request: &Request<'_>,
        exclusive: bool,
        held: &mut Vec<Held<'a>>,
        deferred: &mut Deferred<'_>,
    ) -> Result<Outcome> {
        let Request { from, name, to, new_name, mode } = *request;
        let mut names = Pair::lock(from, to);
        if names.from.dead || names.to().dead || self.is_lost(from) || self.is_lost(to) {
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
        self.promise(from, name, &source, to)?;
        if let Some(target) = target.filter(|_| mode == RenameMode::Exchange) {
            self.promise(to, new_name, target, from)?;
        }
        if let RenameMode::Whiteout { uid, .. } = mode
            && from.state().inode.uid != uid
        {
            self.clear_marks(from)?;
        }
        let source = Name { dir: from, name, node: &source };
        let target = target.map(|node| Name { dir: to, name: new_name, node });
        self.check_key(&layout::entry_key(&to.content_prefix(tree.epoch), new_name))?;
        self.make_way(tree, request, &source, target.as_ref())?;
        self.move_entries(tree, request, &source, target.as_ref(), &mut names, deferred)
    }

    /// Sees to it that no directory promises what an entry that comes to `to` contradicts.
    fn promise(&self, from: &Arc<Node>, name: &[u8], node: &Arc<Node>, to: &Arc<Node>) -> Result<()> {
        if !node.is_at(from, name) {
            return self.clear_marks(to);
        }
        let inode = node.state().inode.clone();
        self.clear_marks_unless(to, &inode)
    }

    /// Moves data of unlinked files away from what moves or is replaced.
    fn make_way(
        &self,
        tree: &TreeGuard<'_>,
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
        tree: &TreeGuard<'_>,
        request: &Request<'_>,
        source: &Name<'_>,
        target: Option<&Name<'_>>,
        names: &mut Pair<'_>,
        deferred: &mut Deferred<'_>,
    ) -> Result<Outcome> {
        let Request { from, to, mode, .. } = *request;
        let exchange = mode == RenameMode::Exchange;
        let now = self.volume.now();
        let mut nodes = vec![from, to, source.node];
        nodes.extend(target.map(|t| t.node));
        let mut states = States::lock(&nodes);
        if self.must_join(tree, source, states.of(source.node), to)?
            || (exchange
                && target
                    .map_or(Ok(false), |target| self.must_join(tree, target, states.of(target.node), from))?)
        {
            return Ok(Outcome::NeedJoin);
        }
        let mut batch = Batch::new();

        let mut removal = None;
        let mut swapped = None;
        match target {
            Some(target) if exchange => {
                swapped =
                    Some(self.move_entry(tree, target, source, states.of(target.node), now, &mut batch)?);
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
        let (moved, puts) = self.move_entry(tree, source, &goal, states.of(source.node), now, &mut batch)?;
        let (swapped, back) = swapped.unzip();

        let mut above = states.of(from).inode.clone();
        uncount_entry(&mut above, source.node.kind, now);
        if let Some(swapped) = &swapped {
            count_entry(&mut above, swapped, now)?;
        }
        let whiteout = self.leave_whiteout(tree, request, &mut states, now, &mut batch)?;
        if let Some(whiteout) = &whiteout {
            count_entry(&mut above, whiteout, now)?;
            batch.insert(self.volume.metadata(), &source.key(tree), whiteout.encode());
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
        let was_at_source = puts.is_moved;
        let was_at_target = back.as_ref().is_some_and(|puts| puts.is_moved);
        Puts::add(back, puts, &mut batch);
        let lsn = self.volume.commit(batch)?;

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
        // A node is where its entry is, unless it is a name of a file in a link area.
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
        tree: &TreeGuard<'_>,
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

    /// Adds to a batch what goes when the entry `from` moves to the place of `to`. Returns the
    /// node's new inode and what comes.
    fn move_entry(
        &self,
        tree: &TreeGuard<'_>,
        from: &Name<'_>,
        to: &Name<'_>,
        state: &State,
        now: i64,
        batch: &mut Batch,
    ) -> Result<(Inode, Puts)> {
        let node = from.node;
        let (old, new) = (from.key(tree), to.key(tree));
        let mut inode = state.inode.clone();
        inode.set_ctime(now);
        batch.delete(self.volume.metadata(), &old);
        let mut puts = Puts { is_moved: true, ..Puts::default() };
        if !node.is_at(from.dir, from.name) {
            self.move_link(tree, from, to, &mut inode, batch, &mut puts)?;
            return Ok((inode, puts));
        }
        // The number that users see stays, whatever the directories above add to it.
        match &node.directory {
            Some(directory) => inode.delta = directory.sum.wrapping_sub(to.dir.dir().sum),
            None => inode.number = node.ino.wrapping_sub(to.dir.dir().sum),
        }
        puts.put(self.volume.metadata(), &new, inode.encode());
        node.version.fetch_add(1, Ordering::AcqRel);
        self.move_data(&inode, &old, &new, batch, &mut puts)?;
        if node.is_dir() {
            let old = node.content_prefix(tree.epoch);
            let new = layout::content_prefix(&to.dir.content_prefix(tree.epoch), to.name);
            self.check_lengths(&old, &new)?;
            if inode.size == 0 && !inode.area {
                // There is nothing below.
                return Ok((inode, puts));
            }
            puts.moves.push((self.volume.metadata(), old.to_vec(), new.clone()));
            puts.moves.push((self.volume.data(), old.to_vec(), new.clone()));
            if self.any_links.load(Ordering::Relaxed) {
                puts.moves.push((self.volume.links(), old.to_vec(), new));
            }
        }
        Ok((inode, puts))
    }

    /// What a file or directory has in the data index goes from `old`, and comes at `new`.
    fn move_data(
        &self,
        inode: &Inode,
        old: &[u8],
        new: &[u8],
        batch: &mut Batch,
        puts: &mut Puts,
    ) -> Result<()> {
        if !inode.has_data() {
            return Ok(());
        }
        if self.is_large(inode) {
            let xattrs = inode.has_large_xattrs();
            let pairs = layout::file_prefixes(old, xattrs).zip(layout::file_prefixes(new, xattrs));
            puts.moves.extend(pairs.map(|(from, to)| (self.volume.data(), from, to)));
            return Ok(());
        }
        self.read_file(inode, old, |key, value| {
            puts.keys.push((self.volume.data(), layout::rebase(key, old, new), value))
        })?;
        self.delete_data(old, inode, batch);
        Ok(())
    }

    /// One name of a file in a link area moves. Where another area serves the new place the file
    /// moves along, if that was its last name.
    fn move_link(
        &self,
        tree: &TreeGuard<'_>,
        from: &Name<'_>,
        to: &Name<'_>,
        inode: &mut Inode,
        batch: &mut Batch,
        puts: &mut Puts,
    ) -> Result<()> {
        let node = from.node;
        let (old, new) = (from.key(tree), to.key(tree));
        let area = node.place().parent.filter(|p| p.dir().role == Role::LinkArea);
        let sum = area.map_or(0, |area| area.dir().sum);
        let id = layout::area_id(&node.place().name).unwrap_or_default();
        let home = node.entry_key(tree.epoch);
        batch.delete(self.volume.links(), &old);
        if !self.are_apart(from.dir, to.dir) {
            let link = Link { kind: inode.kind, id, number: node.ino.wrapping_sub(sum) };
            puts.is_moved = false;
            puts.put(self.volume.metadata(), &new, link.encode());
            puts.put(self.volume.links(), &new, id.to_le_bytes().to_vec());
            puts.put(self.volume.metadata(), &home, inode.encode());
            return Ok(());
        }
        inode.number = node.ino.wrapping_sub(to.dir.dir().sum);
        batch.delete(self.volume.metadata(), &home);
        puts.put(self.volume.metadata(), &new, inode.encode());
        node.version.fetch_add(1, Ordering::AcqRel);
        self.move_data(inode, &home, &new, batch, puts)
    }

    /// True if names of files with several would come to where another link area serves than does
    /// now: of the entry itself, or below it.
    fn must_join(
        &self,
        tree: &TreeGuard<'_>,
        name: &Name<'_>,
        state: &State,
        to: &Arc<Node>,
    ) -> Result<bool> {
        let Name { node, dir, .. } = *name;
        if !self.are_apart(dir, to) {
            return Ok(false);
        }
        if !node.is_dir() {
            return Ok(state.inode.links > 1);
        }
        let mut any = false;
        if !node.dir().has_area() {
            self.names_below(&node.content_prefix(tree.epoch), |_, _| {
                any = true;
                false
            })?;
        }
        Ok(any)
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
