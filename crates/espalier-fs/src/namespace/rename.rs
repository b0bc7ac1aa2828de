//! Rename.
//!
//! An entry that moves takes along what belongs to it: a file its blocks, a directory everything
//! below. The blocks of files that are not large move key by key, values by reference; everything
//! else moves as one range in each index, of any size. Renames of directories exclude every other
//! operation for the moment that takes; those of files only lock the two directories.
//!
//! Numbers stay: the moved entry's own number, or a directory's delta, is corrected by the
//! difference of what the directories above add there and here.

use crate::inode::inode_store::{Creation, NewObject, count_entry, uncount_entry};
use crate::inode::names::{Known, Names};
use crate::inode::node::{Node, Place, State, States};
use crate::inode::ownership::Contradiction;
use crate::links::link_area::are_served_apart;
use crate::lock_order::{Rank, RankedGuard, RankedMutex};
use crate::model::access::Judge;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::privileges::agrees_with_mark;
use crate::model::record::Inode;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::namespace::lookup::{check_name, no_entry};
use crate::namespace::move_entry::{Arrivals, EntryMove};
use crate::orphan::unlink::{DataPlace, NameRemoval, NamedNode, check_empty};
use crate::references::{DeferredReleases, HeldNode};
use crate::volume::tree_lock::TreeGuard;
use espalier_engine::{Batch, Lsn};
use std::sync::Arc;

/// How far a rename came.
#[derive(PartialEq)]
pub(crate) enum RenameOutcome {
    Done,
    /// A directory is concerned: the exclusive lock is needed.
    NeedsExclusive,
    /// Names of files with several names would come to be served by another link area: the areas
    /// have to become one first.
    NeedsMerge,
}

/// What memory held of nodes and names before a rename whose batch is not committed yet.
pub(crate) struct Before {
    /// Nodes with inode, last batch, and whether the time of the last read was to be written.
    pub(crate) states: Vec<(Arc<Node>, Inode, Lsn, bool)>,
    /// Where nodes were.
    places: Vec<(Arc<Node>, Place)>,
    names: Vec<(Arc<Node>, Vec<u8>, Known)>,
}

/// Where the batches of renames go.
pub(crate) enum Commits {
    /// Each is committed.
    Single,
    /// They wait in one batch, with what was before. Nodes get the batch number given.
    Gathered { batch: Batch, lsn: Lsn, before: Vec<Before> },
}

impl Commits {
    /// An empty batch.
    pub(crate) fn gathered(lsn: Lsn) -> Self {
        Self::Gathered { batch: Batch::new(), lsn, before: Vec::new() }
    }

    fn commit(&mut self, namespace: &Namespace, new: Batch, was: impl FnOnce() -> Before) -> Result<Lsn> {
        match self {
            Self::Single => namespace.volume.commit(new),
            Self::Gathered { batch, lsn, before } => {
                batch.append(new);
                before.push(was());
                Ok(*lsn)
            }
        }
    }
}

impl Before {
    fn of(
        request: &RenameRequest<'_>,
        found: &Found<'_>,
        changes: &Changes,
        states: &mut States<'_>,
    ) -> Self {
        let (source, target) = (found.source.node, found.target.as_ref().map(|target| target.node));
        let mut nodes: Vec<&Arc<Node>> = vec![request.from, request.to, source];
        nodes.extend(target);
        let moved = [changes.source_moves.then_some(source), target.filter(|_| changes.target_moves)];
        let known = target.map_or(Known::Absent, |target| Known::Present(target.id));
        Self {
            places: moved.into_iter().flatten().map(|node| (node.clone(), node.place())).collect(),
            names: vec![
                (request.from.clone(), request.name.to_vec(), Known::Present(source.id)),
                (request.to.clone(), request.new_name.to_vec(), known),
            ],
            ..Self::of_states(&nodes, states)
        }
    }

    /// Of nodes that stay where they are.
    pub(crate) fn of_states(nodes: &[&Arc<Node>], states: &mut States<'_>) -> Self {
        let mut nodes = nodes.to_vec();
        nodes.sort_unstable_by_key(|node| node.id);
        nodes.dedup_by_key(|node| node.id);
        let states = nodes.into_iter().map(|node| {
            let state = states.of(node);
            (node.clone(), state.inode.clone(), state.lsn, state.atime_dirty)
        });
        Self { states: states.collect(), places: Vec::new(), names: Vec::new() }
    }

