//! Walks over trees that change nothing: verification, comparison, space use, dumps, and what can
//! be salvaged of a damaged store.

pub(super) mod compare;
mod dump;
pub(super) mod footprint;
pub(super) mod held;
pub(super) mod salvage;
pub(super) mod shares;
pub(super) mod space_use;
pub(super) mod suspects;
pub(super) mod usage;
pub(super) mod verify;
