//! Opening a damaged store: everything that can be read, and nothing that is wrong.
//!
//! 1. The tables are read as far as they can be, and new ones made of them in memory
//!    (`space::rebuild`).
//! 2. The trees are walked, and cut where they cannot be read (`tree::inspect::salvage`).
//! 3. References are counted anew.
//! 4. What may be older than something lost is deleted; so is what messages make of nothing, where
//!    what they were to change is lost.
//! 5. The log is replayed up to where it is damaged, and the same holds for what it says; logged
//!    values that cannot be read are deleted too, and what would change them is left out.
//!
//! The store is usable then. Nothing on the device that the old superblock needs is changed until a
//! checkpoint commits the new state as a whole: a crash before leaves the damaged store as it was,
//! to be repaired again.

use crate::checkpoint::state::CheckpointState;
use crate::device::GuardedDevice;
use crate::index::Index;
use crate::index::catalog::StoredRoot;
use crate::index::deleted_ranges::DeletedRanges;
use crate::index::table::{IndexTable, Indexes};
use crate::log::{LoggedBatch, LoggedOp};
use crate::memtable::Memtable;
use crate::model::ids::{IndexId, Msn, PieceId, Reference};
use crate::model::options::{Compression, OpenOptions};
use crate::model::piece::PieceHandle;
use crate::model::value::Value;
use crate::model::value_reader::load;
use crate::space::{RebuiltSpace, Space, VolumeTable};
use crate::store::Store;
use crate::store::batch_replay::BatchReplay;
use crate::store::components::{Components, Recovered};
use crate::store::losses::Losses;
use crate::store::opening::{Opening, choose_memtable, space_options};
use crate::store::value_part_binder::ValuePartBinder;
use crate::tree::{Progress, References, Root, Salvager, TreePolicy, Trees};
use crate::{Error, ErrorKind, Key, Loss, Op, RangeOp, Result};
use espalier_storage::{BLOCK, Device, Environment};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// A damaged store, opened without what is damaged.
#[derive(Debug)]
pub struct Rescue {
    /// The store. [`Store::close`] makes the repair durable.
    pub store: Arc<Store>,
    /// What is lost.
    pub losses: Vec<Loss>,
    /// What was damaged and is there once more, in words: nothing of it is lost.
    pub mended: Vec<String>,
    /// Pieces that no checkpoint counts yet and that only the device refers to.
    _keep: Vec<Arc<PieceHandle>>,
}

