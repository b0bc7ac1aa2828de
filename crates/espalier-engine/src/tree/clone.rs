//! Binding clones: from a redirection of keys to shared nodes.

use super::Trees;
use super::flush::Root;
use super::query::{Descent, Toward};
use super::source::{Merged, before_end_of};
use crate::Result;
use crate::index::Goto;
use crate::key::{Key, KeyRange};
use crate::memtable::Memtable;
use crate::op::{Op, RangeOp};
use crate::resolve::Found;
use crate::types::Msn;
use crate::value::Value;
use crate::view::View;
use std::sync::Arc;

impl Trees {
    /// The root after `goto`, where `root` is the state it refers to.
    pub(super) fn bind(self: &Arc<Self>, root: &Root, goto: &Goto) -> Result<Root> {
        let entries = self.entries(root, &KeyRange::prefix(&goto.source))?;
        let gone = Memtable::default();
        gone.apply_range(&KeyRange::prefix(&goto.destination), goto.msn, &RangeOp::Delete, Msn(0));
        let root = self.absorb_table(root, &Arc::new(gone))?;
        let copies = Memtable::default();
        for (key, value) in entries {
            let key = [&*goto.destination, &key[goto.source.len()..]].concat();
            copies.apply(&key, goto.msn, &Op::Insert(value), Msn(0), &self.merge);
        }
        self.absorb_table(&root, &Arc::new(copies))
    }

    /// The entries of a range.
    fn entries(self: &Arc<Self>, root: &Root, range: &KeyRange) -> Result<Vec<(Key, Value)>> {
        let mut entries = Vec::new();
        let Some(slot) = &root.slot else { return Ok(entries) };
        let mut start = range.start.clone();
        loop {
            let all = KeyRange::all();
            let descent = Descent::new(self, slot, root.height, View::identity(), all, Toward::Key(&start))?;
            let mut merged = Merged::new(descent.sources);
            merged.seek(&start)?;
            while let Some(key) = merged
                .smallest()
                .filter(|key| before_end_of(key, &descent.interval) && before_end_of(key, range))
            {
                let mut found = Found::default();
                merged.levels(&key, |points, ranges| {
                    found.add_level(points.iter().cloned(), ranges);
                    !found.is_done()
                });
                if let Some(value) = found.value(&self.merge, &*self.pieces)? {
                    entries.push((key.clone(), value));
                }
                merged.next_behind(&key)?;
            }
            match descent.interval.end {
                Some(end) if before_end_of(&end, range) => start = end,
                _ => return Ok(entries),
            }
        }
    }
}
