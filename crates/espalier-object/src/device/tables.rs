//! Tables: the map of a root, its object table and the pages of the map, on their way from their
//! objects.
//!
//! Protocol: what is begun is under way beside other requests of the caller, until it is finished.
//! Pages that lie close together in one object are got by one request.

use crate::bucket::{Failure, FailureKind, Request, Ticket};
use crate::format::{
    Malformed, MapReference, NewObject, ObjectId, ObjectKind, PageReference, Root, decode_directory,
    decode_objects, decode_page, open_section,
};
use crate::map::BlockMap;
use crate::objects::{ObjectEntry, ObjectTable};
use crate::pages::PageNumber;
use crate::requests::Requests;
use crate::runs::RunMap;
use bytes::Bytes;
use std::collections::BTreeMap;

type Result<T> = std::result::Result<T, Failure>;

/// Bytes between two pages that are got along: cheaper than a request of their own.
const JOINED_GAP_BYTES: u32 = 64 << 10;
/// Most bytes that one request gets, unless a page has more.
const MAX_GET_BYTES: u32 = 4 << 20;
/// An opener gets all pages of the map if they have no more bytes: a small part of the time of a
/// request goes by meanwhile.
const EAGER_BYTES: u64 = 1 << 20;

/// Where blocks lie by the last map checkpoint of a root, and all objects that the root names.
pub(super) struct Tables {
    pub(super) map: BlockMap,
    pub(super) objects: ObjectTable,
}

/// The directory and the object table of a root, on their way.
pub(super) struct TablesGet {
    map: MapReference,
    directory: (Request, Box<dyn Ticket>),
    objects: (Request, Box<dyn Ticket>),
}

impl TablesGet {
    /// Begins to get them, if the root has any.
    pub(super) fn begin(requests: &Requests, root: &Root) -> Option<Self> {
        let map = root.map?;
        let name = map.object.name(ObjectKind::Map, map.nonce);
        let [directory, objects] = [map.directory, map.objects].map(|(offset, length)| {
            let range = u64::from(offset)..u64::from(offset) + u64::from(length);
            let get = Request::Get { name: name.clone(), range: Some(range) };
            let ticket = requests.begin(&get);
            (get, ticket)
        });
        Some(Self { map, directory, objects })
    }

    /// Waits for them.
    ///
    /// # Errors
    /// If they cannot be got, or are damaged.
    pub(super) fn finish(self, requests: &Requests, root: &Root) -> Result<Tables> {
        let Self { map: MapReference { object: id, nonce, directory, objects }, .. } = self;
        let (get, ticket) = self.directory;
        let reply = requests.finish(ticket, &get)?;
        let directory = requests.checked(&get, reply, |bytes| {
            decode_directory(open_section(id, nonce, directory.0, bytes)?, root.blocks)
        })?;
        let (get, ticket) = self.objects;
        let reply = requests.finish(ticket, &get)?;
        let objects = requests
            .checked(&get, reply, |bytes| decode_objects(open_section(id, nonce, objects.0, bytes)?))?;
        Ok(Tables { map: BlockMap::new(directory), objects }.with_root(root))
    }
}

impl Tables {
    /// Waits for the tables of a root. They are empty if it has none.
    ///
    /// # Errors
    /// As for [`TablesGet::finish`].
    pub(super) fn get(requests: &Requests, root: &Root) -> Result<Self> {
        match TablesGet::begin(requests, root) {
            Some(get) => get.finish(requests, root),
            None => {
                let (map, objects) = Default::default();
                Ok(Self { map, objects }.with_root(root))
            }
        }
    }

    /// Adds the objects that the root names itself, and counts what is live in map objects: their
    /// pages in the directory, and the root's reference.
    fn with_root(mut self, root: &Root) -> Self {
        root.objects.iter().for_each(|object| self.objects.insert(ObjectEntry::new(*object)));
        for entry in self.objects.iter_mut().filter(|entry| entry.object.kind == ObjectKind::Map) {
            entry.live = 0;
        }
        let pages = self.map.directory().values().map(|page| page.object);
        pages.chain(root.map.map(|map| map.object)).for_each(|id| self.objects.add(id, 1));
        self
    }

