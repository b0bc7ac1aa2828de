//! The links index: which entries are names of files that lie in a link area, by path.
//!
//! It maps the key of such an entry to the number of the file in its area, and has a mark at the
//! content prefix of every directory with a link area of its own, so that a walk over the names
//! that one area serves can step over the names that another area serves. The value of the mark
//! ([`AreaMark`]) says whether the link counts in the area are right, and whose ownership marks
//! names that lead there may contradict.

use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::record::{AreaMark, Inode, Record};
use crate::volume::context::VolumeContext;
use espalier_engine::{Cursor, Key, KeyRange, Within};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// So many keys are looked at before a search asks whether to go on.
const KEYS_WITHOUT_ASKING: u32 = 1024;

/// A clone looks at so many names in a row that are gone, and not at more.
const MAX_NAMES_GONE: usize = 256;

/// The first clone of a directory waits so long for names that are gone to leave the index.
const SETTLE_LIMIT: Duration = Duration::from_millis(200);

/// What a search for a stale area came to.
pub(crate) enum StaleSearch {
    /// The directory with this content prefix has one.
    Found(Key),
    /// It was to stop; what lies before this key has none.
    Reached(Key),
    /// There is none.
    End,
}

pub(crate) struct LinkIndex {
    volume: Arc<VolumeContext>,
    /// The index may have keys; in a volume without second names nothing has to be looked up.
    in_use: AtomicBool,
}

impl LinkIndex {
    pub(crate) fn open(volume: Arc<VolumeContext>) -> Result<Self> {
        let any = volume.store.cursor(volume.links(), KeyRange::all())?.next()?.is_some();
        Ok(Self { volume, in_use: AtomicBool::new(any) })
    }

