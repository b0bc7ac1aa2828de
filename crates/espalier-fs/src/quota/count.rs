//! Counting: what the store holds for a tree.

use super::{Quotas, SETTLES_FOR};
use crate::data::reservation;
use crate::inode::limits::LimitedTree;
use crate::inode::node::Node;
use crate::model::error::Result;
use crate::model::layout::{INDEXES, content_range};
use crate::snapshot::volume::snapshots;
use crate::tree_ops::space::ranges_of;
use espalier_engine::{IndexId, KeyRange, SpaceUse};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Quotas {
    /// Counts a tree: all that was committed before this call, and what is reserved. True if what
    /// was removed or replaced may be part of it, and [`Quotas::settle`] would help.
    pub(super) fn count(&self, tree: &LimitedTree) -> Result<bool> {
        let (exclusive, total) = (tree.exclusive.begin_count(), tree.total.begin_count());
        self.namespace.volume.store.checkpoint_if_older(Duration::ZERO)?;
        let ranges = self.ranges(tree)?;
        let held = self.held(tree, &ranges)?;
        let reserved = self.reserved(tree)?;
        let patched = tree.settle_patched(held.messages);
        tree.is_sharing.store(held.is_sharing, Ordering::Release);
        tree.exclusive.end_count(&exclusive, held.exclusive.saturating_add(reserved + patched));
        tree.total.end_count(&total, held.bytes.saturating_add(reserved));
        Ok(held.is_unsettled)
    }

    /// What ranges hold, those of a tree and perhaps more, as of the last checkpoint.
    pub(super) fn held(&self, tree: &LimitedTree, ranges: &[(IndexId, KeyRange)]) -> Result<SpaceUse> {
        let all = tree.total.limit().is_some();
        let mut kept = tree.tally.lock();
        Ok(kept.count(|tally| self.namespace.volume.store.bytes_held(tally, ranges, all))?)
    }

    /// Sees to it that what was removed or replaced in a tree is held no longer, as far as that
    /// takes a moment.
    pub(super) fn settle(&self, tree: &LimitedTree) -> Result<()> {
        self.namespace.orphans.release_unlinked();
        self.namespace.orphans.deferred.remove_all();
        let ranges = self.ranges(tree)?;
        let volume = self.namespace.volume.id;
        let own: Vec<_> = ranges.into_iter().filter(|(index, _)| index.volume == volume).collect();
        Ok(self.namespace.volume.store.settle(&own, SETTLES_FOR)?)
    }

    /// The keys of a tree: the directory's, those of what has no name and counts for it, and those
    /// of the directory's snapshots. None overlap.
    pub(super) fn ranges(&self, tree: &LimitedTree) -> Result<Vec<(IndexId, KeyRange)>> {
        let mut ranges = Vec::new();
        for node in self.members(tree) {
            ranges.extend(ranges_of(&self.namespace, &node)?);
        }
        let of_tree = |directory: Option<u64>| directory == Some(tree.ino);
        for snapshot in snapshots(&self.namespace.volume.store) {
            if of_tree(snapshot.directory) {
                ranges.extend(volume_ranges(snapshot.id));
            }
        }
        Ok(disjoint(ranges))
    }

    /// Bytes that are kept for files of a tree.
    fn reserved(&self, tree: &LimitedTree) -> Result<u64> {
        let members = self.members(tree);
        let guard = self.namespace.tree.shared();
        let mut sum = 0;
        let prefixes = members.iter().map(|node: &Arc<Node>| match node.is_dir() {
            true => node.content_prefix(guard.epoch),
            false => node.data_base(guard.epoch, &node.state()),
        });
        let mut seen: Vec<Arc<[u8]>> = Vec::new();
        for prefix in prefixes {
            if !seen.iter().any(|other| content_range(other).contains(&prefix)) {
                sum += reservation::reserved_below(&self.namespace.volume, &prefix)?;
                seen.push(prefix);
            }
        }
        Ok(sum)
    }
}

/// All keys of a volume.
pub(super) fn volume_ranges(volume: u32) -> impl Iterator<Item = (IndexId, KeyRange)> {
    (0..INDEXES).map(move |index| (IndexId { volume, index }, KeyRange::all()))
}

/// The same keys in ranges that do not overlap.
pub(super) fn disjoint(mut ranges: Vec<(IndexId, KeyRange)>) -> Vec<(IndexId, KeyRange)> {
    ranges.sort_by(|(a, x), (b, y)| (a, &x.start).cmp(&(b, &y.start)));
    let mut joined: Vec<(IndexId, KeyRange)> = Vec::new();
    for (index, range) in ranges {
        match joined.last_mut() {
            Some((of, last)) if *of == index && reaches(last, &range) => {
                let end = last.end.take().zip(range.end);
                last.end = end.map(|(a, b)| a.max(b));
            }
            _ => joined.push((index, range)),
        }
    }
    joined
}

/// True if a range that begins no later goes on to the beginning of another one.
fn reaches(range: &KeyRange, next: &KeyRange) -> bool {
    range.end.as_ref().is_none_or(|end| *end >= next.start)
}
