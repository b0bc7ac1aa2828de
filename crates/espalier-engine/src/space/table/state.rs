//! The pages of a table in memory, clean and dirty, and what the tree in memory says of the others.

use crate::space::page::{Page, PageKey, Pointer, Shape, TableId};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the [module](self).
pub(super) struct TableState {
    pub(super) shape: Shape,
    pub(super) height: u8,
    /// The root page as it was last written.
    pub(super) root: Pointer,
    pub(super) pages: HashMap<PageKey, CachedPage>,
    /// Clean pages in the order in which eviction looks at them (second chance).
    pub(super) ring: VecDeque<PageKey>,
    pub(super) dirty: BTreeSet<PageKey>,
    /// Pages of all levels that have a place; `None` as long as they were not counted.
    pub(super) placed: Option<u64>,
    /// Counts writes: a page read while it changed may be of the old or the new tree.
    pub(super) version: u64,
}

pub(super) struct CachedPage {
    pub(super) page: Arc<Page>,
    pub(super) dirty: bool,
    /// The block a dirty page will be written to, and that for its copy (0 for none).
    pub(super) assigned: Option<(u64, u64)>,
    /// Used since eviction last looked.
    pub(super) touched: AtomicBool,
}

impl TableState {
    /// What the tree in memory says about where `key` was last written.
    pub(super) fn pointer(&self, key: PageKey) -> Option<Pointer> {
        if key.level == self.height {
            return Some(self.root);
        }
        let slot = self.pages.get(&key.parent(self.shape))?;
        Some(slot.page.pointer(key.slot(self.shape), self.shape))
    }

    pub(super) fn set_pointer(&mut self, key: PageKey, pointer: Pointer) {
        if key.level == self.height {
            self.root = pointer;
        } else if let Some(parent) = self.pages.get_mut(&key.parent(self.shape)) {
            debug_assert!(parent.dirty, "the parent of a dirty page is dirty");
            Arc::make_mut(&mut parent.page).set_pointer(key.slot(self.shape), pointer, self.shape);
        }
    }

    pub(super) fn insert_clean(&mut self, key: PageKey, page: Arc<Page>, budget: usize) {
        self.make_room(budget);
        let slot = CachedPage { page, dirty: false, assigned: None, touched: AtomicBool::new(true) };
        if self.pages.insert(key, slot).is_none() {
            self.ring.push_back(key);
        }
    }

    /// Evicts until there is room for one more clean page.
    pub(super) fn make_room(&mut self, budget: usize) {
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

    pub(super) fn mark_dirty(&mut self, key: PageKey) -> Option<&mut Arc<Page>> {
        let slot = self.pages.get_mut(&key)?;
        if !slot.dirty {
            slot.dirty = true;
            self.dirty.insert(key);
        }
        Some(&mut slot.page)
    }

    /// Adds levels until there is room for `target`.
    pub(super) fn add_levels(&mut self, target: PageKey, budget: usize) {
        let shape = self.shape;
        while !target.fits(self.height, shape) {
            let old_root = PageKey { level: self.height, number: 0 };
            let lonely = self.root.is_none() && !self.pages.contains_key(&old_root);
            self.height += 1;
            if !lonely {
                let mut page = Page::zeroed();
                page.set_pointer(0, self.root, shape);
                self.root = Pointer::default();
                let key = old_root.parent(shape);
                self.insert_clean(key, Arc::new(page), budget);
                self.mark_dirty(key);
            }
        }
    }

    /// Enters places and checksums of dirty pages into their parents, from below.
    pub(super) fn seal(&mut self, id: TableId) -> (Vec<(u64, Arc<Page>)>, Vec<PageKey>) {
        let keys: Vec<PageKey> = self.dirty.iter().copied().collect();
        let mut pages = Vec::with_capacity(keys.len());
        for key in &keys {
            let Some(slot) = self.pages.get(key) else { continue };
            let Some((block, copy)) = slot.assigned else { continue };
            let page = slot.page.clone();
            let checksum = page.checksum(*key, id as u8);
            let pointer = Pointer { block, copy, checksum };
            self.set_pointer(*key, pointer);
            pages.extend(pointer.blocks().map(|block| (block, page.clone())));
        }
        (pages, keys)
    }
}
