//! From the messages for one key to its value.
//!
//! Messages are added newest first, until one is *terminal*: its outcome does not depend on what is
//! older. Then they are applied oldest first. Patches alone never need the whole value, so that a
//! slice of a large value costs only its own pages.

use crate::op::{MergeFunctions, Op, RangeOp, Update};
use crate::types::Msn;
use crate::value::{MAX_VALUE, Value, ValueRef};
use crate::{Error, Result};
use bytes::Bytes;

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
    Patch(u32, Bytes),
    Update(Update),
    /// Applies only if there is a value.
    RangeUpdate(Update),
}

impl Found {
    /// True once older messages cannot matter.
    pub(crate) fn is_done(&self) -> bool {
        self.base.is_some()
    }

    /// True if the value is what one message inserted.
    pub(crate) fn is_plain(&self) -> bool {
        self.steps.is_empty()
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
        let mut steps = self.steps.into_iter().rev().peekable();
        if steps.peek().is_none() {
            return Ok(value);
        }
        // Applied to one buffer, so that a run of patches copies the value once.
        let mut bytes = value.take().map(|v| load_vec(&v, reader)).transpose()?;
        for step in steps {
            bytes = match step {
                Step::Patch(offset, patch) => Some(patched(bytes.unwrap_or_default(), offset, &patch)),
                Step::Update(update) => merge.apply(&update, bytes.as_deref())?,
                Step::RangeUpdate(update) => match bytes {
                    Some(old) => merge.apply(&update, Some(&old))?,
                    None => None,
                },
            };
        }
        Ok(bytes.map(Value::from))
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
        match &base {
            Some(value) => {
                let inside = len.saturating_sub(offset).min(out.len());
                if !self.hidden(offset, offset + inside) {
                    read_slice(value, reader, offset, &mut out[..inside])?;
                }
                out[inside..].fill(0);
            }
            None => out.fill(0),
        }
        for step in self.steps.iter().rev() {
            let Step::Patch(at, bytes) = step else { unreachable!("only patches") };
            let (at, end) = (*at as usize, *at as usize + bytes.len());
            len = len.max(end);
            let (from, to) = (at.max(offset), end.min(offset + out.len()));
            if from < to {
                out[from - offset..to - offset].copy_from_slice(&bytes[from - at..to - at]);
            }
        }
        Ok(Some(len))
    }

    /// True if one patch covers `[from, to)`, so that the base need not be read.
    fn hidden(&self, from: usize, to: usize) -> bool {
        from == to
            || self.steps.iter().any(|step| match step {
                Step::Patch(at, bytes) => *at as usize <= from && to <= *at as usize + bytes.len(),
                _ => false,
            })
    }
}

/// `old` with `patch` at `offset`, extended with zeros where needed.
pub(crate) fn patched(mut old: Vec<u8>, offset: u32, patch: &[u8]) -> Vec<u8> {
    let end = offset as usize + patch.len();
    if old.len() < end {
        old.resize(end, 0);
    }
    old[offset as usize..end].copy_from_slice(patch);
    old
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
    match value.large().and_then(|l| l.place()) {
        Some(place) => reader.read_value(&place, offset, &mut out[..inside]),
        // The bytes are given up only after the place is set, so one more look finds it.
        None => Err(Error::damaged("a value is neither in memory nor on the device")),
    }
}

/// All bytes of `value`.
pub(crate) fn load(value: &Value, reader: &dyn ValueReader) -> Result<Bytes> {
    match value.in_memory() {
        Some(bytes) => Ok(bytes),
        None => load_vec(value, reader).map(Bytes::from),
    }
}

fn load_vec(value: &Value, reader: &dyn ValueReader) -> Result<Vec<u8>> {
    if value.len() > MAX_VALUE {
        return Err(Error::damaged(format!("a value of {} bytes is longer than any can be", value.len())));
    }
    let mut bytes = vec![0; value.len()];
    read_slice(value, reader, 0, &mut bytes)?;
    Ok(bytes)
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
