//! What a change of a tree may take beyond what it must.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

/// How a tree may be changed.
///
/// While space is low an operation does no more at a time than it must: it merges, gathers and
/// writes ahead nothing, so that it takes no space before the next checkpoint that it could do
/// without, and a flush that does not fit can be given up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TreePolicy {
    /// Space is low.
    pub(crate) low_space: bool,
    /// The store is being closed: operations leave out what need not be done.
    pub(crate) closing: bool,
    /// How much of a leaf, in 256ths, may be on its way to it in large values: what they replace
    /// takes space until they have come down, so this depends on how much space is left.
    pub(crate) value_quota: u64,
    /// While less than this is dirty, runs may pile up on an edge: recovery leaves them to the
    /// flushes that follow.
    pub(crate) unmerged_bytes: usize,
}

/// Which values are read and written again while a leaf is written. That takes room for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gathering {
    /// None.
    Nothing,
    /// All of a leaf that lie in too many value parts.
    Scattered,
    /// Those in value parts that are to be emptied, for little of them is live.
    Sparse,
}

impl TreePolicy {
    /// What to gather when a leaf is written anyway: nothing when space is low, as a checkpoint may
    /// depend on the flush, and nothing when the store is being closed: one step may concern many
    /// leaves, and gathering takes a read for each value.
    pub(crate) fn gathering(self) -> Gathering {
        if self.low_space || self.closing { Gathering::Nothing } else { Gathering::Scattered }
    }
}

/// What the policy of the moment is made of. Space accounting, recovery and closing set it.
pub(crate) struct PolicySwitches {
    low_space: AtomicBool,
    closing: AtomicBool,
    value_quota: AtomicU64,
    unmerged_bytes: AtomicUsize,
}

impl Default for PolicySwitches {
    fn default() -> Self {
        Self {
            low_space: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            value_quota: AtomicU64::new(256),
            unmerged_bytes: AtomicUsize::new(0),
        }
    }
}

impl PolicySwitches {
    /// The policy of the moment.
    pub(crate) fn policy(&self) -> TreePolicy {
        TreePolicy {
            low_space: self.is_low_space(),
            closing: self.closing.load(Relaxed),
            value_quota: self.value_quota.load(Relaxed),
            unmerged_bytes: self.unmerged_bytes.load(Relaxed),
        }
    }

    /// True if space is low.
    pub(crate) fn is_low_space(&self) -> bool {
        self.low_space.load(Relaxed)
    }

    /// See [`TreePolicy::low_space`].
    pub(crate) fn set_low_space(&self, low: bool) {
        self.low_space.store(low, Relaxed);
    }

    /// See [`TreePolicy::closing`].
    pub(crate) fn set_closing(&self) {
        self.closing.store(true, Relaxed);
    }

    /// See [`TreePolicy::value_quota`].
    pub(crate) fn set_value_quota(&self, quota: u64) {
        self.value_quota.store(quota, Relaxed);
    }

    /// See [`TreePolicy::unmerged_bytes`].
    pub(crate) fn set_unmerged_bytes(&self, bytes: usize) {
        self.unmerged_bytes.store(bytes, Relaxed);
    }
}
