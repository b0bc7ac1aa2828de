//! Opening: what both ways of opening a store ([`open`](super::recovery::open) and
//! [`Store::open_damaged`](super::Store::open_damaged)) make of its space before they replay the
//! log.

use super::value_part_binder::ValuePartBinder;
use crate::commit::order::CommitOrder;
use crate::device::GuardedDevice;
use crate::lock_order::RankedMutex;
use crate::log::{LogConfig, LogOpening, LogPosition};
use crate::model::ids::Msn;
use crate::model::options::{Compression, OpenOptions};
use crate::pieces::Pieces;
use crate::space::{Space, SpaceOptions, Superblock};
use crate::tree::{TreeMemory, Trees, UnflushableEdges};
use crate::{Error, Result};
use espalier_storage::{BLOCK, Environment};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// A store whose space is open and whose log is not read yet.
pub(super) struct Opening {
    pub(super) env: Arc<dyn Environment>,
    pub(super) device: Arc<GuardedDevice>,
    pub(super) options: OpenOptions,
    pub(super) space: Arc<Space>,
    pub(super) trees: Arc<Trees>,
    pub(super) superblock: Superblock,
}

impl Opening {
    /// The store of `space`, whose new parts are compressed as `compression` says.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if the superblock contradicts itself.
    pub(super) fn new(
        env: Arc<dyn Environment>,
        device: Arc<GuardedDevice>,
        mut options: OpenOptions,
        space: Arc<Space>,
        compression: Compression,
    ) -> Result<Self> {
        let superblock = space.superblock();
        check_log_position(&superblock)?;
        fit_leaves(&mut options, &space);
        let trees = make_trees(&device, &space, &options, compression);
        Ok(Self { env, device, options, space, trees, superblock })
    }

    /// The order of batches as the checkpoint left it.
    pub(super) fn order(&self) -> CommitOrder {
        let last_msn = Msn(self.superblock.next_msn.0.saturating_sub(1));
        CommitOrder::after(self.superblock.checkpoint_lsn, last_msn)
    }

    /// How the log is opened and written.
    pub(super) fn log_config(&self) -> LogConfig {
        LogConfig { early_binding: self.options.tuning.early_binding as u64, ..LogConfig::default() }
    }

    /// The log, to be opened where the superblock says.
    pub(super) fn log(&self, binder: Arc<ValuePartBinder>, config: LogConfig) -> LogOpening<'_> {
        LogOpening {
            device: self.device.clone(),
            region: self.superblock.geometry.log,
            uuid: &self.superblock.uuid,
            session: self.env.random(),
            from: LogPosition::decode(&self.superblock.log_position),
            binder,
            config,
        }
    }
}

/// How the space is opened.
pub(super) fn space_options(options: &OpenOptions) -> SpaceOptions {
    SpaceOptions { table_cache: (options.memory / 16) as usize, discard: options.discard }
}

/// Chooses what depends on the memory budget.
pub(super) fn choose_memtable(options: &mut OpenOptions) {
    if options.tuning.memtable == 0 {
        options.tuning.memtable = (options.memory as usize / 16).clamp(1 << 20, 64 << 20);
    }
}

/// In a full store the pool is all there is to rewrite a leaf in.
fn fit_leaves(options: &mut OpenOptions, space: &Space) {
    let pool = (space.block_counts().pool * BLOCK as u64) as usize;
    options.tuning.leaf = options.tuning.leaf.min(pool / 5);
    options.tuning.edge = options.tuning.edge.min(pool / 8);
}

/// The pieces, and what all trees share.
fn make_trees(
    device: &Arc<GuardedDevice>,
    space: &Arc<Space>,
    options: &OpenOptions,
    compression: Compression,
) -> Arc<Trees> {
    let pieces = Arc::new(Pieces::new(device.clone(), space.clone(), cache_bytes(options)));
    let cache = Arc::downgrade(&pieces);
    pieces.writer.bound_value_parts((space.block_counts().pool * BLOCK as u64) as usize / 8);
    space.deferred.on_death(move |id| {
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

/// A superblock whose tree and log part at different batches would repeat some or leave some out.
///
/// # Errors
/// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged).
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
