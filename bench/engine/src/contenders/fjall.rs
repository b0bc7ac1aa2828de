//! fjall: no compression, half of the budget for blocks, a quarter for each memtable; two worker
//! threads. The kernel's page cache comes on top.

use super::{Contender, Place};
use crate::workload::Key;
use anyhow::Result;
use fjall::config::{CompressionPolicy, HashRatioPolicy};
use fjall::{CompressionType, Database, Keyspace, KeyspaceCreateOptions, PersistMode};

pub(crate) struct Fjall {
    database: Database,
    keyspace: Keyspace,
    syncs_each: bool,
}

impl Fjall {
    pub(crate) fn open(place: &Place) -> Result<Self> {
        let database = Database::builder(&place.folder)
            .cache_size(place.budget / 2)
            .journal_compression(CompressionType::None)
            .worker_threads(2)
            .open()?;
        let keyspace = database.keyspace("bench", || {
            KeyspaceCreateOptions::default()
                .max_memtable_size(place.budget / 4)
                .data_block_compression_policy(CompressionPolicy::disabled())
                .data_block_hash_ratio_policy(HashRatioPolicy::all(0.0))
        })?;
        Ok(Self { database, keyspace, syncs_each: place.syncs_each })
    }
}

impl Contender for Fjall {
    fn write(&mut self, values: &[(Key, &[u8])]) -> Result<()> {
        let mode = if self.syncs_each { PersistMode::SyncData } else { PersistMode::Buffer };
        let mut batch = self.database.batch().durability(Some(mode));
        for (key, value) in values {
            batch.insert(&self.keyspace, key.as_slice(), *value);
        }
        Ok(batch.commit()?)
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.database.persist(PersistMode::SyncData)?)
    }

    fn get(&mut self, key: &Key) -> Result<Option<usize>> {
        Ok(self.keyspace.get(key)?.map(|value| std::hint::black_box(value).len()))
    }

    fn scan(&mut self, from: &Key, most: u64) -> Result<u64> {
        let mut count = 0;
        for entry in self.keyspace.range(from.as_slice()..).take(most as usize) {
            std::hint::black_box(entry.into_inner()?);
            count += 1;
        }
        Ok(count)
    }

    /// It has no such operation: keys are read and removed one by one.
    fn delete_range(&mut self, from: &Key, to: &Key) -> Result<()> {
        let mut batch = self.database.batch();
        for entry in self.keyspace.range(from.as_slice()..to.as_slice()) {
            batch.remove(&self.keyspace, entry.key()?);
        }
        Ok(batch.commit()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
