//! Volume catalog: the volume table in memory, and the version that a reader of an index gets.
//!
//! A volume with [`READ_ONLY_VOLUME`] takes no messages: it has no memtables and no [`Index`] in
//! the index table; readers get its root from the volume table. So a thousand such volumes cost
//! what their entries in the table take.
//!
//! Protocol: checkpoints change the table at their cut, under the commit lock, and enter the roots
//! when they are counted. A new volume is *hidden* from readers in between.
//!
//! Lock: the catalog's lock is taken after the commit lock and before that of the index table.

use super::table::IndexTable;
use super::{Index, Version};
use crate::lock_order::{RankedMutex, RankedMutexGuard, rank};
use crate::model::ids::{IndexId, PieceId};
use crate::space::Locator;
use crate::space::{IndexRoot, Space, VolumeEntry, VolumeTable};
use crate::tree::{NodeSlot, Root};
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::sync::Arc;

/// The flag of a volume that refuses every change. The other flags are free for the layer above.
pub const READ_ONLY_VOLUME: u32 = 1 << 31;

/// A volume: a named set of indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its number, by which an [`IndexId`] names it.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// [`READ_ONLY_VOLUME`]; the others are free for the layer above.
    pub flags: u32,
    /// Number of indexes.
    pub indexes: u8,
    /// Free for the layer above.
    pub parameters: Bytes,
}

/// A root on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StoredRoot {
    pub(crate) node: Option<PieceId>,
    pub(crate) height: u8,
}

impl StoredRoot {
    /// The same as a root in memory.
    pub(crate) fn as_root(self, locator: &dyn Locator) -> Root {
        Root { slot: self.node.map(|id| NodeSlot::stored(locator.handle(id))), height: self.height }
    }
}

impl From<&IndexRoot> for StoredRoot {
    fn from(root: &IndexRoot) -> Self {
        Self { node: root.node, height: root.height }
    }
}

/// The error for an index that is not there.
pub(crate) fn no_such_index(id: IndexId) -> Error {
    Error::new(ErrorKind::NotFound, format!("the store has no index {id}"))
}

/// See the [module](self).
pub(crate) struct VolumeCatalog {
    space: Arc<Space>,
    indexes: Arc<IndexTable>,
    state: RankedMutex<CatalogState, { rank::VOLUME_CATALOG }>,
}

/// What the catalog's lock guards.
pub(crate) struct CatalogState {
    pub(crate) table: VolumeTable,
    /// A volume of the table whose roots are not known yet.
    pub(crate) hidden: Option<u32>,
}

impl VolumeCatalog {
    /// A catalog of the volumes in `table`, whose writable indexes are in `indexes`.
    pub(crate) fn new(space: Arc<Space>, indexes: Arc<IndexTable>, table: VolumeTable) -> Self {
        Self { space, indexes, state: RankedMutex::new(CatalogState { table, hidden: None }) }
    }

    /// The catalog's lock, for a checkpoint that changes the volumes.
    pub(crate) fn lock(&self) -> RankedMutexGuard<'_, CatalogState, { rank::VOLUME_CATALOG }> {
        self.state.lock()
    }

    /// The volumes that readers see, by number.
    pub(crate) fn volumes(&self) -> Vec<VolumeInfo> {
        let info = |(id, v): (&u32, &VolumeEntry)| VolumeInfo {
            id: *id,
            name: v.name.clone(),
            flags: v.flags,
            indexes: v.indexes.len() as u8,
            parameters: v.parameters.clone(),
        };
        let state = self.state.lock();
        state.table.volumes.iter().filter(|(id, _)| Some(**id) != state.hidden).map(info).collect()
    }

    /// Enters a volume of empty indexes, which readers and writers see at once; returns its number.
    ///
    /// # Errors
    /// As for [`VolumeTable::add`].
    pub(crate) fn add(&self, entry: VolumeEntry) -> Result<u32> {
        let (flags, count) = (entry.flags, entry.indexes.len() as u8);
        let pin = Arc::new(self.space.deferred.pin_version());
        let id = self.state.lock().table.add(entry)?;
        if flags & READ_ONLY_VOLUME == 0 {
            let index = |index| Index::new(IndexId { volume: id, index }, Root::default(), pin.clone());
            self.indexes.add((0..count).map(index));
        }
        Ok(id)
    }

    /// The state of an index as it is now.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such index.
    pub(crate) fn version(&self, id: IndexId) -> Result<Arc<Version>> {
        if let Some(index) = self.indexes.read().get(&id) {
            return Ok(index.version());
        }
        let state = self.state.lock();
        // Pinned before the look, so that what is found stays.
        let pin = Arc::new(self.space.deferred.pin_version());
        let is_visible =
            |v: &&VolumeEntry| v.flags & READ_ONLY_VOLUME != 0 && state.hidden != Some(id.volume);
        let volume = state.table.volumes.get(&id.volume).filter(is_visible);
        let root =
            volume.and_then(|v| v.indexes.get(usize::from(id.index))).ok_or_else(|| no_such_index(id))?;
        let root = StoredRoot::from(root).as_root(&*self.space);
        Ok(Arc::new(Version { active: Arc::default(), sealed: Vec::new(), root, pin }))
    }

    /// The error for a change of an index that takes none.
    pub(crate) fn unchangeable(&self, id: IndexId) -> Error {
        let state = self.state.lock();
        match state.table.volumes.get(&id.volume).filter(|v| usize::from(id.index) < v.indexes.len()) {
            Some(volume) => {
                Error::new(ErrorKind::ReadOnly, format!("the volume {} is read-only", volume.name))
            }
            None => no_such_index(id),
        }
    }
}
