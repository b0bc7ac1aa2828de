//! Tree policy: what a change of a tree may take beyond what it must, as an argument of the change.

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
    /// The policy while there is plenty of space.
    pub(crate) const PLENTY: Self =
        Self { low_space: false, closing: false, value_quota: 256, unmerged_bytes: 0 };

    /// What to gather when a leaf is written anyway: nothing when space is low, as a checkpoint may
    /// depend on the flush, and nothing when the store is being closed: one step may concern many
    /// leaves, and gathering takes a read for each value.
    pub(crate) fn gathering(self) -> Gathering {
        if self.low_space || self.closing { Gathering::Nothing } else { Gathering::Scattered }
    }
}
