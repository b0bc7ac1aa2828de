//! A device in memory, for tests and RAM volumes.

use crate::{BLOCK, Device, Error, ErrorKind, Operation, Result};
use parking_lot::RwLock;
use std::collections::BTreeMap;

/// A sparse device in memory; blocks never written read as zeros.
#[derive(Debug)]
pub struct MemoryDevice {
    len: u64,
    blocks: RwLock<BTreeMap<u64, Box<[u8]>>>,
}

impl MemoryDevice {
    /// An empty device of `len` bytes, rounded down to whole blocks.
    pub fn new(len: u64) -> Self {
        Self { len: len / BLOCK as u64 * BLOCK as u64, blocks: RwLock::default() }
    }

    fn check(&self, operation: Operation, offset: u64, length: usize) -> Result<()> {
        assert!(offset.is_multiple_of(BLOCK as u64) && length.is_multiple_of(BLOCK), "unaligned {operation}");
        if offset.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(Error {
                kind: ErrorKind::OutOfRange,
                operation,
                device: self.name().into(),
                offset,
                length: length as u64,
                message: format!("the device has {} bytes", self.len),
                source: None,
            });
        }
        Ok(())
    }
}

impl Device for MemoryDevice {
    fn name(&self) -> &str {
        "memory"
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.check(Operation::Read, offset, buffer.len())?;
        let blocks = self.blocks.read();
        for (i, chunk) in buffer.chunks_mut(BLOCK).enumerate() {
            match blocks.get(&(offset / BLOCK as u64 + i as u64)) {
                Some(block) => chunk.copy_from_slice(block),
                None => chunk.fill(0),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        self.check(Operation::Write, offset, buffers.iter().map(|b| b.len()).sum())?;
        let mut blocks = self.blocks.write();
        let mut number = offset / BLOCK as u64;
        for buffer in buffers {
            assert!(buffer.len().is_multiple_of(BLOCK), "unaligned write");
            for chunk in buffer.chunks(BLOCK) {
                blocks.insert(number, chunk.into());
                number += 1;
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.check(Operation::Discard, offset, length as usize)?;
        let first = offset / BLOCK as u64;
        let mut blocks = self.blocks.write();
        let gone: Vec<u64> = blocks.range(first..first + length / BLOCK as u64).map(|(n, _)| *n).collect();
        for number in gone {
            blocks.remove(&number);
        }
        Ok(())
    }
}
