//! Reading pages of a table before they are asked for.

use super::{LookUp, Table};
use crate::model::ids::sums_agree;
use crate::space::page::{Page, PageKey, Pointer};
use crate::{Extent, Result};
use espalier_storage::BLOCK;
use std::ops::Range;

/// Blocks from one page to the next that are read in one piece.
const PREFETCH_GAP_BLOCKS: u64 = 16;
/// Pages at most that are read in one piece.
const MAX_PREFETCH_PAGES: usize = 64;

/// A page that is not in memory, where it was last written, and the version of the tree that says
/// so.
type Missing = (PageKey, Pointer, u64);

impl Table {
    /// Reads pages of level 0 that are not in memory, with one read for those that lie close
    /// together. A hint: a reader meets what is damaged or changes meanwhile.
    pub(in crate::space) fn prefetch(&self, numbers: Range<u64>) {
        if let Ok(missing) = self.missing(numbers) {
            self.fetch_close(missing);
        }
    }

    /// As [`Self::prefetch`], for pages of all levels: first those next to the root, `most` at
    /// most. May stop at what is damaged.
    pub(in crate::space) fn prefetch_first(&self, most: usize) {
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

    /// As [`Self::prefetch_first`], on a device that gets side by side what it is told of.
    pub(in crate::space) fn prefetch_announced(&self, most: usize) {
        if self.device.wants_announcements() {
            self.prefetch_first(most);
        }
    }

    /// Reads those pages that lie close together; returns the others. All are announced before.
    fn fetch_close(&self, mut missing: Vec<Missing>) -> Vec<Missing> {
        missing.sort_unstable_by_key(|(_, pointer, _)| pointer.block);
        if missing.len() > 1 && self.device.wants_announcements() {
            let offset = |block: u64| block.saturating_mul(BLOCK as u64);
            let place =
                |(_, pointer, _): &Missing| offset(pointer.block)..offset(pointer.block.saturating_add(1));
            self.device.announce(&missing.iter().map(place).collect::<Vec<_>>());
        }
        let close = |a: &Missing, b: &Missing| b.1.block - a.1.block <= PREFETCH_GAP_BLOCKS;
        let mut alone = Vec::new();
        for run in missing.chunk_by(close).flat_map(|run| run.chunks(MAX_PREFETCH_PAGES)) {
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
                if sums_agree(page.checksum(*key, self.id as u8), pointer.checksum) {
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
                match self.look_up(PageKey { level: 0, number }) {
                    LookUp::Load(key, pointer, version) if key.level == 0 => {
                        missing.push((key, pointer, version));
                        break;
                    }
                    LookUp::Load(key, pointer, version) => self.load(key, pointer, version)?,
                    LookUp::Hit(_) | LookUp::Absent => break,
                }
            }
        }
        Ok(missing)
    }
}