    /// Makes memory what it was. The caller holds the exclusive tree lock since before the rename,
    /// and no names and no states.
    pub(crate) fn restore(self, namespace: &Namespace, releases: &mut DeferredReleases<'_>) {
        for (node, inode, lsn, atime_dirty) in self.states {
            let mut state = node.state();
            node.take_over(&mut state, inode, lsn);
            state.atime_dirty = atime_dirty;
        }
        for (node, Place { parent, name }) in self.places {
            if let Some(parent) = parent {
                releases.add(namespace.nodes.move_node(&node, &parent, &name));
            }
        }
        for (dir, name, known) in self.names {
            let mut names = dir.dir().names.lock();
            namespace.nodes.set_name(&dir, &mut names, name, known);
            names.version += 1;
        }
    }
}

/// The locked names of one or two directories.
struct NamesPair<'a> {
    from: RankedGuard<'a, Names>,
    to: Option<RankedGuard<'a, Names>>,
}

impl<'a> NamesPair<'a> {
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

/// The two entries of a rename, as asked for.
pub(crate) struct RenameRequest<'a> {
    pub(crate) from: &'a Arc<Node>,
    pub(crate) name: &'a [u8],
    pub(crate) to: &'a Arc<Node>,
    pub(crate) new_name: &'a [u8],
    pub(crate) mode: RenameMode,
    pub(crate) judge: Judge<'a>,
}

impl RenameRequest<'_> {
    fn is_exchange(&self) -> bool {
        self.mode == RenameMode::Exchange
    }
}

/// The entries that a rename found: the one that moves, and the one in the place where it goes.
struct Found<'a> {
    source: NamedNode<'a>,
    target: Option<NamedNode<'a>>,
}

/// The inodes of everything that a rename changes, before and after the commit.
struct Changes {
    /// Of the entry that moves.
    moved: Inode,
    source_moves: bool,
    /// Of an exchange: the other entry.
    swapped: Option<Inode>,
    target_moves: bool,
    /// A file that is replaced loses a name.
    removal: Option<NameRemoval>,
    /// Of the directory that the entry leaves, with what is left in its place.
    from: Inode,
    left_whiteout: bool,
    /// Of the directory where it goes.
    to: Inode,
    now: i64,
}

/// Renames across directories exclude each other.
pub(crate) struct RenameLock(RankedMutex<()>);

impl Default for RenameLock {
    fn default() -> Self {
        Self(RankedMutex::new(Rank::Renames, ()))
    }
}

/// Moves an entry; what is in use in it and below stays in use. Returns the nodes of what had the
/// two names.
pub(crate) fn rename(
    namespace: &Namespace,
    lock: &RenameLock,
    (parent, name): (NodeId, &[u8]),
    (new_parent, new_name): (NodeId, &[u8]),
    mode: RenameMode,
    judge: Judge<'_>,
) -> Result<Renamed> {
    let (from, to) = (namespace.nodes.dir(parent)?, namespace.nodes.dir(new_parent)?);
    check_name(name)?;
    check_name(new_name)?;
    namespace.volume.check_writable()?;
    let request = RenameRequest { from: &from, name, to: &to, new_name, mode, judge };
    let is_dir = |held: Option<HeldNode<'_>>| held.is_some_and(|h| h.is_dir());
    let exclusive =
        is_dir(namespace.lookup.find(&from, name)?) || is_dir(namespace.lookup.find(&to, new_name)?);
    if !exclusive && let Some(renamed) = rename_shared(namespace, lock, &request)? {
        return Ok(renamed);
    }
    namespace.orphans.drain_below(&namespace.tree, &from, name);
    namespace.orphans.drain_below(&namespace.tree, &to, new_name);
    rename_exclusive(namespace, &request)
}

/// Renames beside other operations; `None`, and nothing is done, if others have to be excluded.
fn rename_shared(
    namespace: &Namespace,
    lock: &RenameLock,
    request: &RenameRequest<'_>,
) -> Result<Option<Renamed>> {
    let mut releases = namespace.references.release_later();
    let mut held = Vec::new();
    let tree = namespace.tree.shared();
    let _renames = (request.from.id != request.to.id).then(|| lock.0.lock());
    let mut mover = Mover { namespace, tree: &tree, exclusive: false, commits: &mut Commits::Single };
    let outcome = mover.rename(request, &mut held, &mut releases)?;
    Ok(renamed(&held).filter(|_| outcome == RenameOutcome::Done))
}

