//! Space: which blocks hold what, and where each piece lies.
//!
//! Two maps. `used` (in memory only: [`allocator`]) says what may not be allocated. `committed`
//! (the space map, a paged table) says what the next checkpoint accounts for. A *fresh* piece is in
//! `used` only; it enters `committed` when a checkpoint counts it, leaves `committed` when its
//! count falls to 0, and leaves `used` when in addition the superblock that needed it is obsolete
//! and no reader is left that could reach it ([`deferred_free`]).
//!
//! Components: [`FreeBlocks`] (the map `used`), [`Reservations`], [`DeferredFree`],
//! [`ExtentLists`], [`Tables`].
//!
//! Protocol of writing a piece: see [`Locator`]. Protocol of a checkpoint, by one thread at a time:
//! write the pieces, [`Space::count`] the changes of references (again for what dead nodes referred
//! to, then [`Space::uncount_node`] them), [`Space::write_tables`], [`Space::commit_superblock`].
//!
//! Invariants:
//! - `used` = superblocks + log + `committed` + fresh + deferred + what is allocated and not yet
//!   registered;
//! - `committed` = extents of the node translation table + pages of all tables, disjoint;
//! - no block that a superblock on the device may need is written to;
//! - after an error that leaves the counts half changed the device is latched: no checkpoint will
//!   commit them.

mod allocator;
mod byte_table;
mod check;
mod commit;
mod deferred_free;
mod extent_lists;
mod free_blocks;
mod locator;
mod page;
mod piece_table;
mod rebuild;
mod reclaim_list;
mod reservations;
mod space_map;
mod statistics;
mod superblock;
mod table;
mod tables;
mod volume_table;

pub use allocator::RunHistogram;
pub(crate) use deferred_free::Pin;
pub(crate) use locator::Locator;
pub(crate) use piece_table::table_page_of;
pub(crate) use rebuild::RebuiltSpace;
pub(crate) use reservations::{Purpose, Reservation};
pub(crate) use statistics::BlockCounts;
pub use statistics::{Census, SpaceStats};
use superblock::Bounds;
pub use superblock::MAX_LABEL;
pub(crate) use superblock::{
    Geometry, Roots, Superblock, erase_superblocks, heal, read_superblocks, resize_offline,
};
pub(crate) use volume_table::{IndexRoot, VolumeEntry, VolumeTable};
pub use volume_table::{MAX_PARAMETERS, MAX_VOLUME_NAME};

#[cfg(doc)]
use crate::ErrorKind;
use crate::device::GuardedDevice;
use crate::extents::ExtentList;
use crate::lock_order::{RankedRwLock, rank};
use crate::model::error::Context;
use crate::model::ids::Location;
use crate::model::piece::PieceHandle;
use crate::{Error, Extent, PieceId, Result};
use allocator::Allocator;
use deferred_free::DeferredFree;
use espalier_storage::BLOCK;
use extent_lists::ExtentLists;
use free_blocks::FreeBlocks;
use reservations::Reservations;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tables::Tables;

/// Ids skipped when a store is opened: pieces that a crash made vanish had ids behind the recorded
/// one, and fewer than this (they would fill a TiB).
const SKIPPED_PIECE_IDS: u64 = 1 << 28;
/// How to open a space.
#[derive(Debug, Clone)]
pub(crate) struct SpaceOptions {
    /// Bounds the clean table pages in memory, in bytes.
    pub(crate) table_cache: usize,
    /// Tell the device about freed space.
    pub(crate) discard: bool,
}

/// What a store consists of, as the last superblock says.
pub(crate) struct OpenedSpace {
    /// The space.
    pub(crate) space: Arc<Space>,
    /// The volumes.
    pub(crate) volumes: VolumeTable,
    /// Nodes without references; their own references are still to be subtracted.
    pub(crate) reclaim: Vec<PieceId>,
    /// Why superblocks cannot be read that should be.
    pub(crate) damaged: Vec<Error>,
}

