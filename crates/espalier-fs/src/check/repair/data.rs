//! The data of files: what is missing, what does not belong to an entry, what the store has lost.

use crate::check::data_walk::{DataWalk, OrphanRecords, xattr_fault};
use crate::check::paths::path_of;
use crate::check::repair::writer::RepairWriter;
use crate::model::error::Result;
use crate::model::layout::{self, DATA, METADATA, Parsed};
use crate::model::record::{Inode, XattrValue};
use crate::model::types::FileKind;
use espalier_engine::{IndexId, Key, KeyRange, Loss};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

pub(crate) struct DataRepair {
    pub(crate) walk: DataWalk,
    pub(crate) orphans: OrphanRecords,
    pub(crate) block_size: u64,
    /// Ranges of the data index of which the store has lost something, ascending.
    pub(crate) lost: Vec<KeyRange>,
    /// Bytes of data without an entry, by the key that the entry would have.
    pub(crate) without_entry: BTreeMap<Key, u64>,
}

/// The walk over the data of one file.
#[derive(Default)]
struct FileWalk {
    /// Bytes that are missing.
    missing: ByteRanges,
    /// Holes that lie in what the store has lost.
    doubtful: ByteRanges,
    /// Names of the large extended attributes that are there.
    large: BTreeSet<Vec<u8>>,
    /// The end of the last block.
    due: u64,
}

impl DataRepair {
    /// Goes to the next key of the data index.
    pub(crate) fn advance(&mut self, writer: &mut RepairWriter<'_>) -> Result<()> {
        writer.count_key();
        self.walk.next = self.walk.cursor.next()?;
        Ok(())
    }

    /// Notes the data before that of `base` (to the end if `None`) that is no orphan's.
    pub(crate) fn skip_to(&mut self, base: Option<&[u8]>, writer: &mut RepairWriter<'_>) -> Result<()> {
        while let Some(entry) = &self.walk.next {
            match layout::parse(&entry.key).filter(|parsed| !parsed.rest.is_empty()) {
                Some(parsed) if base.is_some_and(|base| parsed.base >= base) => return Ok(()),
                Some(parsed) if self.orphans.own(&parsed) => {}
                Some(parsed) => {
                    let found = self.without_entry.entry(parsed.base.into()).or_default();
                    match layout::block_number(parsed.rest) {
                        Some(number) => {
                            let start = number.saturating_mul(self.block_size);
                            *found = (*found).max(start.saturating_add(entry.value.len() as u64));
                        }
                        None => writer.delete(DATA, &entry.key)?,
                    }
                }
                None => {
                    let message = "the key of data could not be understood; it is gone";
                    writer.tell(path_of(&entry.key), message, true);
                    writer.delete(DATA, &entry.key)?;
                }
            }
            self.advance(writer)?;
        }
        Ok(())
    }

    /// Goes through the data of one file or directory; returns its inode as it is to be.
    pub(crate) fn file_data(
        &mut self,
        parsed: &Parsed<'_>,
        inode: Inode,
        writer: &mut RepairWriter<'_>,
    ) -> Result<Inode> {
        self.skip_to(Some(parsed.base), writer)?;
        let mut walk = FileWalk::default();
        while let Some((entry, rest)) = self.walk.next_of(parsed.base) {
            if !self.keep(parsed, &inode, rest, entry.value.len() as u64, &mut walk) {
                writer.tell(parsed.path(), "data that did not belong to it is gone", false);
                writer.delete(DATA, &entry.key)?;
            }
            self.advance(writer)?;
        }
        if inode.kind == FileKind::Regular && walk.due < inode.size {
            self.miss(parsed, &inode, inode.size, &mut walk);
        }
        let mut mended = inode.clone();
        for range in &walk.missing.0 {
            let message = format!("bytes {} to {} are lost and read as zeros", range.start, range.end);
            writer.tell(parsed.path(), message, true);
            mended.sparse = true;
        }
        for range in &walk.doubtful.0 {
            let message = format!(
                "bytes {} to {} read as zeros: something there may be lost (the file has holes)",
                range.start, range.end
            );
            writer.tell(parsed.path(), message, true);
        }
        drop_lost_xattrs(parsed, &mut mended, &walk.large, writer);
        if mended != inode {
            writer.put(METADATA, parsed.base, mended.encode())?;
        }
        Ok(mended)
    }

