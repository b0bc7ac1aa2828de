//! What a checkpoint does to space: counting references, writing tables, switching superblocks.
//!
//! The order of device writes, and what a crash after each step leaves (generation `n` is on the
//! device):
//! 1. pieces and table pages to blocks that generation `n` does not account for: `n`, all of it;
//! 2. sync: still `n`; the new pages are durable but nothing leads to them;
//! 3. superblock `n + 1` to the other slot and to the spare place: `n` or `n + 1`, each complete (a
//!    sector is written or not), and whichever is found to be the newest counts;
//! 4. sync: `n + 1`; only now may blocks that `n` alone needed be written again.

use super::table::Table;
use super::{Roots, Space, Superblock, VolumeTable, byte_table, piece_table, reclaim_list, space_map};
use crate::model::error::Context;
use crate::model::ids::Delta;
use crate::{Error, ErrorKind, Extent, PieceId, PieceKind, Result};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// Free runs shorter than this many blocks are not worth telling the device about.
const LEAST_DISCARD_BLOCKS: u32 = 16;

/// The pages of the tables are counted when less than so many times the pool is free.
const COUNT_PAGES_POOLS: u64 = 8;

/// Pages that a checkpoint may add to the tables, beside those that many new pieces fill: one of
/// each and those above it.
const NEW_TABLE_PAGES: u64 = 8;

/// Blocks that are told to the device with one call, at most: 64 MiB.
const MOST_TRIMMED_BLOCKS: u64 = 16 << 10;

impl Space {
    /// Adds `deltas` to the reference counts. A fresh piece becomes a counted one, and its blocks
    /// enter `committed`; so does a dead one that is referred to again. A part dies at once when
    /// its count becomes 0. Nodes with a count of 0 are returned, ascending: the caller reads their
    /// headers, subtracts their references by further calls, and then calls [`Space::forget`].
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if a count would be negative or a piece is unknown, or what the
    /// device says. The device is latched then, since the counts are half changed.
    pub(crate) fn count<D: Into<Delta> + Copy>(&self, deltas: &HashMap<PieceId, D>) -> Result<Vec<PieceId>> {
        let _writer = self.writer.lock();
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
        let Some(before) = piece_table::get(&self.tables.ntt, &self.geometry(), id)? else {
            self.count_first(id, delta)?;
            return Ok(false);
        };
        let entry = before.changed(delta)?;
        let is_node = matches!(entry.location.kind, PieceKind::Node(_));
        if entry.count == 0 && !is_node {
            self.bury(id, &before)?;
        } else {
            piece_table::set(&self.tables.ntt, id, Some(&entry))?;
            self.note_dead(&before, Some(&entry));
        }
        Ok(entry.count == 0 && is_node)
    }

    fn count_first(&self, id: PieceId, delta: Delta) -> Result<()> {
        let missing = || Error::damaged("it is not counted: counts and references differ");
        if delta.count <= 0 {
            return Err(missing());
        }
        let location = self
            .lives
            .write()
            .begin_counting(id)
            .ok_or_else(|| Error::damaged("it is referred to but does not exist"))?;
        for extent in self.extent_lists.occupied(id, &location)? {
            space_map::mark(&self.tables.map, extent, true)?;
        }
        let entry = piece_table::PieceEntry { location, count: 0, live: 0 }.changed(delta)?;
        piece_table::set(&self.tables.ntt, id, Some(&entry))?;
        self.dead_values.fetch_add(entry.dead(), Ordering::Relaxed);
        self.lives.write().remove_fresh(id);
        self.extent_lists.counted(id);
        Ok(())
    }

    /// Lets a counted piece die: entered among the dead before it leaves the table, so that it can
    /// be located all the time.
    fn bury(&self, id: PieceId, entry: &piece_table::PieceEntry) -> Result<()> {
        let extents = self.extent_lists.occupied(id, &entry.location)?;
        self.extent_lists.keep_of(id, &entry.location)?;
        self.lives.write().die(id, entry.location, true);
        piece_table::set(&self.tables.ntt, id, None)?;
        for extent in extents {
            space_map::mark(&self.tables.map, extent, false)?;
        }
        self.note_dead(entry, None);
        self.gone(id);
        Ok(())
    }

    /// Keeps the sum of what is dead in value parts.
    fn note_dead(&self, before: &piece_table::PieceEntry, after: Option<&piece_table::PieceEntry>) {
        let after = after.map_or(0, piece_table::PieceEntry::dead);
        let change = |sum: u64| Some(sum.saturating_sub(before.dead()).saturating_add(after));
        let _ = self.dead_values.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
    }

    /// A node without references dies: its own references have been subtracted.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if it is unknown or has references, or what the device says; the
    /// device is latched then.
    pub(crate) fn forget(&self, id: PieceId) -> Result<()> {
        let _writer = self.writer.lock();
        self.device.writable()?;
        let forget = || match piece_table::get(&self.tables.ntt, &self.geometry(), id)? {
            Some(entry) if entry.count == 0 => self.bury(id, &entry),
            Some(entry) => Err(Error::damaged(format!("it has {} references", entry.count))),
            None => Err(Error::damaged("it is not counted")),
        };
        forget().context(|| format!("forgetting piece {id}")).map_err(|error| self.device.latch(error))
    }

    /// The page of the node translation table that a change of this piece's count changes.
    pub(crate) fn table_page_of(id: PieceId) -> u64 {
        id.0 / piece_table::PER_PAGE
    }

