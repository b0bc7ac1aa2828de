//! Reading values that lie on the device, whole or in part.

use crate::model::value::{MAX_VALUE, Value, ValueRef};
use crate::{Error, Result};
use bytes::Bytes;
use std::ops::Range;

/// Reads values that lie on the device.
pub(crate) trait ValueReader {
    /// Fills `out` from byte `offset` of the value.
    fn read_value(&self, at: &ValueRef, offset: usize, out: &mut [u8]) -> Result<()>;

    /// Fills the ranges of `out` that `wanted` names.
    fn read_values(&self, wanted: &[Wanted], out: &mut [u8]) -> Result<()> {
        wanted.iter().try_for_each(|w| self.read_value(&w.place, w.offset, &mut out[w.out.clone()]))
    }

    /// Fills those ranges of `out` whose values are in memory, and takes them out of `wanted`.
    fn take_kept(&self, _wanted: &mut Vec<Wanted>, _out: &mut [u8]) {}

    /// Keeps in memory those of `wanted` that are whole values and have come to their ranges of
    /// `out`, as long as there is room.
    fn keep(&self, _wanted: &[Wanted], _out: &[u8]) {}

    /// All bytes of the value, which may stay in memory for the next caller.
    fn read_whole(&self, at: &ValueRef) -> Result<Bytes> {
        let mut bytes = vec![0; at.len as usize];
        self.read_value(at, 0, &mut bytes)?;
        Ok(bytes.into())
    }
}

/// What becomes of large values that are read whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retention {
    /// The reader has a cache of its own.
    Pass,
    /// They stay in memory, as long as there is room: they may be read again.
    Keep,
}

/// Bytes of a stored value that have still to be read, and where in a buffer they go.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Where the value lies.
    pub(crate) place: ValueRef,
    /// The first byte of it that is wanted.
    pub(crate) offset: usize,
    /// Which bytes of the buffer they become.
    pub(crate) out: Range<usize>,
}

/// Fills the bytes `at` of `out` from byte `offset` of `value`, which has them all; what lies on
/// the device is only added to `wanted`.
pub(crate) fn gather(
    value: &Value,
    offset: usize,
    at: Range<usize>,
    out: &mut [u8],
    wanted: &mut Vec<Wanted>,
) -> Result<()> {
    let end = offset + at.len();
    // Then the offset may lie behind the end.
    if at.is_empty() {
        return Ok(());
    }
    if let Some(bytes) = value.in_memory() {
        out[at].copy_from_slice(&bytes[offset..end]);
        return Ok(());
    }
    let mut start = 0;
    for segment in value.segments() {
        let (from, to) = (offset.max(start), end.min(start + segment.len()));
        if from < to {
            let range = at.start + from - offset..at.start + to - offset;
            match (segment.bytes(), segment.place()) {
                (Some(bytes), _) => out[range].copy_from_slice(&bytes[from - start..to - start]),
                (None, Some(place)) => wanted.push(Wanted { place, offset: from - start, out: range }),
                // The bytes are given up only after the place is set, so the later look finds it.
                (None, None) => return Err(nowhere()),
            }
        }
        start += segment.len();
    }
    Ok(())
}

fn nowhere() -> Error {
    Error::damaged("a value is neither in memory nor on the device")
}

/// Fills `out` from byte `offset` of `value` as far as it reaches.
pub(crate) fn read_slice(
    value: &Value,
    reader: &dyn ValueReader,
    offset: usize,
    out: &mut [u8],
) -> Result<()> {
    let inside = value.len().saturating_sub(offset).min(out.len());
    let mut wanted = Vec::new();
    gather(value, offset, 0..inside, out, &mut wanted)?;
    reader.read_values(&wanted, out)
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

/// The same for a caller that may soon want it again: what is read stays in memory.
pub(crate) fn load_and_keep(value: &Value, reader: &dyn ValueReader) -> Result<Bytes> {
    if let [segment] = value.segments()
        && segment.bytes().is_none()
        && let Some(place) = segment.place()
        && place.len as usize <= MAX_VALUE
    {
        return reader.read_whole(&place);
    }
    load(value, reader)
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
