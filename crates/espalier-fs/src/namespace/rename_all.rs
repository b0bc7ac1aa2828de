//! Many renames as one batch: all or none, for readers and after a crash.
//!
//! Things are exchanged between places below one directory and names in another, where they were
//! staged. The renames are carried out in memory one after the other, with the tree lock held
//! exclusively, while their batches are gathered into one; that is committed in the end. If
//! anything fails, memory is made what it was, from the last step to the first.
//!
//! Invariant: no step concerns an entry that an earlier one moved, or a path that leads through
//! such. So each step's keys, and what it reads from the store, are those of before the call. Of a
//! file with several names each name is an entry: the file itself stays in its link area.

use crate::inode::node::{Node, States};
use crate::inode::ownership::Contradiction;
use crate::model::access::{Credentials, Granted, Judge, WRITE};
use crate::model::error::{FsError, FsErrorKind, Result, fail};
use crate::model::privileges::has_capabilities;
use crate::model::types::*;
use crate::namespace::context::Namespace;
use crate::namespace::lookup::{check_name, no_entry};
use crate::namespace::rename::{Before, Commits, Mover, RenameOutcome, RenameRequest, prepare_move};
use crate::orphan::unlink::NamedNode;
use crate::references::{DeferredReleases, HeldNode};
use crate::volume::tree_lock::TreeGuard;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Write and search permission of the owner.
const OWNER_WRITE_SEARCH: u32 = 0o300;
/// Link areas are merged at most so often for one call.
const MERGES_MAX: usize = 8;

/// The two directories of a call.
struct Between<'a> {
    namespace: &'a Namespace,
    target: Arc<Node>,
    staging: Arc<Node>,
    caller: &'a Caller,
}

/// What the steps so far have moved.
#[derive(Default)]
struct Moved {
    /// Entries, each with its time of change before the call.
    nodes: HashMap<NodeId, i64>,
    /// Names from which or to which something moved: the directory and the name there.
    names: HashSet<(NodeId, Vec<u8>)>,
}

impl Moved {
    /// Notes that a step moves what has a name, if anything does, before it does.
    fn add(&mut self, (dir, name): (&Arc<Node>, &[u8]), node: Option<&Arc<Node>>) {
        self.names.insert((dir.id, name.to_vec()));
        if let Some(node) = node {
            let changed = node.state().inode.ctime;
            self.nodes.entry(node.id).or_insert(changed);
        }
    }

    /// When an entry was last changed before the call, in nanoseconds since the Unix epoch.
    fn changed_before(&self, node: &Arc<Node>) -> i64 {
        self.nodes.get(&node.id).copied().unwrap_or_else(|| node.state().inode.ctime)
    }
}

/// What a directory asks for in which names change, or whose own attributes do.
const SYNC_FLAGS: FileFlags = FileFlags(FileFlags::SYNC.0 | FileFlags::DIRSYNC.0);

/// What many renames leave to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Durability {
    /// Nothing asks for it.
    Later,
    /// A directory asks that its changes are durable when the call returns.
    Now,
}

/// How far the steps came.
enum StepsOutcome {
    Done,
    /// The areas that serve these two directories have to become one first.
    NeedsMerge(Arc<Node>, Arc<Node>),
}

/// Carries out `steps` between paths below `target` and names in `staging`, all or none. Every
/// directory in which an entry changes belongs to the caller, and so do directories that exchange
/// attributes; a directory that gets another parent the caller owns or may write. Or the caller is
/// root. Returns what the directories ask for.
pub(crate) fn rename_all(
    namespace: &Namespace,
    (target, staging): (NodeId, NodeId),
    steps: &[RenameStep],
    caller: &Caller,
) -> Result<Durability> {
    let (target, staging) = (namespace.nodes.dir(target)?, namespace.nodes.dir(staging)?);
    namespace.volume.check_writable()?;
    let between = Between { namespace, target, staging, caller };
    // From the store without the exclusive lock; what is held stays in memory.
    let warm = between.warm(steps)?;
    let mut releases = namespace.references.release_later();
    let mut held = warm;
    let tree = namespace.tree.exclusive_for_move();
    for _ in 0..MERGES_MAX {
        let durability = between.clear_the_way(&tree, steps, &mut held)?;
        match between.run(&tree, steps, &mut held, &mut releases)? {
            StepsOutcome::Done => return Ok(durability),
            StepsOutcome::NeedsMerge(from, to) => {
                namespace.area_merger().merge(&tree, &from, &to, &mut releases)?;
            }
        }
    }
    fail(FsErrorKind::Busy, "files with several names keep the renames from being one step")
}

