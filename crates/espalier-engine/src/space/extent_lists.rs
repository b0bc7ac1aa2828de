//! Extent lists in memory, of pieces that lie in several extents as no free run was long enough.
//!
//! The list of a fresh or dead piece is kept in memory, since its blocks must be given back without
//! reading; those of counted pieces are read when needed, and a few are remembered.

use super::superblock::Bounds;
use crate::device::GuardedDevice;
use crate::extents::ExtentList;
use crate::lock_order::{RankedMutex, rank};
use crate::model::ids::Location;
use crate::{Error, Extent, PieceId, Result};
use std::collections::HashMap;
use std::sync::Arc;

/// Extents of counted pieces that are remembered: about 2 MiB of memory.
const MAX_REMEMBERED_EXTENTS: usize = 128 << 10;

/// The extent lists that are in memory, and how the others are read.
pub(super) struct ExtentLists {
    device: Arc<GuardedDevice>,
    bounds: Bounds,
    lists: RankedMutex<ListCache, { rank::EXTENT_LISTS }>,
}

#[derive(Default)]
struct ListCache {
    /// Of pieces that are being written, are fresh, or are dead.
    kept: HashMap<PieceId, Arc<ExtentList>>,
    /// Of counted pieces that were looked at.
    seen: HashMap<PieceId, Arc<ExtentList>>,
    seen_extents: usize,
}

impl ExtentLists {
    pub(super) fn new(device: Arc<GuardedDevice>, bounds: Bounds) -> Self {
        Self { device, bounds, lists: RankedMutex::default() }
    }

    fn get(&self, id: PieceId) -> Option<Arc<ExtentList>> {
        let lists = self.lists.lock();
        lists.kept.get(&id).or_else(|| lists.seen.get(&id)).cloned()
    }

    /// Keeps the list of a piece that no table names.
    pub(super) fn keep(&self, id: PieceId, list: Arc<ExtentList>) {
        self.lists.lock().kept.insert(id, list);
    }

    fn remember(&self, id: PieceId, list: Arc<ExtentList>) {
        let mut lists = self.lists.lock();
        if lists.seen_extents > MAX_REMEMBERED_EXTENTS {
            lists.seen.clear();
            lists.seen_extents = 0;
        }
        lists.seen_extents += list.runs().len();
        lists.seen.insert(id, list);
    }

    /// The piece is counted now: its list can be read again.
    pub(super) fn counted(&self, id: PieceId) {
        let list = self.lists.lock().kept.remove(&id);
        if let Some(list) = list {
            self.remember(id, list);
        }
    }

    /// The list of a piece that was not registered.
    pub(super) fn take(&self, id: PieceId) -> Option<Arc<ExtentList>> {
        self.lists.lock().kept.remove(&id)
    }

    /// The piece is gone.
    pub(super) fn forget(&self, id: PieceId) {
        let mut lists = self.lists.lock();
        lists.kept.remove(&id);
        if let Some(list) = lists.seen.remove(&id) {
            lists.seen_extents = lists.seen_extents.saturating_sub(list.runs().len());
        }
    }

    /// The extents of a scattered piece.
    ///
    /// # Errors
    /// As for [`ExtentList::load`].
    pub(super) fn of(&self, id: PieceId, location: &Location) -> Result<Arc<ExtentList>> {
        if let Some(list) = self.get(id) {
            return Ok(list);
        }
        let list = Arc::new(ExtentList::load(&self.device, id, location)?);
        if let Some(wrong) = list.extents().find(|extent| !self.bounds.get().holds(*extent)) {
            return Err(Error::damaged(format!("piece {id} lies at {wrong}, outside the data region")));
        }
        self.remember(id, list.clone());
        Ok(list)
    }

    /// All blocks that a piece occupies.
    ///
    /// # Errors
    /// As for [`ExtentList::load`], of a scattered piece.
    pub(super) fn occupied(&self, id: PieceId, location: &Location) -> Result<Vec<Extent>> {
        match location.scattered {
            true => Ok(self.of(id, location)?.extents().collect()),
            false => Ok(vec![location.extent]),
        }
    }

    /// Keeps the list of a piece that is about to leave the tables, or never was in them.
    ///
    /// # Errors
    /// As for [`ExtentList::load`].
    pub(super) fn keep_list(&self, id: PieceId, location: &Location) -> Result<()> {
        if location.scattered {
            self.keep(id, self.of(id, location)?);
        }
        Ok(())
    }

    /// The blocks of a piece that is gone: its list is forgotten.
    pub(super) fn forget_extents(&self, id: PieceId, location: &Location) -> Vec<Extent> {
        let found = self.occupied(id, location);
        self.forget(id);
        found.unwrap_or_else(|error| {
            // Kept in memory since it was written or died; if not, the blocks are lost until the
            // next open.
            tracing::error!(%error, "the blocks of piece {id} cannot be given back");
            Vec::new()
        })
    }
}
