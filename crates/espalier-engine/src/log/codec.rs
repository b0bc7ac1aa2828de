//! Log records: the operations of a batch as bytes and back (docs/format.md, "Log").
//!
//! Numbers are LEB128 varints; a key is stored as its difference from the key before it in the
//! group. Decoding allocates at most what its input and the caller's limit allow.

use super::LoggedOp;
use super::format::{GroupBuilder, bounded, malformed};
use crate::model::ids::Location;
use crate::model::key::common_prefix_len;
use crate::model::piece::PieceHandle;
use crate::model::value::ValueRef;
use crate::{
    Error, ErrorKind, Extent, IndexId, Key, KeyRange, MAX_VALUE, Op, PieceId, PieceKind, RangeOp, Result,
    Update, VALUE_PAGE, Value,
};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

// Low four bits of a record's first byte; 11 is kept for move, which is logged as a clone and a
// delete.
const SUPERSEDED: u8 = 0;
const INSERT: u8 = 1;
const INSERT_REF: u8 = 2;
const DELETE: u8 = 3;
const PATCH: u8 = 4;
const UPDATE: u8 = 5;
const PATCH_REF: u8 = 6;
const INSERT_REFS: u8 = 7;
const RANGE_DELETE: u8 = 8;
const RANGE_UPDATE: u8 = 9;
const CLONE: u8 = 10;
/// The record names its index; without this flag it is that of the record before.
const NAMES_INDEX: u8 = 0x80;

// How the end of a range is given.
const END_OPEN: u64 = 0;
const END_SUCCESSOR: u64 = 1;
const END_KEY: u64 = 2;

/// Upper bound of the bytes that one record adds to its key and value: tag, index, lengths, MSN.
pub(super) const RECORD_OVERHEAD_BYTES: u64 = 48;
/// Upper bound of what a reference adds to that: its entry in the part table, place and checksums,
/// as far as they exceed the bytes that are not written in return.
const REFERENCE_OVERHEAD_BYTES: u64 = 64;

/// Where the payload goes: a group, or a counter.
pub(super) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for GroupBuilder {
    fn put(&mut self, bytes: &[u8]) {
        GroupBuilder::put(self, bytes);
    }
}

#[cfg(test)]
impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

pub(super) fn put_varint(out: &mut impl Sink, mut n: u64) {
    let mut bytes = [0; 10];
    let mut len = 0;
    loop {
        bytes[len] = (n as u8 & 0x7f) | if n < 0x80 { 0 } else { 0x80 };
        len += 1;
        n >>= 7;
        if n == 0 {
            return out.put(&bytes[..len]);
        }
    }
}

fn put_bytes(out: &mut impl Sink, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put(bytes);
}

/// How a large value goes into the log.
pub(super) enum Placed {
    /// Its bytes follow the record.
    Inline(Bytes),
    /// It lies in a value part of the group's table.
    Stored(ValueRef),
}

/// The value parts that a group names, in the order of first use.
#[derive(Default)]
pub(super) struct PartTable {
    pub(super) parts: Vec<(Arc<PieceHandle>, Location)>,
    numbers: HashMap<PieceId, u64>,
}

impl PartTable {
    pub(super) fn add(
        &mut self,
        part: &Arc<PieceHandle>,
        locate: impl FnOnce() -> Result<Location>,
    ) -> Result<()> {
        if !self.numbers.contains_key(&part.id()) {
            let location = locate()?;
            self.numbers.insert(part.id(), self.parts.len() as u64);
            self.parts.push((part.clone(), location));
        }
        Ok(())
    }

    pub(super) fn encode(&self, out: &mut impl Sink) {
        for (part, location) in &self.parts {
            put_varint(out, part.id().0);
            put_varint(out, location.extent.start);
            // No blocks: the place is that of a list.
            put_varint(out, if location.scattered { 0 } else { u64::from(location.extent.blocks) });
            put_varint(out, u64::from(location.len));
            out.put(&location.checksum.to_le_bytes());
        }
    }
}

/// Encodes the operations of a group, one after the other.
#[derive(Default)]
pub(super) struct GroupEncoder<'a> {
    index: Option<IndexId>,
    key: &'a [u8],
    superseded: u64,
}

