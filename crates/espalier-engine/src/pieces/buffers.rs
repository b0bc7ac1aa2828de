//! Buffers that are used again and again: memory that goes back to the system and comes again has to be cleared
//! each time, which takes as long as reading into it.

use espalier_storage::AlignedBuf;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

/// The shortest buffer, in bytes; the others are twice as long each time.
const SHORTEST: usize = 16 << 10;

/// Buffers that nobody uses, by length.
pub(super) struct Buffers {
    /// Bytes of each length that are kept.
    kept: AtomicUsize,
    idle: Mutex<Vec<Vec<AlignedBuf>>>,
}

/// A buffer that goes back when it is dropped; its first bytes.
pub(super) struct Lent {
    /// Always there until then.
    buffer: Option<AlignedBuf>,
    used: usize,
    home: Weak<Buffers>,
}

impl Buffers {
    /// Buffers of which `kept` bytes of each length up to `longest` bytes are kept.
    pub(super) fn new(longest: usize, kept: usize) -> Arc<Self> {
        let lengths = class(longest) + 1;
        let idle = Mutex::new((0..lengths).map(|_| Vec::new()).collect());
        Arc::new(Self { kept: kept.into(), idle })
    }

    /// The bytes that a buffer for `used` bytes takes.
    pub(super) fn cost(used: usize) -> u64 {
        (SHORTEST << class(used)) as u64
    }

    /// A buffer for `used` bytes; what is in it is arbitrary.
    pub(super) fn lend(self: &Arc<Self>, used: usize) -> Lent {
        let idle = self.idle.lock().get_mut(class(used)).and_then(Vec::pop);
        let buffer = idle.unwrap_or_else(|| AlignedBuf::zeroed(SHORTEST << class(used)));
        Lent { buffer: Some(buffer), used, home: Arc::downgrade(self) }
    }

    /// Gives up what nobody uses, and from now on keeps `kept` bytes of each length.
    pub(super) fn keep(&self, kept: usize) {
        self.kept.store(kept, Ordering::Relaxed);
        self.idle.lock().iter_mut().for_each(Vec::clear);
    }
}

/// Which of the lengths holds `used` bytes.
fn class(used: usize) -> usize {
    (used.max(SHORTEST).next_power_of_two() / SHORTEST).trailing_zeros() as usize
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.buffer.as_ref().map_or(&[], |buffer| &buffer[..self.used])
    }
}

impl AsMut<[u8]> for Lent {
    fn as_mut(&mut self) -> &mut [u8] {
        self.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer[..self.used])
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(buffer), Some(home)) = (self.buffer.take(), self.home.upgrade()) {
            let mut idle = home.idle.lock();
            let idle = idle.get_mut(class(self.used));
            let kept = home.kept.load(Ordering::Relaxed);
            if let Some(idle) = idle.filter(|idle| (idle.len() + 1) * buffer.len() <= kept) {
                idle.push(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back_as_far_as_they_are_kept() {
        assert_eq!([0, 1, 16 << 10, (16 << 10) + 1, 512 << 10].map(class), [0, 0, 0, 1, 5]);
        assert_eq!(Buffers::cost(40_000), 64 << 10);
        let buffers = Buffers::new(512 << 10, 64 << 10);
        let idle = || buffers.idle.lock().iter().map(Vec::len).collect::<Vec<_>>();
        let lent: Vec<Lent> =
            [4096, 0, 30_000, 40_000, 60_000, 512 << 10].map(|used| buffers.lend(used)).into();
        assert!(lent.iter().all(|lent| lent.as_ref().len() == lent.used));
        drop(lent);
        assert_eq!(idle(), [2, 1, 1, 0, 0, 0]);
        let mut again = buffers.lend(4096);
        again.as_mut().fill(7);
        assert_eq!(idle(), [1, 1, 1, 0, 0, 0]);
        buffers.keep(0);
        assert_eq!(idle(), [0; 6]);
        drop(buffers.lend(4096));
        assert_eq!(idle(), [0; 6]);
        // One that is longer than any that are kept.
        buffers.keep(4 << 20);
        let long = buffers.lend(3 << 20);
        assert_eq!(long.as_ref().len(), 3 << 20);
        drop(long);
        assert_eq!(idle(), [0; 6]);
        // One that outlives its home goes nowhere.
        drop(buffers);
        assert_eq!(again.as_ref(), [7; 4096]);
    }
}
