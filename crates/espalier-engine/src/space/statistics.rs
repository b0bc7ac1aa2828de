//! Figures about space.

use crate::PieceKind;
use crate::model::ids::Location;
use espalier_storage::BLOCK;

/// How many blocks there are, and what they are used for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct BlockCounts {
    /// The whole device.
    pub(crate) total: u64,
    /// Superblocks and log.
    pub(crate) fixed: u64,
    /// Not used by anything.
    pub(crate) free: u64,
    /// Reserved for accepted operations.
    pub(crate) reserved: u64,
    /// Kept for writes to come.
    pub(crate) kept: u64,
    /// Set aside for deleting and checkpoints.
    pub(crate) pool: u64,
    /// Of pieces that no checkpoint counts yet.
    pub(crate) fresh: u64,
    /// Of dead pieces and pages that a superblock, a reader or a handle holds.
    pub(crate) deferred: u64,
    /// The longest free run.
    pub(crate) longest_run: u64,
}

/// Figures about space and the memory for its tables, all in bytes.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SpaceStats {
    /// The whole device.
    pub total: u64,
    /// Superblocks and log.
    pub fixed: u64,
    /// Not used by anything.
    pub free: u64,
    /// Reserved for accepted operations.
    pub reserved: u64,
    /// Kept for writes to come ([`Store::keep`](crate::Store::keep)).
    pub kept: u64,
    /// What is in memory only will take, when it was last counted.
    pub unwritten: u64,
    /// Set aside for deleting and checkpoints.
    pub pool: u64,
    /// Pieces that no checkpoint counts yet.
    pub fresh: u64,
    /// Dead pieces and pages that a superblock, a reader or a handle holds: their free is deferred.
    pub deferred: u64,
    /// In value parts, what nothing refers to: rewriting what lies beside it sets it free.
    pub dead_values: u64,
    /// The longest free run.
    pub longest_run: u64,
    /// Memory for the map of blocks.
    pub map_memory: u64,
    /// Memory for table pages.
    pub table_memory: u64,
    /// The part of that which changed and stays in memory until the next checkpoint writes it: a
    /// reason to spread large deletions over several.
    pub dirty_table_memory: u64,
}

impl SpaceStats {
    /// What `blocks` says, in bytes; all that is no matter of blocks is 0.
    pub(super) fn of(blocks: &BlockCounts) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(BLOCK as u64);
        Self {
            total: bytes(blocks.total),
            fixed: bytes(blocks.fixed),
            free: bytes(blocks.free),
            reserved: bytes(blocks.reserved),
            kept: bytes(blocks.kept),
            pool: bytes(blocks.pool),
            fresh: bytes(blocks.fresh),
            deferred: bytes(blocks.deferred),
            longest_run: bytes(blocks.longest_run),
            ..Self::default()
        }
    }
}

/// How many pieces the last checkpoint counts, by kind, and the device bytes they take.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Census {
    /// Node headers.
    pub nodes: u64,
    /// Key-value parts.
    pub parts: u64,
    /// Value parts.
    pub value_parts: u64,
    /// Bytes of node headers.
    pub node_bytes: u64,
    /// Bytes of key-value parts.
    pub part_bytes: u64,
    /// Bytes of value parts.
    pub value_part_bytes: u64,
}

impl Census {
    /// Counts one piece more.
    pub(super) fn add(&mut self, location: &Location) {
        let (count, bytes) = match location.kind {
            PieceKind::Node(_) => (&mut self.nodes, &mut self.node_bytes),
            PieceKind::KeyValue => (&mut self.parts, &mut self.part_bytes),
            PieceKind::Values => (&mut self.value_parts, &mut self.value_part_bytes),
        };
        *count += 1;
        *bytes += location.blocks() * BLOCK as u64;
    }
}
