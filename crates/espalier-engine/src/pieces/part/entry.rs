//! The grammar of one entry, and the walk over many.
//!
//! ```text
//! varint shared     bytes of the key that it shares with the key before; 0 at a restart
//! varint unshared   bytes of the key that follow
//! varint msn        zigzag of the difference to the part's base MSN
//! varint n * 8 + kind
//!                   0 insert    n bytes of value
//!                   1 insert    n is the index of a large value
//!                   2 delete    n is 0
//!                   3 patch     n bytes; a varint follows: the offset
//!                   4 update    n bytes of argument; a varint follows: the function
//!                   5 patch     n is the index of a large value; a varint follows: the offset
//!                   6 insert    n is the index of the first of several large values; a varint
//!                               follows: how many there are
//! key bytes, then the n bytes of value, patch or argument
//! ```
//!
//! `shared` is as long as can be, except at restarts: seeking relies on it, and it makes checking
//! the order of keys a matter of one byte.

use crate::model::op::{Op, Update};
use crate::model::value::{LargeValue, Repr, Value};
use crate::pieces::wire::{Reader, put_varint, unzigzag, varint_len, zigzag};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;

/// Entries from one restart to the next.
pub(super) const RESTART_INTERVAL: u32 = 16;

const KIND_INSERT: u64 = 0;
const KIND_INSERT_LARGE: u64 = 1;
const KIND_DELETE: u64 = 2;
const KIND_PATCH: u64 = 3;
const KIND_UPDATE: u64 = 4;
const KIND_PATCH_LARGE: u64 = 5;
const KIND_INSERT_COMPOSED: u64 = 6;

/// Where the fields of one entry lie, as offsets into the entries.
#[derive(Clone, Copy, Default)]
pub(super) struct Entry {
    /// Bytes shared with the key before.
    pub(super) shared: usize,
    /// First of the key's other bytes.
    pub(super) suffix: usize,
    /// First of the bytes of value, patch or argument; the key ends here.
    payload: usize,
    /// The entry behind.
    pub(super) next: usize,
    /// Difference to the base MSN.
    pub(super) msn: u64,
    kind: u8,
    /// Index of the first of its large values.
    first: u32,
    /// Number of large values, offset of a patch, or function of an update.
    number: u32,
}

/// What an entry's head says of its op.
pub(super) struct Head {
    kind: u64,
    n: u64,
    number: Option<u64>,
}

impl Head {
    /// For an op with its payload; `index` is the place a large value would get in the side table.
    pub(super) fn of(op: &Op, index: usize) -> (Self, &[u8]) {
        let large = |kind, number| (Self { kind, n: index as u64, number }, &[][..]);
        let (kind, number, bytes): (_, _, &[u8]) = match op {
            Op::Insert(value) => match value.repr() {
                Repr::Small(bytes) => (KIND_INSERT, None, bytes),
                Repr::Large(_) => return large(KIND_INSERT_LARGE, None),
                Repr::Composed(_) => {
                    return large(KIND_INSERT_COMPOSED, Some(value.segments().len() as u64));
                }
            },
            Op::Delete => (KIND_DELETE, None, &[]),
            Op::Patch { offset, bytes } => match bytes.repr() {
                Repr::Small(bytes) => (KIND_PATCH, Some(u64::from(*offset)), bytes),
                // A patch is never composed: no operation makes such a one.
                Repr::Large(_) | Repr::Composed(_) => {
                    return large(KIND_PATCH_LARGE, Some(u64::from(*offset)));
                }
            },
            Op::Update(update) => (KIND_UPDATE, Some(u64::from(update.function)), &update.argument),
        };
        (Self { kind, n: bytes.len() as u64, number }, bytes)
    }
}

/// Appends an entry.
pub(super) fn put(out: &mut Vec<u8>, shared: usize, suffix: &[u8], msn: u64, head: &Head, payload: &[u8]) {
    let tag = head.n << 3 | head.kind;
    let need = varint_len(tag) + 30 + suffix.len() + payload.len();
    out.reserve(need);
    put_varint(out, shared as u64);
    put_varint(out, suffix.len() as u64);
    put_varint(out, zigzag(msn as i64));
    put_varint(out, tag);
    if let Some(number) = head.number {
        put_varint(out, number);
    }
    out.extend_from_slice(suffix);
    out.extend_from_slice(payload);
}

