//! The data of one file in the data index.

pub(crate) mod blocks;
pub(crate) mod data_reader;
pub(crate) mod reservation;
