//! Index of a snapshot: look-ups of keys, slices of values, and sources for cursors.
//!
//! A look-up goes from the newest messages down: active memtable, sealed layers, tree. A pending
//! clone among the layers sends the search on for another key.

use crate::index::{Layer, Sealed, Version};
use crate::memtable::Memtable;
use crate::memtable::source::MemtableSource;
use crate::message::pending_clone::PendingClone;
use crate::message::resolve::{KeyMessages, RunPosition, Unfinished};
use crate::model::ids::{IndexId, Msn};
use crate::model::key::{Key, KeyRange, end_le};
use crate::model::op::MergeFunctions;
use crate::model::value::Value;
use crate::model::value_reader::{Retention, ValueReader, load_and_keep};
use crate::model::view::View;
use crate::pieces::Pieces;
use crate::read::context::ReadContext;
use crate::tree::source::{Source, ViewedSource};
use crate::tree::{Descent, Reach, Root, Suspects, Toward, find};
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What a snapshot and its indexes share.
pub(super) struct SnapshotState {
    pub(super) context: Arc<ReadContext>,
    pub(super) versions: BTreeMap<IndexId, Arc<Version>>,
    pub(super) upto: Msn,
}

impl Drop for SnapshotState {
    fn drop(&mut self) {
        self.context.pins.unpin(self.upto);
    }
}

/// Bytes of a value that a reader asks for.
#[derive(Debug, Clone, Copy)]
pub struct Slice<'a> {
    /// The key.
    pub key: &'a [u8],
    /// The first byte of the value.
    pub offset: usize,
    /// How many bytes; the value may have fewer.
    pub len: usize,
}

/// What a look-up of several slices found.
pub(crate) struct FoundSlices {
    /// The lengths of the values.
    pub(crate) lengths: Vec<Option<usize>>,
    /// What is to be done about the buffer.
    pub(crate) left: Unfinished,
    /// Where in the tree the first and the last were found of those that were found there.
    pub(crate) positions: Option<(RunPosition, RunPosition)>,
}

/// One index of a snapshot.
#[derive(Clone)]
pub(crate) struct SnapshotIndex {
    context: Arc<ReadContext>,
    version: Arc<Version>,
    upto: Msn,
    /// Keeps the snapshot pinned; absent for a look at the newest state.
    _keep: Option<Arc<SnapshotState>>,
}

impl SnapshotIndex {
    /// An index of a snapshot, in the version that the snapshot sees.
    pub(super) fn of(snapshot: Arc<SnapshotState>, version: Arc<Version>) -> Self {
        let (context, upto) = (snapshot.context.clone(), snapshot.upto);
        Self { context, version, upto, _keep: Some(snapshot) }
    }

    /// The newest state of one index.
    pub(crate) fn newest(context: Arc<ReadContext>, version: Arc<Version>) -> Self {
        Self { context, version, upto: Msn(u64::MAX), _keep: None }
    }

    pub(crate) fn version(&self) -> &Arc<Version> {
        &self.version
    }

    pub(crate) fn merge_functions(&self) -> &MergeFunctions {
        self.context.merge_functions()
    }

    pub(crate) fn pieces(&self) -> &Pieces {
        &self.context.trees.pieces
    }

    pub(crate) fn reader(&self) -> &dyn ValueReader {
        self.context.reader()
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.find(key)?.value(self.merge_functions(), self.reader())?;
        value.map(|v| load_and_keep(&v, self.reader())).transpose()
    }

    pub(crate) fn get_slice(&self, key: &[u8], offset: usize, out: &mut [u8]) -> Result<Option<usize>> {
        let len = out.len();
        Ok(self.get_slices(&[Slice { key, offset, len }], out)?.pop().flatten())
    }

