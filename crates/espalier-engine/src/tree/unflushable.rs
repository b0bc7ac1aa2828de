//! Edges that cannot be flushed, as something below them cannot be read.
//!
//! What is on its way to a place that cannot be read waits above it, and keeps nothing else from
//! moving. Such an edge is passed over until the next checkpoint, when it is tried again.

use crate::lock_order::{RankedMutex, rank};
use crate::tree::node::{Edge, NodeSlot};
use crate::tree::part_slot::PartSlot;
use std::collections::HashMap;
use std::sync::Arc;

/// What an edge leads to. As long as the token is held, its address names nothing else.
enum EdgeToken {
    Node(Arc<NodeSlot>),
    Part(Arc<PartSlot>),
}

impl EdgeToken {
    /// What tells an edge from others as long as nothing below it changes; `None` if nothing has to
    /// be read to flush it.
    fn of(edge: &Edge) -> Option<Self> {
        let part =
            || edge.runs.iter().flat_map(|run| &run.parts).map(|part| Self::Part(part.slot.clone())).next();
        edge.child.as_ref().map(|child| Self::Node(child.slot.clone())).or_else(part)
    }

    fn addr(&self) -> usize {
        match self {
            Self::Node(slot) => Arc::as_ptr(slot).addr(),
            Self::Part(slot) => Arc::as_ptr(slot).addr(),
        }
    }
}

/// The edges that could not be flushed since the last checkpoint.
#[derive(Default)]
pub(crate) struct UnflushableEdges(RankedMutex<HashMap<usize, EdgeToken>, { rank::UNFLUSHABLE_EDGES }>);

impl UnflushableEdges {
    /// True if what waits on `edge` cannot move.
    pub(super) fn contains(&self, edge: &Edge) -> bool {
        let edges = self.0.lock();
        !edges.is_empty() && EdgeToken::of(edge).is_some_and(|token| edges.contains_key(&token.addr()))
    }

    /// Adds an edge; false if nothing has to be read to flush it, so that it cannot be one.
    pub(super) fn insert(&self, edge: &Edge) -> bool {
        let Some(token) = EdgeToken::of(edge) else { return false };
        self.0.lock().insert(token.addr(), token);
        true
    }

    /// Forgets all of them, so that flushes try them again.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
