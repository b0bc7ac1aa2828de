//! The resolver: from a path to what it names, run by run.
//!
//! A run is looked up whole in the prefix cache; only what the cache does not know is looked up
//! name by name, and a link found there is spliced into the path. Every directory in which a name
//! is looked up must give the caller search permission: of the directories of a run the cache knows
//! that by number.

use crate::file_system::FileSystem;
use crate::inode::node::Node;
use crate::model::access::Granted;
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::layout;
use crate::model::types::FileKind;
use crate::namespace::lookup::no_entry;
use crate::namespace::prefix_cache::KnownCredentials;
use crate::path::analyzer::{self, End};
use crate::path::place::{Hold, OpenSnapshots, PathPlace};
use crate::references::HeldNode;
use crate::snapshot::volume::SNAPSHOTS_NAME;
use crate::volume::tree_lock::TreeGuard;
use std::borrow::Cow;
use std::sync::Arc;

/// Symbolic links that are followed at most.
const MAX_LINKS: u32 = 40;
/// Names of a path that the store is told of at a time.
const MAX_EXPECTED_NAMES: usize = 256;
/// The longest path, in bytes.
const MAX_PATH_BYTES: usize = 1 << 20;

#[cfg(test)]
thread_local! {
    /// What a test has happen once a path has come to the place before a `..`.
    static BEFORE_UP: std::cell::Cell<Option<Box<dyn FnOnce()>>> = const { std::cell::Cell::new(None) };
    /// How often it was looked at all the way up whether a place lies in the root.
    static LOOKS_UP: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// What a call needs of the end of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// The object. A link at the end is followed or not.
    Object { follow: bool },
    /// The object, or else the directory where it could be made. A link at the end is followed or
    /// not.
    ObjectOrPlace { follow: bool },
    /// The directory and the last name, which is not looked up.
    Name,
}

/// What a path ends with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Last {
    Name(Vec<u8>),
    /// Nothing but slashes.
    Root,
    /// `.`
    Here,
    /// `..`
    Up,
}

/// The end of a path.
pub(crate) struct Resolved {
    /// The object, or the directory of a name that was not looked up or not found.
    pub(crate) place: PathPlace,
    pub(crate) end: Ending,
    /// The directory in which the object was found by its name, if that could have been made.
    pub(crate) above: Option<PathPlace>,
}

impl Resolved {
    pub(crate) fn new(place: PathPlace, end: Ending) -> Self {
        Self { place, end, above: None }
    }
}

/// What [`Resolved::place`] is.
pub(crate) enum Ending {
    /// The object; what the path ended with.
    Object(Last),
    /// The directory, with the last name and whether a slash follows.
    Name(Last, bool),
}

/// How far a run led.
enum Step {
    At(PathPlace),
    /// To a link in this directory; the path goes on at this byte of the run.
    Link(PathPlace, Hold, usize),
}

/// What the last name of a path leads to.
enum LastStep {
    Object(PathPlace),
    Missing,
    Link(Hold),
}

/// The resolution of one path.
pub(crate) struct Resolver<'c> {
    caller: &'c KnownCredentials,
    root: &'c PathPlace,
    snapshots: &'c OpenSnapshots,
    guard_links: bool,
    /// Links that were followed.
    links: u32,
    /// The epoch of moves in which the path was last seen to be inside the root, if it was.
    inside: Option<u64>,
}

/// How far the resolution of a path has come.
struct Cursor<'p> {
    path: Cow<'p, [u8]>,
    /// What lies before this byte is done.
    at: usize,
    dir: Cow<'p, PathPlace>,
    last: Last,
}

impl<'c> Resolver<'c> {
    /// `guard_links`: a link at the end of a path is not followed where another user may have put
    /// it.
    pub(crate) fn new(
        caller: &'c KnownCredentials,
        root: &'c PathPlace,
        snapshots: &'c OpenSnapshots,
        guard_links: bool,
    ) -> Self {
        Self { caller, root, snapshots, guard_links, links: 0, inside: None }
    }

