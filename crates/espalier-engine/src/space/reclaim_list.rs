//! The reclaim list: dead nodes with references of their own that are still to be subtracted.

use super::page::read_u64;
use crate::{Error, PieceId, Result};

/// The bytes of the reclaim list.
pub(super) fn encode(reclaim: &[PieceId]) -> Vec<u8> {
    reclaim.iter().flat_map(|id| id.0.to_le_bytes()).collect()
}

/// The reclaim list that [`encode`] made.
///
/// # Errors
/// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged).
pub(super) fn decode(bytes: &[u8]) -> Result<Vec<PieceId>> {
    if !bytes.len().is_multiple_of(8) {
        return Err(Error::damaged("the reclaim list ends in the middle of an entry"));
    }
    Ok(bytes.chunks_exact(8).map(|id| PieceId(read_u64(id, 0))).collect())
}
