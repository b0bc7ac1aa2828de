//! Page-aligned buffers cut out of one piece of memory that all threads share.
//!
//! Memory that is used for the first time has to be cleared, and a guest has to get it from its
//! host before, which takes longer than reading into it. An allocator gives each thread memory of
//! its own, so threads that read for one another use far more of it than is in use at any time.
//! Here the lowest place that is long enough is always taken, for every thread, so what was used
//! before is used again.
//!
//! Invariant: places that are free or taken do not overlap, and cover the pool; two halves of one
//! place are never both free.

use crate::BLOCK;
use espalier_sync::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::collections::BTreeSet;
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

/// The length of memory that a system may have in one piece, and to a multiple of which it lies
/// then.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Memory to cut buffers out of.
pub struct BufferPool {
    memory: Mapping,
    /// Of that, where the pool begins, and its bytes.
    start: NonNull<u8>,
    bytes: usize,
    /// Bytes of the shortest place: the places of the next row are twice as long.
    least: usize,
    /// For each length, where places are free: their distance from the start in bytes.
    free: Mutex<Vec<BTreeSet<usize>>>,
}

// SAFETY: the pool gives access to its memory only through buffers, each of which has its place for
// itself.
unsafe impl Send for BufferPool {}
// SAFETY: as above; the list of places is behind a lock.
unsafe impl Sync for BufferPool {}

/// A buffer of a pool, which takes its place back when the buffer is dropped.
pub struct PooledBuf {
    pool: Arc<BufferPool>,
    place: Range<usize>,
}

impl BufferPool {
    /// A pool of `bytes`, cut into places of `least` bytes, or twice as many, or twice those, up to
    /// all of it. Memory that was never used takes none of the system's.
    ///
    /// # Errors
    /// There is no room for it.
    ///
    /// # Panics
    /// If one of them is no power of two, `bytes` are fewer than `least`, or these fewer than a
    /// block.
    pub fn new(bytes: usize, least: usize) -> io::Result<Arc<Self>> {
        assert!(bytes.is_power_of_two() && least.is_power_of_two(), "{bytes} in places of {least}");
        assert!(bytes >= least && least >= BLOCK, "{bytes} in places of {least}");
        let memory = Mapping::new(bytes)?;
        let start = memory.long_pages();
        let mut free = vec![BTreeSet::new(); row(bytes, least) + 1];
        free[row(bytes, least)].insert(0);
        Ok(Arc::new(Self { memory, start, bytes, least, free: Mutex::new(free) }))
    }

    /// A buffer of `bytes`, or of as many as the next longer place has; what is in it is arbitrary.
    /// `None` if no place is free that is long enough.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<PooledBuf> {
        let wanted = row(bytes.max(self.least).next_power_of_two(), self.least);
        let mut free = self.free.lock();
        // The lowest of all that are long enough, whatever is left of it.
        let (start, found) = (wanted..free.len()).filter_map(|row| Some((*free[row].first()?, row))).min()?;
        free[found].remove(&start);
        for row in wanted..found {
            free[row].insert(start + (self.least << row));
        }
        Some(PooledBuf { pool: Arc::clone(self), place: start..start + (self.least << wanted) })
    }

    /// Its bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn give_back(&self, place: &Range<usize>) {
        let mut free = self.free.lock();
        let (mut start, mut at) = (place.start, row(place.len(), self.least));
        // All of the pool has no other half.
        while at + 1 < free.len() && free[at].remove(&(start ^ (self.least << at))) {
            start &= !(self.least << at);
            at += 1;
        }
        free[at].insert(start);
    }
}

/// Memory of the system, zeroed.
struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    /// Room for `bytes` wherever they begin.
    fn new(bytes: usize) -> io::Result<Self> {
        let length = bytes.checked_add(HUGE_PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that is not in use.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, access, MapFlags::PRIVATE)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }

    /// Where its first long page begins. Asks the system for such pages.
    fn long_pages(&self) -> NonNull<u8> {
        let skip = self.start.as_ptr().align_offset(HUGE_PAGE_BYTES).min(HUGE_PAGE_BYTES);
        // SAFETY: a mapping is longer than that.
        let start = unsafe { self.start.add(skip) };
        // SAFETY: it lies in the mapping, and what that holds stays as it is.
        let asked = unsafe { madvise(start.as_ptr().cast(), self.length - skip, Advice::LinuxHugepage) };
        if let Err(error) = asked {
            tracing::debug!(%error, "buffers have short pages");
        }
        start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and no buffer refers to it any more.
        if let Err(error) = unsafe { munmap(self.start.as_ptr().cast(), self.length) } {
            tracing::debug!(%error, "buffers could not be unmapped");
        }
    }
}

