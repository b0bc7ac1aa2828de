//! What the log says of a full store: when requests begin to fail for lack of room, and when there
//! is room again.
//!
//! Not every ENOSPC means a full store (a reservation may be larger than what is free, attributes
//! have a limit), so the free space decides. That is looked at when a request fails while the store
//! does not count as full, and by the ticker while it does: so the log grows by two lines in one
//! interval of the ticker at most.

use espalier_fs::FileSystem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A store with more than this free is not full, in bytes; a small one if more than a 16th is.
const ENOUGH_BYTES: u64 = 64 << 20;

/// Whether the store counts as full.
pub(crate) struct Fullness {
    fs: Arc<FileSystem>,
    is_full: AtomicBool,
}

impl Fullness {
    /// Of a store that is not known to be full.
    pub(super) fn new(fs: Arc<FileSystem>) -> Self {
        Self { fs, is_full: AtomicBool::new(false) }
    }

    /// A request failed for lack of room.
    pub(super) fn refused(&self) {
        if self.is_full.load(Ordering::Acquire) {
            return;
        }
        let (free, enough) = self.free();
        if free < enough && !self.is_full.swap(true, Ordering::AcqRel) {
            tracing::warn!(
                free_bytes = free,
                "the file system is full: changes fail with ENOSPC; remove something, or make it larger \
                 (espalier resize)"
            );
        }
    }

    /// Looks whether there is room again.
    pub(crate) fn look(&self) {
        if !self.is_full.load(Ordering::Acquire) {
            return;
        }
        let (free, enough) = self.free();
        if free >= enough && self.is_full.swap(false, Ordering::AcqRel) {
            tracing::warn!(free_bytes = free, "the file system has room again");
        }
    }

    /// How much is free, and how much of it is enough.
    fn free(&self) -> (u64, u64) {
        let (free, total) = self.fs.room();
        (free, (total / 16).min(ENOUGH_BYTES))
    }
}
