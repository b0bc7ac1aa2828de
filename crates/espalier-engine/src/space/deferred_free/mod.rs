//! Deferred free: the blocks of a piece that nothing refers to any more are freed when no
//! superblock, no pin and no handle needs them.
//!
//! Protocol: a written piece is entered with [`DeferredFree::add_fresh`]. A checkpoint takes it out
//! when it counts its first reference, and enters what it no longer counts with
//! [`UncountedPieces::die`]. Blocks go back to the allocator when the last of superblock, pins
//! ([`DeferredFree::pin`]) and handles is gone: each of these ends by asking for that.
//!
//! Invariant: a piece that is in here has its blocks in `used`.

mod handle_counts;
mod uncounted;

pub(super) use uncounted::{FreshPiece, UncountedPieces};

use super::extent_lists::ExtentLists;
use super::free_blocks::FreeBlocks;
use crate::device::GuardedDevice;
use crate::lock_order::{RankedRwLock, RankedWriteGuard, rank};
use crate::model::ids::Location;
use crate::model::piece::{FreshOwner, PieceHandle};
use crate::{Error, Extent, PieceId, Result};
use handle_counts::HandleCounts;
use std::sync::{Arc, OnceLock};
use uncounted::PinKey;

/// Free runs shorter than this many blocks are not worth telling the device about.
const LEAST_DISCARD_BLOCKS: u32 = 16;

/// Called with a piece that died, or whose blocks were freed.
type DeathHook = Box<dyn Fn(PieceId) + Send + Sync>;

/// Pieces that no checkpoint counts, and what keeps their blocks.
pub(crate) struct DeferredFree {
    device: Arc<GuardedDevice>,
    /// Tell the device about freed blocks.
    discard: bool,
    free_blocks: Arc<FreeBlocks>,
    extent_lists: Arc<ExtentLists>,
    uncounted: RankedRwLock<UncountedPieces, { rank::UNCOUNTED_PIECES }>,
    handles: HandleCounts,
    on_death: OnceLock<DeathHook>,
}

impl DeferredFree {
    pub(super) fn new(
        device: Arc<GuardedDevice>,
        discard: bool,
        free_blocks: Arc<FreeBlocks>,
        extent_lists: Arc<ExtentLists>,
    ) -> Self {
        Self {
            device,
            discard,
            free_blocks,
            extent_lists,
            uncounted: RankedRwLock::default(),
            handles: HandleCounts::default(),
            on_death: OnceLock::new(),
        }
    }

    /// Calls `hook` with every piece that dies, and again when its blocks are freed: what is cached
    /// of it is useless, and has handles that keep the blocks of what it refers to. Only the first
    /// call counts.
    pub(crate) fn on_death(&self, hook: impl Fn(PieceId) + Send + Sync + 'static) {
        let _ = self.on_death.set(Box::new(hook));
    }

    /// Calls the hook. Not to be called under a lock: handles may be dropped in consequence.
    pub(super) fn tell_death(&self, id: PieceId) {
        if let Some(hook) = self.on_death.get() {
            hook(id);
        }
    }

    /// Keeps the blocks of pieces that die from now on, until it is dropped. To be taken before the
    /// root of the tree that is to be read.
    pub(crate) fn pin(self: &Arc<Self>) -> Pin {
        let key = self.uncounted.write().pin(false);
        Pin { owner: self.clone(), key }
    }

    /// The same for a version of an index, which never leads to what is written after some more
    /// checkpoints ([`uncounted`]). To be taken while the version cannot change.
    pub(crate) fn pin_version(self: &Arc<Self>) -> Pin {
        let key = self.uncounted.write().pin(true);
        Pin { owner: self.clone(), key }
    }

    /// A checkpoint of all indexes has ended, and the next piece gets the number `next`: the blocks
    /// of pieces that older versions do not know are no longer kept for them.
    pub(super) fn note_checkpoint(&self, next: PieceId) {
        let any = self.uncounted.write().note_checkpoint(next);
        if any {
            self.release(&[]);
        }
    }

    /// Recovery only: from now on this is the checksum of a fresh piece. False if it is not fresh.
    pub(crate) fn amend(&self, id: PieceId, checksum: u64) -> bool {
        self.uncounted.write().amend(id, checksum)
    }

    /// Where a fresh or dead piece lies.
    pub(super) fn locate(&self, id: PieceId) -> Option<Location> {
        self.uncounted.read().locate(id)
    }

