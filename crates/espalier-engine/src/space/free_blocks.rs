//! Free blocks: the map `used` behind a lock, and the number of free blocks beside it.

use super::allocator::{Allocator, RunHistogram};
use crate::device::GuardedDevice;
use crate::extents::ExtentList;
use crate::lock_order::{RankedMutex, RankedMutexGuard, rank};
use crate::{Error, ErrorKind, Extent, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Hands out blocks and takes them back.
pub(super) struct FreeBlocks {
    device: Arc<GuardedDevice>,
    used: RankedMutex<Allocator, { rank::FREE_BLOCKS }>,
    /// Free blocks, readable without the lock.
    free: AtomicU64,
}

impl FreeBlocks {
    pub(super) fn new(device: Arc<GuardedDevice>, used: Allocator) -> Self {
        Self { device, free: AtomicU64::new(used.free()), used: RankedMutex::new(used) }
    }

    /// Blocks that nothing uses (reserved ones included).
    pub(super) fn count(&self) -> u64 {
        self.free.load(Ordering::Acquire)
    }

    /// The longest run that could be allocated now, in blocks.
    pub(super) fn longest_run(&self) -> u64 {
        self.used.lock().longest()
    }

    /// How many free runs there are of which length. Reads the whole map.
    pub(super) fn histogram(&self) -> RunHistogram {
        self.used.lock().histogram()
    }

    /// Bytes of memory for the map.
    pub(super) fn memory(&self) -> u64 {
        self.used.lock().memory()
    }

    /// The map, to be looked at; blocks are taken and put back by the other methods.
    pub(super) fn lock(&self) -> RankedMutexGuard<'_, Allocator, { rank::FREE_BLOCKS }> {
        self.used.lock()
    }

    /// Runs `change` on the map and notes how much is free then.
    pub(super) fn with_used<T>(&self, change: impl FnOnce(&mut Allocator) -> T) -> T {
        let mut used = self.used.lock();
        let result = change(&mut used);
        self.free.store(used.free(), Ordering::Release);
        result
    }

    /// Takes these blocks; none of them if one is used, and returns that one.
    pub(super) fn take_all(&self, extents: &[Extent]) -> Option<Extent> {
        self.with_used(|used| {
            let wrong = extents.iter().position(|extent| !used.take(*extent))?;
            // Those before were free a moment ago.
            let _ = extents[..wrong].iter().all(|extent| used.release(*extent));
            Some(extents[wrong])
        })
    }

    /// Takes a run of blocks, leaving `floor` blocks free.
    pub(super) fn take_run(&self, blocks: u32, near: Option<u64>, floor: u64) -> Result<Extent> {
        let (extent, free, longest) = self.with_used(|used| {
            let (free, longest) = (used.free(), used.longest());
            let enough = free >= floor + u64::from(blocks);
            (if enough { used.allocate(blocks, near) } else { None }, free, longest)
        });
        extent.ok_or_else(|| {
            Error::new(
                ErrorKind::NoSpace,
                format!("no run of {blocks} blocks: {free} are free, at most {longest} in a row"),
            )
        })
    }

    /// Takes `blocks` blocks wherever there are some, in as few runs as can be, and blocks for the
    /// extent list, leaving `floor` blocks free.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if fewer are free.
    pub(super) fn take_scattered(&self, blocks: u32, floor: u64) -> Result<ExtentList> {
        let (list, free) = self.with_used(|used| (take_extents(used, blocks, floor), used.free()));
        list.ok_or_else(|| {
            Error::new(ErrorKind::NoSpace, format!("{blocks} blocks are needed and {free} are free"))
        })
    }

    /// Puts blocks back; that they were not used latches the device, because then nothing is
    /// certain.
    pub(super) fn put_back(&self, extents: &[Extent]) {
        self.with_used(|used| {
            for extent in extents {
                if !used.release(*extent) {
                    let message = format!("{extent}, being freed, were not in use");
                    self.device.latch(Error::damaged(message));
                }
            }
        });
    }
}

/// Takes `blocks` blocks in as few runs as can be, and blocks for the list; `None` if fewer than
/// that and `floor` are free.
fn take_extents(used: &mut Allocator, blocks: u32, floor: u64) -> Option<ExtentList> {
    let most = u64::from(blocks) + ExtentList::blocks_for(blocks as usize) as u64;
    if used.free() < floor.saturating_add(most) {
        return None;
    }
    let (mut runs, mut left) = (Vec::new(), blocks);
    while left > 0 {
        let run = used.allocate(left.min(used.longest().min(u64::from(u32::MAX)) as u32), None)?;
        left -= run.blocks;
        runs.push(run);
    }
    let lists = (0..ExtentList::blocks_for(runs.len())).map(|_| Some(used.allocate(1, None)?.start));
    let lists: Option<Vec<u64>> = lists.collect();
    Some(ExtentList::new(runs, lists?))
}
