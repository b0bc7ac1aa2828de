//! What a checkpoint does to space: counting references, writing tables, switching superblocks.
//!
//! The order of device writes, and what a crash after each step leaves (generation `n` is on the
//! device):
//! 1. pieces and table pages to blocks that generation `n` does not account for: `n`, all of it;
//! 2. sync: still `n`; the new pages are durable but nothing leads to them;
//! 3. superblock `n + 1` to the other slot and to the spare place: `n` or `n + 1`, each complete (a
//!    sector is written or not), and whichever is found to be the newest counts;
//! 4. sync: `n + 1`; only now may blocks that `n` alone needed be written again.
//!
//! On a device that [keeps the order of writes](espalier_storage::Device::keeps_order) the first
//! sync is left out, and the second comes after the copy in the other slot: what is found after a
//! crash is the state after some of these writes in their order, so one of the states above.

use super::table::Table;
use super::{Roots, Space, Superblock, VolumeTable, byte_table, piece_table, reclaim_list, space_map};
use crate::model::error::Context;
use crate::model::ids::Delta;
use crate::{Error, ErrorKind, Extent, PieceId, PieceKind, Result};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// The pages of the tables are counted when less than so many times the pool is free.
const COUNT_PAGES_POOLS: u64 = 8;

/// Blocks that are told to the device with one call, at most: 64 MiB.
const MAX_TRIMMED_BLOCKS: u64 = 16 << 10;

impl Space {
    /// Adds `deltas` to the reference counts. A fresh piece becomes a counted one, and its blocks
    /// enter `committed`; so does a dead one that is referred to again. A part dies at once when
    /// its count becomes 0. Nodes with a count of 0 are returned, ascending: the caller reads their
    /// headers, subtracts their references by further calls, and then calls
    /// [`Space::uncount_node`].
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if a count would be negative or a piece is unknown, or what the
    /// device says. The device is latched then, since the counts are half changed.
    pub(crate) fn count<D: Into<Delta> + Copy>(&self, deltas: &HashMap<PieceId, D>) -> Result<Vec<PieceId>> {
        let _change = self.tables.begin_change();
        self.device.writable()?;
        let mut sorted: Vec<(PieceId, Delta)> =
            deltas.iter().map(|(id, delta)| (*id, (*delta).into())).collect();
        sorted.retain(|(_, delta)| *delta != Delta::default());
        sorted.sort_unstable_by_key(|(id, _)| *id);
        let mut without = Vec::new();
        for (id, delta) in sorted {
            let doing = || format!("adding {} to the count of piece {id}", delta.count);
            match self.count_one(id, delta).context(doing) {
                Ok(true) => without.push(id),
                Ok(false) => {}
                Err(error) => return Err(self.device.latch(error)),
            }
        }
        Ok(without)
    }

    /// True if the piece is a node and its count is 0 now.
    fn count_one(&self, id: PieceId, delta: Delta) -> Result<bool> {
        let Some(before) = self.tables.ntt.get(id)? else {
            self.count_first(id, delta)?;
            return Ok(false);
        };
        let entry = before.changed(delta)?;
        let is_node = matches!(entry.location.kind, PieceKind::Node(_));
        if entry.count == 0 && !is_node {
            self.uncount(id, &before)?;
        } else {
            self.tables.ntt.set(id, Some(&entry))?;
            self.tables.note_dead(&before, Some(&entry));
        }
        Ok(entry.count == 0 && is_node)
    }

    fn count_first(&self, id: PieceId, delta: Delta) -> Result<()> {
        let missing = || Error::damaged("it is not counted: counts and references differ");
        if delta.count <= 0 {
            return Err(missing());
        }
        let location = self
            .deferred
            .pieces()
            .begin_counting(id)
            .ok_or_else(|| Error::damaged("it is referred to but does not exist"))?;
        for extent in self.extent_lists.occupied(id, &location)? {
            space_map::mark(&self.tables.map, extent, true)?;
        }
        let entry = piece_table::PieceEntry { location, count: 0, live: 0 }.changed(delta)?;
        self.tables.ntt.set(id, Some(&entry))?;
        self.tables.dead_values.fetch_add(entry.dead(), Ordering::Relaxed);
        self.deferred.pieces().remove_fresh(id);
        self.extent_lists.counted(id);
        Ok(())
    }

