//! Records of reserved blocks: what is wrong with one.

use crate::model::error::Result;
use crate::model::layout::{self, DATA, METADATA};
use crate::model::record::{Inode, Record};
use crate::model::reserved_blocks::ReservedBlocks;
use crate::model::types::FileKind;
use espalier_engine::{IndexId, KeyRange, Snapshot};
use std::ops::Range;

/// The volume in which records are checked.
pub(crate) struct ReservedCheck<'a> {
    pub(crate) snapshot: &'a Snapshot,
    pub(crate) volume: u32,
    pub(crate) block_size: u64,
}

impl ReservedCheck<'_> {
    fn index(&self, index: u8) -> IndexId {
        IndexId { volume: self.volume, index }
    }

    /// What is wrong with the record `value` of the file at `base`; `is_orphan`: the file has no
    /// name.
    ///
    /// # Errors
    /// Of reading.
    pub(crate) fn fault(&self, base: &[u8], value: &[u8], is_orphan: bool) -> Result<Option<String>> {
        let reserved = match ReservedBlocks::decode(value) {
            Ok(reserved) => reserved,
            Err(error) => return Ok(Some(error.to_string())),
        };
        // The inode of a file without a name is in no index.
        if is_orphan {
            return Ok(None);
        }
        let inode = match self.snapshot.get(self.index(METADATA), base)?.map(|value| Record::decode(&value)) {
            Some(Ok(Record::Inode(inode))) if inode.kind == FileKind::Regular && inode.reserved => inode,
            _ => return Ok(Some("blocks are reserved for a file that does not say so".into())),
        };
        let mut absent = 0;
        for range in reserved.ranges() {
            absent += self.absent_in(base, &inode, range)?;
        }
        absent += reserved.begun().len() as u64;
        let wrong = absent != reserved.blocks();
        Ok(wrong.then(|| format!("{} blocks are reserved, and {absent} have no data", reserved.blocks())))
    }

    /// Blocks of a range that have no data.
    fn absent_in(&self, base: &[u8], inode: &Inode, range: &Range<u64>) -> Result<u64> {
        let end = inode.size.div_ceil(self.block_size).clamp(range.start, range.end);
        let keys = KeyRange::new(layout::block_key(base, range.start), layout::block_key(base, end));
        let mut absent = range.end - range.start;
        let mut cursor = self.snapshot.cursor(self.index(DATA), keys)?;
        while cursor.next()?.is_some() {
            absent -= 1;
        }
        Ok(absent)
    }
}