impl<'a> GroupEncoder<'a> {
    /// An operation that need not be replayed; it only keeps its number.
    pub(super) fn superseded(&mut self) {
        self.superseded += 1;
    }

    /// Writes what is held back; due at the end of each batch.
    pub(super) fn end_batch(&mut self, out: &mut impl Sink) {
        if self.superseded > 0 {
            out.put(&[SUPERSEDED]);
            put_varint(out, self.superseded);
            self.superseded = 0;
        }
    }

    /// Encodes one operation; `placed` says of each of its large values how it goes into the log.
    pub(super) fn op(
        &mut self,
        op: &'a LoggedOp,
        placed: &[Placed],
        parts: &PartTable,
        out: &mut impl Sink,
    ) -> Result<()> {
        if !matches!(op, LoggedOp::Superseded) {
            self.end_batch(out);
        }
        match op {
            LoggedOp::Superseded => self.superseded(),
            LoggedOp::Point { index, key, op } => {
                let kind = match (op, placed) {
                    (Op::Insert(_), [Placed::Stored(_)]) => INSERT_REF,
                    (Op::Insert(_), [_, _, ..]) => INSERT_REFS,
                    (Op::Insert(_), _) => INSERT,
                    (Op::Delete, _) => DELETE,
                    (Op::Patch { .. }, [Placed::Stored(_)]) => PATCH_REF,
                    (Op::Patch { .. }, _) => PATCH,
                    (Op::Update(_), _) => UPDATE,
                };
                self.start(kind, *index, key, out);
                encode_op(op, placed, parts, out)?;
            }
            LoggedOp::Range { index, range, op } => {
                let kind = match op {
                    RangeOp::Delete => RANGE_DELETE,
                    RangeOp::Update(_) => RANGE_UPDATE,
                };
                self.start(kind, *index, &range.start, out);
                encode_end(range, out);
                if let RangeOp::Update(update) = op {
                    encode_update(update, out);
                }
            }
            LoggedOp::Clone { index, source, destination } => {
                self.start(CLONE, *index, source, out);
                encode_key(source, destination, out);
            }
        }
        Ok(())
    }

    fn start(&mut self, kind: u8, index: IndexId, key: &'a [u8], out: &mut impl Sink) {
        if self.index == Some(index) {
            out.put(&[kind]);
        } else {
            out.put(&[kind | NAMES_INDEX]);
            put_varint(out, u64::from(index.volume));
            out.put(&[index.index]);
            self.index = Some(index);
        }
        encode_key(self.key, key, out);
        self.key = key;
    }
}

fn encode_key(before: &[u8], key: &[u8], out: &mut impl Sink) {
    let shared = common_prefix_len(before, key);
    put_varint(out, shared as u64);
    put_bytes(out, &key[shared..]);
}

fn encode_end(range: &KeyRange, out: &mut impl Sink) {
    match &range.end {
        None => put_varint(out, END_OPEN),
        Some(end) if crate::model::key::successor(&range.start).as_deref() == Some(end) => {
            put_varint(out, END_SUCCESSOR);
        }
        Some(end) => {
            put_varint(out, END_KEY);
            encode_key(&range.start, end, out);
        }
    }
}

fn encode_update(update: &Update, out: &mut impl Sink) {
    put_varint(out, u64::from(update.function));
    put_bytes(out, &update.argument);
}

fn encode_op(op: &Op, placed: &[Placed], parts: &PartTable, out: &mut impl Sink) -> Result<()> {
    match op {
        Op::Insert(value) => {
            if placed.len() > 1 {
                put_varint(out, placed.len() as u64);
            }
            encode_value(value, placed, parts, out)
        }
        Op::Delete => Ok(()),
        Op::Patch { offset, bytes } => {
            put_varint(out, u64::from(*offset));
            encode_value(bytes, placed, parts, out)
        }
        Op::Update(update) => {
            encode_update(update, out);
            Ok(())
        }
    }
}

fn encode_value(value: &Value, placed: &[Placed], parts: &PartTable, out: &mut impl Sink) -> Result<()> {
    match placed {
        [] => put_bytes(out, &value.in_memory().ok_or_else(|| unprepared("a value without bytes"))?),
        [Placed::Inline(bytes)] => put_bytes(out, bytes),
        segments => {
            for segment in segments {
                let Placed::Stored(place) = segment else {
                    return Err(unprepared("a composed value that is not stored"));
                };
                encode_reference(place, parts, out)?;
            }
        }
    }
    Ok(())
}

