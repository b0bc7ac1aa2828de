//! The tree: a lifted B-epsilon-DAG of immutable nodes [BetrFS 0.4 section 3, BetrFS 0.5 section
//! 3].
//!
//! Protocol: a change takes the current root, computes new nodes from the changed one up to the
//! root, sharing all the rest, and hands back a new root. Nobody who holds an older root notices.
//! Nodes and parts stay in memory until `write` puts them on the device.
//!
//! Invariants are those of the map (`ARCHITECTURE.md`, "What things denote"); `verify` checks them.
//! Structural code works in the key space of the *parent*: `Node::through` brings a child there,
//! whatever its view, and `Child::attach` takes it back under its lift. So a child that was
//! shared, trimmed or translated becomes simple by being changed, at the cost of its header.

mod clone;
mod codec;
mod compact;
mod compare;
mod cut;
mod dump;
mod flush;
mod lasting;
mod leaf;
mod node;
mod query;
mod run_source;
mod slice;
mod slot;
pub(crate) mod source;
mod usage;
mod verify;
mod write;

pub(crate) use compare::Suspects;
pub use cut::Loss;
pub(crate) use cut::{Cutter, References, baseless, deletions, holders};
use flush::Token;
pub(crate) use flush::{Root, Sweep};
pub(crate) use lasting::Lasting;

pub(crate) use query::{Descent, Toward, find};
pub(crate) use slot::NodeSlot;
pub use usage::SpaceUse;
pub(crate) use usage::Usage;
pub(crate) use verify::Verifier;
pub use verify::{Problem, Progress, VerifyReport};
pub(crate) use write::Written;

use crate::model::ids::PieceId;
use crate::model::op::MergeFunctions;
use crate::model::options::{Compression, Tuning};
use crate::pieces::{Locator, Pieces};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

/// What all trees of a store share.
pub(crate) struct Trees {
    pub(crate) pieces: Arc<Pieces>,
    pub(crate) locator: Arc<dyn Locator>,
    pub(crate) merge: MergeFunctions,
    pub(crate) tuning: Tuning,
    pub(crate) compression: Compression,
    /// Bytes in nodes and parts that the device does not have.
    pub(crate) dirty: Arc<AtomicUsize>,
    /// Bytes of large values in memory: on their way to the log, in memtables, or in parts that the
    /// device does not have.
    pub(crate) resident: Arc<AtomicUsize>,
    /// Bytes of large values that the log has written to their place since a commit last looked.
    pub(crate) bound: Arc<AtomicU64>,
    /// How much of a leaf, in 256ths, may be on its way to it in large values: what they replace
    /// takes space until they have come down, so this depends on how much is left.
    pub(crate) patience: AtomicU64,
    /// Messages that memtables have handed on.
    pub(crate) absorbed: AtomicU64,
    /// Value parts that a sweep empties.
    pub(crate) sparse: Mutex<HashSet<PieceId>>,
    /// Edges that could not be flushed since the last checkpoint, as something cannot be read
    /// (`tree/flush`).
    pub(crate) stuck: Mutex<HashMap<usize, Token>>,
    /// Space is short: do no more at a time than must be done.
    pub(crate) lean: AtomicBool,
    /// Somebody waits for the store to be closed: do nothing that need not be done.
    pub(crate) closing: AtomicBool,
    /// While less than this is dirty, runs may pile up on an edge: recovery leaves them to the
    /// flushes that follow.
    pub(crate) unmerged: AtomicUsize,
}
