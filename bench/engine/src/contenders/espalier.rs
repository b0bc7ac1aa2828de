//! Espalier: a file with direct I/O, two background threads, the whole budget as `memory`.

use super::{Contender, Place};
use crate::workload::Key;
use anyhow::Result;
use espalier_engine::{
    Batch, FileDevice, FormatOptions, IndexId, KeyRange, OpenMode, OpenOptions, Store, SystemEnvironment,
};
use std::sync::Arc;

pub(crate) struct Espalier {
    store: Arc<Store>,
    index: IndexId,
    syncs_each: bool,
}

impl Espalier {
    pub(crate) fn open(place: &Place) -> Result<Self> {
        let path = place.folder.join("store");
        let env = Arc::new(SystemEnvironment::new(2));
        if place.is_new {
            let device = Arc::new(FileDevice::create(&path, place.capacity)?);
            Store::format(device, env.clone(), &FormatOptions::default())?;
        }
        let device = Arc::new(FileDevice::open(&path, OpenMode::ReadWrite)?);
        let store = Store::open(device, env, OpenOptions { memory: place.budget, ..OpenOptions::default() })?;
        let index = IndexId { volume: store.open_or_create_volume("bench", 1)?, index: 0 };
        Ok(Self { store, index, syncs_each: place.syncs_each })
    }
}

impl Contender for Espalier {
    fn write(&mut self, values: &[(Key, &[u8])]) -> Result<()> {
        let mut batch = Batch::new();
        for (key, value) in values {
            batch.insert(self.index, key, value.to_vec());
        }
        let lsn = self.store.commit(batch)?;
        if self.syncs_each {
            self.store.sync(lsn)?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.store.sync_all()?)
    }

    fn get(&mut self, key: &Key) -> Result<Option<usize>> {
        Ok(self.store.get(self.index, key)?.map(|value| value.len()))
    }

    fn scan(&mut self, from: &Key, most: u64) -> Result<u64> {
        let range = KeyRange { start: from.as_slice().into(), end: None };
        let mut cursor = self.store.cursor(self.index, range)?;
        let mut count = 0;
        while count < most {
            let Some(entry) = cursor.next()? else { break };
            std::hint::black_box(cursor.read(&entry.value)?);
            count += 1;
        }
        Ok(count)
    }

    fn delete_range(&mut self, from: &Key, to: &Key) -> Result<()> {
        let mut batch = Batch::new();
        let range = KeyRange { start: from.as_slice().into(), end: Some(to.as_slice().into()) };
        batch.delete_range(self.index, range);
        self.store.commit(batch)?;
        Ok(())
    }

    fn clone_range(&mut self, from: &[u8], to: &[u8]) -> Result<bool> {
        let mut batch = Batch::new();
        batch.clone_range(self.index, from, to);
        self.store.commit(batch)?;
        Ok(true)
    }

    fn close(self: Box<Self>) -> Result<()> {
        if std::env::var_os("ENGINE_BENCH_STATISTICS").is_some() {
            eprintln!("{:#?}", self.store.statistics());
        }
        Ok(self.store.close()?)
    }
}
