//! Links: entries that lead to files in link areas, those files, and the links index.

use crate::check::paths::{area_path, path_of};
use crate::check::report::Findings;
use crate::model::layout::{self, Parsed};
use crate::model::privileges::belongs_alone;
use crate::model::record::{AreaMark, Inode, Link};
use espalier_engine::{Cursor, Key};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A file in a link area: the directory that has the area, and the number in it.
type CheckedAreaFile = (Key, u64);

/// Names of one file in a link area.
struct LinkNames {
    path: String,
    link: Link,
    count: u64,
    /// Owners of directories with the ownership mark in which names are.
    promised: BTreeSet<u32>,
}

/// What the volume says of links.
#[derive(Default)]
pub(crate) struct LinkCheck {
    linked: BTreeMap<CheckedAreaFile, Inode>,
    /// Entries that lead to them.
    names: BTreeMap<CheckedAreaFile, LinkNames>,
    /// Directories that have an area as the links index says, and the mark there.
    marks: BTreeMap<Key, AreaMark>,
    /// Directories that say that they have an area, and the sum of deltas there.
    areas: HashMap<Key, u64>,
    /// Names that the links index lists.
    listed: u64,
}

impl LinkCheck {
    /// Reads the links index: names, which are looked up later, and marks.
    pub(crate) fn read_index(&mut self, cursor: &mut Cursor, found: &mut Findings<'_>) {
        let mut last = Key::default();
        while let Some((key, value)) = found.next(cursor, "links", &last) {
            if !key.is_empty() && !layout::is_area_mark(&key) {
                self.listed += 1;
            } else if let Ok(mark) = AreaMark::decode(&value) {
                self.marks.insert(key.clone(), mark);
            } else {
                found.problem(area_path(&key), "the mark of a link area cannot be understood");
            }
            last = key;
        }
    }

    /// The root has an area whose counts are right unless the index says otherwise.
    pub(crate) fn expect_root(&mut self) {
        self.marks.insert(Key::default(), AreaMark::default());
    }

    /// A directory says that it has an area; `sum`: of the deltas there; `promised`: its owner if
    /// it bears the ownership mark.
    pub(crate) fn see_area(
        &mut self,
        parsed: &Parsed<'_>,
        prefix: &Key,
        (sum, promised): (u64, Option<u32>),
        found: &mut Findings<'_>,
    ) {
        match self.marks.get(prefix) {
            None => {
                let message = "the directory has a link area, and the links index does not say so";
                found.problem(parsed.path(), message);
            }
            Some(mark) if promised.is_some_and(|uid| mark.doubted_owners.contains(&uid)) => {
                let message = "the directory bears the ownership mark, which its own link area doubts";
                found.problem(parsed.path(), message);
            }
            Some(_) => {}
        }
        self.areas.insert(prefix.clone(), sum);
    }

    /// The sum of the deltas in the link area of a directory.
    pub(crate) fn link_area_sum(&self, holder: &Key) -> Option<u64> {
        self.areas.get(holder).copied()
    }

    /// A file lies in the link area of `holder`.
    pub(crate) fn see_file(&mut self, holder: Key, id: u64, inode: Inode) {
        self.linked.insert((holder, id), inode);
    }

    /// An entry is a name of a file in the area of the directory at `area`; with `promised` in a
    /// directory of that owner that bears the ownership mark. `listed`: what the links index has
    /// for it.
    pub(crate) fn see_name(
        &mut self,
        parsed: &Parsed<'_>,
        link: Link,
        (area, promised): (&Key, Option<u32>),
        listed: Option<&[u8]>,
        found: &mut Findings<'_>,
    ) {
        found.report.links += 1;
        if listed != Some(&link.id.to_le_bytes()[..]) {
            let message = "the entry is a link, and the links index does not say so";
            found.problem(parsed.path(), message);
        }
        let new = LinkNames { path: parsed.path(), link: link.clone(), count: 0, promised: BTreeSet::new() };
        let names = self.names.entry((area.clone(), link.id)).or_insert(new);
        names.count += 1;
        names.promised.extend(promised);
        if names.link != link {
            let message = format!("the entry contradicts {}, another name of the same file", names.path);
            found.problem(parsed.path(), message);
        }
    }

    /// Compares links, files in the link areas, and the links index.
    pub(crate) fn compare(mut self, found: &mut Findings<'_>) {
        for (place, names) in &self.names {
            match self.linked.remove(place) {
                None => found.problem(&names.path, "the file that this is a name of is missing"),
                Some(inode) => {
                    found.report.files += 1;
                    let mark = self.marks.get(&place.0).cloned().unwrap_or_default();
                    let broken = |uid: &u32| !belongs_alone(&inode, *uid) && !mark.doubts(*uid);
                    if names.promised.iter().any(broken) {
                        let message = "a directory above a name of the file promises that no such is below";
                        found.problem(&names.path, message);
                    }
                    if !mark.stale_counts && u64::from(inode.links) != names.count {
                        let message = format!("the file has {} names, and says {}", names.count, inode.links);
                        found.problem(&names.path, message);
                    }
                    if inode.kind != names.link.kind || inode.number != names.link.number {
                        let message = "the entry contradicts the file that it is a name of";
                        found.problem(&names.path, message);
                    }
                }
            }
        }
        for (holder, id) in self.linked.keys() {
            if !self.marks.get(holder).is_some_and(|mark| mark.stale_counts) {
                let path = path_of(&layout::entry_key(&layout::area_prefix(holder), &layout::area_name(*id)));
                found.problem(path, "a file in the link area has no name");
            }
        }
        for mark in self.marks.keys().filter(|mark| !self.areas.contains_key(*mark)) {
            found.problem(area_path(mark), "the links index names a link area that does not exist");
        }
        let links = found.report.links;
        if self.listed != links {
            let message = format!("the links index lists {} links, there are {links}", self.listed);
            found.problem("/", message);
        }
    }
}