fn encode_reference(place: &ValueRef, parts: &PartTable, out: &mut impl Sink) -> Result<()> {
    let number = parts.numbers.get(&place.part.id());
    put_varint(out, *number.ok_or_else(|| unprepared("a value part without a place"))?);
    put_varint(out, u64::from(place.offset));
    put_varint(out, u64::from(place.len));
    for sum in place.sums.iter() {
        out.put(&sum.to_le_bytes());
    }
    Ok(())
}

fn unprepared(what: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("the log was given {what}; this is a bug"))
}

/// Upper bound of a value's bytes: inline, or as the references that stored ones always are.
fn value_bound(value: &Value) -> u64 {
    match value.segments() {
        [] => value.len() as u64,
        [one] if !one.is_stored() => REFERENCE_OVERHEAD_BYTES + one.len() as u64,
        segments => segments
            .iter()
            .map(|segment| REFERENCE_OVERHEAD_BYTES + 8 * segment.len().div_ceil(VALUE_PAGE) as u64)
            .sum(),
    }
}

/// Upper bound of an operation's bytes in the log, table entry included.
pub(super) fn op_bound(op: &LoggedOp) -> u64 {
    RECORD_OVERHEAD_BYTES
        + match op {
            LoggedOp::Superseded => 0,
            LoggedOp::Point { key, op, .. } => {
                key.len() as u64
                    + match op {
                        Op::Insert(value) | Op::Patch { bytes: value, .. } => value_bound(value),
                        Op::Delete => 0,
                        Op::Update(update) => update.argument.len() as u64,
                    }
            }
            LoggedOp::Range { range, op, .. } => {
                let end = range.end.as_ref().map_or(0, |end| end.len());
                let argument = match op {
                    RangeOp::Delete => 0,
                    RangeOp::Update(update) => update.argument.len(),
                };
                (range.start.len() + end + argument) as u64
            }
            LoggedOp::Clone { source, destination, .. } => (source.len() + destination.len()) as u64,
        }
}

/// Reads bytes in order; every method fails cleanly at the end.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, n: usize, what: &str) -> Result<&'a [u8]> {
        match self.0.split_at_checked(n) {
            Some((taken, rest)) => {
                self.0 = rest;
                Ok(taken)
            }
            None => Err(malformed(&format!("{what} cut short"))),
        }
    }

    fn byte(&mut self, what: &str) -> Result<u8> {
        Ok(self.take(1, what)?[0])
    }

    pub(super) fn varint(&mut self, what: &str) -> Result<u64> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            n |= bits << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err(malformed(&format!("{what} that is no number")))
    }

    fn narrow<T: TryFrom<u64>>(&mut self, what: &str) -> Result<T> {
        let n = self.varint(what)?;
        T::try_from(n).map_err(|_| malformed(&format!("{what} {n}, which is too large")))
    }

    fn bytes(&mut self, limit: usize, what: &str) -> Result<&'a [u8]> {
        let len = self.varint(what)?;
        let len = bounded(len, limit.min(self.0.len()), what)?;
        self.take(len, what)
    }
}

/// Reads a group's table of `count` value parts.
pub(super) fn decode_parts(reader: &mut Reader<'_>, count: u32) -> Result<Vec<(PieceId, Location)>> {
    // An entry has at least 12 bytes, so what is allocated is bounded by the input.
    if count as usize > reader.0.len() / 12 {
        return Err(malformed("a table of value parts longer than its group"));
    }
    let mut parts = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let id = PieceId(reader.varint("a part number")?);
        let start = reader.varint("a part's place")?;
        let blocks: u32 = reader.narrow("a part's size")?;
        let len = reader.narrow("a part's length")?;
        let mut checksum = [0; 8];
        checksum.copy_from_slice(reader.take(8, "a part's checksum")?);
        let scattered = blocks == 0;
        let extent = Extent { start, blocks: blocks.max(1) };
        let room = u64::from(blocks) * espalier_storage::BLOCK as u64;
        // What the node translation table keeps is the length alone.
        let fits = scattered || u64::from(len).next_multiple_of(espalier_storage::BLOCK as u64) == room;
        let sane = id.0 != 0 && start.checked_add(u64::from(extent.blocks)).is_some() && fits;
        if !sane {
            return Err(malformed("a value part with an impossible place"));
        }
        parts.push((
            id,
            Location {
                extent,
                len,
                checksum: u64::from_le_bytes(checksum),
                kind: PieceKind::Values,
                scattered,
            },
        ));
    }
    Ok(parts)
}

