//! Inodes in memory and in the store: nodes, their table, ownership marks, times of the last read.

pub(crate) mod access_times;
pub(crate) mod forgotten;
pub(crate) mod growth_gate;
pub(crate) mod inode_store;
pub(crate) mod limits;
pub(crate) mod names;
pub(crate) mod node;
pub(crate) mod node_id;
pub(crate) mod node_table;
pub(crate) mod ownership;
pub(crate) mod ownership_walk;
pub(crate) mod pending_changes;
pub(crate) mod saved_locations;
pub(crate) mod tree_check;
