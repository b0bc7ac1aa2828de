//! Blocks: the data of one file in the data index, as operations on a batch and reads of the store.
//!
//! A file is cut into blocks of the volume's block size, one key each. An absent block and the
//! bytes behind the end of a short one read as zeros. No block reaches beyond the size of the file.
//! A write never reads: a block that it covers is inserted, others are patched.
//!
//! While a file is not marked sparse, every block below its size is present (blocks may be short
//! only where the file ends, or ended).

use crate::data::reservation;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::merge;
use crate::model::record::Inode;
use crate::model::types::{FileKind, Seek};
use crate::volume::context::VolumeContext;
use bytes::Bytes;
use espalier_engine::{Batch, IndexId, KeyRange, LARGE_VALUE, Slice, Store, Value};
use std::ops::Range;
use std::sync::Arc;

/// Up to this number blocks are deleted one by one: a range costs the tree more than a few keys,
/// and the keys of small files vanish in the range of their directory when that is removed.
pub(crate) const SINGLE_DELETES_MAX_BLOCKS: u64 = 8;
/// Files with more blocks move and are cloned as ranges, not block by block: the reference to a
/// block of a large value weighs about 230 bytes, in the log, in memory and on the way down, and
/// cutting a range out of the tree costs some node headers.
const SINGLE_MOVES_MAX_BLOCKS: u64 = 64;

/// Where the data of a file lies, for a read without lock.
pub(crate) struct DataSource {
    pub(crate) base: Arc<[u8]>,
    pub(crate) size: u64,
    pub(crate) sparse: bool,
    /// See [`Inode::reserved`].
    pub(crate) reserved: bool,
}

impl DataSource {
    /// The data at `base` of a file with `inode`.
    pub(crate) fn new(base: Arc<[u8]>, inode: &Inode) -> Self {
        Self { base, size: inode.size, sparse: inode.sparse, reserved: inode.reserved }
    }
}

/// The part of a byte range that lies in one block.
struct BlockSpan {
    block: u64,
    /// Offset in the block, and length.
    start: usize,
    len: usize,
}

/// Cuts `[offset, offset + len)` at block boundaries.
fn block_spans(offset: u64, len: usize, block_size: u32) -> impl Iterator<Item = BlockSpan> {
    let size = u64::from(block_size);
    let end = offset + len as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        let start = at % size;
        let len = (size - start).min(end - at);
        let span = BlockSpan { block: at / size, start: start as usize, len: len as usize };
        at += len;
        (len > 0).then_some(span)
    })
}

/// Units of 512 bytes that so many bytes take.
pub(crate) fn units(bytes: u64) -> u64 {
    bytes.div_ceil(512)
}

/// Number of blocks of a file of `size` bytes.
pub(crate) fn block_count(volume: &VolumeContext, size: u64) -> u64 {
    size.div_ceil(u64::from(volume.block_size))
}

/// True if a file has so many blocks that it moves and is cloned as a range.
pub(crate) fn moves_as_range(volume: &VolumeContext, inode: &Inode) -> bool {
    inode.kind == FileKind::Regular && block_count(volume, inode.size) > SINGLE_MOVES_MAX_BLOCKS
}

/// True if a file is sparse after it was resized from `old` to `size` bytes.
pub(crate) fn is_sparse_with(volume: &VolumeContext, size: u64, old: u64, was_sparse: bool) -> bool {
    size > 0 && (was_sparse || block_count(volume, size) > block_count(volume, old))
}

/// Fills `out` from `offset` as far as the file reaches; returns the number of bytes.
pub(crate) fn read(
    volume: &VolumeContext,
    source: &DataSource,
    offset: u64,
    out: &mut [u8],
) -> Result<usize> {
    read_by(Store::get_slices, volume, source, offset, out)
}

