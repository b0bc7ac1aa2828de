//! The data index, walked in step with the metadata, and what the orphan area says of it.

use crate::model::layout::{self, Parsed};
use crate::model::record::{Inode, XattrValue};
use espalier_engine::{Cursor, Entry};
use std::collections::BTreeSet;

/// A walk over the data index.
pub(crate) struct DataWalk {
    pub(crate) cursor: Cursor,
    /// The entry that the walk has come to.
    pub(crate) next: Option<Entry>,
}

impl DataWalk {
    pub(crate) fn new(cursor: Cursor) -> Self {
        Self { cursor, next: None }
    }

    /// What follows the base in the key of the next entry, if that belongs to the file at `base`.
    pub(crate) fn next_of<'a>(&'a self, base: &[u8]) -> Option<(&'a Entry, &'a [u8])> {
        let entry = self.next.as_ref()?;
        let rest = entry.key.strip_prefix(base).filter(|r| r.first().is_some_and(|b| *b <= 1))?;
        Some((entry, rest))
    }
}

/// The records of the orphan area.
#[derive(Default)]
pub(crate) struct OrphanRecords {
    /// Where the data of unlinked files lies.
    pub(crate) bases: BTreeSet<Vec<u8>>,
    /// The area holds removed trees.
    pub(crate) has_trees: bool,
}

impl OrphanRecords {
    /// True if a key of the data index belongs to an unlinked file or a removed tree.
    pub(crate) fn own(&self, key: &Parsed<'_>) -> bool {
        self.bases.contains(key.base) || (self.has_trees && key.prefix.starts_with(layout::ORPHAN_AREA))
    }

    /// True if what begins at `base` in the data index belongs to an unlinked file or a removed
    /// tree.
    pub(crate) fn have(&self, base: &[u8]) -> bool {
        layout::parse(base).is_some_and(|parsed| self.own(&parsed))
    }
}

/// What is wrong with the value of a large extended attribute, if anything. `rest`: its key behind
/// that of the entry.
pub(crate) fn xattr_fault(inode: &Inode, rest: &[u8], len: u64) -> Option<String> {
    let name = rest.get(1..).unwrap_or_default();
    match inode.xattrs.as_ref().and_then(|x| x.get(name)) {
        Some(XattrValue::Large(listed)) if u64::from(*listed) == len && rest[0] == 1 => None,
        _ => Some(format!(
            "the value of extended attribute {} does not belong to the entry",
            layout::show(name)
        )),
    }
}
