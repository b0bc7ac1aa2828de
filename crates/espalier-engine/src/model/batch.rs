//! Batches: operations that take effect together.

use crate::model::ids::IndexId;
use crate::model::key::KeyRange;
use crate::model::logged_op::LoggedOp;
use crate::model::op::{Op, RangeOp, Update, range_op_bytes};
use crate::model::value::{LargeValue, Value};
use bytes::Bytes;
use espalier_storage::BLOCK;
use std::collections::BTreeMap;
use std::sync::Arc;

/// So many operations of a batch at most are looked at one by one, to find out what they take.
const FEW_OPERATIONS: usize = 16;

/// Some of the first 64 places of a batch. Others are left out, as what joins others is small.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Places(u64);

impl Places {
    fn add(&mut self, at: usize) {
        self.0 |= 1_u64.checked_shl(at as u32).unwrap_or(0);
    }

    /// Adds places that count from `first`.
    fn append(&mut self, other: Self, first: usize) {
        self.0 |= other.0.checked_shl(first as u32).unwrap_or(0);
    }

    pub(crate) fn contains(self, at: usize) -> bool {
        self.0.checked_shr(at as u32).is_some_and(|rest| rest & 1 == 1)
    }
}

/// What one operation of a batch concerns.
#[derive(Debug, Clone, Copy)]
pub enum Touch<'a> {
    /// One key.
    Key {
        /// The index.
        index: IndexId,
        /// The key.
        key: &'a [u8],
        /// What happens to it.
        op: &'a Op,
        /// The caller knew that it had no value ([`Batch::insert_new`]).
        is_new: bool,
    },
    /// Every key of a range.
    Range {
        /// The index.
        index: IndexId,
        /// The range.
        range: &'a KeyRange,
        /// What happens to each of its keys.
        op: &'a RangeOp,
    },
    /// What begins with `source` appears below `destination`, instead of what was there.
    Clone {
        /// The index.
        index: IndexId,
        /// A prefix.
        source: &'a [u8],
        /// A prefix.
        destination: &'a [u8],
    },
}

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
    /// Kept blocks that are no longer kept with it.
    pub(crate) drawn: u64,
    /// See [`Batch::promise`].
    pub(crate) is_promised: bool,
    /// The places of [`Batch::insert_new`].
    pub(crate) new: Places,
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

    /// [`Batch::insert`] for a key of which the caller knows that it has no value. If that is taken
    /// away again before any reader could see it, nothing remains of the two.
    pub fn insert_new(&mut self, index: IndexId, key: &[u8], value: impl Into<Value>) {
        self.new.add(self.ops.len());
        self.insert(index, key, value);
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
    /// what was there, at the cost of one message: each key `source ++ x`, as it is after the
    /// operations before this one, gives the key `destination ++ x` its value. From then on the two
    /// are independent. Either prefix may begin with the other.
    ///
    /// The keys that arise should be no longer than [`MAX_KEY`](crate::MAX_KEY); this is not
    /// checked.
    pub fn clone_range(&mut self, index: IndexId, source: &[u8], destination: &[u8]) {
        self.copies += 1;
        self.redirect(index, source, destination);
    }

    fn redirect(&mut self, index: IndexId, source: &[u8], destination: &[u8]) {
        self.clones += 1;
        self.push(LoggedOp::Clone { index, source: source.into(), destination: destination.into() });
    }

    /// [`Batch::clone_range`], after which nothing begins with `source` any more. If one of the
    /// prefixes begins with the other the commit fails.
    pub fn move_range(&mut self, index: IndexId, source: &[u8], destination: &[u8]) {
        self.nested |= source.starts_with(destination) || destination.starts_with(source);
        self.redirect(index, source, destination);
        self.delete_range(index, KeyRange::prefix(source));
    }

    /// With the batch so many bytes less are kept for writes ([`Store::keep`](crate::Store::keep)):
    /// it may have them, and what it does not take is free.
    pub fn draw(&mut self, bytes: u64) {
        self.drawn += bytes / BLOCK as u64;
    }

    /// The caller says that what the batch writes replaces values which nothing else needs, or that
    /// it draws on what was kept: then it is accepted also where the last free space is taken.
    pub fn promise(&mut self) {
        self.is_promised = true;
    }

    /// Adds the operations of another batch, to be carried out after those before.
    pub fn append(&mut self, other: Batch) {
        let Batch { ops, bytes, clones, copies, nested, drawn, is_promised, new } = other;
        self.is_promised = (self.is_promised || self.is_empty()) && is_promised;
        self.drawn += drawn;
        self.new.append(new, self.ops.len());
        self.ops.extend(ops);
        self.bytes += bytes;
        self.clones += clones;
        self.copies += copies;
        self.nested |= nested;
    }

    /// What its operations concern, in order.
    pub fn touches(&self) -> impl Iterator<Item = Touch<'_>> {
        self.ops.iter().enumerate().filter_map(|(at, op)| match op {
            LoggedOp::Point { index, key, op } => {
                Some(Touch::Key { index: *index, key, op, is_new: self.new.contains(at) })
            }
            LoggedOp::Range { index, range, op } => Some(Touch::Range { index: *index, range, op }),
            LoggedOp::Clone { index, source, destination } => {
                Some(Touch::Clone { index: *index, source, destination })
            }
            LoggedOp::Superseded => None,
        })
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

    /// The memtables at most that it begins in each index: each clone seals one.
    pub(crate) fn tables(&self) -> BTreeMap<IndexId, u64> {
        let mut tables = BTreeMap::new();
        for op in &self.ops {
            if let Some(id) = op.index() {
                *tables.entry(id).or_insert(1) += u64::from(matches!(op, LoggedOp::Clone { .. }));
            }
        }
        tables
    }

    /// The indexes that it changes, mostly each once.
    pub(crate) fn indexes(&self) -> impl Iterator<Item = IndexId> {
        let mut last = None;
        self.ops.iter().filter_map(LoggedOp::index).filter(move |id| last.replace(*id) != Some(*id))
    }

    /// True if it has messages to single keys of an index.
    pub(crate) fn has_points(&self, id: IndexId) -> bool {
        self.ops.iter().any(|op| matches!(op, LoggedOp::Point { index, .. } if *index == id))
    }

    /// True if it deletes anything.
    pub(crate) fn deletes(&self) -> bool {
        self.ops.iter().any(LoggedOp::deletes)
    }

    /// The ranges that it deletes, if it does little else: messages to a few keys at most.
    pub(crate) fn cleared(&self) -> Option<Vec<(IndexId, &KeyRange)>> {
        let mut ranges = Vec::new();
        for op in &self.ops {
            match op {
                LoggedOp::Range { index, range, op: RangeOp::Delete } => ranges.push((*index, range)),
                LoggedOp::Point { op, .. } if op.large_values().is_empty() => {}
                _ => return None,
            }
        }
        (!ranges.is_empty() && self.ops.len() <= FEW_OPERATIONS).then_some(ranges)
    }

    fn point(&mut self, index: IndexId, key: &[u8], op: Op) {
        self.push(LoggedOp::Point { index, key: key.into(), op });
    }

    /// An empty range, which may be an inverted one, concerns no key and is left out.
    fn range(&mut self, index: IndexId, range: KeyRange, op: RangeOp) {
        if range.is_empty() {
            return;
        }
        self.push(LoggedOp::Range { index, range, op });
    }

    fn push(&mut self, op: LoggedOp) {
        self.bytes += bytes_in(&op);
        self.ops.push(op);
    }
}

/// Bytes that an operation brings into the store, with what keeping it costs.
pub(crate) fn bytes_in(op: &LoggedOp) -> usize {
    match op {
        LoggedOp::Point { key, op, .. } => point_bytes(key, op) as usize,
        LoggedOp::Range { range, op, .. } => {
            range.start.len() + range.end.as_ref().map_or(0, |e| e.len()) + range_op_bytes(op) + 16
        }
        LoggedOp::Clone { source, destination, .. } => source.len() + destination.len() + 16,
        LoggedOp::Superseded => 0,
    }
}

/// The same of an operation on one key.
pub(crate) fn point_bytes(key: &[u8], op: &Op) -> u64 {
    (key.len() + carried_bytes(op) + 16) as u64
}

/// Bytes that an operation brings into the store: a value that is stored already comes as a
/// reference.
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
