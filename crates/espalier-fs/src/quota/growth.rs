//! Growth: the most that each call may add to the trees that it concerns.
//!
//! What a call stores is known beforehand, but for entries that move into a tree, and for copies of
//! what is there. Small files count with their size. For all else the store is asked what the tree
//! would hold with it: what two trees share becomes the tree's own when both lie in it.

use super::Quotas;
use super::count::{disjoint, volume_ranges};
use crate::inode::limits::{Charge, Growth, LimitedTree, Limits};
use crate::inode::node::{Node, Orphan};
use crate::model::error::{FsErrorKind, Result};
use crate::model::types::*;
use crate::snapshot::volume::find_snapshot_of;
use crate::tree_ops::space::ranges_of;
use espalier_engine::{IndexId, KeyRange};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// An entry takes this beside its name, with what leads to it, in bytes.
const ENTRY_BYTES: u64 = 512;
/// So does each block of a file.
const BLOCK_ENTRY_BYTES: u64 = 256;
/// A changed entry or block takes along a part that it shares, in bytes.
const PART_BYTES: u64 = 16 << 10;
/// A clone takes this for the nodes along its borders.
const CLONE_BYTES: u64 = 64 << 10;
/// A file of up to this size counts with its size when it moves, in bytes.
const SMALL_FILE_BYTES: u64 = 1 << 20;

/// An entry that moves from one directory to another.
pub(crate) struct MovingEntry {
    pub(crate) node: Arc<Node>,
    pub(crate) from: Arc<Node>,
    pub(crate) to: Arc<Node>,
}

/// What comes into one tree.
#[derive(Default)]
struct Arriving {
    bytes: u64,
    ranges: Vec<(IndexId, KeyRange)>,
}

/// Of a new entry, or one more name.
pub(crate) fn entry(name: &[u8], more: usize) -> Growth {
    Growth::both(ENTRY_BYTES + 2 * name.len() as u64 + more as u64).along(PART_BYTES)
}

/// Of so many new entries, whose names, targets and attributes have `bytes` in all, with data.
pub(crate) fn files(count: u64, bytes: u64, (data, blocks): (u64, u64)) -> Growth {
    let entries = count * ENTRY_BYTES + 2 * bytes;
    Growth::both(entries + data + blocks * BLOCK_ENTRY_BYTES).along(2 * PART_BYTES)
}

/// Of changed attributes.
pub(crate) fn attributes() -> Growth {
    Growth::both(0).along(ENTRY_BYTES + PART_BYTES)
}

/// Of changed attributes of so much that the parts do not matter one by one.
pub(crate) fn attributes_of_tree() -> Growth {
    Growth::both(0).along(CLONE_BYTES)
}

/// Of data that is written over pages of which so many bytes are changed in part.
pub(crate) fn patched_data(bytes: u64, block_size: u32, patched: u64) -> Growth {
    Growth { along: PART_BYTES + patched, patched, ..data(bytes, block_size) }
}

/// Of data that is written.
pub(crate) fn data(bytes: u64, block_size: u32) -> Growth {
    let blocks = bytes / u64::from(block_size) + 2;
    Growth::both(bytes.saturating_add(blocks * BLOCK_ENTRY_BYTES)).along(PART_BYTES)
}

/// Of data that two files may share.
pub(crate) fn shared_data(bytes: u64, block_size: u32) -> Growth {
    let blocks = bytes / u64::from(block_size) + 2;
    let exclusive = blocks * BLOCK_ENTRY_BYTES + u64::from(block_size);
    let along = PART_BYTES + 2 * u64::from(block_size);
    Growth { exclusive, along, ..data(bytes, block_size) }
}

impl Quotas {
    /// Charges the trees into which entries move.
    pub(crate) fn charge_arrivals(&self, arrivals: &[MovingEntry]) -> Result<Charge> {
        match self.charge_arrivals_by(arrivals, SMALL_FILE_BYTES) {
            // What small files share with others may make the difference.
            Err(error) if error.kind() == FsErrorKind::QuotaExceeded => self.charge_arrivals_by(arrivals, 0),
            charged => charged,
        }
    }

