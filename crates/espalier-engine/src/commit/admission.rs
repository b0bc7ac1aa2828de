//! What a batch will take on the device is reserved before it is accepted.
//!
//! `docs/design/space.md` says what is reserved, and why.

use crate::commit::pipeline::Order;
use crate::index::accounting::{message_blocks, unwritten_below};
use crate::log::LoggedOp;
use crate::maintenance::low_space::Spread;
use crate::message::pending_clone::PendingClone;
use crate::model::batch::Batch;
use crate::model::ids::{IndexId, Msn};
use crate::space::{Purpose, Reservation};
use crate::store::{CLONE_BLOCKS, Shared};
use crate::tree::Root;
use crate::{ErrorKind, Result};
use parking_lot::MutexGuard;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Blocks beyond what is needed that may remain promised: promises are not changed for every batch.
const SPARE: u64 = 8192;

/// How often room is made for one batch that adds data before it is refused.
const MOST_TRIES: usize = 8;

/// How much more than [`CLONE_BLOCKS`] those clones may take which wait, for each block and
/// together.
const CLONES_MORE: (u64, u64) = (3, 6144);

/// Blocks that absorbing may take beside the messages in a tree that is one small leaf: while there
/// is plenty of space they are not promised.
const TREE_MORE: u64 = 16;

/// The commit lock with what a batch takes reserved.
pub(crate) struct Promised<'a> {
    pub(crate) order: MutexGuard<'a, Order>,
    /// Blocks of that which are for deleting its ranges when it is absorbed, and for its clones.
    pub(crate) clears: u64,
    pub(crate) clones: u64,
}

/// A batch that deletes, or moves, may draw on the pool, as that is how space comes back; one that
/// copies takes space, whatever else it does. One without operations adds nothing: a deletion of no
/// keys has none.
pub(crate) fn purpose_of(batch: &Batch) -> Purpose {
    let frees = batch.copies == 0 && batch.deletes();
    if batch.is_empty() || frees { Purpose::Essential } else { Purpose::Growth }
}

