//! Window of a sequential scan: how far ahead of the reader, and how far behind it, keys are kept.

use crate::pieces::LEAST_DIRECT_BYTES;
use std::ops::Range;

/// Keys that are kept behind the reader, as far as they take half a window: several reads at a time
/// arrive in any order, and the mount prefetches files for a reader that comes later.
const KEPT_KEYS_BEHIND_READER: usize = 64;

/// The same for a scan of large reads, each of which has many keys.
const KEPT_KEYS_BEHIND_LARGE_READER: usize = 256;

/// A scan of large reads becomes one of small reads after this many small ones in a row: what is
/// read far ahead of small files has left the caches of the processor when it is used.
const SMALL_READS_AFTER_LARGE: u8 = 16;

/// The part of the bytes that a device wants announced which the first window has: of large reads,
/// and of small ones, which may end soon.
const FIRST_LARGE_PART: u64 = 4;
const FIRST_SMALL_PART: u64 = 16;

/// The first window of a scan and its longest, in bytes of memory. The longest keeps a device busy.
/// For large reads it is longer: where the mount prefetches large files for an application, the two
/// read in turn and use up a short window faster than the next one is found.
/// Where the device wants more bytes announced than that, the longest has as many, and the first
/// has a part of them: each doubling would take as long as one of its requests.
fn window_bytes(is_large: bool, device_bytes: u64) -> Range<u64> {
    let sizes = if is_large { 2 << 20..16 << 20 } else { 256 << 10..4 << 20 };
    let part = if is_large { FIRST_LARGE_PART } else { FIRST_SMALL_PART };
    sizes.start.max(device_bytes / part)..sizes.end.max(device_bytes)
}

/// See the [module](self).
pub(super) struct Window {
    /// Bytes of the next window.
    bytes: u64,
    /// Bytes of the longest window that there is room for.
    limit: u64,
    /// Small reads that are left until it no longer counts as the window of large reads.
    small_reads_left: u8,
    /// Bytes that the device wants announced.
    device_bytes: u64,
}

impl Window {
    /// The first window of a reader of large or small pieces, of a device that wants so many
    /// bytes announced.
    pub(super) fn new(is_large: bool, device_bytes: u64) -> Self {
        let small_reads_left = if is_large { SMALL_READS_AFTER_LARGE } else { 0 };
        let bytes = window_bytes(is_large, device_bytes).start;
        Self { bytes, limit: u64::MAX, small_reads_left, device_bytes }
    }

    /// True if the reader asks for large pieces.
    pub(super) fn is_large(&self) -> bool {
        self.small_reads_left > 0
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many keys are kept behind the reader at most.
    pub(super) fn kept_keys(&self) -> usize {
        if self.is_large() { KEPT_KEYS_BEHIND_LARGE_READER } else { KEPT_KEYS_BEHIND_READER }
    }

    /// The reader asks for `bytes` bytes.
    pub(super) fn note_read(&mut self, bytes: u64) {
        self.small_reads_left = match bytes >= LEAST_DIRECT_BYTES as u64 {
            true => SMALL_READS_AFTER_LARGE,
            false => self.small_reads_left.saturating_sub(1),
        };
        self.bytes = self.bytes.min(window_bytes(self.is_large(), self.device_bytes).end);
    }

    /// With fewer bytes than this ahead of a reader that asks for `bytes` at a time, a walk is due.
    pub(super) fn least_ahead(&self, bytes: u64) -> u64 {
        (self.bytes / 2).max(bytes.saturating_mul(2)).min(self.limit)
    }

    /// A walk ended for which there was no memory (`starved`), or else room for `limit` bytes. With
    /// a smaller window the keys kept behind the reader take less room, too.
    pub(super) fn adapt(&mut self, starved: bool, limit: u64) {
        let sizes = window_bytes(self.is_large(), self.device_bytes);
        let wanted = if starved { (self.bytes / 2).max(sizes.start) } else { self.bytes * 2 };
        (self.bytes, self.limit) = (wanted.min(sizes.end).min(limit), limit);
    }
}
