//! One index: its memtables and its tree, as one version that readers take whole.

pub(crate) mod absorb;
pub(crate) mod accounting;
pub(crate) mod backlog;
pub(crate) mod catalog;
pub(crate) mod deleted_ranges;
pub(crate) mod memory;
mod superseded;
pub(crate) mod table;

use crate::Result;
use crate::lock_order::{RankedMutex, RankedRwLock, rank};
use crate::memtable::Memtable;
use crate::message::pending_clone::PendingClone;
use crate::model::ids::{IndexId, Lsn, Msn};
use crate::model::op::Op;
use crate::space::{Pin, Space};
use crate::tree::{Root, TreeEditor};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// An index of an open store.
pub(crate) struct Index {
    pub(crate) id: IndexId,
    version: RankedRwLock<Arc<Version>, { rank::INDEX_VERSION }>,
    /// Held by the thread that makes a new tree of the current one.
    pub(crate) structure: RankedMutex<(), { rank::INDEX_STRUCTURE }>,
}

/// Everything a reader needs, immutable except for the active memtable, which only grows.
#[derive(Clone)]
pub(crate) struct Version {
    pub(crate) active: Arc<Memtable>,
    /// Oldest first.
    pub(crate) sealed: Vec<Sealed>,
    pub(crate) root: Root,
    /// Keeps the blocks of what the root leads to for as long as the version exists.
    pub(crate) pin: Arc<Pin>,
}

/// A layer that no longer changes, and the last batch in it.
#[derive(Clone)]
pub(crate) struct Sealed {
    pub(crate) layer: Layer,
    pub(crate) upto: Lsn,
}

/// What lies between newer and older messages.
#[derive(Clone)]
pub(crate) enum Layer {
    /// Messages.
    Table(Arc<Memtable>),
    /// A clone: of what is older, one prefix is seen through another.
    Clone(Arc<PendingClone>),
}

impl Layer {
    /// See [`Memtable::freeze_values`].
    pub(crate) fn freeze_values(&self, resident: &Arc<AtomicUsize>) {
        if let Self::Table(table) = self {
            table.freeze_values(resident);
        }
    }

    /// `root` after this layer has become part of the tree. See [`TreeEditor::absorb`].
    pub(crate) fn absorb_into(&self, edit: TreeEditor<'_>, root: &Root, at_once: bool) -> Result<Root> {
        match self {
            Self::Table(table) => edit.absorb(root, table, at_once),
            Self::Clone(clone) => edit.bind(root, clone),
        }
    }

    /// How many messages it holds.
    pub(crate) fn messages(&self) -> u64 {
        if let Self::Table(table) = self { table.messages() } else { 0 }
    }

    /// True if it may delete ranges.
    pub(crate) fn has_ranges(&self) -> bool {
        matches!(self, Self::Table(table) if !table.ranges().is_empty())
    }
}

impl Index {
    pub(crate) fn new(id: IndexId, root: Root, pin: Arc<Pin>) -> Self {
        let version = Version { active: Arc::default(), sealed: Vec::new(), root, pin };
        Self { id, version: RankedRwLock::new(Arc::new(version)), structure: RankedMutex::default() }
    }

    /// The current version.
    pub(crate) fn version(&self) -> Arc<Version> {
        self.version.read().clone()
    }

    /// How many memtables wait to become part of the tree.
    pub(crate) fn waiting_tables(&self) -> u64 {
        let version = self.version.read();
        let sealed = version.sealed.iter().filter(|sealed| matches!(sealed.layer, Layer::Table(_))).count();
        sealed as u64 + u64::from(!version.active.is_empty())
    }

    /// The memtable that takes messages. Only for the thread that applies batches.
    pub(crate) fn active(&self) -> Arc<Memtable> {
        self.version.read().active.clone()
    }

    /// Replaces the version by what `change` makes of it.
    pub(crate) fn publish(&self, change: impl FnOnce(&mut Version)) {
        let mut current = self.version.write();
        let mut next = (**current).clone();
        change(&mut next);
        let old = std::mem::replace(&mut *current, Arc::new(next));
        drop(current);
        // The last reader of the old version may be this one; freeing takes a while.
        drop(old);
    }

    /// Replaces the version by what `change` makes of it, with a pin as young as that.
    pub(crate) fn publish_pinned(&self, space: &Space, change: impl FnOnce(&mut Version)) {
        self.publish(|version| {
            version.pin = Arc::new(space.deferred.pin_version());
            change(version);
        });
    }

    /// Makes `root` the tree of the index.
    pub(crate) fn publish_root(&self, space: &Space, root: Root, change: impl FnOnce(&mut Version)) {
        self.publish_pinned(space, |version| {
            version.root = root;
            change(version);
        })
    }

    /// See [`Memtable::outcome`].
    pub(crate) fn outcome(&self, key: &[u8], msn: Msn, resident: &Arc<AtomicUsize>) -> Option<Op> {
        self.version().memtables().find_map(|table| table.outcome(key, msn, resident))
    }

    /// Seals the active memtable if it holds anything. Only for the thread that applies batches,
    /// or under the commit lock when all batches have been applied.
    pub(crate) fn seal(&self, upto: Lsn) {
        if self.version.read().active.is_empty() {
            return;
        }
        self.publish(|v| {
            let table = std::mem::take(&mut v.active);
            v.sealed.push(Sealed { layer: Layer::Table(table), upto });
        });
    }

    /// Lays a clone over everything that is there. Only for the thread that applies batches.
    pub(crate) fn push_clone(&self, clone: PendingClone, upto: Lsn) {
        self.publish(|v| {
            if !v.active.is_empty() {
                let table = std::mem::take(&mut v.active);
                v.sealed.push(Sealed { layer: Layer::Table(table), upto });
            }
            v.sealed.push(Sealed { layer: Layer::Clone(Arc::new(clone)), upto });
        });
    }
}

impl Version {
    /// Memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        fn table(sealed: &Sealed) -> Option<&Arc<Memtable>> {
            match &sealed.layer {
                Layer::Table(table) => Some(table),
                Layer::Clone(_) => None,
            }
        }
        std::iter::once(&self.active).chain(self.sealed.iter().rev().filter_map(table))
    }

    /// True if a clone waits to be bound.
    pub(crate) fn has_pending_clone(&self) -> bool {
        self.sealed.iter().any(|sealed| matches!(sealed.layer, Layer::Clone(_)))
    }

    /// Bytes in memtables.
    pub(crate) fn memtable_bytes(&self) -> usize {
        self.memtables().map(|t| t.bytes()).sum()
    }
}
