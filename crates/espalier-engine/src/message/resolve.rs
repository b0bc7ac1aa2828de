//! Resolution: from the messages for one key to its value.
//!
//! Messages are collected newest first, until one is *terminal*: its outcome does not depend on
//! older messages. Then they are applied oldest first. Patches never need the whole value: a slice
//! of a large value costs only its own pages, each read once, from the newest message that covers
//! it. A page that is patched in part is read whole together with its neighbours, and the patches
//! are laid over it.

use crate::Result;
use crate::message::compose::{Patch, patched};
use crate::model::ids::Msn;
use crate::model::op::{MergeFunctions, Op, RangeOp, Update};
use crate::model::value::{VALUE_PAGE, Value, ValueRef};
use crate::model::value_reader::{Retention, ValueReader, Wanted, gather, load};
use bytes::Bytes;
use std::ops::Range;

/// What is still to be done until a buffer is filled.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    /// To be read.
    pub(crate) wanted: Vec<Wanted>,
    /// To be laid over it then, newest first where they overlap.
    overlays: Vec<(Range<usize>, Bytes)>,
}

impl Unfinished {
    /// Does it.
    pub(crate) fn finish(
        &self,
        reader: &dyn ValueReader,
        retention: Retention,
        out: &mut [u8],
    ) -> Result<()> {
        reader.read_values(&self.wanted, out)?;
        if retention == Retention::Keep {
            // As they are stored: what lies over them may be other things for the next reader.
            reader.keep(&self.wanted, out);
        }
        for (range, bytes) in self.overlays.iter().rev() {
            out[range.clone()].copy_from_slice(bytes);
        }
        Ok(())
    }
}

/// The messages found for one key so far, newest first.
#[derive(Debug, Default)]
pub(crate) struct KeyMessages {
    /// What is to be done to the base, newest first.
    steps: Vec<Step>,
    /// The value before all steps, once known.
    base: Option<Option<Value>>,
    /// Where in the tree the oldest message was found.
    position: Option<RunPosition>,
}

/// A position in a run of the tree. Reads in key order go through the parts of a run one after the
/// other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunPosition {
    /// Identifies the run.
    pub(crate) run: usize,
    /// The number of the part in the run.
    pub(crate) part: usize,
    /// How many parts the run has.
    pub(crate) parts: usize,
    /// Where the entry begins among the entries of the part, in bytes.
    pub(crate) at: usize,
    /// The bytes of all entries of the part.
    pub(crate) of: usize,
}

/// A patch whose bytes are in memory: from which byte of the value on they stand.
pub(crate) type InMemory = (u32, Bytes);

#[derive(Debug)]
enum Step {
    Patch(u32, Value),
    Update(Update),
    /// Applies only if there is a value.
    RangeUpdate(Update),
}

impl KeyMessages {
    /// True once older messages cannot matter.
    pub(crate) fn is_done(&self) -> bool {
        self.base.is_some()
    }

    /// For a key of which it is known that `value` with these patches in memory, newest first, is
    /// all there is.
    pub(crate) fn known(value: Value, patches: &[InMemory]) -> Self {
        let steps = patches.iter().map(|(at, bytes)| Step::Patch(*at, bytes.clone().into())).collect();
        Self { steps, base: Some(Some(value)), ..Self::default() }
    }

    /// The value with the patches to it, newest first, if there is nothing else and they are in
    /// memory.
    pub(crate) fn patched(&self) -> Option<(&Value, Vec<InMemory>)> {
        let value = self.base.as_ref()?.as_ref()?;
        let patch = |step: &Step| match step {
            Step::Patch(at, bytes) if bytes.segments().is_empty() => Some((*at, bytes.in_memory()?)),
            _ => None,
        };
        Some((value, self.steps.iter().map(patch).collect::<Option<_>>()?))
    }

    /// The value, if no messages change it.
    pub(crate) fn unchanged_value(&self) -> Option<&Value> {
        self.base.as_ref()?.as_ref().filter(|_| self.steps.is_empty())
    }

    /// Records where the messages of a level stand that are added next.
    pub(crate) fn set_position(&mut self, position: RunPosition) {
        self.position = Some(position);
    }

    /// Where in the tree the oldest message was found.
    pub(crate) fn position(&self) -> Option<RunPosition> {
        self.position
    }

