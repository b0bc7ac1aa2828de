//! Space: which blocks hold what, and where each piece lies.
//!
//! Two maps. `used` (in memory only: [`allocator`]) says what may not be allocated. `committed`
//! (the space map, a paged table) says what the next checkpoint accounts for. A *fresh* piece is in
//! `used` only; it enters `committed` when a checkpoint counts it, leaves `committed` when its
//! count falls to 0, and leaves `used` when in addition the superblock that needed it is obsolete
//! and no reader is left that could reach it ([`deferred_free`]).
//!
//! Protocol of writing a piece: [`Space::new_id`], `allocate`, write to the device, `register` (see
//! [`Locator`]). Protocol of a checkpoint, by one thread at a time: write the pieces,
//! [`Space::count`] the changes of references (again for what dead nodes referred to, then
//! [`Space::forget`] them), [`Space::write_tables`], [`Space::commit_superblock`].
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
mod superblock;
mod table;
mod volumes;

pub use allocator::RunHistogram;
pub(crate) use locator::Locator;
pub(crate) use rebuild::Rebuilt;
pub(crate) use reservations::{Purpose, Reservation};
use superblock::Bounds;
pub use superblock::MAX_LABEL;
pub(crate) use superblock::{Geometry, Roots, Superblock, heal, read_superblocks, resize_offline};
pub(crate) use volumes::{IndexRoot, VolumeEntry, VolumeTable};
pub use volumes::{MAX_PARAMETERS, MAX_VOLUME_NAME};

use crate::device::GuardedDevice;
use crate::extents::ExtentList;
use crate::lock_order::{RankedMutex, RankedRwLock, rank};
use crate::model::error::Context;
use crate::model::ids::Location;
use crate::model::piece::{FreshOwner, PieceHandle};
use crate::{Error, ErrorKind, Extent, PieceId, PieceKind, Result};
use allocator::Allocator;
use deferred_free::{FreshPiece, HandleCounts, PieceLives, PinKey};
use extent_lists::ExtentLists;
use free_blocks::FreeBlocks;
use reservations::Reservations;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use table::{Table, TableId};

/// Ids skipped when a store is opened: pieces that a crash made vanish had ids behind the recorded
/// one, and fewer than this (they would fill a TiB).
const SKIPPED_IDS: u64 = 1 << 28;
/// Pages of the node translation table that are read before a reader asks for them: those of a
/// store of a million pieces or so next to the root.
const PREFETCHED_PAGES: usize = 256;

/// How to open a space.
#[derive(Debug, Clone)]
pub(crate) struct SpaceOptions {
    /// Bounds the clean table pages in memory, in bytes.
    pub(crate) table_cache: usize,
    /// Tell the device about freed space.
    pub(crate) discard: bool,
}

/// See [`Space::counted_from`].
pub(crate) type CountedPage = std::result::Result<Option<(u64, Vec<(PieceId, u64)>)>, (u64, Error)>;

/// What a store consists of, as the last superblock says.
pub(crate) struct Opened {
    /// The space.
    pub(crate) space: Arc<Space>,
    /// The volumes.
    pub(crate) volumes: VolumeTable,
    /// Nodes without references; their own references are still to be subtracted.
    pub(crate) reclaim: Vec<PieceId>,
    /// Why superblocks cannot be read that should be.
    pub(crate) damaged: Vec<Error>,
}

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

/// The space of one store.
pub(crate) struct Space {
    me: Weak<Self>,
    device: Arc<GuardedDevice>,
    bounds: Bounds,
    discard: bool,
    free_blocks: Arc<FreeBlocks>,
    reservations: Arc<Reservations>,
    lives: RankedRwLock<PieceLives, { rank::PIECE_LIVES }>,
    handles: HandleCounts,
    extent_lists: ExtentLists,
    /// Bytes of counted value parts that nothing refers to.
    dead_values: AtomicU64,
    next_piece: AtomicU64,
    tables: Tables,
    /// The newest superblock on the device; held by a checkpoint while it counts and writes tables.
    current: RankedRwLock<Superblock, { rank::SUPERBLOCK }>,
    /// Held while tables are changed.
    writer: RankedMutex<(), { rank::SPACE_WRITER }>,
    when_gone: OnceLock<Box<dyn Fn(PieceId) + Send + Sync>>,
}

