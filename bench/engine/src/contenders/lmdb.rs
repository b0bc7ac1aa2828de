//! LMDB: a memory map, so all that is free is its cache; `MDB_NOSYNC` where batches need not be
//! durable one by one, and then one sync. With `MDB_NORDAHEAD`, as the set is larger than memory.

use super::{Contender, Place};
use crate::workload::Key;
use anyhow::{Context, Result};
use heed::types::Bytes;
use heed::{Database, Env, EnvFlags, EnvOpenOptions, RoTxn, WithoutTls};
use std::ops::Bound;

pub(crate) struct Lmdb {
    env: Env<WithoutTls>,
    database: Database<Bytes, Bytes>,
    reader: Option<RoTxn<'static, WithoutTls>>,
}

impl Lmdb {
    pub(crate) fn open(place: &Place) -> Result<Self> {
        let mut flags = EnvFlags::NO_READ_AHEAD;
        if !place.syncs_each {
            flags |= EnvFlags::NO_SYNC;
        }
        let mut options = EnvOpenOptions::new().read_txn_without_tls();
        options.map_size(usize::try_from(place.capacity)?);
        // SAFETY: the flags only change what a crash of the machine may lose, and no other process
        // changes the file while it is mapped.
        let env = unsafe { options.flags(flags).open(&place.folder)? };
        let mut txn = env.write_txn()?;
        let database = env.create_database(&mut txn, None)?;
        txn.commit()?;
        Ok(Self { env, database, reader: None })
    }

    fn reader(&mut self) -> Result<&RoTxn<'static, WithoutTls>> {
        if self.reader.is_none() {
            self.reader = Some(self.env.clone().static_read_txn()?);
        }
        self.reader.as_ref().context("no reader")
    }
}

impl Contender for Lmdb {
    fn write(&mut self, values: &[(Key, &[u8])]) -> Result<()> {
        self.reader = None;
        let mut txn = self.env.write_txn()?;
        for (key, value) in values {
            self.database.put(&mut txn, key, value)?;
        }
        Ok(txn.commit()?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.env.force_sync()?)
    }

    fn get(&mut self, key: &Key) -> Result<Option<usize>> {
        let database = self.database;
        // What it returns lies in the map; the copy is what the others do as well.
        Ok(database.get(self.reader()?, key)?.map(|value| std::hint::black_box(value.to_vec()).len()))
    }

    fn scan(&mut self, from: &Key, most: u64) -> Result<u64> {
        let database = self.database;
        let range = (Bound::Included(from.as_slice()), Bound::Unbounded);
        let mut count = 0;
        for entry in database.range(self.reader()?, &range)?.take(most as usize) {
            std::hint::black_box(entry?.1.to_vec());
            count += 1;
        }
        Ok(count)
    }

    /// Keys are removed one by one.
    fn delete_range(&mut self, from: &Key, to: &Key) -> Result<()> {
        self.reader = None;
        let mut txn = self.env.write_txn()?;
        let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
        self.database.delete_range(&mut txn, &range)?;
        Ok(txn.commit()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
