//! Snapshots in memory: a consistent state of all indexes that stays as it was.

use super::context::ReadContext;
use super::cursor::Cursor;
use super::snapshot_index::{Slice, SnapshotIndex, SnapshotState};
#[cfg(doc)]
use crate::ErrorKind;
use crate::Result;
use crate::index::Version;
use crate::index::catalog::no_such_index;
use crate::model::ids::{IndexId, Msn};
use crate::model::key::KeyRange;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of all indexes after some batch. Holding one keeps memory and space from being reused.
#[derive(Clone)]
pub struct Snapshot {
    state: Arc<SnapshotState>,
}

impl Snapshot {
    pub(crate) fn new(
        context: Arc<ReadContext>,
        versions: BTreeMap<IndexId, Arc<Version>>,
        upto: Msn,
    ) -> Self {
        Self { state: Arc::new(SnapshotState { context, versions, upto }) }
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// Of the device, or [`ErrorKind::Damaged`]; [`ErrorKind::NotFound`] if there is no such index.
    pub fn get(&self, index: IndexId, key: &[u8]) -> Result<Option<Bytes>> {
        self.index(index)?.get(key)
    }

    /// Fills `out` from byte `offset` of the value of `key` as far as it reaches; returns its
    /// length.
    ///
    /// # Errors
    /// As for [`Snapshot::get`].
    pub fn get_slice(
        &self,
        index: IndexId,
        key: &[u8],
        offset: usize,
        out: &mut [u8],
    ) -> Result<Option<usize>> {
        self.index(index)?.get_slice(key, offset, out)
    }

    /// Fills `out` from one value after the other; returns their lengths.
    ///
    /// # Errors
    /// As for [`Store::get_slices`](crate::Store::get_slices).
    pub fn get_slices(
        &self,
        index: IndexId,
        slices: &[Slice<'_>],
        out: &mut [u8],
    ) -> Result<Vec<Option<usize>>> {
        self.index(index)?.get_slices(slices, out)
    }

    /// A walk over `range`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such index.
    pub fn cursor(&self, index: IndexId, range: KeyRange) -> Result<Cursor> {
        Ok(Cursor::new(self.index(index)?, range))
    }

    /// The state of each index that takes messages.
    pub(crate) fn versions(&self) -> impl Iterator<Item = (IndexId, &Arc<Version>)> {
        self.state.versions.iter().map(|(id, version)| (*id, version))
    }

    pub(crate) fn index(&self, id: IndexId) -> Result<SnapshotIndex> {
        let context = self.state.context.clone();
        let version = match self.state.versions.get(&id) {
            Some(version) => version.clone(),
            // Of a volume made later it does not know; of one that never changes it need not.
            None if context.indexes.contains(id) => return Err(no_such_index(id)),
            None => context.version(id)?,
        };
        Ok(SnapshotIndex::of(self.state.clone(), version))
    }
}
