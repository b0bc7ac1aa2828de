//! Calls by path: a caller with rights of its own, paths that are resolved as a whole, and every
//! call of POSIX that takes a path. `docs/design/paths.md` has the semantics and the argument.

pub(crate) mod analyzer;
pub(crate) mod attributes;
pub(crate) mod bulk;
pub(crate) mod caller;
pub(crate) mod calls;
pub(crate) mod changes;
pub(crate) mod filter;
pub(crate) mod handle;
pub(crate) mod place;
pub(crate) mod resolver;
pub(crate) mod trees;
pub(crate) mod write_many;
