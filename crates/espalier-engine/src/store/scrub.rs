//! Reading everything from the device while the store is in use, a little at a time.
//!
//! A step goes through the node translation table in the order of ids, and reads pieces past all
//! caches. It holds nothing but a pin: what dies meanwhile keeps its blocks until the step ends.
//! The last step looks at the superblocks and at both places of every table page, too.

use crate::model::ids::{IndexId, PieceId};
use crate::store::Store;
use crate::tree::ranges_of_pieces;
use crate::{KeyRange, Result};
use std::collections::HashSet;

/// What a step of a scrub found.
#[derive(Debug, Clone, Default)]
pub struct Scrubbed {
    /// Where the next step begins; `None` at the end.
    pub next: Option<u64>,
    /// Bytes read.
    pub bytes: u64,
    /// What is not what was written.
    pub damaged: Vec<ScrubProblem>,
}

/// A piece that is damaged.
#[derive(Debug, Clone)]
pub struct ScrubProblem {
    /// What is wrong, and where on the device.
    pub message: String,
    /// The keys whose values, or newest messages, may lie there.
    pub keys: Vec<(IndexId, KeyRange)>,
    /// The same lies somewhere else, whole: nothing is lost.
    pub is_copy: bool,
}

impl Store {
    /// Reads pieces from the device, about `bytes` of them, beginning where the last step ended
    /// (`from`, 0 at first), and verifies them. Pieces that no checkpoint counts yet are not looked
    /// at.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`](crate::ErrorKind::ReadOnly) after [`Store::close`];
    /// [`ErrorKind::Gone`](crate::ErrorKind::Gone) once part of the state that is read was deleted;
    /// damage is no error.
    pub fn scrub(&self, from: u64, bytes: u64) -> Result<Scrubbed> {
        let components = &self.components;
        let snapshot = self.snapshot()?;
        self.still_there()?;
        let _pin = components.space.deferred.pin();
        let mut step = Scrubbed::default();
        let mut bad: Vec<(PieceId, String)> = Vec::new();
        let mut page = from;
        loop {
            let (number, pieces) = match components.space.tables.counted_from(page) {
                Ok(Some(found)) => found,
                Ok(None) => break,
                Err((number, error)) => {
                    let message = error.to_string();
                    step.damaged.push(ScrubProblem { message, keys: Vec::new(), is_copy: false });
                    (number, Vec::new())
                }
            };
            page = number + 1;
            for (id, length) in pieces {
                step.bytes += length;
                if let Err(error) = components.trees.pieces.check(id) {
                    self.still_there()?;
                    bad.push((id, error.to_string()));
                }
            }
            if step.bytes >= bytes {
                step.next = Some(page);
                break;
            }
        }
        for (id, message) in bad {
            let wanted = HashSet::from([id]);
            let mut keys = Vec::new();
            for (index, version) in snapshot.versions() {
                let found = ranges_of_pieces(&components.trees, &version.root, &wanted);
                keys.extend(found.into_iter().map(|range| (index, range)));
            }
            step.damaged.push(ScrubProblem { message, keys, is_copy: false });
        }
        if step.next.is_none() {
            let copies = components.space.damaged_copies().into_iter();
            let problem = |message| ScrubProblem { message, keys: Vec::new(), is_copy: true };
            step.damaged.extend(copies.map(problem));
        }
        self.still_there()?;
        Ok(step)
    }
}
