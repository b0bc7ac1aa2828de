//! The device as its users see it.

use super::inner::{Inner, Latched};
use super::publish::Scope;
use crate::disk_cache::DiskCacheUsage;
use crate::format::ObjectId;
use crate::journal::{Journal, JournalUsage};
use crate::objects::Usage;
use crate::requests::RequestCounts;
use espalier_storage::{
    BLOCK, Device, JoinHandle, Operation, Result, check_discard, check_read, check_write,
};
use espalier_sync::Mutex;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A block device in an object store.
#[derive(Debug)]
pub struct ObjectDevice {
    pub(super) inner: Arc<Inner>,
    /// Those that renew the lease and maintain.
    pub(super) threads: Mutex<Vec<JoinHandle>>,
}

impl ObjectDevice {
    /// What is stored, and what of it is in use.
    pub fn usage(&self) -> Usage {
        let state = self.inner.state.read();
        let is_live = |id: &&ObjectId| state.objects.get(**id).is_some_and(|entry| !entry.is_dead());
        let unmovable_segments = self.inner.unmovable.lock().keys().filter(is_live).count() as u64;
        Usage { unmovable_segments, ..state.objects.usage() }
    }

    /// What the journal has, if there is one.
    pub fn journal_usage(&self) -> Option<JournalUsage> {
        self.inner.journal.as_ref().map(Journal::usage)
    }

    /// What the disk cache did, if there is one.
    pub fn disk_cache_usage(&self) -> Option<DiskCacheUsage> {
        self.inner.options.disk_cache.as_ref().map(|cache| cache.usage())
    }

    /// How many requests there were.
    pub fn request_counts(&self) -> RequestCounts {
        self.inner.requests.counts()
    }

    /// Why the device takes no writes any more, if it does not.
    pub fn failure(&self) -> Option<String> {
        match self.inner.latch.get()? {
            Latched::Closed(_) => None,
            Latched::Failed(why) | Latched::Fenced(why) => Some(why.clone()),
        }
    }

    /// True if another writer took the store over.
    pub fn is_fenced(&self) -> bool {
        matches!(self.inner.latch.get(), Some(Latched::Fenced(_)))
    }

    /// Takes one step of maintenance: renews the lease if it is time, deletes, compacts. Returns
    /// true if it deleted or compacted something. With threads it happens by itself.
    ///
    /// # Errors
    /// If a request fails, or another writer took over.
    pub fn step(&self) -> Result<bool> {
        self.inner.maintain()
    }

    /// Publishes what was written, gives the lease back and takes no writes from then on.
    ///
    /// # Errors
    /// As for [`Device::sync`].
    pub fn close(&self) -> Result<()> {
        self.stop();
        if self.inner.latch.get().is_some() {
            return self.inner.still_whole();
        }
        let outcome = self.inner.publish(Scope::Close);
        if let (Some(journal), Ok(())) = (&self.inner.journal, &outcome) {
            journal.end();
        }
        // An earlier failure stays the reason.
        let _ = self.inner.latch.set(Latched::Closed("it was closed"));
        outcome
    }

    /// The last work begins: nothing waits without end for a store that is away any more. On a
    /// device for reading, gets that are under way are given up, also those of the devices that it
    /// shares its requests with.
    pub fn begin_close(&self) {
        match self.inner.latch.get() {
            Some(Latched::Closed(_)) => self.inner.requests.end_reading(),
            _ => self.inner.requests.end(),
        }
    }

    /// Ends the background threads. None puts a root from then on. One that panicked has ended too:
    /// what that leaves half done has latched the device.
    fn stop(&self) {
        *self.inner.ended.lock() = true;
        // A reader shares its requests with those that follow it.
        if !matches!(self.inner.latch.get(), Some(Latched::Closed(_))) {
            self.inner.requests.end();
            self.inner.requests.stop_maintenance();
        }
        self.inner.end.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in threads {
            if catch_unwind(AssertUnwindSafe(|| thread.join())).is_err() {
                let device = &self.inner.name;
                tracing::error!(device, "a background thread panicked: this is a bug, please report it");
            }
        }
    }
}

impl Drop for ObjectDevice {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Device for ObjectDevice {
    fn name(&self) -> &str {
        &self.inner.name
    }

    fn len(&self) -> u64 {
        self.inner.blocks * BLOCK as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        check_read(self, offset, buffer)?;
        let length = buffer.len() as u64;
        self.inner.read(offset / BLOCK as u64, buffer).map_err(|error| error.at(offset, length))
    }

    fn announce(&self, ranges: &[Range<u64>]) {
        let blocks: Vec<Range<u64>> = ranges
            .iter()
            .filter(|range| range.end <= self.len())
            .map(|range| range.start / BLOCK as u64..range.end.div_ceil(BLOCK as u64))
            .collect();
        // The reader will meet the failure.
        if let Err(failure) = self.inner.announce(&blocks) {
            tracing::debug!(device = self.inner.name, %failure, "announced blocks are not got");
        }
    }

    fn read_ahead_bytes(&self) -> u64 {
        self.inner.options.ahead_bytes / 2
    }

    /// A root has all that was written before it was made, or the journal all before a record.
    fn keeps_order(&self) -> bool {
        true
    }

    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        let length = check_write(self, offset, buffers)?;
        let inner = &*self.inner;
        inner.writable(Operation::Write).map_err(|error| error.at(offset, length))?;
        let written = match &inner.journal {
            Some(journal) => inner.write_journaled(journal, offset / BLOCK as u64, buffers),
            None => {
                let mut at = offset / BLOCK as u64;
                for buffer in buffers {
                    inner.state.write().write_all(inner, at, buffer);
                    at += (buffer.len() / BLOCK) as u64;
                }
                Ok(())
            }
        };
        written.and_then(|()| inner.make_room()).map_err(|error| error.at(offset, length))
    }

    fn sync(&self) -> Result<()> {
        match &self.inner.journal {
            Some(journal) => self.inner.sync_journal(journal),
            None => self.inner.publish(Scope::Sync),
        }
    }

    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        check_discard(self, offset, length)?;
        self.inner.writable(Operation::Discard).map_err(|error| error.at(offset, length))?;
        let (start, blocks) = (offset / BLOCK as u64, length / BLOCK as u64);
        match &self.inner.journal {
            Some(journal) => self.inner.discard_journaled(journal, start, blocks),
            None => {
                self.inner.state.write().discard(start, blocks);
                Ok(())
            }
        }
    }
}
