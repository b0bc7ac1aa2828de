//! Merging the runs of an edge, so that readers look at few of them.

use super::compact::{compact, merged_ranges, run_sources};
use super::editor::TreeEditor;
use super::rebuild::root_above;
use crate::Result;
use crate::message::range_messages::RangeMessages;
use crate::model::key::{Key, KeyRange};
use crate::model::op::RangeOp;
use crate::tree::interior::edges_of;
use crate::tree::node::{Body, Edge, Root};
use crate::tree::policy::TreePolicy;
use crate::tree::run::Run;
use crate::tree::source::Merged;
use crate::tree::trees::Trees;
use crate::tree::write::{blocks_of, header_blocks};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// So many runs of similar weight on one edge are merged into one.
const SIMILAR_RUNS: usize = 6;

/// And so many when the log is replayed.
const REPLAYED_RUNS: usize = 32;

/// Runs are similar if none has this many times the weight of another. With [`SIMILAR_RUNS`] it
/// bounds the runs on an edge by the logarithm of its weight, and the times that a message is
/// merged, too.
const SIMILAR_WEIGHT_RATIO: u64 = 6;

/// Merges runs on an edge under a [`TreePolicy`].
#[derive(Clone, Copy)]
pub(super) struct RunMerger<'a> {
    pub(super) trees: &'a Arc<Trees>,
    pub(super) policy: TreePolicy,
}

impl RunMerger<'_> {
    /// Adds a run to an edge that covers `interval`.
    pub(super) fn add_run(&self, edge: &mut Edge, interval: &KeyRange, mut run: Run) {
        if run.ranges.deletes_all_of(interval) {
            // Leaf pruning [BetrFS 0.2, section 5]: a child that is deleted is dropped unread.
            *edge = Edge::default();
        }
        if edge.is_empty() {
            run.ranges = without_deletes(&run.ranges);
        }
        if !run.is_empty() {
            edge.runs.push(Arc::new(run));
            self.merge_similar(edge, interval);
        }
    }

    /// So many bytes may be pending at a clone that it takes along. Each clone names their parts in
    /// the header above it, and each flushes them for itself.
    pub(super) fn small_pending_bytes(&self) -> u64 {
        (4 * self.trees.tuning.part as u64).min(self.trees.tuning.edge as u64 / 2)
    }

    /// Two runs that weigh no more than so many bytes become one at once: each of them would take a
    /// block, as the one does.
    fn little_bytes(&self) -> u64 {
        self.trees.tuning.part as u64 / 8
    }

    /// True if the runs weigh more than so many bytes.
    pub(super) fn weigh_more(&self, runs: &[Arc<Run>], bytes: u64) -> bool {
        runs.iter().map(|run| run.weight()).sum::<u64>() > bytes
    }

    /// Runs as one run if they are not many bytes: on each of the edges to which they go a part of
    /// it is seen, and not a part of each of them. What cannot be read stays as it is.
    pub(super) fn merge_if_small(&self, runs: &[Arc<Run>], interval: &KeyRange) -> Vec<Arc<Run>> {
        if runs.len() < 2 || self.policy.low_space || self.weigh_more(runs, 2 * self.small_pending_bytes()) {
            return runs.to_vec();
        }
        match self.merge_runs(runs, interval) {
            Ok(run) if run.is_empty() => Vec::new(),
            Ok(run) => vec![Arc::new(run)],
            Err(_) => runs.to_vec(),
        }
    }

    /// Runs as one run; what is outside `interval` is left out.
    pub(super) fn merge_runs(&self, runs: &[Arc<Run>], interval: &KeyRange) -> Result<Run> {
        let ranges = merged_ranges(runs);
        let mut merged = Merged::new(run_sources(self.trees, runs));
        merged.seek(&interval.start)?;
        compact(self.trees, &mut merged, &ranges, interval)
    }

    /// Merges the newest runs of an edge over `interval` as long as enough of them are similar. One
    /// that cannot be read stays as it is, and so do older ones.
    pub(super) fn merge_similar(&self, edge: &mut Edge, interval: &KeyRange) {
        // Merging makes reads faster and takes space until the next checkpoint.
        if self.policy.low_space {
            return;
        }
        let mut readable = 0;
        while let Some(from) = self.first_to_merge(&edge.runs, readable) {
            match self.merge_runs(&edge.runs[from..], interval) {
                Ok(run) => {
                    edge.runs.truncate(from);
                    edge.runs.extend(Some(run).filter(|run| !run.is_empty()).map(Arc::new));
                }
                Err(_) => {
                    let alone =
                        |run: &Arc<Run>| self.merge_runs(std::slice::from_ref(run), interval).is_err();
                    let Some(last) = edge.runs[from..].iter().rposition(alone) else { break };
                    readable = from + last + 1;
                }
            }
        }
    }
}

