//! The contenders: what each does for the operations of the workloads, with which settings.

mod espalier;
mod fjall;
mod lmdb;
mod redb;
mod rocksdb;
mod rocksdb_sys;

use crate::workload::Key;
use anyhow::{Result, bail};
use std::path::PathBuf;

/// Where a contender keeps its store, and what it may take.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// Holds all files of the store.
    pub(crate) folder: PathBuf,
    /// The store is made; otherwise it is there.
    pub(crate) is_new: bool,
    /// Memory in bytes.
    pub(crate) budget: u64,
    /// Each batch is durable when [`Contender::write`] returns; otherwise after
    /// [`Contender::sync`].
    pub(crate) syncs_each: bool,
    /// Bytes that the store may take on the device, where that has to be said.
    pub(crate) capacity: u64,
}

/// One engine, open.
pub(crate) trait Contender {
    /// Puts these values, all or none.
    fn write(&mut self, batch: &[(Key, &[u8])]) -> Result<()>;
    /// Makes all that was written durable.
    fn sync(&mut self) -> Result<()>;
    /// The length of the value of `key`, which was read whole.
    fn get(&mut self, key: &Key) -> Result<Option<usize>>;
    /// Reads at most `most` values from `from` on; returns how many.
    fn scan(&mut self, from: &Key, most: u64) -> Result<u64>;
    /// Deletes from `from` to before `to`, durably only after a sync.
    fn delete_range(&mut self, from: &Key, to: &Key) -> Result<()>;
    /// Clones all keys with the prefix `from` to the prefix `to`; false if there is no such
    /// operation.
    fn clone_range(&mut self, _from: &[u8], _to: &[u8]) -> Result<bool> {
        Ok(false)
    }
    /// Ends all work on the store.
    fn close(self: Box<Self>) -> Result<()>;
}

/// Opens a contender by its name.
///
/// # Errors
/// Of the engine; if there is no such contender.
pub(crate) fn open(name: &str, place: &Place) -> Result<Box<dyn Contender>> {
    Ok(match name {
        "espalier" => Box::new(espalier::Espalier::open(place)?),
        "rocksdb" => Box::new(rocksdb::RocksDb::open(place)?),
        "fjall" => Box::new(fjall::Fjall::open(place)?),
        "redb" => Box::new(redb::Redb::open(place)?),
        "lmdb" => Box::new(lmdb::Lmdb::open(place)?),
        _ => bail!("there is no contender `{name}`"),
    })
}
