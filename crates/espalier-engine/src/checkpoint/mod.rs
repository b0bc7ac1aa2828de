//! Checkpoints: one durable image of all indexes at one batch.
//!
//! Protocol, by one thread at a time, beside readers, committers and other workers:
//! 1. *cut*: under the commit lock, seal the memtables of all indexes after the same batch;
//! 2. absorb what is sealed up to there and nothing newer, and take the roots;
//! 3. write what is dirty below the roots, children first;
//! 4. count: what new headers and roots refer to gains, what dead ones referred to loses;
//! 5. write the tables, sync, switch the superblock, sync (`space::commit`);
//! 6. let the log forget, and give every index a version with a younger pin.
//!
//! A crash before the switch leaves the older checkpoint and the log behind it; after it, the newer
//! one and the rest of the log. Failure before counting changes nothing that lasts: what was
//! written stays fresh, and the next checkpoint counts it if it is still reached.

pub(crate) mod volume_changes;

use crate::Result;
use crate::checkpoint::volume_changes::{Alias, Changed, Graft, VolumeChange, enter_roots};
use crate::commit::pipeline::Waiting;
use crate::index::Index;
use crate::index::catalog::StoredRoot;
use crate::model::ids::{Delta, IndexId, Lsn, Msn, PieceId, PieceKind, Reference};
use crate::model::piece::PieceHandle;
use crate::space::Locator;
use crate::space::{Space, Superblock, VolumeTable};
use crate::store::Shared;
use crate::tree::{Root, Written};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Dead nodes taken apart in one checkpoint; the rest waits on the reclaim list.
const RECLAIM_AT_ONCE: usize = 16 << 10;

/// What checkpoints hand on to each other.
pub(crate) struct Checkpointer {
    state: Mutex<State>,
    /// The nodes of [`State::roots`], for those who cannot wait for a checkpoint under way; `None`
    /// while counts change. With a number for each time that they did.
    counted: Mutex<(u64, Option<BTreeMap<IndexId, PieceId>>)>,
    /// When the last one ended, in milliseconds of the monotonic clock.
    last: AtomicU64,
}

/// The state as of the last checkpoint.
pub(crate) struct State {
    /// The counted root of each index.
    pub(crate) roots: BTreeMap<IndexId, StoredRoot>,
    /// Nodes without references whose own references are still counted.
    pub(crate) reclaim: Vec<PieceId>,
    /// Those of them that cannot be read, and so not be taken apart: until somebody opens the store
    /// again nobody tries to.
    unreadable: HashSet<PieceId>,
    /// Headers on the device whose references are not counted, with what they refer to.
    uncounted: HashMap<PieceId, Vec<Reference>>,
}

/// A consistent state to be made durable.
struct Cut {
    lsn: Lsn,
    next_msn: Msn,
    volumes: VolumeTable,
    indexes: Vec<Arc<Index>>,
    changed: Changed,
    /// What is released when it is on the device.
    waiting: Waiting,
    /// Bytes of it that the log had not written yet.
    covered: u64,
    /// What it deletes may take space that no checkpoint sets free by itself.
    untidy: bool,
}

impl Checkpointer {
    pub(crate) fn new(roots: BTreeMap<IndexId, StoredRoot>, reclaim: Vec<PieceId>) -> Self {
        let counted = Mutex::new((0, Some(nodes_of(&roots))));
        let state = State { roots, reclaim, unreadable: HashSet::new(), uncounted: HashMap::new() };
        Self { state: Mutex::new(state), counted, last: AtomicU64::new(0) }
    }

    /// The same with headers on the device that are not counted yet.
    pub(crate) fn counting(mut self, uncounted: HashMap<PieceId, Vec<Reference>>) -> Self {
        self.state.get_mut().uncounted = uncounted;
        self
    }

    /// The root of an index that the last checkpoint has counted (`None` if that was empty), and
    /// which count this is; `None` if nothing can be said, as counts are being changed.
    pub(crate) fn counted_root(&self, id: IndexId) -> Option<(u64, Option<PieceId>)> {
        let counted = self.counted.lock();
        counted.1.as_ref().map(|roots| (counted.0, roots.get(&id).copied()))
    }

    /// Counts are about to change, or have.
    fn recount(&self, roots: Option<&BTreeMap<IndexId, StoredRoot>>) {
        let mut counted = self.counted.lock();
        *counted = (counted.0 + 1, roots.map(nodes_of));
    }

