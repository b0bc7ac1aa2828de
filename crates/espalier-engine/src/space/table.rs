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

use super::page::{Page, PageKey, Pointer, Shape};
use super::superblock::{Bounds, MAX_HEIGHT, TableRoot};
use crate::device::GuardedDevice;
use crate::lock_order::{RankedRwLock, rank};
use crate::model::error::Context;
use crate::{Error, Extent, Result};
use espalier_storage::BLOCK;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Blocks from one page to the next that are read in one piece.
const PREFETCH_GAP: u64 = 16;
/// Pages at most that are read in one piece.
const PREFETCHED: usize = 64;

/// A page that is not in memory, where it was last written, and the version of the tree that says
/// so.
type Missing = (PageKey, Pointer, u64);

/// The tables, by the number that seeds their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableId {
    Ntt = 1,
    SpaceMap = 2,
    Volumes = 3,
    Reclaim = 4,
}

impl TableId {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ntt => "node translation table",
            Self::SpaceMap => "space map",
            Self::Volumes => "volume table",
            Self::Reclaim => "reclaim list",
        }
    }
}

/// A paged table.
pub(super) struct Table {
    id: TableId,
    device: Arc<GuardedDevice>,
    bounds: Bounds,
    /// The most clean pages kept.
    budget: usize,
    state: RankedRwLock<TableState, { rank::SPACE_TABLE }>,
}

struct TableState {
    shape: Shape,
    height: u8,
    /// The root page as it was last written.
    root: Pointer,
    pages: HashMap<PageKey, Slot>,
    /// Clean pages in the order in which eviction looks at them (second chance).
    ring: VecDeque<PageKey>,
    dirty: BTreeSet<PageKey>,
    /// Pages of all levels that have a place; `None` as long as they were not counted.
    placed: Option<u64>,
    /// Counts writes: a page read while it changed may be of the old or the new tree.
    version: u64,
}

struct Slot {
    page: Arc<Page>,
    dirty: bool,
    /// The block a dirty page will be written to, and that for its copy (0 for none).
    assigned: Option<(u64, u64)>,
    /// Used since eviction last looked.
    touched: AtomicBool,
}

impl TableState {
    /// What the tree in memory says about where `key` was last written.
    fn pointer(&self, key: PageKey) -> Option<Pointer> {
        if key.level == self.height {
            return Some(self.root);
        }
        let slot = self.pages.get(&key.parent(self.shape))?;
        Some(slot.page.pointer(key.slot(self.shape), self.shape))
    }

    fn set_pointer(&mut self, key: PageKey, pointer: Pointer) {
        if key.level == self.height {
            self.root = pointer;
        } else if let Some(parent) = self.pages.get_mut(&key.parent(self.shape)) {
            debug_assert!(parent.dirty, "the parent of a dirty page is dirty");
            Arc::make_mut(&mut parent.page).set_pointer(key.slot(self.shape), pointer, self.shape);
        }
    }

    fn insert_clean(&mut self, key: PageKey, page: Arc<Page>, budget: usize) {
        self.make_room(budget);
        let slot = Slot { page, dirty: false, assigned: None, touched: AtomicBool::new(true) };
        if self.pages.insert(key, slot).is_none() {
            self.ring.push_back(key);
        }
    }

    /// Evicts until there is room for one more clean page.
    fn make_room(&mut self, budget: usize) {
        while self.ring.len() >= budget {
            let Some(key) = self.ring.pop_front() else { return };
            match self.pages.get(&key) {
                // Dirty pages come back to the ring when they have been written.
                Some(slot) if slot.dirty => {}
                Some(slot) if slot.touched.swap(false, Ordering::Relaxed) => self.ring.push_back(key),
                Some(_) => {
                    self.pages.remove(&key);
                }
                None => {}
            }
        }
    }

    fn mark_dirty(&mut self, key: PageKey) -> Option<&mut Arc<Page>> {
        let slot = self.pages.get_mut(&key)?;
        if !slot.dirty {
            slot.dirty = true;
            self.dirty.insert(key);
        }
        Some(&mut slot.page)
    }
}

/// A page with its number, or an error with the number of the last page that it concerns.
pub(super) type FirstPage = std::result::Result<Option<(u64, Arc<Page>)>, (u64, crate::Error)>;