    /// Resolves a path that begins at `start`, or at the root if it begins with a slash.
    pub(crate) fn resolve(&mut self, start: &PathPlace, path: &[u8], want: Want) -> Result<Resolved> {
        check_path(path)?;
        self.inside = None;
        let mut cursor = match path.first() {
            Some(b'/') => Cursor::new(path, self.root, Last::Root),
            _ => Cursor::new(path, start, Last::Here),
        };
        loop {
            if let Some(resolved) = self.resolve_run(&mut cursor, want)? {
                return Ok(resolved);
            }
        }
    }

    /// Resolves the next run; `None` if the path goes on.
    fn resolve_run(&mut self, cursor: &mut Cursor<'_>, want: Want) -> Result<Option<Resolved>> {
        if !cursor.dir.is_directory() {
            return fail(FsErrorKind::NotDirectory, "a path begins at what is no directory");
        }
        let rest = &cursor.path[cursor.at..];
        let run = analyzer::first_run(rest);
        let is_whole = run.count == 0 || matches!(run.end, End::Up | End::Here);
        let count = if is_whole { run.count } else { run.count - 1 };
        let place = match self.descend(&cursor.dir, rest, count)? {
            Step::At(place) => place,
            Step::Link(dir, link, end) => {
                let rest = rest[end..].to_vec();
                return self.follow(cursor, dir, &link, &rest).map(|()| None);
            }
        };
        if is_whole {
            if run.end != End::Plain && run.end != End::Slash {
                place.check_search(&self.caller.credentials)?;
            }
            if run.end == End::Up {
                let above = self.up(place)?;
                (cursor.dir, cursor.last, cursor.at) = (Cow::Owned(above), Last::Up, cursor.at + run.after);
                return Ok(None);
            }
            let last = if run.end == End::Here { Last::Here } else { cursor.last.clone() };
            let end = if want == Want::Name { Ending::Name(last, false) } else { Ending::Object(last) };
            return Ok(Some(Resolved::new(place, end)));
        }
        place.check_search(&self.caller.credentials)?;
        let (name, is_slash) = (Last::Name(run.last.to_vec()), run.end == End::Slash);
        if want == Want::Name {
            return Ok(Some(Resolved::new(place, Ending::Name(name, is_slash))));
        }
        if is_slash && matches!(want, Want::ObjectOrPlace { .. }) {
            return fail(FsErrorKind::IsDirectory, "a file cannot be made where a slash follows");
        }
        match self.last_step(&place, run.last, is_slash, want)? {
            LastStep::Object(object) => {
                let above = matches!(want, Want::ObjectOrPlace { .. }).then_some(place);
                Ok(Some(Resolved { place: object, end: Ending::Object(name), above }))
            }
            LastStep::Missing => Ok(Some(Resolved::new(place, Ending::Name(name, is_slash)))),
            LastStep::Link(link) => {
                let slash = if is_slash { &b"/"[..] } else { b"" };
                self.follow(cursor, place, &link, slash).map(|()| None)
            }
        }
    }

    /// The directory above one that a path has come to; the root leads to itself.
    ///
    /// Once the path was seen to be inside the root, it stays there until a directory moves: names
    /// lead down from there, links to there or to the root. So whole paths are looked at once for
    /// each move, and not once for each `..`.
    fn up(&mut self, place: PathPlace) -> Result<PathPlace> {
        #[cfg(test)]
        BEFORE_UP.take().into_iter().for_each(|happen| happen());
        if place.is_same(self.root) {
            return Ok(place);
        }
        if self.root.is_top() {
            return place.above();
        }
        let (above, is_inside) = {
            // The directory may have been moved out of the root since the path came here: from
            // there the way up would not meet the root.
            let tree = self.root.fs().names.tree.shared();
            let above = place.above()?;
            let is_inside = self.inside == Some(tree.epoch) || {
                #[cfg(test)]
                LOOKS_UP.set(LOOKS_UP.get() + 1);
                self.root.contains(&above)
            };
            self.inside = is_inside.then_some(tree.epoch);
            (above, is_inside)
        };
        if is_inside {
            return Ok(above);
        }
        fail(FsErrorKind::NotFound, "the directory was moved out of the caller's root")
    }

