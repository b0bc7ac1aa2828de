//! Node ids: the names of nodes in calls, in the kernel's memory, and in file handles.
//!
//! A file handle of the kernel holds the id and the generation of a file, and comes back after the
//! node has left memory. So an id is a function of the inode number, which stays when a file is
//! renamed, and no two files of a volume share one:
//!
//! | id | of |
//! |---|---|
//! | below 2^46 | the number itself: files made in this volume |
//! | from 2^46 | 46 bits of a hash of a larger number: files in clones |
//! | from 2^47 | *temporary*: areas, and a file whose own id another node in memory has |
//!
//! A temporary id means nothing once its node has left memory. The generation tells apart what can
//! have one id at different times.

use crate::model::types::NodeId;

/// Ids have so many bits; the mount needs the others.
const HASHED: u64 = 1 << 46;
const TEMPORARY: u64 = 1 << 47;

/// What tells a node from all others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Identity {
    pub(crate) id: NodeId,
    /// Unlike the id it belongs to no other node while the file system is open.
    pub(crate) serial: u64,
}

/// The id of a file with number `ino`, unless another node has it.
pub(crate) fn id_of(ino: u64) -> NodeId {
    if ino < HASHED { NodeId(ino) } else { NodeId(HASHED | mix(ino) & (HASHED - 1)) }
}

/// The id of the node with this serial number, if it gets a temporary one.
pub(crate) fn temporary_id(serial: u64) -> NodeId {
    NodeId(TEMPORARY | serial & (TEMPORARY - 1))
}

/// True for the id of a node that has none of its own.
pub(crate) fn is_temporary(id: NodeId) -> bool {
    id.0 & TEMPORARY != 0
}

/// The generation that goes with the id of a file, from what identifies its volume, its number and
/// the time of its creation.
pub(crate) fn generation(volume: u64, ino: u64, btime: i64) -> u32 {
    mix(mix(volume ^ ino) ^ btime as u64) as u32
}

/// Spreads the bits of a number; no two numbers give the same.
fn mix(number: u64) -> u64 {
    let mixed = (number ^ number >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ mixed >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_files_and_temporary_ones_lie_apart() {
        for ino in [16, 1 << 45, HASHED - 1, HASHED, 1 << 63, u64::MAX] {
            let id = id_of(ino).0;
            assert!(id < TEMPORARY && (ino >= HASHED || id == ino), "{ino}: {id}");
        }
        assert!(temporary_id(7).0 >= TEMPORARY && temporary_id(u64::MAX).0 < 1 << 48);
    }

    #[test]
    fn a_generation_depends_on_volume_number_and_time() {
        let all = [generation(1, 16, 5), generation(2, 16, 5), generation(1, 17, 5), generation(1, 16, 6)];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
    }
}
