//! Changes of a tree: each computes a new root from an old one.
//!
//! A [`TreeEditor`](editor::TreeEditor) makes them under a
//! [`TreePolicy`](crate::tree::policy::TreePolicy), which says what an operation may take while
//! space is low.

mod absorb;
mod clone;
mod compact;
pub(super) mod editor;
mod flush;
mod gather;
mod graft;
mod leaf;
#[cfg(test)]
mod plain;
mod rebuild;
pub(super) mod relocate;
mod run_merge;
mod slice;