    /// Looks the last name of a path up.
    fn last_step(&self, dir: &PathPlace, name: &[u8], is_slash: bool, want: Want) -> Result<LastStep> {
        let follow = matches!(want, Want::Object { follow: true } | Want::ObjectOrPlace { follow: true });
        match dir.child(name, self.snapshots)? {
            None if matches!(want, Want::ObjectOrPlace { .. }) => Ok(LastStep::Missing),
            None => Err(no_entry(name)),
            Some(PathPlace::Node(link)) if link.node.kind == FileKind::Symlink && (follow || is_slash) => {
                self.check_count()?;
                if self.guard_links
                    && let PathPlace::Node(dir) = dir
                {
                    let inode = dir.node.state().inode.clone();
                    self.caller.credentials.check_follow(Granted::by(&inode), &link.node.state().inode)?;
                }
                Ok(LastStep::Link(link))
            }
            Some(place) if is_slash && !place.is_directory() => {
                fail(FsErrorKind::NotDirectory, "a slash follows what is no directory")
            }
            Some(place) => Ok(LastStep::Object(place)),
        }
    }

    fn check_count(&self) -> Result<()> {
        if self.links < MAX_LINKS {
            return Ok(());
        }
        fail(FsErrorKind::Loop, format!("more than {MAX_LINKS} symbolic links"))
    }

    /// Goes on with the target of a link in `dir`, and with `rest` behind it.
    fn follow(&mut self, cursor: &mut Cursor<'_>, dir: PathPlace, link: &Hold, rest: &[u8]) -> Result<()> {
        self.check_count()?;
        self.links += 1;
        let target = link.fs().readlink(link.node.id)?;
        let begin = if target.first() == Some(&b'/') { self.root.clone() } else { dir };
        (cursor.path, cursor.at) = (Cow::Owned([&target[..], rest].concat()), 0);
        (cursor.dir, cursor.last) = (Cow::Owned(begin), Last::Root);
        Ok(())
    }

    /// Goes down the first `count` names of `run`.
    fn descend(&self, from: &PathPlace, run: &[u8], count: usize) -> Result<Step> {
        let mut at = Cow::Borrowed(from);
        let mut left = analyzer::names(run).take(count);
        let (mut done, mut begin) = (0, 0);
        let (mut is_known, mut is_told) = (true, false);
        loop {
            if is_known
                && let PathPlace::Node(from) = &*at
                && let Some((place, names)) = self.known(from, &run[begin..], count - done)?
            {
                at = Cow::Owned(place);
                begin = left.nth(names - 1).map_or(begin, |(_, end)| end);
                done += names;
            }
            let Some((name, end)) = left.next() else { return Ok(Step::At(at.into_owned())) };
            if !is_told && let PathPlace::Node(from) = &*at {
                expect(from, &run[begin..]);
                is_told = true;
            }
            (done, begin) = (done + 1, end);
            at.check_search(&self.caller.credentials)?;
            let child = at.child(name, self.snapshots)?.ok_or_else(|| no_entry(name))?;
            is_known = match (&child, &*at) {
                (PathPlace::Node(link), _) if link.node.kind == FileKind::Symlink => {
                    return Ok(Step::Link(at.into_owned(), link.clone(), end));
                }
                (PathPlace::Node(dir), PathPlace::Node(_)) if dir.node.is_dir() => {
                    remember(dir)?;
                    false
                }
                // Another volume.
                (PathPlace::Snapshots(_), _) | (_, PathPlace::Snapshots(_)) => {
                    is_told = false;
                    true
                }
                _ => return fail(FsErrorKind::NotDirectory, "a path leads through what is no directory"),
            };
            at = Cow::Owned(child);
        }
    }