impl<'a> Between<'a> {
    /// Loads all that the steps concern, and does what has to be done without locks.
    fn warm(&self, steps: &[RenameStep]) -> Result<Vec<HeldNode<'a>>> {
        let namespace = self.namespace;
        let mut held = Vec::new();
        for step in steps {
            check_name(&step.staged)?;
            held.extend(namespace.lookup.find(&self.staging, &step.staged)?);
            let mut dir = self.target.clone();
            for name in &step.place {
                match namespace.lookup.find(&dir, name)? {
                    Some(found) if found.is_dir() => {
                        namespace.orphans.drain_below(&namespace.tree, &dir, name);
                        dir = found.clone();
                        held.push(found);
                    }
                    found => {
                        held.extend(found);
                        break;
                    }
                }
            }
            namespace.orphans.drain_below(&namespace.tree, &self.staging, &step.staged);
        }
        Ok(held)
    }

    /// Carries out the steps; takes them back in memory unless all succeed.
    fn run(
        &self,
        tree: &TreeGuard<'_>,
        steps: &[RenameStep],
        held: &mut Vec<HeldNode<'a>>,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<StepsOutcome> {
        let namespace = self.namespace;
        let mut commits = Commits::gathered(namespace.volume.last_lsn());
        let mut moved = Moved::default();
        let mut result = Ok(StepsOutcome::Done);
        for step in steps {
            result = self.step(tree, step, &mut commits, &mut moved, held, releases);
            if !matches!(result, Ok(StepsOutcome::Done)) {
                break;
            }
        }
        let Commits::Gathered { batch, before, .. } = commits else { return result };
        let committed = match &result {
            Ok(StepsOutcome::Done) if batch.is_empty() => return result,
            Ok(StepsOutcome::Done) => namespace.volume.commit(batch).map_err(name_too_big),
            _ => Ok(namespace.volume.last_lsn()),
        };
        match (result, committed) {
            (Ok(StepsOutcome::Done), Ok(lsn)) => {
                for (node, ..) in before.iter().flat_map(|before| &before.states) {
                    node.state().lsn = lsn;
                }
                Ok(StepsOutcome::Done)
            }
            (result, committed) => {
                before.into_iter().rev().for_each(|before| before.restore(namespace, releases));
                committed.and(result)
            }
        }
    }

    /// Commits what users do not see and has to be stored before: so nothing is committed while the
    /// steps are gathered, which would be older in the log than what memory says. Returns what the
    /// directories ask for that the steps change.
    fn clear_the_way(
        &self,
        tree: &TreeGuard<'_>,
        steps: &[RenameStep],
        held: &mut Vec<HeldNode<'a>>,
    ) -> Result<Durability> {
        let asks = |node: &Arc<Node>| node.state().inode.flags.has(SYNC_FLAGS);
        let mut is_asked = asks(&self.staging);
        for step in steps {
            let (dir, name) = self.parent(tree, step, &Moved::default(), held)?;
            // Before marks are cleared for it. The modes may be those that an earlier step gives.
            if !self.owns(&dir) || !self.owns(&self.staging) {
                return fail(FsErrorKind::AccessDenied, "a directory belongs to another user");
            }
            let there = self.resolve(tree, &dir, name, held)?;
            let staged = self.resolve(tree, &self.staging, &step.staged, held)?;
            if step.action == RenameAction::ExchangeAttributes {
                if let (Some(there), Some(staged)) = (&there, &staged) {
                    is_asked |= asks(there) || asks(staged);
                    self.prepare_attributes(there, staged)?;
                }
                continue;
            }
            is_asked |= asks(&dir);
            let entries = [(&dir, name, &there), (&self.staging, &step.staged[..], &staged)];
            for (at, (dir, name, node)) in entries.iter().enumerate() {
                let (to, new_name, _) = entries[1 - at];
                let entry = node.as_ref().map(|node| NamedNode { dir, name, node });
                prepare_move(self.namespace, tree, entry.as_ref(), (to, new_name))?;
            }
        }
        Ok(if is_asked { Durability::Now } else { Durability::Later })
    }

    fn step(
        &self,
        tree: &TreeGuard<'_>,
        step: &RenameStep,
        commits: &mut Commits,
        moved: &mut Moved,
        held: &mut Vec<HeldNode<'a>>,
        releases: &mut DeferredReleases<'_>,
    ) -> Result<StepsOutcome> {
        let (dir, name) = self.parent(tree, step, moved, held)?;
        self.check_access(&dir)?;
        self.check_access(&self.staging)?;
        let (mut there, mut waiting) = (None, None);
        if step.action != RenameAction::Enter {
            let found = self.resolve(tree, &dir, name, held)?.ok_or_else(|| no_entry(name))?;
            check_expected(&found, step, moved)?;
            self.check_name_unmoved(moved, (&dir, name), &found)?;
            there = Some(found);
        }
        if step.action != RenameAction::Leave {
            let found = self
                .resolve(tree, &self.staging, &step.staged, held)?
                .ok_or_else(|| no_entry(&step.staged))?;
            self.check_name_unmoved(moved, (&self.staging, &step.staged), &found)?;
            waiting = Some(found);
        }
        let (place, staged) = ((&dir, name), (&self.staging, &step.staged[..]));
        let ((from, name), (to, new_name), mode) = match step.action {
            RenameAction::Enter => (staged, place, RenameMode::NoReplace),
            RenameAction::Leave => (place, staged, RenameMode::NoReplace),
            RenameAction::Exchange => (place, staged, RenameMode::Exchange),
            RenameAction::ExchangeAttributes => {
                return self.exchange_attributes(tree, place, staged, commits, held);
            }
        };
        if dir.id != self.staging.id {
            [&there, &waiting].into_iter().flatten().try_for_each(|node| self.check_movable(node))?;
        }
        moved.add(place, there.as_ref());
        moved.add(staged, waiting.as_ref());
        let request = RenameRequest { from, name, to, new_name, mode, judge: Judge::Kernel };
        let mut mover = Mover { namespace: self.namespace, tree, exclusive: true, commits };
        match mover.rename(&request, held, releases)? {
            RenameOutcome::NeedsMerge => Ok(StepsOutcome::NeedsMerge(from.clone(), to.clone())),
            RenameOutcome::NeedsExclusive => fail(FsErrorKind::Busy, "the exclusive lock is held already"),
            RenameOutcome::Done => Ok(StepsOutcome::Done),
        }
    }

    /// The directory that a place lies in, and its name there.
    fn parent<'s>(
        &self,
        tree: &TreeGuard<'_>,
        step: &'s RenameStep,
        moved: &Moved,
        held: &mut Vec<HeldNode<'a>>,
    ) -> Result<(Arc<Node>, &'s [u8])> {
        let Some((name, above)) = step.place.split_last() else {
            return fail(FsErrorKind::Invalid, "a place is a path below the directory");
        };
        check_name(name)?;
        let mut dir = self.target.clone();
        for name in above {
            check_name(name)?;
            self.check_access(&dir)?;
            let found = self.resolve(tree, &dir, name, held)?.ok_or_else(|| no_entry(name))?;
            self.check_unmoved(moved, &found)?;
            if !found.is_dir() {
                return fail(FsErrorKind::NotDirectory, "a place lies in something that is no directory");
            }
            dir = found;
        }
        Ok((dir, name))
    }

    fn resolve(
        &self,
        tree: &TreeGuard<'_>,
        dir: &Arc<Node>,
        name: &[u8],
        held: &mut Vec<HeldNode<'a>>,
    ) -> Result<Option<Arc<Node>>> {
        let mut names = dir.dir().names.lock();
        let found = self.namespace.lookup.resolve(tree, dir, &mut names, name)?;
        let node = found.as_ref().map(|found| Arc::clone(found));
        held.extend(found);
        Ok(node)
    }

    /// True if the directory belongs to the caller, or the caller is root.
    fn owns(&self, dir: &Arc<Node>) -> bool {
        self.caller.uid == 0 || dir.state().inode.uid == self.caller.uid
    }

    fn check_access(&self, dir: &Arc<Node>) -> Result<()> {
        let mode = dir.state().inode.mode;
        if self.caller.uid == 0 || self.owns(dir) && mode & OWNER_WRITE_SEARCH == OWNER_WRITE_SEARCH {
            return Ok(());
        }
        fail(FsErrorKind::AccessDenied, "a directory belongs to another user, or may not be written")
    }

    /// Refuses to move a directory to another parent, which changes its `..`, without the right to
    /// write it. Its owner could take that right by hand.
    fn check_movable(&self, node: &Arc<Node>) -> Result<()> {
        let Caller { uid, gid, .. } = *self.caller;
        // Further groups are not known: what only they allow is refused.
        let caller = Credentials { uid, gid, groups: Vec::new() };
        let state = node.state();
        if !node.is_dir() || caller.may_act_as_owner(&state.inode) {
            return Ok(());
        }
        caller.check(Granted::by(&state.inode), WRITE)
    }

    /// Refuses to move twice, or below what moved.
    fn check_unmoved(&self, moved: &Moved, node: &Arc<Node>) -> Result<()> {
        match moved.nodes.contains_key(&node.id) || node.id == self.staging.id || node.id == self.target.id {
            true => fail(FsErrorKind::Invalid, "a step concerns what another one moves"),
            false => Ok(()),
        }
    }

    /// Refuses to move a name twice, and an entry twice unless each time another name of it moves.
    fn check_name_unmoved(
        &self,
        moved: &Moved,
        (dir, name): (&Arc<Node>, &[u8]),
        node: &Arc<Node>,
    ) -> Result<()> {
        let has_names = !node.is_dir() && node.state().inode.links > 1;
        if has_names && !moved.names.contains(&(dir.id, name.to_vec())) {
            return Ok(());
        }
        self.check_unmoved(moved, node)
    }

    /// Refuses to exchange attributes of directories that are not the caller's, and clears the
    /// marks that they contradict afterwards.
    fn prepare_attributes(&self, one: &Arc<Node>, other: &Arc<Node>) -> Result<()> {
        if !one.is_dir() || !other.is_dir() {
            return Ok(());
        }
        if !self.owns(one) || !self.owns(other) {
            return fail(FsErrorKind::Permission, "only its owner changes the attributes of a directory");
        }
        let inodes = [one, other].map(|node| node.state().inode.clone());
        if inodes[0].uid == inodes[1].uid && !inodes.iter().any(has_capabilities) {
            return Ok(());
        }
        self.namespace.ownership.clear(one, Contradiction::Rights)?;
        self.namespace.ownership.clear(other, Contradiction::Rights)
    }

    /// Exchanges mode, owner, group and extended attributes of two directories.
    fn exchange_attributes(
        &self,
        tree: &TreeGuard<'_>,
        (dir, name): (&Arc<Node>, &[u8]),
        (staging, staged): (&Arc<Node>, &[u8]),
        commits: &mut Commits,
        held: &mut Vec<HeldNode<'a>>,
    ) -> Result<StepsOutcome> {
        let namespace = self.namespace;
        let one = self.resolve(tree, dir, name, held)?.ok_or_else(|| no_entry(name))?;
        let other = self.resolve(tree, staging, staged, held)?.ok_or_else(|| no_entry(staged))?;
        if !one.is_dir() || !other.is_dir() || one.id == other.id {
            return fail(FsErrorKind::NotDirectory, "attributes are exchanged between two directories");
        }
        self.prepare_attributes(&one, &other)?;
        let Commits::Gathered { batch, lsn, before } = commits else {
            return fail(FsErrorKind::Invalid, "attributes are exchanged in a gathered batch");
        };
        let mut states = States::lock(&[&one, &other]);
        let (here, there) = (states.of(&one).inode.clone(), states.of(&other).inode.clone());
        here.flags.check_unprotected()?;
        there.flags.check_unprotected()?;
        if here.has_large_xattrs() || there.has_large_xattrs() {
            return fail(
                FsErrorKind::Unsupported,
                "large extended attributes of directories are not exchanged",
            );
        }
        before.push(Before::of_states(&[&one, &other], &mut states));
        let now = namespace.volume.now();
        for (node, old, new) in [(&one, &here, &there), (&other, &there, &here)] {
            let mut inode = old.clone();
            (inode.mode, inode.uid, inode.gid) = (new.mode, new.uid, new.gid);
            inode.xattrs.clone_from(&new.xattrs);
            inode.set_ctime(now);
            let state = states.of(node);
            namespace.inodes.put(tree, node, state, &inode, batch);
            node.take_over(state, inode, *lsn);
            tree.changed_unasked(node.id);
        }
        Ok(StepsOutcome::Done)
    }
}

/// What the log refuses is the number of the steps.
fn name_too_big(error: FsError) -> FsError {
    match error.kind() {
        FsErrorKind::Invalid => {
            FsError::new(FsErrorKind::TooBig, format!("more renames than one step can make: {error}"))
        }
        _ => error,
    }
}

/// Refuses what is not what the caller has compared.
fn check_expected(node: &Arc<Node>, step: &RenameStep, moved: &Moved) -> Result<()> {
    let changed = moved.changed_before(node);
    match (node.ino, changed) == step.expected {
        true => Ok(()),
        false => fail(FsErrorKind::Stale, "an entry was changed meanwhile"),
    }
}
