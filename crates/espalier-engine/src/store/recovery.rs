//! Making a store, and finding again what was durable.
//!
//! Opening reads the newest superblock and the tables, then replays the log into memtables: first
//! every value part that the log names is taken out of the free space, then the batches follow in
//! order. Replaying writes nothing but what absorbing writes, all of it fresh; so a crash during
//! recovery leaves the store as it was.

use crate::checkpoint::state::CheckpointState;
use crate::commit::order::CommitOrder;
use crate::device::GuardedDevice;
use crate::index::absorb::absorbed_within;
use crate::index::accounting::{CLONE_BLOCKS, is_low, message_blocks, unwritten_below};
use crate::index::catalog::{READ_ONLY_VOLUME, StoredRoot};
use crate::index::deleted_ranges::DeletedRanges;
use crate::index::table::{IndexTable, Indexes};
use crate::index::{Index, Layer};
use crate::lock_order::RankedMutex;
use crate::log::{Binder, Log, LogConfig, LogOpening, LogPosition, LoggedBatch, LoggedOp};
use crate::memtable::Memtable;
use crate::message::pending_clone::PendingClone;
use crate::model::batch::bytes_in;
use crate::model::error::Context;
use crate::model::ids::{IndexId, Location, Lsn, Msn, PieceId};
use crate::model::key::{Key, KeyRange};
use crate::model::options::Compression;
use crate::model::options::{FormatOptions, OpenOptions};
use crate::model::piece::PieceHandle;
use crate::model::value::LargeValue;
use crate::pieces::Pieces;
use crate::space::Locator;
use crate::space::{Geometry, Opened, Purpose, Space, SpaceOptions, Superblock, VolumeTable, heal};
use crate::store::components::{Components, Recovered};
use crate::tree::{Loss, TreeMemory, TreePolicy, Trees, UnflushableEdges, baseless};
use crate::{Error, ErrorKind, Op, Result};
use espalier_storage::{BLOCK, Device, Environment};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Layers of an index that may be there during replay before they are absorbed.
const LAYERS: usize = 16;

/// Writes an empty store.
pub(crate) fn format(device: Arc<dyn Device>, env: &dyn Environment, options: &FormatOptions) -> Result<()> {
    let device = GuardedDevice::new(device, false);
    let geometry = Geometry::new(device.len(), options.log_bytes)?;
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&env.random().to_le_bytes());
    uuid[8..].copy_from_slice(&env.random().to_le_bytes());
    // Before anything else is touched: half of an older store must not open as an older state of
    // it.
    Space::erase(&device)?;
    let position = Log::format(&device, geometry.log, &uuid)?;
    let first = Superblock {
        log_position: position.encode(),
        compression: options.compression.code(),
        ..Superblock::initial(geometry, uuid, &options.label, env.now())
    };
    Space::create(device, first, &VolumeTable::default(), &space_options(&OpenOptions::default()))?;
    Ok(())
}

pub(crate) fn space_options(options: &OpenOptions) -> SpaceOptions {
    SpaceOptions { table_cache: (options.memory / 16) as usize, discard: options.discard }
}

/// Chooses what depends on the memory budget.
pub(crate) fn choose_memtable(options: &mut OpenOptions) {
    if options.tuning.memtable == 0 {
        options.tuning.memtable = (options.memory as usize / 16).clamp(1 << 20, 64 << 20);
    }
}

/// In a full store the pool is all there is to rewrite a leaf in.
pub(crate) fn fit_leaves(options: &mut OpenOptions, space: &Space) {
    let pool = (space.stats().pool * BLOCK as u64) as usize;
    options.tuning.leaf = options.tuning.leaf.min(pool / 5);
    options.tuning.edge = options.tuning.edge.min(pool / 8);
}

