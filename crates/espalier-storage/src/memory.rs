//! A device in memory, for tests and RAM volumes.

use crate::request::{check_discard, check_read, check_write};
use crate::{BLOCK, Device, Result};
use espalier_sync::RwLock;
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
}

impl Device for MemoryDevice {
    fn name(&self) -> &str {
        "memory"
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        check_read(self, offset, buffer)?;
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
        check_write(self, offset, buffers)?;
        let mut blocks = self.blocks.write();
        let mut number = offset / BLOCK as u64;
        for buffer in buffers {
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
        check_discard(self, offset, length)?;
        let first = offset / BLOCK as u64;
        let mut blocks = self.blocks.write();
        let gone: Vec<u64> = blocks.range(first..first + length / BLOCK as u64).map(|(n, _)| *n).collect();
        for number in gone {
            blocks.remove(&number);
        }
        Ok(())
    }
}
