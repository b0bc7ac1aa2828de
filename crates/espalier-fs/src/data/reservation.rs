//! Reservations: room that `fallocate` keeps for blocks of a file which are not written yet.
//!
//! A file that has some bears a flag, and a record in the *reservation area* of the metadata index
//! says which blocks they are. The key of the record is that of the file's data with a prefix, so
//! records move and go with files and directories, by the same kinds of operations, in the same
//! batches; and as the area is no part of any tree, a clone or snapshot of a directory has none.
//!
//! The store keeps room for the blocks of all records ([`espalier_engine::Store::keep`]), and a
//! batch that writes one of them, or gives one up, draws on it. The sum is not stored: opening a
//! volume counts the records.
//!
//! Invariant: a reserved block has no data; but for a few that are *begun*, which can get longer. A
//! block is no longer reserved when it is as long as it can get: then it has what was kept for it,
//! and later writes to it replace what is there; nor when the file is cut within its data: what was
//! reserved lay behind the new end. If more than a few are begun, the oldest gets zeros up to its
//! end.
//!
//! Only `fallocate` asks for room. Everything else leaves blocks reserved or takes them out, and a
//! block keeps the same share whatever other blocks there are: so it never needs more than is kept.

use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{Inode, Record};
use crate::model::reserved_blocks::ReservedBlocks;
use crate::volume::context::VolumeContext;
use espalier_engine::{Batch, KeyRange, Store};
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// The unit in which the blocks of a file are counted.
const UNIT_BYTES: u64 = 512;
/// So many ranges of reserved blocks are stored as they are.
const FEW_RANGES: usize = 64;
/// So many reserved blocks may be begun.
const FEW_BEGUN: usize = 8;
/// So many ranges are stored at most, of a file with as many holes between them.
const MOST_RANGES: usize = 1 << 15;

/// Bytes that a store keeps for the reserved blocks of one file.
pub(crate) fn kept_bytes(store: &Store, block_size: u64, reserved: &ReservedBlocks) -> u64 {
    store.room_for(reserved.blocks(), block_size, reserved.bytes(block_size))
}

/// The same in this volume, if there are any.
fn cost(volume: &VolumeContext, reserved: Option<&ReservedBlocks>) -> u64 {
    reserved.map_or(0, |reserved| kept_bytes(&volume.store, u64::from(volume.block_size), reserved))
}

/// The reserved blocks of the file at `base`, whose inode says whether it may have any.
pub(crate) fn load(volume: &VolumeContext, base: &[u8], reserved: bool) -> Result<Option<ReservedBlocks>> {
    if !reserved {
        return Ok(None);
    }
    let stored = volume.store.get(volume.metadata(), &layout::reservation_key(base))?;
    stored.map(|value| ReservedBlocks::decode(&value)).transpose()
}

/// Adds to a batch that the file at `base`, which had `old`, has `new` reserved blocks. What the
/// store keeps for more blocks than before was asked for; for fewer the batch draws on it.
pub(crate) fn put(
    volume: &VolumeContext,
    base: &[u8],
    inode: &mut Inode,
    (old, new): (Option<&ReservedBlocks>, Option<&ReservedBlocks>),
    batch: &mut Batch,
) {
    let new = new.filter(|new| new.blocks() > 0);
    inode.reserved = new.is_some();
    let key = layout::reservation_key(base);
    match new {
        Some(new) => batch.insert(volume.metadata(), &key, new.encode()),
        None if old.is_some() => batch.delete(volume.metadata(), &key),
        None => {}
    }
    batch.draw(cost(volume, old).saturating_sub(cost(volume, new)));
}

/// Adds to a batch that a file which is deleted has no reserved blocks any more.
pub(crate) fn drop_file(volume: &VolumeContext, base: &[u8], inode: &Inode, batch: &mut Batch) -> Result<()> {
    if let Some(old) = load(volume, base, inode.reserved)? {
        batch.delete(volume.metadata(), &layout::reservation_key(base));
        batch.draw(cost(volume, Some(&old)));
    }
    Ok(())
}

/// True if a file below a content prefix has reserved blocks.
pub(crate) fn any_below(volume: &VolumeContext, prefix: &[u8]) -> Result<bool> {
    if !volume.has_reservations() {
        return Ok(false);
    }
    let range = KeyRange::prefix(&layout::reservation_key(prefix));
    Ok(volume.store.cursor(volume.metadata(), range)?.next()?.is_some())
}

