//! Figures about space.

use crate::PieceKind;
use crate::model::ids::Location;

/// Figures about space, in blocks unless they say otherwise.
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
    /// Bytes of value parts that nothing refers to: rewriting what lies beside them sets them free.
    pub dead_values: u64,
    /// The longest free run.
    pub longest_run: u64,
    /// Bytes of memory for the map of blocks.
    pub map_bytes: u64,
    /// Bytes of memory for table pages.
    pub table_bytes: u64,
    /// Bytes of those that changed and stay in memory until the next checkpoint writes them: a
    /// reason to spread large deletions over several.
    pub dirty_table_bytes: u64,
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
        *bytes += location.blocks() * espalier_storage::BLOCK as u64;
    }
}
