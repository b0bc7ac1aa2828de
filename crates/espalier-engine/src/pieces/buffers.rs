//! Read buffers: a pool of memory to read into.
//!
//! The kernel clears memory that it hands to a process, which takes as long as reading into it. So
//! buffers are used again instead of being returned to the system.

use crate::lock_order::{RankedMutex, rank};
use espalier_storage::{AlignedBuf, BLOCK, BufferPool, PooledBuf};
use std::sync::Arc;

/// The shortest buffer, in bytes; the others are twice as long each time. A block, as a scan of
/// values that lie apart has many of them.
const SHORTEST_BUFFER_BYTES: usize = BLOCK;
/// Memory is touched beforehand in pieces of so many bytes, which is what a system with huge pages
/// gives at once.
const PROVIDED_PIECE_BYTES: usize = 2 << 20;
/// So many of these pieces: as much as one reader of large files takes.
const PROVIDED_PIECES: usize = 16;

/// Memory that is lent.
pub(super) struct Buffers {
    /// None with very little memory.
    pool: RankedMutex<Option<Arc<BufferPool>>, { rank::BUFFER_POOL }>,
    provision: RankedMutex<Provision, { rank::BUFFER_PROVISION }>,
}

/// Memory that is touched before a reader needs it.
#[derive(Default)]
struct Provision {
    /// A caller has asked for it.
    begun: bool,
    /// Pieces that are left, and those that a thread is touching.
    left: usize,
    under_way: usize,
    /// What is done: all of it is kept until the end, since the lowest place is the next again as
    /// soon as it is free.
    done: Vec<PooledBuf>,
}

/// A buffer that is lent; its first bytes.
pub(super) struct Lent {
    memory: Memory,
    used: usize,
}

enum Memory {
    Pooled(PooledBuf),
    /// There was no place left.
    Own(AlignedBuf),
}

impl Buffers {
    /// Buffers that keep up to `kept` bytes of memory.
    pub(super) fn new(kept: u64) -> Arc<Self> {
        Arc::new(Self { pool: RankedMutex::new(pool(kept)), provision: RankedMutex::default() })
    }

    /// The bytes that a buffer for `used` bytes takes.
    pub(super) fn cost(used: usize) -> u64 {
        used.max(SHORTEST_BUFFER_BYTES).next_power_of_two() as u64
    }

    /// A buffer for `used` bytes; what is in it is arbitrary.
    pub(super) fn lend(&self, used: usize) -> Lent {
        let pooled = self.pool.lock().as_ref().and_then(|pool| pool.take(used));
        let own = || Memory::Own(AlignedBuf::zeroed(Self::cost(used) as usize));
        Lent { memory: pooled.map_or_else(own, Memory::Pooled), used }
    }

    /// From now on takes up to `kept` bytes, or at most twice as many: a new pool is memory that
    /// was never used. What was lent before keeps the memory that it came from.
    pub(super) fn keep(&self, kept: u64) {
        let mut current = self.pool.lock();
        let bytes = current.as_ref().map_or(0, |pool| pool.bytes() as u64);
        if bytes / 2 > kept || bytes * 2 <= kept {
            *current = pool(kept);
        }
    }

    /// Much will be read. True the first time: there is something to [provide](Self::provide).
    pub(super) fn want(&self) -> bool {
        let mut provision = self.provision.lock();
        if provision.begun {
            return false;
        }
        (provision.begun, provision.left) = (true, PROVIDED_PIECES);
        true
    }

    /// True if [`Self::provide`] has something to do.
    pub(super) fn is_wanted(&self) -> bool {
        self.provision.lock().left > 0
    }

    /// Touches a piece of the memory that will be lent first, so that the system provides it, after
    /// a call of `claimed`; false if no caller wants that.
    pub(super) fn provide(&self, claimed: impl FnOnce()) -> bool {
        let mut provision = self.provision.lock();
        if provision.left == 0 {
            return false;
        }
        // Half of the pool is left to concurrent readers.
        let taken = (provision.under_way + provision.done.len() + 1) * PROVIDED_PIECE_BYTES;
        let pool = self.pool.lock().clone().filter(|pool| taken <= pool.bytes() / 2);
        let Some(mut piece) = pool.and_then(|pool| pool.take(PROVIDED_PIECE_BYTES)) else {
            // There is no more.
            provision.left = 0;
            provision.end();
            return false;
        };
        provision.left -= 1;
        provision.under_way += 1;
        provision.unlocked(|| {
            claimed();
            piece.iter_mut().step_by(BLOCK).for_each(|byte| *byte = 0);
        });
        provision.under_way -= 1;
        provision.done.push(piece);
        provision.end();
        true
    }
}