/// Bytes of the reserved blocks of all files whose data begins with `prefix`.
pub(crate) fn reserved_below(volume: &VolumeContext, prefix: &[u8]) -> Result<u64> {
    if !volume.has_reservations() {
        return Ok(0);
    }
    let range = KeyRange::prefix(&layout::reservation_key(prefix));
    let mut cursor = volume.store.cursor(volume.metadata(), range)?;
    let mut bytes = 0_u64;
    while let Some(entry) = cursor.next()? {
        let record = ReservedBlocks::decode(&cursor.read(&entry.value)?)?;
        bytes = bytes.saturating_add(record.bytes(u64::from(volume.block_size)));
    }
    Ok(bytes)
}

/// Adds to a batch that the reserved blocks of all files below a content prefix move with them.
pub(crate) fn move_below(
    volume: &VolumeContext,
    (from, to): (&[u8], &[u8]),
    batch: &mut Batch,
) -> Result<()> {
    if any_below(volume, from)? {
        let [from, to] = [from, to].map(layout::reservation_key);
        batch.move_range(volume.metadata(), &from, &to);
    }
    Ok(())
}

/// Adds to a batch that what is deleted below a content prefix has no reserved blocks any more.
pub(crate) fn drop_below(volume: &VolumeContext, prefix: &[u8], batch: &mut Batch) -> Result<()> {
    if !volume.has_reservations() {
        return Ok(());
    }
    let range = KeyRange::prefix(&layout::reservation_key(prefix));
    let mut cursor = volume.store.cursor(volume.metadata(), range.clone())?;
    let mut found = false;
    while let Some(entry) = cursor.next()? {
        let record = ReservedBlocks::decode(&cursor.read(&entry.value)?)?;
        batch.draw(cost(volume, Some(&record)));
        found = true;
    }
    if found {
        batch.delete_range(volume.metadata(), range);
    }
    Ok(())
}

/// The record of a file that moves; the caller puts it into the new place.
pub(crate) fn moving_record(volume: &VolumeContext, base: &[u8], inode: &Inode) -> Result<Option<Vec<u8>>> {
    Ok(load(volume, base, inode.reserved)?.map(|record| record.encode()))
}

/// Adds to a batch that the reserved blocks of a file move with its data.
pub(crate) fn move_file(
    volume: &VolumeContext,
    inode: &Inode,
    (from, to): (&[u8], &[u8]),
    batch: &mut Batch,
) -> Result<()> {
    if let Some(record) = moving_record(volume, from, inode)? {
        batch.delete(volume.metadata(), &layout::reservation_key(from));
        batch.insert(volume.metadata(), &layout::reservation_key(to), record);
    }
    Ok(())
}

/// Counts the reserved blocks of a volume, and has the store keep room for them. Records whose file
/// is gone, because it was in use without a name when a crash came, are deleted; but not those of
/// files without a name that are `in_use`, by the keys at which their data begins.
pub(crate) fn open(volume: &VolumeContext, in_use: &HashSet<Arc<[u8]>>) -> Result<()> {
    let mut cursor = volume.store.cursor(volume.metadata(), layout::reservations_range())?;
    let (mut batch, mut bytes) = (Batch::new(), 0_u64);
    while let Some(entry) = cursor.next()? {
        let base = &entry.key[layout::RESERVATION_AREA.len()..];
        let record = ReservedBlocks::decode(&cursor.read(&entry.value)?)?;
        if in_use.contains(base) || is_file(volume, base)? {
            bytes = bytes.saturating_add(cost(volume, Some(&record)));
        } else {
            batch.delete(volume.metadata(), &entry.key);
        }
    }
    if !batch.is_empty() {
        volume.commit_internal(batch)?;
    }
    if bytes > 0 {
        volume.note_reservations();
    }
    volume.store.keep_again(bytes);
    Ok(())
}

/// True if the entry of a file with reserved blocks lies at `base`.
fn is_file(volume: &VolumeContext, base: &[u8]) -> Result<bool> {
    let Some(value) = volume.store.get(volume.metadata(), base)? else { return Ok(false) };
    Ok(matches!(Record::decode(&value), Ok(Record::Inode(inode)) if inode.reserved))
}