    /// Takes a piece out of the tables, and it dies: entered among the dead before it leaves the
    /// table, so that it can be located all the time.
    fn uncount(&self, id: PieceId, entry: &piece_table::PieceEntry) -> Result<()> {
        let extents = self.extent_lists.occupied(id, &entry.location)?;
        self.extent_lists.keep_list(id, &entry.location)?;
        self.deferred.pieces().die(id, entry.location, true);
        self.tables.ntt.set(id, None)?;
        for extent in extents {
            space_map::mark(&self.tables.map, extent, false)?;
        }
        self.tables.note_dead(entry, None);
        self.deferred.tell_death(id);
        Ok(())
    }

    /// A node without references dies: its own references have been subtracted.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if it is unknown or has references, or what the device says; the
    /// device is latched then.
    pub(crate) fn uncount_node(&self, id: PieceId) -> Result<()> {
        let _change = self.tables.begin_change();
        self.device.writable()?;
        let uncount = || match self.tables.ntt.get(id)? {
            Some(entry) if entry.count == 0 => self.uncount(id, &entry),
            Some(entry) => Err(Error::damaged(format!("it has {} references", entry.count))),
            None => Err(Error::damaged("it is not counted")),
        };
        uncount().context(|| format!("uncounting piece {id}")).map_err(|error| self.device.latch(error))
    }

    /// Writes what changed in the tables to new places. Nothing refers to them before
    /// [`Space::commit_superblock`] is called with the roots returned.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] leaves everything as it was, and the call may be repeated; any other
    /// error latches the device.
    pub(crate) fn write_tables(&self, volumes: &VolumeTable, reclaim: &[PieceId]) -> Result<Roots> {
        let _change = self.tables.begin_change();
        self.device.writable()?;
        self.write_tables_locked(volumes, reclaim).map_err(|error| match error.kind() {
            ErrorKind::NoSpace | ErrorKind::InvalidArgument => error,
            _ => self.device.latch(error),
        })
    }

    fn write_tables_locked(&self, volumes: &VolumeTable, reclaim: &[PieceId]) -> Result<Roots> {
        let tables = &self.tables;
        byte_table::store(&tables.volumes, &volumes.encode())?;
        byte_table::store(&tables.reclaim, &reclaim_list::encode(reclaim))?;
        // What is freed first cannot make the rest dirty again; the map itself comes last.
        for table in [tables.ntt.pages(), &tables.volumes, &tables.reclaim] {
            for block in table.prune() {
                self.free_page(block)?;
            }
        }
        let mut near = None;
        for table in [tables.ntt.pages(), &tables.volumes, &tables.reclaim] {
            self.place_pages(table, &mut near)?;
        }
        // Placing the map's own pages dirties map pages; there are finitely many, and none is
        // placed twice.
        while self.place_pages(&tables.map, &mut near)? {}
        let roots = Roots {
            ntt: tables.ntt.pages().write()?,
            space_map: tables.map.write()?,
            volumes: tables.volumes.write()?,
            reclaim: tables.reclaim.write()?,
        };
        self.deferred.pieces().tables_written();
        self.count_pages();
        Ok(roots)
    }

    /// Counts the pages of the tables once the store is so full that it matters, and each time from
    /// then on.
    pub(super) fn count_pages(&self) {
        let is_due = self.free_blocks() < COUNT_PAGES_POOLS * self.reservations.pool();
        self.tables.count_pages(is_due);
    }

