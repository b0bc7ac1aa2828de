//! The mounted volume: its indexes and options, the tree lock, and the records that all share.

pub(crate) mod change_journal;
pub(crate) mod comparison_cache;
pub(crate) mod context;
pub(crate) mod directory_keys;
pub(crate) mod key_length_bound;
pub(crate) mod link_index;
pub(crate) mod mtime_hold;
pub(crate) mod state_record;
pub(crate) mod tree_lock;