/// What all trees share.
pub(crate) fn make_trees(
    device: &Arc<GuardedDevice>,
    space: &Arc<Space>,
    options: &OpenOptions,
    compression: Compression,
) -> Arc<Trees> {
    let pieces = Arc::new(Pieces::new(device.clone(), space.clone(), cache_bytes(options)));
    let cache = Arc::downgrade(&pieces);
    pieces.bound_value_parts((space.stats().pool * BLOCK as u64) as usize / 8);
    space.when_gone(move |id| {
        if let Some(pieces) = cache.upgrade() {
            pieces.forget(id);
        }
    });
    Arc::new(Trees {
        pieces,
        locator: space.clone(),
        merge: options.merge.clone(),
        tuning: options.tuning,
        compression,
        memory: TreeMemory::default(),
        absorbed: AtomicU64::new(0),
        sparse: RankedMutex::default(),
        unflushable: UnflushableEdges::default(),
    })
}

/// Opens the space on `device`, and mends superblocks that are damaged.
fn open_space(device: &Arc<GuardedDevice>, options: &OpenOptions) -> Result<Opened> {
    let healed = if options.read_only { Vec::new() } else { heal(device)? };
    let mut opened = Space::open(device.clone(), &space_options(options))?;
    for error in healed.into_iter().chain(opened.damaged.drain(..)) {
        tracing::warn!(%error, "a superblock of {} is damaged; another is good", device.name());
    }
    Ok(opened)
}

/// How the log is opened and written.
pub(crate) fn log_config(options: &OpenOptions) -> LogConfig {
    LogConfig { early_binding: options.tuning.early_binding as u64, ..LogConfig::default() }
}

/// The log of a store, to be opened where its superblock says.
pub(crate) fn log_opening<'a>(
    device: &Arc<GuardedDevice>,
    superblock: &'a Superblock,
    session: u64,
    binder: Arc<PiecesBinder>,
    config: LogConfig,
) -> LogOpening<'a> {
    let from = LogPosition::decode(&superblock.log_position);
    let region = superblock.geometry.log;
    LogOpening { device: device.clone(), region, uuid: &superblock.uuid, session, from, binder, config }
}

/// Opens the store on `device`.
pub(crate) fn open(
    device: Arc<dyn Device>,
    env: Arc<dyn Environment>,
    mut options: OpenOptions,
) -> Result<Components> {
    choose_memtable(&mut options);
    let device = GuardedDevice::new(device, options.read_only);
    let Opened { space, volumes, reclaim, .. } = open_space(&device, &options)?;
    fit_leaves(&mut options, &space);
    let superblock = space.superblock();
    check_log_position(&superblock)?;
    let compression = Compression::from_code(superblock.compression)
        .ok_or_else(|| Error::damaged(format!("compression code {} is unknown", superblock.compression)))?;
    let trees = make_trees(&device, &space, &options, compression);
    let (indexes, roots) = indexes_of(&space, &volumes)?;
    let deleted: Arc<DeletedRanges> = Arc::default();
    if superblock.untidy {
        indexes.keys().for_each(|id| deleted.note_all(*id));
    }
    let order = CommitOrder::after(superblock.checkpoint_lsn, Msn(superblock.next_msn.0.saturating_sub(1)));
    let shared_indexes = Arc::new(IndexTable::new(indexes.clone()));
    let mut replay = BatchReplay::new(&trees, &space, &options, &indexes, &deleted, order, Vec::new());
    let binder = Arc::new(PiecesBinder::new(&trees, &space, &shared_indexes));
    let config = LogConfig {
        unlogged: options.tuning.unlogged,
        // The cache is empty as yet.
        recovery_memory: options.memory / 4,
        ..log_config(&options)
    };
    replay.unmerged_bytes = (options.memory / 2) as usize;
    let log = log_opening(&device, &superblock, env.random(), binder.clone(), config)
        .open(&mut |batch| replay.batch(batch))
        .context(|| format!("replaying the log of {}", device.name()))?;
    let order = replay.order;
    let read_only = options.read_only;
    let checkpoint = CheckpointState::new(roots, reclaim);
    let shared = Components::assemble(Recovered {
        env,
        device,
        options,
        space,
        trees,
        log,
        indexes: shared_indexes,
        volumes,
        deleted,
        order,
        checkpoint,
    });
    shared.accounting.refresh();
    if !read_only {
        shared.write.admission.admit_replayed()?;
    }
    if binder.found_torn() && !read_only {
        // Before a later group says that those were synced which name the torn parts by another
        // checksum.
        shared.write.checkpointer.checkpoint()?;
    }
    Ok(shared)
}

