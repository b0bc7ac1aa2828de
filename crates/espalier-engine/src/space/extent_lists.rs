//! Pieces in several runs, for stores in which no run is long enough.
//!
//! The layout of a fresh or dead piece is kept in memory, since its blocks must be given back
//! without reading; those of counted pieces are read when needed, and a few are remembered.

use super::{Allocator, Space};
use crate::extents::Layout;
use crate::model::ids::Location;
use crate::{Error, ErrorKind, Extent, PieceId, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// Runs remembered of counted pieces: about 2 MiB of memory.
const REMEMBERED: usize = 128 << 10;

/// Layouts in memory.
#[derive(Default)]
pub(super) struct Layouts {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Of pieces that are being written, are fresh, or are dead.
    kept: HashMap<PieceId, Arc<Layout>>,
    /// Of counted pieces that were looked at.
    seen: HashMap<PieceId, Arc<Layout>>,
    seen_runs: usize,
}

impl Layouts {
    fn get(&self, id: PieceId) -> Option<Arc<Layout>> {
        let state = self.state.lock();
        state.kept.get(&id).or_else(|| state.seen.get(&id)).cloned()
    }

    /// Keeps the layout of a piece that no table names.
    pub(super) fn keep(&self, id: PieceId, layout: Arc<Layout>) {
        self.state.lock().kept.insert(id, layout);
    }

    fn remember(&self, id: PieceId, layout: Arc<Layout>) {
        let mut state = self.state.lock();
        if state.seen_runs > REMEMBERED {
            state.seen.clear();
            state.seen_runs = 0;
        }
        state.seen_runs += layout.runs().len();
        state.seen.insert(id, layout);
    }

    /// The piece is counted now: its layout can be read again.
    pub(super) fn counted(&self, id: PieceId) {
        let layout = self.state.lock().kept.remove(&id);
        if let Some(layout) = layout {
            self.remember(id, layout);
        }
    }

    /// The layout of a piece that was not registered.
    pub(super) fn take(&self, id: PieceId) -> Option<Arc<Layout>> {
        self.state.lock().kept.remove(&id)
    }

    /// The piece is gone.
    pub(super) fn forget(&self, id: PieceId) {
        let mut state = self.state.lock();
        state.kept.remove(&id);
        if let Some(layout) = state.seen.remove(&id) {
            state.seen_runs = state.seen_runs.saturating_sub(layout.runs().len());
        }
    }
}

/// Takes `blocks` blocks in as few runs as can be, and blocks for the list; `None` if fewer than
/// that and `floor` are free.
fn take(used: &mut Allocator, blocks: u32, floor: u64) -> Option<Layout> {
    let most = u64::from(blocks) + Layout::lists_for(blocks as usize) as u64;
    if used.free() < floor.saturating_add(most) {
        return None;
    }
    let (mut runs, mut left) = (Vec::new(), blocks);
    while left > 0 {
        let run = used.allocate(left.min(used.longest().min(u64::from(u32::MAX)) as u32), None)?;
        left -= run.blocks;
        runs.push(run);
    }
    let lists = (0..Layout::lists_for(runs.len())).map(|_| Some(used.allocate(1, None)?.start));
    let lists: Option<Vec<u64>> = lists.collect();
    Some(Layout::new(runs, lists?))
}

impl Space {
    /// Takes blocks for the piece `id` wherever there are some.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if fewer are free, or all but what table pages need.
    pub(super) fn take_scattered(&self, id: PieceId, blocks: u32) -> Result<Arc<Layout>> {
        let floor = self.promises.pool() / 8;
        let (layout, free) = self.with_used(|used| (take(used, blocks, floor), used.free()));
        let layout = layout.map(Arc::new).ok_or_else(|| {
            Error::new(ErrorKind::NoSpace, format!("{blocks} blocks are needed and {free} are free"))
        })?;
        self.layouts.keep(id, layout.clone());
        Ok(layout)
    }

    /// Where a scattered piece lies.
    ///
    /// # Errors
    /// As for [`Layout::load`].
    pub(super) fn layout_of(&self, id: PieceId, location: &Location) -> Result<Arc<Layout>> {
        if let Some(layout) = self.layouts.get(id) {
            return Ok(layout);
        }
        let layout = Arc::new(Layout::load(&self.device, id, location)?);
        if let Some(wrong) = layout.extents().find(|extent| !self.geometry().holds(*extent)) {
            return Err(Error::damaged(format!("piece {id} lies at {wrong}, outside the data region")));
        }
        self.layouts.remember(id, layout.clone());
        Ok(layout)
    }

    /// All blocks that a piece occupies.
    ///
    /// # Errors
    /// As for [`Layout::load`], of a scattered piece.
    pub(super) fn footprint(&self, id: PieceId, location: &Location) -> Result<Vec<Extent>> {
        match location.scattered {
            true => Ok(self.layout_of(id, location)?.extents().collect()),
            false => Ok(vec![location.extent]),
        }
    }

    /// The blocks of a piece that is no longer anything: its layout is forgotten.
    pub(super) fn vacated(&self, id: PieceId, location: &Location) -> Vec<Extent> {
        let found = self.footprint(id, location);
        self.layouts.forget(id);
        found.unwrap_or_else(|error| {
            // Kept in memory since it was written or died; if not, the blocks are lost until the
            // next open.
            tracing::error!(%error, "the blocks of piece {id} cannot be given back");
            Vec::new()
        })
    }
}