/// Which row has places of `bytes`.
fn row(bytes: usize, least: usize) -> usize {
    (bytes / least).trailing_zeros() as usize
}

impl Deref for PooledBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the place lies in the pool's memory, which was zeroed, and is this buffer's until
        // it is dropped.
        unsafe {
            std::slice::from_raw_parts(self.pool.start.as_ptr().add(self.place.start), self.place.len())
        }
    }
}

impl DerefMut for PooledBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed exclusively.
        unsafe {
            std::slice::from_raw_parts_mut(self.pool.start.as_ptr().add(self.place.start), self.place.len())
        }
    }
}

impl Drop for PooledBuf {
    fn drop(&mut self) {
        self.pool.give_back(&self.place);
    }
}

impl std::fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BufferPool({} bytes of {})", self.bytes, self.memory.length)
    }
}

impl std::fmt::Debug for PooledBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PooledBuf({:?})", self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    const MIN_BUFFER_BYTES: usize = BLOCK;

    fn free(pool: &BufferPool) -> Vec<Vec<usize>> {
        pool.free.lock().iter().map(|row| row.iter().copied().collect()).collect()
    }

    #[test]
    fn the_lowest_place_is_taken_and_halves_become_one_again() {
        let pool = BufferPool::new(8 * MIN_BUFFER_BYTES, MIN_BUFFER_BYTES).unwrap();
        let one = pool.take(1).unwrap();
        let two = pool.take(MIN_BUFFER_BYTES + 1).unwrap();
        let other = pool.take(MIN_BUFFER_BYTES).unwrap();
        assert_eq!(
            [&one, &two, &other].map(|buffer| buffer.place.start),
            [0, 2 * MIN_BUFFER_BYTES, MIN_BUFFER_BYTES]
        );
        assert_eq!([one.len(), two.len()], [MIN_BUFFER_BYTES, 2 * MIN_BUFFER_BYTES]);
        assert!(pool.take(4 * MIN_BUFFER_BYTES).is_some_and(|four| four.place.start == 4 * MIN_BUFFER_BYTES));
        assert!(pool.take(8 * MIN_BUFFER_BYTES).is_none() && pool.take(9 * MIN_BUFFER_BYTES).is_none());
        drop(one);
        // Rather the lowest place than one that need not be cut.
        drop(two);
        let again = pool.take(MIN_BUFFER_BYTES).unwrap();
        assert_eq!(again.place.start, 0);
        drop((again, other));
        assert_eq!(free(&pool), [vec![], vec![], vec![], vec![0]]);
    }

    #[test]
    fn buffers_have_their_places_for_themselves() {
        let pool = BufferPool::new(64 * MIN_BUFFER_BYTES, MIN_BUFFER_BYTES).unwrap();
        let mut random = Random::new(7);
        let mut held: Vec<(PooledBuf, u8)> = Vec::new();
        for step in 0..20_000 {
            let fill = step as u8;
            if random.below(2) == 0 {
                let bytes = 1 + random.below(9 * MIN_BUFFER_BYTES as u64) as usize;
                if let Some(mut buffer) = pool.take(bytes) {
                    assert!(buffer.len() >= bytes && buffer.as_ptr().addr().is_multiple_of(BLOCK));
                    let taken = |other: &(PooledBuf, u8)| {
                        other.0.place.start < buffer.place.end && buffer.place.start < other.0.place.end
                    };
                    assert!(!held.iter().any(taken), "{buffer:?} is in use already");
                    buffer.fill(fill);
                    held.push((buffer, fill));
                }
            } else if !held.is_empty() {
                let (buffer, fill) = held.swap_remove(random.below(held.len() as u64) as usize);
                assert!(buffer.iter().all(|byte| *byte == fill));
            }
            let places: usize =
                free(&pool).iter().enumerate().map(|(row, at)| at.len() * (MIN_BUFFER_BYTES << row)).sum();
            assert_eq!(places + held.iter().map(|(buffer, _)| buffer.len()).sum::<usize>(), pool.bytes());
        }
        held.clear();
        assert_eq!(free(&pool).last(), Some(&vec![0]));
    }
}