/// A superblock whose tree and log part at different batches would repeat some or leave some out.
///
/// # Errors
/// [`ErrorKind::Damaged`].
pub(crate) fn check_log_position(superblock: &Superblock) -> Result<()> {
    let (tree, log) = (superblock.checkpoint_lsn, LogPosition::decode(&superblock.log_position).lsn);
    if tree == log {
        return Ok(());
    }
    let message = format!(
        "the superblock makes no sense: the tree holds every batch up to {}, and the log goes on after {}",
        tree.0, log.0
    );
    Err(Error::damaged(message))
}

/// Half of the budget is for what is clean; memtables and dirty nodes have the other half.
fn cache_bytes(options: &OpenOptions) -> u64 {
    options.memory / 16 * 7
}

fn indexes_of(space: &Arc<Space>, volumes: &VolumeTable) -> Result<(Indexes, BTreeMap<IndexId, StoredRoot>)> {
    let pin = Arc::new(space.pin_version()?);
    let (mut indexes, mut roots) = (BTreeMap::new(), BTreeMap::new());
    for (volume, entry) in &volumes.volumes {
        for (index, root) in entry.indexes.iter().enumerate() {
            let id = IndexId { volume: *volume, index: index as u8 };
            let root = StoredRoot::from(root);
            if entry.flags & READ_ONLY_VOLUME == 0 {
                indexes.insert(id, Arc::new(Index::new(id, root.as_root(&**space), pin.clone())));
            }
            roots.insert(id, root);
        }
    }
    Ok((indexes, roots))
}

/// Something that a damaged store has lost.
pub(crate) struct Lost {
    pub(crate) loss: Loss,
    /// The message that brought it, if that was in the log; otherwise it was in the tree, and what
    /// changes it has nothing to change.
    pub(crate) since: Option<Msn>,
}

/// No store counts so far: a log that says so is damaged.
const LAST_MSN: u64 = u64::MAX / 2;

/// Puts logged batches back into memtables.
pub(crate) struct BatchReplay<'a> {
    pub(crate) trees: &'a Arc<Trees>,
    pub(crate) space: &'a Arc<Space>,
    pub(crate) options: &'a OpenOptions,
    pub(crate) indexes: &'a Indexes,
    pub(crate) deleted: &'a DeletedRanges,
    pub(crate) order: CommitOrder,
    /// What a damaged store has lost: where messages have nothing to change, they must make
    /// nothing.
    pub(crate) losses: Mutex<Vec<Lost>>,
    /// Space is low. What is replayed had its blocks reserved before: replay must take no more.
    low_space: Cell<bool>,
    /// See [`TreePolicy`].
    pub(crate) unmerged_bytes: usize,
}

impl<'a> BatchReplay<'a> {
    pub(crate) fn new(
        trees: &'a Arc<Trees>,
        space: &'a Arc<Space>,
        options: &'a OpenOptions,
        indexes: &'a Indexes,
        deleted: &'a DeletedRanges,
        order: CommitOrder,
        losses: Vec<Loss>,
    ) -> Self {
        let losses = losses.into_iter().map(|loss| Lost { loss, since: None }).collect();
        let low_space = Cell::new(is_low(&space.stats(), 0, &options.tuning));
        let losses = Mutex::new(losses);
        Self { trees, space, options, indexes, deleted, order, losses, low_space, unmerged_bytes: 0 }
    }

    pub(crate) fn batch(&mut self, batch: LoggedBatch) -> Result<()> {
        let first = batch.first_msn.0;
        // Messages are numbered from 1, and there will be more of them.
        let end = first.checked_add(batch.ops.len() as u64).filter(|end| first > 0 && *end <= LAST_MSN);
        let last = end.ok_or_else(|| {
            Error::damaged(format!("batch {} of the log numbers its messages from {first}", batch.lsn.0))
        })? - 1;
        for (msn, op) in (first..).zip(&batch.ops) {
            self.op(op, Msn(msn), batch.lsn).context(|| format!("batch {}", batch.lsn.0))?;
            // It waits for a checkpoint again, for which the next commit has to reserve.
            self.order.pending.bytes += bytes_in(op) as u64;
            self.order.pending.clone_blocks += CLONE_BLOCKS * u64::from(matches!(op, LoggedOp::Clone { .. }));
        }
        self.order.last_lsn = batch.lsn;
        self.order.last_msn = Msn(last).max(self.order.last_msn);
        if !self.options.read_only {
            self.keep_small(batch.lsn)?;
        }
        Ok(())
    }

