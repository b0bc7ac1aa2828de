//! Admission: what a batch will take on the device is reserved before it is accepted.
//!
//! Protocol: [`Admission::admit`] ends with the commit lock taken and the blocks reserved until the
//! next checkpoint: the bytes of the batch twice and a share of headers, and when space is low what
//! absorbing takes beside that. If there are not enough blocks it answers
//! [`Outcome::NeedsSpace`]; the caller makes room, if it can, and asks again with the same
//! [`Request`]. `docs/design/space.md` says what is
//! reserved, and why.

use super::order::{Admitted, CommitOrder, OrderGuard};
use super::pipeline::CommitPipeline;
use crate::index::accounting::{CLONE_BLOCKS, SpaceAccounting, WantedRoom, message_blocks};
use crate::index::table::IndexTable;
use crate::log::LoggedOp;
use crate::message::pending_clone::PendingClone;
use crate::model::batch::Batch;
use crate::model::ids::{IndexId, Msn};
use crate::model::options::Tuning;
use crate::space::{Purpose, Reservation, Space};
use crate::tree::{Root, Trees};
use crate::{ErrorKind, Result};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Blocks beyond what is needed that may remain reserved: reservations are not changed for every
/// batch.
const SPARE_BLOCKS: u64 = 8192;

/// How often room is made for one batch that adds data before it is refused.
pub(crate) const MAX_ADMISSION_TRIES: usize = 8;

/// How many more blocks than [`CLONE_BLOCKS`] those clones may take which wait, for each of these
/// blocks.
const CLONE_RISK_FACTOR: u64 = 3;

/// The same for all of them together.
const MAX_CLONE_RISK_BLOCKS: u64 = 6144;

/// Blocks that absorbing may take beside the messages in a tree that is one small leaf: while there
/// is plenty of space they are not reserved.
const SMALL_TREE_RISK_BLOCKS: u64 = 16;

/// Blocks beside those that depend on the batches.
const BASE_BLOCKS: u64 = 8;

/// See the [module](self).
pub(crate) struct Admission {
    pub(crate) pipeline: Arc<CommitPipeline>,
    pub(crate) accounting: Arc<SpaceAccounting>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) trees: Arc<Trees>,
    pub(crate) space: Arc<Space>,
    pub(crate) tuning: Tuning,
}

/// A batch that asks for blocks, and what has been found out about it.
pub(crate) struct Request<'a> {
    batch: &'a Batch,
    purpose: Purpose,
    /// From here on space counts as low for it.
    assumes_low: bool,
    /// Memtables that it begins, by index.
    tables: Option<BTreeMap<IndexId, u64>>,
    /// Blocks that its clones take, once they were bound on trial.
    clone_blocks: Option<u64>,
    /// How often room was made for it.
    tries: usize,
    /// No more room can be made.
    is_exhausted: bool,
    /// Blocks that deleting its ranges takes, if that gives back more.
    range_delete_blocks: Option<u64>,
}

/// What comes of asking.
pub(crate) enum Outcome<'a> {
    /// The batch may take its place.
    Admitted(Admitted<'a>),
    /// So much is wanted, and there is less.
    NeedsSpace(WantedRoom),
}

/// Blocks that absorbing memtables takes beside what the messages come to
/// ([`TreeEditor::absorb_cost`](crate::tree::TreeEditor)).
#[derive(Debug, Default, Clone, Copy)]
struct Spread {
    /// Those that wait.
    waiting: u64,
    /// And with another batch.
    with_batch: u64,
}

impl<'a> Request<'a> {
    /// A batch that deletes, or moves, may draw on the pool, as that is how space comes back; one
    /// that copies takes space, whatever else it does. One without operations adds nothing: a
    /// deletion of no keys has none.
    pub(crate) fn new(batch: &'a Batch) -> Self {
        let frees = batch.copies == 0 && batch.deletes();
        let purpose = match batch.is_empty() || frees {
            true => Purpose::Essential,
            false if batch.is_promised => Purpose::Promised,
            false => Purpose::Growth,
        };
        Self {
            batch,
            purpose,
            assumes_low: false,
            tables: None,
            clone_blocks: None,
            tries: 0,
            is_exhausted: false,
            range_delete_blocks: None,
        }
    }

    /// What the blocks are for.
    pub(crate) fn purpose(&self) -> Purpose {
        self.purpose
    }

    /// Room was made for it, if `more` is true; otherwise there is nothing left that could make
    /// any. What frees space goes on as long as that helps, what takes some must have an answer.
    /// True if it has to do with what there is now.
    pub(crate) fn note_try(&mut self, more: bool) -> bool {
        self.tries += 1;
        self.is_exhausted = !more || (self.purpose == Purpose::Growth && self.tries == MAX_ADMISSION_TRIES);
        self.is_exhausted
    }

