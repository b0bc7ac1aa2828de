//! How a device is made and opened.

use crate::disk_cache::DiskCache;
use crate::format::Holder;
use espalier_storage::{Device, Error, ErrorKind, Operation, Result};
use std::sync::Arc;
use std::time::Duration;

/// Most blocks of a segment: its length in bytes has 32 bits, and it lies in memory as a whole.
const MAX_SEGMENT_BLOCKS: u32 = 65536;

/// How a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading what is there now.
    ReadOnly,
    /// For everything, if no other writer has the lease.
    Write,
    /// For everything; a writer that has the lease is fenced.
    TakeOver,
}

/// Sizes, times and names.
#[derive(Debug, Clone)]
pub struct Options {
    /// Blocks of a segment: 1 to 65536.
    pub segment_blocks: u32,
    /// Bytes of segments in memory that are not acknowledged yet; writers wait when there are more.
    pub resident_bytes: u64,
    /// Runs of the map in a root; a longer delta makes a map checkpoint.
    pub delta_runs: usize,
    /// Bytes of frames that are cached in memory.
    pub cache_bytes: u64,
    /// Bytes of frames that are got before a reader asks for them, and not read yet.
    pub ahead_bytes: u64,
    /// How long the lease lasts.
    pub lease: Duration,
    /// How long dead objects are kept.
    pub grace: Duration,
    /// How long a request is repeated; without end if there is none.
    pub budget: Option<Duration>,
    /// Try whether the server honours conditions. Only for servers that are known may it be false.
    pub probe: bool,
    /// What other writers are told.
    pub host: String,
    /// Frames on a local disk.
    pub disk_cache: Option<Arc<DiskCache>>,
    /// Where writes are durable before the store has them. No other process may use it. A device
    /// that is all zeros becomes a journal.
    pub journal: Option<Arc<dyn Device>>,
    /// With a journal: how long the store may be behind, if it is there.
    pub journal_delay: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            segment_blocks: 2048,
            resident_bytes: 96 << 20,
            delta_runs: 4096,
            cache_bytes: 64 << 20,
            ahead_bytes: 64 << 20,
            lease: Duration::from_secs(60),
            grace: Duration::from_secs(600),
            budget: Some(Duration::from_secs(60)),
            probe: true,
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            disk_cache: None,
            journal: None,
            journal_delay: Duration::from_secs(2),
        }
    }
}

impl Options {
    /// Fails if an option is out of its bounds.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`].
    pub(super) fn check(&self, device: &str) -> Result<()> {
        if (1..=MAX_SEGMENT_BLOCKS).contains(&self.segment_blocks) {
            return Ok(());
        }
        let message =
            format!("a segment has 1 to {MAX_SEGMENT_BLOCKS} blocks, and not {}", self.segment_blocks);
        Err(Error::new(ErrorKind::Unsupported, Operation::Open, device, message))
    }

    /// The holder of the lease: this process.
    pub(super) fn holder(&self) -> Holder {
        let host =
            if self.host.is_empty() { "a machine without a name".to_owned() } else { self.host.clone() };
        let lease_ms = u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX);
        Holder { host, process: std::process::id(), lease_ms }
    }
}

/// What to do if a store is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Present {
    /// Leave it as it is.
    Refuse,
    /// Replace it by an empty device; all that it had is lost.
    Replace,
}
