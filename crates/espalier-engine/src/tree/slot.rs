//! Slots: the place of one version of a node or part, in memory or on the device.
//!
//! A slot is filled once in memory and becomes *stored* once; what it holds never changes. Versions
//! of nodes share slots, so whoever writes one writes it for all.

use super::Trees;
use super::node::Node;
use crate::model::ids::Reference;
use crate::model::key::Key;
use crate::model::piece::PieceHandle;
use crate::pieces::{Filter, Part};
use crate::{Error, Result};
use parking_lot::RwLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Adds to a count of dirty bytes while it lives.
pub(crate) struct Charge {
    total: Arc<AtomicUsize>,
    bytes: usize,
}

impl Charge {
    fn new(total: &Arc<AtomicUsize>, bytes: usize) -> Self {
        total.fetch_add(bytes, Relaxed);
        Self { total: total.clone(), bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.total.fetch_sub(self.bytes, Relaxed);
    }
}

/// What a header says of a part without reading it. Keys are in the part's own key space.
#[derive(Clone)]
pub(crate) struct Summary {
    pub(crate) first: Key,
    pub(crate) last: Key,
    pub(crate) entries: u32,
    /// Bytes of the part's body.
    pub(crate) bytes: u32,
    /// Bytes of the large values it refers to.
    pub(crate) value_bytes: u64,
    pub(crate) filter: Filter,
}

impl Summary {
    pub(crate) fn of(part: &Part) -> Self {
        Self {
            first: part.first_key().into(),
            last: part.last_key().into(),
            entries: part.len() as u32,
            bytes: part.memory() as u32,
            value_bytes: part.value_bytes(),
            filter: part.filter().clone(),
        }
    }
}

/// The place of a key-value part.
pub(crate) struct PartSlot {
    pub(crate) summary: Summary,
    state: RwLock<PartState>,
}

enum PartState {
    Memory(Arc<Part>, #[allow(dead_code, reason = "counts while it is here")] Charge),
    Stored(StoredPart),
}

/// A part on the device, and the value parts that its entries lie in, with the bytes they have
/// there.
#[derive(Clone)]
pub(crate) struct StoredPart {
    pub(crate) handle: Arc<PieceHandle>,
    pub(crate) values: Arc<[Reference]>,
}

impl PartSlot {
    /// A part just made.
    pub(crate) fn new(trees: &Trees, part: Part) -> Arc<Self> {
        let summary = Summary::of(&part);
        part.values().iter().filter(|v| !v.is_stored()).for_each(|v| v.charge(&trees.resident));
        let charge = Charge::new(&trees.dirty, part.memory());
        Arc::new(Self { summary, state: RwLock::new(PartState::Memory(Arc::new(part), charge)) })
    }

    /// A part that a header names.
    pub(crate) fn stored(summary: Summary, stored: StoredPart) -> Arc<Self> {
        Arc::new(Self { summary, state: RwLock::new(PartState::Stored(stored)) })
    }

    /// Where the part lies, if it is on the device.
    pub(crate) fn place(&self) -> Option<StoredPart> {
        match &*self.state.read() {
            PartState::Memory(..) => None,
            PartState::Stored(stored) => Some(stored.clone()),
        }
    }

    /// The part, if it is not on the device.
    pub(crate) fn unstored(&self) -> Option<Arc<Part>> {
        match &*self.state.read() {
            PartState::Memory(part, _) => Some(part.clone()),
            PartState::Stored(_) => None,
        }
    }

    /// The part, read if need be.
    pub(crate) fn load(&self, trees: &Trees) -> Result<Arc<Part>> {
        let handle = match &*self.state.read() {
            PartState::Memory(part, _) => return Ok(part.clone()),
            PartState::Stored(stored) => stored.handle.clone(),
        };
        trees.pieces.part(handle.id())
    }

    /// The part now lies on the device. The first caller wins.
    pub(crate) fn set_stored(&self, stored: StoredPart) {
        let mut state = self.state.write();
        if matches!(&*state, PartState::Memory(..)) {
            *state = PartState::Stored(stored);
        }
    }

    /// How many value parts its entries lie in, at most.
    pub(super) fn value_parts(&self) -> usize {
        match &*self.state.read() {
            PartState::Memory(part, _) => part.values().len(),
            PartState::Stored(stored) => stored.values.len(),
        }
    }

    /// Bytes of the part and its large values: what it weighs in a leaf or an edge.
    pub(crate) fn weight(&self) -> u64 {
        u64::from(self.summary.bytes) + self.summary.value_bytes
    }
}

/// Blocks that absorbing memtables may take, beside what their messages come to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spreading {
    /// For each of them.
    pub(crate) each: u64,
    /// However many they are.
    pub(crate) once: u64,
}

impl Spreading {
    /// For so many memtables.
    pub(crate) fn of(self, tables: u64) -> u64 {
        if tables > 0 { self.once + self.each.saturating_mul(tables) } else { 0 }
    }
}

/// The place of a node.
pub(crate) struct NodeSlot {
    state: RwLock<NodeState>,
    /// Blocks that the tree below will take, once they were counted ([`Trees::unwritten_blocks`]).
    unwritten: OnceLock<u64>,
    /// See [`Trees::spreading`].
    pub(super) spread: OnceLock<Spreading>,
}

enum NodeState {
    Memory(Arc<Node>),
    Stored(Arc<PieceHandle>),
}

impl NodeSlot {
    /// A node just made.
    pub(crate) fn new(node: Node) -> Arc<Self> {
        Self::with(NodeState::Memory(Arc::new(node)))
    }

    /// A node that a header, a volume or a checkpoint names.
    pub(crate) fn stored(handle: Arc<PieceHandle>) -> Arc<Self> {
        Self::with(NodeState::Stored(handle))
    }

    fn with(state: NodeState) -> Arc<Self> {
        Arc::new(Self { state: RwLock::new(state), unwritten: OnceLock::new(), spread: OnceLock::new() })
    }

    /// Where the node lies, if it is on the device.
    pub(crate) fn place(&self) -> Option<Arc<PieceHandle>> {
        match &*self.state.read() {
            NodeState::Memory(_) => None,
            NodeState::Stored(handle) => Some(handle.clone()),
        }
    }

    /// The node, read if need be; `height` is what the reference promises.
    pub(crate) fn load(&self, trees: &Trees, height: u8) -> Result<Arc<Node>> {
        let handle = match &*self.state.read() {
            NodeState::Memory(node) => return Ok(node.clone()),
            NodeState::Stored(handle) => handle.clone(),
        };
        let node = trees.node(handle.id())?;
        if node.height != height {
            let message =
                format!("node {} has height {} where its parent needs {height}", handle.id(), node.height);
            return Err(Error::damaged(message));
        }
        Ok(node)
    }

    /// The node, if it is not on the device.
    pub(crate) fn unstored(&self) -> Option<Arc<Node>> {
        match &*self.state.read() {
            NodeState::Memory(node) => Some(node.clone()),
            NodeState::Stored(_) => None,
        }
    }

    /// What `count` gave for the node that is not on the device when it was first asked; 0 once it
    /// is there.
    pub(super) fn unwritten(&self, count: impl FnOnce() -> u64) -> u64 {
        match &*self.state.read() {
            NodeState::Stored(_) => return 0,
            NodeState::Memory(_) => {}
        }
        *self.unwritten.get_or_init(count)
    }

    /// The node now lies on the device.
    pub(crate) fn set_stored(&self, handle: Arc<PieceHandle>) {
        *self.state.write() = NodeState::Stored(handle);
    }
}
