//! Memtables: the newest messages of one index, sorted, in memory.
//!
//! Protocol: batches are applied in MSN order by one committer at a time; any number of readers
//! look at the same time. A sealed memtable never changes again.
//!
//! Invariants: the versions of a key are ordered by MSN; a message that can no longer be seen by
//! anybody (a newer one ends every search, and no snapshot lies between) is gone. Patches to a
//! value that is here are made in place, so that a file written piece by piece becomes one message.
//!
//! Large values are shared with the log, which gives them their places; so what it has written is
//! not written again. What grew here is shared from the moment on when the log asks for it
//! ([`Memtable::outcome`]) or the memtable is absorbed ([`Memtable::settle`]). The bytes of shared
//! values are counted where they are, not here.

pub(crate) mod source;

use crate::message::Messages;
use crate::message::compose::patched_buffer;
use crate::message::range_messages::{RangeMessages, RangeOps};
use crate::message::resolve::Found;
use crate::model::batch::op_bytes;
use crate::model::ids::Msn;
use crate::model::key::{Key, KeyRange};
use crate::model::op::{MergeFunctions, Op, RangeOp};
use crate::model::value::{LARGE_VALUE, VALUE_PAGE, Value};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Roughly what a key costs beside its bytes.
const KEY_OVERHEAD: usize = 96;

/// Roughly what a large value costs beside its bytes.
const LARGE_OVERHEAD: usize = 128;
/// How many older patches of a key are compared with a new one.
const PATCHES_COMPARED: usize = 16;
/// Keys that are settled before readers get a turn.
const SETTLED_AT_ONCE: usize = 256;

#[derive(Default)]
pub(crate) struct Memtable {
    inner: RwLock<Inner>,
    bytes: AtomicUsize,
    /// Bytes of large values that came in.
    values: AtomicUsize,
}

#[derive(Default)]
struct Inner {
    points: BTreeMap<Key, Versions>,
    ranges: RangeMessages,
}

/// Oldest first.
type Versions = Vec<(Msn, Version)>;

enum Version {
    Op(Op),
    /// An insert whose value is still growing; owned by the memtable alone.
    Growing(Vec<u8>),
    /// A patch that is still growing.
    GrowingPatch(u32, Vec<u8>),
}

/// Memory that `op` takes, without the bytes of large values that others may hold as well.
fn op_memory(op: &Op) -> usize {
    match op.large_values() {
        [] => op_bytes(op),
        large => large.iter().map(|v| LARGE_OVERHEAD + v.len() / VALUE_PAGE * 4).sum(),
    }
}

impl Version {
    fn to_op(&self) -> Op {
        match self {
            Self::Op(op) => op.clone(),
            Self::Growing(bytes) => Op::Insert(Value::from(&bytes[..])),
            Self::GrowingPatch(offset, bytes) => {
                Op::Patch { offset: *offset, bytes: Value::from(&bytes[..]) }
            }
        }
    }

    /// Memory held, without the bytes of large values that others may hold as well.
    fn bytes(&self) -> usize {
        match self {
            Self::Op(op) => op_memory(op),
            Self::Growing(bytes) | Self::GrowingPatch(_, bytes) => bytes.len(),
        }
    }

    /// True if it is a large value that still grows.
    fn is_unsettled(&self) -> bool {
        matches!(self, Self::Growing(bytes) | Self::GrowingPatch(_, bytes) if bytes.len() >= LARGE_VALUE)
    }

    /// Ends the growth of what has become a large value, so that it can be shared.
    fn settle(&mut self, resident: &Arc<AtomicUsize>) {
        let op = match self {
            Self::Growing(bytes) if bytes.len() >= LARGE_VALUE => {
                Op::Insert(Value::from(std::mem::take(bytes)))
            }
            Self::GrowingPatch(offset, bytes) if bytes.len() >= LARGE_VALUE => {
                Op::Patch { offset: *offset, bytes: Value::from(std::mem::take(bytes)) }
            }
            _ => return,
        };
        op.large_values().iter().for_each(|value| value.charge(resident));
        *self = Self::Op(op);
    }

