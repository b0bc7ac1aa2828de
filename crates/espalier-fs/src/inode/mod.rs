//! Inodes in memory and what a single inode has: attributes, extended attributes, ownership.

pub(crate) mod attributes;
pub(crate) mod key_lengths;
pub(crate) mod mtime_hold;
pub(crate) mod node;
pub(crate) mod ownership;
pub(crate) mod pending_changes;
pub(crate) mod tree_lock;
pub(crate) mod xattr;