    /// The pieces themselves, to be changed.
    pub(super) fn pieces(&self) -> RankedWriteGuard<'_, UncountedPieces, { rank::UNCOUNTED_PIECES }> {
        self.uncounted.write()
    }

    /// Enters a piece just written, and returns the first handle on it.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if there is one with that number.
    pub(super) fn add_fresh(
        self: &Arc<Self>,
        id: PieceId,
        location: Location,
        holds: Vec<Arc<PieceHandle>>,
    ) -> Result<Arc<PieceHandle>> {
        let mut pieces = self.uncounted.write();
        if pieces.locate(id).is_some() {
            return Err(Error::damaged(format!("piece {id} was written twice")));
        }
        self.handles.add(id);
        let handle = PieceHandle::fresh_holding(id, self.clone(), holds);
        pieces.add_fresh(id, FreshPiece { location, handle: Arc::downgrade(&handle), counting: false });
        Ok(handle)
    }

    /// A handle on a piece: that of a fresh one if there is one.
    pub(super) fn handle(self: &Arc<Self>, id: PieceId) -> Arc<PieceHandle> {
        let fresh = self.uncounted.read().fresh.get(&id).and_then(|fresh| fresh.handle.upgrade());
        fresh.unwrap_or_else(|| {
            self.handles.add(id);
            PieceHandle::fresh(id, self.clone())
        })
    }

    /// Blocks of fresh pieces, and those whose free is deferred.
    pub(super) fn blocks(&self) -> (u64, u64) {
        let pieces = self.uncounted.read();
        (pieces.fresh_blocks, pieces.deferred_blocks())
    }

    /// A superblock with the tables as last written is durable: frees what only its predecessor
    /// needed.
    pub(super) fn superblock_written(&self) {
        let pages = self.uncounted.write().superblock_written();
        self.release(&pages);
    }

    /// Frees the dead that nothing needs any more, and the blocks of some table pages.
    fn release(&self, pages: &[u64]) {
        let pieces = self.uncounted.write().take_released(&self.handles);
        let mut extents: Vec<Extent> = pieces
            .iter()
            .flat_map(|(id, location)| self.extent_lists.forget_extents(*id, location))
            .collect();
        extents.extend(pages.iter().map(|block| Extent { start: *block, blocks: 1 }));
        extents.sort_unstable();
        // Discarded before they leave `used`: afterwards another thread may be writing there.
        if self.discard {
            for run in coalesce(&extents) {
                if run.blocks >= LEAST_DISCARD_BLOCKS {
                    self.device.discard(run);
                }
            }
        }
        self.free_blocks.put_back(&extents);
        pieces.iter().for_each(|(id, _)| self.tell_death(*id));
    }
}

impl FreshOwner for DeferredFree {
    fn handle_dropped(&self, id: PieceId) {
        if !self.handles.remove(id) {
            return;
        }
        {
            let pieces = self.uncounted.read();
            if !pieces.fresh.contains_key(&id) && !pieces.is_dead(id) {
                return;
            }
        }
        let mut pieces = self.uncounted.write();
        if self.handles.any(id) {
            return;
        }
        let mut released = None;
        if pieces.fresh.get(&id).is_some_and(|fresh| !fresh.counting) {
            let location = pieces.remove_fresh(id);
            if let Some(location) = location {
                if pieces.any_pin() {
                    pieces.die(id, location, false);
                } else {
                    released = Some(location);
                }
            }
        } else {
            released = pieces.take_if_released(id);
        }
        drop(pieces);
        if let Some(location) = released {
            self.free_blocks.put_back(&self.extent_lists.forget_extents(id, &location));
        }
        self.tell_death(id);
    }
}

/// While it lives, the blocks of pieces that died after it was taken are not reused; if it is one
/// of a version, those of pieces that the version may lead to.
pub(crate) struct Pin {
    owner: Arc<DeferredFree>,
    key: PinKey,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let any = self.owner.uncounted.write().unpin(self.key);
        if any {
            self.owner.release(&[]);
        }
    }
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pin({:?})", self.key)
    }
}

/// Joins neighbours of a sorted list.
fn coalesce(extents: &[Extent]) -> Vec<Extent> {
    let mut runs: Vec<Extent> = Vec::new();
    for extent in extents {
        match runs.last_mut() {
            Some(last) if last.end() == extent.start => match last.blocks.checked_add(extent.blocks) {
                Some(sum) => last.blocks = sum,
                None => runs.push(*extent),
            },
            _ => runs.push(*extent),
        }
    }
    runs
}
