//! Index table: the open indexes that take messages, by number.
//!
//! Lock: the table's lock is taken after the commit lock and after that of the
//! [volume catalog](super::catalog), and before the version of any index. The thread that applies
//! batches holds it (shared) while it applies one.

use super::Index;
use crate::lock_order::{RankedReadGuard, RankedRwLock, rank};
use crate::model::ids::IndexId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The indexes of a store, by number.
pub(crate) type Indexes = BTreeMap<IndexId, Arc<Index>>;

/// See the [module](self).
#[derive(Default)]
pub(crate) struct IndexTable {
    indexes: RankedRwLock<Indexes, { rank::INDEX_TABLE }>,
}

impl IndexTable {
    /// A table of these indexes.
    pub(crate) fn new(indexes: Indexes) -> Self {
        Self { indexes: RankedRwLock::new(indexes) }
    }

    /// The table, which nothing changes meanwhile.
    pub(crate) fn read(&self) -> RankedReadGuard<'_, Indexes, { rank::INDEX_TABLE }> {
        self.indexes.read()
    }

    /// The index with this number.
    pub(crate) fn get(&self, id: IndexId) -> Option<Arc<Index>> {
        self.indexes.read().get(&id).cloned()
    }

    /// True if there is an index with this number.
    pub(crate) fn contains(&self, id: IndexId) -> bool {
        self.indexes.read().contains_key(&id)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.indexes.read().len()
    }

    /// The indexes, in the order of their numbers.
    pub(crate) fn all(&self) -> Vec<Arc<Index>> {
        self.indexes.read().values().cloned().collect()
    }

    /// The smallest number.
    pub(crate) fn first(&self) -> Option<IndexId> {
        self.indexes.read().keys().next().copied()
    }

    /// The smallest number behind `id`.
    pub(crate) fn next_after(&self, id: IndexId) -> Option<IndexId> {
        self.indexes.read().range(id..).map(|(other, _)| *other).find(|other| *other > id)
    }

    /// Adds indexes.
    pub(crate) fn add(&self, more: impl IntoIterator<Item = Index>) {
        let mut indexes = self.indexes.write();
        indexes.extend(more.into_iter().map(|index| (index.id, Arc::new(index))));
    }

    /// Removes the indexes of a volume.
    pub(crate) fn remove_volume(&self, volume: u32) {
        self.indexes.write().retain(|index, _| index.volume != volume);
    }
}