    pub(crate) fn get_slices(&self, slices: &[Slice<'_>], out: &mut [u8]) -> Result<Vec<Option<usize>>> {
        let found = self.find_slices(slices, None, out)?;
        found.left.finish(self.reader(), Retention::Pass, out)?;
        Ok(found.lengths)
    }

    /// Fills `out` with what is in memory, and says what has still to be done. `known`: for each
    /// slice what is known of its key, where that need not be looked up.
    pub(crate) fn find_slices(
        &self,
        slices: &[Slice<'_>],
        known: Option<Vec<Option<KeyMessages>>>,
        out: &mut [u8],
    ) -> Result<FoundSlices> {
        let total = slices.iter().try_fold(0, |sum: usize, slice| sum.checked_add(slice.len));
        if total != Some(out.len()) {
            let message = format!("the slices have {total:?} bytes and the buffer {}", out.len());
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let (lengths, left) = (Vec::with_capacity(slices.len()), Unfinished::default());
        let mut all = FoundSlices { lengths, left, positions: None };
        let mut at = 0;
        let mut known = known.unwrap_or_default().into_iter();
        for slice in slices {
            let range = at..at + slice.len;
            at = range.end;
            let found = match known.next().flatten() {
                Some(found) => found,
                None => self.find(slice.key)?,
            };
            if let Some(position) = found.position() {
                all.positions = Some((all.positions.map_or(position, |(first, _)| first), position));
            }
            let (functions, reader) = (self.merge_functions(), self.reader());
            all.lengths.push(found.slice(functions, reader, slice.offset, range, out, &mut all.left)?);
        }
        Ok(all)
    }

    /// The value of a key, not loaded.
    pub(crate) fn value(&self, key: &[u8]) -> Result<Option<Value>> {
        self.find(key)?.value(self.merge_functions(), self.reader())
    }

    /// Where what begins with `prefix` here may differ from what begins with `other_prefix` in
    /// `other`.
    pub(crate) fn suspects(&self, prefix: &[u8], other: &Self, other_prefix: &[u8]) -> Result<Suspects> {
        let (a, b) = (&self.version, &other.version);
        if a.has_pending_clone() || b.has_pending_clone() {
            return Ok(Suspects { ranges: vec![KeyRange::all()], ..Suspects::default() });
        }
        let mut suspects = self.context.trees.suspects([(&a.root, prefix), (&b.root, other_prefix)])?;
        self.add_pending(prefix, &mut suspects);
        other.add_pending(other_prefix, &mut suspects);
        suspects.sort_ranges();
        Ok(suspects)
    }

    /// False if the tree below `root` is known to have in `range` what is there now.
    pub(crate) fn may_differ_from(&self, root: &Root, range: &KeyRange) -> Result<bool> {
        let (start, upto) = (&range.start, self.upto);
        let has_some = |table: &Arc<Memtable>| {
            let mut source = MemtableSource::new(table.clone(), upto);
            // A source in memory does not fail.
            let _ = source.seek(start);
            source.key().is_some_and(|key| range.contains(key)) || table.has_ranges_in(range)
        };
        let changes_some = |sealed: &Sealed| match &sealed.layer {
            Layer::Table(table) => has_some(table),
            Layer::Clone(clone) => KeyRange::prefix(&clone.destination).overlaps(range),
        };
        let is_changed = has_some(&self.version.active) || self.version.sealed.iter().any(changes_some);
        Ok(is_changed || self.context.trees.may_differ([root, &self.version.root], range)?)
    }

    /// Adds what the memtables have to say of what begins with `prefix`.
    fn add_pending(&self, prefix: &[u8], suspects: &mut Suspects) {
        let view = View::translated(prefix, b"");
        for table in self.version.memtables() {
            let mut source = MemtableSource::new(table.clone(), self.upto);
            // A source in memory does not fail.
            let _ = source.seek(prefix);
            while let Some(key) = source.key().and_then(|key| view.outward(key)) {
                suspects.add_key(key);
                let _ = source.next();
            }
            for (range, _) in table.ranges().within(&view.bounds).iter() {
                suspects.ranges.push(view.range_to_outer(&range));
            }
        }
    }

    /// Collects what is known about `key`, from the newest message down.
    fn find(&self, key: &[u8]) -> Result<KeyMessages> {
        let mut found = KeyMessages::default();
        self.version.active.find(key, self.upto, &mut found);
        // Below a clone the search goes on for another key.
        let mut redirected: Option<Key> = None;
        for sealed in self.version.sealed.iter().rev() {
            if found.is_done() {
                return Ok(found);
            }
            let key = redirected.as_deref().unwrap_or(key);
            match &sealed.layer {
                Layer::Table(table) => table.find(key, self.upto, &mut found),
                Layer::Clone(clone) => redirected = clone.redirect(key).or(redirected),
            }
        }
        let key = redirected.as_deref().unwrap_or(key);
        match &self.version.root.slot {
            Some(root) if !found.is_done() => {
                find(&self.context.trees, root, self.version.root.height, key, &mut found)?;
            }
            _ => {}
        }
        Ok(found)
    }

    /// Sources, newest first, for the part of `range` in which `toward` lies and that one leaf
    /// covers; of a walk that is expected to go as far as `reach` says.
    pub(crate) fn sources(
        &self,
        range: &KeyRange,
        toward: Toward<'_>,
        reach: Reach,
    ) -> Result<(KeyRange, Vec<Box<dyn Source>>)> {
        let mut segment = Segment { interval: range.clone(), view: View::identity(), sources: Vec::new() };
        segment.add(&self.version.active, self.upto);
        for sealed in self.version.sealed.iter().rev() {
            match &sealed.layer {
                Layer::Table(table) => segment.add(table, self.upto),
                Layer::Clone(clone) => segment.pass(clone, toward),
            }
        }
        let Segment { interval, view, mut sources } = segment;
        let Some(root) = &self.version.root.slot else { return Ok(narrowed(interval, sources)) };
        let (trees, height) = (&self.context.trees, self.version.root.height);
        let descent = Descent::new(trees, root, height, view, interval, toward, reach)?;
        sources.extend(descent.sources);
        Ok(narrowed(descent.interval, sources))
    }
}

/// The sources for a reader of keys in the interval.
fn narrowed(interval: KeyRange, mut sources: Vec<Box<dyn Source>>) -> (KeyRange, Vec<Box<dyn Source>>) {
    sources.iter_mut().for_each(|source| source.narrow(&interval));
    (interval, sources)
}

/// On the way down through the layers of a version: an interval all of whose keys every clone
/// passed so far sends the same way, and the view in which it shows what is older.
struct Segment {
    interval: KeyRange,
    view: View,
    sources: Vec<Box<dyn Source>>,
}

impl Segment {
    fn add(&mut self, table: &Arc<Memtable>, upto: Msn) {
        let source = MemtableSource::new(table.clone(), upto);
        self.sources.push(match self.view.is_identity() {
            true => Box::new(source),
            false => Box::new(ViewedSource::new(Box::new(source), self.view.clone())),
        });
    }

    /// Cuts the interval at the destination of `clone`; looks through it if `toward` lies there.
    fn pass(&mut self, clone: &PendingClone, toward: Toward<'_>) {
        let covered = KeyRange::prefix(&clone.destination);
        let gap = |below: bool| match below {
            true => KeyRange { start: Key::default(), end: Some(covered.start.clone()) },
            false => KeyRange { start: covered.end.clone().unwrap_or_default(), end: None },
        };
        let (inside, part) = match toward {
            Toward::Key(key) => {
                let key = self.view.inward(key).unwrap_or_else(|| self.view.bounds.start.clone());
                let inside = covered.contains(&key);
                (inside, if inside { covered } else { gap(key < covered.start) })
            }
            Toward::Before(end) => {
                let before = KeyRange { start: Key::default(), end: end.map(Into::into) };
                let end = self.view.range_inward(&self.interval.intersect(&before)).end;
                let below = end_le(end.as_deref(), Some(&covered.start));
                let inside = !below && end_le(end.as_deref(), covered.end.as_deref());
                (inside, if inside { covered } else { gap(below) })
            }
        };
        self.interval = self.interval.intersect(&self.view.range_to_outer(&part));
        self.view = self.view.restrict(&self.interval);
        if inside {
            self.view = self.view.compose(&View::translated(&clone.source, &clone.destination));
        }
    }
}

impl std::fmt::Debug for SnapshotIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SnapshotIndex").field("upto", &self.upto).finish_non_exhaustive()
    }
}
