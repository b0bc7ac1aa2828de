//! Part slots: one version of a key-value part, in memory or on the device.
//!
//! A slot is filled once in memory and becomes *stored* once; what it holds never changes. Versions
//! of nodes share slots, so a write of one version writes the part for all of them.

use crate::lock_order::{RankedRwLock, rank};
use crate::model::ids::{PieceId, Reference};
use crate::model::key::Key;
use crate::model::piece::PieceHandle;
use crate::pieces::{Filter, Part};
use crate::tree::memory::{Charge, TreeMemory};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a header says of a part without reading it. Keys are in the part's own key space.
#[derive(Clone)]
pub(crate) struct PartSummary {
    pub(crate) first: Key,
    pub(crate) last: Key,
    pub(crate) entries: u32,
    /// Bytes of the part's body.
    pub(crate) bytes: u32,
    /// Bytes of the large values it refers to.
    pub(crate) value_bytes: u64,
    pub(crate) filter: Filter,
}

impl PartSummary {
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
    pub(crate) summary: PartSummary,
    state: RankedRwLock<PartState, { rank::PART_SLOT }>,
    /// The part is in a sum of what is unwritten.
    is_counted: AtomicBool,
}

enum PartState {
    Memory(Arc<Part>, PartCharges),
    /// As long as the device does not have the header that names the part, it is in memory and
    /// counts as that.
    Stored(StoredPart, Option<Charge>),
}

/// What a part in memory counts for.
struct PartCharges {
    /// Of the bytes in memory.
    bytes: Charge,
    /// Of a sum of what is unwritten, once it is part of one.
    unwritten: Option<Charge>,
}

/// Bytes that a header in memory takes for each part that it names, beside keys and filters: its
/// slot, its view, its handle.
pub(crate) const NAMED_PART_BYTES: usize = 512;

/// A part on the device, and the value parts that its entries lie in, with the bytes they have
/// there.
#[derive(Clone)]
pub(crate) struct StoredPart {
    pub(crate) handle: Arc<PieceHandle>,
    pub(crate) values: Arc<[Reference]>,
}

impl PartSlot {
    /// A part just made.
    pub(crate) fn new(memory: &TreeMemory, part: Part) -> Arc<Self> {
        let summary = PartSummary::of(&part);
        part.values().iter().filter(|v| !v.is_stored()).for_each(|v| v.charge(&memory.value_bytes));
        let bytes = Charge::new(&memory.dirty_bytes, part.memory() + NAMED_PART_BYTES);
        let charges = PartCharges { bytes, unwritten: None };
        Arc::new(Self {
            summary,
            state: RankedRwLock::new(PartState::Memory(Arc::new(part), charges)),
            is_counted: AtomicBool::new(false),
        })
    }

    /// A part that a header names.
    pub(crate) fn stored(summary: PartSummary, stored: StoredPart) -> Arc<Self> {
        Arc::new(Self {
            summary,
            state: RankedRwLock::new(PartState::Stored(stored, None)),
            is_counted: AtomicBool::new(false),
        })
    }

    /// Where the part lies, if it is on the device.
    pub(crate) fn place(&self) -> Option<StoredPart> {
        match &*self.state.read() {
            PartState::Memory(..) => None,
            PartState::Stored(stored, _) => Some(stored.clone()),
        }
    }

    /// What names the part, if it is on the device.
    pub(super) fn id(&self) -> Option<PieceId> {
        match &*self.state.read() {
            PartState::Memory(..) => None,
            PartState::Stored(stored, _) => Some(stored.handle.id()),
        }
    }

    /// The part, if it is not on the device.
    pub(crate) fn as_unwritten(&self) -> Option<Arc<Part>> {
        match &*self.state.read() {
            PartState::Memory(part, _) => Some(part.clone()),
            PartState::Stored(..) => None,
        }
    }

    /// The part, or the piece to read it from.
    pub(super) fn part_or_handle(&self) -> Result<Arc<Part>, Arc<PieceHandle>> {
        match &*self.state.read() {
            PartState::Memory(part, _) => Ok(part.clone()),
            PartState::Stored(stored, _) => Err(stored.handle.clone()),
        }
    }

    /// True for the first caller, which is to [`charge`](Self::charge) it: from now on the part is
    /// in a sum of what is unwritten.
    pub(super) fn begins_to_count(&self) -> bool {
        !self.is_counted.swap(true, Ordering::Relaxed)
    }

    /// True if the part is part of a sum of what is unwritten.
    pub(super) fn counts(&self) -> bool {
        self.is_counted.load(Ordering::Relaxed)
    }

    /// The part has a share in that sum until it lies on the device, or is gone.
    pub(super) fn charge(&self, share: Charge) {
        if let PartState::Memory(_, charges) = &mut *self.state.write() {
            charges.unwritten = Some(share);
        }
    }

    /// The part now lies on the device. The first caller wins.
    pub(crate) fn set_stored(&self, stored: StoredPart) {
        let mut state = self.state.write();
        if let PartState::Memory(_, charges) = &mut *state {
            let charge = charges.bytes.split_off(NAMED_PART_BYTES);
            *state = PartState::Stored(stored, Some(charge));
        }
    }

    /// The device now has a header that names the part: other headers in memory that do so, too,
    /// are to be written or go away soon.
    pub(super) fn set_named(&self) {
        if let PartState::Stored(_, charge) = &mut *self.state.write() {
            *charge = None;
        }
    }

    /// How many value parts its entries lie in, at most.
    pub(super) fn value_parts(&self) -> usize {
        match &*self.state.read() {
            PartState::Memory(part, _) => part.values().len(),
            PartState::Stored(stored, _) => stored.values.len(),
        }
    }

    /// Bytes of the part and its large values: what it weighs in a leaf or an edge.
    pub(crate) fn weight(&self) -> u64 {
        u64::from(self.summary.bytes) + self.summary.value_bytes
    }
}
