//! The tree: a lifted B-epsilon-DAG of immutable nodes [BetrFS 0.4 section 3, BetrFS 0.5 section
//! 3].
//!
//! Protocol: a change takes the current root, computes new nodes from the changed one up to the
//! root, sharing all the rest, and hands back a new root. Readers of an older root notice nothing.
//! Nodes and parts stay in memory until `write` puts them on the device.
//!
//! Invariants are those of `docs/design/tree.md`, "What things denote"; `verify` checks them.
//! Structural code works in the key space of the *parent*: `Node::through` brings a child there,
//! whatever its view, and `Child::attach` takes it back under its lift. So a child that was
//! shared, trimmed or translated becomes simple by being changed, at the cost of its header.

mod codec;
mod expect;
mod inspect;
mod interior;
mod load;
mod memory;
mod node;
mod ops;
mod part_slot;
mod policy;
mod query;
mod run;
mod run_cuts;
mod run_source;
mod run_sums;
pub(crate) mod source;
mod trees;
mod unflushable;
mod write;

pub(crate) use expect::expect;
pub(crate) use inspect::footprint::Footprint;
pub(crate) use inspect::held::AskedRanges;
pub use inspect::held::HeldTally;
pub use inspect::salvage::Loss;
pub(crate) use inspect::salvage::{References, Salvager, keys_without_base, ranges_of_pieces};
pub(crate) use inspect::space_use::Counted;
pub use inspect::space_use::SpaceUse;
pub(crate) use inspect::suspects::Suspects;
pub(crate) use inspect::usage::{Sought, Usage};
pub(crate) use inspect::verify::Verifier;
pub use inspect::verify::{Problem, Progress, VerifyReport};
pub(crate) use memory::TreeMemory;
pub(crate) use node::{MAX_HEIGHT, NodeSlot, Root};
pub(crate) use ops::editor::TreeEditor;
pub(crate) use ops::relocate::Relocation;
pub(crate) use policy::TreePolicy;
pub(crate) use query::{Descent, Toward, find};
pub(crate) use run_source::Reach;
pub(crate) use trees::Trees;
pub(crate) use unflushable::UnflushableEdges;
pub(crate) use write::Written;
