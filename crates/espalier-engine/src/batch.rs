//! Batches: operations that take effect together.

use crate::key::KeyRange;
use crate::log::LoggedOp;
use crate::op::{Op, RangeOp, Update};
use crate::types::IndexId;
use crate::value::{LargeValue, Value};
use bytes::Bytes;
use std::sync::Arc;

/// So many range deletes at a time are carried out at once.
pub(crate) const FEW_DELETES: usize = 16;

/// Operations on any number of indexes that become visible and durable together, in order.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    pub(crate) ops: Vec<LoggedOp>,
    pub(crate) bytes: usize,
    /// Clones in it.
    pub(crate) clones: u64,
    /// Those of them whose source stays.
    pub(crate) copies: u64,
    /// It moves a range into itself or over itself.
    pub(crate) nested: bool,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives `key` the value `value`.
    pub fn insert(&mut self, index: IndexId, key: &[u8], value: impl Into<Value>) {
        self.point(index, key, Op::Insert(value.into()));
    }

    /// Takes the value of `key` away.
    pub fn delete(&mut self, index: IndexId, key: &[u8]) {
        self.point(index, key, Op::Delete);
    }

    /// Replaces bytes of the value of `key` from byte `offset`, without reading it.
    pub fn patch(&mut self, index: IndexId, key: &[u8], offset: u32, bytes: impl Into<Bytes>) {
        self.point(index, key, Op::Patch { offset, bytes: Value::from(bytes.into()) });
    }

    /// Applies the merge function `function` to the value of `key`, without reading it.
    pub fn update(&mut self, index: IndexId, key: &[u8], function: u16, argument: impl Into<Bytes>) {
        self.point(index, key, Op::Update(Update { function, argument: argument.into() }));
    }

    /// Takes the values of all keys in `range` away.
    pub fn delete_range(&mut self, index: IndexId, range: KeyRange) {
        self.range(index, range, RangeOp::Delete);
    }

    /// Applies the merge function `function` to every value in `range`.
    pub fn update_range(
        &mut self,
        index: IndexId,
        range: KeyRange,
        function: u16,
        argument: impl Into<Bytes>,
    ) {
        self.range(index, range, RangeOp::Update(Update { function, argument: argument.into() }));
    }

    /// Makes what begins with the prefix `source` appear below the prefix `destination`, instead of
    /// what was there, at the cost of one message: each key `source ++ x`, as it is after the operations
    /// before this one, gives the key `destination ++ x` its value. From then on the two are independent.
    /// Either prefix may begin with the other.
    ///
    /// The keys that arise should be no longer than [`MAX_KEY`](crate::MAX_KEY), which nobody checks.
    pub fn clone_range(&mut self, index: IndexId, source: &[u8], destination: &[u8]) {
        self.copies += 1;
        self.redirect(index, source, destination);
    }

    fn redirect(&mut self, index: IndexId, source: &[u8], destination: &[u8]) {
        self.bytes += source.len() + destination.len() + 16;
        self.clones += 1;
        self.ops.push(LoggedOp::Clone { index, source: source.into(), destination: destination.into() });
    }

    /// [`Batch::clone_range`], after which nothing begins with `source` any more. If one of the
    /// prefixes begins with the other the commit fails.
    pub fn move_range(&mut self, index: IndexId, source: &[u8], destination: &[u8]) {
        self.nested |= source.starts_with(destination) || destination.starts_with(source);
        self.redirect(index, source, destination);
        self.delete_range(index, KeyRange::prefix(source));
    }

    /// Adds the operations of another batch, to be carried out after those before.
    pub fn append(&mut self, other: Batch) {
        let Batch { ops, bytes, clones, copies, nested } = other;
        self.ops.extend(ops);
        self.bytes += bytes;
        self.clones += clones;
        self.copies += copies;
        self.nested |= nested;
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// True if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Bytes of keys and values carried.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The large values that it brings, in order.
    pub(crate) fn large_values(&self) -> Vec<Arc<LargeValue>> {
        self.ops.iter().flat_map(LoggedOp::large_values).cloned().collect()
    }

    /// The indexes in which it deletes ranges.
    pub(crate) fn clears(&self) -> impl Iterator<Item = IndexId> {
        self.ops.iter().filter_map(|op| match op {
            LoggedOp::Range { index, op: RangeOp::Delete, .. } => Some(*index),
            _ => None,
        })
    }

    /// The ranges that it deletes, if it does nothing else and they are so few that this is carried out at once.
    pub(crate) fn cleared(&self) -> Option<Vec<(IndexId, &KeyRange)>> {
        let ranges = self.ops.iter().map(|op| match op {
            LoggedOp::Range { index, range, op: RangeOp::Delete } => Some((*index, range)),
            _ => None,
        });
        if self.ops.len() <= FEW_DELETES { ranges.collect() } else { None }
    }

    fn point(&mut self, index: IndexId, key: &[u8], op: Op) {
        self.bytes += key.len() + carried_bytes(&op) + 16;
        self.ops.push(LoggedOp::Point { index, key: key.into(), op });
    }

    /// An empty range, which may be an inverted one, concerns no key and is left out.
    fn range(&mut self, index: IndexId, range: KeyRange, op: RangeOp) {
        if range.is_empty() {
            return;
        }
        self.bytes += range.start.len()
            + range.end.as_ref().map_or(0, |e| e.len())
            + crate::ranges::range_op_bytes(&op)
            + 16;
        self.ops.push(LoggedOp::Range { index, range, op });
    }
}

/// Bytes that an operation brings into the store: a value that is stored already comes as a reference.
fn carried_bytes(op: &Op) -> usize {
    match op {
        Op::Insert(value) | Op::Patch { bytes: value, .. } => value.reference_bytes().unwrap_or(value.len()),
        _ => op_bytes(op),
    }
}

/// Bytes that an operation carries.
pub(crate) fn op_bytes(op: &Op) -> usize {
    match op {
        Op::Insert(value) | Op::Patch { bytes: value, .. } => value.len(),
        Op::Delete => 0,
        Op::Update(update) => update.argument.len(),
    }
}
