//! Group plan: which operations of a group get a record, and where its large values go.
//!
//! A group is atomic, so only its net effect matters. An operation that a later one of the same
//! group wipes out keeps its number and gets no record; data deleted before it was written is never
//! written. A value that was written piece by piece is logged as the outcome of the pieces.

use super::codec::{PartTable, Placed};
use super::keep_apart::ApartNow;
use super::{Binder, LoggedBatch, LoggedOp};
use crate::model::value::{LARGE_VALUE, LargeValue, Value, ValueRef};
use crate::{Error, ErrorKind, IndexId, Key, Msn, Op, RangeOp, Result};
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

/// How many patches of a key, from the newest backward, are compared with a new one.
const MAX_COMPARED_PATCHES: usize = 8;

/// What of a group is written.
pub(super) struct Plan {
    /// For each operation of the batches, in order: true if it is superseded.
    pub(super) dead: Vec<bool>,
    /// Operations that stand for themselves and for some that are superseded, by their place.
    pub(super) grown: HashMap<usize, LoggedOp>,
}

impl Plan {
    /// The operations that are written, in order; `None` for those that are not.
    pub(super) fn ops<'a>(
        &'a self,
        batches: &'a [LoggedBatch],
    ) -> impl Iterator<Item = Option<&'a LoggedOp>> + Clone {
        let all = batches.iter().flat_map(|batch| &batch.ops).enumerate();
        all.map(|(at, op)| (!self.dead[at]).then(|| self.grown.get(&at).unwrap_or(op)))
    }
}

/// Plans a group: what is superseded, and what a value that was written piece by piece has come to.
pub(super) fn plan(batches: &[LoggedBatch], binder: &dyn Binder) -> Plan {
    let (dead, live, barrier) = superseded(batches);
    let mut plan = Plan { dead, grown: HashMap::new() };
    let ops: Vec<(Msn, &LoggedOp)> =
        batches.iter().flat_map(|batch| (batch.first_msn.0..).map(Msn).zip(&batch.ops)).collect();
    for ((index, key), chain) in live {
        let from = barrier.get(&index).copied().unwrap_or(0);
        plan.grow(index, key, &chain, from, &ops, binder);
    }
    plan
}

impl Plan {
    /// Writes the outcome of a chain of operations on one key instead of the operations, if the
    /// chain ends with a patch and that is no longer. So what was written piece by piece goes into
    /// one value, and the tree, which has the same value, need not write it again.
    fn grow(
        &mut self,
        index: IndexId,
        key: &[u8],
        chain: &[usize],
        from: usize,
        ops: &[(Msn, &LoggedOp)],
        binder: &dyn Binder,
    ) {
        let bytes = |at: &usize| match ops[*at].1 {
            LoggedOp::Point { op, .. } => op.value().map_or(0, Value::len),
            _ => 0,
        };
        let Some((last, before)) = chain.split_last() else { return };
        let is_patch = matches!(ops[*last].1, LoggedOp::Point { op: Op::Patch { .. }, .. });
        if before.is_empty() || !is_patch || chain.iter().map(bytes).sum::<usize>() < LARGE_VALUE {
            return;
        }
        let Some(op) = binder.outcome(index, key, ops[*last].0) else { return };
        let replaced: Vec<usize> = match &op {
            Op::Insert(_) => before.to_vec(),
            Op::Patch { offset, bytes } => {
                let inside = |at: &&usize| match ops[**at].1 {
                    LoggedOp::Point { op: Op::Patch { offset: at, bytes: old }, .. } => {
                        offset <= at && *at as usize + old.len() <= *offset as usize + bytes.len()
                    }
                    _ => false,
                };
                before.iter().rev().take_while(|at| **at >= from).take_while(inside).copied().collect()
            }
            Op::Delete | Op::Update(_) => return,
        };
        let old: usize = replaced.iter().chain([last]).map(bytes).sum();
        if replaced.is_empty() || op.value().is_none_or(|new| new.len() > old) {
            return;
        }
        replaced.into_iter().for_each(|at| self.dead[at] = true);
        self.grown.insert(*last, LoggedOp::Point { index, key: key.into(), op });
    }
}

/// The live point operations of each key, in order.
type Chains<'a> = BTreeMap<(IndexId, &'a [u8]), Vec<usize>>;

