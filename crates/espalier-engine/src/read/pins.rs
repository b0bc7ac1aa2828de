//! Snapshot pins: which batches snapshots in memory see.
//!
//! A memtable keeps what a pinned snapshot sees of a key when a newer message replaces it. So the
//! thread that applies a batch asks for the newest pin first.
//!
//! Invariant: a snapshot is pinned under the commit lock, so no batch is applied between the choice
//! of what it sees and its pin.

use crate::lock_order::{RankedMutex, rank};
use crate::model::ids::Msn;
use std::collections::BTreeMap;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct PinTable {
    /// How many snapshots see everything up to a message, by that message.
    pins: RankedMutex<BTreeMap<Msn, usize>, { rank::PIN_TABLE }>,
}

impl PinTable {
    /// A snapshot sees everything up to `upto`. Under the commit lock.
    pub(crate) fn pin(&self, upto: Msn) {
        *self.pins.lock().entry(upto).or_default() += 1;
    }

    /// A snapshot is gone.
    pub(crate) fn unpin(&self, upto: Msn) {
        let mut pins = self.pins.lock();
        if let Some(count) = pins.get_mut(&upto) {
            *count -= 1;
            if *count == 0 {
                pins.remove(&upto);
            }
        }
    }

    /// What the newest snapshot sees; 0 if there is none.
    pub(crate) fn newest(&self) -> Msn {
        self.pins.lock().last_key_value().map_or(Msn(0), |(msn, _)| *msn)
    }
}
