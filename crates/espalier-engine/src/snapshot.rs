//! Snapshots in memory: a consistent state of all indexes that stays as it was.

use crate::cursor::Cursor;
use crate::index::Version;
use crate::key::KeyRange;
use crate::op::MergeFunctions;
use crate::resolve::{Found, ValueReader, load};
use crate::store::Shared;
use crate::tree::source::{MemtableSource, Source};
use crate::tree::{Descent, Toward, find};
use crate::types::{IndexId, Msn};
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The state of all indexes after some batch. Holding one keeps memory and space from being reused.
#[derive(Clone)]
pub struct Snapshot {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    versions: BTreeMap<IndexId, Arc<Version>>,
    upto: Msn,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.unpin(self.upto);
    }
}

impl Snapshot {
    pub(crate) fn new(shared: Arc<Shared>, versions: BTreeMap<IndexId, Arc<Version>>, upto: Msn) -> Self {
        Self { inner: Arc::new(Inner { shared, versions, upto }) }
    }

    /// The value of `key`.
    ///
    /// # Errors
    /// Of the device, or [`ErrorKind::Damaged`]; [`ErrorKind::NotFound`] if there is no such index.
    pub fn get(&self, index: IndexId, key: &[u8]) -> Result<Option<Bytes>> {
        self.index(index)?.get(key)
    }

    /// Fills `out` from byte `offset` of the value of `key` as far as it reaches; returns its length.
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

    /// A walk over `range`.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such index.
    pub fn cursor(&self, index: IndexId, range: KeyRange) -> Result<Cursor> {
        Ok(Cursor::new(self.index(index)?, range))
    }

    fn index(&self, id: IndexId) -> Result<SnapshotIndex> {
        let version = self.inner.versions.get(&id).ok_or_else(|| no_such_index(id))?.clone();
        let shared = self.inner.shared.clone();
        Ok(SnapshotIndex { shared, version, upto: self.inner.upto, _keep: Some(self.clone()) })
    }
}

/// The error for an index that is not there.
pub(crate) fn no_such_index(id: IndexId) -> Error {
    Error::new(ErrorKind::NotFound, format!("the store has no index {id}"))
}

/// One index of a snapshot.
#[derive(Clone)]
pub(crate) struct SnapshotIndex {
    shared: Arc<Shared>,
    version: Arc<Version>,
    upto: Msn,
    /// Keeps the snapshot registered; absent for a look at the newest state.
    _keep: Option<Snapshot>,
}

impl SnapshotIndex {
    /// The newest state of one index.
    pub(crate) fn newest(shared: Arc<Shared>, version: Arc<Version>) -> Self {
        Self { shared, version, upto: Msn(u64::MAX), _keep: None }
    }

    pub(crate) fn merge_functions(&self) -> &MergeFunctions {
        &self.shared.options.merge
    }

    pub(crate) fn reader(&self) -> &dyn ValueReader {
        &*self.shared
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>> {
        let value = self.find(key)?.value(self.merge_functions(), self.reader())?;
        value.map(|v| load(&v, self.reader())).transpose()
    }

    pub(crate) fn get_slice(&self, key: &[u8], offset: usize, out: &mut [u8]) -> Result<Option<usize>> {
        self.find(key)?.slice(self.merge_functions(), self.reader(), offset, out)
    }

    /// Collects what is known about `key`, from the newest message down.
    fn find(&self, key: &[u8]) -> Result<Found> {
        let mut found = Found::default();
        for table in self.version.memtables() {
            table.find(key, self.upto, &mut found);
            if found.is_done() {
                return Ok(found);
            }
        }
        if let Some(root) = &self.version.root.slot {
            find(&self.shared.trees, root, self.version.root.height, key, &mut found)?;
        }
        Ok(found)
    }

    /// Sources, newest first, for the interval in which `toward` lies and that one leaf covers.
    pub(crate) fn sources(&self, toward: Toward<'_>) -> Result<(KeyRange, Vec<Box<dyn Source>>)> {
        let mut sources = self.memtable_sources();
        let Some(root) = &self.version.root.slot else { return Ok((KeyRange::all(), sources)) };
        let descent = Descent::new(&self.shared.trees, root, self.version.root.height, toward)?;
        sources.extend(descent.sources);
        Ok((descent.interval, sources))
    }

    fn memtable_sources(&self) -> Vec<Box<dyn Source>> {
        let source =
            |table: &Arc<_>| Box::new(MemtableSource::new(Arc::clone(table), self.upto)) as Box<dyn Source>;
        self.version.memtables().map(source).collect()
    }
}
