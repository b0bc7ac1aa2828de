//! The editor of a tree: computes new trees from old ones under a policy.

use crate::tree::policy::TreePolicy;
use crate::tree::trees::Trees;
use std::sync::Arc;

/// Computes new trees from old ones under a [`TreePolicy`]. Its methods are in the files of the
/// operations; what they share and needs no policy are functions ([`rebuild`](super::rebuild)).
#[derive(Clone, Copy)]
pub(crate) struct TreeEditor<'a> {
    pub(super) trees: &'a Arc<Trees>,
    pub(super) policy: TreePolicy,
}

impl Trees {
    /// An editor of these trees.
    pub(crate) fn edit(self: &Arc<Self>, policy: TreePolicy) -> TreeEditor<'_> {
        TreeEditor { trees: self, policy }
    }
}