/// Which blocks of a range of the file at `base` are reserved.
fn reserved_in(
    volume: &VolumeContext,
    (base, inode): (&[u8], &Inode),
    reserved: &ReservedBlocks,
    range: Range<u64>,
) -> Result<Vec<Range<u64>>> {
    let parts = reserved.overlap(range);
    if reserved.is_exact() {
        return Ok(parts);
    }
    let mut found = ReservedBlocks::default();
    for part in parts {
        for absent in absent_in(volume, (base, inode), part.clone())? {
            found.add(absent);
        }
        let begun = reserved.begun().iter().filter(|(block, _)| part.contains(block));
        begun.for_each(|(block, _)| found.add(*block..block + 1));
    }
    Ok(found.ranges().to_vec())
}

/// Which blocks of a range have no data.
fn absent_in(
    volume: &VolumeContext,
    (base, inode): (&[u8], &Inode),
    range: Range<u64>,
) -> Result<Vec<Range<u64>>> {
    // Behind the file there is nothing.
    let end = inode.size.div_ceil(u64::from(volume.block_size)).clamp(range.start, range.end);
    let (mut absent, mut next) = (Vec::new(), if inode.sparse { range.start } else { end });
    if next < end {
        let keys = KeyRange::new(layout::block_key(base, next), layout::block_key(base, end));
        let mut cursor = volume.store.cursor(volume.data(), keys)?;
        while let Some(entry) = cursor.next()? {
            let Some(block) = layout::block_number(&entry.key[base.len()..]) else { continue };
            if block > next {
                absent.push(next..block);
            }
            next = block + 1;
        }
    }
    if next < range.end {
        absent.push(next..range.end);
    }
    Ok(absent)
}

/// Units of 512 bytes that reserved blocks take beside their data.
pub(crate) fn count_units(volume: &VolumeContext, reserved: &ReservedBlocks) -> u64 {
    let lengths = || reserved.begun().iter().map(|(_, length)| u64::from(*length));
    let all = reserved.bytes(u64::from(volume.block_size)).saturating_add(lengths().sum());
    // What blocks have is counted with the data, each block by itself.
    let data: u64 = lengths().map(|length| length.div_ceil(UNIT_BYTES)).sum();
    all.div_ceil(UNIT_BYTES).saturating_sub(data)
}

/// What is known about a write.
pub(crate) struct Written {
    /// It goes only where room is kept or data is already: it takes nothing that it does not have.
    pub(crate) is_covered: bool,
    /// So many zeros have to be written before it, so that what a block takes is known.
    pub(crate) gap: usize,
}

/// What a change of a file's size or data finds reserved, and leaves so.
pub(crate) struct ReservationChange<'a> {
    volume: &'a VolumeContext,
    base: &'a [u8],
    old: Option<ReservedBlocks>,
    new: Option<ReservedBlocks>,
}

impl<'a> ReservationChange<'a> {
    /// A change of the file at `base`, which has `inode`.
    pub(crate) fn new(volume: &'a VolumeContext, base: &'a [u8], inode: &Inode) -> Result<Self> {
        let old = load(volume, base, inode.reserved)?;
        Ok(Self { volume, base, new: old.clone(), old })
    }

    /// The blocks that `len` bytes at `offset` lie in.
    fn touched(&self, offset: u64, len: u64) -> Range<u64> {
        let size = u64::from(self.volume.block_size);
        offset / size..(offset + len).div_ceil(size)
    }

    /// Notes that data is written to a file with `inode`.
    pub(crate) fn write(&mut self, inode: &Inode, offset: u64, len: u64) -> Result<Written> {
        let size = u64::from(self.volume.block_size);
        let end = offset + len;
        let is_dense = self.is_dense(inode);
        let touched = self.touched(offset, len);
        self.grow(inode, offset, end);
        let Some(reserved) = &mut self.new else {
            return Ok(Written { is_covered: is_dense && end <= inode.size, gap: 0 });
        };
        let found = reserved_in(self.volume, (self.base, inode), reserved, touched.clone())?;
        let full = if is_dense { inode.size / size } else { 0 };
        let known = |block: u64| block < full || found.iter().any(|range| range.contains(&block));
        let is_covered = (is_dense && end <= inode.size) || touched.clone().all(known);
        let start = (offset % size) as u32;
        let gap = match found.first() {
            Some(range) if range.start == touched.start => {
                start.saturating_sub(reserved.length_of(touched.start))
            }
            _ => 0,
        };
        // Blocks up to here are as long as they can get.
        let reached = match reserved.tail() {
            Some((tail, bytes)) if tail == end / size && u64::from(bytes) <= end % size => tail + 1,
            _ => end / size,
        };
        for range in found {
            let reached = range.start..range.end.min(reached);
            reserved.remove(reached.clone(), reached.end.saturating_sub(reached.start));
            if range.end > reached.end.max(range.start) {
                reserved.begin(range.end - 1, (end % size) as u32);
            }
        }
        Ok(Written { is_covered, gap: gap as usize })
    }

