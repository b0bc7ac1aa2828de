//! Repair of a volume after parts of it were lost: afterwards it keeps all rules of `model::layout`
//! and `model::record`.
//!
//! What is there stays; what only leads to it is made anew. One walk over the metadata in key
//! order, with the data index in step beside it, over one snapshot, notes what there is; then come,
//! each in terms of what is noted, data without a file, links, directories and counts. Since keys
//! are full paths, a directory or file whose entry is lost is found again under its name by what
//! lies below it.
//!
//! - A file keeps the blocks it has; those it lacks read as zeros, and are told. Where a file has
//!   holes, only those that lie in what the store below has lost are told: whether there was data
//!   cannot be known.
//! - Data without an entry gets one: an ordinary file that only root can read.
//! - So does a directory that has entries. What has lost its last name goes to `/lost+found`.
//! - Names of files that are gone, and what cannot be understood, go.

mod data;
mod directories;
mod links;
mod state;
mod walk;
mod writer;

use crate::check::data_walk::{DataWalk, OrphanRecords};
use crate::check::repair::data::{DataRepair, lost_data};
use crate::check::repair::state::{FoundLinks, Repair};
use crate::check::repair::writer::RepairWriter;
use crate::model::error::Result;
use crate::model::layout::DATA;
use crate::model::types::FileFlags;
use crate::volume::context::{decode_parameters, find_volume};
use espalier_engine::{Batch, IndexId, KeyRange, Loss, Store};
use std::collections::{BTreeMap, BTreeSet};

pub use crate::check::repair::writer::Repaired;

/// Repairs volume `name` of a store that has lost `losses`. What was wrong before and is right
/// afterwards is told in the order in which it was found. `progress` is called now and then with
/// the number of keys seen. `now` is the time for what is made, in nanoseconds since the Unix
/// epoch. Durable when the store was closed.
///
/// # Errors
/// As for [`check`](fn@crate::check); of the store.
pub fn repair(
    store: &Store,
    name: &str,
    losses: &[Loss],
    now: i64,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Repaired>> {
    let volume = find_volume(store, name)?;
    let block_size = u64::from(decode_parameters(&volume.parameters)?);
    let snapshot = store.snapshot()?;
    let data = snapshot.cursor(IndexId { volume: volume.id, index: DATA }, KeyRange::all())?;
    let mut repair = Repair {
        snapshot,
        writer: RepairWriter {
            store,
            volume: volume.id,
            batch: Batch::new(),
            done: Vec::new(),
            keys: 0,
            progress,
        },
        data: DataRepair {
            walk: DataWalk::new(data),
            orphans: OrphanRecords::default(),
            block_size,
            lost: lost_data(volume.id, losses),
            without_entry: BTreeMap::new(),
        },
        directories: BTreeMap::new(),
        links: FoundLinks::default(),
        unmarked: BTreeSet::new(),
        reserved: Vec::new(),
        state: None,
        flags_seen: FileFlags::default(),
        next_number: 0,
        highest: 0,
        now,
    };
    run(&mut repair)?;
    Ok(repair.writer.done)
}

fn run(repair: &mut Repair<'_>) -> Result<()> {
    repair.read_orphans()?;
    repair.read_marks()?;
    repair.data.advance(&mut repair.writer)?;
    repair.walk_metadata()?;
    repair.data.skip_to(None, &mut repair.writer)?;
    repair.choose_next_number();
    repair.name_data()?;
    repair.mend_links()?;
    repair.mend_directories()?;
    repair.mend_links_index()?;
    repair.mend_counts()?;
    repair.mend_reserved()?;
    repair.writer.flush()?;
    (repair.writer.progress)(repair.writer.keys);
    Ok(())
}

#[cfg(test)]
mod tests;