    /// All places on the device from which bytes of the value may have to be read.
    pub(crate) fn places(&self) -> impl Iterator<Item = ValueRef> {
        let patches = self.steps.iter().filter_map(|step| match step {
            Step::Patch(_, bytes) => Some(bytes),
            Step::Update(_) | Step::RangeUpdate(_) => None,
        });
        let values = self.base.iter().flatten().chain(patches);
        values.flat_map(Value::segments).filter(|segment| segment.bytes().is_none()).filter_map(|s| s.place())
    }

    /// True if the value is a large one that messages change: it would have to be read and written
    /// anew.
    pub(crate) fn is_costly(&self) -> bool {
        let large = |value: &Value| !value.segments().is_empty();
        !self.steps.is_empty() && self.base.iter().flatten().any(large)
    }

    /// True if there is no value that steps change: what they give they make of nothing.
    pub(crate) fn rests_on_nothing(&self) -> bool {
        !matches!(self.base, Some(Some(_)))
    }

    /// Adds an older point message.
    pub(crate) fn add_point(&mut self, op: Op) {
        match op {
            _ if self.is_done() => {}
            Op::Insert(value) => self.base = Some(Some(value)),
            Op::Delete => self.base = Some(None),
            Op::Patch { offset, bytes } => self.steps.push(Step::Patch(offset, bytes)),
            Op::Update(update) => self.steps.push(Step::Update(update)),
        }
    }

    /// Adds an older range message.
    pub(crate) fn add_range(&mut self, op: &RangeOp) {
        match op {
            _ if self.is_done() => {}
            RangeOp::Delete => self.base = Some(None),
            RangeOp::Update(update) => self.steps.push(Step::RangeUpdate(update.clone())),
        }
    }

    /// Adds the messages of one level, in MSN order: `points` newest first, `ranges` oldest first.
    pub(crate) fn add_level(
        &mut self,
        points: impl IntoIterator<Item = (Msn, Op)>,
        ranges: &[(Msn, RangeOp)],
    ) {
        let mut ranges = ranges.iter().rev().peekable();
        for (msn, op) in points {
            while let Some((_, range)) = ranges.next_if(|(r, _)| *r > msn) {
                self.add_range(range);
            }
            self.add_point(op);
            if self.is_done() {
                return;
            }
        }
        for (_, range) in ranges {
            self.add_range(range);
        }
    }

    /// The value, `None` if the key has none.
    pub(crate) fn value(mut self, merge: &MergeFunctions, reader: &dyn ValueReader) -> Result<Option<Value>> {
        let mut value = self.base.take().flatten();
        // Applied together, so that a run of patches copies the value once, if at all.
        let mut patches: Vec<Patch> = Vec::new();
        for step in self.steps.into_iter().rev() {
            let (update, absent) = match step {
                Step::Patch(offset, bytes) => {
                    patches.push((offset, bytes));
                    continue;
                }
                Step::Update(update) => (update, true),
                Step::RangeUpdate(update) => (update, false),
            };
            value = with_patches(value, &mut patches, reader)?;
            if value.is_some() || absent {
                let old = value.map(|value| load(&value, reader)).transpose()?;
                value = merge.apply(&update, old.as_deref())?.map(Value::from);
            }
        }
        with_patches(value, &mut patches, reader)
    }

    /// Fills the bytes `at` of `out` from byte `offset` of the value, as far as it reaches; returns
    /// its length. What lies on the device is only noted in `left`.
    pub(crate) fn slice(
        mut self,
        merge: &MergeFunctions,
        reader: &dyn ValueReader,
        offset: usize,
        at: Range<usize>,
        out: &mut [u8],
        left: &mut Unfinished,
    ) -> Result<Option<usize>> {
        if let Some(value) = self.unchanged_value() {
            let end = at.start + value.len().saturating_sub(offset).min(at.len());
            gather(value, offset, at.start..end, out, &mut left.wanted)?;
            out[end..at.end].fill(0);
            return Ok(Some(value.len()));
        }
        let only_patches = self.steps.iter().all(|s| matches!(s, Step::Patch(..)));
        if !only_patches {
            let Some(value) = self.value(merge, reader)? else { return Ok(None) };
            let end = at.end.min(at.start + value.len().saturating_sub(offset));
            gather(&value, offset, at.start..end, out, &mut left.wanted)?;
            return Ok(Some(value.len()));
        }
        let base = self.base.take().flatten();
        if base.is_none() && self.steps.is_empty() {
            return Ok(None);
        }
        let window = offset..offset + at.len();
        let mut target =
            Target { missing: Vec::with_capacity(4), laid: Vec::new(), window, start: at.start, out, left };
        target.missing.push(target.window.clone());
        let mut len = base.as_ref().map_or(0, Value::len);
        for step in &self.steps {
            let Step::Patch(at, bytes) = step else { unreachable!("only patches") };
            let at = *at as usize;
            len = len.max(at + bytes.len());
            match bytes.in_memory().filter(|_| bytes.segments().is_empty()) {
                Some(bytes) => target.overlay(at, &bytes),
                None => target.take(at, bytes)?,
            }
        }
        if let Some(base) = &base {
            target.drop_covered_pages(base.len());
            target.take(0, base)?;
        }
        target.fill_holes();
        Ok(Some(len))
    }
}

