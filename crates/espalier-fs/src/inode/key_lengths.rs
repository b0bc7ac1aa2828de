//! How long keys are: a bound for all of a volume, so that a directory can move or be cloned
//! without a look at every name below it.
//!
//! `bound` is at least the length of every key of the metadata index. It follows what is made and
//! moved, and is stored in steps of powers of two, before a key passes what is stored. Moves can
//! only make it grow, so when it has become useless it is measured anew, beside the work.

use crate::file_system::FileSystem;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout::{self, METADATA};
use espalier_engine::{IndexId, KeyRange};
use parking_lot::Mutex;

/// The least bound that is stored, in bytes.
const LEAST_STORED: u64 = 4096;

/// The bound of a volume.
pub(crate) struct Lengths(Mutex<State>);

struct State {
    /// No key is longer; `u64::MAX`: nobody knows.
    bound: u64,
    /// What the volume's state says, at least `bound`.
    stored: u64,
    /// The longest key since measuring began.
    recent: u64,
    /// What was measured last.
    measured: u64,
}

impl Lengths {
    /// With what the volume's state says.
    pub(crate) fn new(stored: Option<u64>) -> Self {
        let bound = stored.unwrap_or(u64::MAX);
        Self(Mutex::new(State { bound, stored: bound, recent: 0, measured: 0 }))
    }

    /// What the volume's state is to say.
    pub(crate) fn stored(&self) -> Option<u64> {
        Some(self.0.lock().stored).filter(|s| *s != u64::MAX)
    }

    /// The volume's state says so from now on.
    pub(crate) fn set_stored(&self, stored: u64) {
        self.0.lock().stored = stored;
    }
}

impl FileSystem {
    /// Takes note that a key of `length` bytes is about to be made.
    pub(crate) fn note_length(&self, length: usize) -> Result<()> {
        let length = length as u64;
        {
            let mut state = self.lengths.0.lock();
            state.recent = state.recent.max(length);
            if length <= state.stored {
                state.bound = state.bound.max(length);
                return Ok(());
            }
        }
        let enough = length.next_power_of_two().max(LEAST_STORED);
        self.store_longest_key(|stored| stored.map_or(u64::MAX, |stored| stored.max(enough)))?;
        let mut state = self.lengths.0.lock();
        state.bound = state.bound.max(length);
        Ok(())
    }

    /// Refuses to give everything below content prefix `old` the content prefix `new` if a key
    /// would become too long. `below` is looked at only if the bound does not tell. The caller
    /// holds the exclusive tree lock.
    pub(crate) fn check_lengths(&self, old: &[u8], new: &[u8]) -> Result<()> {
        let (old_len, new_len) = (old.len() as u64, new.len() as u64);
        let bound = self.lengths.0.lock().bound;
        let longest = bound.saturating_sub(old_len).saturating_add(new_len);
        if new_len <= old_len {
            return Ok(());
        }
        if longest.saturating_add(KEY_SUFFIX as u64) <= self.max_key() as u64 {
            return self.note_length(longest as usize);
        }
        let mut cursor = self.volume.store.cursor(self.volume.metadata(), layout::content_range(old))?;
        let mut longest = 0;
        while let Some(entry) = cursor.next()? {
            longest = longest.max(entry.key.len() - old.len() + new.len());
            if longest + KEY_SUFFIX > self.max_key() {
                return fail(
                    FsErrorKind::NameTooLong,
                    format!("a path below the directory would take {longest} bytes"),
                );
            }
        }
        self.note_length(longest)
    }

    /// Measures the bound anew if it has become so large that moves have to look at everything.
    /// Called without locks.
    pub(crate) fn measure_lengths(&self) -> Result<()> {
        let useful = self.max_key() as u64 / 2;
        let wanted = |state: &State| state.bound > useful && state.bound - useful > state.measured;
        if !wanted(&self.lengths.0.lock()) {
            return Ok(());
        }
        let snapshot = {
            // What was noted is then committed, or counts as recent.
            let _tree = self.tree.exclusive();
            self.lengths.0.lock().recent = 0;
            self.volume.store.snapshot()?
        };
        let metadata = IndexId { volume: self.volume.id, index: METADATA };
        let mut cursor = snapshot.cursor(metadata, KeyRange::all())?;
        let mut longest = 0;
        while let Some(entry) = cursor.next()? {
            longest = longest.max(entry.key.len() as u64);
        }
        self.store_longest_key(|_| {
            let mut state = self.lengths.0.lock();
            state.measured = longest;
            state.bound = longest.max(state.recent);
            let new = state.bound.next_power_of_two().max(LEAST_STORED);
            // A smaller one holds before it is stored, a larger one afterwards.
            state.stored = state.stored.min(new);
            new
        })
        .map(drop)
    }
}

/// What a key may need behind the key of an entry: block number, attribute name, content.
pub(crate) const KEY_SUFFIX: usize = 2 * crate::model::types::MAX_NAME + 16;

#[cfg(test)]
mod tests {
    use crate::test_support;

    #[test]
    fn what_could_not_be_stored_is_not_taken_for_stored() {
        let (store, _, fs) = test_support::empty();
        fs.note_length(5000).unwrap();
        assert_eq!(fs.lengths.stored(), Some(8192));
        store.close().unwrap();
        assert!(fs.note_length(10_000).is_err());
        assert_eq!(fs.lengths.stored(), Some(8192));
        // Of the same length or less: it must not pass because of the one before.
        assert!(fs.note_length(10_000).is_err());
        fs.note_length(8000).unwrap();
    }
}