impl Entry {
    /// The entry that begins at `at`; `None` if there is none or it is no entry.
    #[inline(always)]
    pub(super) fn parse(entries: &[u8], at: usize) -> Option<Self> {
        let mut reader = Reader::new(entries.get(at..)?);
        let shared = reader.varint32()? as usize;
        let unshared = reader.varint32()? as usize;
        let msn = unzigzag(reader.varint()?) as u64;
        let tag = reader.varint()?;
        let (kind, n) = (tag & 7, u32::try_from(tag >> 3).ok()?);
        let (length, first, number) = match kind {
            KIND_INSERT => (n as usize, 0, 0),
            KIND_INSERT_LARGE => (0, n, 1),
            KIND_DELETE if n == 0 => (0, 0, 0),
            KIND_PATCH => (n as usize, 0, reader.varint32()?),
            KIND_UPDATE => (n as usize, 0, u32::from(u16::try_from(reader.varint()?).ok()?)),
            KIND_PATCH_LARGE | KIND_INSERT_COMPOSED => (0, n, reader.varint32()?),
            _ => return None,
        };
        let suffix = entries.len() - reader.remaining();
        let payload = suffix + unshared;
        let next = payload + length;
        (next <= entries.len()).then_some(Self {
            shared,
            suffix,
            payload,
            next,
            msn,
            kind: kind as u8,
            first,
            number,
        })
    }

    /// The bytes of the key that are not shared.
    #[inline]
    pub(super) fn key_suffix<'a>(&self, entries: &'a [u8]) -> &'a [u8] {
        &entries[self.suffix..self.payload]
    }

    /// The indexes of its large values.
    pub(super) fn large(&self) -> Range<usize> {
        let first = self.first as usize;
        match u64::from(self.kind) {
            KIND_INSERT_LARGE | KIND_PATCH_LARGE => first..first + 1,
            KIND_INSERT_COMPOSED => first..first + self.number as usize,
            _ => 0..0,
        }
    }

    /// True if its large values together are one value.
    pub(super) fn is_composed(&self) -> bool {
        u64::from(self.kind) == KIND_INSERT_COMPOSED
    }

    /// All that it says of its op; `None` if large values belong to it.
    pub(super) fn inline_op<'a>(&self, entries: &'a [u8]) -> Option<(u8, u32, &'a [u8])> {
        self.large().is_empty().then(|| (self.kind, self.number, &entries[self.payload..self.next]))
    }

    /// True if its op makes older ones void.
    pub(super) fn is_terminal(&self) -> bool {
        !matches!(u64::from(self.kind), KIND_PATCH | KIND_PATCH_LARGE | KIND_UPDATE)
    }

    /// Length of an inline value or patch.
    pub(super) fn inline_value(&self) -> Option<usize> {
        matches!(u64::from(self.kind), KIND_INSERT | KIND_PATCH).then_some(self.next - self.payload)
    }

    /// Its op; bytes are slices of `body`, which begins with the entries.
    pub(super) fn op(&self, body: &Bytes, values: &[Arc<LargeValue>]) -> Op {
        let payload = || body.slice(self.payload..self.next);
        match u64::from(self.kind) {
            KIND_INSERT => Op::Insert(Value::from(payload())),
            KIND_INSERT_LARGE => Op::Insert(Value::shared(values[self.first as usize].clone())),
            KIND_INSERT_COMPOSED => Op::Insert(Value::composed(values[self.large()].to_vec())),
            KIND_PATCH => Op::Patch { offset: self.number, bytes: Value::from(payload()) },
            KIND_PATCH_LARGE => {
                let bytes = Value::shared(values[self.first as usize].clone());
                Op::Patch { offset: self.number, bytes }
            }
            KIND_UPDATE => Op::Update(Update { function: self.number as u16, argument: payload() }),
            _ => Op::Delete,
        }
    }
}

/// The key of the entry at the restart `at`. The entries are valid.
#[inline]
pub(super) fn restart_key(entries: &[u8], at: usize) -> &[u8] {
    Entry::parse(entries, at).map_or(&[], |entry| entry.key_suffix(entries))
}

/// Walks over valid entries, key by key.
pub(super) struct Walk<'a> {
    entries: &'a [u8],
    at: usize,
    key: Vec<u8>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(entries: &'a [u8]) -> Self {
        Self { entries, at: 0, key: Vec::new() }
    }

    /// The next entry's key, and whether it differs from the one before.
    pub(super) fn next(&mut self) -> Option<(&[u8], bool)> {
        let entry = Entry::parse(self.entries, self.at)?;
        let suffix = entry.key_suffix(self.entries);
        let same = match entry.shared {
            // A restart repeats the whole key.
            0 => self.at != 0 && self.key == suffix,
            shared => suffix.is_empty() && shared == self.key.len(),
        };
        self.key.truncate(entry.shared);
        self.key.extend_from_slice(suffix);
        self.at = entry.next;
        Some((&self.key, !same))
    }
}