/// `value` with `patches` (oldest first), which are taken.
fn with_patches(
    value: Option<Value>,
    patches: &mut Vec<Patch>,
    reader: &dyn ValueReader,
) -> Result<Option<Value>> {
    if patches.is_empty() {
        return Ok(value);
    }
    patched(value.as_ref(), &std::mem::take(patches), reader).map(Some)
}

/// A stretch of a value that is put together in a buffer.
struct Target<'a> {
    /// What is still missing, as bytes of the value.
    missing: Vec<Range<usize>>,
    /// The part of it over which something newer will be laid.
    laid: Vec<Range<usize>>,
    /// The bytes of the value that are wanted, and where in `out` they go.
    window: Range<usize>,
    start: usize,
    out: &'a mut [u8],
    left: &'a mut Unfinished,
}

impl Target<'_> {
    /// Takes what `value`, which begins at byte `at`, has of what is missing.
    fn take(&mut self, at: usize, value: &Value) -> Result<()> {
        for part in self.remove(&(at..at + value.len())) {
            let range = self.range(&part);
            gather(value, part.start - at, range, self.out, &mut self.left.wanted)?;
        }
        Ok(())
    }

    /// Lays `bytes`, less than a page, over what is missing, which stays missing.
    fn overlay(&mut self, at: usize, bytes: &Bytes) {
        for hole in &self.missing {
            let (from, to) = (hole.start.max(at), hole.end.min(at + bytes.len()));
            if from < to {
                self.left.overlays.push((self.range(&(from..to)), bytes.slice(from - at..to - at)));
                self.laid.push(from..to);
            }
        }
    }

    /// Pages of a value of `len` bytes that will be covered as far as they are wanted need not be
    /// read.
    fn drop_covered_pages(&mut self, len: usize) {
        let end = self.window.end.min(len);
        let mut laid = std::mem::take(&mut self.laid);
        laid.sort_by_key(|range| range.start);
        let mut laid = laid.into_iter().peekable();
        while let Some(mut covered) = laid.next() {
            while let Some(next) = laid.next_if(|next| next.start <= covered.end) {
                covered.end = covered.end.max(next.end);
            }
            if covered.start > self.window.start {
                covered.start = covered.start.next_multiple_of(VALUE_PAGE);
            }
            if covered.end < end {
                covered.end -= covered.end % VALUE_PAGE;
            }
            self.remove(&covered);
        }
    }

    /// Takes what is in `range` off what is missing, and returns it.
    fn remove(&mut self, range: &Range<usize>) -> Vec<Range<usize>> {
        if self.missing.iter().all(|hole| range.end <= hole.start || hole.end <= range.start) {
            return Vec::new();
        }
        let (mut left, mut found) = (Vec::with_capacity(self.missing.len() + 1), Vec::new());
        for hole in std::mem::take(&mut self.missing) {
            let (from, to) = (hole.start.max(range.start), hole.end.min(range.end));
            if from >= to {
                left.push(hole);
                continue;
            }
            found.push(from..to);
            left.extend([hole.start..from, to..hole.end].into_iter().filter(|rest| !rest.is_empty()));
        }
        self.missing = left;
        found
    }

    /// Bytes that no message has are zeros.
    fn fill_holes(mut self) {
        for hole in std::mem::take(&mut self.missing) {
            let range = self.range(&hole);
            self.out[range].fill(0);
        }
    }

    /// Where bytes of the value go.
    fn range(&self, bytes: &Range<usize>) -> Range<usize> {
        self.start + bytes.start - self.window.start..self.start + bytes.end - self.window.start
    }
}
