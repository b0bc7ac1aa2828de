//! Compaction: several runs are merged into one, which is cut into parts.

use crate::Result;
use crate::message::Messages;
use crate::message::compose::{Patch, patched_unread};
use crate::message::range_messages::RangeMessages;
use crate::model::ids::Msn;
use crate::model::key::KeyRange;
use crate::model::op::{MergeFunctions, Op, RangeOp};
use crate::model::value::Value;
use crate::model::view::View;
use crate::pieces::PartBuilder;
use crate::tree::part_slot::PartSlot;
use crate::tree::run::{Run, ViewedPart};
use crate::tree::run_source::RunSource;
use crate::tree::source::{Merged, Source};
use crate::tree::trees::Trees;
use std::sync::Arc;

/// Collects messages in key order into parts of the wanted size.
pub(crate) struct PartsBuilder<'a> {
    trees: &'a Trees,
    builder: PartBuilder,
    parts: Vec<Arc<ViewedPart>>,
}

impl<'a> PartsBuilder<'a> {
    pub(crate) fn new(trees: &'a Trees) -> Self {
        Self { trees, builder: PartBuilder::new(), parts: Vec::new() }
    }

    /// Adds all messages of one key, newest first.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if they are out of order.
    pub(crate) fn push(&mut self, key: &[u8], messages: &[(Msn, Op)]) -> Result<()> {
        // All messages of one key lie in one part, so a part is cut only between keys.
        let tuning = &self.trees.tuning;
        if self.builder.bytes() >= tuning.part || self.builder.value_bytes() >= tuning.leaf as u64 / 8 {
            self.cut();
        }
        messages.iter().try_for_each(|(msn, op)| self.builder.push(key, *msn, op))
    }

    /// Adds a part as it is.
    pub(crate) fn push_part(&mut self, part: Arc<ViewedPart>) {
        self.cut();
        self.parts.push(part);
    }

    /// True if a part is being built that is still small.
    pub(crate) fn is_building_small_part(&self) -> bool {
        !self.builder.is_empty() && self.builder.bytes() < self.trees.tuning.part / 2
    }

    fn cut(&mut self) {
        if !self.builder.is_empty() {
            let part = std::mem::take(&mut self.builder).finish();
            self.parts.push(Arc::new(ViewedPart::whole(PartSlot::new(&self.trees.memory, part))));
        }
    }

    pub(crate) fn finish(mut self) -> Vec<Arc<ViewedPart>> {
        self.cut();
        self.parts
    }
}

/// Runs, newest first, as sources in their own key space.
pub(crate) fn run_sources(trees: &Arc<Trees>, runs: &[Arc<Run>]) -> Vec<Box<dyn Source>> {
    let source = |run: &Arc<Run>| Box::new(RunSource::new(trees.clone(), run.clone(), View::identity())) as _;
    runs.iter().rev().map(source).collect()
}

/// The range messages of runs given oldest first, as one set.
pub(crate) fn merged_ranges(runs: &[Arc<Run>]) -> RangeMessages {
    let mut all = RangeMessages::default();
    for run in runs.iter().filter(|r| !r.ranges.is_empty()) {
        let mut newer = run.ranges.clone();
        newer.merge_older(&all);
        all = newer;
    }
    all
}

/// What `merged` holds within `range`, as one run with the range messages `ranges`.
pub(crate) fn compact(
    trees: &Trees,
    merged: &mut Merged,
    ranges: &RangeMessages,
    range: &KeyRange,
) -> Result<Run> {
    let mut parts = PartsBuilder::new(trees);
    while let Some(key) =
        merged.smallest().filter(|key| crate::model::key::before_end(key, range.end.as_deref()))
    {
        let mut messages = Messages::new();
        merged.points(&key).for_each(|points| messages.extend_from_slice(points));
        shorten(&mut messages, ranges.covering(&key), &trees.merge);
        if !messages.is_empty() {
            parts.push(&key, &messages)?;
        }
        merged.next_behind(&key)?;
    }
    Ok(Run::new(parts.finish(), ranges.within(range)))
}

/// How many newer patches of a key are compared with an older one.
const MAX_COMPARED_PATCHES: usize = 16;