    /// Adds to a batch that blocks which are begun, beside a few, get zeros up to their ends, of a
    /// file that has `size` bytes then.
    pub(crate) fn complete(&mut self, size: u64, batch: &mut Batch) {
        let block_size = u64::from(self.volume.block_size);
        let Some(reserved) = &mut self.new else { return };
        while reserved.begun().len() > FEW_BEGUN {
            let whole = |(block, _): &&(u64, u32)| (block + 1) * block_size <= size;
            let Some(&(block, length)) = reserved.begun().iter().find(whole) else { return };
            let zeros = vec![0; (block_size - u64::from(length)) as usize];
            batch.patch(self.volume.data(), &layout::block_key(self.base, block), length, zeros);
            reserved.remove(block..block + 1, 1);
        }
    }

    /// Notes that a file with `inode` gets `size` bytes, if these are more, with data from byte
    /// `offset` on; `u64::MAX`: with none.
    pub(crate) fn grow(&mut self, inode: &Inode, offset: u64, size: u64) {
        let block_size = u64::from(self.volume.block_size);
        let is_dense = self.is_dense(inode);
        let Some(reserved) = self.new.as_mut().filter(|_| size > inode.size) else { return };
        let skipped = inode.size.div_ceil(block_size)..(offset / block_size).min(size.div_ceil(block_size));
        let is_reserved = skipped.start >= skipped.end || reserved.overlap(skipped.clone()) == [skipped];
        reserved.dense = is_dense && is_reserved;
    }

    /// A file with `inode` is cut to `size` bytes.
    pub(crate) fn cut(&mut self, inode: &Inode, size: u64) -> Result<()> {
        let block_size = u64::from(self.volume.block_size);
        self.give_up(inode, size.div_ceil(block_size)..u64::MAX)?;
        let (last, end) = (size / block_size, (size % block_size) as u32);
        if let Some(reserved) = &mut self.new
            && end > 0
            && reserved.length_of(last) >= end
        {
            reserved.remove(last..last + 1, 1);
        }
        Ok(())
    }

    /// Blocks of this range are no longer reserved, whatever becomes of their data.
    pub(crate) fn give_up(&mut self, inode: &Inode, range: Range<u64>) -> Result<()> {
        let Some(reserved) = self.new.as_mut().filter(|_| range.start < range.end) else { return Ok(()) };
        let given_up = reserved_in(self.volume, (self.base, inode), reserved, range.clone())?;
        reserved.remove(range, given_up.iter().map(|range| range.end - range.start).sum());
        Ok(())
    }

    /// Blocks of the range that have no data, of a file with `inode`, become reserved, and the last
    /// block of the file if it can get longer.
    pub(crate) fn reserve(&mut self, inode: &Inode, range: Range<u64>) -> Result<()> {
        let absent = absent_in(self.volume, (self.base, inode), range.clone())?;
        absent.into_iter().for_each(|range| self.reserve_absent(range));
        let block_size = u64::from(self.volume.block_size);
        let (last, end) = (inode.size / block_size, inode.size % block_size);
        if end > 0 && range.contains(&last) {
            let reserved = self.new.get_or_insert_default();
            if reserved_in(self.volume, (self.base, inode), reserved, last..last + 1)?.is_empty() {
                reserved.remove(last..last + 1, 0);
                reserved.add(last..last + 1);
                reserved.begin(last, end as u32);
            }
        }
        Ok(())
    }