impl Provision {
    /// Gives the memory back if that was all.
    fn end(&mut self) {
        if self.left == 0 && self.under_way == 0 {
            self.done = Vec::new();
        }
    }
}

/// The bytes of a pool of `kept` bytes at most.
fn length(kept: u64) -> usize {
    kept.checked_ilog2().map_or(0, |log| 1 << log)
}

/// None if that is too little, or the system has no room.
fn pool(kept: u64) -> Option<Arc<BufferPool>> {
    let length = Some(length(kept)).filter(|length| *length >= SHORTEST_BUFFER_BYTES)?;
    let made = BufferPool::new(length, SHORTEST_BUFFER_BYTES);
    made.inspect_err(|error| tracing::debug!(%error, "buffers have memory of their own")).ok()
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        match &self.memory {
            Memory::Pooled(buffer) => &buffer[..self.used],
            Memory::Own(buffer) => &buffer[..self.used],
        }
    }
}

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Pooled(buffer) => &mut buffer[..self.used],
            Memory::Own(buffer) => &mut buffer[..self.used],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_out_of_the_pool_as_long_as_there_is_room() {
        assert_eq!(Buffers::cost(40_000), 64 << 10);
        assert_eq!(
            [0, 1, 4 << 10, (4 << 10) + 1, (16 << 10) + 1].map(Buffers::cost),
            [4 << 10, 4 << 10, 4 << 10, 8 << 10, 32 << 10]
        );
        let buffers = Buffers::new(100 << 10);
        let pooled = |lent: &Lent| matches!(lent.memory, Memory::Pooled(_));
        let lent = [4096, 0, 5000, 10_000, 30_000].map(|used| buffers.lend(used));
        assert!(lent.iter().all(pooled));
        assert_eq!(lent.each_ref().map(|lent| lent.as_ref().len()), [4096, 0, 5000, 10_000, 30_000]);
        // There are 64 KiB.
        let mut own = buffers.lend(1);
        assert!(!pooled(&own) && !pooled(&buffers.lend(3 << 20)));
        own.as_mut().fill(7);
        let first = lent[0].as_ref().as_ptr();
        drop(lent);
        let again = buffers.lend(4096);
        assert_eq!(again.as_ref().as_ptr(), first);
        // A little more or less changes nothing.
        buffers.keep(120 << 10);
        buffers.keep(40 << 10);
        assert!(pooled(&buffers.lend(32 << 10)));
        buffers.keep(3 << 10);
        assert!(!pooled(&buffers.lend(1)));
        buffers.keep(1 << 20);
        assert!(pooled(&buffers.lend(1 << 20)));
        // Those that outlive it keep their memory.
        drop(buffers);
        assert_eq!((again.as_ref().len(), own.as_ref()), (4096, &[7][..]));
    }

    #[test]
    fn memory_is_provided_once_and_when_it_is_wanted() {
        for (kept, pieces) in [(0, 0), (3 << 20, 0), (9 << 20, 2), (64 << 20, PROVIDED_PIECES)] {
            let buffers = Buffers::new(kept);
            assert!(!buffers.is_wanted() && !buffers.provide(|| {}));
            assert!(buffers.want() && buffers.is_wanted());
            let steps = std::iter::from_fn(|| buffers.provide(|| {}).then_some(())).count();
            assert!(steps == pieces && !buffers.is_wanted(), "{steps} of {kept}");
            assert!(!buffers.want() && !buffers.provide(|| {}));
            let free = (length(kept) >= SHORTEST_BUFFER_BYTES).then(|| buffers.lend(length(kept)));
            assert!(free.is_none_or(|all| matches!(all.memory, Memory::Pooled(_))), "some of {kept} is kept");
        }
    }
}