    /// Deleting its ranges takes so many blocks, and gives back at least as many; `None` if it does
    /// not.
    pub(crate) fn set_range_deletes(&mut self, blocks: Option<u64>) {
        self.range_delete_blocks = blocks;
    }

    /// For what it asks now.
    fn reservation_purpose(&self) -> Purpose {
        match self.purpose {
            Purpose::Essential if self.range_delete_blocks.is_some() => Purpose::Clear,
            Purpose::Essential if self.is_exhausted => Purpose::Last,
            purpose => purpose,
        }
    }

    /// Blocks for its ranges and for its clones.
    fn own_blocks(&self) -> (u64, u64) {
        let clones = self.clone_blocks.unwrap_or(CLONE_BLOCKS * self.batch.clones);
        (self.range_delete_blocks.unwrap_or(0), clones)
    }

    fn admitted<'l>(&self, order: OrderGuard<'l>) -> Outcome<'l> {
        let (range_delete_blocks, clone_blocks) = self.own_blocks();
        Outcome::Admitted(Admitted { order, range_delete_blocks, clone_blocks })
    }
}

impl Admission {
    /// Takes the commit lock with space reserved until the next checkpoint for the batch and what
    /// is there.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if no room can be made; of reading, and of the log.
    pub(crate) fn admit<'l>(&'l self, request: &mut Request<'_>) -> Result<Outcome<'l>> {
        loop {
            let low = request.assumes_low || self.accounting.is_low();
            if low {
                self.examine(request)?;
            }
            let mut order = if low { self.pipeline.lock_applied()? } else { self.pipeline.lock() };
            order.note_bound(self.trees.memory.placed_value_bytes.swap(0, Ordering::AcqRel));
            let tables = request.tables.as_ref().filter(|_| low);
            let Some(spread) = tables.map_or(Some(Spread::default()), |tables| self.spread_blocks(tables))
            else {
                // A root has been replaced meanwhile.
                continue;
            };
            let own = request.own_blocks();
            let (want, have) = self.wanted(&mut order, request, spread);
            if want <= have {
                return Ok(request.admitted(order));
            }
            let risk = self.risk_blocks(order.pending.clone_blocks + own.1);
            if !low && self.accounting.would_be_low_with(want - have + risk) {
                drop(order);
                self.accounting.assume_low();
                request.assumes_low = true;
                // From here on it is known what clones take.
                self.absorb_clones();
                continue;
            }
            let drawn = request.batch.drawn;
            return match self.accounting.reserve_drawing(want - have, request.reservation_purpose(), drawn) {
                Ok(more) => {
                    order.pending.reserve(more);
                    Ok(request.admitted(order))
                }
                Err(error) if request.is_exhausted || error.kind() != ErrorKind::NoSpace => Err(error),
                Err(_) => {
                    Ok(Outcome::NeedsSpace(WantedRoom { blocks: want, purpose: request.purpose, drawn }))
                }
            };
        }
    }

    /// Finds out what the batch takes when space is low. Without the commit lock.
    fn examine(&self, request: &mut Request<'_>) -> Result<()> {
        let batch = request.batch;
        let tables = request.tables.get_or_insert_with(|| batch.tables());
        self.pipeline.drain();
        if batch.clones > 0 && request.clone_blocks.is_none() {
            request.clone_blocks = Some(self.clone_blocks(batch)?);
        }
        self.look_at_roots(tables)
    }

    /// The blocks that should be reserved for what is pending and the batch, and those that are.
    fn wanted(&self, order: &mut CommitOrder, request: &Request<'_>, spread: Spread) -> (u64, u64) {
        let pending = &mut order.pending;
        let own = request.own_blocks();
        let before = self.need(pending.bytes, spread.waiting + pending.other_blocks());
        let others = pending.other_blocks() + own.0 + own.1;
        let want = self.need(pending.bytes + request.batch.bytes as u64, spread.with_batch + others);
        // What is no longer needed was for values that have taken their blocks since: with little
        // room a new batch must not count on it.
        let spare = if self.space.free_blocks() > 8 * SPARE_BLOCKS { SPARE_BLOCKS } else { 0 };
        if let Some(reserved) = pending.reserved.as_mut().filter(|r| r.blocks() > before + spare) {
            reserved.shrink(before + spare / 2);
        }
        (want, pending.reserved.as_ref().map_or(0, Reservation::blocks))
    }

    /// Blocks that absorbing may take, beside those reserved, of which `clone_blocks` are for
    /// clones, while space is plentiful.
    fn risk_blocks(&self, clone_blocks: u64) -> u64 {
        (CLONE_RISK_FACTOR * clone_blocks).min(MAX_CLONE_RISK_BLOCKS)
            + SMALL_TREE_RISK_BLOCKS * self.indexes.len() as u64
    }

    /// Blocks to be reserved for messages of so many bytes and what else was found out that they
    /// take.
    fn need(&self, bytes: u64, others: u64) -> u64 {
        message_blocks(&self.tuning, bytes) + others + BASE_BLOCKS
    }