    /// The farthest directory below `from` that the prefix cache knows, on the way along the next
    /// `count` names of `run`, and the number of names that lead there.
    fn known(&self, from: &Hold, run: &[u8], count: usize) -> Result<Option<(PathPlace, usize)>> {
        let names = analyzer::names(run).take(count);
        match names.clone().next() {
            None => return Ok(None),
            // What the root shows there hides an entry of that name.
            Some((SNAPSHOTS_NAME, _)) => return Ok(None),
            Some(_) => {}
        }
        let fs = from.fs();
        let mut releases = fs.names.references.release_later();
        let tree = fs.names.tree.shared();
        let base = from.node.content_prefix(tree.epoch);
        let mut key = Vec::with_capacity(base.len() + run.len() + 16);
        key.extend_from_slice(&base);
        let mut ends = Vec::with_capacity(count);
        for (name, _) in names {
            analyzer::push_name(name, &mut key);
            ends.push(key.len());
        }
        let mut find = |names: usize| fs.prefixes.find(&tree, &key[..ends[names - 1]], &mut releases);
        let mut found = find(ends.len()).map(|held| (held, ends.len()));
        if found.is_none() {
            let (mut low, mut high) = (0, ends.len() - 1);
            while low < high {
                let middle = (low + high).div_ceil(2);
                match find(middle) {
                    Some(held) => {
                        found = Some((held, middle));
                        low = middle;
                    }
                    None => high = middle - 1,
                }
            }
        }
        let Some((held, count)) = found else { return Ok(None) };
        let end = ends[count - 1];
        if let Err(error) = self.check_known(fs, &tree, (&held, &key[..end]), count) {
            held.keep_until(&mut releases);
            return Err(error);
        }
        Ok(Some((PathPlace::Node(Hold::from(&from.volume, held)), count)))
    }

    /// Refuses a caller that may not search the `count` directories above `node`, which the cache
    /// knows by `prefix`.
    fn check_known(
        &self,
        fs: &FileSystem,
        tree: &TreeGuard<'_>,
        (node, prefix): (&HeldNode<'_>, &[u8]),
        count: usize,
    ) -> Result<()> {
        if self.caller.credentials.is_privileged() {
            return Ok(());
        }
        let searchable = |node: &Arc<Node>, prefix| fs.prefixes.searchable(tree, (node, prefix), self.caller);
        let above = match (searchable(node, prefix), node.place().parent) {
            (0, Some(parent)) => searchable(&parent, layout::prefix_above(prefix)),
            (directories, _) => directories.saturating_sub(1),
        };
        if above >= count {
            return Ok(());
        }
        fail(FsErrorKind::AccessDenied, "a directory on the path may not be searched")
    }
}

impl<'p> Cursor<'p> {
    fn new(path: &'p [u8], dir: &'p PathPlace, last: Last) -> Self {
        Self { path: Cow::Borrowed(path), at: 0, dir: Cow::Borrowed(dir), last }
    }
}

/// Tells the store of the names of `run` below a directory, the last one included, which will be
/// looked up one after the other: each needs what the directory above it has, but where they lie is
/// known of all.
fn expect(from: &Hold, run: &[u8]) {
    let volume = &from.fs().volume;
    if !volume.store.wants_expected_keys() {
        return;
    }
    let mut prefix = from.node.content_prefix(from.fs().names.tree.shared().epoch).to_vec();
    let mut keys = Vec::new();
    for (name, _) in analyzer::names(run).take(analyzer::first_run(run).count.min(MAX_EXPECTED_NAMES)) {
        keys.push(layout::entry_key(&prefix, name));
        analyzer::push_name(name, &mut prefix);
    }
    volume.store.expect_keys(volume.metadata(), &keys.iter().map(Vec::as_slice).collect::<Vec<_>>());
}

/// Adds a directory to the prefix cache of its volume.
fn remember(dir: &Hold) -> Result<()> {
    let fs = dir.fs();
    let mut releases = fs.names.references.release_later();
    let held = fs.names.references.hold(&dir.node)?;
    let prefix = dir.node.content_prefix(fs.names.tree.shared().epoch);
    fs.prefixes.insert(&prefix, held, &mut releases);
    Ok(())
}

/// Refuses what is no path.
pub(crate) fn check_path(path: &[u8]) -> Result<()> {
    if path.is_empty() {
        return fail(FsErrorKind::NotFound, "the path is empty");
    }
    if path.len() > MAX_PATH_BYTES {
        let length = path.len();
        return fail(
            FsErrorKind::NameTooLong,
            format!("a path of {length} bytes; {MAX_PATH_BYTES} are allowed"),
        );
    }
    if path.contains(&0) {
        return fail(FsErrorKind::Invalid, "a path contains a NUL");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