/// For each operation of the batches, in order: true if a later one makes it pointless. Then the
/// chains of the others, and for each index the place of its last range update: no patch is dropped
/// across one.
///
/// - An insert or delete supersedes every earlier point operation on its key.
/// - A range delete supersedes every earlier point operation in its range.
/// - A patch supersedes earlier patches that it covers, if only patches lie between, and no range
///   update of the index: what else they did (extend the value) the later one does too.
///
/// A clone reads what is there, so nothing of its index from before it is pointless. Range
/// operations and clones themselves always stay.
fn superseded(batches: &[LoggedBatch]) -> (Vec<bool>, Chains<'_>, HashMap<IndexId, usize>) {
    let ops: Vec<&LoggedOp> = batches.iter().flat_map(|batch| &batch.ops).collect();
    let mut dead = vec![false; ops.len()];
    let mut live = Chains::new();
    let mut barrier: HashMap<IndexId, usize> = HashMap::new();
    if ops.len() < 2 {
        return (dead, live, barrier);
    }
    for (at, op) in ops.iter().enumerate() {
        match op {
            LoggedOp::Superseded => {}
            LoggedOp::Point { index, key, op } => {
                let chain = live.entry((*index, key)).or_default();
                if op.is_terminal() {
                    chain.drain(..).for_each(|earlier| dead[earlier] = true);
                } else if let Op::Patch { offset, bytes } = op {
                    let range = (u64::from(*offset), u64::from(*offset) + bytes.len() as u64);
                    let from = barrier.get(index).copied().unwrap_or(0);
                    drop_covered(chain, range, from, &ops, &mut dead);
                }
                chain.push(at);
            }
            LoggedOp::Clone { index, .. } => {
                let inside: Vec<_> = live
                    .range((Bound::Included((*index, &[][..])), behind(*index)))
                    .map(|(key, _)| *key)
                    .collect();
                for key in inside {
                    live.remove(&key);
                }
            }
            LoggedOp::Range { index, op: RangeOp::Update(_), .. } => {
                barrier.insert(*index, at);
            }
            LoggedOp::Range { index, range, op: RangeOp::Delete } => {
                if range.is_empty() {
                    continue;
                }
                let start = Bound::Included((*index, &*range.start));
                let end = match &range.end {
                    Some(end) => Bound::Excluded((*index, &**end)),
                    None => behind(*index),
                };
                let inside: Vec<_> = live.range((start, end)).map(|(key, _)| *key).collect();
                for key in inside {
                    live.remove(&key).into_iter().flatten().for_each(|earlier| dead[earlier] = true);
                }
            }
        }
    }
    (dead, live, barrier)
}

/// The bound behind every key of `index`.
fn behind(index: IndexId) -> Bound<(IndexId, &'static [u8])> {
    let next = match index.index.checked_add(1) {
        Some(n) => Some(IndexId { index: n, ..index }),
        None => index.volume.checked_add(1).map(|volume| IndexId { volume, index: 0 }),
    };
    next.map_or(Bound::Unbounded, |next| Bound::Excluded((next, &[][..])))
}

/// Drops the newest patches of `chain` that lie inside `range`, unless they are older than `from`.
fn drop_covered(
    chain: &mut Vec<usize>,
    range: (u64, u64),
    from: usize,
    ops: &[&LoggedOp],
    dead: &mut [bool],
) {
    let mut at = chain.len();
    for _ in 0..MAX_COMPARED_PATCHES {
        let Some(newest) = at.checked_sub(1) else { break };
        at = newest;
        let LoggedOp::Point { op: Op::Patch { offset, bytes }, .. } = ops[chain[at]] else { break };
        if chain[at] < from {
            break;
        }
        let start = u64::from(*offset);
        if range.0 <= start && start + bytes.len() as u64 <= range.1 {
            dead[chain.remove(at)] = true;
        }
    }
}

/// The large values of a group's live operations, as they go into the log.
pub(super) struct Placement {
    /// Each of them, in order.
    pub(super) placed: Vec<Placed>,
    /// The value parts named.
    pub(super) parts: PartTable,
    /// Bytes that the group makes durable in value parts.
    pub(super) stored_bytes: u64,
    /// How many of them were bound for this group.
    pub(super) bound_bytes: u64,
}

