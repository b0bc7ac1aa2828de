//! Paged copy-on-write tables: radix trees of 4 KiB pages, reached from the superblock.
//!
//! Pages have numbers; those of level 0 hold entries, the others pointers. A number never written
//! is an absent page, which reads as zeros; the height grows with the highest number. A page lies
//! on the device twice ([`Shape`]): what cannot be read from one place is read from the other.
//!
//! Protocol: any thread reads; one thread at a time (the checkpoint) updates and writes. Writing
//! has steps, because the pages' new places are themselves entries of a table (the space map):
//! [`Table::prune`] drops pages that became empty, [`Table::unassigned`] and [`Table::assign`] give
//! each dirty page a new block, [`Table::write`] fills in pointers and checksums and writes. The
//! device must be synced before the returned root goes into a superblock.
//!
//! Invariants:
//! - a page on the device is never overwritten while a superblock in use reaches it;
//! - a dirty page is in memory, and so are, dirty, all pages above it;
//! - clean pages in memory are bounded by the budget; every page read is verified by the checksum
//!   in its parent, seeded with table, level and number.

mod prefetch;
mod state;
mod walk;
mod write;

pub(super) use super::page::TableId;
use super::page::{Page, PageKey, Pointer, Shape};
use super::superblock::{Bounds, MAX_TABLE_HEIGHT, TableRoot};
use crate::device::GuardedDevice;
use crate::lock_order::{RankedRwLock, rank};
use crate::{Error, Extent, Result};
use espalier_storage::BLOCK;
use state::TableState;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A paged table.
pub(super) struct Table {
    id: TableId,
    device: Arc<GuardedDevice>,
    bounds: Bounds,
    /// The most clean pages kept.
    budget: usize,
    state: RankedRwLock<TableState, { rank::SPACE_TABLE }>,
}

/// What a look at the pages in memory found.
enum LookUp {
    Hit(Arc<Page>),
    Absent,
    /// The nearest page towards the wanted one that has to be read.
    Load(PageKey, Pointer, u64),
}

impl Table {
    /// The table that `root` describes. `budget` bounds the clean pages in memory, in bytes.
    pub(super) fn new(
        id: TableId,
        root: TableRoot,
        device: Arc<GuardedDevice>,
        bounds: impl Into<Bounds>,
        budget: usize,
    ) -> Self {
        let bounds = bounds.into();
        let root_page = Pointer { block: root.block, copy: root.copy, checksum: root.checksum };
        let state = TableState {
            shape: Shape { copies: bounds.get().copies },
            height: root.height,
            root: root_page,
            pages: HashMap::new(),
            ring: VecDeque::new(),
            dirty: BTreeSet::new(),
            placed: None,
            version: 0,
        };
        let budget = (budget / BLOCK).max(2 * usize::from(MAX_TABLE_HEIGHT));
        Self { id, device, bounds, budget, state: RankedRwLock::new(state) }
    }

    /// Page `number` of level 0; `None` if it is absent (all zeros).
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if a page on the way fails its checksum,
    /// or what the device says.
    pub(super) fn read(&self, number: u64) -> Result<Option<Arc<Page>>> {
        self.find(PageKey { level: 0, number })
    }

    /// As [`Self::read`], for a page of any level.
    fn find(&self, wanted: PageKey) -> Result<Option<Arc<Page>>> {
        loop {
            match self.look_up(wanted) {
                LookUp::Hit(page) => return Ok(Some(page)),
                LookUp::Absent => return Ok(None),
                LookUp::Load(key, pointer, version) => self.load(key, pointer, version)?,
            }
        }
    }

    fn look_up(&self, wanted: PageKey) -> LookUp {
        let state = self.state.read();
        let shape = state.shape;
        if !wanted.fits(state.height, shape) {
            return LookUp::Absent;
        }
        let mut missing = wanted;
        for level in wanted.level..=state.height {
            let key = wanted.ancestor(level, shape);
            if let Some(slot) = state.pages.get(&key) {
                slot.touched.store(true, Ordering::Relaxed);
                if level == wanted.level {
                    return LookUp::Hit(slot.page.clone());
                }
                let pointer = slot.page.pointer(missing.slot(shape), shape);
                return if pointer.is_none() {
                    LookUp::Absent
                } else {
                    LookUp::Load(missing, pointer, state.version)
                };
            }
            missing = key;
        }
        if state.root.is_none() { LookUp::Absent } else { LookUp::Load(missing, state.root, state.version) }
    }

    /// Reads a page that is not in memory, without holding up others, and keeps it.
    fn load(&self, key: PageKey, pointer: Pointer, version: u64) -> Result<()> {
        let page = self.fetch(key, pointer);
        if self.is_wanted(key, version) {
            self.keep(key, page?, version);
        }
        Ok(())
    }

    /// False for what was written elsewhere since `version`, so that what was read may be of either
    /// tree, and for what is in memory by now.
    fn is_wanted(&self, key: PageKey, version: u64) -> bool {
        let state = self.state.read();
        state.version == version && !state.pages.contains_key(&key)
    }

    fn keep(&self, key: PageKey, page: Page, version: u64) {
        let mut state = self.state.write();
        if state.version == version && !state.pages.contains_key(&key) {
            state.insert_clean(key, Arc::new(page), self.budget);
        }
    }

    fn fetch(&self, key: PageKey, pointer: Pointer) -> Result<Page> {
        let doing = || format!("reading {} page {} of level {}", self.id.name(), key.number, key.level);
        let failure = match self.fetch_from(pointer.block, key, pointer) {
            Ok(page) => return Ok(page),
            Err(error) => error.context(doing()),
        };
        if pointer.copy == 0 {
            return Err(failure);
        }
        match self.fetch_from(pointer.copy, key, pointer) {
            Ok(page) => {
                tracing::warn!(error = %failure, copy = pointer.copy, "a table page is read from its copy");
                Ok(page)
            }
            Err(error) => Err(failure.context(format!("nor can the copy be used ({error})"))),
        }
    }

    fn fetch_from(&self, block: u64, key: PageKey, pointer: Pointer) -> Result<Page> {
        let place = Extent { start: block, blocks: 1 };
        if !self.bounds.get().holds(place) {
            return Err(Error::damaged(format!("its place is {place}, outside the data region")));
        }
        let mut page = Page::zeroed();
        self.device.read_at(place.byte_offset(), page.bytes_mut())?;
        if !crate::model::ids::sums_agree(page.checksum(key, self.id as u8), pointer.checksum) {
            return Err(Error::damaged(format!("the checksum of block {block} is wrong")));
        }
        Ok(page)
    }

    /// Why one of the two places of a page cannot be read, if that is so and the other can.
    pub(super) fn damaged_copy(&self, key: PageKey, pointer: Pointer) -> Option<String> {
        if pointer.block == 0 || pointer.copy == 0 {
            return None;
        }
        let failure = |block| self.fetch_from(block, key, pointer).err();
        let error = match (failure(pointer.block), failure(pointer.copy)) {
            (Some(error), None) | (None, Some(error)) => error,
            _ => return None,
        };
        let (name, number, level) = (self.id.name(), key.number, key.level);
        Some(format!("one of the two copies of {name} page {number} of level {level}: {error}"))
    }

    /// Bytes of dirty pages, which stay in memory until they are written.
    pub(super) fn dirty_bytes(&self) -> usize {
        self.state.read().dirty.len() * BLOCK
    }

    /// Bytes of all pages in memory.
    pub(super) fn cached_bytes(&self) -> usize {
        self.state.read().pages.len() * BLOCK
    }
}

#[cfg(test)]
mod tests;
