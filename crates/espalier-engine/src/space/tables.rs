//! The four tables of a store: node translation table, space map, volume table, reclaim list.
//!
//! Protocol: any thread reads. One thread at a time changes tables, and holds
//! [`Tables::begin_change`] meanwhile.

use super::piece_table::{CountedPage, ENTRIES_PER_PAGE, PieceEntry, PieceTable};
use super::statistics::Census;
use super::superblock::{Bounds, Superblock};
use super::table::{Table, TableId};
use super::{VolumeTable, byte_table, reclaim_list};
use crate::device::GuardedDevice;
use crate::lock_order::{RankedMutex, RankedMutexGuard, rank};
use crate::model::error::Context;
use crate::{PieceId, PieceKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages of the node translation table that are read before a reader asks for them: those of a
/// store of a million pieces or so next to the root.
const PREFETCHED_TABLE_PAGES: usize = 256;

/// Pages that a checkpoint may add to the tables, beside those that many new pieces fill: one of
/// each and those above it.
const NEW_TABLE_PAGES: u64 = 8;

/// See the [module](self).
pub(crate) struct Tables {
    pub(super) ntt: PieceTable,
    pub(super) map: Table,
    pub(super) volumes: Table,
    pub(super) reclaim: Table,
    /// Bytes of counted value parts that nothing refers to.
    pub(super) dead_values: AtomicU64,
    /// Pages of the tables when they were last written; 0 as long as they were not counted.
    pages: AtomicU64,
    /// Held while tables are changed.
    writer: RankedMutex<(), { rank::SPACE_WRITER }>,
}

impl Tables {
    /// The tables that `superblock` names. `budget` bounds their clean pages in memory, in bytes.
    pub(super) fn new(
        device: &Arc<GuardedDevice>,
        bounds: &Bounds,
        superblock: &Superblock,
        budget: usize,
    ) -> Self {
        let roots = &superblock.roots;
        let table = |id, root, budget| Table::new(id, root, device.clone(), bounds.clone(), budget);
        Self {
            ntt: PieceTable::new(table(TableId::Ntt, roots.ntt, budget / 8 * 6), bounds.clone()),
            map: table(TableId::SpaceMap, roots.space_map, budget / 8),
            volumes: table(TableId::Volumes, roots.volumes, budget / 16),
            reclaim: table(TableId::Reclaim, roots.reclaim, budget / 16),
            dead_values: AtomicU64::new(superblock.dead_values),
            pages: AtomicU64::new(0),
            writer: RankedMutex::new(()),
        }
    }

    /// The pages of each table; those of the space map come last.
    pub(super) fn all(&self) -> [&Table; 4] {
        [self.ntt.pages(), &self.volumes, &self.reclaim, &self.map]
    }

    /// Keeps other threads from changing tables.
    pub(super) fn begin_change(&self) -> RankedMutexGuard<'_, (), { rank::SPACE_WRITER }> {
        self.writer.lock()
    }

    /// Reads the volume table.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged), or what the device says.
    pub(super) fn load_volumes(&self) -> Result<VolumeTable> {
        byte_table::load(&self.volumes)
            .and_then(|bytes| VolumeTable::decode(&bytes))
            .context(|| "loading the volume table".into())
    }

    /// Reads the reclaim list.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged), or what the device says.
    pub(super) fn load_reclaim(&self) -> Result<Vec<PieceId>> {
        byte_table::load(&self.reclaim)
            .and_then(|bytes| reclaim_list::decode(&bytes))
            .context(|| "loading the reclaim list".into())
    }

    /// Keeps the sum of what is dead in value parts, after a change of an entry.
    pub(super) fn note_dead(&self, before: &PieceEntry, after: Option<&PieceEntry>) {
        let after = after.map_or(0, PieceEntry::dead);
        let change = |sum: u64| Some(sum.saturating_sub(before.dead()).saturating_add(after));
        let _ = self.dead_values.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// The reference count of a piece; `None` if it is not counted.
    ///
    /// # Errors
    /// As for reading the node translation table.
    pub(crate) fn references(&self, id: PieceId) -> Result<Option<u32>> {
        Ok(self.ntt.get(id)?.map(|entry| entry.count))
    }

    /// The reference count of a piece, and of a value part its live bytes; `None` if it is not
    /// counted.
    ///
    /// # Errors
    /// As for reading the node translation table.
    pub(crate) fn references_and_live(&self, id: PieceId) -> Result<Option<(u32, u64)>> {
        Ok(self.ntt.get(id)?.map(|entry| (entry.count, entry.live)))
    }

    /// Counts the pieces. Reads the whole node translation table.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if a page or an entry of it is.
    pub(crate) fn census(&self) -> Result<Census> {
        let _unchanged = self.begin_change();
        let mut census = Census::default();
        let mut failure = None;
        self.ntt.for_each(&mut |entry| match entry {
            Ok((_, entry)) => census.add(&entry.location),
            Err(error) => failure = Some(error),
        });
        failure.map_or(Ok(census), Err)
    }

    /// The pieces that a page of the node translation table counts, with their lengths in bytes: of
    /// the first page at or behind `from` that is there, with its number. An error comes with the
    /// number of the last page that it concerns.
    pub(crate) fn counted_from(&self, from: u64) -> CountedPage {
        self.ntt.counted_from(from)
    }

    /// The counted value parts of which less than a fraction is live, each with its live bytes.
    /// Reads the whole node translation table.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if a page or an entry of it is.
    pub(crate) fn sparse_values(&self, (most, of): (u64, u64)) -> Result<Vec<(u64, PieceId)>> {
        let _unchanged = self.begin_change();
        let (mut found, mut failure) = (Vec::new(), None);
        self.ntt.for_each(&mut |entry| match entry {
            Ok((id, entry)) => {
                let is_sparse = entry.live < u64::from(entry.location.len) / of * most;
                if is_sparse && entry.location.kind == PieceKind::Values {
                    found.push((entry.live, id));
                }
            }
            Err(error) => failure = Some(error),
        });
        failure.map_or(Ok(found), Err)
    }

    /// Reads pages of the node translation table, so that no reader waits for them one after the
    /// other. A hint.
    pub(crate) fn prefetch_locations(&self) {
        self.ntt.pages().prefetch_first(PREFETCHED_TABLE_PAGES);
    }

    /// Counts the pages of all levels, if `is_due` or if they were counted before. To be called by
    /// the thread that may change the tables, while none of their pages is dirty.
    pub(super) fn count_pages(&self, is_due: bool) {
        if is_due {
            self.all().iter().for_each(|table| table.count_placed());
        }
        let placed: Option<u64> = self.all().iter().map(|table| table.placed()).sum();
        self.pages.store(placed.unwrap_or(0), Ordering::Relaxed);
    }

    /// Blocks that the pages take at most which a checkpoint writes, their copies aside, where it
    /// gives numbers to `new` pieces: all that there are, for any page may have to change, and
    /// those that the new ones begin. It is 0 as long as the store has been far from full.
    pub(crate) fn checkpoint_blocks(&self, new: u64) -> u64 {
        match self.pages.load(Ordering::Relaxed) {
            0 => 0,
            placed => placed + new / ENTRIES_PER_PAGE + NEW_TABLE_PAGES,
        }
    }

    /// Bytes of memory for pages, and of those for dirty ones.
    pub(super) fn memory(&self) -> (u64, u64) {
        let sum = |of: fn(&Table) -> usize| self.all().iter().map(|table| of(table) as u64).sum();
        (sum(Table::cached_bytes), sum(Table::dirty_bytes))
    }
}
