//! The walk over the metadata that finds out what there is.

use crate::check::paths::path_of;
use crate::check::repair::state::Repair;
use crate::check::reserved::ReservedCheck;
use crate::check::verify::limits_fault;
use crate::model::error::Result;
use crate::model::layout::{self, DATA, LINKS, METADATA, Parsed};
use crate::model::record::{AreaMark, Inode, OrphanRecord, Record, VolumeState};
use crate::model::tree_limits::LimitsField;
use crate::model::types::FileKind;
use espalier_engine::{Key, KeyRange};

/// Numbers that are passed over when it is not known which were given out.
const NUMBERS_SKIPPED: u64 = 1 << 16;

impl Repair<'_> {
    pub(crate) fn read_orphans(&mut self) -> Result<()> {
        let mut cursor = self.cursor(METADATA, layout::entries_range(layout::ORPHAN_AREA))?;
        while let Some((key, value)) = self.writer.next(&mut cursor)? {
            match OrphanRecord::decode(&value) {
                Ok(OrphanRecord::File(base)) => drop(self.data.orphans.bases.insert(base.to_vec())),
                Ok(OrphanRecord::Tree) => self.data.orphans.has_trees = true,
                Err(_) => self.writer.delete(METADATA, &key)?,
            }
        }
        Ok(())
    }

    /// Which directories have a link area.
    pub(crate) fn read_marks(&mut self) -> Result<()> {
        self.links.marks.insert(Key::default(), None);
        let mut cursor = self.cursor(LINKS, KeyRange::all())?;
        while let Some((key, value)) = self.writer.next(&mut cursor)? {
            if key.is_empty() || layout::is_area_mark(&key) {
                self.links.marks.insert(key, AreaMark::decode(&value).ok());
            }
        }
        Ok(())
    }

    pub(crate) fn walk_metadata(&mut self) -> Result<()> {
        let mut cursor = self.cursor(METADATA, KeyRange::all())?;
        while let Some((key, value)) = self.writer.next(&mut cursor)? {
            let parsed = match layout::parse(&key) {
                Some(parsed) if parsed.rest.is_empty() => parsed,
                _ => {
                    self.writer.tell(
                        path_of(&key),
                        "the key of an entry could not be understood; it is gone",
                        true,
                    );
                    self.writer.delete(METADATA, &key)?;
                    continue;
                }
            };
            if parsed.base.starts_with(layout::RESERVATION_AREA) {
                self.reserved.push(key);
            } else if parsed.base == layout::STATE_KEY {
                self.state = VolumeState::decode(&value).ok();
            } else if !parsed.prefix.starts_with(layout::ORPHAN_AREA) {
                self.metadata(&parsed, &value)?;
            }
        }
        Ok(())
    }

    /// Takes away records of reserved blocks that are wrong now; without a record nothing is lost
    /// but the promise that there is room.
    pub(crate) fn mend_reserved(&mut self) -> Result<()> {
        self.writer.flush()?;
        let snapshot = self.writer.store.snapshot()?;
        let (volume, block_size) = (self.writer.volume, self.data.block_size);
        let check = ReservedCheck { snapshot: &snapshot, volume, block_size };
        for key in std::mem::take(&mut self.reserved) {
            let base = &key[layout::RESERVATION_AREA.len()..];
            let Some(value) = self.writer.get(METADATA, &key)? else { continue };
            if let Some(fault) = check.fault(base, &value, self.data.orphans.have(base))? {
                self.writer.tell(path_of(base), format!("no room is reserved any more: {fault}"), false);
                self.writer.delete(METADATA, &key)?;
            }
        }
        Ok(())
    }

    fn metadata(&mut self, parsed: &Parsed<'_>, value: &[u8]) -> Result<()> {
        let is_root = parsed.base == layout::ROOT_KEY;
        // An area has files, and no directories.
        let is_in_area_s_directory = parsed.directory.iter().rev().skip(1).any(Vec::is_empty);
        let is_misplaced = (parsed.name.is_empty() && !is_root) || is_in_area_s_directory;
        let record = match Record::decode(value) {
            Ok(record) if !is_misplaced => record,
            _ => {
                self.writer.tell(parsed.path(), "the entry could not be understood; it is gone", true);
                return self.writer.delete(METADATA, parsed.base);
            }
        };
        if let Record::Inode(inode) = &record {
            self.flags_seen.0 |= inode.flags.0;
        }
        if parsed.directory.last().is_some_and(Vec::is_empty) {
            let holder: Key = parsed.prefix[..parsed.prefix.len() - 1].into();
            return match (layout::area_id(&parsed.name), record) {
                (Some(id), Record::Inode(inode)) if !inode.is_dir() => {
                    self.see_number(inode.number.wrapping_add(self.sum_of(&holder)));
                    let inode = self.data.file_data(parsed, inode, &mut self.writer)?;
                    self.links.marks.entry(holder.clone()).or_insert(None);
                    self.links.linked.insert((holder, id), inode);
                    Ok(())
                }
                _ => self.writer.delete(METADATA, parsed.base),
            };
        }
        if !is_root {
            let above = self.directories.entry(parsed.prefix.into()).or_default();
            above.entries += 1;
            above.directories += u64::from(record.kind() == FileKind::Directory);
        }
        match record {
            Record::Inode(inode) => self.inode(parsed, inode),
            Record::Link(link) => {
                let place = (self.links.area_of(parsed.prefix), link.id);
                self.links.names.entry(place).or_default().push((parsed.base.into(), link));
                Ok(())
            }
        }
    }

    fn inode(&mut self, parsed: &Parsed<'_>, inode: Inode) -> Result<()> {
        let sum = self.sum_of(parsed.prefix).wrapping_add(inode.delta);
        self.see_number(inode.number.wrapping_add(sum));
        let mut inode = self.data.file_data(parsed, inode, &mut self.writer)?;
        if let Some(fault) = limits_fault(&inode, parsed.base == layout::ROOT_KEY) {
            self.writer.tell(parsed.path(), format!("it has no limits any more: {fault}"), false);
            inode.limits = LimitsField::Absent;
            self.writer.put(METADATA, parsed.base, inode.encode())?;
        }
        if inode.is_dir() {
            let prefix: Key = content_of(parsed).into();
            if inode.has_link_area {
                self.links.marks.entry(prefix.clone()).or_insert(None);
            }
            let directory = self.directories.entry(prefix).or_default();
            (directory.says, directory.sum) = (Some((inode.size, u64::from(inode.links))), sum);
        } else if inode.links != 1 {
            inode.links = 1;
            self.writer.put(METADATA, parsed.base, inode.encode())?;
        }
        Ok(())
    }

    /// Notes a number that users have seen. Those of clones are random, and no measure.
    fn see_number(&mut self, number: u64) {
        if number < 1 << 48 {
            self.highest = self.highest.max(number);
        }
    }

    /// No number that was given out may be given out again.
    pub(crate) fn choose_next_number(&mut self) {
        match self.state {
            Some(state) => self.next_number = state.next_number,
            None => {
                self.next_number = self.highest + NUMBERS_SKIPPED;
                self.writer.tell(
                    "/",
                    "which numbers were given out was lost; new files get higher ones",
                    false,
                );
            }
        }
    }

    /// Gives data without an entry one.
    pub(crate) fn name_data(&mut self) -> Result<()> {
        for (base, size) in std::mem::take(&mut self.data.without_entry) {
            let Some(parsed) = layout::parse(&base) else { continue };
            if size == 0 {
                continue;
            }
            let in_area = parsed.directory.last().is_some_and(Vec::is_empty);
            let holder = if in_area { &parsed.prefix[..parsed.prefix.len() - 1] } else { parsed.prefix };
            let mut inode = self.new_inode(holder, FileKind::Regular, 0o600);
            (inode.size, inode.sparse) = (size, true);
            if let (true, Some(id)) = (in_area, layout::area_id(&parsed.name)) {
                self.writer.tell(parsed.path(), "the attributes of a file with several names are lost", true);
                self.links.marks.entry(holder.into()).or_insert(None);
                self.links.linked.insert((holder.into(), id), inode);
                continue;
            }
            let taken = self.writer.get(METADATA, &base)?.is_some();
            if taken || parsed.name.is_empty() || parsed.directory.iter().any(Vec::is_empty) {
                self.writer.tell(parsed.path(), "data that did not belong to it is gone", true);
                self.writer.delete_range(DATA, layout::file_range(&base))?;
                continue;
            }
            let message = "its attributes are lost; what is left of its data is there again, for root alone";
            self.writer.tell(parsed.path(), message, true);
            self.directories.entry(parsed.prefix.into()).or_default().entries += 1;
            self.clear_marks(parsed.prefix);
            self.writer.put(METADATA, &base, inode.encode())?;
        }
        Ok(())
    }
}

/// The content prefix of the directory with this entry.
fn content_of(parsed: &Parsed<'_>) -> Vec<u8> {
    match parsed.base == layout::ROOT_KEY {
        true => Vec::new(),
        false => layout::content_prefix(parsed.prefix, &parsed.name),
    }
}
