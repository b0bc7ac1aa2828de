//! Options: what a store is formatted with and opened with.

use crate::model::op::MergeFunctions;

/// How parts are compressed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    #[default]
    None,
    /// LZ4: little work, modest gain.
    Lz4,
    /// Zstandard: more work, more gain.
    Zstd,
}

impl Compression {
    /// Its number in the format.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::None => 0,
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    /// What the number stands for.
    pub(crate) fn from_code(code: u8) -> Option<Self> {
        [Self::None, Self::Lz4, Self::Zstd].into_iter().find(|c| c.code() == code)
    }
}

/// Fixed when a store is made.
#[derive(Debug, Clone, Default)]
pub struct FormatOptions {
    /// How parts are compressed.
    pub compression: Compression,
    /// Size of the log region in bytes, which data cannot have. `None`: a sixteenth of the device,
    /// at least 1 MiB and at most 1 GiB. In any case at most a quarter of the device.
    pub log_bytes: Option<u64>,
    /// A name for people, up to 64 bytes.
    pub label: String,
}

/// Chosen each time a store is opened.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// The memory budget in bytes: cache, buffers and what is not yet written.
    pub memory: u64,
    /// Refuse every change; nothing is written, not even by recovery.
    pub read_only: bool,
    /// The merge functions that messages in the store may name.
    pub merge: MergeFunctions,
    /// Sizes of the structures in memory and on the device.
    pub tuning: Tuning,
    /// Tell the device about space that is no longer used.
    pub discard: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            memory: 512 << 20,
            read_only: false,
            merge: MergeFunctions::new(),
            tuning: Tuning::default(),
            discard: false,
        }
    }
}

/// Sizes of the structures, in bytes where not said otherwise. They may change from one opening to
/// the next; what is on the device stays readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// A memtable is sealed when it holds this much; 0 chooses from the memory budget.
    pub memtable: usize,
    /// Aim for the body of a key-value part.
    pub part: usize,
    /// A leaf with more than this in its parts and values is split.
    pub leaf: usize,
    /// Most children of an interior node, in number.
    pub fanout: usize,
    /// An edge with more than this in its runs is flushed.
    pub edge: usize,
    /// Groups of the log with at least this much in large values write them into value parts first.
    pub early_binding: usize,
    /// Small batches are carried out as one until they have so many operations; 0 carries out each
    /// by itself.
    pub joined: usize,
    /// A worker carries out what was accepted when it has so many operations; 0 leaves nothing to
    /// workers.
    pub accepted: usize,
    /// For measuring what the log costs: batches go into none, and a sync is a checkpoint.
    pub unlogged: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            memtable: 0,
            part: 16 << 10,
            leaf: 4 << 20,
            fanout: 16,
            edge: 2 << 20,
            early_binding: 1 << 20,
            joined: 256,
            accepted: 128,
            unlogged: false,
        }
    }
}

impl Tuning {
    /// Sizes so small that every structural case occurs within a few hundred operations.
    pub fn tiny() -> Self {
        Self {
            memtable: 2 << 10,
            part: 256,
            leaf: 2 << 10,
            fanout: 4,
            edge: 1 << 10,
            early_binding: 16 << 10,
            joined: 8,
            accepted: 4,
            unlogged: false,
        }
    }
}
