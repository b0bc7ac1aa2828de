//! The volume's state record: inode numbers that are set aside, the key length bound, and which
//! flags any object may have.
//!
//! Inode numbers are set aside durably, many at a time, before an inode that is stored can carry
//! one; so are flags, once for all. The record holds all three, so one component writes it. Locks:
//! numbers before bound.

use crate::lock_order::{Rank, RankedMutex};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::VolumeState;
use crate::model::types::{FileFlags, MAX_KEY, MAX_NAME};
use crate::volume::context::VolumeContext;
use crate::volume::key_length_bound::KeyLengthBound;
use crate::volume::tree_lock::TreeLock;
use espalier_engine::{Batch, KeyRange};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The first number that is given out; the ones before are the root's and reserved.
pub(crate) const FIRST_INODE_NUMBER: u64 = 16;
/// Inode numbers that are set aside at a time.
const INODE_NUMBERS_PER_RESERVATION: u64 = 1 << 16;
/// As many numbers there are with 32 bits.
const NARROW_NUMBERS: u64 = 1 << 32;
/// Bytes that a key may need behind the key of an entry: block number, attribute name, content.
const KEY_SUFFIX_BYTES: usize = 2 * MAX_NAME + 16;

pub(crate) struct VolumeStateRecord {
    volume: Arc<VolumeContext>,
    tree: Arc<TreeLock>,
    numbers: RankedMutex<InodeNumbers>,
    lengths: RankedMutex<KeyLengthBound>,
    /// Flags that some object has, or had. Written under the lock of the numbers.
    flags: AtomicU32,
}

/// Inode numbers: `next` is given out next; those below `limit` are set aside durably.
struct InodeNumbers {
    next: u64,
    limit: u64,
}

impl VolumeStateRecord {
    pub(crate) fn open(volume: Arc<VolumeContext>, tree: Arc<TreeLock>) -> Result<Self> {
        let Some(state) = volume.store.get(volume.metadata(), layout::STATE_KEY)? else {
            return fail(FsErrorKind::Io, format!("volume {:?} has no state record", volume.options.volume));
        };
        let state = VolumeState::decode(&state)?;
        let numbers = InodeNumbers { next: state.next_number, limit: state.next_number };
        Ok(Self {
            volume,
            tree,
            numbers: RankedMutex::new(Rank::Numbers, numbers),
            lengths: RankedMutex::new(Rank::KeyLengths, KeyLengthBound::new(state.longest_key)),
            flags: AtomicU32::new(state.flags_used.0),
        })
    }

    /// A number that no inode of the volume has or had.
    pub(crate) fn fresh_number(&self) -> Result<u64> {
        let mut numbers = self.numbers.lock();
        if numbers.next == numbers.limit {
            self.raise_limit(&mut numbers, 1)?;
        }
        numbers.next += 1;
        Ok(numbers.next - 1)
    }

    /// The first of `count` numbers in sequence that no inode of the volume has or had.
    pub(crate) fn set_aside(&self, count: u64) -> Result<u64> {
        let mut numbers = self.numbers.lock();
        if numbers.limit - numbers.next < count {
            self.raise_limit(&mut numbers, count)?;
        }
        numbers.next += count;
        Ok(numbers.next - count)
    }

    /// Sets numbers aside durably, so that `count` can be given out.
    fn raise_limit(&self, numbers: &mut InodeNumbers, count: u64) -> Result<()> {
        let most = if self.volume.options.narrow_numbers { NARROW_NUMBERS } else { u64::MAX };
        let Some(needed) = numbers.next.checked_add(count).filter(|needed| *needed <= most) else {
            let message = "there are not enough inode numbers below 2^32 left; without -o inode32 there are";
            return fail(FsErrorKind::NoSpace, message);
        };
        let limit = needed.max(numbers.limit.saturating_add(INODE_NUMBERS_PER_RESERVATION)).min(most);
        let longest_key = self.lengths.lock().stored();
        self.store(VolumeState { next_number: limit, longest_key, flags_used: self.flags_used() })?;
        numbers.limit = limit;
        Ok(())
    }

    /// The record for an image of the volume: no number from its first on was given out.
    pub(crate) fn current(&self) -> VolumeState {
        let numbers = self.numbers.lock();
        let longest_key = self.lengths.lock().stored();
        VolumeState { next_number: numbers.limit, longest_key, flags_used: self.flags_used() }
    }