    /// Of the last block before `end` only the bytes up to there are reserved, if none was before,
    /// and no block behind it; none if it has so many.
    pub(crate) fn reserve_part(&mut self, end: u64) {
        let block_size = u64::from(self.volume.block_size);
        let (tail, bytes) = (end / block_size, (end % block_size) as u32);
        let Some(reserved) = self.new.as_mut().filter(|_| bytes > 0) else { return };
        let known = match &self.old {
            Some(old) if !old.overlap(tail..tail + 1).is_empty() => {
                old.tail().filter(|(old, _)| *old == tail).map(|(_, bytes)| bytes)
            }
            _ => Some(0),
        };
        if let Some(known) = known
            && reserved.tail().is_none()
            && reserved.ranges().last().is_some_and(|last| last.end == tail + 1)
        {
            let bytes = bytes.max(known);
            match reserved.length_of(tail) >= bytes {
                true => reserved.remove(tail..tail + 1, 1),
                false => reserved.set_tail(tail, bytes),
            }
        }
    }

    /// These blocks, which have no data, become reserved.
    pub(crate) fn reserve_absent(&mut self, range: Range<u64>) {
        if range.start < range.end {
            self.new.get_or_insert_default().add(range);
        }
    }

    /// Units of 512 bytes that the reserved blocks take beside their data after the change.
    pub(crate) fn units(&self) -> u64 {
        self.new.as_ref().map_or(0, |reserved| count_units(self.volume, reserved))
    }

    /// Every block of the file is there or reserved now; or that is not known any more.
    pub(crate) fn set_dense(&mut self, dense: bool) {
        self.new.iter_mut().for_each(|reserved| reserved.dense = dense);
    }

    /// See [`ReservationChange::set_dense`].
    pub(crate) fn is_dense(&self, inode: &Inode) -> bool {
        !inode.sparse || self.new.as_ref().is_some_and(|reserved| reserved.dense)
    }

    /// Bytes that the store has to keep in addition.
    pub(crate) fn more(&self) -> u64 {
        let bytes = |reserved: &Option<ReservedBlocks>| cost(self.volume, reserved.as_ref());
        bytes(&self.new).saturating_sub(bytes(&self.old))
    }

    /// Keeps the list short: neighbouring ranges become one where all between them has data.
    fn shorten(&mut self, inode: &Inode) -> Result<()> {
        let Some(reserved) = self.new.as_mut().filter(|reserved| reserved.ranges().len() > FEW_RANGES) else {
            return Ok(());
        };
        for gap in reserved.gaps() {
            if gap.end * u64::from(self.volume.block_size) <= inode.size
                && absent_in(self.volume, (self.base, inode), gap.clone())?.is_empty()
            {
                reserved.join(gap);
                if reserved.ranges().len() <= FEW_RANGES {
                    return Ok(());
                }
            }
        }
        if reserved.ranges().len() > MOST_RANGES {
            return fail(FsErrorKind::NoSpace, "the reserved blocks lie in too many places");
        }
        Ok(())
    }

    /// Adds the change to a batch, of a file that had `before`.
    pub(crate) fn put(mut self, before: &Inode, inode: &mut Inode, batch: &mut Batch) -> Result<()> {
        self.shorten(before)?;
        let Self { volume, base, old, new } = self;
        let ends = inode.size.div_ceil(u64::from(volume.block_size));
        if let Some(new) = &new
            && new.dense
            && new.overlap(0..ends).is_empty()
        {
            inode.sparse = false;
        }
        if old.is_some() || new.is_some() {
            put(volume, base, inode, (old.as_ref(), new.as_ref()), batch);
        } else {
            inode.reserved = false;
        }
        Ok(())
    }
}

/// Keeps room for a change, as far as it needs more; gives it back unless the change is made.
pub(crate) struct KeptRoom<'a> {
    volume: &'a VolumeContext,
    bytes: u64,
}

impl<'a> KeptRoom<'a> {
    /// Asks for `bytes` bytes.
    ///
    /// # Errors
    /// [`FsErrorKind::NoSpace`].
    pub(crate) fn ask(volume: &'a VolumeContext, bytes: u64) -> Result<Self> {
        if bytes > 0 {
            volume.store.keep(bytes)?;
            volume.note_reservations();
        }
        Ok(Self { volume, bytes })
    }

    /// The change is made.
    pub(crate) fn used(mut self) {
        self.bytes = 0;
    }
}

impl Drop for KeptRoom<'_> {
    fn drop(&mut self) {
        self.volume.store.stop_keeping(self.bytes);
    }
}