struct Tables {
    ntt: Table,
    map: Table,
    volumes: Table,
    reclaim: Table,
    /// Pages of the tables when they were last written; 0 as long as they were not counted.
    pages: AtomicU64,
}

impl Tables {
    fn new(device: &Arc<GuardedDevice>, bounds: &Bounds, roots: &Roots, budget: usize) -> Self {
        let table = |id, root, budget| Table::new(id, root, device.clone(), bounds.clone(), budget);
        Self {
            ntt: table(TableId::Ntt, roots.ntt, budget / 8 * 6),
            map: table(TableId::SpaceMap, roots.space_map, budget / 8),
            volumes: table(TableId::Volumes, roots.volumes, budget / 16),
            reclaim: table(TableId::Reclaim, roots.reclaim, budget / 16),
            pages: AtomicU64::new(0),
        }
    }

    fn all(&self) -> [&Table; 4] {
        [&self.ntt, &self.volumes, &self.reclaim, &self.map]
    }
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
        Self::erase(&device)?;
        if options.discard {
            discard_data(&device, first.geometry);
        }
        let bare = Superblock { roots: Roots::default(), generation: 0, ..first };
        let space = Self::assemble(device, bare.clone(), options, Vec::new(), bare.next_piece.0);
        let roots = space.write_tables(volumes, &[])?;
        space.commit_superblock(Superblock { roots, ..bare })?;
        Ok(space)
    }

    /// Makes whatever store is on `device` unrecognisable, durably.
    ///
    /// # Errors
    /// Whatever the device says.
    pub(crate) fn erase(device: &GuardedDevice) -> Result<()> {
        superblock::erase_superblocks(device)
    }

    /// Opens the store on `device` as its newest superblock says.
    ///
    /// # Errors
    /// As for [`read_superblocks`]; [`ErrorKind::Damaged`] if a table cannot be trusted.
    pub(crate) fn open(device: Arc<GuardedDevice>, options: &SpaceOptions) -> Result<Opened> {
        let found = read_superblocks(&device)?;
        let superblock = found.newest;
        let geometry = superblock.geometry;
        // The tables are made twice: the first ones load what must be known to make the space.
        let tables = Tables::new(&device, &geometry.into(), &superblock.roots, options.table_cache);
        let committed = space_map::load(&tables.map, &geometry).context(|| "loading the space map".into())?;
        let next_piece = superblock.next_piece.0.saturating_add(SKIPPED_IDS);
        let space = Self::assemble(device, superblock, options, committed, next_piece);
        let volumes = byte_table::load(&space.tables.volumes)
            .and_then(|bytes| VolumeTable::decode(&bytes))
            .context(|| "loading the volume table".into())?;
        let reclaim = byte_table::load(&space.tables.reclaim)
            .and_then(|bytes| reclaim_list::decode(&bytes))
            .context(|| "loading the reclaim list".into())?;
        space.count_pages();
        Ok(Opened { space, volumes, reclaim, damaged: found.damaged })
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
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            tables: Tables::new(&device, &bounds, &superblock.roots, options.table_cache),
            extent_lists: ExtentLists::new(device.clone(), bounds.clone()),
            device,
            bounds,
            discard: options.discard,
            free_blocks,
            reservations,
            lives: RankedRwLock::default(),
            handles: HandleCounts::default(),
            dead_values: AtomicU64::new(superblock.dead_values),
            next_piece: AtomicU64::new(next_piece),
            current: RankedRwLock::new(superblock),
            writer: RankedMutex::new(()),
            when_gone: OnceLock::new(),
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
        let _writer = self.writer.lock();
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

    /// The newest superblock on the device.
    pub(crate) fn superblock(&self) -> Superblock {
        self.current.read().clone()
    }

    /// Blocks that nothing uses (promised ones included).
    pub(crate) fn free_blocks(&self) -> u64 {
        self.free_blocks.count()
    }

    /// The longest run that could be allocated now, in blocks.
    pub(crate) fn largest_free_run(&self) -> u64 {
        self.free_blocks.longest_run()
    }

    /// Reserves `blocks` blocks, beside `unwritten` ones that the caller will need for what is in
    /// memory only.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if so many are not free, reserved blocks and (for growth) the pool
    /// aside. Blocks with a deferred free become free with the next checkpoint: then
    /// it is worth trying again.
    pub(crate) fn reserve(&self, blocks: u64, purpose: Purpose, unwritten: u64) -> Result<Reservation> {
        Reservation::take(&self.reservations, blocks, purpose, unwritten)
    }

    /// Blocks reserved for accepted batches.
    pub(crate) fn reserved(&self) -> u64 {
        self.reservations.reserved()
    }

    /// Blocks set aside for deleting and checkpoints.
    pub(crate) fn pool(&self) -> u64 {
        self.reservations.pool()
    }

    /// True if [`Space::reserve`] would grant this to [`Purpose::Growth`].
    pub(crate) fn can_grow(&self, blocks: u64, unwritten: u64) -> bool {
        self.reservations.can_grow(blocks, unwritten)
    }

    /// The most that it would grant.
    pub(crate) fn growable(&self, unwritten: u64) -> u64 {
        self.reservations.growable(unwritten)
    }

    /// Reads pages of the node translation table, so that no reader waits for them one after the
    /// other. A hint.
    pub(crate) fn prefetch_places(&self) {
        self.tables.ntt.prefetch_first(PREFETCHED_PAGES);
    }

    /// Figures. Cheap.
    pub(crate) fn stats(&self) -> SpaceStats {
        let lives = self.lives.read();
        let geometry = self.geometry();
        SpaceStats {
            total: geometry.blocks,
            fixed: geometry.data_start() + geometry.blocks - geometry.data_end(),
            free: self.free_blocks(),
            reserved: self.reservations.reserved(),
            unwritten: 0,
            pool: self.reservations.pool(),
            fresh: lives.fresh_blocks,
            deferred: lives.deferred_blocks(),
            dead_values: self.dead_values.load(Ordering::Relaxed),
            longest_run: self.largest_free_run(),
            map_bytes: self.free_blocks.memory(),
            table_bytes: self.tables.all().iter().map(|table| table.cached_bytes() as u64).sum(),
            dirty_table_bytes: self.tables.all().iter().map(|table| table.dirty_bytes() as u64).sum(),
        }
    }

    /// Counts the pieces. Reads the whole node translation table.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if a page or an entry of it is.
    pub(crate) fn census(&self) -> Result<Census> {
        // No table changes meanwhile.
        let _writer = self.writer.lock();
        let mut census = Census::default();
        let mut failure = None;
        self.tables.ntt.walk(&mut |key, _, page| match page {
            Ok(page) if key.level == 0 => {
                piece_table::for_each(
                    key.number,
                    page.bytes(),
                    &self.geometry(),
                    &mut |_, entry| match entry {
                        Ok(entry) => census.add(&entry.location),
                        Err(error) => failure = Some(error),
                    },
                );
            }
            Ok(_) => {}
            Err(error) => failure = Some(error),
        });
        failure.map_or(Ok(census), Err)
    }

    /// The pieces that a page of the node translation table counts, with their lengths in bytes: of
    /// the first page at or behind `from` that is there, with its number. An error comes with the
    /// number of the last page that it concerns.
    pub(crate) fn counted_from(&self, from: u64) -> CountedPage {
        let Some((number, page)) = self.tables.ntt.first_from(from)? else { return Ok(None) };
        let mut pieces = Vec::new();
        let mut failure = None;
        piece_table::for_each(number, page.bytes(), &self.geometry(), &mut |id, entry| match entry {
            Ok(entry) => pieces.push((id, u64::from(entry.location.len))),
            Err(error) => failure = Some(error),
        });
        failure.map_or(Ok(Some((number, pieces))), |error| Err((number, error)))
    }

    /// The counted value parts of which less than a fraction is live, each with its live bytes.
    /// Reads the whole node translation table.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if a page or an entry of it is.
    pub(crate) fn sparse_values(&self, (most, of): (u64, u64)) -> Result<Vec<(u64, PieceId)>> {
        let _writer = self.writer.lock();
        let (mut found, mut failure) = (Vec::new(), None);
        self.tables.ntt.walk(&mut |key, _, page| match page {
            Ok(page) if key.level == 0 => {
                piece_table::for_each(
                    key.number,
                    page.bytes(),
                    &self.geometry(),
                    &mut |id, entry| match entry {
                        Ok(entry) if entry.location.kind == PieceKind::Values => {
                            if entry.live < u64::from(entry.location.len) / of * most {
                                found.push((entry.live, id));
                            }
                        }
                        Ok(_) => {}
                        Err(error) => failure = Some(error),
                    },
                );
            }
            Ok(_) => {}
            Err(error) => failure = Some(error),
        });
        failure.map_or(Ok(found), Err)
    }

    /// How many free runs there are of which length. Reads the whole map in memory.
    pub(crate) fn free_runs(&self) -> RunHistogram {
        self.free_blocks.histogram()
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
        if let Some(entry) = piece_table::get(&self.tables.ntt, &self.geometry(), id)? {
            return if entry.location == location { Ok(self.handle(id)) } else { clash(&entry.location) };
        }
        // The lock is given back first: looking for a handle takes it again.
        let known = self.lives.read().locate(id);
        if let Some(known) = known {
            return if known == location { Ok(self.handle(id)) } else { clash(&known) };
        }
        let extents = self.extent_lists.occupied(id, &location).context(doing)?;
        if let Some(wrong) = self.free_blocks.take_all(&extents) {
            return Err(Error::damaged(format!("{wrong} belong to something else"))).context(doing);
        }
        self.extent_lists.keep_of(id, &location)?;
        self.register(id, location, Vec::new())
    }

    /// Recovery only: from now on this is the checksum of a fresh piece. False if it is not fresh.
    pub(crate) fn amend(&self, id: PieceId, checksum: u64) -> bool {
        self.lives.write().amend(id, checksum)
    }

    /// Keeps the blocks of pieces that die from now on, until it is dropped. To be taken before the
    /// root of the tree that is to be read.
    pub(crate) fn pin(&self) -> Result<Pin> {
        let space = self.arc()?;
        let key = self.lives.write().pin(false);
        Ok(Pin { space, key })
    }

    /// The same for a version of an index, which never leads to what is written after some more
    /// checkpoints ([`deferred_free`]). To be taken while the version cannot change.
    pub(crate) fn pin_version(&self) -> Result<Pin> {
        let space = self.arc()?;
        let key = self.lives.write().pin(true);
        Ok(Pin { space, key })
    }

    /// A checkpoint of all indexes has ended: the blocks of pieces that older versions do not know
    /// are no longer kept for them.
    pub(crate) fn checkpointed(&self) {
        let next = PieceId(self.next_piece.load(Ordering::Acquire));
        let ask = self.lives.write().checkpointed(next);
        if ask {
            self.release_dead();
        }
    }

    fn arc(&self) -> Result<Arc<Self>> {
        self.me.upgrade().ok_or_else(|| Error::new(ErrorKind::ReadOnly, "the store is being closed"))
    }

    /// Calls `told` with every piece that dies, and again when its blocks are freed: what is cached
    /// of it is useless, and has handles that keep the blocks of what it refers to. Only the first
    /// call counts.
    pub(crate) fn when_gone(&self, told: impl Fn(PieceId) + Send + Sync + 'static) {
        let _ = self.when_gone.set(Box::new(told));
    }

    /// To be called without locks on `lives` and `used`: handles may be dropped in consequence.
    fn gone(&self, id: PieceId) {
        if let Some(told) = self.when_gone.get() {
            told(id);
        }
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

impl Census {
    fn add(&mut self, location: &Location) {
        let (count, bytes) = match location.kind {
            PieceKind::Node(_) => (&mut self.nodes, &mut self.node_bytes),
            PieceKind::KeyValue => (&mut self.parts, &mut self.part_bytes),
            PieceKind::Values => (&mut self.value_parts, &mut self.value_part_bytes),
        };
        *count += 1;
        *bytes += location.blocks() * espalier_storage::BLOCK as u64;
    }
}

impl Locator for Space {
    fn new_id(&self) -> PieceId {
        PieceId(self.next_piece.fetch_add(1, Ordering::AcqRel))
    }

    fn locate(&self, id: PieceId) -> Result<Location> {
        // A piece moves from fresh to the table to the dead, and is entered there before it leaves
        // here: so the second look at the dead finds what died between the first two.
        if let Some(location) = self.lives.read().locate(id) {
            return Ok(location);
        }
        if let Some(entry) = piece_table::get(&self.tables.ntt, &self.geometry(), id)? {
            return Ok(entry.location);
        }
        let dead = self.lives.read().locate(id);
        dead.ok_or_else(|| Error::damaged(format!("piece {id} is referred to but does not exist")))
    }

    fn allocate(&self, blocks: u32, near: Option<u64>) -> Result<Extent> {
        // The last eighth of the pool is for table pages, so that a checkpoint can free the rest.
        self.free_blocks.take_run(blocks, near, self.reservations.pool() / 8)
    }

    fn is_shared(&self, id: PieceId) -> Result<bool> {
        Ok(self.references(id)?.is_some_and(|count| count > 1))
    }

    fn allocate_scattered(&self, id: PieceId, blocks: u32) -> Result<Arc<ExtentList>> {
        {
            let floor = self.reservations.pool() / 8;
            let list = Arc::new(self.free_blocks.take_scattered(blocks, floor)?);
            self.extent_lists.keep(id, list.clone());
            Ok(list)
        }
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
        let owner = self.arc()?;
        let mut lives = self.lives.write();
        if lives.locate(id).is_some() {
            return Err(Error::damaged(format!("piece {id} was written twice")));
        }
        self.handles.add(id);
        let handle = PieceHandle::fresh_holding(id, owner, holds);
        lives.add_fresh(id, FreshPiece { location, handle: Arc::downgrade(&handle), counting: false });
        Ok(handle)
    }

    fn handle(&self, id: PieceId) -> Arc<PieceHandle> {
        if let Some(handle) = self.lives.read().fresh.get(&id).and_then(|fresh| fresh.handle.upgrade()) {
            return handle;
        }
        let Ok(owner) = self.arc() else { return PieceHandle::counted(id) };
        self.handles.add(id);
        PieceHandle::fresh(id, owner)
    }
}

impl FreshOwner for Space {
    fn handle_dropped(&self, id: PieceId) {
        if !self.handles.remove(id) {
            return;
        }
        {
            let lives = self.lives.read();
            if !lives.fresh.contains_key(&id) && !lives.is_dead(id) {
                return;
            }
        }
        let mut lives = self.lives.write();
        if self.handles.any(id) {
            return;
        }
        let mut released = None;
        if lives.fresh.get(&id).is_some_and(|fresh| !fresh.counting) {
            let location = lives.remove_fresh(id);
            if let Some(location) = location {
                if lives.any_pin() {
                    lives.die(id, location, false);
                } else {
                    released = Some(location);
                }
            }
        } else {
            released = lives.take_if_released(id);
        }
        drop(lives);
        if let Some(location) = released {
            self.free_blocks.put_back(&self.extent_lists.vacated(id, &location));
        }
        self.gone(id);
    }
}

/// While it lives, the blocks of pieces that died after it was taken are not reused; if it is one
/// of a version, those of pieces that the version may lead to.
pub(crate) struct Pin {
    space: Arc<Space>,
    key: PinKey,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let ask = self.space.lives.write().unpin(self.key);
        if ask {
            self.space.release_dead();
        }
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pin({:?})", self.key)
    }
}

#[cfg(test)]
mod tests;