impl RunMerger<'_> {
    /// The first of the newest runs that are to be merged; all from `readable` on can be read.
    fn first_to_merge(&self, runs: &[Arc<Run>], readable: usize) -> Option<usize> {
        let replays = self.trees.memory.dirty_bytes.load(Relaxed) < self.policy.unmerged_bytes;
        let last_two = runs.len().checked_sub(2).filter(|from| *from >= readable && !replays);
        if last_two.is_some_and(|from| !self.weigh_more(&runs[from..], self.little_bytes())) {
            return last_two;
        }
        let (mut least, mut most, mut from) = (u64::MAX, 0, runs.len());
        while let Some(i) = from.checked_sub(1).filter(|i| *i >= readable) {
            least = least.min(runs[i].weight().max(1));
            most = most.max(runs[i].weight());
            if most >= SIMILAR_WEIGHT_RATIO * least {
                break;
            }
            from = i;
        }
        let few = if replays { REPLAYED_RUNS } else { SIMILAR_RUNS };
        (runs.len() - from >= few).then_some(from)
    }
}

impl<'a> TreeEditor<'a> {
    /// How runs on an edge are merged under the policy.
    pub(super) fn runs(&self) -> RunMerger<'a> {
        RunMerger { trees: self.trees, policy: self.policy }
    }

    /// The root after what waits on one of its edges in many small parts has become one run; `None`
    /// if nowhere it does that takes no more than `room` blocks. In a store that is short of space
    /// each checkpoint may leave a part with a few deletions there, which takes a block.
    pub(crate) fn merge_small_runs(&self, root: &Root, room: u64) -> Result<Option<Root>> {
        let Ok(mut node) = self.trees.root_node(root).map(|node| (*node).clone()) else { return Ok(None) };
        let header = header_blocks(&node);
        let Body::Interior { edges, .. } = &node.body else { return Ok(None) };
        let parts = |edge: &Edge| edge.runs.iter().map(|run| run.parts.len() as u64).sum::<u64>();
        let (part, values) =
            ((self.trees.tuning.part as u64 / 2).max(1), (self.trees.tuning.leaf as u64 / 8).max(1));
        let least = |edge: &Edge| edge.pending() / part + edge.pending_values() / values + 1;
        let many = |edge: &Edge| edge.runs.len() > 1 && parts(edge) > 2 * least(edge);
        let fits = |edge: &Edge| blocks_of(edge.pending() as usize) + least(edge) + header <= room;
        let mut found: Vec<usize> =
            (0..edges.len()).filter(|i| many(&edges[*i]) && fits(&edges[*i])).collect();
        found.sort_by_key(|i| std::cmp::Reverse(parts(&edges[*i])));
        for i in found {
            let (_, edges) = edges_of(&mut node);
            let before = parts(&edges[i]);
            let runs = edges[i].runs.clone();
            let Ok(run) = self.runs().merge_runs(&runs, &node.interval(i, &KeyRange::all())) else {
                continue;
            };
            if (run.parts.len() as u64) < before {
                edges_of(&mut node).1[i].runs = if run.is_empty() { Vec::new() } else { vec![Arc::new(run)] };
                return Ok(Some(root_above(self.trees, vec![(Key::default(), node)])));
            }
        }
        Ok(None)
    }
}

/// The range messages that still matter where nothing older lies below.
fn without_deletes(ranges: &RangeMessages) -> RangeMessages {
    let mut kept = RangeMessages::default();
    for (range, ops) in ranges.iter() {
        kept.push_fragment(range, ops.iter().filter(|(_, op)| *op != RangeOp::Delete).cloned().collect());
    }
    kept
}
