//! Queries: look-up of one key, and the sources that a cursor merges for the keys of one leaf.

use crate::Result;
use crate::message::resolve::{KeyMessages, RunPosition};
use crate::model::ids::Msn;
use crate::model::key::{Key, KeyRange, before_end, end_le};
use crate::model::op::Op;
use crate::model::view::View;
use crate::tree::node::{Body, Node, NodeSlot};
use crate::tree::run::Run;
use crate::tree::run_source::{Reach, RunSource};
use crate::tree::source::Source;
use crate::tree::trees::Trees;
use std::sync::Arc;

/// Adds what the tree under `root` holds for `key`, from the newest message down.
pub(crate) fn find(
    trees: &Trees,
    root: &Arc<NodeSlot>,
    height: u8,
    key: &[u8],
    found: &mut KeyMessages,
) -> Result<()> {
    let mut slot = root.clone();
    let mut key: Key = key.into();
    let mut height = height;
    loop {
        let node = slot.load(trees, height)?;
        let (pivots, edges) = match &node.body {
            Body::Leaf(run) => return find_in_run(trees, run, &key, found),
            Body::Interior { pivots, edges } => (pivots, edges),
        };
        let edge = &edges[Node::edge_for(pivots, &key)];
        for run in edge.runs.iter().rev() {
            find_in_run(trees, run, &key, found)?;
            if found.is_done() {
                return Ok(());
            }
        }
        let Some(child) = &edge.child else { return Ok(()) };
        let Some(inner) = child.view.inward(&key) else { return Ok(()) };
        key = inner;
        slot = child.slot.clone();
        height -= 1;
    }
}

fn find_in_run(trees: &Trees, run: &Run, key: &[u8], found: &mut KeyMessages) -> Result<()> {
    let mut points: Vec<(Msn, Op)> = Vec::new();
    if let Some((number, part)) = run.part_for(key)
        && let Some(inner) = part.view.inward(key)
        && part.slot.summary.filter.may_contain(&inner)
    {
        let mut cursor = part.slot.load(trees)?.cursor();
        cursor.seek(&inner);
        if cursor.valid() && cursor.key() == &*inner {
            let (at, of) = cursor.position();
            let address = std::ptr::from_ref(run) as usize;
            found.set_position(RunPosition { run: address, part: number, parts: run.parts.len(), at, of });
        }
        while cursor.valid() && cursor.key() == &*inner {
            points.push((cursor.msn(), cursor.op()));
            cursor.next();
        }
    }
    found.add_level(points, run.ranges.covering(key));
    Ok(())
}

/// The runs on the way to one leaf, newest first, and the interval in which they are all there is.
pub(crate) struct Descent {
    pub(crate) interval: KeyRange,
    pub(crate) sources: Vec<Box<dyn Source>>,
    /// How far the walk is expected to go.
    reach: Reach,
}

/// Which leaf a descent looks for.
#[derive(Clone, Copy)]
pub(crate) enum Toward<'a> {
    /// The one with the interval that holds this key.
    Key(&'a [u8]),
    /// The one with the interval that holds the keys just before this end.
    Before(Option<&'a [u8]>),
}

impl Descent {
    /// Descends to one leaf of the tree that appears through `view` within `interval`, for a walk
    /// that is expected to go as far as `reach` says.
    pub(crate) fn new(
        trees: &Arc<Trees>,
        root: &Arc<NodeSlot>,
        mut height: u8,
        mut view: View,
        interval: KeyRange,
        toward: Toward<'_>,
        reach: Reach,
    ) -> Result<Self> {
        let mut descent = Self { interval, sources: Vec::new(), reach };
        let mut slot = root.clone();
        loop {
            let node = slot.load(trees, height)?;
            let (pivots, edges) = match &node.body {
                Body::Leaf(run) => {
                    descent.add(trees, run.clone(), &view);
                    return Ok(descent);
                }
                Body::Interior { pivots, edges } => (pivots, edges),
            };
            let i = match toward {
                Toward::Key(key) => view.inward(key).map_or(0, |key| Node::edge_for(pivots, &key)),
                Toward::Before(end) => {
                    let outer = KeyRange { start: Key::default(), end: end.map(Into::into) };
                    Node::edge_before(pivots, view.range_inward(&outer).end.as_deref())
                }
            };
            descent.narrow(pivots, i, &view);
            let edge = &edges[i];
            for run in edge.runs.iter().rev() {
                descent.add(trees, run.clone(), &view);
            }
            let Some(child) = &edge.child else { return Ok(descent) };
            view = view.compose(&child.view).restrict(&descent.interval);
            if !descent.aim(&view.range_outward(), toward) {
                return Ok(descent);
            }
            slot = child.slot.clone();
            height -= 1;
        }
    }

    fn add(&mut self, trees: &Arc<Trees>, run: Arc<Run>, view: &View) {
        if !run.is_empty() {
            self.sources.push(Box::new(RunSource::reaching(trees.clone(), run, view.clone(), self.reach)));
        }
    }

    /// True if what is looked for lies where a child shows something; else the interval becomes the
    /// gap.
    fn aim(&mut self, shown: &KeyRange, toward: Toward<'_>) -> bool {
        let (below, above) = match toward {
            Toward::Key(key) => (*key < *shown.start, !before_end(key, shown.end.as_deref())),
            Toward::Before(end) => {
                let before = KeyRange { start: Key::default(), end: end.map(Into::into) };
                let end = self.interval.intersect(&before).end;
                (end_le(end.as_deref(), Some(&shown.start)), !end_le(end.as_deref(), shown.end.as_deref()))
            }
        };
        let gap = match (below, above) {
            (false, false) => return true,
            (true, _) => KeyRange { start: Key::default(), end: Some(shown.start.clone()) },
            (_, true) => KeyRange { start: shown.end.clone().unwrap_or_default(), end: None },
        };
        self.interval = self.interval.intersect(&gap);
        false
    }

    /// Cuts the interval to that of edge `i`. Only real pivots cut: the first and last edge reach
    /// as far as their node does.
    fn narrow(&mut self, pivots: &[Key], i: usize, view: &View) {
        let outward = |pivot: &Key| view.range_to_outer(&KeyRange { start: pivot.clone(), end: None }).start;
        if let Some(pivot) = i.checked_sub(1).map(|i| &pivots[i]) {
            self.interval.start = self.interval.start.clone().max(outward(pivot));
        }
        if let Some(pivot) = pivots.get(i) {
            let end = view.range_to_outer(&KeyRange { start: Key::default(), end: Some(pivot.clone()) }).end;
            self.interval = self.interval.intersect(&KeyRange { start: Key::default(), end });
        }
    }
}