    fn op(&mut self, op: &LoggedOp, msn: Msn, lsn: Lsn) -> Result<()> {
        let (id, update) = match op {
            LoggedOp::Point { index, op: crate::Op::Update(update), .. } => (index, Some(update)),
            LoggedOp::Range { index, op: crate::RangeOp::Update(update), .. } => (index, Some(update)),
            LoggedOp::Point { index, .. } | LoggedOp::Range { index, .. } | LoggedOp::Clone { index, .. } => {
                (index, None)
            }
            LoggedOp::Superseded => return Ok(()),
        };
        if let Some(update) = update.filter(|u| !self.options.merge.knows(u.function)) {
            let message =
                format!("the log names merge function {}, which this program does not have", update.function);
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let index = self.indexes.get(id).ok_or_else(|| Error::damaged(format!("there is no index {id}")))?;
        self.deleted.note(std::slice::from_ref(op));
        match op {
            LoggedOp::Point { key, op, .. } => {
                index.active().apply(key, msn, op, Msn(0), &self.options.merge)
            }
            LoggedOp::Range { range, op, .. } => index.active().apply_range(range, msn, op, Msn(0)),
            LoggedOp::Clone { source, destination, .. } if source != destination => {
                let (source, destination) = (source.clone(), destination.clone());
                index.push_clone(PendingClone { msn, source, destination }, lsn);
            }
            LoggedOp::Clone { .. } | LoggedOp::Superseded => {}
        }
        Ok(())
    }

    /// Absorbs memtables that have become full.
    fn keep_small(&self, lsn: Lsn) -> Result<()> {
        let due = |index: &&Arc<Index>| {
            index.active().bytes() >= self.options.tuning.memtable || index.version().sealed.len() >= LAYERS
        };
        for index in self.indexes.values().filter(due) {
            self.absorb(index, lsn)?;
        }
        Ok(())
    }

    /// Makes all layers of an index part of its tree.
    pub(crate) fn absorb(&self, index: &Index, lsn: Lsn) -> Result<()> {
        index.seal(lsn);
        while let Some(sealed) = index.version().sealed.first() {
            match &sealed.layer {
                Layer::Table(table) => self.delete_baseless(index, table)?,
                Layer::Clone(clone) => self.copy_losses(index.id, clone),
            }
            sealed.layer.freeze_values(&self.trees.memory.value_bytes);
            self.trees.absorbed.fetch_add(sealed.layer.messages(), Ordering::Relaxed);
            let root = &index.version().root;
            let (low_space, unmerged_bytes) = (self.low_space.get(), self.unmerged_bytes);
            let policy = TreePolicy { low_space, unmerged_bytes, ..TreePolicy::PLENTY };
            let mut reserve = |more, purpose| self.space.reserve(more, purpose, self.owed()).is_ok();
            let root =
                absorbed_within(self.trees, policy, root, &sealed.layer, Purpose::Clear, &mut reserve)?;
            index.publish_root(self.space, root, |version| {
                version.sealed.remove(0);
            })?;
            if is_low(&self.space.stats(), self.owed(), &self.options.tuning) {
                self.low_space.set(true);
            }
        }
        Ok(())
    }

    /// Blocks that will be taken by what is in memory, at most: what was absorbed counts among the
    /// messages, too.
    fn owed(&self) -> u64 {
        let roots = self.indexes.values().map(|index| unwritten_below(self.trees, &index.version().root));
        roots.sum::<u64>() + message_blocks(&self.options.tuning, self.order.pending.bytes)
    }
}

impl BatchReplay<'_> {
    /// Deletes what messages make of nothing where something is lost. There are no readers yet.
    fn delete_baseless(&self, index: &Index, table: &Arc<Memtable>) -> Result<()> {
        let mut losses = self.losses.lock();
        let in_tree = losses.iter().filter(|l| l.since.is_none() && l.loss.index == Some(index.id));
        let ranges: Vec<KeyRange> = in_tree.filter_map(|l| l.loss.range.clone()).collect();
        for range in ranges {
            for key in baseless(self.trees, Some(table), &index.version().root, &range)? {
                table.apply(&key, self.order.last_msn, &crate::Op::Delete, Msn(0), &self.options.merge);
                let loss = Loss::key(index.id, &key, "what was changed there is lost");
                losses.push(Lost { loss, since: None });
            }
        }
        Ok(())
    }