fn rename_exclusive(namespace: &Namespace, request: &RenameRequest<'_>) -> Result<Renamed> {
    let mut releases = namespace.references.release_later();
    let (mut held, mut held_again) = (Vec::new(), Vec::new());
    let tree = namespace.tree.exclusive_for_move();
    let mut mover = Mover { namespace, tree: &tree, exclusive: true, commits: &mut Commits::Single };
    if mover.rename(request, &mut held, &mut releases)? == RenameOutcome::NeedsMerge {
        namespace.area_merger().merge(&tree, request.from, request.to, &mut releases)?;
        mover.rename(request, &mut held_again, &mut releases)?;
    }
    // With the locks held all the time both have found the same.
    renamed(&held).ok_or_else(|| no_entry(request.name))
}

/// The nodes that [`Mover::rename`] has found.
fn renamed(held: &[HeldNode<'_>]) -> Option<Renamed> {
    let (source, target) = (held.first()?, held.get(1));
    let has_tree = source.is_dir() || target.is_some_and(|target| target.is_dir());
    Some(Renamed { moved: source.id, target: target.map(|target| target.id), has_tree })
}

/// Renames with the tree lock held.
pub(crate) struct Mover<'a, 'b> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) tree: &'b TreeGuard<'b>,
    /// Whether the lock is held exclusively, for a move.
    pub(crate) exclusive: bool,
    pub(crate) commits: &'b mut Commits,
}

impl<'a> Mover<'a, '_> {
    /// Moves an entry. The nodes that it concerns are added to `held`, first the one that moves, to
    /// be given back after the locks.
    pub(crate) fn rename(
        &mut self,
        request: &RenameRequest<'_>,
        held: &mut Vec<HeldNode<'a>>,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<RenameOutcome> {
        let (namespace, tree) = (self.namespace, self.tree);
        let RenameRequest { from, name, to, new_name, .. } = *request;
        let mut names = NamesPair::lock(from, to);
        namespace.lookup.check_not_removed(tree, from, &names.from)?;
        namespace.lookup.check_not_removed(tree, to, names.to())?;
        let found =
            namespace.lookup.resolve(tree, from, &mut names.from, name)?.ok_or_else(|| no_entry(name))?;
        let source = found.clone();
        held.push(found);
        let target = namespace.lookup.resolve(tree, to, names.to(), new_name)?.map(|target| {
            let node = target.clone();
            held.push(target);
            node
        });
        check_target_exists(request, target.is_some())?;
        let target = target.as_ref();
        if target.is_some_and(|t| t.id == source.id) {
            return Ok(RenameOutcome::Done);
        }
        if !self.exclusive && (source.is_dir() || target.is_some_and(|t| t.is_dir())) {
            return Ok(RenameOutcome::NeedsExclusive);
        }
        check_nesting(request, &source, target)?;
        let found = Found {
            source: NamedNode { dir: from, name, node: &source },
            target: target.map(|node| NamedNode { dir: to, name: new_name, node }),
        };
        let cleared = clear_marks(namespace, request, &found)?;
        namespace.state_record.check_key(&layout::entry_key(&to.content_prefix(tree.epoch), new_name))?;
        move_detached_away(namespace, tree, request, &found)?;
        self.move_entries(request, &found, cleared, &mut names, releases)
    }

    fn move_entries(
        &mut self,
        request: &RenameRequest<'_>,
        found: &Found<'_>,
        cleared: ClearedMarks,
        names: &mut NamesPair<'_>,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<RenameOutcome> {
        let (namespace, tree) = (self.namespace, self.tree);
        let RenameRequest { from, to, .. } = *request;
        let Found { source, target } = found;
        let mut nodes = vec![from, to, source.node];
        nodes.extend(target.iter().map(|t| t.node));
        let mut states = States::lock(&nodes);
        // Attributes may have changed since the marks were cleared; the exclusive lock excludes
        // that.
        let (to_owner, from_owner) = (states.of(to).inode.uid, states.of(from).inode.uid);
        let is_foreign = |inode: &Inode, owner| !agrees_with_mark(inode, owner);
        if !cleared.to && is_foreign(&states.of(source.node).inode, to_owner) {
            return Ok(RenameOutcome::NeedsExclusive);
        }
        if let Some(target) = target.as_ref().filter(|_| request.is_exchange() && !cleared.from)
            && is_foreign(&states.of(target.node).inode, from_owner)
        {
            return Ok(RenameOutcome::NeedsExclusive);
        }
        check_rights(request, found, &mut states)?;
        check_flags(request, found, &mut states)?;
        if must_merge(namespace, tree, source, states.of(source.node), to)? {
            return Ok(RenameOutcome::NeedsMerge);
        }
        if let Some(target) = target.as_ref().filter(|_| request.is_exchange())
            && must_merge(namespace, tree, target, states.of(target.node), from)?
        {
            return Ok(RenameOutcome::NeedsMerge);
        }
        let mut batch = Batch::new();
        let follows = matches!(self.commits, Commits::Gathered { .. });
        let mover = EntryMove { namespace, tree, now: namespace.volume.now(), follows };
        let changes = prepare(&mover, request, found, &mut states, &mut batch)?;
        let was = || Before::of(request, found, &changes, &mut states);
        let lsn = self.commits.commit(namespace, batch, was)?;
        let left_whiteout = changes.left_whiteout;
        take_over(namespace, request, found, changes, &mut states, lsn, releases);
        if let Some(target) = target.as_ref().filter(|t| !request.is_exchange() && t.node.is_dir()) {
            drop(states);
            target.node.dir().names.lock().dead = true;
        }
        let left = match target {
            Some(target) if request.is_exchange() => Known::Present(target.node.id),
            // It has no node yet.
            _ if left_whiteout => Known::Present(NodeId(0)),
            _ => Known::Absent,
        };
        namespace.nodes.set_name(from, &mut names.from, source.name, left);
        names.from.version += 1;
        namespace.nodes.set_name(to, names.to(), request.new_name, Known::Present(source.node.id));
        names.to().version += 1;
        Ok(RenameOutcome::Done)
    }
}

