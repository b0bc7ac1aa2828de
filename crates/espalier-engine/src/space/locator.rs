//! The trait by which pieces reach the space that names, places and owns them.

use crate::extents::ExtentList;
use crate::model::ids::Location;
use crate::model::piece::PieceHandle;
use crate::{Extent, PieceId, Result};
use std::sync::Arc;

/// Names, places and owns pieces: the node translation table and the allocator, as seen from here.
///
/// Protocol of a write: [`new_id`](Self::new_id), encode, [`allocate`](Self::allocate), write to
/// the device, [`register`](Self::register). A crash or error before `register` leaves nothing
/// behind: a space is given back, an id is never used again.
pub(crate) trait Locator: Send + Sync {
    /// An id that was never used before and will never be returned again, crashes included.
    fn new_id(&self) -> PieceId;

    /// Where the piece lies.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if there is no such piece, and whatever
    /// reading the node translation table gives.
    fn locate(&self, id: PieceId) -> Result<Location>;

    /// True if more than one counted piece (or root) refers to a piece.
    ///
    /// # Errors
    /// Whatever reading the node translation table gives.
    fn is_shared(&self, id: PieceId) -> Result<bool>;

    /// Exactly `blocks` free blocks in one run, preferably at or behind block `near`.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) if no run is long enough.
    fn allocate(&self, blocks: u32, near: Option<u64>) -> Result<Extent>;

    /// Blocks for the piece `id` in several runs, and for the list of them: for when
    /// [`allocate`](Self::allocate) finds no run. The list blocks are the caller's to write, too.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`](crate::ErrorKind::NoSpace) if not so many are free.
    fn allocate_scattered(&self, id: PieceId, blocks: u32) -> Result<Arc<ExtentList>>;

    /// Where the extents of a piece lie that has a `scattered` location.
    ///
    /// # Errors
    /// As for [`ExtentList::load`].
    fn extent_list(&self, id: PieceId, location: &Location) -> Result<Arc<ExtentList>>;

    /// Takes back an extent (or a part of one) that was allocated and not registered.
    fn give_back(&self, extent: Extent);

    /// Takes back the blocks of a piece that was to be scattered and is not registered.
    fn give_back_scattered(&self, id: PieceId);

    /// Enters a piece just written, fresh. It goes when the handle goes, unless a checkpoint counts
    /// it. `holds` are handles on the pieces it refers to: the new handle must keep them, so that a
    /// fresh piece that is in no cache still owns the fresh value parts its entries lie in.
    fn register(
        &self,
        id: PieceId,
        location: Location,
        holds: Vec<Arc<PieceHandle>>,
    ) -> Result<Arc<PieceHandle>>;

    /// A handle on a piece read from a reference on the device: the fresh one if the piece is fresh
    /// (the handle on the referring piece holds it), a counted one otherwise.
    fn handle(&self, id: PieceId) -> Arc<PieceHandle>;
}