/// As [`read`] from the beginning of a small file, all of which `out` has room for. What was read
/// stays in the cache of the store, which reads ahead if files are read in the order of keys.
pub(crate) fn read_ahead_and_keep(
    volume: &VolumeContext,
    source: &DataSource,
    out: &mut [u8],
) -> Result<usize> {
    read_by(Store::get_slices_kept, volume, source, 0, out)
}

/// How the store is asked for slices.
type GetSlices = fn(&Store, IndexId, &[Slice<'_>], &mut [u8]) -> espalier_engine::Result<Vec<Option<usize>>>;

fn read_by(
    get: GetSlices,
    volume: &VolumeContext,
    source: &DataSource,
    offset: u64,
    out: &mut [u8],
) -> Result<usize> {
    let len = source.size.saturating_sub(offset).min(out.len() as u64) as usize;
    let spans: Vec<_> = block_spans(offset, len, volume.block_size).collect();
    let keys: Vec<_> = spans.iter().map(|span| layout::block_key(&source.base, span.block)).collect();
    let slice = |(span, key): (&BlockSpan, _)| Slice { key, offset: span.start, len: span.len };
    let slices: Vec<_> = spans.iter().zip(keys.iter().map(|key| &**key)).map(slice).collect();
    let stored = get(&volume.store, volume.data(), &slices, &mut out[..len])?;
    let mut done = 0;
    for (span, stored) in spans.iter().zip(stored) {
        let part = &mut out[done..done + span.len];
        part[stored.unwrap_or(0).saturating_sub(span.start).min(span.len)..].fill(0);
        done += span.len;
    }
    Ok(len)
}

/// Fills `out` with the whole content of a small file, as [`read`] does. It stays in the cache
/// of the store; nothing is read ahead. Returns the number of bytes.
pub(crate) fn read_and_keep(volume: &VolumeContext, source: &DataSource, out: &mut [u8]) -> Result<usize> {
    let len = source.size.min(out.len() as u64) as usize;
    for (block, part) in out[..len].chunks_mut(volume.block_size as usize).enumerate() {
        let stored = volume.store.get(volume.data(), &layout::block_key(&source.base, block as u64))?;
        let stored = stored.unwrap_or_default();
        let (data, zeros) = part.split_at_mut(stored.len().min(part.len()));
        data.copy_from_slice(&stored[..data.len()]);
        zeros.fill(0);
    }
    Ok(len)
}

/// Adds to a batch that the file at `base` has `data` at `offset`.
pub(crate) fn write(
    volume: &VolumeContext,
    base: &[u8],
    inode: &mut Inode,
    offset: u64,
    data: &[u8],
    batch: &mut Batch,
) {
    let block_size = u64::from(volume.block_size);
    let mut done = 0;
    for span in block_spans(offset, data.len(), volume.block_size) {
        let bytes = Bytes::copy_from_slice(&data[done..done + span.len]);
        done += span.len;
        let key = layout::block_key(base, span.block);
        let existing = inode.size.saturating_sub(span.block * block_size).min(block_size);
        if span.start == 0 && span.len as u64 >= existing {
            batch.insert(volume.data(), &key, bytes);
        } else {
            batch.patch(volume.data(), &key, span.start as u32, bytes);
        }
    }
    inode.sparse |= offset / block_size > block_count(volume, inode.size);
    inode.size = inode.size.max(offset + data.len() as u64);
}

/// Adds to a batch that the blocks from `first` on of a file of `size` bytes are deleted.
fn delete_from(volume: &VolumeContext, base: &[u8], first: u64, size: u64, batch: &mut Batch) {
    let end = block_count(volume, size);
    if end.saturating_sub(first) > SINGLE_DELETES_MAX_BLOCKS {
        batch.delete_range(volume.data(), layout::blocks_from(base, first));
    } else {
        (first..end).for_each(|block| batch.delete(volume.data(), &layout::block_key(base, block)));
    }
}

/// Adds to a batch that everything is deleted that a file has in the data index at `base`, and that
/// no blocks of it are reserved.
pub(crate) fn delete_all(
    volume: &VolumeContext,
    base: &[u8],
    inode: &Inode,
    batch: &mut Batch,
) -> Result<()> {
    reservation::drop_file(volume, base, inode, batch)?;
    delete_data(volume, base, inode, batch);
    Ok(())
}

/// Adds to a batch that everything is deleted that a file has in the data index at `base`.
pub(crate) fn delete_data(volume: &VolumeContext, base: &[u8], inode: &Inode, batch: &mut Batch) {
    if inode.kind == FileKind::Regular && !inode.has_large_xattrs() {
        delete_from(volume, base, 0, inode.size, batch);
    } else {
        batch.delete_range(volume.data(), layout::file_range(base));
    }
}

/// Adds to a batch that the file gets `size` bytes. `base` is asked for only if blocks have to go.
pub(crate) fn resize(
    volume: &VolumeContext,
    base: impl FnOnce() -> Arc<[u8]>,
    inode: &mut Inode,
    size: u64,
    batch: &mut Batch,
) {
    if size < inode.size {
        let base = base();
        delete_from(volume, &base, block_count(volume, size), inode.size, batch);
        let rest = (size % u64::from(volume.block_size)) as u32;
        if rest != 0 {
            let key = layout::block_key(&base, size / u64::from(volume.block_size));
            batch.update(volume.data(), &key, merge::TRUNCATE, rest.to_le_bytes().to_vec());
        }
    }
    inode.sparse = is_sparse_with(volume, size, inode.size, inode.sparse);
    inode.size = size;
}

/// Adds to a batch that `[offset, end)` reads as zeros, with holes where whole blocks are covered.
pub(crate) fn punch(
    volume: &VolumeContext,
    base: &[u8],
    inode: &mut Inode,
    offset: u64,
    end: u64,
    batch: &mut Batch,
) {
    let end = end.min(inode.size);
    if offset >= end {
        return;
    }
    let size = u64::from(volume.block_size);
    let zero = |batch: &mut Batch, from: u64, to: u64| {
        let argument = merge::zero_argument((from % size) as u32, (to - from) as u32);
        batch.update(volume.data(), &layout::block_key(base, from / size), merge::ZERO, argument);
    };
    let first = offset.div_ceil(size);
    // The last block of the file is covered if the range reaches its end.
    let last = if end == inode.size { block_count(volume, end) } else { end / size };
    if first < last {
        let (from, to) = (layout::block_key(base, first), layout::block_key(base, last));
        batch.delete_range(volume.data(), KeyRange::new(from, to));
        inode.sparse = true;
    }
    if !offset.is_multiple_of(size) {
        zero(batch, offset, end.min(first * size));
    }
    if end > last * size && last >= first {
        zero(batch, last * size, end);
    }
}

/// The next data or hole of a sparse file at or after `offset`.
pub(crate) fn seek(volume: &VolumeContext, source: &DataSource, offset: u64, what: Seek) -> Result<u64> {
    let size = u64::from(volume.block_size);
    let mut block = offset / size;
    let mut cursor = volume.store.cursor(volume.data(), layout::blocks_from(&source.base, block))?;
    while let Some(entry) = cursor.next()? {
        let found = layout::block_number(&entry.key[source.base.len()..]).unwrap_or(u64::MAX);
        match what {
            Seek::Data if found.saturating_mul(size) >= source.size => break,
            Seek::Data => return Ok(offset.max(found * size)),
            Seek::Hole if found > block => break,
            Seek::Hole => block += 1,
        }
    }
    match what {
        Seek::Data => fail(FsErrorKind::NoSuchOffset, "no data follows"),
        Seek::Hole => Ok(offset.max(block.saturating_mul(size)).min(source.size)),
    }
}

/// The first hole of a sparse file at or after `offset`, which lies inside the file. What lies
/// behind the end of the file is part of a hole, which then ends at `u64::MAX`.
pub(crate) fn next_hole(volume: &VolumeContext, source: &DataSource, offset: u64) -> Result<Range<u64>> {
    let size = u64::from(volume.block_size);
    let mut block = offset / size;
    let mut cursor = volume.store.cursor(volume.data(), layout::blocks_from(&source.base, block))?;
    while let Some(entry) = cursor.next()? {
        let found = layout::block_number(&entry.key[source.base.len()..]).unwrap_or(u64::MAX);
        if found.saturating_mul(size) >= source.size {
            break;
        }
        if found > block {
            return Ok(offset.max(block * size)..found * size);
        }
        block += 1;
    }
    Ok(offset.max(block.saturating_mul(size)).min(source.size)..u64::MAX)
}

/// Units of 512 bytes that a file takes, reserved blocks included.
pub(crate) fn count_all_units(volume: &VolumeContext, source: &DataSource) -> Result<u64> {
    let data = count_data_units(volume, source)?;
    let reserved = reservation::load(volume, &source.base, source.reserved)?;
    Ok(data + reserved.map_or(0, |reserved| reservation::count_units(volume, &reserved)))
}

/// Units of 512 bytes that the data of a file takes. What is counted of reserved blocks is beside
/// the data that they have: then each block counts with what it has.
pub(crate) fn count_data_units(volume: &VolumeContext, source: &DataSource) -> Result<u64> {
    match source.sparse || source.reserved {
        true => count_units(volume, &source.base, source.size),
        false => Ok(units(source.size)),
    }
}

/// Units of 512 bytes that the blocks at `base` take within the first `size` bytes.
fn count_units(volume: &VolumeContext, base: &[u8], size: u64) -> Result<u64> {
    let mut cursor = volume.store.cursor(volume.data(), layout::blocks_from(base, 0))?;
    let mut sum = 0;
    while let Some(entry) = cursor.next()? {
        let block = layout::block_number(&entry.key[base.len()..]).unwrap_or(u64::MAX);
        let rest = size.saturating_sub(block.saturating_mul(u64::from(volume.block_size)));
        if rest == 0 {
            break;
        }
        sum += units(rest.min(entry.value.len() as u64));
    }
    Ok(sum)
}

/// Adds to a batch that everything of a file in the data index moves, with the record of its
/// reserved blocks. Values move by reference.
pub(crate) fn move_all(
    volume: &VolumeContext,
    inode: &Inode,
    from: &[u8],
    to: &[u8],
    batch: &mut Batch,
) -> Result<()> {
    reservation::move_file(volume, inode, (from, to), batch)?;
    if moves_as_range(volume, inode) {
        let xattrs = inode.has_large_xattrs();
        for (from, to) in layout::file_prefixes(from, xattrs).zip(layout::file_prefixes(to, xattrs)) {
            batch.move_range(volume.data(), &from, &to);
        }
        return Ok(());
    }
    for_each_value(volume, inode, from, |key, value| {
        batch.insert(volume.data(), &layout::rebase(key, from, to), value)
    })?;
    delete_data(volume, from, inode, batch);
    Ok(())
}

/// Gives keys and values of everything that a file has in the data index at `base`.
pub(crate) fn for_each_value(
    volume: &VolumeContext,
    inode: &Inode,
    base: &[u8],
    mut each: impl FnMut(&[u8], Value),
) -> Result<()> {
    let is_tiny = inode.kind == FileKind::Regular && inode.size < LARGE_VALUE as u64;
    if is_tiny && !inode.has_large_xattrs() {
        // One key at most, whose value lies beside it: no need for a cursor.
        let key = layout::block_key(base, 0);
        if let Some(value) = volume.store.get(volume.data(), &key)? {
            each(&key, value.into());
        }
        return Ok(());
    }
    let mut cursor = volume.store.cursor(volume.data(), layout::file_range(base))?;
    while let Some(entry) = cursor.next()? {
        each(&entry.key, entry.value);
    }
    Ok(())
}