/// Refuses to replace an entry where that was not asked for, and to exchange with none.
fn check_target_exists(request: &RenameRequest<'_>, exists: bool) -> Result<()> {
    match request.mode {
        RenameMode::NoReplace | RenameMode::Whiteout { replace: false, .. } if exists => {
            let name = layout::show(request.new_name);
            fail(FsErrorKind::Exists, format!("there is an entry {name} already"))
        }
        RenameMode::Exchange if !exists => Err(no_entry(request.new_name)),
        _ => Ok(()),
    }
}

/// Refuses to move a directory into itself, or to replace what cannot be replaced.
fn check_nesting(request: &RenameRequest<'_>, source: &Arc<Node>, target: Option<&Arc<Node>>) -> Result<()> {
    if source.is_dir() && source.contains(request.to) {
        return fail(FsErrorKind::Invalid, "a directory cannot move into itself");
    }
    let Some(target) = target else { return Ok(()) };
    if request.is_exchange() {
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

/// Refuses what the rights of the caller do not allow.
fn check_rights(request: &RenameRequest<'_>, found: &Found<'_>, states: &mut States<'_>) -> Result<()> {
    let judge @ Judge::Caller(_) = request.judge else { return Ok(()) };
    let mut inode = |node: &Node| states.of(node).inode.clone();
    let (from, to, source) = (inode(request.from), inode(request.to), inode(found.source.node));
    let target = found.target.as_ref().map(|target| inode(target.node));
    judge.delete(&from, &source)?;
    match &target {
        Some(target) => judge.delete(&to, target)?,
        None => judge.create(&to)?,
    }
    if request.from.id == request.to.id {
        return Ok(());
    }
    let swapped = target.as_ref().filter(|_| request.is_exchange());
    for moved in [Some(&source), swapped].into_iter().flatten().filter(|moved| moved.is_dir()) {
        judge.move_directory(moved)?;
    }
    Ok(())
}

/// Refuses what the flags of the entries and their directories forbid, before link areas are merged
/// for it.
fn check_flags(request: &RenameRequest<'_>, found: &Found<'_>, states: &mut States<'_>) -> Result<()> {
    states.of(request.from).inode.flags.check_unprotected()?;
    states.of(found.source.node).inode.flags.check_unprotected()?;
    let Some(target) = &found.target else { return states.of(request.to).inode.flags.check_mutable() };
    states.of(request.to).inode.flags.check_unprotected()?;
    states.of(target.node).inode.flags.check_unprotected()
}

/// Where the ownership marks were cleared because an entry contradicts them in its new place.
#[derive(Clone, Copy)]
struct ClearedMarks {
    /// Where the source goes.
    to: bool,
    /// Where the target of an exchange goes.
    from: bool,
}

/// Clears the ownership marks that entries contradict in their new places.
fn clear_marks(
    namespace: &Namespace,
    request: &RenameRequest<'_>,
    found: &Found<'_>,
) -> Result<ClearedMarks> {
    let clear = |entry: &NamedNode<'_>, to: &Arc<Node>| namespace.ownership.clear_before_move(entry.node, to);
    let to = clear(&found.source, request.to)?;
    let swapped = found.target.as_ref().filter(|_| request.is_exchange());
    let from = swapped.map_or(Ok(false), |target| clear(target, request.from))?;
    if let RenameMode::Whiteout { uid, .. } = request.mode
        && request.from.state().inode.uid != uid
    {
        namespace.ownership.clear(request.from, Contradiction::Rights)?;
    }
    Ok(ClearedMarks { to, from })
}

/// Commits what has to be stored before an entry moves to a place, or before something else moves
/// to that place if there is no entry: marks that it contradicts are cleared, data of unlinked
/// files is moved away.
pub(crate) fn prepare_move(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    entry: Option<&NamedNode<'_>>,
    (to, new_name): (&Arc<Node>, &[u8]),
) -> Result<()> {
    if let Some(NamedNode { node, .. }) = entry {
        if node.is_dir() {
            namespace.orphans.move_away(&layout::content_range(&node.content_prefix(tree.epoch)))?;
        }
        namespace.ownership.clear_before_move(node, to)?;
    }
    let key = layout::entry_key(&to.content_prefix(tree.epoch), new_name);
    namespace.state_record.check_key(&key)?;
    namespace.orphans.clear_place(&key)
}

/// Moves data of unlinked files away from what moves or is replaced.
fn move_detached_away(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    request: &RenameRequest<'_>,
    found: &Found<'_>,
) -> Result<()> {
    let entries = [Some(&found.source), found.target.as_ref()];
    for dir in entries.into_iter().flatten().filter(|entry| entry.node.is_dir()) {
        namespace.orphans.move_away(&layout::content_range(&dir.node.content_prefix(tree.epoch)))?;
    }
    if found.target.is_none() {
        let prefix = request.to.content_prefix(tree.epoch);
        namespace.orphans.clear_place(&layout::entry_key(&prefix, request.new_name))?;
    }
    Ok(())
}

/// Builds the batch of a rename.
fn prepare(
    mover: &EntryMove<'_>,
    request: &RenameRequest<'_>,
    found: &Found<'_>,
    states: &mut States<'_>,
    batch: &mut Batch,
) -> Result<Changes> {
    let RenameRequest { from, to, .. } = *request;
    let Found { source, target } = found;
    let EntryMove { namespace, tree, now, .. } = *mover;
    let (mut removal, mut swapped) = (None, None);
    match target {
        Some(target) if request.is_exchange() => {
            let state = states.of(target.node);
            swapped = Some(mover.add_to(target, (source.dir, source.name), state, batch)?);
        }
        Some(target) if target.node.is_dir() => {
            namespace.orphans.remove_directory(tree, target.node, states.of(target.node), batch)?;
        }
        Some(target) => {
            let (state, data) = (states.of(target.node), DataPlace::Vacated);
            removal = Some(namespace.orphans.remove_name(tree, target, state, now, data, batch)?);
        }
        None => {}
    }
    let state = states.of(source.node);
    let (moved, arrivals) = mover.add_to(source, (to, request.new_name), state, batch)?;
    let (swapped, back) = swapped.unzip();

    let mut above = states.of(from).inode.clone();
    uncount_entry(&mut above, source.node.kind, now)?;
    if let Some(swapped) = &swapped {
        count_entry(&mut above, swapped, now)?;
    }
    let whiteout = new_whiteout(namespace, tree, request, states.of(from), now, batch)?;
    if let Some(whiteout) = &whiteout {
        count_entry(&mut above, whiteout, now)?;
        batch.insert(namespace.volume.metadata(), &source.key(tree), whiteout.encode());
    }
    let mut above_new = if from.id == to.id { above.clone() } else { states.of(to).inode.clone() };
    if let Some(target) = target {
        uncount_entry(&mut above_new, target.node.kind, now)?;
    }
    count_entry(&mut above_new, &moved, now)?;
    if from.id != to.id {
        namespace.inodes.put(tree, from, states.of(from), &above, batch);
    }
    namespace.inodes.put(tree, to, states.of(to), &above_new, batch);
    let source_moves = arrivals.node_moves;
    let target_moves = back.as_ref().is_some_and(|back| back.node_moves);
    Arrivals::add_to(back, arrivals, batch);
    Ok(Changes {
        moved,
        source_moves,
        swapped,
        target_moves,
        removal,
        from: above,
        left_whiteout: whiteout.is_some(),
        to: above_new,
        now,
    })
}

/// Takes over in memory what was committed.
fn take_over(
    namespace: &Namespace,
    request: &RenameRequest<'_>,
    found: &Found<'_>,
    changes: Changes,
    states: &mut States<'_>,
    lsn: Lsn,
    releases: &mut DeferredReleases<'_>,
) {
    let RenameRequest { from, to, .. } = *request;
    let Found { source, target } = found;
    if from.id != to.id {
        from.take_over(states.of(from), changes.from, lsn);
    }
    to.take_over(states.of(to), changes.to, lsn);
    if let Some((target, removal)) = target.as_ref().zip(changes.removal) {
        let state = states.of(target.node);
        releases.add(namespace.orphans.name_removed(target.node, state, removal, lsn));
    }
    if let Some(target) = target.as_ref().filter(|t| !request.is_exchange() && t.node.is_dir()) {
        namespace.orphans.directory_removed(target.node, states.of(target.node), changes.now, lsn);
    }
    // A node is where its entry is, unless the entry is a name of a file in a link area.
    source.node.take_over(states.of(source.node), changes.moved, lsn);
    if changes.source_moves {
        releases.add(namespace.nodes.move_node(source.node, to, request.new_name));
    }
    if let Some((target, swapped)) = target.as_ref().zip(changes.swapped) {
        target.node.take_over(states.of(target.node), swapped, lsn);
        if changes.target_moves {
            releases.add(namespace.nodes.move_node(target.node, from, source.name));
        }
    }
}

/// The inode of the whiteout that a rename leaves in the place of the entry, if it leaves one.
fn new_whiteout(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    request: &RenameRequest<'_>,
    state: &State,
    now: i64,
    batch: &mut Batch,
) -> Result<Option<Inode>> {
    let RenameMode::Whiteout { uid, gid, .. } = request.mode else { return Ok(None) };
    let dir = request.from;
    let number = namespace.state_record.fresh_number()?.wrapping_sub(dir.dir().sum);
    let key = layout::entry_key(&dir.content_prefix(tree.epoch), request.name);
    let new = NewObject { kind: FileKind::CharDevice, mode: 0, rdev: 0, target: None };
    let caller = Caller { uid, gid, ..Caller::default() };
    let creation = Creation { caller: &caller, number, now };
    namespace.inodes.new_inode(tree, (dir, state), &key, &new, &creation, batch).map(Some)
}

/// True if names of files with several names would come to be served by another link area than now:
/// the entry itself, or entries below it.
fn must_merge(
    namespace: &Namespace,
    tree: &TreeGuard<'_>,
    entry: &NamedNode<'_>,
    state: &State,
    to: &Arc<Node>,
) -> Result<bool> {
    let NamedNode { node, dir, .. } = *entry;
    if !are_served_apart(dir, to) {
        return Ok(false);
    }
    if !node.is_dir() {
        return Ok(state.inode.links > 1);
    }
    if node.dir().has_link_area() {
        return Ok(false);
    }
    namespace.links.has_names_below(&node.content_prefix(tree.epoch))
}