    /// Applies `op` to this version in place, if that gives one message. Gives `op` back if not.
    fn absorb(self, op: &Op, merge: &MergeFunctions) -> Result<Version, Version> {
        match (self, op) {
            (_, Op::Insert(_) | Op::Delete) => Ok(Self::Op(op.clone())),
            (old, Op::Patch { offset, bytes }) => match bytes.in_memory() {
                Some(bytes) => old.absorb_patch(*offset, &bytes),
                None => Err(old),
            },
            (Self::Op(Op::Update(a)), Op::Update(b)) => match merge.compose(&a, b) {
                Some(both) => Ok(Self::Op(Op::Update(both))),
                None => Err(Self::Op(Op::Update(a))),
            },
            (Self::Growing(old), Op::Update(update)) => match merge.apply(update, Some(&old)) {
                Ok(Some(new)) => Ok(Self::Op(Op::Insert(Value::from(new)))),
                Ok(None) => Ok(Self::Op(Op::Delete)),
                Err(_) => Err(Self::Growing(old)),
            },
            (Self::Op(Op::Delete), Op::Update(update)) => match merge.apply(update, None) {
                Ok(Some(new)) => Ok(Self::Op(Op::Insert(Value::from(new)))),
                Ok(None) => Ok(Self::Op(Op::Delete)),
                Err(_) => Err(Self::Op(Op::Delete)),
            },
            (Self::Op(Op::Insert(value)), Op::Update(update)) => {
                let outcome = value.in_memory().map(|old| merge.apply(update, Some(&old)));
                match outcome {
                    Some(Ok(Some(new))) => Ok(Self::Op(Op::Insert(Value::from(new)))),
                    Some(Ok(None)) => Ok(Self::Op(Op::Delete)),
                    _ => Err(Self::Op(Op::Insert(value))),
                }
            }
            (old, _) => Err(old),
        }
    }

    /// A patch on top of this version, in place. What is stored already stays as it is.
    fn absorb_patch(self, offset: u32, bytes: &[u8]) -> Result<Version, Version> {
        let movable = |value: &Value| match value.reference_bytes() {
            None => value.in_memory(),
            Some(_) => None,
        };
        match self {
            Self::Growing(old) => Ok(Self::Growing(patched_buffer(old, offset, bytes))),
            Self::GrowingPatch(at, old) if touches((at, old.len()), (offset, bytes.len())) => {
                Ok(grow_patch(at, old, offset, bytes))
            }
            Self::Op(Op::Insert(value)) => match movable(&value) {
                Some(old) => {
                    // Room to grow: the next write to this block likely follows this one.
                    let len = old.len().max(offset as usize + bytes.len());
                    let mut grown = Vec::with_capacity(len.next_power_of_two());
                    grown.extend_from_slice(&old);
                    Ok(Self::Growing(patched_buffer(grown, offset, bytes)))
                }
                None => Err(Self::Op(Op::Insert(value))),
            },
            Self::Op(Op::Delete) => Ok(Self::Growing(patched_buffer(Vec::new(), offset, bytes))),
            Self::Op(Op::Patch { offset: at, bytes: old })
                if touches((at, old.len()), (offset, bytes.len())) =>
            {
                match movable(&old) {
                    Some(old) => Ok(grow_patch(at, old.to_vec(), offset, bytes)),
                    None => Err(Self::Op(Op::Patch { offset: at, bytes: old })),
                }
            }
            old => Err(old),
        }
    }

    /// The bytes that a patch covers.
    fn extent(&self) -> Option<(usize, usize)> {
        match self {
            Self::Op(Op::Patch { offset, bytes }) => Some((*offset as usize, *offset as usize + bytes.len())),
            Self::GrowingPatch(offset, bytes) => Some((*offset as usize, *offset as usize + bytes.len())),
            _ => None,
        }
    }
}

/// True if two patches, each as offset and length, together cover one run of bytes.
fn touches((at, len): (u32, usize), (offset, added): (u32, usize)) -> bool {
    let (at, offset) = (at as usize, offset as usize);
    offset <= at + len && at <= offset + added
}

/// Two patches that touch as one.
fn grow_patch(at: u32, mut old: Vec<u8>, offset: u32, bytes: &[u8]) -> Version {
    if offset < at {
        let inside = (offset as usize + bytes.len()).saturating_sub(at as usize);
        let keep = old.get(inside..).unwrap_or(&[]);
        return Version::GrowingPatch(offset, [bytes, keep].concat());
    }
    let inside = (offset - at) as usize;
    old.resize(old.len().max(inside + bytes.len()), 0);
    old[inside..inside + bytes.len()].copy_from_slice(bytes);
    Version::GrowingPatch(at, old)
}

/// Drops the newest patches among `versions` that `op`, if it is a patch, covers. They may be
/// dropped if they are newer than `after`. Returns the memory that this gives back.
fn drop_covered(versions: &mut Versions, op: &Op, after: Msn) -> usize {
    let Op::Patch { offset, bytes } = op else { return 0 };
    let (start, end) = (*offset as usize, *offset as usize + bytes.len());
    let mut freed = 0;
    let least = versions.len().saturating_sub(PATCHES_COMPARED);
    for at in (least..versions.len()).rev() {
        let (msn, version) = &versions[at];
        let Some((from, to)) = version.extent().filter(|_| *msn > after) else { break };
        if start <= from && to <= end {
            freed += version.bytes();
            versions.remove(at);
        }
    }
    freed
}