    /// Files of up to `small` bytes count with their size.
    fn charge_arrivals_by(&self, arrivals: &[MovingEntry], small: u64) -> Result<Charge> {
        let epoch = self.namespace.tree.epoch();
        let mut trees: HashMap<u64, (Arc<LimitedTree>, Arriving)> = HashMap::new();
        for MovingEntry { node, from, to } in arrivals {
            let (Some(into), out) = (to.limits(epoch), from.limits(epoch)) else { continue };
            let is_in = |tree: &LimitedTree| out.iter().flat_map(|out| out.iter()).any(|t| t.ino == tree.ino);
            for tree in into.iter().filter(|tree| !is_in(tree)) {
                let (_, arriving) =
                    trees.entry(tree.ino).or_insert_with(|| (tree.clone(), Arriving::default()));
                self.add_arriving(node, small, arriving)?;
            }
        }
        let mut charge = Charge::default();
        for (tree, arriving) in trees.into_values() {
            let mut growth = Growth::both(arriving.bytes);
            if !arriving.ranges.is_empty() {
                charge.count_next(&tree);
                let more = self.growth_with(&tree, arriving.ranges)?;
                growth = Growth {
                    exclusive: growth.exclusive.saturating_add(more.exclusive),
                    total: growth.total.saturating_add(more.total),
                    along: PART_BYTES,
                    ..Growth::default()
                };
            }
            charge.add(&tree, growth);
        }
        self.check_added(charge)
    }

    fn add_arriving(&self, node: &Arc<Node>, small: u64, arriving: &mut Arriving) -> Result<()> {
        let size = if node.is_dir() { u64::MAX } else { node.state().inode.size };
        arriving.bytes += ENTRY_BYTES;
        if size <= small {
            arriving.bytes += size;
        } else {
            arriving.ranges.extend(ranges_of(&self.namespace, node)?);
        }
        Ok(())
    }

    /// How much more a tree would hold with these ranges.
    fn growth_with(&self, tree: &LimitedTree, more: Vec<(IndexId, KeyRange)>) -> Result<Growth> {
        self.namespace.volume.store.checkpoint_if_older(Duration::ZERO)?;
        let mut ranges = self.ranges(tree)?;
        let before = self.held(tree, &ranges)?;
        ranges.extend(more);
        let after = self.held(tree, &disjoint(ranges))?;
        Ok(Growth {
            exclusive: after.exclusive.saturating_sub(before.exclusive),
            total: after.bytes.saturating_sub(before.bytes),
            ..Growth::default()
        })
    }

    /// Charges the trees above `parent` into which a clone of `source` comes.
    pub(crate) fn charge_clone(&self, source: NodeId, parent: NodeId) -> Result<Charge> {
        let Some(limits) = self.limits_of(parent) else { return Ok(Charge::default()) };
        let source = self.namespace.nodes.node(source)?;
        self.charge_copy(&limits, |_| ranges_of(&self.namespace, &source))
    }

    /// Charges trees into which a clone of the data of file `source` comes.
    pub(super) fn charge_file_copy(&self, source: NodeId, limits: &Limits) -> Result<Charge> {
        let source = self.namespace.nodes.node(source)?;
        self.charge_copy(limits, |_| ranges_of(&self.namespace, &source))
    }

    /// Charges the trees that entry `name` of `parent` lies in: it becomes what a snapshot holds.
    pub(crate) fn charge_restore(&self, parent: NodeId, name: &[u8], snapshot: &str) -> Result<Charge> {
        let Some(dir) = self.namespace.nodes.get(parent) else { return Ok(Charge::default()) };
        if !dir.limit_table.is_used() {
            return Ok(Charge::default());
        }
        let (limits, number) = {
            let Some(held) = self.namespace.lookup.find(&dir, name)? else { return Ok(Charge::default()) };
            (held.limits(self.namespace.tree.epoch()), held.ino)
        };
        let Some(limits) = limits else { return Ok(Charge::default()) };
        let Ok(found) = find_snapshot_of(&self.namespace.volume.store, Some(number), snapshot) else {
            return self.charge_all(&limits, Growth::both(CLONE_BYTES));
        };
        self.charge_copy(&limits, |_| Ok(volume_ranges(found.id).collect()))
    }

