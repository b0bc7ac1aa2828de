//! The data of regular files: blocks, holes, sizes.

pub(crate) mod blocks;
pub(crate) mod data_reader;
pub(crate) mod file_data;