impl Memtable {
    /// Roughly the memory held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Bytes of large values that came in, whether or not they are still there.
    pub(crate) fn value_bytes(&self) -> usize {
        self.values.load(Relaxed)
    }

    /// The messages that it holds.
    pub(crate) fn messages(&self) -> u64 {
        let inner = self.inner.read();
        inner.points.values().map(Vec::len).sum::<usize>() as u64 + inner.ranges.iter().count() as u64
    }

    /// True if it holds no message.
    pub(crate) fn is_empty(&self) -> bool {
        let inner = self.inner.read();
        inner.points.is_empty() && inner.ranges.is_empty()
    }

    /// Adds a message to one key. `pinned` is the newest snapshot, which must go on to see what it
    /// sees.
    pub(crate) fn apply(&self, key: &[u8], msn: Msn, op: &Op, pinned: Msn, merge: &MergeFunctions) {
        self.values.fetch_add(op.large_values().iter().map(|value| value.len()).sum(), Relaxed);
        let mut inner = self.inner.write();
        let mut grown = 0isize;
        let last_range = inner.ranges.covering(key).last().map(|(msn, _)| *msn);
        if let Some(versions) = inner.points.get_mut(key) {
            let newest = versions.last().map_or(Msn(0), |(msn, _)| *msn);
            // A snapshot at or after `newest` sees that version as it is.
            if newest > pinned {
                if op.is_terminal() {
                    let gone = versions.extract_if(.., |(msn, _)| *msn > pinned);
                    grown -= gone.map(|(_, v)| v.bytes() as isize).sum::<isize>();
                } else if last_range.is_none_or(|range| range < newest)
                    && let Some((_, version)) = versions.pop()
                {
                    grown -= version.bytes() as isize;
                    match version.absorb(op, merge) {
                        Ok(both) => {
                            grown += both.bytes() as isize;
                            versions.push((msn, both));
                            self.grow(grown);
                            return;
                        }
                        Err(as_it_was) => {
                            grown += as_it_was.bytes() as isize;
                            versions.push((newest, as_it_was));
                        }
                    }
                }
            }
            let divide = last_range.unwrap_or(Msn(0)).max(pinned);
            grown -= drop_covered(versions, op, divide) as isize;
            versions.push((msn, Version::Op(op.clone())));
        } else {
            inner.points.insert(key.into(), vec![(msn, Version::Op(op.clone()))]);
            grown += (key.len() + KEY_OVERHEAD) as isize;
        }
        self.grow(grown + op_memory(op) as isize);
    }

    /// What message `msn` and those before it have come to for `key`, if it is the newest message
    /// for it and grew together with others: an insert, or a patch that stands for patches before
    /// it as well.
    pub(crate) fn outcome(&self, key: &[u8], msn: Msn, resident: &Arc<AtomicUsize>) -> Option<Op> {
        let mut inner = self.inner.write();
        let (newest, version) = inner.points.get_mut(key)?.last_mut()?;
        if *newest != msn {
            return None;
        }
        let before = version.bytes();
        version.settle(resident);
        self.grow(version.bytes() as isize - before as isize);
        Some(version.to_op())
    }

    /// Ends all growth: when this returns, everybody gets the same large values. Only for sealed
    /// memtables, of which no key goes; so who reads may do so in between.
    pub(crate) fn settle(&self, resident: &Arc<AtomicUsize>) {
        let mut from = Bound::Unbounded;
        loop {
            let inner = self.inner.read();
            let (mut last, mut unsettled) = (None, false);
            for (key, versions) in inner.points.range((from.clone(), Bound::Unbounded)).take(SETTLED_AT_ONCE)
            {
                unsettled |= versions.iter().any(|(_, version)| version.is_unsettled());
                last = Some(key);
            }
            let Some(last) = last.cloned() else { return };
            drop(inner);
            if unsettled {
                self.settle_between((from, Bound::Included(last.clone())), resident);
            }
            from = Bound::Excluded(last);
        }
    }

    fn settle_between(&self, keys: (Bound<Key>, Bound<Key>), resident: &Arc<AtomicUsize>) {
        let mut inner = self.inner.write();
        let mut grown = 0;
        for (_, version) in inner.points.range_mut(keys).flat_map(|(_, versions)| versions) {
            grown -= version.bytes() as isize;
            version.settle(resident);
            grown += version.bytes() as isize;
        }
        self.grow(grown);
    }