/// Drops the messages of one key (newest first) that newer ones make void, and makes one of those
/// that can be one. `ranges` cover the key, oldest first.
fn shorten(messages: &mut Messages, ranges: &[(Msn, RangeOp)], merge: &MergeFunctions) {
    // Message eating [BetrFS 0.2, section 5].
    if let Some((delete, _)) = ranges.iter().rev().find(|(_, op)| *op == RangeOp::Delete) {
        // What a clone copies has the number of the clone, as the delete that makes room for it.
        messages.retain(|(msn, _)| msn >= delete);
    }
    if let Some(end) = messages.iter().position(|(_, op)| op.is_terminal()) {
        messages.truncate(end + 1);
    }
    // A range update in between must be applied in between.
    let divided = |older: Msn, newer: Msn| ranges.iter().any(|(msn, _)| older < *msn && *msn < newer);
    drop_covered(messages, divided);
    let mut patches: Vec<Patch> = Vec::new();
    while let [.., (newer, op), (older, base)] = &messages[..] {
        if divided(*older, *newer) {
            return;
        }
        // Patches upon a value are applied together.
        let end = messages.len() - 1;
        let first = messages[..end].iter().rposition(|(_, op)| !matches!(op, Op::Patch { .. }));
        let first = first.map_or(0, |i| i + 1);
        let (keep, both) = if first < end && !divided(*older, messages[first].0) {
            patches.clear();
            patches.extend(messages[first..end].iter().rev().filter_map(|(_, op)| match op {
                Op::Patch { offset, bytes } => Some((*offset, bytes.clone())),
                _ => None,
            }));
            (first, apply_patches_to_base(base, &patches))
        } else {
            (end - 1, merge_two(base, op, merge))
        };
        let Some(both) = both else { return };
        let newest = messages[keep].0;
        messages.truncate(keep);
        messages.push((newest, both));
    }
}

/// Drops patches that newer ones cover, if nothing but patches lies between.
fn drop_covered(messages: &mut Messages, divided: impl Fn(Msn, Msn) -> bool) {
    let extent = |op: &Op| match op {
        Op::Patch { offset, bytes } => Some((*offset as usize, *offset as usize + bytes.len())),
        _ => None,
    };
    let mut at = 1;
    while at < messages.len() {
        let Some((start, end)) = extent(&messages[at].1) else {
            at += 1;
            continue;
        };
        let newer = messages[..at].iter().rev().take(MAX_COMPARED_PATCHES);
        let covered = newer
            .map_while(|(msn, op)| extent(op).map(|extent| (*msn, extent)))
            .take_while(|(msn, _)| !divided(messages[at].0, *msn))
            .any(|(_, (from, to))| from <= start && end <= to);
        if covered {
            messages.remove(at);
        } else {
            at += 1;
        }
    }
}

/// What `patches` make of what `base` leaves, if that takes no reading.
fn apply_patches_to_base(base: &Op, patches: &[Patch]) -> Option<Op> {
    match base {
        Op::Insert(value) => patched_unread(Some(value), patches).map(Op::Insert),
        Op::Delete => patched_unread(None, patches).map(Op::Insert),
        Op::Patch { .. } | Op::Update(_) => None,
    }
}

/// `base` and then `op` as one message, if that takes no reading.
fn merge_two(base: &Op, op: &Op, merge: &MergeFunctions) -> Option<Op> {
    let base_bytes = match base {
        Op::Insert(value) => Some(value.in_memory()?),
        Op::Delete => None,
        Op::Patch { .. } => return None,
        Op::Update(older) => match op {
            Op::Update(newer) => return merge.compose(older, newer).map(Op::Update),
            _ => return None,
        },
    };
    match op {
        Op::Patch { offset, bytes } => apply_patches_to_base(base, &[(*offset, bytes.clone())]),
        Op::Update(update) => match merge.apply(update, base_bytes.as_deref()).ok()? {
            Some(new) => Some(Op::Insert(Value::from(new))),
            None => Some(Op::Delete),
        },
        Op::Insert(_) | Op::Delete => None,
    }
}
