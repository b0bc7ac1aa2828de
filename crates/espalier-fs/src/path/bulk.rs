//! Calls on many files at once, in the order of their keys: files of one directory lie beside each
//! other, their directory is looked up once, and the store reads ahead.

use crate::inode::access_times::NODES_PER_BATCH;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::types::*;
use crate::namespace::prefix_cache::Generation;
use crate::path::analyzer::{self, End};
use crate::path::caller::{At, Links, PathCaller};
use crate::path::handle::Open;
use crate::path::place::{Hold, PathPlace};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// What is read at a time, in bytes; a larger file is read in several ranges.
const MAX_READ_BYTES: u64 = 64 << 20;

/// Larger files do not stay in the cache of the store, in bytes.
const KEPT_MAX_BYTES: u64 = 256 << 10;

/// What the store does beside reading files. Small files that are read whole stay in its cache in
/// any case: no cache of a kernel is between it and the caller, which may read them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// It reads ahead if files are read in the order of keys: the next ones may be read soon.
    ReadAhead,
    /// It reads nothing ahead: these files are a choice among others.
    Keep,
}

/// What [`PathCaller::read_many`] reads.
#[derive(Clone)]
pub struct ReadRequest<'a> {
    /// The file.
    pub at: At<'a>,
    /// Which bytes, as far as the file reaches; `None`: all.
    pub range: Option<Range<u64>>,
}

/// The directory of the last path, which the next one may share.
#[derive(Default)]
struct Nearby<'a> {
    last: Option<LastDirectory<'a>>,
}

struct LastDirectory<'a> {
    /// A path that led there.
    at: At<'a>,
    /// The path of the directory.
    above: &'a [u8],
    dir: PathPlace,
    /// The caller may search the directory, and those above, as long as this stays.
    generation: Generation,
}

/// Files whose time of the last read has changed. They stay in use until so many are there that one
/// batch writes their times: a file that leaves memory alone costs a batch of its own.
#[derive(Default)]
struct Touched(Vec<Hold>);

impl Touched {
    fn add(&mut self, file: &PathPlace) {
        if let PathPlace::Node(file) = file
            && file.volume.is_live()
            && file.node.pending.load(Ordering::Acquire)
        {
            self.0.push(file.clone());
            if self.0.len() >= NODES_PER_BATCH {
                self.write();
            }
        }
    }

    fn write(&mut self) {
        self.0.sort_by_key(|file| file.node.id);
        self.0.dedup_by_key(|file| file.node.id);
        if let Some(first) = self.0.first() {
            let nodes: Vec<_> = self.0.iter().map(|file| file.node.clone()).collect();
            if let Err(error) = first.fs().write_access_times(&nodes) {
                // As when a file leaves memory: the time of a read may be lost.
                tracing::warn!(%error, "times of the last read cannot be written");
            }
        }
        self.0.clear();
    }
}

impl Drop for Touched {
    fn drop(&mut self) {
        self.write();
    }
}

