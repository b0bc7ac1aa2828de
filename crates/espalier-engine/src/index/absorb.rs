//! Absorbing: a sealed memtable, or a clone that waits, becomes part of the tree of its index.
//!
//! Protocol: the thread that absorbs holds the index's structure lock. Layers are absorbed oldest
//! first. While a checkpoint takes the roots, layers sealed behind its cut wait at the *barrier*.
//!
//! Invariant: absorbing never fails for lack of space. What a layer takes while its messages wait
//! on the edges of the root has been reserved by its batches. When space is low, whatever takes
//! more than that (deleting ranges at once, rewriting a leaf, joining runs) is done only if room
//! for it can be reserved.

use super::accounting::{SpaceAccounting, unwritten_below};
use super::backlog::FlushBacklog;
use super::{Index, Layer, Version};
use crate::log::keep_apart::KeepApart;
use crate::model::ids::{IndexId, Lsn};
use crate::model::key::Key;
use crate::model::value::LargeValue;
use crate::signal::WorkSignal;
use crate::space::{Purpose, Reservation, Space};
use crate::tree::source::MessageSet;
use crate::tree::{Root, TreePolicy, Trees};
use crate::{ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// See the [module](self).
pub(crate) struct Absorber {
    space: Arc<Space>,
    trees: Arc<Trees>,
    accounting: Arc<SpaceAccounting>,
    backlog: Arc<FlushBacklog>,
    signal: Arc<WorkSignal>,
    apart: Arc<KeepApart>,
    /// Layers sealed after this batch are not absorbed while a checkpoint takes the roots.
    barrier: AtomicU64,
}

/// The root after a layer has become part of the tree. What cannot be read must not keep a
/// checkpoint from being made: then messages wait above it. When space is low, ranges are deleted
/// at once, and leaves written again, only if `reserve` has so many blocks for a purpose more than
/// waiting takes.
pub(crate) fn absorb_within_space(
    trees: &Arc<Trees>,
    policy: TreePolicy,
    root: &Root,
    layer: &Layer,
    clear: Purpose,
    reserve: &mut dyn FnMut(u64, Purpose) -> bool,
) -> Result<Root> {
    let edit = trees.edit(policy);
    let at_once = match layer.absorb_into(edit, root, true) {
        Err(error) if matches!(layer, Layer::Clone(_)) => return Err(error),
        Err(_) => return layer.absorb_into(edit, root, false),
        Ok(next) => next,
    };
    let many = layer.has_ranges() || root.height == 0;
    if !policy.low_space || matches!(layer, Layer::Clone(_)) || !many {
        return Ok(at_once);
    }
    // What the messages take that wait has been reserved.
    let waiting = layer.absorb_into(edit, root, false)?;
    let more = unwritten_below(trees, &at_once).saturating_sub(unwritten_below(trees, &waiting));
    let purpose = if layer.has_ranges() { clear } else { Purpose::Growth };
    Ok(if reserve(more, purpose) { at_once } else { waiting })
}

impl Absorber {
    pub(crate) fn new(
        space: Arc<Space>,
        trees: Arc<Trees>,
        accounting: Arc<SpaceAccounting>,
        backlog: Arc<FlushBacklog>,
        signal: Arc<WorkSignal>,
        apart: Arc<KeepApart>,
    ) -> Self {
        Self { space, trees, accounting, backlog, signal, apart, barrier: AtomicU64::new(u64::MAX) }
    }

    /// Layers sealed after batch `lsn` must wait. Under the commit lock.
    pub(crate) fn set_barrier(&self, lsn: Lsn) {
        self.barrier.store(lsn.0, Ordering::Release);
    }

    /// A checkpoint has taken the roots: nothing must wait any more.
    pub(crate) fn lift_barrier(&self) {
        self.barrier.store(u64::MAX, Ordering::Release);
    }

    /// The last batch of the oldest layer of an index, if that may be absorbed now.
    pub(crate) fn due(&self, index: &Index) -> Option<Lsn> {
        let barrier = self.barrier.load(Ordering::Acquire);
        let upto = index.version().sealed.first().map(|sealed| sealed.upto);
        upto.filter(|upto| upto.0 <= barrier)
    }

    /// Makes the oldest layer part of the tree, or drops it if it is a clone of which newer layers
    /// leave nothing. Under the index's structure lock.
    ///
    /// # Errors
    /// Of the device, or if a clone meets something that cannot be read.
    pub(crate) fn absorb_oldest(&self, index: &Index) -> Result<()> {
        let version = index.version();
        let Some(sealed) = version.sealed.first() else { return Ok(()) };
        if self.is_superseded(&version) {
            index.publish(|version| drop(version.sealed.remove(0)));
            self.signal.note_progress();
            return Ok(());
        }
        sealed.layer.freeze_values(&self.trees.memory.value_bytes);
        self.bind_apart(index.id, &sealed.layer)?;
        self.trees.absorbed.fetch_add(sealed.layer.messages(), Ordering::Relaxed);
        let (root, _reserved) = self.absorb_layer(&version.root, &sealed.layer)?;
        let pending = self.accounting.edit().heaviest_edge_bytes(&root)?.unwrap_or(0);
        self.backlog.note_values(self.accounting.edit().pending_value_bytes(&root));
        index.publish_root(&self.space, root, |version| {
            version.sealed.remove(0);
        });
        self.backlog.note_edge(pending);
        self.accounting.note_growth();
        // Also in the middle of a checkpoint, which absorbs many: writers may wait for the first of
        // them.
        self.signal.note_progress();
        Ok(())
    }

    /// True if the oldest layer is a clone of which newer layers leave nothing. If a checkpoint
    /// takes the roots, those are not newer that are not in it. If it began while this was looked
    /// at, the active memtable may have got messages that are not in it: then the clone is bound.
    fn is_superseded(&self, version: &Version) -> bool {
        let barrier = self.barrier.load(Ordering::Acquire);
        version.is_oldest_superseded(Lsn(barrier)) && self.barrier.load(Ordering::Acquire) == barrier
    }

    /// Writes the values of a layer that are to be kept apart, and that the log did not write, into
    /// value parts of their own. What is not written here goes where all others go.
    fn bind_apart(&self, index: IndexId, layer: &Layer) -> Result<()> {
        let apart = self.apart.now();
        let Layer::Table(table) = layer else { return Ok(()) };
        if apart.is_empty() || self.accounting.is_low() {
            return Ok(());
        }
        let mut run: (Option<Key>, Vec<Arc<LargeValue>>) = (None, Vec::new());
        let mut source = table.source();
        source.seek(&[])?;
        while let Some(key) = source.key() {
            let prefix = apart.prefix_of(index, &key.into()).cloned();
            if prefix != run.0 {
                self.bind(&std::mem::replace(&mut run, (prefix, Vec::new())).1)?;
            }
            if run.0.is_some() {
                let values = source.messages().iter().flat_map(|(_, op)| op.large_values());
                run.1.extend(values.filter(|value| !value.is_stored()).cloned());
            }
            source.next()?;
        }
        self.bind(&run.1)
    }

    /// Their room is reserved until the next checkpoint, beside what they take now.
    fn bind(&self, values: &[Arc<LargeValue>]) -> Result<()> {
        match self.trees.pieces.writer.write_values(values, None) {
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(()),
            written => {
                written?;
                values.iter().for_each(|value| value.forget_bytes());
                Ok(())
            }
        }
    }

    /// The root of an index after a layer has become part of the tree, and what is reserved until
    /// it is counted as unwritten.
    fn absorb_layer(&self, root: &Root, layer: &Layer) -> Result<(Root, Vec<Reservation>)> {
        let mut reserved = Vec::new();
        // A batch that was accepted because it gives back is absorbed after a crash, too. Then
        // nothing tells which batch that was.
        let clear = if self.accounting.checkpoints() == 0 { Purpose::Clear } else { Purpose::Essential };
        let mut next = absorb_within_space(
            &self.trees,
            self.accounting.policy(),
            root,
            layer,
            clear,
            &mut |more, purpose| {
                match self.accounting.reserve(more, purpose) {
                    Ok(room) => reserved.push(room),
                    Err(_) => {
                        return purpose != Purpose::Growth && self.accounting.range_deletes().take(more);
                    }
                }
                true
            },
        )?;
        // Nothing is merged on the edges of such a store, but many small parts would take a block
        // each. What cannot be read is left as it is.
        if self.accounting.is_low()
            && !matches!(layer, Layer::Clone(_))
            && let Ok(Some(joined)) =
                self.accounting.edit().merge_small_runs(&next, self.accounting.growable())
        {
            let more = unwritten_below(&self.trees, &joined);
            let more = more.saturating_sub(unwritten_below(&self.trees, &next));
            if let Ok(room) = self.accounting.reserve(more, Purpose::Growth) {
                reserved.push(room);
                next = joined;
            }
        }
        Ok((next, reserved))
    }
}
