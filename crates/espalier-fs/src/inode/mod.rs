//! Inodes in memory and in the store, and what a single inode has: attributes, extended attributes,
//! ownership, references.

pub(crate) mod access_times;
pub(crate) mod attr_reader;
pub(crate) mod attributes;
pub(crate) mod inode_store;
pub(crate) mod key_length_bound;
pub(crate) mod mtime_hold;
pub(crate) mod names;
pub(crate) mod node;
pub(crate) mod node_table;
pub(crate) mod ownership;
pub(crate) mod pending_changes;
pub(crate) mod references;
pub(crate) mod tree_lock;
pub(crate) mod volume_state;
pub(crate) mod xattr;
