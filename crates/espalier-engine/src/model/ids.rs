//! Numbers with a meaning, shared by every module of the engine.

use std::fmt;

/// The order of messages: of two messages to one key the one with the higher MSN is newer.
/// One batch takes a contiguous run of them; 0 is older than every message.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Msn(pub u64);

/// The order of batches in the log; 0 precedes the first.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// Names an immutable piece (a node header or a part) for ever; never reused. 0 is no piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PieceId(pub u64);

impl fmt::Display for PieceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// A run of device blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// First block, in units of [`espalier_storage::BLOCK`].
    pub start: u64,
    /// Number of blocks.
    pub blocks: u32,
}

impl Extent {
    /// The block after the last; saturates, since damaged extents are looked at, too.
    pub fn end(self) -> u64 {
        self.start.saturating_add(u64::from(self.blocks))
    }

    /// First byte on the device.
    pub fn byte_offset(self) -> u64 {
        self.start * espalier_storage::BLOCK as u64
    }

    /// Length in bytes.
    pub fn byte_len(self) -> usize {
        self.blocks as usize * espalier_storage::BLOCK
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blocks {}..{}", self.start, self.end())
    }
}

/// What a piece holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PieceKind {
    /// A node header of this height; leaves have height 0.
    Node(u8),
    /// A key-value part: a basement of a leaf or a batch of messages.
    KeyValue,
    /// A value part: a run of large values.
    Values,
}

/// True if a checksum is what it must be. Under a fuzzer every one is: what it damages is to reach
/// the decoders, which must bear anything.
pub(crate) fn sums_agree(found: u64, expected: u64) -> bool {
    cfg!(fuzzing) || found == expected
}

/// Where a piece lies on the device, and what must be read there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Location {
    /// The blocks it occupies, all of its own; of a scattered piece its first list block.
    pub(crate) extent: Extent,
    /// Bytes used of the extent, from its start (or of the runs that the list names); at least 1.
    pub(crate) len: u32,
    /// XXH3 of what the piece's kind says is covered, seeded with the piece's id.
    pub(crate) checksum: u64,
    /// What it holds.
    pub(crate) kind: PieceKind,
    /// It lies in several extents, which a list names: [`ExtentList`](crate::extents::ExtentList).
    pub(crate) scattered: bool,
}

/// A change of what refers to a piece.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delta {
    /// References more, or fewer.
    pub(crate) count: i64,
    /// Of a value part: bytes more, or fewer, in values that are referred to.
    pub(crate) bytes: i64,
}

impl From<i64> for Delta {
    fn from(count: i64) -> Self {
        Self { count, bytes: 0 }
    }
}

/// A reference from a header: the piece, and of a value part the bytes of the values named in it.
pub(crate) type Reference = (PieceId, u64);

impl Location {
    /// Blocks that the piece occupies; of a scattered one without all list blocks but one.
    pub(crate) fn blocks(&self) -> u64 {
        if self.scattered {
            u64::from(self.len).div_ceil(espalier_storage::BLOCK as u64) + 1
        } else {
            u64::from(self.extent.blocks)
        }
    }
}

/// One index of one volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IndexId {
    /// The volume's number in the volume table.
    pub volume: u32,
    /// The index's number in its volume.
    pub index: u8,
}

impl fmt::Display for IndexId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.volume, self.index)
    }
}
