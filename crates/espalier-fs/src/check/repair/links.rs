//! Links: the names of files in link areas, those files, and the links index.

use crate::check::paths::path_of;
use crate::check::repair::state::{AreaFile, Repair};
use crate::check::repair::writer::Repaired;
use crate::model::error::Result;
use crate::model::layout::{self, DATA, LINKS, METADATA};
use crate::model::record::{AreaMark, Inode, Link};
use espalier_engine::{Key, KeyRange};
use std::collections::{BTreeMap, HashMap};

impl Repair<'_> {
    /// Links and the files they lead to.
    pub(crate) fn mend_links(&mut self) -> Result<()> {
        let names = std::mem::take(&mut self.links.names);
        let mut linked = std::mem::take(&mut self.links.linked);
        let mut left: BTreeMap<AreaFile, Vec<(Key, Link)>> = BTreeMap::new();
        for (place, entries) in names {
            let Some(inode) = linked.remove(&place) else {
                for (key, _) in entries {
                    self.writer.tell(path_of(&key), "the file that this was a name of is lost", true);
                    self.writer.delete(METADATA, &key)?;
                    self.uncount(&key);
                }
                continue;
            };
            let entries = self.mend_file(&place, inode, entries)?;
            left.insert(place, entries);
        }
        for (place, inode) in linked {
            let (holder, id) = &place;
            let mark = self.links.marks.get(holder).and_then(Option::as_ref);
            if mark.is_some_and(|mark| mark.stale_counts) {
                // It came with a clone that has no name of it.
                let home = layout::entry_key(&layout::area_prefix(holder), &layout::area_name(*id));
                self.writer.delete(METADATA, &home)?;
                self.writer.delete_range(DATA, layout::file_range(&home))?;
                continue;
            }
            let above = if holder.is_empty() { self.lost_found()? } else { holder.to_vec() };
            let name = [b"lost-", &layout::area_name(*id)[..]].concat();
            let key = layout::entry_key(&above, &name);
            self.writer.tell(path_of(&key), "a file whose names are lost", true);
            self.clear_marks(&above);
            self.directories.entry(above.into()).or_default().entries += 1;
            let link = Link { kind: inode.kind, id: *id, number: inode.number };
            self.writer.put(METADATA, &key, link.encode())?;
            let entries = self.mend_file(&place, inode, vec![(key.into(), link)])?;
            left.insert(place, entries);
        }
        self.tell_names(&left);
        self.links.names = left;
        Ok(())
    }

    /// What was told of files in link areas is told of their names.
    fn tell_names(&mut self, names: &BTreeMap<AreaFile, Vec<(Key, Link)>>) {
        let mut paths: HashMap<String, Vec<String>> = HashMap::new();
        for ((holder, id), entries) in names {
            let home = layout::entry_key(&layout::area_prefix(holder), &layout::area_name(*id));
            paths.insert(path_of(&home), entries.iter().map(|(key, _)| path_of(key)).collect());
        }
        for done in std::mem::take(&mut self.writer.done) {
            match paths.get(&done.path) {
                Some(names) => {
                    self.writer
                        .done
                        .extend(names.iter().map(|path| Repaired { path: path.clone(), ..done.clone() }));
                }
                None => self.writer.done.push(done),
            }
        }
    }

    fn mend_file(
        &mut self,
        (holder, id): &AreaFile,
        mut inode: Inode,
        mut entries: Vec<(Key, Link)>,
    ) -> Result<Vec<(Key, Link)>> {
        let home = layout::entry_key(&layout::area_prefix(holder), &layout::area_name(*id));
        self.writer.flush()?;
        let stored = self.writer.get(METADATA, &home)?;
        inode.links = entries.len() as u32;
        if stored.as_deref() != Some(&inode.encode()[..]) {
            self.writer.put(METADATA, &home, inode.encode())?;
        }
        for (key, link) in &mut entries {
            let right = Link { kind: inode.kind, id: *id, number: inode.number };
            if *link != right {
                *link = right;
                self.writer.put(METADATA, key, link.encode())?;
            }
        }
        Ok(entries)
    }

    /// One entry, which is no directory, less in the directory of `key`.
    fn uncount(&mut self, key: &[u8]) {
        if let Some(parsed) = layout::parse(key)
            && let Some(directory) = self.directories.get_mut(parsed.prefix)
        {
            directory.entries = directory.entries.saturating_sub(1);
        }
    }

    /// The links index lists every link and every area, and nothing else.
    pub(crate) fn mend_links_index(&mut self) -> Result<()> {
        let mut due: HashMap<Key, Vec<u8>> = HashMap::new();
        for ((_, id), entries) in std::mem::take(&mut self.links.names) {
            due.extend(entries.into_iter().map(|(key, _)| (key, id.to_le_bytes().to_vec())));
        }
        let exists = |holder: &Key| self.directories.get(holder).is_some_and(|d| d.says.is_some());
        // A file whose attributes were lost belongs to root now, in directories of any owner.
        let is_lossy = self.writer.done.iter().any(|repaired| repaired.lost);
        let mut doubtful = Vec::new();
        for (holder, mark) in self.links.marks.iter().filter(|(holder, _)| exists(holder)) {
            let is_doubtful = is_lossy || (mark.is_none() && !holder.is_empty());
            doubtful.extend(is_doubtful.then(|| holder.clone()));
            // All counts are right now.
            let mut mark = AreaMark { stale_counts: false, ..mark.clone().unwrap_or_default() };
            mark.doubt(is_doubtful.then_some(AreaMark::EVERY_OWNER));
            // The root needs no mark.
            if !holder.is_empty() || mark != AreaMark::default() {
                due.insert(holder.clone(), mark.encode());
            }
        }
        for holder in doubtful {
            self.clear_marks(&holder);
        }
        let mut cursor = self.cursor(LINKS, KeyRange::all())?;
        while let Some((key, value)) = self.writer.next(&mut cursor)? {
            match due.remove(&key) {
                Some(right) if value == right => {}
                Some(right) => self.writer.put(LINKS, &key, right)?,
                None => self.writer.delete(LINKS, &key)?,
            }
        }
        for (key, right) in due {
            self.writer.put(LINKS, &key, right)?;
        }
        Ok(())
    }
}
