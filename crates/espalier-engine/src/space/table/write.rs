//! Changing pages of a table, and writing them to new places.

use super::Table;
use crate::model::error::Context;
use crate::space::page::{Page, PageKey, Pointer};
use crate::space::superblock::TableRoot;
use crate::{Error, Result};
use espalier_storage::BLOCK;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Pages at most that are written with one call: the system takes no more buffers at once.
const MAX_WRITE_PAGES: usize = 256;

impl Table {
    /// Changes page `number` of level 0, made of zeros if it is absent. For one thread at a time.
    ///
    /// # Errors
    /// As for [`Self::read`]; nothing is changed then.
    pub(in crate::space) fn update<T>(&self, number: u64, change: impl FnOnce(&mut [u8]) -> T) -> Result<T> {
        let target = PageKey { level: 0, number };
        {
            let mut state = self.state.write();
            if let Some(slot) = state.pages.get_mut(&target).filter(|slot| slot.dirty) {
                return Ok(change(Arc::make_mut(&mut slot.page).bytes_mut()));
            }
        }
        self.state.write().add_levels(target, self.budget);
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

    /// Drops dirty pages that hold nothing but zeros; returns the blocks they had.
    pub(in crate::space) fn prune(&self) -> Vec<u64> {
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
    pub(in crate::space) fn unassigned(&self) -> Vec<PageKey> {
        let state = self.state.read();
        let lacks = |key: &&PageKey| state.pages.get(*key).is_some_and(|slot| slot.assigned.is_none());
        state.dirty.iter().filter(lacks).copied().collect()
    }

    /// Says where a dirty page and its copy (0 for none) will be written; returns the blocks it
    /// had.
    pub(in crate::space) fn assign(&self, key: PageKey, block: u64, copy: u64) -> Vec<u64> {
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
    pub(in crate::space) fn write(&self) -> Result<TableRoot> {
        let (mut pages, keys) = self.state.write().seal(self.id);
        pages.sort_by_key(|(block, _)| *block);
        for run in pages.chunk_by(|a, b| a.0 + 1 == b.0) {
            let buffers: Vec<&[u8]> = run.iter().map(|(_, page)| page.bytes()).collect();
            for (part, buffers) in buffers.chunks(MAX_WRITE_PAGES).enumerate() {
                let block = run[0].0 + (part * MAX_WRITE_PAGES) as u64;
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
}