/// The space of one store.
pub(crate) struct Space {
    device: Arc<GuardedDevice>,
    bounds: Bounds,
    free_blocks: Arc<FreeBlocks>,
    /// Blocks reserved for accepted batches, and the pool.
    pub(crate) reservations: Arc<Reservations>,
    /// Pieces that no checkpoint counts, and what keeps their blocks.
    pub(crate) deferred: Arc<DeferredFree>,
    extent_lists: Arc<ExtentLists>,
    /// What a checkpoint accounts for.
    pub(crate) tables: Tables,
    next_piece: AtomicU64,
    /// The newest superblock on the device; held by a checkpoint while it counts and writes tables.
    current: RankedRwLock<Superblock, { rank::SUPERBLOCK }>,
}

impl Space {
    /// Makes an empty store: erases what superblocks there are and commits `first` with `volumes`.
    /// The log region is the caller's to prepare before.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn create(
        device: Arc<GuardedDevice>,
        first: Superblock,
        volumes: &VolumeTable,
        options: &SpaceOptions,
    ) -> Result<Arc<Self>> {
        erase_superblocks(&device)?;
        if options.discard {
            discard_data(&device, first.geometry);
        }
        let bare = Superblock { roots: Roots::default(), generation: 0, ..first };
        let space = Self::assemble(device, bare.clone(), options, Vec::new(), bare.next_piece.0);
        let roots = space.write_tables(volumes, &[])?;
        space.commit_superblock(Superblock { roots, ..bare })?;
        Ok(space)
    }

    /// Opens the store on `device` as its newest superblock says.
    ///
    /// # Errors
    /// As for [`read_superblocks`]; [`ErrorKind::Damaged`] if a table cannot be trusted.
    pub(crate) fn open(device: Arc<GuardedDevice>, options: &SpaceOptions) -> Result<OpenedSpace> {
        let found = read_superblocks(&device)?;
        let superblock = found.newest;
        let geometry = superblock.geometry;
        // The tables are made twice: the first ones load what must be known to make the space.
        let tables = Tables::new(&device, &geometry.into(), &superblock, options.table_cache);
        let committed = space_map::load(&tables.map, &geometry).context(|| "loading the space map".into())?;
        let next_piece = superblock.next_piece.0.saturating_add(SKIPPED_PIECE_IDS);
        let space = Self::assemble(device, superblock, options, committed, next_piece);
        let (volumes, reclaim) = (space.tables.load_volumes()?, space.tables.load_reclaim()?);
        space.count_pages();
        Ok(OpenedSpace { space, volumes, reclaim, damaged: found.damaged })
    }

    fn assemble(
        device: Arc<GuardedDevice>,
        superblock: Superblock,
        options: &SpaceOptions,
        mut used: Vec<u64>,
        next_piece: u64,
    ) -> Arc<Self> {
        let geometry = superblock.geometry;
        used.resize(geometry.blocks.div_ceil(64) as usize, 0);
        for block in 0..geometry.data_start() {
            used[(block / 64) as usize] |= 1 << (block % 64);
        }
        for block in geometry.data_end()..geometry.blocks {
            used[(block / 64) as usize] |= 1 << (block % 64);
        }
        let bounds = Bounds::from(geometry);
        let free_blocks = Arc::new(FreeBlocks::new(device.clone(), Allocator::new(geometry.blocks, used)));
        let region = geometry.data_end() - geometry.data_start();
        let reservations = Arc::new(Reservations::new(free_blocks.clone(), region));
        let extent_lists = Arc::new(ExtentLists::new(device.clone(), bounds.clone()));
        let deferred =
            DeferredFree::new(device.clone(), options.discard, free_blocks.clone(), extent_lists.clone());
        Arc::new(Self {
            tables: Tables::new(&device, &bounds, &superblock, options.table_cache),
            device,
            bounds,
            free_blocks,
            reservations,
            deferred: Arc::new(deferred),
            extent_lists,
            next_piece: AtomicU64::new(next_piece),
            current: RankedRwLock::new(superblock),
        })
    }

    fn geometry(&self) -> Geometry {
        self.bounds.get()
    }

    /// Makes the store as large as `blocks`, durably: what is added is free from then on. Not while
    /// a checkpoint is made.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it has more or the device fewer; of the device, which is
    /// latched then.
    pub(crate) fn resize_online(&self, blocks: u64) -> Result<()> {
        let _change = self.tables.begin_change();
        let before = self.geometry();
        let mut superblock = self.superblock();
        // The second copy of the last checkpoint need not have been durable yet.
        self.device.sync().context(|| "syncing before the store grows".into())?;
        superblock::write_resized(&self.device, &mut superblock, blocks)?;
        *self.current.write() = superblock;
        // A caller that is handed a new block must find it within bounds.
        self.bounds.grow(blocks);
        let after = self.geometry();
        self.free_blocks.with_used(|used| used.grow(after.blocks, before.data_end(), after.data_end()));
        self.reservations.grow(after.data_end() - after.data_start());
        Ok(())
    }

    /// Gives the store another label, durably. Not while a checkpoint is made.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it cannot be one; of the device, which is latched then.
    pub(crate) fn set_label(&self, label: &str) -> Result<()> {
        let _change = self.tables.begin_change();
        let mut superblock = self.superblock();
        // The second copy of the last checkpoint need not have been durable yet.
        self.device.sync().context(|| "syncing before the label changes".into())?;
        superblock::write_label(&self.device, &mut superblock, label)?;
        *self.current.write() = superblock;
        Ok(())
    }

    /// The newest superblock on the device.
    pub(crate) fn superblock(&self) -> Superblock {
        self.current.read().clone()
    }

    /// Blocks that nothing uses (reserved ones included).
    pub(crate) fn free_blocks(&self) -> u64 {
        self.free_blocks.count()
    }

    /// How many free runs there are of which length. Reads the whole map in memory.
    pub(crate) fn free_runs(&self) -> RunHistogram {
        self.free_blocks.histogram()
    }

    /// Bytes of value parts that nothing refers to.
    pub(crate) fn dead_value_bytes(&self) -> u64 {
        self.tables.dead_values.load(Ordering::Relaxed)
    }

    /// Figures in bytes, where what is in memory only will take `unwritten` blocks. Cheap.
    pub(crate) fn stats(&self, unwritten: u64) -> SpaceStats {
        let (table_memory, dirty_table_memory) = self.tables.memory();
        SpaceStats {
            unwritten: unwritten.saturating_mul(BLOCK as u64),
            dead_values: self.dead_value_bytes(),
            map_memory: self.free_blocks.memory(),
            table_memory,
            dirty_table_memory,
            ..SpaceStats::of(&self.block_counts())
        }
    }

    /// What blocks are used for. Cheap.
    pub(crate) fn block_counts(&self) -> BlockCounts {
        let geometry = self.geometry();
        let (fresh, deferred) = self.deferred.blocks();
        BlockCounts {
            total: geometry.blocks,
            fixed: geometry.data_start() + geometry.blocks - geometry.data_end(),
            free: self.free_blocks(),
            reserved: self.reservations.reserved(),
            kept: self.reservations.kept(),
            pool: self.reservations.pool(),
            fresh,
            deferred,
            longest_run: self.free_blocks.longest_run(),
        }
    }

    /// Recovery only: makes a value part that the log names a fresh piece, or finds that it is
    /// counted. Calling it again for the same piece gives another handle.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if the place cannot be, or belongs to another piece.
    pub(crate) fn adopt(&self, id: PieceId, location: Location) -> Result<Arc<PieceHandle>> {
        let doing = || format!("taking over piece {id} from the log");
        piece_table::check_location(id, &location, &self.geometry()).context(doing)?;
        let clash = |other: &Location| {
            let message = format!("it lies at {} here and at {} there", location.extent, other.extent);
            Err(Error::damaged(message)).context(doing)
        };
        if id.0 == 0 || id.0 >= superblock::MAX_COUNTER {
            return Err(Error::damaged("no piece has such an id")).context(doing);
        }
        self.next_piece.fetch_max(id.0.saturating_add(1), Ordering::AcqRel);
        if let Some(entry) = self.tables.ntt.get(id)? {
            return if entry.location == location { Ok(self.handle(id)) } else { clash(&entry.location) };
        }
        if let Some(known) = self.deferred.locate(id) {
            return if known == location { Ok(self.handle(id)) } else { clash(&known) };
        }
        let extents = self.extent_lists.occupied(id, &location).context(doing)?;
        if let Some(wrong) = self.free_blocks.take_all(&extents) {
            return Err(Error::damaged(format!("{wrong} belong to something else"))).context(doing);
        }
        self.extent_lists.keep_list(id, &location)?;
        self.register(id, location, Vec::new())
    }

    /// A checkpoint of all indexes has ended: the blocks of pieces that older versions do not know
    /// are no longer kept for them.
    pub(crate) fn note_checkpoint(&self) {
        self.deferred.note_checkpoint(PieceId(self.next_piece.load(Ordering::Acquire)));
    }
}