impl Shared {
    /// Takes the commit lock with space reserved until the next checkpoint for `batch` and what is
    /// there: its bytes twice and a share of headers, and in a store that is short of space what
    /// absorbing takes beside that.
    pub(crate) fn promise(&self, batch: &Batch, purpose: Purpose) -> Result<Promised<'_>> {
        let (mut exhausted, mut clears, mut tries, mut clones) = (false, None, 0, None);
        let mut sparing = false;
        let mut tables = None;
        loop {
            let lean = sparing || self.accounting.is_low();
            let tables = match lean {
                true => Some(tables.get_or_insert_with(|| batch.tables())),
                false => None,
            };
            if let Some(tables) = &tables {
                self.settle();
                if batch.clones > 0 && clones.is_none() {
                    clones = Some(self.clone_blocks(batch)?);
                }
                self.look_at_roots(tables)?;
            }
            let mut order = if lean { self.settled()? } else { self.order.lock() };
            order.settle(self.trees.memory.placed_value_bytes.swap(0, Ordering::AcqRel));
            let Some(spread) = tables.map_or(Some(Spread::default()), |tables| self.spread_blocks(tables))
            else {
                // A root has been replaced meanwhile.
                continue;
            };
            let waiting = &mut order.waiting;
            let before = self.need(waiting.bytes, spread.waiting + waiting.clones + waiting.clears);
            let own = (clears.unwrap_or(0), clones.unwrap_or(CLONE_BLOCKS * batch.clones));
            let others = waiting.clones + waiting.clears + own.0 + own.1;
            let want = self.need(waiting.bytes + batch.bytes as u64, spread.with_batch + others);
            // What is no longer needed was for values that have taken their blocks since: with
            // little room a new batch must not count on it.
            let spare = if self.space.free_blocks() > 8 * SPARE { SPARE } else { 0 };
            if let Some(reserved) = waiting.reserved.as_mut().filter(|r| r.blocks() > before + spare) {
                reserved.shrink(before + spare / 2);
            }
            let have = waiting.reserved.as_ref().map_or(0, Reservation::blocks);
            if want <= have {
                return Ok(Promised { order, clears: own.0, clones: own.1 });
            }
            let unsure = self.unsure(waiting.clones + own.1);
            if !lean && self.accounting.would_be_low_with(want - have + unsure) {
                drop(order);
                self.accounting.assume_low();
                sparing = true;
                // From here on it is known what clones take.
                self.absorb_clones();
                continue;
            }
            let asks = match purpose {
                Purpose::Essential if clears.is_some() => Purpose::Clear,
                Purpose::Essential if exhausted => Purpose::Last,
                purpose => purpose,
            };
            match self.accounting.reserve(want - have, asks) {
                Ok(more) => {
                    order.waiting.reserve(more);
                    return Ok(Promised { order, clears: own.0, clones: own.1 });
                }
                Err(error) if exhausted || error.kind() != ErrorKind::NoSpace => return Err(error),
                Err(_) => {
                    drop(order);
                    // What frees space goes on as long as that helps, what takes some must have an
                    // answer.
                    tries += 1;
                    exhausted = !self.make_space(want, purpose)?
                        || (purpose == Purpose::Growth && tries == MOST_TRIES);
                    clears = if exhausted { self.gives_back(batch)? } else { None };
                }
            }
        }
    }

    /// Blocks that absorbing may take, beside those promised, of which `clones` are for clones,
    /// while space is plentiful.
    fn unsure(&self, clones: u64) -> u64 {
        (CLONES_MORE.0 * clones).min(CLONES_MORE.1) + TREE_MORE * self.indexes.len() as u64
    }

    /// Blocks to be promised for messages of so many bytes and what else was found out that they
    /// take.
    fn need(&self, bytes: u64, others: u64) -> u64 {
        message_blocks(&self.options.tuning, bytes) + others + 8
    }

    /// Promises what the batches take that were found in the log, whether there is room or not:
    /// they were accepted, and nobody else may have it.
    pub(crate) fn promise_replayed(&self) -> Result<()> {
        let lean = self.accounting.is_low() || {
            let waiting = &self.order.lock().waiting;
            self.accounting
                .would_be_low_with(self.need(waiting.bytes, waiting.clones) + self.unsure(waiting.clones))
        };
        let tables = BTreeMap::new();
        if lean {
            self.accounting.assume_low();
            self.absorb_clones();
            self.look_at_roots(&tables)?;
        }
        let mut order = self.order.lock();
        let waiting = &mut order.waiting;
        if waiting.bytes > 0 {
            let spread = if lean { self.spread_blocks(&tables).unwrap_or_default().waiting } else { 0 };
            let blocks = self.need(waiting.bytes, spread + waiting.clones + waiting.clears);
            waiting.reserve(self.space.reserve(blocks, Purpose::Accepted, 0)?);
        }
        drop(order);
        self.accounting.refresh();
        Ok(())
    }

    /// Absorbs what there is in memory where clones wait. One that cannot be, as something cannot
    /// be read, waits on.
    fn absorb_clones(&self) {
        for index in self.indexes.all().into_iter().filter(|index| index.version().has_goto()) {
            if let Err(error) = self.absorb_at_once(&[index.id]) {
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
        let msn = Msn(self.settled()?.last_msn.0 + 1);
        let mut roots: BTreeMap<IndexId, (Root, Root)> = BTreeMap::new();
        let mut blocks = 0;
        // What lies on the device stays while somebody looks.
        let _pin = self.space.pin()?;
        for op in &batch.ops {
            let LoggedOp::Clone { index, source, destination } = op else { continue };
            if source == destination {
                continue;
            }
            if !roots.contains_key(index) {
                let Some(found) = self.indexes.get(*index) else { continue };
                let root = found.version().root.clone();
                roots.insert(*index, (root.clone(), root));
            }
            let Some((_, root)) = roots.get_mut(index) else { continue };
            let clone = PendingClone { msn, source: source.clone(), destination: destination.clone() };
            *root = self.trees.edit(self.trees.policy()).bind(root, &clone)?;
            blocks += u64::from(root.height) + 4;
        }
        let unwritten = |root: &Root| unwritten_below(&self.trees, root);
        let more = |(before, after): &(Root, Root)| unwritten(after).saturating_sub(unwritten(before));
        Ok(blocks + 2 * roots.values().map(more).sum::<u64>())
    }
}
