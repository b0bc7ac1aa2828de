//! Message version: one message to a key, or several that have become one.
//!
//! A newer message is absorbed by the version before it where the two give one message: patches to
//! a value in memory are made in place, and patches that touch become one. A value *grows* while
//! this happens, and is owned by the memtable alone; freezing it makes it a value that the log and
//! the tree can share.

use crate::message::compose::patched_buffer;
use crate::model::batch::op_bytes;
use crate::model::op::{MergeFunctions, Op};
use crate::model::value::{LARGE_VALUE, VALUE_PAGE, Value};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Roughly what a large value costs beside its bytes, in bytes.
const LARGE_VALUE_OVERHEAD_BYTES: usize = 128;

/// See the [module](self).
pub(super) enum MessageVersion {
    Op(Op),
    /// What came first for its key: lies in the arena of the memtable, and counts there.
    First(Op),
    /// An insert whose value is still growing; owned by the memtable alone.
    Growing(Vec<u8>),
    /// A patch that is still growing.
    GrowingPatch(u32, Vec<u8>),
}

/// Memory that `op` takes, without the bytes of large values that others may hold as well.
pub(super) fn op_memory(op: &Op) -> usize {
    match op.large_values() {
        [] => op_bytes(op),
        large => large.iter().map(|v| LARGE_VALUE_OVERHEAD_BYTES + v.len() / VALUE_PAGE * 4).sum(),
    }
}

impl MessageVersion {
    pub(super) fn to_op(&self) -> Op {
        match self {
            Self::Op(op) | Self::First(op) => op.clone(),
            Self::Growing(bytes) => Op::Insert(Value::from(&bytes[..])),
            Self::GrowingPatch(offset, bytes) => {
                Op::Patch { offset: *offset, bytes: Value::from(&bytes[..]) }
            }
        }
    }

    /// Memory that goes with it, without the bytes of large values that others may hold as well.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Op(op) => op_memory(op),
            // What lies in the arena stays there.
            Self::First(op) if op.large_values().is_empty() => 0,
            Self::First(op) => op_memory(op),
            Self::Growing(bytes) | Self::GrowingPatch(_, bytes) => bytes.len(),
        }
    }

    /// True if it is a large value that still grows.
    pub(super) fn is_growing_large(&self) -> bool {
        matches!(self, Self::Growing(bytes) | Self::GrowingPatch(_, bytes) if bytes.len() >= LARGE_VALUE)
    }

    /// Ends the growth of what has become a large value, so that it can be shared.
    pub(super) fn freeze(&mut self, resident: &Arc<AtomicUsize>) {
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
    pub(super) fn absorb(self, op: &Op, merge: &MergeFunctions) -> Result<Self, Self> {
        match self {
            Self::First(first) => match Self::Op(first).absorb(op, merge) {
                Err(Self::Op(first)) => Err(Self::First(first)),
                result => result,
            },
            other => other.absorb_op(op, merge),
        }
    }

    fn absorb_op(self, op: &Op, merge: &MergeFunctions) -> Result<Self, Self> {
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
    fn absorb_patch(self, offset: u32, bytes: &[u8]) -> Result<Self, Self> {
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
    pub(super) fn extent(&self) -> Option<(usize, usize)> {
        match self {
            Self::Op(Op::Patch { offset, bytes }) | Self::First(Op::Patch { offset, bytes }) => {
                Some((*offset as usize, *offset as usize + bytes.len()))
            }
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
fn grow_patch(at: u32, mut old: Vec<u8>, offset: u32, bytes: &[u8]) -> MessageVersion {
    if offset < at {
        let inside = (offset as usize + bytes.len()).saturating_sub(at as usize);
        let keep = old.get(inside..).unwrap_or(&[]);
        return MessageVersion::GrowingPatch(offset, [bytes, keep].concat());
    }
    let inside = (offset - at) as usize;
    old.resize(old.len().max(inside + bytes.len()), 0);
    old[inside..inside + bytes.len()].copy_from_slice(bytes);
    MessageVersion::GrowingPatch(at, old)
}
