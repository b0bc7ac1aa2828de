//! Makes parts from entries in order.

use super::Part;
use super::entry::{self, Head, RESTART_INTERVAL};
use crate::model::key::common_prefix_len;
use crate::model::op::Op;
use crate::model::value::LargeValue;
use crate::{Error, Msn, Result};
use std::sync::{Arc, OnceLock};

/// Takes entries in order: keys ascending, the MSNs of one key descending.
#[derive(Default)]
pub(crate) struct PartBuilder {
    /// The entries so far, as a part keeps them.
    body: Vec<u8>,
    restarts: Vec<u32>,
    entries: u32,
    base_msn: u64,
    last_msn: u64,
    last_key: Vec<u8>,
    values: Vec<Arc<LargeValue>>,
    value_bytes: u64,
    value_pages: usize,
}

impl PartBuilder {
    /// Without entries.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Appends an entry.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if it is out of order: a part of such
    /// entries would lose some of them. Nothing is appended then.
    pub(crate) fn push(&mut self, key: &[u8], msn: Msn, op: &Op) -> Result<()> {
        let same = common_prefix_len(&self.last_key, key);
        if self.entries == 0 {
            self.base_msn = msn.0;
        } else {
            let ascends = match (self.last_key.get(same), key.get(same)) {
                (Some(before), Some(now)) => before < now,
                (None, Some(_)) => true,
                (Some(_), None) => false,
                (None, None) => msn.0 <= self.last_msn,
            };
            if !ascends {
                let message = "messages are out of order: two runs that hold a key are in the wrong order, or \
                               two parts of a run overlap";
                return Err(Error::damaged(message));
            }
        }
        let restart = self.entries.is_multiple_of(RESTART_INTERVAL);
        if restart {
            self.restarts.push(self.body.len() as u32);
        }
        let shared = if restart { 0 } else { same };
        let (head, payload) = Head::of(op, self.values.len());
        let msn_difference = msn.0.wrapping_sub(self.base_msn);
        entry::put(&mut self.body, shared, &key[shared..], msn_difference, &head, payload);
        for large in op.large_values() {
            self.value_bytes += large.len() as u64;
            self.value_pages += large.len().div_ceil(crate::VALUE_PAGE);
            self.values.push(large.clone());
        }
        self.last_key.truncate(same);
        self.last_key.extend_from_slice(&key[same..]);
        self.last_msn = msn.0;
        self.entries += 1;
        Ok(())
    }

    /// About the bytes of the piece on the device before compression.
    pub(crate) fn bytes(&self) -> usize {
        let references = 8 * self.values.len() + 4 * self.value_pages;
        self.body.len() + self.restarts.len() * 4 + references + 72
    }

    /// Sum of the lengths of the large values so far.
    pub(crate) fn value_bytes(&self) -> u64 {
        self.value_bytes
    }

    /// Number of entries so far.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.entries as usize
    }

    /// True before the first entry.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// The part.
    ///
    /// # Panics
    /// If there is no entry: there are no empty parts.
    pub(crate) fn finish(mut self) -> Part {
        assert!(self.entries > 0, "a part has at least one entry");
        let entries_len = self.body.len();
        self.body.reserve_exact(self.restarts.len() * 4);
        for restart in &self.restarts {
            self.body.extend_from_slice(&restart.to_le_bytes());
        }
        // A part may stay in memory until the next checkpoint: no spare capacity.
        self.body.shrink_to_fit();
        Part {
            body: self.body.into(),
            entries_len,
            entries: self.entries,
            base_msn: self.base_msn,
            last_key: self.last_key.into(),
            values: self.values.into(),
            value_bytes: self.value_bytes,
            value_pages: self.value_pages,
            filter: OnceLock::new(),
            placed: Default::default(),
        }
    }
}
