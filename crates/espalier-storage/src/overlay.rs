//! A device over another that is only read: what is written stays in memory.
//!
//! So a store can be repaired, looked at and forgotten, without a change to where it lies.

use crate::request::{check_discard, check_read, check_write};
use crate::{BLOCK, Device, MemoryDevice, Result};
use espalier_sync::RwLock;
use std::collections::HashSet;
use std::ops::Range;

/// Reads what was written to it, and everything else from the device below.
#[derive(Debug)]
pub struct OverlayDevice<D> {
    below: D,
    above: MemoryDevice,
    /// Numbers of the blocks that were written.
    written: RwLock<HashSet<u64>>,
}

impl<D: Device> OverlayDevice<D> {
    /// An overlay without changes.
    pub fn new(below: D) -> Self {
        let above = MemoryDevice::new(below.len());
        Self { below, above, written: RwLock::default() }
    }
}

impl<D: Device> Device for OverlayDevice<D> {
    fn name(&self) -> &str {
        self.below.name()
    }

    fn len(&self) -> u64 {
        self.below.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        check_read(self, offset, buffer)?;
        let written = self.written.read();
        let first = offset / BLOCK as u64;
        let blocks = (buffer.len() / BLOCK) as u64;
        // Runs of blocks that lie in one place.
        let mut at = 0;
        while at < blocks {
            let is_above = written.contains(&(first + at));
            let mut end = at + 1;
            while end < blocks && written.contains(&(first + end)) == is_above {
                end += 1;
            }
            let run = &mut buffer[at as usize * BLOCK..end as usize * BLOCK];
            let place = offset + at * BLOCK as u64;
            if is_above {
                self.above.read_at(place, run)?
            } else {
                self.below.read_at(place, run)?
            }
            at = end;
        }
        Ok(())
    }

    fn announce(&self, ranges: &[Range<u64>]) {
        self.below.announce(ranges);
    }

    fn read_ahead_bytes(&self) -> u64 {
        self.below.read_ahead_bytes()
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        let length = check_write(self, offset, buffers)?;
        let mut written = self.written.write();
        self.above.write_at(offset, buffers)?;
        written.extend(offset / BLOCK as u64..(offset + length) / BLOCK as u64);
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        check_discard(self, offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AlignedBuf;

    #[test]
    fn writes_stay_above() {
        let below = std::sync::Arc::new(MemoryDevice::new(64 << 10));
        let filled = |byte: u8, blocks: usize| {
            let mut buffer = AlignedBuf::zeroed(blocks * BLOCK);
            buffer.fill(byte);
            buffer
        };
        below.write_at(0, &[&filled(1, 16)]).unwrap();
        let over = OverlayDevice::new(below.clone());
        over.write_at(3 * BLOCK as u64, &[&filled(2, 2)]).unwrap();
        over.write_at(7 * BLOCK as u64, &[&filled(3, 1)]).unwrap();
        over.sync().unwrap();
        let read = |device: &dyn Device| {
            let mut all = AlignedBuf::zeroed(16 * BLOCK);
            device.read_at(0, &mut all).unwrap();
            all.chunks(BLOCK).map(|block| block[77]).collect::<Vec<_>>()
        };
        assert_eq!(read(&over), [1, 1, 1, 2, 2, 1, 1, 3, 1, 1, 1, 1, 1, 1, 1, 1]);
        assert_eq!(read(&*below), [1; 16]);
        assert!(over.write_at(64 << 10, &[&filled(1, 1)]).is_err());
    }
}
