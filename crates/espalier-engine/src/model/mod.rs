//! The vocabulary of the engine: keys, operations, values, views, batches, errors.

pub(crate) mod batch;
pub(crate) mod error;
pub(crate) mod ids;
pub mod key;
pub(crate) mod key_ranges;
pub(crate) mod logged_op;
pub(crate) mod op;
pub(crate) mod options;
pub(crate) mod piece;
pub(crate) mod value;
pub(crate) mod value_reader;
pub mod view;