    /// Gives each dirty page a new block, and one for a copy if there is room for that, and
    /// accounts for them; true if there was any.
    fn place_pages(&self, table: &Table, near: &mut Option<u64>) -> Result<bool> {
        let keys = table.unassigned();
        let any = !keys.is_empty();
        for key in keys {
            let place = self.free_blocks.take_run(1, *near, 0).context(|| "placing table pages".into())?;
            *near = Some(place.end());
            let copy = self.take_copy(place.start);
            let old = table.assign(key, place.start, copy.map_or(0, |copy| copy.start));
            for place in [Some(place), copy].into_iter().flatten() {
                space_map::mark(&self.tables.map, place, true)?;
            }
            for block in old {
                self.free_page(block)?;
            }
        }
        Ok(any)
    }

    /// Takes a block for the copy of a page, half a device away: what damages one place should not
    /// reach the other. It is a luxury: a store that is nearly full needs the room for freeing
    /// some.
    fn take_copy(&self, page: u64) -> Option<Extent> {
        let geometry = self.geometry();
        if !geometry.copies {
            return None;
        }
        let (start, end) = (geometry.data_start(), geometry.data_end());
        let near = start + (page - start + (end - start) / 2) % (end - start);
        let floor = self.reservations.pool() / 4 * 3;
        self.free_blocks.with_used(|used| if used.free() > floor { used.allocate_behind(near) } else { None })
    }

    /// The block of a table page is no longer accounted for; it is free after the next superblock.
    fn free_page(&self, block: u64) -> Result<()> {
        space_map::mark(&self.tables.map, Extent { start: block, blocks: 1 }, false)?;
        self.deferred.pieces().add_page(block);
        Ok(())
    }

    /// Makes `next` the newest superblock: syncs what it names, writes it, syncs it, and releases
    /// what only its predecessor needed. Generation, next piece id and the immutable fields are
    /// filled in here.
    ///
    /// # Errors
    /// What the device says; it is latched then, and which superblock is the newest shows at the
    /// next open.
    pub(crate) fn commit_superblock(&self, mut next: Superblock) -> Result<()> {
        let _change = self.tables.begin_change();
        let current = self.superblock();
        next.generation = current.generation + 1;
        next.next_piece = PieceId(self.next_piece.load(Ordering::Acquire));
        next.dead_values = self.tables.dead_values.load(Ordering::Relaxed);
        (next.uuid, next.label, next.geometry, next.created) =
            (current.uuid, current.label, current.geometry, current.created);
        self.device.sync_before_next().context(|| "syncing a checkpoint".into())?;
        next.write(&self.device).context(|| "writing the superblock".into())?;
        next.write_spare(&self.device).context(|| "writing the spare superblock".into())?;
        self.device.sync_before_next().context(|| "syncing the superblock".into())?;
        // The other slot gets the same checkpoint, so that damage to either one takes nothing back.
        // It need not be durable before the next superblock is written, and a sync precedes that.
        next.generation += 1;
        next.write(&self.device).context(|| "writing the second superblock".into())?;
        // Where writes keep their order, one sync is for all of them.
        if next.clean || self.device.keeps_order() {
            self.device.sync().context(|| "syncing the second superblock".into())?;
        }
        *self.current.write() = next;
        self.deferred.superblock_written();
        Ok(())
    }

    /// Tells the device about all free runs of at least `least` blocks; returns their blocks.
    /// Nothing that a superblock on the device, a reader or a handle needs is free. What is being
    /// told about cannot be allocated meanwhile, and that is never much at a time.
    pub(crate) fn trim(&self, least: u32) -> Result<u64> {
        let (mut from, mut told) = (self.geometry().data_start(), 0);
        loop {
            self.device.writable()?;
            let most = (self.free_blocks() / 8).clamp(1, MAX_TRIMMED_BLOCKS) as u32;
            let run = self.free_blocks.with_used(|used| {
                let run = used.free_run(from, most)?;
                (run.blocks < least.min(most) || used.take(run)).then_some(run)
            });
            let Some(run) = run else { return Ok(told) };
            from = run.end();
            if run.blocks >= least.min(most) {
                self.device.discard(run);
                self.free_blocks.put_back(&[run]);
                told += u64::from(run.blocks);
            }
        }
    }
}
