//! The changes that a repair makes, in batches, and its report.

use crate::model::error::Result;
use bytes::Bytes;
use espalier_engine::{Batch, Cursor, IndexId, Key, KeyRange, Store};

/// Operations in one batch.
const BATCH_OPERATIONS: usize = 256;
/// Keys between calls of the progress function.
const PROGRESS_EVERY_KEYS: u64 = 4096;

/// Something that a repair did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repaired {
    /// The path concerned.
    pub path: String,
    /// What was done, or what is lost.
    pub message: String,
    /// Content is lost; otherwise only what leads to it was put right.
    pub lost: bool,
}

pub(crate) struct RepairWriter<'a> {
    pub(crate) store: &'a Store,
    pub(crate) volume: u32,
    pub(crate) batch: Batch,
    pub(crate) done: Vec<Repaired>,
    pub(crate) keys: u64,
    pub(crate) progress: &'a mut dyn FnMut(u64),
}

impl RepairWriter<'_> {
    pub(crate) fn index(&self, index: u8) -> IndexId {
        IndexId { volume: self.volume, index }
    }

    /// Reports something that was done; `lost`: content is lost.
    pub(crate) fn tell(&mut self, path: impl Into<String>, message: impl Into<String>, lost: bool) {
        self.done.push(Repaired { path: path.into(), message: message.into(), lost });
    }

    pub(crate) fn put(&mut self, index: u8, key: &[u8], value: Vec<u8>) -> Result<()> {
        let index = self.index(index);
        self.batch.insert(index, key, value);
        self.flush_if_full()
    }

    pub(crate) fn delete(&mut self, index: u8, key: &[u8]) -> Result<()> {
        let index = self.index(index);
        self.batch.delete(index, key);
        self.flush_if_full()
    }

    pub(crate) fn delete_range(&mut self, index: u8, range: KeyRange) -> Result<()> {
        let index = self.index(index);
        self.batch.delete_range(index, range);
        self.flush_if_full()
    }

    fn flush_if_full(&mut self) -> Result<()> {
        if self.batch.len() < BATCH_OPERATIONS { Ok(()) } else { self.flush() }
    }

    pub(crate) fn flush(&mut self) -> Result<()> {
        if !self.batch.is_empty() {
            self.store.commit(std::mem::take(&mut self.batch))?;
        }
        Ok(())
    }

    /// The value of a key after the changes so far that were flushed.
    pub(crate) fn get(&self, index: u8, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.store.get(self.index(index), key)?)
    }

    pub(crate) fn count_key(&mut self) {
        self.keys += 1;
        if self.keys.is_multiple_of(PROGRESS_EVERY_KEYS) {
            (self.progress)(self.keys);
        }
    }

    /// The next key and value of a walk.
    pub(crate) fn next(&mut self, cursor: &mut Cursor) -> Result<Option<(Key, Bytes)>> {
        self.count_key();
        match cursor.next()? {
            Some(entry) => Ok(Some((entry.key, cursor.read(&entry.value)?))),
            None => Ok(None),
        }
    }
}
