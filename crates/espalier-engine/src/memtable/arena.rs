//! Memtable arena: keys and small values of one memtable, copied into chunks of memory one after
//! the other.
//!
//! A key with a small value as pieces of memory of their own would be four of them, which an
//! allocator rounds up, and which leave holes where they lay between others when the memtable goes.
//! A chunk goes as a whole: when the memtable and all readers that hold something of it have gone.

use crate::model::op::{Op, Update};
use crate::model::value::{LARGE_VALUE, Repr, Value};
use bytes::{Bytes, BytesMut};

/// Bytes of a chunk.
const CHUNK_BYTES: usize = 64 << 10;

/// See the [module](self).
#[derive(Default)]
pub(super) struct Arena {
    /// What is left of the newest chunk.
    free: BytesMut,
}

impl Arena {
    /// A copy of `bytes`, which are fewer than a chunk has.
    pub(super) fn copy(&mut self, bytes: &[u8]) -> Bytes {
        // What would leave a large part of a chunk unused is a piece of memory of its own.
        if bytes.len() > CHUNK_BYTES / 8 {
            return Bytes::copy_from_slice(bytes);
        }
        if self.free.capacity() < bytes.len() {
            self.free = BytesMut::with_capacity(CHUNK_BYTES);
        }
        self.free.extend_from_slice(bytes);
        self.free.split().freeze()
    }

    /// `op` with a copy of what it carries; large values are shared with others, and stay as they
    /// are.
    pub(super) fn copy_op(&mut self, op: &Op) -> Op {
        match op {
            Op::Insert(value) => Op::Insert(self.copy_value(value)),
            Op::Patch { offset, bytes } => Op::Patch { offset: *offset, bytes: self.copy_value(bytes) },
            Op::Update(Update { function, argument }) => {
                Op::Update(Update { function: *function, argument: self.copy(argument) })
            }
            Op::Delete => Op::Delete,
        }
    }

    fn copy_value(&mut self, value: &Value) -> Value {
        match value.repr() {
            Repr::Small(bytes) => {
                debug_assert!(bytes.len() < LARGE_VALUE);
                Value::from(self.copy(bytes))
            }
            Repr::Large(_) | Repr::Composed(_) => value.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_lie_one_after_the_other_in_chunks() {
        let mut arena = Arena::default();
        let all: Vec<Bytes> = (0..2000_u32).map(|n| arena.copy(&n.to_be_bytes().repeat(25))).collect();
        for (n, copy) in all.iter().enumerate() {
            assert_eq!(copy[..], (n as u32).to_be_bytes().repeat(25), "{n}");
        }
        let neighbours = all.windows(2).filter(|pair| pair[0].as_ptr_range().end == pair[1].as_ptr());
        // 655 of them fit into a chunk.
        assert!(neighbours.count() >= 1990);
        assert_eq!(arena.copy(&[7; CHUNK_BYTES]), vec![7; CHUNK_BYTES]);
        assert!(arena.copy(&[]).is_empty());
    }

    #[test]
    fn operations_are_copied_with_what_they_carry() {
        let mut arena = Arena::default();
        let large = Value::from(vec![1; LARGE_VALUE]);
        let update = Op::Update(Update { function: 3, argument: Bytes::from_static(b"argument") });
        let patch = Op::Patch { offset: 5, bytes: Value::from(&b"patch"[..]) };
        let small = Op::Insert(Value::from(&b"small"[..]));
        for op in [small, patch, update, Op::Delete, Op::Insert(large.clone())] {
            assert_eq!(arena.copy_op(&op), op);
        }
        let Op::Insert(copy) = arena.copy_op(&Op::Insert(large.clone())) else { panic!("an insert") };
        assert!(std::sync::Arc::ptr_eq(copy.large().unwrap(), large.large().unwrap()));
    }
}