    /// Reserves what the batches take that were found in the log, whether there is room or not:
    /// they were accepted, and no other batch may have it.
    ///
    /// # Errors
    /// Of reading a root.
    pub(crate) fn admit_replayed(&self) -> Result<()> {
        let low = self.accounting.is_low() || {
            let pending = &self.pipeline.lock().pending;
            let need = self.need(pending.bytes, pending.clone_blocks);
            self.accounting.would_be_low_with(need + self.risk_blocks(pending.clone_blocks))
        };
        let tables = BTreeMap::new();
        if low {
            self.accounting.assume_low();
            self.absorb_clones();
            self.look_at_roots(&tables)?;
        }
        let mut order = self.pipeline.lock();
        let pending = &mut order.pending;
        if pending.bytes > 0 {
            let spread = if low { self.spread_blocks(&tables).unwrap_or_default().waiting } else { 0 };
            let blocks = self.need(pending.bytes, spread + pending.other_blocks());
            pending.reserve(self.space.reservations.reserve(blocks, Purpose::Accepted, 0)?);
        }
        drop(order);
        self.accounting.refresh();
        Ok(())
    }

    /// Absorbs what there is in memory where clones wait. One that cannot be, as something cannot
    /// be read, waits on.
    fn absorb_clones(&self) {
        for index in self.indexes.all().into_iter().filter(|index| index.version().has_pending_clone()) {
            if let Err(error) = self.pipeline.absorb_now(&[index.id]) {
                tracing::warn!(%error, "a clone in index {} cannot become part of the tree yet", index.id);
            }
        }
    }

    /// Blocks that the clones of a batch take: twice what they would now, as more messages may be
    /// on their way when they become part of the tree. Without the commit lock.
    ///
    /// # Errors
    /// Of reading tables. What cannot be read along their borders is shown as it is.
    fn clone_blocks(&self, batch: &Batch) -> Result<u64> {
        self.absorb_clones();
        let msn = Msn(self.pipeline.lock_applied()?.last_msn.0 + 1);
        let mut roots: BTreeMap<IndexId, (Root, Root)> = BTreeMap::new();
        let mut blocks = 0;
        // What lies on the device stays while it is looked at.
        let _pin = self.space.deferred.pin();
        for (i, op) in batch.ops.iter().enumerate() {
            let LoggedOp::Clone { index, .. } = op else { continue };
            let Some(clone) = PendingClone::of(&batch.ops, i, msn) else { continue };
            if !roots.contains_key(index) {
                let Some(found) = self.indexes.get(*index) else { continue };
                let root = found.version().root.clone();
                roots.insert(*index, (root.clone(), root));
            }
            let Some((_, root)) = roots.get_mut(index) else { continue };
            *root = self.accounting.edit().bind(root, &clone)?;
            blocks += u64::from(root.height) + 4;
        }
        let unwritten = |root: &Root| self.accounting.unwritten_below(root);
        let more = |(before, after): &(Root, Root)| unwritten(after).saturating_sub(unwritten(before));
        Ok(blocks + 2 * roots.values().map(more).sum::<u64>())
    }

    /// Finds out what [`Self::spread_blocks`] has to know, which may mean reading. Without the
    /// commit lock.
    ///
    /// # Errors
    /// Of reading the root of an index that a batch begins `tables` in.
    fn look_at_roots(&self, tables: &BTreeMap<IndexId, u64>) -> Result<()> {
        for index in self.indexes.all() {
            let changed = tables.contains_key(&index.id);
            if changed || index.waiting_tables() > 0 {
                let root = index.version().root.clone();
                match self.accounting.edit().absorb_cost(&root) {
                    Err(error) if changed => return Err(error),
                    Err(_) => self.accounting.edit().assume_absorb_cost(&root),
                    Ok(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Blocks that absorbing takes beside the messages, also of a batch that begins `tables`;
    /// `None` if that is not known of a root. Under the commit lock.
    fn spread_blocks(&self, tables: &BTreeMap<IndexId, u64>) -> Option<Spread> {
        let mut spread = Spread::default();
        for index in self.indexes.read().values() {
            let (waiting, more) = (index.waiting_tables(), tables.get(&index.id).copied().unwrap_or(0));
            if waiting + more > 0 {
                let version = index.version();
                let mut spreading = version.root.known_absorb_cost()?;
                // What is cloned gets edges of its own; more than one table is begun by clones.
                let most = self.tuning.fanout as u64;
                if version.has_pending_clone() {
                    spreading.each = spreading.each.max(most + most.div_ceil(16));
                }
                spread.waiting += spreading.of(waiting);
                if more > 1 {
                    spreading.each = spreading.each.max(most + most.div_ceil(16));
                }
                spread.with_batch += spreading.of(waiting + more);
            }
        }
        Some(spread)
    }
}