/// The places of requests in the order of their keys, in which it is fastest to read them.
pub fn read_order(requests: &[ReadRequest<'_>]) -> Vec<usize> {
    in_key_order(requests.iter().map(|request| request.at)).collect()
}

impl PathCaller {
    /// The attributes of many files, in the order in which they were asked for. Each is of an
    /// instant of its own.
    pub fn stat_many(&self, paths: &[At<'_>], links: Links) -> Vec<Result<Attr>> {
        let mut results: Vec<_> = paths.iter().map(|_| None).collect();
        let mut nearby = Nearby::default();
        for at in in_key_order(paths.iter().copied()) {
            let found = self.find_near(&mut nearby, paths[at], links);
            results[at] = Some(found.and_then(|place| place.attr()));
        }
        results.into_iter().flatten().collect()
    }

    /// Reads many files, or parts of them, in the order of their keys, until `each` returns false.
    /// It gets the place of a request among the others, and what was read; a file that ends sooner
    /// gives less. Each file is opened for itself.
    ///
    /// # Errors
    /// None of its own: each request has its own result. [`FsErrorKind::TooBig`] for more than
    /// 64 MiB at a time; as for [`PathCaller::open`].
    pub fn read_many(
        &self,
        requests: &[ReadRequest<'_>],
        each: &mut dyn FnMut(usize, Result<&[u8]>) -> bool,
    ) {
        self.read_in_order(requests, &read_order(requests), Caching::ReadAhead, each);
    }

    /// As [`PathCaller::read_many`], but only the requests whose places `order` has, in this order:
    /// so several threads can share the order ([`read_order`]).
    pub fn read_in_order(
        &self,
        requests: &[ReadRequest<'_>],
        order: &[usize],
        caching: Caching,
        each: &mut dyn FnMut(usize, Result<&[u8]>) -> bool,
    ) {
        let (mut nearby, mut touched) = (Nearby::default(), Touched::default());
        let mut buffer = Vec::new();
        for at in order {
            let found = self.find_near(&mut nearby, requests[*at].at, Links::Follow);
            let range = requests[*at].range.clone().unwrap_or(0..u64::MAX);
            let read = found.and_then(|place| {
                let read = self.read_place(&place, range, caching, &mut buffer)?;
                touched.add(&place);
                Ok(read)
            });
            if !each(*at, read.map(|length| &buffer[..length])) {
                return;
            }
        }
    }

    fn read_place(
        &self,
        place: &PathPlace,
        range: Range<u64>,
        caching: Caching,
        buffer: &mut Vec<u8>,
    ) -> Result<usize> {
        self.check_open(place, &Open::read())?;
        let PathPlace::Node(file) = place else {
            return fail(FsErrorKind::IsDirectory, "a directory has no content");
        };
        let size = file.node.state().inode.size;
        let length = range.end.min(size).saturating_sub(range.start);
        if length > MAX_READ_BYTES && file.node.kind == FileKind::Regular {
            return fail(
                FsErrorKind::TooBig,
                format!("{length} bytes of one file; {MAX_READ_BYTES} are read at a time"),
            );
        }
        buffer.resize(length.min(MAX_READ_BYTES) as usize, 0);
        let (fs, node) = (file.fs(), file.node.id);
        match caching {
            _ if length < size || size > KEPT_MAX_BYTES => fs.read(node, range.start, buffer),
            Caching::Keep => fs.read_and_keep(node, buffer),
            Caching::ReadAhead => fs.read_ahead_and_keep(node, buffer),
        }
    }

    /// What a path names; its directory may be that of the path before.
    fn find_near<'a>(&self, nearby: &mut Nearby<'a>, at: At<'a>, links: Links) -> Result<PathPlace> {
        let run = analyzer::first_run(at.path);
        // What is not plain is resolved by itself.
        if run.count == 0 || run.end != End::Plain || at.path.contains(&0) {
            return self.object(at, links);
        }
        // Before any directory is looked at.
        let generation = self.generation();
        let is_same = |last: &LastDirectory<'_>| {
            last.generation == generation && last.at.is_beside(&at) && last.above == run.before_last
        };
        if !nearby.last.as_ref().is_some_and(is_same) {
            nearby.last = None;
            let (dir, ..) = self.name(at)?;
            nearby.last = Some(LastDirectory { at, above: run.before_last, dir, generation });
        }
        let Some(LastDirectory { dir, .. }) = &nearby.last else { return self.object(at, links) };
        match dir.child(run.last, &self.paths.snapshots)? {
            Some(place) if place.kind() == FileKind::Symlink && links == Links::Follow => {
                self.object(at, links)
            }
            Some(place) => Ok(place),
            None => Err(crate::namespace::lookup::no_entry(run.last)),
        }
    }
}

/// The places of paths in the order of the keys that they have if no links are on the way. Paths
/// that begin at one directory stay together; where that lies among others is not looked up.
pub(crate) fn in_key_order<'a>(paths: impl Iterator<Item = At<'a>>) -> impl Iterator<Item = usize> {
    let mut beginnings = HashMap::new();
    let key = |at: At<'_>| {
        let next = beginnings.len();
        let beginning = *beginnings.entry(at.beginning()).or_insert(next);
        let run = analyzer::first_run(at.path);
        let mut prefix = Vec::with_capacity(at.path.len() + 8);
        let above = analyzer::names(at.path).take(run.count.saturating_sub(1));
        above.for_each(|(name, _)| analyzer::push_name(name, &mut prefix));
        (beginning, layout::entry_key(&prefix, run.last))
    };
    let mut order: Vec<_> = paths.map(key).enumerate().map(|(at, key)| (key, at)).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, at)| at)
}