/// Tells the device that a new store's data region holds nothing.
fn discard_data(device: &GuardedDevice, geometry: Geometry) {
    let mut start = geometry.data_start();
    while start < geometry.data_end() {
        let blocks = (geometry.data_end() - start).min(1 << 18) as u32;
        device.discard(Extent { start, blocks });
        start += u64::from(blocks);
    }
}

impl Locator for Space {
    fn new_id(&self) -> PieceId {
        PieceId(self.next_piece.fetch_add(1, Ordering::AcqRel))
    }

    fn locate(&self, id: PieceId) -> Result<Location> {
        // A piece moves from fresh to the table to the dead, and is entered there before it leaves
        // here: so the second look at the dead finds what died between the first two.
        if let Some(location) = self.deferred.locate(id) {
            return Ok(location);
        }
        if let Some(entry) = self.tables.ntt.get(id)? {
            return Ok(entry.location);
        }
        let dead = self.deferred.locate(id);
        dead.ok_or_else(|| Error::damaged(format!("piece {id} is referred to but does not exist")))
    }

    fn allocate(&self, blocks: u32, near: Option<u64>) -> Result<Extent> {
        // The last eighth of the pool is for table pages, so that a checkpoint can free the rest.
        self.free_blocks.take_run(blocks, near, self.reservations.pool() / 8)
    }

