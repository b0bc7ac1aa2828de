//! What batches do, on an ordered map; and batches at random.

use super::*;
use crate::Update;
use bytes::Bytes;

/// Every index of a store.
pub(super) type Maps = BTreeMap<(IndexId, Vec<u8>), Vec<u8>>;

/// Applies an operation; `read` gives the bytes of values that are not in memory.
pub(super) fn apply(maps: &mut Maps, op: &LoggedOp, read: &dyn Fn(&Value) -> Vec<u8>) {
    match op {
        LoggedOp::Superseded => {}
        LoggedOp::Clone { index, source, destination } => {
            let copy = |((i, key), value): (&(IndexId, Vec<u8>), &Vec<u8>)| {
                let rest = key.strip_prefix(&**source).filter(|_| i == index)?;
                Some(((*i, [&**destination, rest].concat()), value.clone()))
            };
            let copies: Vec<_> = maps.iter().filter_map(copy).collect();
            maps.retain(|(i, key), _| i != index || !key.starts_with(destination));
            maps.extend(copies);
        }
        LoggedOp::Point { index, key, op } => {
            let at = (*index, key.to_vec());
            match op {
                Op::Insert(value) => {
                    maps.insert(at, read(value));
                }
                Op::Delete => {
                    maps.remove(&at);
                }
                Op::Patch { offset, bytes } => {
                    let value = maps.entry(at).or_default();
                    let end = *offset as usize + bytes.len();
                    value.resize(value.len().max(end), 0);
                    value[*offset as usize..end].copy_from_slice(&read(bytes));
                }
                Op::Update(update) => {
                    let new = merge(update, maps.get(&at).map(Vec::as_slice));
                    maps.insert(at, new);
                }
            }
        }
        LoggedOp::Range { index, range, op } => {
            let inside: Vec<_> =
                maps.keys().filter(|(i, key)| i == index && range.contains(key)).cloned().collect();
            for at in inside {
                match op {
                    RangeOp::Delete => maps.remove(&at),
                    RangeOp::Update(update) => {
                        let new = merge(update, maps.get(&at).map(Vec::as_slice));
                        maps.insert(at, new)
                    }
                };
            }
        }
    }
}

/// A merge function in which order and number of calls show.
fn merge(update: &Update, old: Option<&[u8]>) -> Vec<u8> {
    let old = old.unwrap_or(b"none");
    let sum = xxh3_64_with_seed(old, u64::from(update.function));
    [&sum.to_le_bytes()[..], &update.argument, &old[..old.len().min(40)]].concat()
}

/// Batches at random over few keys, so that they meet.
pub(super) struct Workload {
    pub(super) random: Random,
    /// Longest value.
    pub(super) longest: u64,
}

impl Workload {
    pub(super) fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), longest: 20_000 }
    }

    pub(super) fn batch(&mut self, lsn: u64) -> LoggedBatch {
        let count = if self.random.one_in(10) { 0 } else { self.random.between(1..=6) };
        batch(lsn, (0..count).map(|_| self.op()).collect())
    }

    pub(super) fn op(&mut self) -> LoggedOp {
        let random = &mut self.random;
        let index = IndexId { volume: random.below(2) as u32, index: random.below(2) as u8 };
        let op = match random.below(13) {
            0..=4 => Op::Insert(self.value()),
            5 => Op::Delete,
            6..=8 => {
                let len = if random.one_in(4) { random.below(5000) } else { random.below(12) };
                Op::Patch { offset: random.below(20) as u32, bytes: Value::from(self.bytes(len)) }
            }
            9 => Op::Update(self.update()),
            10 => return LoggedOp::Range { index, range: self.range(), op: RangeOp::Delete },
            11 => {
                // Not the empty prefix, or maps would double again and again.
                let source = [&[*random.choose(b"ab\xff")], &*self.key()].concat().into();
                return LoggedOp::Clone { index, source, destination: self.key() };
            }
            _ => {
                let (range, update) = (self.range(), self.update());
                return LoggedOp::Range { index, range, op: RangeOp::Update(update) };
            }
        };
        LoggedOp::Point { index, key: self.key(), op }
    }

    fn key(&mut self) -> Key {
        let random = &mut self.random;
        let mut key = vec![*random.choose(b"ab\xff"); random.below(3) as usize];
        key.extend((0..random.below(3)).map(|_| *random.choose(b"a\x01\xff")));
        if random.one_in(200) {
            key.resize(key.len() + 9000, b'x');
        }
        key.into()
    }

    fn range(&mut self) -> KeyRange {
        match self.random.below(4) {
            0 => KeyRange { start: self.key(), end: None },
            1 => KeyRange::prefix(&self.key()),
            _ => KeyRange::new(self.key(), self.key()),
        }
    }

    fn update(&mut self) -> Update {
        let len = self.random.below(9);
        Update { function: self.random.below(3) as u16, argument: Bytes::from(self.bytes(len)) }
    }

    fn value(&mut self) -> Value {
        let random = &mut self.random;
        let len = match random.below(6) {
            0 => 0,
            1..=2 => random.below(30),
            3 => random.below(4096),
            4 => 4096 * random.between(1..=(self.longest / 4096).max(1)),
            _ => random.below(self.longest),
        };
        Value::from(self.bytes(len))
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.random.fill(&mut bytes);
        bytes
    }
}
