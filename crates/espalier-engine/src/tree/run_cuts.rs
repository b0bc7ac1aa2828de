//! Cutting runs at the borders of a range by what their parts hold, and not only by their bounds.

use crate::model::key::{KeyRange, before_end};
use crate::tree::run::{Run, ViewedPart, runs_within};
use crate::tree::trees::Trees;
use std::sync::Arc;

/// What of `runs` lies on both sides of `range`; a run that has nothing there stays as it is,
/// although its bounds may reach into the range. So parts are not cut into more and more pieces by
/// ranges that come into being between their keys, one after the other: a thousand clones in one
/// directory. Parts that reach into the range are read.
pub(crate) fn runs_clear_of(trees: &Trees, runs: &[Arc<Run>], range: &KeyRange) -> Vec<Arc<Run>> {
    let has_some = |run: &Run| {
        run.ranges.touches(range) || run.parts_near(range).iter().any(|p| p.shows_some_of(range, trees))
    };
    let clear = |run: &Arc<Run>| match has_some(run) {
        true => Arc::new(run.without(range)),
        false => run.clone(),
    };
    runs.iter().map(clear).filter(|run| !run.is_empty()).collect()
}

/// What of `runs` lies in `range`, without parts that have no key there although their bounds span
/// it: what a clone takes along does not grow with what waits for its neighbours. Parts that reach
/// into the range are read.
pub(crate) fn runs_with_keys_in(trees: &Trees, runs: &[Arc<Run>], range: &KeyRange) -> Vec<Arc<Run>> {
    let with_keys = |run: Arc<Run>| {
        let has_some = |part: &&Arc<ViewedPart>| part.shows_some_of(range, trees);
        let parts: Vec<_> = run.parts.iter().filter(has_some).cloned().collect();
        match parts.len() == run.parts.len() {
            true => run,
            false => Arc::new(Run::new(parts, run.ranges.clone())),
        }
    };
    runs_within(runs, range).into_iter().map(with_keys).filter(|run| !run.is_empty()).collect()
}

impl ViewedPart {
    /// True if it may show a key in `range`: that it cannot be read leaves that open.
    fn shows_some_of(&self, range: &KeyRange, trees: &Trees) -> bool {
        let inner = self.view.range_inward(range);
        if inner.is_empty() {
            return false;
        }
        let Ok(part) = self.slot.load(trees) else { return true };
        let mut cursor = part.cursor();
        cursor.seek(&inner.start);
        cursor.valid() && before_end(cursor.key(), inner.end.as_deref())
    }
}
