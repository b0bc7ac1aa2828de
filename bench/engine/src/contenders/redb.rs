//! redb: the whole budget as its cache, `Durability::None` where batches need not be durable one by
//! one, and then a commit with `Durability::Immediate`. The kernel's page cache comes on top.

use super::{Contender, Place};
use crate::workload::Key;
use anyhow::{Context, Result};
use redb::{Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition};

const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("bench");

pub(crate) struct Redb {
    database: Database,
    reader: Option<ReadOnlyTable<&'static [u8], &'static [u8]>>,
    durability: Durability,
}

impl Redb {
    pub(crate) fn open(place: &Place) -> Result<Self> {
        let database = Database::builder()
            .set_cache_size(usize::try_from(place.budget)?)
            .create(place.folder.join("store.redb"))?;
        let durability = if place.syncs_each { Durability::Immediate } else { Durability::None };
        Ok(Self { database, reader: None, durability })
    }

    fn reader(&mut self) -> Result<&ReadOnlyTable<&'static [u8], &'static [u8]>> {
        if self.reader.is_none() {
            self.reader = Some(self.database.begin_read()?.open_table(TABLE)?);
        }
        self.reader.as_ref().context("no reader")
    }
}

impl Contender for Redb {
    fn write(&mut self, values: &[(Key, &[u8])]) -> Result<()> {
        self.reader = None;
        let mut txn = self.database.begin_write()?;
        txn.set_durability(self.durability)?;
        let mut table = txn.open_table(TABLE)?;
        for (key, value) in values {
            table.insert(key.as_slice(), *value)?;
        }
        drop(table);
        Ok(txn.commit()?)
    }

    fn sync(&mut self) -> Result<()> {
        let mut txn = self.database.begin_write()?;
        txn.set_durability(Durability::Immediate)?;
        Ok(txn.commit()?)
    }

    fn get(&mut self, key: &Key) -> Result<Option<usize>> {
        let value = self.reader()?.get(key.as_slice())?;
        Ok(value.map(|value| std::hint::black_box(value.value().to_vec()).len()))
    }

    fn scan(&mut self, from: &Key, most: u64) -> Result<u64> {
        let mut count = 0;
        for entry in self.reader()?.range(from.as_slice()..)?.take(most as usize) {
            std::hint::black_box(entry?.1.value().to_vec());
            count += 1;
        }
        Ok(count)
    }

    /// Keys are removed one by one.
    fn delete_range(&mut self, from: &Key, to: &Key) -> Result<()> {
        self.reader = None;
        let mut txn = self.database.begin_write()?;
        txn.set_durability(self.durability)?;
        txn.open_table(TABLE)?.retain_in(from.as_slice()..to.as_slice(), |_, _| false)?;
        Ok(txn.commit()?)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}
