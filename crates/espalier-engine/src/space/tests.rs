//! The life of pieces, checkpoints, and what a crash between any two device writes leaves.

mod check;
mod crash;
mod life;
mod superblocks;

use super::*;
use crate::{ErrorKind, PieceKind};
use espalier_storage::{AlignedBuf, BLOCK, Device, Random, SimulatedDevice};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64_with_seed;

const BYTES: u64 = 4 << 20;
const OPTIONS: SpaceOptions = SpaceOptions { table_cache: 1 << 16, discard: true };

fn first(bytes: u64) -> Superblock {
    let geometry = Geometry::new(bytes, None).unwrap();
    Superblock::initial(geometry, [7; 16], "test", Duration::from_secs(5))
}

fn new_store(device: Arc<dyn Device>) -> Arc<Space> {
    let bytes = device.len();
    let device = GuardedDevice::new(device, false);
    Space::create(device, first(bytes), &VolumeTable::default(), &OPTIONS).unwrap()
}

fn simulated(seed: u64) -> Arc<SimulatedDevice> {
    Arc::new(SimulatedDevice::with_garbage(BYTES, seed))
}

/// Writes a piece with content that follows from its id.
fn write_piece(
    space: &Space,
    blocks: u32,
    kind: PieceKind,
    holds: Vec<Arc<PieceHandle>>,
) -> Result<Arc<PieceHandle>> {
    let id = space.new_id();
    let mut content = AlignedBuf::zeroed(blocks as usize * BLOCK);
    Random::new(id.0).fill(&mut content);
    let extent = space.allocate(blocks, None)?;
    if let Err(error) = space.device.write_at(extent.byte_offset(), &[&content]) {
        space.give_back(extent);
        return Err(error);
    }
    let checksum = xxh3_64_with_seed(&content, id.0);
    space.register(
        id,
        Location { extent, len: content.len() as u32, checksum, kind, scattered: false },
        holds,
    )
}

/// Reads a piece and checks that it is what was written.
fn read_piece(space: &Space, id: PieceId) {
    let location = space.locate(id).unwrap();
    let content = space.device.read_extent(location.extent).unwrap();
    assert_eq!(xxh3_64_with_seed(&content, id.0), location.checksum, "piece {id} was overwritten");
}

fn delta(pieces: &[(&PieceHandle, i64)]) -> HashMap<PieceId, i64> {
    pieces.iter().map(|(piece, delta)| (piece.id(), *delta)).collect()
}

/// Tables and superblock, with nothing else changed.
fn checkpoint(space: &Space) -> Result<()> {
    let roots = space.write_tables(&VolumeTable::default(), &[])?;
    space.commit_superblock(Superblock { roots, ..space.superblock() })
}

fn problems(space: &Space, references: &HashMap<PieceId, u64>) -> Vec<String> {
    problems_with(space, references, &[])
}

fn problems_with(space: &Space, references: &HashMap<PieceId, u64>, reclaim: &[PieceId]) -> Vec<String> {
    let references = references.iter().map(|(id, count)| (*id, (*count as i64).into())).collect();
    space.check(&references, reclaim, &mut |_| ())
}

/// Every block is free, fixed, committed, fresh or in limbo, and nothing else.
fn assert_accounted(space: &Space) {
    let committed = space_map::load(&space.tables.map, &space.geometry()).unwrap();
    let committed: u64 = committed.iter().map(|word| u64::from(word.count_ones())).sum();
    let stats = space.block_counts();
    assert_eq!(stats.total, stats.fixed + stats.free + committed + stats.fresh + stats.deferred, "{stats:?}");
}
