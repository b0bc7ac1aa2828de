//! The tree: nodes, queries, flushing.
pub(crate) mod source;