/// What a look at the pages in memory found.
enum Look {
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
        let budget = (budget / BLOCK).max(2 * usize::from(MAX_HEIGHT));
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
            match self.look(wanted) {
                Look::Hit(page) => return Ok(Some(page)),
                Look::Absent => return Ok(None),
                Look::Load(key, pointer, version) => self.load(key, pointer, version)?,
            }
        }
    }

    fn look(&self, wanted: PageKey) -> Look {
        let state = self.state.read();
        let shape = state.shape;
        if !wanted.fits(state.height, shape) {
            return Look::Absent;
        }
        let mut missing = wanted;
        for level in wanted.level..=state.height {
            let key = wanted.ancestor(level, shape);
            if let Some(slot) = state.pages.get(&key) {
                slot.touched.store(true, Ordering::Relaxed);
                if level == wanted.level {
                    return Look::Hit(slot.page.clone());
                }
                let pointer = slot.page.pointer(missing.slot(shape), shape);
                return if pointer.is_none() {
                    Look::Absent
                } else {
                    Look::Load(missing, pointer, state.version)
                };
            }
            missing = key;
        }
        if state.root.is_none() { Look::Absent } else { Look::Load(missing, state.root, state.version) }
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

    /// Reads pages of level 0 that are not in memory, with one read for those that lie close
    /// together. A hint: a reader meets what is damaged or changes meanwhile.
    pub(super) fn prefetch(&self, numbers: Range<u64>) {
        if let Ok(missing) = self.missing(numbers) {
            self.fetch_close(missing);
        }
    }

    /// As [`Self::prefetch`], for pages of all levels: first those next to the root, `most` at
    /// most. May stop at what is damaged.
    pub(super) fn prefetch_first(&self, most: usize) {
        let mut left = most.min(self.budget / 2);
        let (root, shape) = {
            let state = self.state.read();
            (PageKey { level: state.height, number: 0 }, state.shape)
        };
        if !matches!(self.find(root), Ok(Some(_))) {
            return;
        }
        let mut parents = vec![root];
        while parents.first().is_some_and(|parent| parent.level > 0) {
            let state = self.state.read();
            let mut children = Vec::new();
            for (parent, slot) in parents.iter().filter_map(|key| Some((key, state.pages.get(key)?))) {
                let pointers =
                    (0..shape.fanout()).map(|at| (parent.child(at, shape), slot.page.pointer(at, shape)));
                children
                    .extend(pointers.filter(|(_, pointer)| !pointer.is_none()).take(left - children.len()));
            }
            left -= children.len();
            let is_missing = |(key, _): &&(PageKey, Pointer)| !state.pages.contains_key(key);
            let missing: Vec<_> = children
                .iter()
                .filter(is_missing)
                .map(|(key, pointer)| (*key, *pointer, state.version))
                .collect();
            drop(state);
            for (key, pointer, version) in self.fetch_close(missing) {
                if self.load(key, pointer, version).is_err() {
                    return;
                }
            }
            parents = children.into_iter().map(|(key, _)| key).collect();
        }
    }

    /// Reads those pages that lie close together; returns the others.
    fn fetch_close(&self, mut missing: Vec<Missing>) -> Vec<Missing> {
        missing.sort_unstable_by_key(|(_, pointer, _)| pointer.block);
        let close = |a: &Missing, b: &Missing| b.1.block - a.1.block <= PREFETCH_GAP;
        let mut alone = Vec::new();
        for run in missing.chunk_by(close).flat_map(|run| run.chunks(PREFETCHED)) {
            if let [one] = run {
                alone.push(*one);
                continue;
            }
            let (first, last) = (run[0].1.block, run[run.len() - 1].1.block);
            let Ok(blocks) = u32::try_from(last - first + 1) else { continue };
            let place = Extent { start: first, blocks };
            if !self.bounds.get().holds(place) {
                continue;
            }
            let Ok(buffer) = self.device.read_extent(place) else { continue };
            for (key, pointer, version) in run {
                let start = (pointer.block - first) as usize * BLOCK;
                let mut page = Page::zeroed();
                page.bytes_mut().copy_from_slice(&buffer[start..start + BLOCK]);
                if crate::model::ids::sums_agree(page.checksum(*key, self.id as u8), pointer.checksum) {
                    self.keep(*key, page, *version);
                }
            }
        }
        alone
    }

    /// Where the pages of level 0 lie that are not in memory, as far as they are to be kept there.
    fn missing(&self, numbers: Range<u64>) -> Result<Vec<Missing>> {
        let mut missing = Vec::new();
        for number in numbers.take(self.budget / 2) {
            loop {
                match self.look(PageKey { level: 0, number }) {
                    Look::Load(key, pointer, version) if key.level == 0 => {
                        missing.push((key, pointer, version));
                        break;
                    }
                    Look::Load(key, pointer, version) => self.load(key, pointer, version)?,
                    Look::Hit(_) | Look::Absent => break,
                }
            }
        }
        Ok(missing)
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

    /// Changes page `number` of level 0, made of zeros if it is absent. For one thread at a time.
    ///
    /// # Errors
    /// As for [`Self::read`]; nothing is changed then.
    pub(super) fn update<T>(&self, number: u64, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let target = PageKey { level: 0, number };
        {
            let mut state = self.state.write();
            if let Some(slot) = state.pages.get_mut(&target).filter(|slot| slot.dirty) {
                return Ok(change(Arc::make_mut(&mut slot.page).bytes_mut()));
            }
        }
        self.grow(target);
        let (height, shape) = {
            let state = self.state.read();
            (state.height, state.shape)
        };
        // From the top, so that each page is held (dirty) before the one below is looked for.
        for level in (0..=height).rev() {
            let key = target.ancestor(level, shape);
            loop {
                let found = self.find(key)?;
                let mut state = self.state.write();
                if found.is_none() {
                    state.insert_clean(key, Arc::new(Page::zeroed()), self.budget);
                }
                // A reader may have evicted it since; then look again.
                if state.mark_dirty(key).is_some() {
                    break;
                }
            }
        }
        let mut state = self.state.write();
        match state.mark_dirty(target) {
            Some(page) => Ok(change(Arc::make_mut(page).bytes_mut())),
            None => Err(Error::damaged(format!("{} page {number} was lost in memory", self.id.name()))),
        }
    }

    /// Adds levels until there is room for `target`.
    fn grow(&self, target: PageKey) {
        let mut state = self.state.write();
        let shape = state.shape;
        while !target.fits(state.height, shape) {
            let old_root = PageKey { level: state.height, number: 0 };
            let lonely = state.root.is_none() && !state.pages.contains_key(&old_root);
            state.height += 1;
            if !lonely {
                let mut page = Page::zeroed();
                page.set_pointer(0, state.root, shape);
                state.root = Pointer::default();
                let key = old_root.parent(shape);
                state.insert_clean(key, Arc::new(page), self.budget);
                state.mark_dirty(key);
            }
        }
    }

    /// Drops dirty pages that hold nothing but zeros; returns the blocks they had.
    pub(super) fn prune(&self) -> Vec<u64> {
        let mut state = self.state.write();
        let shape = state.shape;
        let mut freed = Vec::new();
        let mut needed: BTreeSet<PageKey> = BTreeSet::new();
        // By level from below, so that a page is looked at when its children are decided.
        for key in state.dirty.clone() {
            let Some(slot) = state.pages.get(&key) else { continue };
            if needed.contains(&key) || !slot.page.is_zero() {
                needed.insert(key.parent(shape));
                continue;
            }
            match slot.assigned {
                Some((block, copy)) => freed.extend([block, copy].into_iter().filter(|block| *block != 0)),
                None => freed.extend(state.pointer(key).into_iter().flat_map(Pointer::blocks)),
            }
            let had_place = slot.assigned.is_some() || state.pointer(key).is_some_and(|at| !at.is_none());
            state.placed = state.placed.map(|placed| placed.saturating_sub(u64::from(had_place)));
            state.set_pointer(key, Pointer::default());
            state.pages.remove(&key);
            state.dirty.remove(&key);
            // A thread that read it from its old place meanwhile has a page that is gone.
            state.version += 1;
        }
        freed
    }

    /// The dirty pages that have no new place yet.
    pub(super) fn unassigned(&self) -> Vec<PageKey> {
        let state = self.state.read();
        let lacks = |key: &&PageKey| state.pages.get(*key).is_some_and(|slot| slot.assigned.is_none());
        state.dirty.iter().filter(lacks).copied().collect()
    }

    /// Says where a dirty page and its copy (0 for none) will be written; returns the blocks it
    /// had.
    pub(super) fn assign(&self, key: PageKey, block: u64, copy: u64) -> Vec<u64> {
        let mut state = self.state.write();
        let old: Vec<u64> = state.pointer(key).into_iter().flat_map(Pointer::blocks).collect();
        state.placed = state.placed.map(|placed| placed + u64::from(old.is_empty()));
        if let Some(slot) = state.pages.get_mut(&key) {
            slot.assigned = Some((block, copy));
        }
        old
    }

    /// Writes all dirty pages to their new blocks and returns the new root.
    ///
    /// # Errors
    /// What the device says; the pages stay dirty.
    pub(super) fn write(&self) -> Result<TableRoot> {
        let (mut pages, keys) = self.seal();
        pages.sort_by_key(|(block, _)| *block);
        for run in pages.chunk_by(|a, b| a.0 + 1 == b.0) {
            let buffers: Vec<&[u8]> = run.iter().map(|(_, page)| page.bytes()).collect();
            // Bounded, so that one call does not exceed what the system takes at once.
            for (part, buffers) in buffers.chunks(256).enumerate() {
                let block = run[0].0 + part as u64 * 256;
                self.device
                    .write_at(block * BLOCK as u64, buffers)
                    .context(|| format!("writing the {}", self.id.name()))?;
            }
        }
        let mut state = self.state.write();
        for key in keys {
            state.dirty.remove(&key);
            if let Some(slot) = state.pages.get_mut(&key) {
                (slot.dirty, slot.assigned) = (false, None);
                state.ring.push_back(key);
            }
        }
        state.make_room(self.budget + 1);
        state.version += 1;
        let root = state.root;
        Ok(TableRoot { block: root.block, copy: root.copy, checksum: root.checksum, height: state.height })
    }

    /// Enters places and checksums of dirty pages into their parents, from below.
    fn seal(&self) -> (Vec<(u64, Arc<Page>)>, Vec<PageKey>) {
        let mut state = self.state.write();
        let keys: Vec<PageKey> = state.dirty.iter().copied().collect();
        let mut pages = Vec::with_capacity(keys.len());
        for key in &keys {
            let Some(slot) = state.pages.get(key) else { continue };
            let Some((block, copy)) = slot.assigned else { continue };
            let page = slot.page.clone();
            let checksum = page.checksum(*key, self.id as u8);
            let pointer = Pointer { block, copy, checksum };
            state.set_pointer(*key, pointer);
            pages.extend(pointer.blocks().map(|block| (block, page.clone())));
        }
        (pages, keys)
    }

    /// Pages of all levels that have a place, if they were counted.
    pub(super) fn placed(&self) -> Option<u64> {
        self.state.read().placed
    }

    /// Counts them, for which all pages but those of level 0 are read. For the thread that may
    /// change the table, while no page is dirty. Below a page that cannot be read there are taken
    /// to be none: nothing there can be changed.
    pub(super) fn count_placed(&self) {
        if self.placed().is_some() {
            return;
        }
        let (height, root) = {
            let state = self.state.read();
            (state.height, state.root)
        };
        let placed = if root.is_none() { 0 } else { self.placed_below(PageKey { level: height, number: 0 }) };
        self.state.write().placed = Some(placed);
    }

    fn placed_below(&self, key: PageKey) -> u64 {
        let shape = self.state.read().shape;
        let Some(page) = (key.level > 0).then(|| self.find(key)).and_then(Result::ok).flatten() else {
            return 1;
        };
        let slots = (0..shape.fanout()).filter(|slot| !page.pointer(*slot, shape).is_none());
        1 + slots.map(|slot| self.placed_below(key.child(slot, shape))).sum::<u64>()
    }

    /// Bytes of dirty pages, which stay in memory until they are written.
    pub(super) fn dirty_bytes(&self) -> usize {
        self.state.read().dirty.len() * BLOCK
    }

    /// Bytes of all pages in memory.
    pub(super) fn cached_bytes(&self) -> usize {
        self.state.read().pages.len() * BLOCK
    }

    /// Visits every page in order: its level, where it lies (nowhere if it was never written), and
    /// the page. Unreadable pages are visited as errors and what is below them is skipped.
    pub(super) fn walk(&self, visit: &mut dyn FnMut(PageKey, Pointer, Result<Arc<Page>>)) {
        let (height, root) = {
            let state = self.state.read();
            (state.height, state.root)
        };
        self.walk_below(PageKey { level: height, number: 0 }, root, visit);
    }

    /// The first page of level 0 at or behind `from` that is there; with an error the last page
    /// that cannot be reached for it.
    pub(super) fn first_from(&self, from: u64) -> FirstPage {
        let height = self.state.read().height;
        self.first_below(PageKey { level: height, number: 0 }, from)
    }

    fn first_below(&self, key: PageKey, from: u64) -> FirstPage {
        // The last page of level 0 below `key`.
        let shape = self.state.read().shape;
        let span = shape.fanout().saturating_pow(u32::from(key.level));
        let last = key.number.saturating_mul(span).saturating_add(span - 1);
        if last < from {
            return Ok(None);
        }
        match self.find(key) {
            Err(error) => Err((last, error)),
            Ok(None) => Ok(None),
            Ok(Some(page)) if key.level == 0 => Ok(Some((key.number, page))),
            Ok(Some(_)) => {
                for slot in 0..shape.fanout() {
                    if let Some(found) = self.first_below(key.child(slot, shape), from)? {
                        return Ok(Some(found));
                    }
                }
                Ok(None)
            }
        }
    }

    fn walk_below(
        &self,
        key: PageKey,
        place: Pointer,
        visit: &mut dyn FnMut(PageKey, Pointer, Result<Arc<Page>>),
    ) {
        let shape = self.state.read().shape;
        match self.find(key) {
            Ok(None) => {}
            Err(error) => visit(key, place, Err(error)),
            Ok(Some(page)) => {
                visit(key, place, Ok(page.clone()));
                if key.level > 0 {
                    for slot in 0..shape.fanout() {
                        self.walk_below(key.child(slot, shape), page.pointer(slot, shape), visit);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
