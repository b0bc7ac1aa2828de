//! Block map: where each block of the device lies, in pages that are loaded when they are used.
//!
//! Protocol: [`BlockMap::missing`] says which pages a range needs; the caller gets them and hands
//! them to [`BlockMap::load`]. [`BlockMap::apply`] and [`BlockMap::lookup`] need them.
//!
//! Invariants: a page that the directory names is the same in memory and on the server, or *dirty*;
//! no run crosses the border of a page.

use crate::format::PageReference;
use crate::pages::{PageNumber, parts};
use crate::runs::{Place, Run, RunMap};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Where each block lies.
#[derive(Debug, Default)]
pub(crate) struct BlockMap {
    directory: BTreeMap<PageNumber, PageReference>,
    pages: BTreeMap<PageNumber, RunMap>,
    dirty: BTreeSet<PageNumber>,
}

impl BlockMap {
    /// The map that a directory names.
    pub(crate) fn new(directory: BTreeMap<PageNumber, PageReference>) -> Self {
        Self { directory, ..Self::default() }
    }

    /// Where the pages were written.
    pub(crate) fn directory(&self) -> &BTreeMap<PageNumber, PageReference> {
        &self.directory
    }

    /// The pages of a range that have to be loaded.
    pub(crate) fn missing(&self, range: &Range<u64>) -> Vec<(PageNumber, PageReference)> {
        if range.is_empty() {
            return Vec::new();
        }
        let pages = self.directory.range(PageNumber::of(range.start)..=PageNumber::of(range.end - 1));
        pages.filter(|(number, _)| !self.pages.contains_key(number)).map(|(n, p)| (*n, *p)).collect()
    }

    /// Takes a page that was loaded, unless it is there by now.
    pub(crate) fn load(&mut self, number: PageNumber, runs: RunMap) {
        self.pages.entry(number).or_insert(runs);
    }

    /// Where the blocks of a range lie, in order; blocks that are not mentioned read as zeros.
    pub(crate) fn lookup(&self, range: &Range<u64>) -> Vec<Run> {
        let mut runs = Vec::new();
        for (page, part) in parts(range) {
            if let Some(page) = self.pages.get(&page) {
                runs.extend(page.overlapping(part));
            }
        }
        runs
    }

    /// Gives the blocks of a run their new place; returns where they were.
    pub(crate) fn apply(&mut self, run: &Run) -> Vec<Run> {
        let mut before = Vec::new();
        for (number, part) in parts(&(run.start..run.end())) {
            let removed = match (run.place, self.pages.get_mut(&number)) {
                (Some(_), _) => self.pages.entry(number).or_default().replace(run.within(&part)),
                (None, Some(page)) => page.remove(part),
                (None, None) => continue,
            };
            if run.place.is_some() || !removed.is_empty() {
                self.dirty.insert(number);
            }
            before.extend(removed);
        }
        before
    }

    /// Of the blocks of a run, those that lie at `from` and after it, one by one.
    pub(crate) fn still_at(&self, run: &Run, from: Place) -> Vec<Run> {
        let expected = Run { place: Some(from), ..*run };
        let found = self.lookup(&(run.start..run.end()));
        let same = found.iter().filter(|part| expected.within(&(part.start..part.end())) == **part);
        same.map(|part| run.within(&(part.start..part.end()))).collect()
    }

    /// The pages that changed since they were written.
    pub(crate) fn dirty(&self) -> impl Iterator<Item = (PageNumber, &RunMap)> {
        self.dirty.iter().filter_map(|number| Some((*number, self.pages.get(number)?)))
    }

    /// Lets a page be written again although it did not change; it has to be loaded.
    pub(crate) fn touch(&mut self, number: PageNumber) {
        if self.pages.contains_key(&number) {
            self.dirty.insert(number);
        }
    }

    /// The dirty pages were written: here, or nowhere if a page has nothing in it any more. Returns
    /// where they were before.
    pub(crate) fn written(&mut self, pages: Vec<(PageNumber, Option<PageReference>)>) -> Vec<PageReference> {
        let mut before = Vec::new();
        for (number, page) in pages {
            before.extend(match page {
                Some(page) => self.directory.insert(number, page),
                None => self.directory.remove(&number),
            });
            self.dirty.remove(&number);
        }
        before
    }
}
