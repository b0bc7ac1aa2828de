//! Handles on pieces: what in memory still needs a piece that the node translation table may not
//! count.
//!
//! A piece written to the device is *fresh* until a checkpoint counts its first reference. Fresh
//! pieces belong to the handles in memory: when the last one goes, so does the piece. After a crash
//! nothing refers to a fresh piece (unless the log names it), so its blocks are free again.

use crate::PieceId;
use std::sync::Arc;

/// Told when the last handle on a fresh piece is dropped.
pub(crate) trait FreshOwner: Send + Sync {
    /// Frees the piece, unless a checkpoint has counted it since.
    fn handle_dropped(&self, id: PieceId);
}

/// Shared ownership of a piece, by `Arc`.
pub(crate) struct PieceHandle {
    id: PieceId,
    owner: Option<Arc<dyn FreshOwner>>,
    /// Pieces that the piece refers to: they live at least as long as it does.
    _holds: Box<[Arc<PieceHandle>]>,
}

impl PieceHandle {
    /// A handle on a piece that the node translation table counts.
    pub(crate) fn counted(id: PieceId) -> Arc<Self> {
        Arc::new(Self { id, owner: None, _holds: Box::default() })
    }

    /// The first handle on a piece just written.
    pub(crate) fn fresh(id: PieceId, owner: Arc<dyn FreshOwner>) -> Arc<Self> {
        Self::fresh_holding(id, owner, Vec::new())
    }

    /// The first handle on a piece just written that refers to the pieces in `holds`. They are
    /// dropped after the piece itself.
    pub(crate) fn fresh_holding(
        id: PieceId,
        owner: Arc<dyn FreshOwner>,
        holds: Vec<Arc<PieceHandle>>,
    ) -> Arc<Self> {
        Arc::new(Self { id, owner: Some(owner), _holds: holds.into() })
    }

    pub(crate) fn id(&self) -> PieceId {
        self.id
    }
}

impl Drop for PieceHandle {
    fn drop(&mut self) {
        if let Some(owner) = &self.owner {
            owner.handle_dropped(self.id);
        }
    }
}

impl std::fmt::Debug for PieceHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.id)
    }
}
