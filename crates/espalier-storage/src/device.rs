//! The one trait through which all I/O goes.

use crate::Result;
use std::fmt::Debug;
use std::ops::Range;

/// The unit of I/O in bytes: offsets, lengths and buffer addresses are multiples of it.
pub const BLOCK: usize = 4096;

/// A block device, image file, or a stand-in for one. Calls block; many threads may call at once.
pub trait Device: Send + Sync + Debug {
    /// The device as the user knows it: a path, or a word like `memory`.
    fn name(&self) -> &str;

    /// Size in bytes, a multiple of [`BLOCK`].
    fn len(&self) -> u64;

    /// True if the device has no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buffer` from byte `offset`. Blocks never written read as zeros or as anything.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfRange`](crate::ErrorKind::OutOfRange) past the end, otherwise whatever the
    /// device says.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()>;

    /// Announces reads of these byte ranges, which begin and end at whole blocks and will follow
    /// soon, in about this order. A hint: not all that is announced need be read, nor the other way
    /// round. Does not wait for the data; may wait for metadata that locates it.
    fn announce(&self, ranges: &[Range<u64>]) {
        let _ = ranges;
    }

    /// How many bytes should have been announced at any time, so that the device is never idle; 0
    /// if announcements change nothing.
    fn read_ahead_bytes(&self) -> u64 {
        0
    }

    /// True if writes that follow each other are found in that order after a crash: if a write is
    /// found, then so is every write that returned before it began. [`Device::sync`] makes writes
    /// durable then, but no order needs it.
    fn keeps_order(&self) -> bool {
        false
    }

    /// Writes the concatenation of `buffers` at byte `offset`. Each buffer is aligned by itself.
    /// Not durable before [`Device::sync`].
    ///
    /// # Errors
    /// As for [`Device::read_at`]; after an error the content of the range is undefined.
    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()>;

    /// Makes every write that returned before this call began durable.
    ///
    /// # Errors
    /// After an error nothing may be assumed about any write since the last successful sync.
    fn sync(&self) -> Result<()>;

    /// Tells the device that the range is no longer needed; reading it later yields anything.
    /// A hint: devices without support return `Ok`.
    ///
    /// # Errors
    /// Whatever the device says, other than lack of support.
    fn discard(&self, offset: u64, length: u64) -> Result<()>;
}

/// A shared device is a device.
impl<D: Device + ?Sized> Device for std::sync::Arc<D> {
    fn name(&self) -> &str {
        (**self).name()
    }

    fn len(&self) -> u64 {
        (**self).len()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        (**self).read_at(offset, buffer)
    }

    fn announce(&self, ranges: &[Range<u64>]) {
        (**self).announce(ranges);
    }

    fn read_ahead_bytes(&self) -> u64 {
        (**self).read_ahead_bytes()
    }

    fn keeps_order(&self) -> bool {
        (**self).keeps_order()
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        (**self).write_at(offset, buffers)
    }

    fn sync(&self) -> Result<()> {
        (**self).sync()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        (**self).discard(offset, length)
    }
}
