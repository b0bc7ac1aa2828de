//! Changes of a tree: each computes a new root from an old one.

pub(super) mod clone;
pub(super) mod compact;
pub(super) mod flush;
pub(super) mod leaf;
pub(super) mod slice;