    /// What a clone copies of something lost is lost there too: from here on, and not before, when
    /// something else was there.
    fn copy_losses(&self, index: IndexId, clone: &PendingClone) {
        let PendingClone { msn, source, destination } = clone;
        let below = KeyRange::prefix(source);
        let moved = |key: &Key| key.strip_prefix(&**source).map(|rest| [destination, rest].concat().into());
        let mut losses = self.losses.lock();
        let mut copied = Vec::new();
        let known = losses.iter().filter(|l| l.since.is_none_or(|since| since < *msn));
        for Lost { loss, since } in known.filter(|l| l.loss.index == Some(index)) {
            let Some(range) = loss.range.as_ref().map(|range| range.intersect(&below)) else { continue };
            if range.is_empty() {
                continue;
            }
            let whole = KeyRange::prefix(destination);
            let start = moved(&range.start).unwrap_or(whole.start);
            let end = range.end.as_ref().and_then(moved).or(whole.end);
            let loss = Loss { range: Some(KeyRange { start, end }), ..loss.clone() };
            copied.push(Lost { loss, since: since.map(|_| *msn) });
        }
        losses.append(&mut copied);
    }
}

/// The log's way to value parts.
pub(crate) struct PiecesBinder {
    pieces: Arc<Pieces>,
    space: Arc<Space>,
    indexes: Arc<IndexTable>,
    resident: Arc<AtomicUsize>,
    bound: Arc<AtomicU64>,
    /// Of a part that only groups name which no sync is known to cover not all was what was
    /// written.
    torn: AtomicBool,
}

impl PiecesBinder {
    pub(crate) fn new(trees: &Trees, space: &Arc<Space>, indexes: &Arc<IndexTable>) -> Self {
        let (pieces, resident) = (trees.pieces.clone(), trees.memory.value_bytes.clone());
        let (space, indexes, bound) =
            (space.clone(), indexes.clone(), trees.memory.placed_value_bytes.clone());
        Self { pieces, space, indexes, resident, bound, torn: AtomicBool::new(false) }
    }

    /// True if of some part not all reached the device.
    fn found_torn(&self) -> bool {
        self.torn.load(Ordering::Relaxed)
    }
}

impl Binder for PiecesBinder {
    fn bind(&self, values: &[Arc<LargeValue>]) -> Result<()> {
        self.pieces.write_values(values, None)?;
        self.bound.fetch_add(values.iter().map(|value| value.len() as u64).sum(), Ordering::AcqRel);
        values.iter().for_each(|value| value.forget_bytes());
        Ok(())
    }

    fn outcome(&self, index: IndexId, key: &[u8], msn: Msn) -> Option<Op> {
        self.indexes.get(index)?.outcome(key, msn, &self.resident)
    }

    fn location(&self, part: PieceId) -> Result<Location> {
        self.space.locate(part)
    }

    fn adopt(&self, part: PieceId, location: Location) -> Result<Arc<PieceHandle>> {
        self.space.adopt(part, location)
    }

    fn accept_unsynced(&self, part: PieceId) -> Result<()> {
        let Some(found) = self.pieces.torn(part)? else { return Ok(()) };
        // What lies there now stays, and nothing refers to what was cut off.
        if self.space.amend(part, found) {
            tracing::info!("a power cut left value part {part} incomplete; every value in it is right");
            self.torn.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