    fn is_shared(&self, id: PieceId) -> Result<bool> {
        Ok(self.tables.references(id)?.is_some_and(|count| count > 1))
    }

    fn allocate_scattered(&self, id: PieceId, blocks: u32) -> Result<Arc<ExtentList>> {
        let floor = self.reservations.pool() / 8;
        let list = Arc::new(self.free_blocks.take_scattered(blocks, floor)?);
        self.extent_lists.keep(id, list.clone());
        Ok(list)
    }

    fn extent_list(&self, id: PieceId, location: &Location) -> Result<Arc<ExtentList>> {
        self.extent_lists.of(id, location)
    }

    fn give_back(&self, extent: Extent) {
        self.free_blocks.put_back(&[extent]);
    }

    fn give_back_scattered(&self, id: PieceId) {
        if let Some(layout) = self.extent_lists.take(id) {
            self.free_blocks.put_back(&layout.extents().collect::<Vec<_>>());
        }
    }

    fn register(
        &self,
        id: PieceId,
        location: Location,
        holds: Vec<Arc<PieceHandle>>,
    ) -> Result<Arc<PieceHandle>> {
        piece_table::check_location(id, &location, &self.geometry())?;
        self.deferred.add_fresh(id, location, holds)
    }

    fn handle(&self, id: PieceId) -> Arc<PieceHandle> {
        self.deferred.handle(id)
    }
}

#[cfg(test)]
mod tests;
