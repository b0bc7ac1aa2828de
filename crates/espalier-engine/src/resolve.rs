//! From the messages for one key to its value.
//!
//! Messages are added newest first, until one is *terminal*: its outcome does not depend on what is
//! older. Then they are applied oldest first. Patches alone never need the whole value: a slice of a
//! large value costs only its own pages, each of them read once, from what covers it last.

use crate::compose::{Patch, patched};
use crate::op::{MergeFunctions, Op, RangeOp, Update};
use crate::types::Msn;
use crate::value::{LargeValue, MAX_VALUE, Value, ValueRef};
use crate::{Error, Result};
use bytes::Bytes;
use std::ops::Range;

/// Reads values that lie on the device.
pub(crate) trait ValueReader {
    /// Fills `out` from byte `offset` of the value.
    fn read_value(&self, at: &ValueRef, offset: usize, out: &mut [u8]) -> Result<()>;
}

impl ValueReader for crate::pieces::Pieces {
    fn read_value(&self, at: &ValueRef, offset: usize, out: &mut [u8]) -> Result<()> {
        self.read_value(at, offset, out)
    }
}

/// The messages found for one key so far, newest first.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// What is to be done to the base, newest first.
    steps: Vec<Step>,
    /// The value before all steps, once known.
    base: Option<Option<Value>>,
}

#[derive(Debug)]
enum Step {
    Patch(u32, Value),
    Update(Update),
    /// Applies only if there is a value.
    RangeUpdate(Update),
}

impl Found {
    /// True once older messages cannot matter.
    pub(crate) fn is_done(&self) -> bool {
        self.base.is_some()
    }

    /// True if the value is a large one that messages change: it would have to be read and written anew.
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

    /// Fills `out` from byte `offset` of the value, as far as it reaches; returns its length.
    pub(crate) fn slice(
        mut self,
        merge: &MergeFunctions,
        reader: &dyn ValueReader,
        offset: usize,
        out: &mut [u8],
    ) -> Result<Option<usize>> {
        let only_patches = self.steps.iter().all(|s| matches!(s, Step::Patch(..)));
        if !only_patches {
            let Some(value) = self.value(merge, reader)? else { return Ok(None) };
            read_slice(&value, reader, offset, out)?;
            return Ok(Some(value.len()));
        }
        let base = self.base.take().flatten();
        if base.is_none() && self.steps.is_empty() {
            return Ok(None);
        }
        let mut len = base.as_ref().map_or(0, Value::len);
        let mut missing: Vec<Range<usize>> = Vec::with_capacity(4);
        missing.push(offset..offset + out.len());
        for step in &self.steps {
            let Step::Patch(at, bytes) = step else { unreachable!("only patches") };
            let at = *at as usize;
            len = len.max(at + bytes.len());
            take(&mut missing, at, bytes, reader, offset, out)?;
        }
        if let Some(base) = &base {
            take(&mut missing, 0, base, reader, offset, out)?;
        }
        missing.into_iter().for_each(|hole| out[hole.start - offset..hole.end - offset].fill(0));
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

/// Copies to `out`, which begins at `offset`, what `value`, which begins at `at`, has of the `missing`
/// ranges, and strikes it from them.
fn take(
    missing: &mut Vec<Range<usize>>,
    at: usize,
    value: &Value,
    reader: &dyn ValueReader,
    offset: usize,
    out: &mut [u8],
) -> Result<()> {
    let end = at + value.len();
    if missing.iter().all(|hole| end <= hole.start || hole.end <= at) {
        return Ok(());
    }
    let mut left = Vec::with_capacity(missing.len() + 1);
    for hole in missing.drain(..) {
        let (from, to) = (hole.start.max(at), hole.end.min(end));
        if from >= to {
            left.push(hole);
            continue;
        }
        read_slice(value, reader, from - at, &mut out[from - offset..to - offset])?;
        left.extend([hole.start..from, to..hole.end].into_iter().filter(|rest| !rest.is_empty()));
    }
    *missing = left;
    Ok(())
}

/// Fills `out` from byte `offset` of `value` as far as it reaches.
pub(crate) fn read_slice(
    value: &Value,
    reader: &dyn ValueReader,
    offset: usize,
    out: &mut [u8],
) -> Result<()> {
    let inside = value.len().saturating_sub(offset).min(out.len());
    if inside == 0 {
        return Ok(());
    }
    if let Some(bytes) = value.in_memory() {
        out[..inside].copy_from_slice(&bytes[offset..offset + inside]);
        return Ok(());
    }
    let mut start = 0;
    for segment in value.segments() {
        let end = start + segment.len();
        let (from, to) = (offset.max(start), (offset + inside).min(end));
        if from < to {
            read_segment(segment, reader, from - start, &mut out[from - offset..to - offset])?;
        }
        start = end;
    }
    Ok(())
}

fn read_segment(segment: &LargeValue, reader: &dyn ValueReader, offset: usize, out: &mut [u8]) -> Result<()> {
    if let Some(bytes) = segment.bytes() {
        out.copy_from_slice(&bytes[offset..offset + out.len()]);
        return Ok(());
    }
    match segment.place() {
        Some(place) => reader.read_value(&place, offset, out),
        // The bytes are given up only after the place is set, so one more look finds it.
        None => Err(Error::damaged("a value is neither in memory nor on the device")),
    }
}

/// All bytes of `value`.
pub(crate) fn load(value: &Value, reader: &dyn ValueReader) -> Result<Bytes> {
    if let Some(bytes) = value.in_memory() {
        return Ok(bytes);
    }
    if value.len() > MAX_VALUE {
        return Err(Error::damaged(format!("a value of {} bytes is longer than any can be", value.len())));
    }
    let mut bytes = vec![0; value.len()];
    read_slice(value, reader, 0, &mut bytes)?;
    Ok(bytes.into())
}

/// Refuses to read: for values that are in memory by construction.
#[cfg(test)]
pub(crate) struct NoReader;

#[cfg(test)]
impl ValueReader for NoReader {
    fn read_value(&self, at: &ValueRef, _: usize, _: &mut [u8]) -> Result<()> {
        Err(Error::damaged(format!("{at:?} was read")))
    }
}