    /// Begins to get the pages that an opener needs: those that the delta of the root changes, and
    /// all if they are short.
    ///
    /// # Errors
    /// If a page is in an unknown object.
    pub(super) fn begin_pages(&self, requests: &Requests, root: &Root) -> Result<PagesGet> {
        let directory = self.map.directory();
        let bytes: u64 = directory.values().map(|page| u64::from(page.length)).sum();
        let pages: BTreeMap<PageNumber, PageReference> = if bytes <= EAGER_BYTES {
            directory.clone()
        } else {
            root.delta.iter().flat_map(|run| self.map.missing(&(run.start..run.end()))).collect()
        };
        Ok(PagesGet::begin(requests, located(pages, &self.objects)?))
    }

    /// Takes pages that were got.
    pub(super) fn load(&mut self, pages: Vec<(PageNumber, RunMap)>) {
        pages.into_iter().for_each(|(number, runs)| self.map.load(number, runs));
    }
}

/// A page of the map, and the object that has it.
pub(super) type LocatedPage = (NewObject, PageNumber, PageReference);

/// Finds the objects of pages.
///
/// # Errors
/// If one is in no table.
pub(super) fn located(
    pages: impl IntoIterator<Item = (PageNumber, PageReference)>,
    objects: &ObjectTable,
) -> Result<Vec<LocatedPage>> {
    let unknown =
        |id: ObjectId| Failure::new(FailureKind::Unsupported, format!("a page is in the unknown {id}"));
    let object = |id: ObjectId| objects.get(id).map(|entry| entry.object).ok_or_else(|| unknown(id));
    pages.into_iter().map(|(number, page)| Ok((object(page.object)?, number, page))).collect()
}

/// Pages of the map, on their way.
pub(super) struct PagesGet(Vec<(PageRun, Request, Box<dyn Ticket>)>);

impl PagesGet {
    /// Begins to get pages.
    pub(super) fn begin(requests: &Requests, mut pages: Vec<LocatedPage>) -> Self {
        pages.sort_by_key(|(object, _, page)| (object.id, page.offset));
        let mut runs: Vec<PageRun> = Vec::new();
        for located in pages {
            let (start, end) = (located.2.offset, located.2.offset.saturating_add(located.2.length));
            match runs.last_mut() {
                Some(run) if run.joins(&located) => {
                    run.bytes.1 = end;
                    run.pages.push(located);
                }
                _ => runs.push(PageRun { pages: vec![located], bytes: (start, end) }),
            }
        }
        let begun = runs.into_iter().filter_map(|run| {
            let name = run.pages.first()?.0.name();
            let range = u64::from(run.bytes.0)..u64::from(run.bytes.1);
            let get = Request::Get { name, range: Some(range) };
            let ticket = requests.begin(&get);
            Some((run, get, ticket))
        });
        Self(begun.collect())
    }

    /// Waits for them.
    ///
    /// # Errors
    /// If one cannot be got, or is damaged.
    pub(super) fn finish(self, requests: &Requests) -> Result<Vec<(PageNumber, RunMap)>> {
        let mut pages = Vec::new();
        for (run, get, ticket) in self.0 {
            let reply = requests.finish(ticket, &get)?;
            pages.extend(requests.checked(&get, reply, |bytes| run.open(bytes))?);
        }
        Ok(pages)
    }
}

/// Pages that lie close together in one object.
struct PageRun {
    pages: Vec<LocatedPage>,
    /// Where the first one begins, and the last one ends.
    bytes: (u32, u32),
}

impl PageRun {
    /// True if a page belongs to the run as well.
    fn joins(&self, (object, _, page): &LocatedPage) -> bool {
        let (start, end) = self.bytes;
        self.pages.last().is_some_and(|(last, ..)| last.id == object.id)
            && (end..=end.saturating_add(JOINED_GAP_BYTES)).contains(&page.offset)
            && page.offset.saturating_add(page.length) - start <= MAX_GET_BYTES
    }

    fn open(&self, bytes: &Bytes) -> std::result::Result<Vec<(PageNumber, RunMap)>, Malformed> {
        let cut = || Malformed::new("a page of the map is cut off");
        let open = |(object, number, page): &LocatedPage| {
            let start = (page.offset - self.bytes.0) as usize;
            let bytes = bytes.get(start..start + page.length as usize).ok_or_else(cut)?;
            let section = open_section(object.id, object.nonce, page.offset, bytes)?;
            Ok((*number, decode_page(*number, section)?))
        };
        self.pages.iter().map(open).collect()
    }
}