/// Decides where the large values among `live` operations go, and writes them into value parts if
/// those without a place have `early_binding` bytes or more. Those that are to be kept `apart` get
/// value parts of their own.
pub(super) fn place<'a>(
    live: impl Iterator<Item = &'a LoggedOp> + Clone,
    (early_binding, apart): (u64, &ApartNow),
    binder: &dyn Binder,
) -> Result<Placement> {
    let bound_bytes = bind(unbound_values(live.clone(), apart), early_binding, binder)?;
    let mut placed = Vec::new();
    let mut parts = PartTable::default();
    let mut stored_bytes = 0;
    for value in large_values(live) {
        placed.push(match placed_or_bytes(value)? {
            PlacedOrBytes::Stored(place) => {
                parts.add(&place.part, || binder.location(place.part.id()))?;
                stored_bytes += u64::from(place.len);
                Placed::Stored(place)
            }
            PlacedOrBytes::InMemory(bytes) => Placed::Inline(bytes),
        });
    }
    Ok(Placement { placed, parts, stored_bytes, bound_bytes })
}

fn large_values<'a>(live: impl Iterator<Item = &'a LoggedOp>) -> impl Iterator<Item = &'a Arc<LargeValue>> {
    live.flat_map(LoggedOp::large_values)
}

/// The large values that have no place yet, each once, in the order in which they will be read, in
/// runs that may share value parts.
fn unbound_values<'a>(
    live: impl Iterator<Item = &'a LoggedOp>,
    apart: &ApartNow,
) -> Vec<Vec<Arc<LargeValue>>> {
    let mut seen = HashSet::new();
    let mut values = Vec::new();
    for op in live {
        let LoggedOp::Point { index, key, op } = op else { continue };
        let offset = if let Op::Patch { offset, .. } = op { *offset } else { 0 };
        let new =
            op.large_values().iter().filter(|value| !value.is_stored() && seen.insert(Arc::as_ptr(value)));
        values.extend(new.map(|value| ((*index, key, offset), value.clone())));
    }
    values.sort_by(|a, b| a.0.cmp(&b.0));
    let only = |values: &[(_, Arc<LargeValue>)]| values.iter().map(|(_, value)| value.clone()).collect();
    if apart.is_empty() {
        return if values.is_empty() { Vec::new() } else { vec![only(&values)] };
    }
    let place = |of: &(IndexId, &Key, u32)| apart.prefix_of(of.0, of.1);
    values.chunk_by(|(a, _), (b, _)| place(a) == place(b)).map(only).collect()
}

/// Writes `values` into value parts if they are worth it; returns how many bytes that were.
fn bind(runs: Vec<Vec<Arc<LargeValue>>>, early_binding: u64, binder: &dyn Binder) -> Result<u64> {
    let bytes_of = |values: &[Arc<LargeValue>]| values.iter().map(|value| value.len() as u64).sum::<u64>();
    let bytes: u64 = runs.iter().map(|values| bytes_of(values)).sum();
    if bytes == 0 || bytes < early_binding {
        return Ok(0);
    }
    let mut bound = 0;
    for values in &runs {
        match binder.bind(values) {
            Ok(()) => bound += bytes_of(values),
            // A sync must not fail for want of space. The log has room for the values: `append`
            // saw to it.
            Err(e) if e.kind() == ErrorKind::NoSpace => break,
            Err(e) => return Err(e.context("writing large values ahead of the log")),
        }
    }
    Ok(bound)
}

enum PlacedOrBytes {
    Stored(ValueRef),
    InMemory(Bytes),
}

/// A value's place, or else its bytes. Another thread may give it a place and drop its bytes at any
/// time, but never the one without the other.
fn placed_or_bytes(value: &LargeValue) -> Result<PlacedOrBytes> {
    for _ in 0..2 {
        if let Some(place) = value.place() {
            return Ok(PlacedOrBytes::Stored(place));
        }
        if let Some(bytes) = value.bytes() {
            return Ok(PlacedOrBytes::InMemory(bytes));
        }
    }
    Err(Error::new(ErrorKind::InvalidArgument, "a large value has neither bytes nor a place; this is a bug"))
}
