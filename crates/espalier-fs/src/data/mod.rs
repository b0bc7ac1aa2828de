//! The data of regular files: blocks, holes, sizes.

pub(crate) mod file_data;