    /// Waits for a checkpoint under way, and keeps the next one from beginning.
    pub(crate) fn at_rest(&self) -> impl Drop + use<'_> {
        self.state.lock()
    }

    /// Time since the last one ended, or since the store was opened.
    pub(crate) fn age(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }

    /// Looks at the state while no checkpoint is under way.
    pub(crate) fn hold<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        look(&self.state.lock())
    }

    /// True if a checkpoint is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.is_locked()
    }

    /// True if deleted nodes wait to be taken apart.
    pub(crate) fn has_reclaim(&self) -> bool {
        self.state.try_lock().is_some_and(|state| state.reclaim.len() > state.unreadable.len())
    }
}

fn nodes_of(roots: &BTreeMap<IndexId, StoredRoot>) -> BTreeMap<IndexId, PieceId> {
    roots.iter().filter_map(|(id, root)| root.node.map(|node| (*id, node))).collect()
}

impl Shared {
    /// Makes a checkpoint of everything committed before this call.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.checkpoint_as(false, &VolumeChange::None, &|| true).map(drop)
    }

    /// Makes a checkpoint in which the volumes have changed, if that is `wanted` when they are
    /// about to be; returns the number of one that was made.
    pub(crate) fn change_volumes(
        &self,
        change: &VolumeChange<'_>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<u32>> {
        self.checkpoint_as(false, change, wanted)
    }

    /// The last checkpoint: says that the log holds nothing behind it.
    pub(crate) fn checkpoint_to_close(&self) -> Result<()> {
        self.checkpoint_as(true, &VolumeChange::None, &|| true).map(drop)
    }

    fn checkpoint_as(
        &self,
        clean: bool,
        change: &VolumeChange<'_>,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<u32>> {
        self.device.writable()?;
        let mut state = self.checkpointer.state.lock();
        self.accounting.refresh();
        let mut cut = self.cut(change, wanted)?;
        let taken = self.take_roots(&cut, &state);
        self.absorber.lift_barrier();
        // What came since the cut has waited for this.
        self.signal.request_work();
        // The roots are held until they are counted: newer ones may have replaced them already.
        let counted = taken.and_then(|roots| {
            // From here on headers are stored that no count knows; after a failure that remains so.
            self.checkpointer.recount(None);
            let stored = self.write_roots(&roots, &mut state)?;
            let reclaim = self.count_references(&stored, &cut.volumes, &state)?;
            Ok((roots, stored, reclaim))
        });
        let (roots, stored, reclaim) = counted.inspect_err(|_| {
            self.forget_volume(cut.changed.made);
            self.wait_again(&mut cut);
        })?;
        // What was to be deleted when it is absorbed has been, or waits.
        self.accounting.range_deletes().finish_cut();
        // From here on the counts are those of the new roots, whether or not the switch succeeds.
        state.roots.retain(|id, _| cut.volumes.volumes.contains_key(&id.volume));
        state.roots.extend(stored.iter().copied());
        self.checkpointer.recount(Some(&state.roots));
        (state.reclaim, state.unreadable) = reclaim;
        state.uncounted.clear();
        let mut volumes = cut.volumes.clone();
        enter_roots(&mut volumes, &state.roots);
        self.show_volume(cut.changed.made, &volumes)?;
        let tables = self.space.write_tables(&volumes, &state.reclaim)?;
        let position = self.log.position_after(cut.lsn);
        self.space.commit_superblock(Superblock {
            checkpoint_lsn: cut.lsn,
            next_msn: cut.next_msn,
            log_position: position.encode(),
            checkpointed: self.env.now(),
            clean,
            untidy: cut.untidy,
            roots: tables,
            ..self.space.superblock()
        })?;
        self.log.trim(position);
        self.accounting.refresh();
        for index in &cut.indexes {
            index.publish_pinned(&self.space, |_| ())?;
        }
        self.space.checkpointed();
        drop(cut.waiting);
        self.trees.edit(self.trees.policy()).forget_stuck();
        self.accounting.note_checkpoint();
        self.checkpointer.last.store(self.env.monotonic().as_millis() as u64, Ordering::Relaxed);
        drop(state);
        self.note_held(&roots);
        self.signal.note_progress();
        Ok(cut.changed.made)
    }

    /// Step 1.
    fn cut(&self, change: &VolumeChange<'_>, wanted: &dyn Fn() -> bool) -> Result<Cut> {
        let mut order = self.settled()?;
        if !wanted() {
            return Err(crate::Error::given_up());
        }
        let changed = self.begin_change(change)?;
        let volumes = self.catalog.lock().table.clone();
        let mut indexes: Vec<Arc<Index>> = self.indexes.all();
        indexes.retain(|index| !changed.aliases.iter().any(|alias| alias.id == index.id));
        let lsn = order.last_lsn;
        self.absorber.set_barrier(lsn);
        let replaced = changed.aliases.iter().filter_map(|alias| alias.replaced.as_ref());
        for index in indexes.iter().chain(replaced) {
            index.seal(lsn);
        }
        // What groups have bound until now settles what is cut off, not what follows; in this
        // order, so that what comes to be bound meanwhile is counted twice rather than not at all.
        let unwritten = self.log.unwritten_bytes();
        order.settle(self.trees.memory.placed_value_bytes.swap(0, Ordering::AcqRel));
        let waiting = std::mem::take(&mut order.waiting);
        self.accounting.range_deletes().cut();
        order.covered = unwritten;
        let next_msn = Msn(order.last_msn.0 + 1);
        let covered = order.covered;
        // What is deleted is noted when it is carried out.
        let untidy = self.deleted.is_untidy();
        Ok(Cut { lsn, next_msn, volumes, indexes, changed, waiting, covered, untidy })
    }

    /// What was cut off waits for another checkpoint, but for what the log has brought to its place
    /// since.
    fn wait_again(&self, cut: &mut Cut) {
        let mut order = self.order.lock();
        let mut waiting = std::mem::take(&mut cut.waiting);
        let settled = cut.covered.saturating_sub(std::mem::take(&mut order.covered));
        waiting.bytes = waiting.bytes.saturating_sub(settled);
        order.waiting.append(waiting);
        self.accounting.range_deletes().undo_cut();
    }

    /// Step 2.
    fn take_roots(&self, cut: &Cut, state: &State) -> Result<Vec<(IndexId, Root)>> {
        let mut roots: Vec<(IndexId, Root)> = Vec::new();
        for index in &cut.indexes {
            let _structure = index.structure.lock();
            while index.version().sealed.first().is_some_and(|s| s.upto <= cut.lsn) {
                self.absorber.absorb_oldest(index)?;
            }
            roots.push((index.id, index.version().root.clone()));
        }
        // Of volumes that never change the root is the one of the last checkpoint.
        let root_of = |roots: &[(IndexId, Root)], id: &IndexId| match roots.iter().find(|(of, _)| of == id) {
            Some((_, root)) => root.clone(),
            None => state.roots.get(id).map_or_else(Root::default, |root| root.as_root(&*self.space)),
        };
        let msn = Msn(cut.next_msn.0 - 1);
        for Alias { id, from, prefix, replaced } in &cut.changed.aliases {
            let mut root = root_of(&roots, from);
            if !prefix.is_empty() {
                root = self.trees.edit(self.trees.policy()).taken_out(&root, prefix, msn)?;
            }
            if let Some(index) = replaced {
                let _structure = index.structure.lock();
                index.publish_root(&self.space, root.clone(), |version| {
                    version.sealed.retain(|sealed| sealed.upto > cut.lsn);
                })?;
            }
            roots.push((*id, root));
        }
        for Graft { id, from, prefix } in &cut.changed.grafts {
            let source = root_of(&roots, from);
            let Some(index) = cut.indexes.iter().find(|index| index.id == *id) else { continue };
            let _structure = index.structure.lock();
            // Others may have flushed it since, and absorbed nothing that is newer than the cut.
            let root =
                self.trees.edit(self.trees.policy()).put_in(&index.version().root, prefix, &source, msn)?;
            index.publish_root(&self.space, root.clone(), |_| ())?;
            roots.retain(|(of, _)| of != id);
            roots.push((*id, root));
        }
        Ok(roots)
    }

    /// Step 3.
    fn write_roots(
        &self,
        roots: &[(IndexId, Root)],
        state: &mut State,
    ) -> Result<Vec<(IndexId, StoredRoot)>> {
        let mut stored = Vec::new();
        for (id, root) in roots {
            let mut written: Vec<Written> = Vec::new();
            let handle: Result<Option<Arc<PieceHandle>>> =
                root.slot.as_ref().map(|slot| self.trees.write(slot, &mut written)).transpose();
            // Also after a failure: what was written may be reached by the next checkpoint.
            state.uncounted.extend(written.into_iter().map(|w| (w.id, w.refers)));
            stored.push((*id, StoredRoot { node: handle?.map(|h| h.id()), height: root.height }));
        }
        Ok(stored)
    }

    /// Step 4: returns what is left to reclaim, and what of it cannot be read.
    ///
    /// Gains and losses are netted before anything is counted, so that what old and new headers
    /// share does not dirty its page of the table.
    fn count_references(
        &self,
        stored: &[(IndexId, StoredRoot)],
        volumes: &VolumeTable,
        state: &State,
    ) -> Result<(Vec<PieceId>, HashSet<PieceId>)> {
        let mut deltas: HashMap<PieceId, Delta> = HashMap::new();
        let mut gained: Vec<Reference> = Vec::new();
        let mut lost: Vec<Reference> = Vec::new();
        for (id, root) in stored {
            let old = state.roots.get(id).and_then(|r| r.node);
            if old != root.node {
                gained.extend(root.node.map(|id| (id, 0)));
                lost.extend(old.map(|id| (id, 0)));
            }
        }
        let deleted = state.roots.iter().filter(|(id, _)| !volumes.volumes.contains_key(&id.volume));
        lost.extend(deleted.filter_map(|(_, root)| root.node).map(|id| (id, 0)));
        let mut entered: HashSet<PieceId> = HashSet::new();
        while let Some((id, bytes)) = gained.pop() {
            let delta = deltas.entry(id).or_default();
            delta.count += 1;
            delta.bytes = delta.bytes.saturating_add_unsigned(bytes);
            // They stay uncounted until all is counted: a header that cannot be read below leaves
            // that to the next checkpoint.
            if let Some(refers) = state.uncounted.get(&id).filter(|_| entered.insert(id)) {
                gained.extend(refers);
            }
        }
        let mut dead: HashSet<PieceId> = HashSet::new();
        let mut touched = Touched::new(&self.space, deltas.keys());
        let mut unreadable = state.unreadable.clone();
        for id in state.reclaim.iter().filter(|id| !state.unreadable.contains(id)).take(RECLAIM_AT_ONCE) {
            let Ok(refers) = self.trees.references_of(*id) else {
                unreadable.insert(*id);
                continue;
            };
            // At least one, so that there is progress.
            if !touched.add(&refers, !dead.is_empty()) {
                break;
            }
            dead.insert(*id);
            lost.extend(refers);
        }
        while let Some((id, bytes)) = lost.pop() {
            let delta = deltas.entry(id).or_default();
            delta.count -= 1;
            delta.bytes = delta.bytes.saturating_sub_unsigned(bytes);
            // Later losses may bring it to 0, later gains cannot come: all are in.
            let left = i64::from(self.space.references(id)?.unwrap_or(0)) + delta.count;
            let is_node = || Ok::<_, crate::Error>(matches!(self.space.locate(id)?.kind, PieceKind::Node(_)));
            if left == 0 && dead.len() < RECLAIM_AT_ONCE && is_node()? && !dead.contains(&id) {
                let Ok(refers) = self.trees.references_of(id) else {
                    unreadable.insert(id);
                    continue;
                };
                if touched.add(&refers, !dead.is_empty()) {
                    dead.insert(id);
                    lost.extend(refers);
                }
            }
        }
        let without = self.space.count(&deltas)?;
        let waiting: Vec<PieceId> =
            state.reclaim.iter().copied().chain(without).filter(|id| !dead.contains(id)).collect();
        for id in dead {
            self.space.forget(id)?;
        }
        Ok((waiting, unreadable))
    }
}

/// Pages of the node translation table that a checkpoint changes: each needs a new block before its
/// old one is free, so with little room few nodes are taken apart at a time.
struct Touched {
    pages: HashSet<u64>,
    most: usize,
}

impl Touched {
    fn new<'a>(space: &Space, ids: impl Iterator<Item = &'a PieceId>) -> Self {
        // Half of what is free, a half of that for the pages above.
        let most = (space.free_blocks() / 4) as usize;
        Self { pages: ids.map(|id| Space::table_page_of(*id)).collect(), most }
    }

    /// Notes changes of these pieces; false (and nothing noted) if they are too many and `bounded`.
    /// Those on pages that change anyway are never too many: mostly the newer header refers to the
    /// same pieces, and only if the older one is taken apart at once do they stay as they are.
    fn add(&mut self, refers: &[Reference], bounded: bool) -> bool {
        let pages: HashSet<u64> = refers.iter().map(|(id, _)| Space::table_page_of(*id)).collect();
        let more = pages.difference(&self.pages).count();
        if bounded && more > 0 && self.pages.len() + more > self.most {
            return false;
        }
        self.pages.extend(pages);
        true
    }
}