    /// True if the index may have keys.
    pub(crate) fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Relaxed)
    }

    /// Keys were committed.
    pub(crate) fn set_in_use(&self) {
        self.in_use.store(true, Ordering::Relaxed);
    }

    /// The mark of the area of the directory with this content prefix. Without one, which only the
    /// root may be, counts are right and no owner is doubted.
    pub(crate) fn area_mark(&self, prefix: &[u8]) -> Result<AreaMark> {
        let mark = self.volume.store.get(self.volume.links(), prefix)?;
        mark.map_or_else(|| Ok(AreaMark::default()), |mark| AreaMark::decode(&mark))
    }

    /// True if the link counts in the area of the directory with this content prefix are stale.
    pub(crate) fn has_stale_counts(&self, prefix: &[u8]) -> Result<bool> {
        Ok(self.area_mark(prefix)?.stale_counts)
    }

    /// The content prefix of the first directory, at `from` or behind it, whose link area has stale
    /// counts. Looks for it as long as `goes_on` returns true, which is asked now and then.
    pub(crate) fn find_stale(&self, from: &[u8], mut goes_on: impl FnMut() -> bool) -> Result<StaleSearch> {
        let range = KeyRange { start: from.into(), end: None };
        let mut cursor = self.volume.store.cursor(self.volume.links(), range)?;
        let mut seen = 0u32;
        while let Some(entry) = cursor.next()? {
            seen += 1;
            if seen.is_multiple_of(KEYS_WITHOUT_ASKING) && !goes_on() {
                return Ok(StaleSearch::Reached(entry.key));
            }
            if entry.key.is_empty() || layout::is_area_mark(&entry.key) {
                let mark = cursor.read(&entry.value)?;
                if AreaMark::decode(&mark)?.stale_counts {
                    return Ok(StaleSearch::Found(entry.key));
                }
            }
        }
        Ok(StaleSearch::End)
    }

    /// Gives key and number of every name below content prefix `prefix` whose file lies in the area
    /// that serves that directory, until `each` returns false.
    pub(crate) fn for_each_below(&self, prefix: &[u8], each: impl FnMut(&Key, u64) -> bool) -> Result<()> {
        if !self.is_in_use() {
            return Ok(());
        }
        let cursor = self.volume.store.cursor(self.volume.links(), KeyRange::prefix(prefix))?;
        Self::for_each_of(cursor, prefix, each)
    }

    /// As [`LinkIndex::for_each_below`], by a cursor over the keys with that prefix.
    pub(crate) fn for_each_of(
        mut cursor: Cursor,
        prefix: &[u8],
        mut each: impl FnMut(&Key, u64) -> bool,
    ) -> Result<()> {
        while let Some(entry) = cursor.next()? {
            if *entry.key == *prefix {
                continue;
            }
            if layout::is_area_mark(&entry.key) {
                match KeyRange::prefix(&entry.key).end {
                    Some(behind) => cursor.seek(&behind),
                    None => return Ok(()),
                }
                continue;
            }
            let value = cursor.read(&entry.value)?;
            let Ok(id) = value[..].try_into().map(u64::from_le_bytes) else {
                return fail(FsErrorKind::Io, "an entry of the links index is damaged");
            };
            if !each(&entry.key, id) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// True if there is a name below `prefix` whose file lies in the area that serves it.
    pub(crate) fn has_names_below(&self, prefix: &[u8]) -> Result<bool> {
        let mut any = false;
        self.for_each_below(prefix, |_, _| {
            any = true;
            false
        })?;
        Ok(any)
    }

    /// As [`LinkIndex::has_names_below`], but also true if only a look at many names that are gone
    /// could tell.
    pub(crate) fn may_have_names_below(&self, prefix: &[u8]) -> Result<bool> {
        if !self.is_in_use() {
            return Ok(false);
        }
        let mut cursor = self.volume.store.cursor(self.volume.links(), KeyRange::prefix(prefix))?;
        loop {
            match cursor.next_within(MAX_NAMES_GONE)? {
                Within::End => return Ok(false),
                Within::Entry(entry) if *entry.key == *prefix => {}
                Within::Entry(entry) if layout::is_area_mark(&entry.key) => {
                    match KeyRange::prefix(&entry.key).end {
                        Some(behind) => cursor.seek(&behind),
                        None => return Ok(false),
                    }
                }
                Within::Entry(_) | Within::GaveUp => return Ok(true),
            }
        }
    }

    /// Sees to it that many names below `prefix` that are gone, as `git gc` or a removal leaves
    /// them, are also gone from the leaves of the index, before a clone shares these: from then on
    /// they would stay, and be looked at for each clone. Takes time if there are some.
    pub(crate) fn settle_before_clone(&self, prefix: &[u8]) -> Result<()> {
        if !self.is_in_use() {
            return Ok(());
        }
        let range = KeyRange::prefix(prefix);
        let mut cursor = self.volume.store.cursor(self.volume.links(), range.clone())?;
        if cursor.next_within(MAX_NAMES_GONE)? == Within::GaveUp {
            self.volume.store.settle_deleted(&[(self.volume.links(), range)], SETTLE_LIMIT)?;
        }
        Ok(())
    }

    /// The number of names below `prefix` of each file in the area that serves it.
    pub(crate) fn count_below(&self, prefix: &[u8]) -> Result<BTreeMap<u64, u32>> {
        let mut counts = BTreeMap::new();
        self.for_each_below(prefix, |_, id| {
            *counts.entry(id).or_insert(0) += 1;
            true
        })?;
        Ok(counts)
    }

    /// The inode of file `id` in the area with this content prefix, from the store.
    pub(crate) fn inode_in_area(&self, area: &[u8], id: u64) -> Result<Inode> {
        let key = layout::entry_key(area, &layout::area_name(id));
        let value = self.volume.store.get(self.volume.metadata(), &key)?;
        match value.map(|value| Record::decode(&value)).transpose()? {
            Some(Record::Inode(inode)) if !inode.is_dir() => Ok(inode),
            _ => fail(FsErrorKind::Io, format!("file {id:#x} of a link area is missing")),
        }
    }
}