    /// Charges trees for a copy that shares all with ranges that stay: alone it holds nothing yet.
    fn charge_copy(
        &self,
        limits: &Limits,
        ranges: impl Fn(&LimitedTree) -> Result<Vec<(IndexId, KeyRange)>>,
    ) -> Result<Charge> {
        let mut charge = Charge::default();
        for tree in limits.iter() {
            let total = match tree.total.limit() {
                Some(_) => self.growth_with(tree, ranges(tree)?)?.total,
                None => 0,
            };
            let total = total.saturating_add(CLONE_BYTES);
            charge.add(tree, Growth { exclusive: CLONE_BYTES, total, ..Growth::default() });
        }
        self.check_added(charge)
    }

    /// Charges the trees that a rename moves something into.
    pub(crate) fn charge_rename(
        &self,
        (parent, name): (NodeId, &[u8]),
        (new_parent, new_name): (NodeId, &[u8]),
        mode: RenameMode,
    ) -> Result<Charge> {
        if parent == new_parent || !self.namespace.nodes_are_limited() {
            return Ok(Charge::default());
        }
        let nodes = &self.namespace.nodes;
        let (Ok(from), Ok(to)) = (nodes.dir(parent), nodes.dir(new_parent)) else {
            return Ok(Charge::default());
        };
        let mut arrivals = Vec::new();
        self.add_arrival((&from, name), &to, &mut arrivals)?;
        if mode == RenameMode::Exchange {
            self.add_arrival((&to, new_name), &from, &mut arrivals)?;
        }
        self.charge_arrivals(&arrivals)
    }

    /// Charges the trees that many renames move something into.
    pub(crate) fn charge_renames(
        &self,
        target: NodeId,
        staging: NodeId,
        steps: &[RenameStep],
    ) -> Result<Charge> {
        if !self.namespace.nodes_are_limited() {
            return Ok(Charge::default());
        }
        let nodes = &self.namespace.nodes;
        let (target, staging) = (nodes.dir(target)?, nodes.dir(staging)?);
        let mut arrivals = Vec::new();
        for step in steps {
            let Some((name, above)) = step.place.split_last() else { continue };
            let Some(dir) = self.find_below(&target, above)? else { continue };
            if matches!(step.action, RenameAction::Enter | RenameAction::Exchange) {
                self.add_arrival((&staging, &step.staged), &dir, &mut arrivals)?;
            }
            if matches!(step.action, RenameAction::Leave | RenameAction::Exchange) {
                self.add_arrival((&dir, name), &staging, &mut arrivals)?;
            }
        }
        self.charge_arrivals(&arrivals)
    }

    /// The directory behind a path, if there is one.
    fn find_below(&self, dir: &Arc<Node>, path: &[Vec<u8>]) -> Result<Option<Arc<Node>>> {
        let mut dir = dir.clone();
        for name in path {
            match self.namespace.lookup.find(&dir, name)? {
                Some(found) if found.is_dir() => dir = Arc::clone(&found),
                _ => return Ok(None),
            }
        }
        Ok(Some(dir))
    }

    /// Adds the entry `name` of `from`, if there is one, to what moves to `to`.
    fn add_arrival(
        &self,
        (from, name): (&Arc<Node>, &[u8]),
        to: &Arc<Node>,
        arrivals: &mut Vec<MovingEntry>,
    ) -> Result<()> {
        let epoch = self.namespace.tree.epoch();
        from.limits(epoch).iter().flat_map(|limits| limits.iter()).for_each(|tree| tree.note_freed());
        if to.limits(epoch).is_some()
            && let Some(node) = self.namespace.lookup.find(from, name)?
        {
            arrivals.push(MovingEntry { node: Arc::clone(&node), from: from.clone(), to: to.clone() });
        }
        Ok(())
    }

    /// Charges the trees above `parent` for one more name of a file, which may be the first.
    pub(crate) fn charge_link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Charge> {
        let Some(limits) = self.limits_of(parent) else { return Ok(Charge::default()) };
        let node = self.namespace.nodes.node(node)?;
        let is_first = node.state().orphan != Orphan::No;
        let dir = self.namespace.nodes.dir(parent)?;
        let mut charge = self.charge_all(&limits, entry(name, 0))?;
        if is_first {
            let from = node.clone();
            charge.append(self.charge_arrivals(&[MovingEntry { node, from, to: dir }])?);
        }
        Ok(charge)
    }
}
