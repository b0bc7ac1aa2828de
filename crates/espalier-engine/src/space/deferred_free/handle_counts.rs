//! Counts of the handles in memory on each piece.

use crate::PieceId;
use crate::lock_order::{RankedMutex, rank};
use std::collections::HashMap;

type HandleShard = RankedMutex<HashMap<PieceId, u32>, { rank::PIECE_HANDLES }>;

/// How many handles there are on each piece, in shards.
#[derive(Default)]
pub(super) struct HandleCounts {
    shards: [HandleShard; 16],
}

impl HandleCounts {
    fn shard(&self, id: PieceId) -> &HandleShard {
        &self.shards[(id.0 % 16) as usize]
    }

    /// One handle more.
    pub(super) fn add(&self, id: PieceId) {
        *self.shard(id).lock().entry(id).or_default() += 1;
    }

    /// One handle less; true if it was the last.
    pub(super) fn remove(&self, id: PieceId) -> bool {
        let mut shard = self.shard(id).lock();
        match shard.get_mut(&id) {
            Some(count) if *count > 1 => {
                *count -= 1;
                false
            }
            _ => {
                shard.remove(&id);
                true
            }
        }
    }

    /// True if there is a handle on the piece.
    pub(super) fn any(&self, id: PieceId) -> bool {
        self.shard(id).lock().contains_key(&id)
    }
}