/// Where a decoded value lies: entry of the group's part table, and the rest of a [`ValueRef`].
pub(super) struct Reference {
    pub(super) part: usize,
    pub(super) offset: u32,
    pub(super) len: u32,
    pub(super) sums: Arc<[u32]>,
}

/// Turns the references of a group into values; the two passes of recovery differ in this.
pub(super) trait Resolve {
    fn resolve(&mut self, reference: Reference) -> Result<Value>;
}

/// Decodes the operations of a group, batch after batch.
pub(super) struct GroupDecoder<'a> {
    reader: Reader<'a>,
    parts: &'a [(PieceId, Location)],
    index: Option<IndexId>,
    key: Vec<u8>,
    /// Bytes of keys that the batch may still expand to, beyond what its input has.
    budget: u64,
    limit: u64,
}

impl<'a> GroupDecoder<'a> {
    /// `limit` bounds the bytes that the operations of one batch take in memory.
    pub(super) fn new(reader: Reader<'a>, parts: &'a [(PieceId, Location)], limit: u64) -> Self {
        Self { reader, parts, index: None, key: Vec::new(), budget: 0, limit }
    }

    /// True if nothing is left.
    pub(super) fn is_empty(&self) -> bool {
        self.reader.0.is_empty()
    }

    /// The next batch: what its first MSN adds to the expected one, and its operations.
    pub(super) fn batch(&mut self, resolve: &mut dyn Resolve) -> Result<(u64, Vec<LoggedOp>)> {
        let skip = self.reader.varint("a batch's number")?;
        let count = self.reader.varint("a batch's size")?;
        self.budget = self.limit;
        let mut ops = Vec::new();
        while (ops.len() as u64) < count {
            self.record(count, &mut ops, resolve)?;
        }
        Ok((skip, ops))
    }

    fn spend(&mut self, bytes: u64) -> Result<()> {
        let left = self.budget.checked_sub(bytes);
        self.budget = left.ok_or_else(|| malformed("a batch larger than the log accepts"))?;
        Ok(())
    }

    fn record(&mut self, count: u64, ops: &mut Vec<LoggedOp>, resolve: &mut dyn Resolve) -> Result<()> {
        let tag = self.reader.byte("a record")?;
        if tag == SUPERSEDED {
            let run = self.reader.varint("a run of superseded records")?;
            if run == 0 || run > count - ops.len() as u64 {
                return Err(malformed("a run of superseded records of the wrong length"));
            }
            self.spend(run.saturating_mul(RECORD_OVERHEAD_BYTES))?;
            ops.extend((0..run).map(|_| LoggedOp::Superseded));
            return Ok(());
        }
        self.spend(RECORD_OVERHEAD_BYTES)?;
        if tag & NAMES_INDEX != 0 {
            let volume = self.reader.narrow("a volume number")?;
            self.index = Some(IndexId { volume, index: self.reader.byte("an index number")? });
        }
        let Some(index) = self.index else { return Err(malformed("a record without an index")) };
        let key = self.key()?;
        ops.push(match tag & !NAMES_INDEX {
            RANGE_DELETE => LoggedOp::Range { index, range: self.range(key)?, op: RangeOp::Delete },
            RANGE_UPDATE => {
                let range = self.range(key)?;
                LoggedOp::Range { index, range, op: RangeOp::Update(self.update()?) }
            }
            CLONE => {
                let destination = self.key_behind(&key)?;
                LoggedOp::Clone { index, source: key, destination }
            }
            kind => LoggedOp::Point { index, key, op: self.point(kind, resolve)? },
        });
        Ok(())
    }

