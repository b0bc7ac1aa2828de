//! Repair: a space made anew from what can still be read of the tables on the device.
//!
//! Protocol: [`Space::rebuild`] enters every piece that the old node translation table still names,
//! so that all of them can be read and nothing is written over them. The repair then walks the
//! trees, and says by [`Space::recount`] which pieces are referred to and how often. The tables
//! that the next checkpoint writes are new ones, all of them, and count exactly that.
//!
//! The device is not changed before that checkpoint: until its superblock is written the old one
//! stands, and every block that it accounts for, as far as it can be read, stays as it is.

use super::deferred_free::FreshPiece;
use super::piece_table::PieceEntry;
use super::superblock::search_superblocks;
use super::table::TableId;
use super::tables::Tables;
use super::{Roots, SKIPPED_PIECE_IDS, Space, SpaceOptions, Superblock, VolumeTable, space_map};
use crate::device::GuardedDevice;
use crate::model::ids::{Delta, Location};
use crate::model::piece::PieceHandle;
use crate::{Extent, PieceId, Result};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

/// A space of which nothing is counted yet.
pub(crate) struct RebuiltSpace {
    pub(crate) space: Arc<Space>,
    pub(crate) volumes: VolumeTable,
    /// What could not be read of the tables, in words.
    pub(crate) problems: Vec<String>,
    /// What could not be read and is there once more.
    pub(crate) mended: Vec<String>,
}

/// What the old tables still say.
#[derive(Default)]
struct TableRemains {
    entries: Vec<(PieceId, Location)>,
    /// Blocks of their pages.
    pages: Vec<u64>,
    problems: Vec<String>,
    mended: Vec<String>,
}

impl TableRemains {
    fn gather(tables: &Tables) -> Self {
        let mut remains = Self::default();
        for (table, id) in [
            (tables.ntt.pages(), TableId::Ntt),
            (&tables.volumes, TableId::Volumes),
            (&tables.reclaim, TableId::Reclaim),
            (&tables.map, TableId::SpaceMap),
        ] {
            table.walk(&mut |key, place, page| {
                remains.pages.extend(place.blocks());
                remains.mended.extend(table.damaged_copy(key, place));
                match page {
                    Err(error) => remains.problems.push(error.to_string()),
                    Ok(page) if id == TableId::Ntt && key.level == 0 => {
                        tables.ntt.for_each_of(key.number, page.bytes(), &mut |entry| match entry {
                            Ok((id, entry)) => remains.entries.push((id, entry.location)),
                            Err(error) => remains.problems.push(error.to_string()),
                        });
                    }
                    Ok(_) => {}
                }
            });
        }
        remains
    }
}

impl Space {
    /// Opens the space of a damaged store, as far as its tables can be read.
    ///
    /// # Errors
    /// As for [`search_superblocks`]; [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if the
    /// volume table, to which everything belongs, cannot be read.
    pub(crate) fn rebuild(device: Arc<GuardedDevice>, options: &SpaceOptions) -> Result<RebuiltSpace> {
        let found = search_superblocks(&device)?;
        let old = found.newest;
        let tables = Tables::new(&device, &old.geometry.into(), &old, options.table_cache);
        let volumes = tables.load_volumes()?;
        let TableRemains { entries, pages, mut problems, mut mended } = TableRemains::gather(&tables);
        mended.extend(found.damaged.iter().map(ToString::to_string));
        let next_piece = old.next_piece.0.saturating_add(SKIPPED_PIECE_IDS);
        let bare = Superblock { roots: Roots::default(), ..old.clone() };
        let space = Self::assemble(device, bare, options, Vec::new(), next_piece);
        for (id, location) in entries {
            let extents = match space.extent_lists.occupied(id, &location) {
                Ok(extents) => extents,
                Err(error) => {
                    problems.push(error.to_string());
                    continue;
                }
            };
            match space.free_blocks.take_all(&extents) {
                None => space.tables.ntt.set(id, Some(&PieceEntry { location, count: 1, live: 0 }))?,
                Some(wrong) => {
                    problems.push(format!("piece {id} lies at {wrong}, where something else does"));
                }
            }
        }
        // What only the old superblock needs is free once it is obsolete.
        for block in pages {
            space.keep_until_obsolete(block);
        }
        match space_map::load(&tables.map, &old.geometry) {
            Ok(words) => words.iter().zip(0u64..).for_each(|(word, number)| {
                let blocks = (0..64).filter(|bit| word >> bit & 1 == 1).map(|bit| number * 64 + bit);
                blocks.for_each(|block| space.keep_until_obsolete(block));
            }),
            Err(error) => problems.push(error.to_string()),
        }
        Ok(RebuiltSpace { space, volumes, problems, mended })
    }

    /// Keeps a block that is not used by anything known until the next superblock is durable.
    fn keep_until_obsolete(&self, block: u64) {
        let place = Extent { start: block, blocks: 1 };
        if self.geometry().holds(place) && self.free_blocks.with_used(|used| used.take(place)) {
            self.deferred.pieces().add_page(block);
        }
    }

    /// Says what refers to what after [`Space::rebuild`]: `counts` how often headers and roots on
    /// the device refer to a piece, and to how many bytes of a value part, `fresh` to which pieces
    /// only headers refer that are still in memory. All others are dead. The handles returned keep
    /// the pieces in `fresh` until a checkpoint counts them.
    ///
    /// # Errors
    /// None but of a bug: all that it changes is in memory.
    pub(crate) fn recount(
        &self,
        counts: &HashMap<PieceId, Delta>,
        fresh: &HashSet<PieceId>,
    ) -> Result<Vec<Arc<PieceHandle>>> {
        let _change = self.tables.begin_change();
        let mut known = Vec::new();
        self.tables.ntt.for_each(&mut |entry| {
            known.extend(entry.ok().map(|(id, entry)| (id, entry.location)));
        });
        let (mut handles, mut dead) = (Vec::new(), 0);
        for (id, location) in known {
            if let Some(delta) = counts.get(&id) {
                let entry = PieceEntry { location, count: 0, live: 0 }.changed(*delta)?;
                self.tables.ntt.set(id, Some(&entry))?;
                for extent in self.extent_lists.occupied(id, &location)? {
                    space_map::mark(&self.tables.map, extent, true)?;
                }
                dead += entry.dead();
                continue;
            }
            self.extent_lists.keep_list(id, &location)?;
            if fresh.contains(&id) {
                let entry = FreshPiece { location, handle: Weak::new(), counting: false };
                self.deferred.pieces().add_fresh(id, entry);
                handles.push(self.deferred.handle(id));
            } else {
                self.deferred.pieces().die(id, location, true);
            }
            self.tables.ntt.set(id, None)?;
        }
        self.tables.dead_values.store(dead, Ordering::Relaxed);
        Ok(handles)
    }
}
