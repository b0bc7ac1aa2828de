//! Walks over the pages of a table, and their number.

use super::Table;
use crate::Result;
use crate::space::page::{Page, PageKey, Pointer};
use std::sync::Arc;

/// A page with its number, or an error with the number of the last page that it concerns.
pub(in crate::space) type FirstPage = std::result::Result<Option<(u64, Arc<Page>)>, (u64, crate::Error)>;

impl Table {
    /// Pages of all levels that have a place, if they were counted.
    pub(in crate::space) fn placed(&self) -> Option<u64> {
        self.state.read().placed
    }

    /// Counts them, for which all pages but those of level 0 are read. For the thread that may
    /// change the table, while no page is dirty. Below a page that cannot be read there are taken
    /// to be none: nothing there can be changed.
    pub(in crate::space) fn count_placed(&self) {
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

    /// Visits every page in order: its level, where it lies (nowhere if it was never written), and
    /// the page. Unreadable pages are visited as errors and what is below them is skipped.
    pub(in crate::space) fn walk(&self, visit: &mut dyn FnMut(PageKey, Pointer, Result<Arc<Page>>)) {
        let (height, root) = {
            let state = self.state.read();
            (state.height, state.root)
        };
        self.walk_below(PageKey { level: height, number: 0 }, root, visit);
    }

    /// The first page of level 0 at or behind `from` that is there; with an error the last page
    /// that cannot be reached for it.
    pub(in crate::space) fn first_from(&self, from: u64) -> FirstPage {
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