    fn point(&mut self, kind: u8, resolve: &mut dyn Resolve) -> Result<Op> {
        Ok(match kind {
            INSERT => Op::Insert(Bytes::copy_from_slice(self.reader.bytes(MAX_VALUE, "a value")?).into()),
            INSERT_REF => Op::Insert(resolve.resolve(self.reference()?)?),
            DELETE => Op::Delete,
            INSERT_REFS => Op::Insert(self.composed(resolve)?),
            PATCH | PATCH_REF => {
                let offset: u32 = self.reader.narrow("a patch's offset")?;
                let bytes = match kind {
                    PATCH => Bytes::copy_from_slice(self.reader.bytes(MAX_VALUE, "a patch")?).into(),
                    _ => resolve.resolve(self.reference()?)?,
                };
                if offset as usize + bytes.len() > MAX_VALUE {
                    return Err(malformed("a patch behind the end of every value"));
                }
                Op::Patch { offset, bytes }
            }
            UPDATE => Op::Update(self.update()?),
            other => return Err(malformed(&format!("a record of unknown kind {other}"))),
        })
    }

    /// A value of several segments.
    fn composed(&mut self, resolve: &mut dyn Resolve) -> Result<Value> {
        let count = self.reader.varint("a number of segments")?;
        let count = bounded(count, MAX_VALUE / VALUE_PAGE, "segments")?;
        let (mut segments, mut len) = (Vec::new(), 0);
        for _ in 0..count {
            let reference = self.reference()?;
            if !(len as usize).is_multiple_of(VALUE_PAGE) {
                return Err(malformed("a value with segments that are no whole pages"));
            }
            len += reference.len;
            segments.extend(resolve.resolve(reference)?.segments().first().cloned());
        }
        if count < 2 || len as usize > MAX_VALUE {
            return Err(malformed("a value of impossible segments"));
        }
        Ok(Value::composed(segments))
    }

    fn reference(&mut self) -> Result<Reference> {
        let part: usize = self.reader.narrow("a part's place in its table")?;
        let offset: u32 = self.reader.narrow("a value's offset")?;
        let len: u32 = self.reader.narrow("a value's length")?;
        let Some((_, location)) = self.parts.get(part) else {
            return Err(malformed("a value in a part that its group does not name"));
        };
        if len == 0 {
            return Err(malformed("an empty value in a part"));
        }
        if len as usize > MAX_VALUE || u64::from(offset) + u64::from(len) > u64::from(location.len) {
            return Err(malformed("a value that is longer than its part"));
        }
        let sums = self.reader.take((len as usize).div_ceil(VALUE_PAGE) * 4, "a value's checksums")?;
        let sums = sums.chunks_exact(4).map(|s| u32::from_le_bytes([s[0], s[1], s[2], s[3]])).collect();
        Ok(Reference { part, offset, len, sums })
    }

    fn key(&mut self) -> Result<Key> {
        let shared = self.reader.varint("a key")?;
        let shared = bounded(shared, self.key.len(), "a shared prefix")?;
        let suffix = self.reader.bytes(usize::MAX, "a key")?;
        self.spend((shared + suffix.len()) as u64)?;
        self.key.truncate(shared);
        self.key.extend_from_slice(suffix);
        Ok(self.key.as_slice().into())
    }

    /// A key that is coded against `before`.
    fn key_behind(&mut self, before: &[u8]) -> Result<Key> {
        let shared = self.reader.varint("a key")?;
        let shared = bounded(shared, before.len(), "a shared prefix")?;
        let suffix = self.reader.bytes(usize::MAX, "a key")?;
        self.spend((shared + suffix.len()) as u64)?;
        Ok([&before[..shared], suffix].concat().into())
    }

    fn range(&mut self, start: Key) -> Result<KeyRange> {
        let end = match self.reader.varint("a range's end")? {
            END_OPEN => None,
            END_SUCCESSOR => {
                let end = crate::model::key::successor(&start);
                let end = end.ok_or_else(|| malformed("a range that ends behind every key"))?;
                self.spend(end.len() as u64)?;
                Some(end)
            }
            END_KEY => Some(self.key_behind(&start)?),
            other => return Err(malformed(&format!("a range with an end of unknown kind {other}"))),
        };
        Ok(KeyRange { start, end })
    }

    fn update(&mut self) -> Result<Update> {
        let function = self.reader.narrow("a merge function's number")?;
        let argument = Bytes::copy_from_slice(self.reader.bytes(usize::MAX, "an argument")?);
        Ok(Update { function, argument })
    }
}
