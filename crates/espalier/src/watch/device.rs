//! A device that measures what is asked of it.

use super::figures::DeviceFigures;
use espalier_fuse::metrics::SharedHistogram;
use espalier_storage::{Device, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A device below a store, and what it was asked for.
#[derive(Debug)]
pub(crate) struct MeteredDevice {
    inner: Arc<dyn Device>,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    reads: SharedHistogram,
    writes: SharedHistogram,
    syncs: SharedHistogram,
    in_flight: AtomicU64,
}

impl MeteredDevice {
    /// Measures what is asked of `inner`.
    pub(crate) fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            reads: SharedHistogram::default(),
            writes: SharedHistogram::default(),
            syncs: SharedHistogram::default(),
            in_flight: AtomicU64::new(0),
        })
    }

    /// What was measured so far.
    pub(super) fn figures(&self) -> DeviceFigures {
        DeviceFigures {
            read_bytes: self.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.written_bytes.load(Ordering::Relaxed),
            reads: (&self.reads.snapshot()).into(),
            writes: (&self.writes.snapshot()).into(),
            syncs: (&self.syncs.snapshot()).into(),
            in_flight: self.in_flight.load(Ordering::Relaxed),
        }
    }

    fn measure<T>(&self, times: &SharedHistogram, call: impl FnOnce(&dyn Device) -> Result<T>) -> Result<T> {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let begun = Instant::now();
        let result = call(&*self.inner);
        times.count(begun.elapsed());
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

impl Device for MeteredDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        self.read_bytes.fetch_add(buffer.len() as u64, Ordering::Relaxed);
        self.measure(&self.reads, |device| device.read_at(offset, buffer))
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
        let bytes: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        self.written_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.measure(&self.writes, |device| device.write_at(offset, buffers))
    }

    fn sync(&self) -> Result<()> {
        self.measure(&self.syncs, |device| device.sync())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.inner.discard(offset, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_storage::{AlignedBuf, BLOCK, MemoryDevice};

    #[test]
    fn requests_are_counted_with_their_bytes() {
        let device = MeteredDevice::new(Arc::new(MemoryDevice::new(1 << 20)));
        let mut block = AlignedBuf::zeroed(BLOCK);
        device.write_at(0, &[&block, &block]).unwrap();
        device.read_at(0, &mut block).unwrap();
        assert!(device.read_at(1 << 20, &mut block).is_err());
        device.sync().unwrap();
        let figures = device.figures();
        let count = |times: &super::super::figures::Times| times.histogram().count();
        assert_eq!((figures.written_bytes, figures.read_bytes), (2 * BLOCK as u64, 2 * BLOCK as u64));
        assert_eq!((count(&figures.writes), count(&figures.reads), count(&figures.syncs)), (1, 2, 1));
        assert_eq!((figures.in_flight, device.len(), device.name()), (0, 1 << 20, "memory"));
    }
}