    /// The reference count of a piece; `None` if it is not counted.
    ///
    /// # Errors
    /// As for reading the node translation table.
    pub(crate) fn references(&self, id: PieceId) -> Result<Option<u32>> {
        Ok(piece_table::get(&self.tables.ntt, &self.geometry(), id)?.map(|entry| entry.count))
    }

    /// Writes what changed in the tables to new places. Nothing refers to them before
    /// [`Space::commit_superblock`] is called with the roots returned.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] leaves everything as it was, and the call may be repeated; any other
    /// error latches the device.
    pub(crate) fn write_tables(&self, volumes: &VolumeTable, reclaim: &[PieceId]) -> Result<Roots> {
        let _writer = self.writer.lock();
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
        for table in [&tables.ntt, &tables.volumes, &tables.reclaim] {
            for block in table.prune() {
                self.free_page(block)?;
            }
        }
        let mut near = None;
        for table in [&tables.ntt, &tables.volumes, &tables.reclaim] {
            self.place_pages(table, &mut near)?;
        }
        // Placing the map's own pages dirties map pages; there are finitely many, and none is
        // placed twice.
        while self.place_pages(&tables.map, &mut near)? {}
        let roots = Roots {
            ntt: tables.ntt.write()?,
            space_map: tables.map.write()?,
            volumes: tables.volumes.write()?,
            reclaim: tables.reclaim.write()?,
        };
        self.lives.write().tables_written();
        self.count_pages();
        Ok(roots)
    }

    /// Counts the pages of the tables once the store is so full that it matters, and each time from
    /// then on. To be called by the thread that may change the tables, while none of their pages is
    /// dirty.
    pub(super) fn count_pages(&self) {
        if self.free_blocks() < COUNT_PAGES_POOLS * self.reservations.pool() {
            self.tables.all().iter().for_each(|table| table.count_placed());
        }
        let placed: Option<u64> = self.tables.all().iter().map(|table| table.placed()).sum();
        self.tables.pages.store(placed.unwrap_or(0), Ordering::Relaxed);
    }

    /// Blocks that the pages take at most which a checkpoint writes, their copies aside, where it
    /// gives numbers to `new` pieces: all that there are, for any page may have to change, and
    /// those that the new ones begin. It is 0 as long as the store has been far from full.
    pub(crate) fn table_blocks(&self, new: u64) -> u64 {
        match self.tables.pages.load(Ordering::Relaxed) {
            0 => 0,
            placed => placed + new / piece_table::PER_PAGE + NEW_TABLE_PAGES,
        }
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
        self.lives.write().add_page(block);
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
        let _writer = self.writer.lock();
        let current = self.superblock();
        next.generation = current.generation + 1;
        next.next_piece = PieceId(self.next_piece.load(Ordering::Acquire));
        next.dead_values = self.dead_values.load(Ordering::Relaxed);
        (next.uuid, next.label, next.geometry, next.created) =
            (current.uuid, current.label, current.geometry, current.created);
        self.device.sync().context(|| "syncing a checkpoint".into())?;
        next.write(&self.device).context(|| "writing the superblock".into())?;
        next.write_spare(&self.device).context(|| "writing the spare superblock".into())?;
        self.device.sync().context(|| "syncing the superblock".into())?;
        // The other slot gets the same checkpoint, so that damage to either one takes nothing back.
        // It need not be durable before the next superblock is written, and a sync precedes that.
        next.generation += 1;
        next.write(&self.device).context(|| "writing the second superblock".into())?;
        if next.clean {
            self.device.sync().context(|| "syncing the second superblock".into())?;
        }
        *self.current.write() = next;
        self.release_obsolete();
        Ok(())
    }

    /// Tells the device about all free runs of at least `least` blocks; returns their blocks.
    /// Nothing that a superblock on the device, a reader or a handle needs is free. What is being
    /// told about cannot be allocated meanwhile, and that is never much at a time.
    pub(crate) fn trim(&self, least: u32) -> Result<u64> {
        let (mut from, mut told) = (self.geometry().data_start(), 0);
        loop {
            self.device.writable()?;
            let most = (self.free_blocks() / 8).clamp(1, MOST_TRIMMED_BLOCKS) as u32;
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

    fn release_obsolete(&self) {
        let pages = self.lives.write().superblock_written();
        self.release(&pages);
    }

    /// Frees the dead that nothing needs any more.
    pub(super) fn release_dead(&self) {
        self.release(&[]);
    }

    /// Frees the dead that nothing needs any more, and the blocks of some table pages.
    fn release(&self, pages: &[u64]) {
        let pieces = self.lives.write().take_released(&self.handles);
        let mut extents: Vec<Extent> =
            pieces.iter().flat_map(|(id, location)| self.extent_lists.vacated(*id, location)).collect();
        extents.extend(pages.iter().map(|block| Extent { start: *block, blocks: 1 }));
        extents.sort_unstable();
        // Discarded before they leave `used`: afterwards another thread may be writing there.
        if self.discard {
            for run in coalesce(&extents) {
                if run.blocks >= LEAST_DISCARD_BLOCKS {
                    self.device.discard(run);
                }
            }
        }
        self.free_blocks.put_back(&extents);
        pieces.iter().for_each(|(id, _)| self.gone(*id));
    }
}

/// Joins neighbours of a sorted list.
fn coalesce(extents: &[Extent]) -> Vec<Extent> {
    let mut runs: Vec<Extent> = Vec::new();
    for extent in extents {
        match runs.last_mut() {
            Some(last) if last.end() == extent.start => match last.blocks.checked_add(extent.blocks) {
                Some(sum) => last.blocks = sum,
                None => runs.push(*extent),
            },
            _ => runs.push(*extent),
        }
    }
    runs
}