    /// Adds a message to every key of `range`.
    pub(crate) fn apply_range(&self, range: &KeyRange, msn: Msn, op: &RangeOp, pinned: Msn) {
        if range.is_empty() {
            return;
        }
        let mut inner = self.inner.write();
        let mut grown = 0isize;
        if *op == RangeOp::Delete {
            // Message eating [BetrFS 0.2, section 5]: what the delete covers is gone, unless a
            // snapshot still sees it.
            let eaten = inner.points.extract_if(owned_bounds(range), |_, versions| {
                versions.first().is_none_or(|(msn, _)| *msn > pinned)
            });
            for (key, versions) in eaten {
                let bytes: usize = versions.iter().map(|(_, v)| v.bytes()).sum();
                grown -= (key.len() + KEY_OVERHEAD + bytes) as isize;
            }
        }
        let keep_history = pinned > Msn(0) && inner.ranges.touches(range);
        let before = inner.ranges.memory();
        inner.ranges.insert(range, msn, op, keep_history);
        grown += inner.ranges.memory() as isize - before as isize;
        self.grow(grown);
    }

    fn grow(&self, by: isize) {
        // Wrapping addition of a negative number subtracts; never below zero as what goes came.
        self.bytes.fetch_add(by as usize, Relaxed);
    }

    /// Adds what the memtable holds for `key`, as a snapshot at `upto` sees it.
    pub(crate) fn find(&self, key: &[u8], upto: Msn, found: &mut Found) {
        let inner = self.inner.read();
        let ranges = seen(inner.ranges.covering(key), upto);
        match inner.points.get(key) {
            Some(versions) => found.add_level(messages(versions, upto), ranges),
            None => found.add_level([], ranges),
        }
    }

    /// The range messages that cover `key`, as a snapshot at `upto` sees them, oldest first.
    pub(crate) fn ranges_covering(&self, key: &[u8], upto: Msn) -> RangeOps {
        seen(self.inner.read().ranges.covering(key), upto).to_vec()
    }

    /// True if it holds range messages.
    pub(crate) fn has_ranges(&self) -> bool {
        !self.inner.read().ranges.is_empty()
    }

    /// All range messages. Only for sealed memtables.
    pub(crate) fn ranges(&self) -> RangeMessages {
        self.inner.read().ranges.clone()
    }

    /// Copies keys with their messages in ascending order, from `start` on: until there are `keys`
    /// keys or `bytes` bytes, but at least one key if there is one.
    pub(crate) fn copy_ascending(
        &self,
        start: Bound<&[u8]>,
        upto: Msn,
        keys: usize,
        bytes: usize,
    ) -> Vec<(Key, Messages)> {
        let inner = self.inner.read();
        copy(inner.points.range::<[u8], _>((start, Bound::Unbounded)), upto, keys, bytes)
    }

    /// The same in descending order, from the last key before `end` on.
    pub(crate) fn copy_descending(
        &self,
        end: Bound<&[u8]>,
        upto: Msn,
        keys: usize,
        bytes: usize,
    ) -> Vec<(Key, Messages)> {
        let inner = self.inner.read();
        copy(inner.points.range::<[u8], _>((Bound::Unbounded, end)).rev(), upto, keys, bytes)
    }
}

/// `range` as bounds over owned keys.
fn owned_bounds(range: &KeyRange) -> (Bound<Key>, Bound<Key>) {
    (Bound::Included(range.start.clone()), range.end.clone().map_or(Bound::Unbounded, Bound::Excluded))
}

#[cfg(test)]
mod tests;

/// Range operations a snapshot at `upto` sees.
fn seen(ranges: &[(Msn, RangeOp)], upto: Msn) -> &[(Msn, RangeOp)] {
    &ranges[..ranges.partition_point(|(msn, _)| *msn <= upto)]
}

/// Messages a snapshot at `upto` sees, newest first.
fn messages(versions: &Versions, upto: Msn) -> impl Iterator<Item = (Msn, Op)> + '_ {
    versions.iter().rev().filter(move |(msn, _)| *msn <= upto).map(|(msn, v)| (*msn, v.to_op()))
}

fn copy<'a>(
    points: impl Iterator<Item = (&'a Key, &'a Versions)>,
    upto: Msn,
    keys: usize,
    bytes: usize,
) -> Vec<(Key, Messages)> {
    let mut copied = Vec::new();
    let mut size = 0;
    for (key, versions) in points {
        let messages: Messages = messages(versions, upto).collect();
        if messages.is_empty() {
            continue;
        }
        size += versions.iter().map(|(_, v)| v.bytes()).sum::<usize>();
        copied.push((key.clone(), messages));
        if copied.len() >= keys || size >= bytes {
            break;
        }
    }
    copied
}