impl Store {
    /// Opens a damaged store for repair. Everything is read; what cannot be is left out and told.
    /// The device is changed by nothing before the first checkpoint. `progress` is told now and
    /// then how much was read.
    ///
    /// # Errors
    /// Of the device; [`ErrorKind::NotAStore`], [`ErrorKind::NewerFormat`]; [`ErrorKind::Damaged`]
    /// if neither superblock or not the volume table can be read: without them nothing can be told
    /// from anything else; [`ErrorKind::Gone`] if part of the state that is read was deleted.
    pub fn open_damaged(
        device: Arc<dyn Device>,
        env: Arc<dyn Environment>,
        options: OpenOptions,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Rescue> {
        if options.read_only {
            let message = "a damaged store is opened for writing, be it on a device that keeps nothing";
            return Err(Error::new(ErrorKind::InvalidArgument, message));
        }
        let (components, losses, mended, keep) = open(device, env, options, progress)?;
        Ok(Rescue { store: Store::start(components)?, losses, mended, _keep: keep })
    }
}

type Salvaged = (Components, Vec<Loss>, Vec<String>, Vec<Arc<PieceHandle>>);

fn open(
    device: Arc<dyn Device>,
    env: Arc<dyn Environment>,
    mut options: OpenOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Salvaged> {
    choose_memtable(&mut options);
    let device = GuardedDevice::new(device, false);
    let salvaged = salvage(device.clone(), env, options, progress);
    // Whatever was lost then is whole in the newest state.
    device.still_there()?;
    salvaged
}

fn salvage(
    device: Arc<GuardedDevice>,
    env: Arc<dyn Environment>,
    options: OpenOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Salvaged> {
    let RebuiltSpace { space, volumes, problems, mended } =
        Space::rebuild(device.clone(), &space_options(&options))?;
    let nowhere = |message: String| Loss { index: None, range: None, message };
    let mut losses: Vec<Loss> = problems.into_iter().map(nowhere).collect();
    let compression = Compression::from_code(space.superblock().compression).unwrap_or_default();
    let opening = Opening::new(env, device, options, space.clone(), compression)?;
    let Opening { device, trees, options, superblock, .. } = &opening;

    // Volumes that are read-only too: what is left of their trees has to be written.
    let roots = roots_of(&space, &volumes);
    let (left, keep, uncounted) = {
        let mut tick = read_progress(device, &space, progress);
        cut(trees, &space, roots, superblock.next_msn, &mut losses, &mut tick)?
    };
    device.still_there()?;
    let pin = Arc::new(space.deferred.pin());
    let (mut indexes, mut stored) = (Indexes::new(), BTreeMap::new());
    for (id, counted, root) in left {
        stored.insert(id, counted);
        indexes.insert(id, Arc::new(Index::new(id, root, pin.clone())));
    }

    let deleted: Arc<DeletedRanges> = Arc::default();
    let losses = Losses::in_trees(losses);
    let mut replay = BatchReplay::new(trees, &space, options, &indexes, &deleted, opening.order(), losses);
    let table = Arc::new(IndexTable::new(indexes.clone()));
    let binder = Arc::new(ValuePartBinder::new(trees, &space, &table));
    let mut lost = LostValues::default();
    let (log, broken) = opening.log(binder, opening.log_config()).open_damaged(&mut |mut batch| {
        lost.take_out(trees, &mut batch, &mut replay.losses.lock());
        replay.batch(batch)
    })?;
    for index in indexes.values() {
        replay.absorb(index, replay.order.last_lsn)?;
    }
    let mut losses = replay.losses.into_inner().into_told();
    let order = replay.order;
    losses.extend(broken.map(|error| nowhere(format!("the end of the log is lost: {error}"))));
    let checkpoint = CheckpointState::new(stored, Vec::new()).with_uncounted(uncounted);
    let components =
        Components::open(Recovered { opening, log, indexes: table, volumes, deleted, order, checkpoint })?;
    Ok((components, losses, mended, keep))
}

/// Tells how much has been read, whenever it is called. What is read again at the end is little
/// and is not counted.
fn read_progress(device: &GuardedDevice, space: &Space, progress: &mut dyn FnMut(Progress)) -> impl FnMut() {
    let begun = device.stats().bytes_read;
    let stats = space.block_counts();
    let total = stats.total.saturating_sub(stats.free + stats.fixed) * BLOCK as u64;
    move || progress(Progress { done: (device.stats().bytes_read - begun).min(total), total })
}

fn roots_of(space: &Arc<Space>, volumes: &VolumeTable) -> Vec<(IndexId, Root)> {
    let mut roots = Vec::new();
    for (volume, entry) in &volumes.volumes {
        for (index, root) in entry.indexes.iter().enumerate() {
            let id = IndexId { volume: *volume, index: index as u8 };
            roots.push((id, StoredRoot::from(root).as_root(&**space)));
        }
    }
    roots
}

/// For each index the root that is counted, and the one from which messages took what must not be
/// seen. And headers that are not counted yet, with what they refer to.
type Left = (Vec<(IndexId, StoredRoot, Root)>, Vec<Arc<PieceHandle>>, HashMap<PieceId, Vec<Reference>>);

/// Steps 2 to 4: the trees without what cannot be read and what must not be, with references
/// counted.
fn cut(
    trees: &Arc<Trees>,
    space: &Arc<Space>,
    roots: Vec<(IndexId, Root)>,
    next_msn: Msn,
    losses: &mut Vec<Loss>,
    tick: &mut dyn FnMut(),
) -> Result<Left> {
    let mut cutter = Salvager::new(trees, tick);
    let mut references = References::default();
    let mut left = Vec::new();
    for (id, root) in roots {
        let root = cutter.root(id, &root);
        references.add_root(trees, &root)?;
        left.push((id, StoredRoot { node: None, height: root.height }, root));
    }
    for (.., root) in &left {
        references.add_fresh(trees, root)?;
    }
    let keep = space.recount(&references.counts, &references.fresh)?;
    for (id, counted, root) in &mut left {
        counted.node = root.slot.as_ref().and_then(|slot| slot.place()).map(|handle| handle.id());
        let stale = cutter.stale_keys(*id, root)?;
        if !stale.is_empty() {
            // Newer than everything in the tree, older than everything in the log.
            let msn = Msn(next_msn.0.saturating_sub(1));
            *root = trees.edit(TreePolicy::PLENTY).absorb(root, &deletions(&stale, msn, trees), true)?;
        }
    }
    losses.append(&mut cutter.losses);
    Ok((left, keep, references.uncounted))
}

/// Values that the log names and the device no longer has.
#[derive(Default)]
struct LostValues {
    /// Value parts that the log names: whether all of each is what was written.
    sound: HashMap<PieceId, bool>,
    /// Keys without a value because that is lost, and nothing whole has come since. What changes
    /// such a value must not make one of nothing.
    keys: BTreeMap<IndexId, BTreeSet<Key>>,
}

impl LostValues {
    /// Replaces insertions of lost values by deletions, and patches by zeros; leaves out what
    /// changes what is lost. Values that share a part with damage are written again.
    fn take_out(&mut self, trees: &Trees, batch: &mut LoggedBatch, losses: &mut Losses) {
        let first = batch.first_msn.0;
        for (n, logged) in batch.ops.iter_mut().enumerate() {
            let msn = Msn(first.wrapping_add(n as u64));
            match logged {
                LoggedOp::Point { index, key, op } => {
                    let keys = self.keys.entry(*index).or_default();
                    if op.is_terminal() {
                        keys.remove(key);
                    } else if keys.contains(key) {
                        *logged = LoggedOp::Superseded;
                        continue;
                    }
                    if let Some(loss) = self.point(trees, *index, key, op) {
                        losses.add_value(loss, msn);
                    }
                }
                LoggedOp::Range { index, range, op: RangeOp::Delete } => {
                    self.keys.entry(*index).or_default().retain(|key| !range.contains(key));
                }
                LoggedOp::Clone { index, source, destination } if source != destination => {
                    self.clone_keys(*index, source, destination);
                }
                LoggedOp::Range { .. } | LoggedOp::Clone { .. } | LoggedOp::Superseded => {}
            }
        }
    }

    /// Returns what is lost, if it is.
    fn point(&mut self, trees: &Trees, index: IndexId, key: &Key, op: &mut Op) -> Option<Loss> {
        let value = op.value().filter(|value| !value.segments().is_empty())?;
        let parts = value.segments().iter().filter_map(|large| large.place()).map(|at| at.part.id());
        let sound = &mut self.sound;
        if parts.fold(true, |all, part| {
            all & *sound.entry(part).or_insert_with(|| trees.pieces.check(part).is_ok())
        }) {
            return None;
        }
        match load(value, &*trees.pieces) {
            Ok(bytes) => {
                *op = op.with_value(Value::from(bytes));
                None
            }
            Err(error) => {
                *op = op.without_value();
                if *op == Op::Delete {
                    self.keys.entry(index).or_default().insert(key.clone());
                }
                Some(Loss::key(index, key, format!("a value is lost: {error}")))
            }
        }
    }

    /// What begins with `source` appears below `destination` too.
    fn clone_keys(&mut self, index: IndexId, source: &Key, destination: &Key) {
        let keys = self.keys.entry(index).or_default();
        let moved = |key: &Key| Some([destination, key.strip_prefix(&**source)?].concat().into());
        let copies: Vec<Key> = keys.iter().filter_map(moved).collect();
        keys.retain(|key| !key.starts_with(destination));
        keys.extend(copies);
    }
}

/// Deletions of keys that are lost, in a memtable.
fn deletions(keys: &HashSet<Key>, msn: Msn, trees: &Trees) -> Arc<Memtable> {
    let table = Memtable::default();
    for key in keys {
        table.apply(key, msn, &Op::Delete, Msn(0), &trees.merge);
    }
    Arc::new(table)
}
