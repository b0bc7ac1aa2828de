//! The key length bound: a number that no key of the volume's metadata index exceeds, so that a
//! directory can move or be cloned without a look at every name below it.
//!
//! The bound follows the keys that are made and moved, and is stored in steps of powers of two,
//! before a key passes the stored bound. Moves can only make it grow, so when it has become useless
//! it is measured anew, in the background.

/// The least bound that is stored, in bytes.
const STORED_BOUND_MIN_BYTES: u64 = 4096;

pub(crate) struct KeyLengthBound {
    /// No key is longer; `u64::MAX`: not known.
    bound: u64,
    /// The bound in the volume's state record, at least `bound`.
    stored: u64,
    /// The longest key since measuring began.
    recent: u64,
    /// The result of the last measurement.
    measured: u64,
}

impl KeyLengthBound {
    /// `stored`: the bound in the volume's state record.
    pub(crate) fn new(stored: Option<u64>) -> Self {
        let bound = stored.unwrap_or(u64::MAX);
        Self { bound, stored: bound, recent: 0, measured: 0 }
    }

    pub(crate) fn bound(&self) -> u64 {
        self.bound
    }

    /// The bound for the volume's state record.
    pub(crate) fn stored(&self) -> Option<u64> {
        Some(self.stored).filter(|stored| *stored != u64::MAX)
    }

    /// The volume's state record has this bound now.
    pub(crate) fn set_stored(&mut self, stored: u64) {
        self.stored = stored;
    }

    /// Notes a key that is about to be made. True if the stored bound covers it; otherwise a
    /// greater one has to be stored before [`KeyLengthBound::raise`].
    pub(crate) fn note(&mut self, length: u64) -> bool {
        self.recent = self.recent.max(length);
        let covered = length <= self.stored;
        if covered {
            self.raise(length);
        }
        covered
    }

    /// No bound is below `length` any more.
    pub(crate) fn raise(&mut self, length: u64) {
        self.bound = self.bound.max(length);
    }

    /// The bound to store when one that covers keys of `length` is needed.
    pub(crate) fn stored_to_cover(&self, length: u64) -> u64 {
        let enough = length.next_power_of_two().max(STORED_BOUND_MIN_BYTES);
        self.stored().map_or(u64::MAX, |stored| stored.max(enough))
    }

    /// True if the bound is above `useful` and keys were not that long when they were last
    /// measured.
    pub(crate) fn is_worth_measuring(&self, useful: u64) -> bool {
        self.bound > useful && self.bound - useful > self.measured
    }

    /// A measurement begins. Keys noted before are committed, and the measurement will see them.
    pub(crate) fn begin_measurement(&mut self) {
        self.recent = 0;
    }

    /// Takes over the longest key that a measurement found; returns the bound to store.
    pub(crate) fn end_measurement(&mut self, longest: u64) -> u64 {
        self.measured = longest;
        self.bound = longest.max(self.recent);
        let new = self.bound.next_power_of_two().max(STORED_BOUND_MIN_BYTES);
        // A smaller bound holds before it is stored, a larger one afterwards.
        self.stored = self.stored.min(new);
        new
    }
}