    /// Sees one value of a file; false if it does not belong to it.
    fn keep(&self, parsed: &Parsed<'_>, inode: &Inode, rest: &[u8], len: u64, walk: &mut FileWalk) -> bool {
        let Some(number) = layout::block_number(rest) else {
            return xattr_fault(inode, rest, len).is_none() && walk.large.insert(rest[1..].to_vec());
        };
        let start = number.saturating_mul(self.block_size);
        let most = inode.size.saturating_sub(start).min(self.block_size);
        if inode.kind == FileKind::Regular && start > walk.due {
            self.miss(parsed, inode, start.min(inode.size), walk);
        }
        walk.due = start.saturating_add(self.block_size);
        inode.kind == FileKind::Regular && len <= most && most > 0
    }

    /// Blocks are missing from the end of the last one to `end`.
    fn miss(&self, parsed: &Parsed<'_>, inode: &Inode, end: u64, walk: &mut FileWalk) {
        match inode.sparse {
            true => self.lost_of(parsed.base, walk.due..end, &mut walk.doubtful),
            false => walk.missing.add(walk.due..end),
        }
    }

    /// Notes the bytes of a file in `hole` that lie in ranges which the store has lost.
    fn lost_of(&self, base: &[u8], hole: Range<u64>, doubtful: &mut ByteRanges) {
        let first = self.lost.partition_point(|lost| {
            lost.end.as_ref().is_some_and(|end| self.offset_of(base, end) <= hole.start)
        });
        for lost in &self.lost[first..] {
            let start = self.offset_of(base, &lost.start).max(hole.start);
            let end = lost.end.as_ref().map_or(u64::MAX, |end| self.offset_of(base, end)).min(hole.end);
            if start >= hole.end {
                return;
            }
            if start < end {
                doubtful.add(start..end);
            }
        }
    }

    /// The first byte of a file whose block does not lie before `key`.
    fn offset_of(&self, base: &[u8], key: &[u8]) -> u64 {
        if *key <= *layout::block_key(base, 0) {
            return 0;
        }
        let Some([layout::BLOCK, rest @ ..]) = key.strip_prefix(base) else { return u64::MAX };
        let mut number = [0; 8];
        let length = rest.len().min(8);
        number[..length].copy_from_slice(&rest[..length]);
        let behind = u64::from(rest.len() > 8);
        u64::from_be_bytes(number).saturating_add(behind).saturating_mul(self.block_size)
    }
}

/// Removes from an inode the large extended attributes that are not there.
fn drop_lost_xattrs(
    parsed: &Parsed<'_>,
    inode: &mut Inode,
    there: &BTreeSet<Vec<u8>>,
    writer: &mut RepairWriter<'_>,
) {
    let Some(xattrs) = &inode.xattrs else { return };
    let is_lost =
        |name: &[u8], value: &XattrValue| matches!(value, XattrValue::Large(_)) && !there.contains(name);
    let lost: Vec<Box<[u8]>> =
        xattrs.iter().filter(|(name, value)| is_lost(name, value)).map(|(name, _)| name.clone()).collect();
    if lost.is_empty() {
        return;
    }
    let mut kept = (**xattrs).clone();
    for name in lost {
        kept.remove(&name);
        let message = format!("the extended attribute {} is lost", layout::show(&name));
        writer.tell(parsed.path(), message, true);
    }
    inode.xattrs = (!kept.is_empty()).then(|| Arc::new(kept));
}

/// Ranges of bytes, neighbours joined.
#[derive(Default)]
struct ByteRanges(Vec<Range<u64>>);

impl ByteRanges {
    fn add(&mut self, range: Range<u64>) {
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.0.push(range),
        }
    }
}

/// The ranges of a volume's data index in which something is lost, ascending and disjoint.
pub(crate) fn lost_data(volume: u32, losses: &[Loss]) -> Vec<KeyRange> {
    let index = IndexId { volume, index: DATA };
    let mut ranges: Vec<KeyRange> = losses
        .iter()
        .filter(|loss| loss.index == Some(index))
        .filter_map(|loss| loss.range.clone())
        .collect();
    ranges.sort_by(|a, b| a.start.cmp(&b.start));
    let mut joined: Vec<KeyRange> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end.as_ref().is_none_or(|end| range.start <= *end) => {
                last.end = match (last.end.take(), range.end) {
                    (Some(a), Some(b)) => Some(a.max(b)),
                    _ => None,
                };
            }
            _ => joined.push(range),
        }
    }
    joined
}
