//! A wrapper that counts what reaches a device, for figures and for tests of I/O cost.

use crate::{Device, Result};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Size classes of requests: class `i` holds requests of at most `4096 << i` bytes, the last all
/// larger ones.
pub const SIZE_CLASSES: usize = 14;

/// What one kind of request did so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RequestCount {
    /// Number of requests.
    pub requests: u64,
    /// Bytes in all of them.
    pub bytes: u64,
    /// Requests by [size class](SIZE_CLASSES).
    pub sizes: [u64; SIZE_CLASSES],
}

/// Everything that a [`CountingDevice`] counted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Reads.
    pub reads: RequestCount,
    /// Writes.
    pub writes: RequestCount,
    /// Discards.
    pub discards: RequestCount,
    /// Syncs.
    pub syncs: u64,
}

impl Counts {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads.since(&earlier.reads),
            writes: self.writes.since(&earlier.writes),
            discards: self.discards.since(&earlier.discards),
            syncs: self.syncs - earlier.syncs,
        }
    }
}

impl RequestCount {
    fn since(&self, earlier: &Self) -> Self {
        let mut sizes = self.sizes;
        sizes.iter_mut().zip(earlier.sizes).for_each(|(now, before)| *now -= before);
        Self { requests: self.requests - earlier.requests, bytes: self.bytes - earlier.bytes, sizes }
    }
}

impl fmt::Display for RequestCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requests, {} bytes", self.requests, self.bytes)?;
        for (class, requests) in self.sizes.iter().enumerate().filter(|(_, n)| **n != 0) {
            let relation = if class + 1 == SIZE_CLASSES { '>' } else { '≤' };
            let limit = if class + 1 == SIZE_CLASSES { 4u64 << (class - 1) } else { 4 << class };
            write!(f, ", {relation}{limit}K: {requests}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "reads:    {}", self.reads)?;
        writeln!(f, "writes:   {}", self.writes)?;
        writeln!(f, "discards: {}", self.discards)?;
        write!(f, "syncs:    {}", self.syncs)
    }
}

#[derive(Debug, Default)]
struct Meter {
    requests: AtomicU64,
    bytes: AtomicU64,
    sizes: [AtomicU64; SIZE_CLASSES],
}

impl Meter {
    fn count(&self, bytes: u64) {
        let blocks = bytes.div_ceil(crate::BLOCK as u64).max(1);
        let class = (blocks.next_power_of_two().trailing_zeros() as usize).min(SIZE_CLASSES - 1);
        self.requests.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
        self.sizes[class].fetch_add(1, Relaxed);
    }

    fn get(&self) -> RequestCount {
        RequestCount {
            requests: self.requests.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            sizes: std::array::from_fn(|class| self.sizes[class].load(Relaxed)),
        }
    }
}

/// Passes everything on to another device and counts it, failed requests included.
#[derive(Debug)]
pub struct CountingDevice<D> {
    inner: D,
    reads: Meter,
    writes: Meter,
    discards: Meter,
    syncs: AtomicU64,
}

impl<D: Device> CountingDevice<D> {
    /// Counts from 0.
    pub fn new(inner: D) -> Self {
        Self {
            inner,
            reads: Meter::default(),
            writes: Meter::default(),
            discards: Meter::default(),
            syncs: AtomicU64::new(0),
        }
    }

    /// The device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        Counts {
            reads: self.reads.get(),
            writes: self.writes.get(),
            discards: self.discards.get(),
            syncs: self.syncs.load(Relaxed),
        }
    }
}

impl<D: Device> Device for CountingDevice<D> {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.reads.count(buffer.len() as u64);
        self.inner.read_at(offset, buffer)
    }

    fn announce(&self, ranges: &[Range<u64>]) {
        self.inner.announce(ranges);
    }

    fn read_ahead_bytes(&self) -> u64 {
        self.inner.read_ahead_bytes()
    }

    fn keeps_order(&self) -> bool {
        self.inner.keeps_order()
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        self.writes.count(buffers.iter().map(|b| b.len() as u64).sum());
        self.inner.write_at(offset, buffers)
    }

    fn sync(&self) -> Result<()> {
        self.syncs.fetch_add(1, Relaxed);
        self.inner.sync()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.discards.count(length);
        self.inner.discard(offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlignedBuf, BLOCK, MemoryDevice};

    #[test]
    fn counts_requests_bytes_and_sizes() {
        let device = CountingDevice::new(MemoryDevice::new(64 << 20));
        let mut block = AlignedBuf::zeroed(BLOCK);
        let large = AlignedBuf::zeroed(33 << 20);
        device.write_at(0, &[&block, &block, &block]).unwrap();
        let before = device.counts();
        device.write_at(0, &[&large]).unwrap();
        device.read_at(0, &mut block).unwrap();
        device.discard(0, 8192).unwrap();
        device.sync().unwrap();
        assert!(device.read_at(64 << 20, &mut block).is_err());

        let counts = device.counts();
        assert_eq!((counts.writes.requests, counts.writes.bytes), (2, 3 * 4096 + (33 << 20)));
        assert_eq!((counts.writes.sizes[2], counts.writes.sizes[SIZE_CLASSES - 1]), (1, 1));
        assert_eq!((counts.reads.requests, counts.reads.sizes[0], counts.syncs), (2, 2, 1));
        let since = counts.since(&before);
        assert_eq!((since.writes.requests, since.writes.sizes[2], since.discards.bytes), (1, 0, 8192));
        assert_eq!(before.writes.to_string(), "1 requests, 12288 bytes, ≤16K: 1");
        assert!(counts.to_string().contains(">16384K: 1"));
    }
}
