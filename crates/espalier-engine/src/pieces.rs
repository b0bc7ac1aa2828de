//! Pieces: key-value parts, value parts and node headers, encoded, written together, read and verified.

mod filter;
mod frame;
mod locator;
mod part;
pub(crate) mod wire;

pub(crate) use filter::Filter;
pub(crate) use frame::Encoded;
pub(crate) use locator::Locator;
pub(crate) use part::{Part, PartBuilder, PartCursor};
