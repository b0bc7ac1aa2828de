//! Pieces: key-value parts, value parts and node headers, encoded, written together, read and verified.

mod locator;

pub(crate) use locator::Locator;
