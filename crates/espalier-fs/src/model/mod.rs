//! The vocabulary of the layer: types of calls, errors, keys, stored records, merge functions.

pub(crate) mod access;
pub(crate) mod acl;
pub(crate) mod describe;
pub(crate) mod error;
pub(crate) mod file_flags;
pub(crate) mod layout;
pub(crate) mod merge;
pub(crate) mod new_file;
pub(crate) mod position;
pub(crate) mod privileges;
pub(crate) mod record;
pub(crate) mod reserved_blocks;
pub(crate) mod tree_limits;
pub(crate) mod types;
pub(crate) mod wire;