    fn flags_used(&self) -> FileFlags {
        FileFlags(self.flags.load(Ordering::Acquire))
    }

    /// True if an object of the volume may have one of these flags.
    pub(crate) fn may_have(&self, flags: FileFlags) -> bool {
        self.flags_used().has(flags)
    }

    /// Notes that an object is about to get these flags.
    pub(crate) fn note_flags(&self, flags: FileFlags) -> Result<()> {
        let numbers = self.numbers.lock();
        let flags_used = FileFlags(self.flags_used().0 | flags.0);
        if flags_used == self.flags_used() {
            return Ok(());
        }
        let longest_key = self.lengths.lock().stored();
        self.store(VolumeState { next_number: numbers.limit, longest_key, flags_used })?;
        self.flags.store(flags_used.0, Ordering::Release);
        Ok(())
    }

    fn store(&self, state: VolumeState) -> Result<()> {
        let mut batch = Batch::new();
        batch.insert(self.volume.metadata(), layout::STATE_KEY, state.encode());
        self.volume.commit_internal(batch).map(drop)
    }

    /// Stores the record with the key length bound that `choose` returns.
    fn store_bound(&self, choose: impl FnOnce(&mut KeyLengthBound) -> u64) -> Result<()> {
        let numbers = self.numbers.lock();
        let longest = choose(&mut self.lengths.lock());
        let (longest_key, flags_used) = (Some(longest), self.flags_used());
        self.store(VolumeState { next_number: numbers.limit, longest_key, flags_used })?;
        self.lengths.lock().set_stored(longest);
        Ok(())
    }

    /// The longest key that may be made.
    fn max_key(&self) -> usize {
        self.volume.options.max_key.min(MAX_KEY)
    }

    /// Refuses paths that are too long for keys, and notes that the key is about to be made.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<()> {
        if key.len() + KEY_SUFFIX_BYTES > self.max_key() {
            return fail(FsErrorKind::NameTooLong, format!("the path takes {} bytes", key.len()));
        }
        self.note_key_length(key.len())
    }

    /// Notes that a key of `length` bytes is about to be made.
    pub(crate) fn note_key_length(&self, length: usize) -> Result<()> {
        let length = length as u64;
        if self.lengths.lock().note(length) {
            return Ok(());
        }
        self.store_bound(|bound| bound.stored_to_cover(length))?;
        self.lengths.lock().raise(length);
        Ok(())
    }

    /// Refuses to give everything below content prefix `old` the content prefix `new` if a key
    /// would become too long. Looks at the keys only if the bound does not tell. The caller holds
    /// the exclusive tree lock.
    pub(crate) fn check_move(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let (old_len, new_len) = (old.len() as u64, new.len() as u64);
        if new_len <= old_len {
            return Ok(());
        }
        let longest = self.lengths.lock().bound().saturating_sub(old_len).saturating_add(new_len);
        if longest.saturating_add(KEY_SUFFIX_BYTES as u64) <= self.max_key() as u64 {
            return self.note_key_length(longest as usize);
        }
        let mut cursor = self.volume.store.cursor(self.volume.metadata(), layout::content_range(old))?;
        let mut longest = 0;
        while let Some(entry) = cursor.next()? {
            longest = longest.max(entry.key.len() - old.len() + new.len());
            if longest + KEY_SUFFIX_BYTES > self.max_key() {
                return fail(
                    FsErrorKind::NameTooLong,
                    format!("a path below the directory would take {longest} bytes"),
                );
            }
        }
        self.note_key_length(longest)
    }

    /// Measures the bound anew if it has become so large that moves have to look at everything.
    /// Called without locks.
    pub(crate) fn measure_key_lengths(&self) -> Result<()> {
        if !self.lengths.lock().is_worth_measuring(self.max_key() as u64 / 2) {
            return Ok(());
        }
        let snapshot = {
            // Keys that were noted are committed by then, or count as recent.
            let _tree = self.tree.exclusive();
            self.lengths.lock().begin_measurement();
            self.volume.store.snapshot()?
        };
        let mut cursor = snapshot.cursor(self.volume.metadata(), KeyRange::all())?;
        let mut longest = 0;
        while let Some(entry) = cursor.next()? {
            longest = longest.max(entry.key.len() as u64);
        }
        self.store_bound(|bound| bound.end_measurement(longest))
    }
}

#[cfg(test)]
mod tests;
