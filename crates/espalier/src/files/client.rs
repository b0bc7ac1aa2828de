//! Files of a running mount, past the kernel: its server is asked for many at once.
//!
//! A session is begun at the top, which no path of it leaves. It does what commands do to many
//! files: lists and walks, attributes and content of small files, and writing those. All else, and
//! all that the server refuses, goes by the system ([`SystemFiles`]), so what a command says of it
//! is what it says without a server. Both ways see each other's changes at once; where they would
//! not (`-o writeback`), or where something else is mounted below, there is no session.

use crate::files::system::{SystemFiles, failed_with};
use crate::files::tree::{
    Access, Attributes, Data, Files, FilesResult, NewContent, NewFile, OpenFile, TreeEntry, Xattr, split,
};
use anyhow::Result;
use espalier_bridge::{attr_of, listing_of};
use espalier_client::{
    Aspects, Client, Details, Entry, Links, Listing, Piece, Ranges, Stat, Walk, Write, WriteFlags, Xattrs,
};
use espalier_fs::{Attr, Filter, FsError, FsErrorKind, NewNode};
use espalier_sync::Mutex;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::iter::Peekable;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Files of up to so many bytes are read whole with others; a larger one is opened.
const SMALL_FILE_BYTES: u64 = 256 << 10;
/// So many entries of a walk are looked at together, or so many bytes.
const AHEAD_ENTRIES: usize = 512;
const AHEAD_BYTES: u64 = 4 << 20;

/// A tree of a mount.
pub(crate) struct ClientFiles {
    system: SystemFiles,
    client: Client,
    /// A walk from which directories are listed in order.
    lists: Mutex<Option<Lists>>,
    /// What was asked ahead of the entries that a walk gives.
    ahead: Mutex<HashMap<Vec<u8>, Ahead>>,
}

/// What is known of a file.
struct Ahead {
    details: Details,
    /// The content of a small regular file.
    content: Option<Vec<u8>>,
}

/// A walk that has come to some directory.
struct Lists {
    /// Where it began.
    top: Vec<u8>,
    walk: Peekable<Walk>,
}

/// A file whose content is in memory.
struct SmallFile {
    size: u64,
    extents: Vec<Range<u64>>,
    content: Vec<u8>,
}

impl ClientFiles {
    /// A session for a tree, or the tree as it was if there is none for what a command does to it.
    pub(crate) fn new(system: SystemFiles, access: Access) -> Result<Self, SystemFiles> {
        let Some(client) = connect(&system, access) else { return Err(system) };
        tracing::debug!("the server of the mount is asked for many files at once");
        Ok(Self { system, client, lists: Mutex::default(), ahead: Mutex::default() })
    }

    /// Asks for what a caller will want of entries. What cannot be told is left out, and asked for
    /// again by the system.
    fn look_ahead(&self, entries: &[Entry]) {
        let asked = Aspects { xattrs: true, target: true, extents: true, ..Aspects::default() };
        let paths: Vec<&[u8]> = entries.iter().map(|entry| &entry.path[..]).collect();
        let Ok(described) = self.client.describe_many(&paths, asked, Links::Stay) else { return };
        let mut ahead = self.ahead.lock();
        let mut small = Vec::new();
        for (entry, details) in entries.iter().zip(described) {
            let Ok(details) = details else { continue };
            let size = details.extents.0;
            let content = entry.stat.is_file() && size <= SMALL_FILE_BYTES;
            if content && size > 0 {
                // One byte more shows a file that has grown.
                small.push(Piece { path: &entry.path, offset: 0, length: size + 1 });
            }
            ahead.insert(entry.path.clone(), Ahead { details, content: content.then(Vec::new) });
        }
        let read = self.client.read_many(&small, &mut |at, data| {
            let Some(known) = small.get(at).and_then(|piece| ahead.get_mut(piece.path)) else { return true };
            let (size, extents) = &known.details.extents;
            known.content = data.ok().filter(|data| has_holes(data, *size, extents)).map(<[u8]>::to_vec);
            true
        });
        if read.is_err() {
            ahead.clear();
        }
    }

    /// Gives entries of which more is wanted; returns whether to go on.
    fn give(&self, entries: &mut Vec<Entry>, each: &mut dyn FnMut(TreeEntry<'_>) -> bool) -> bool {
        self.look_ahead(entries);
        let goes_on = entries.drain(..).all(|entry| give(&entry, each));
        self.ahead.lock().clear();
        goes_on
    }

    /// The entries of a directory from a walk, which goes on from there; `None` if it has none.
    fn list_by_walk(&self, path: &[u8]) -> Option<Vec<(Vec<u8>, Attr)>> {
        let mut lists = self.lists.lock();
        let is_there = lists.as_ref().is_some_and(|lists| below(&lists.top, path).is_some());
        if !is_there {
            let walk = self.client.walk(place(path), &Listing::default()).ok()?;
            *lists = Some(Lists { top: path.to_vec(), walk: walk.peekable() });
        }
        let open = lists.as_mut()?;
        let inside = below(&open.top, path)?.to_vec();
        let mut all = Vec::new();
        loop {
            let entry = match open.walk.peek() {
                Some(Ok(entry)) => entry,
                Some(Err(_)) => {
                    *lists = None;
                    return None;
                }
                None => break,
            };
            let (above, name) = split(&entry.path);
            match above.split(|byte| *byte == b'/').cmp(inside.split(|byte| *byte == b'/')) {
                // A directory that was not asked for.
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => {
                    all.extend(attr_of(&entry.stat).map(|attr| (name.to_vec(), attr)));
                }
                std::cmp::Ordering::Greater => break,
            }
            open.walk.next();
        }
        all.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        (!all.is_empty()).then_some(all)
    }
}

/// The content of small regular files of a directory, as far as a server gives it; what it does not
/// give may be there all the same.
pub(crate) fn small_files(directory: &Path, names: &[&OsStr]) -> Vec<Option<Vec<u8>>> {
    let mut all = vec![None; names.len()];
    let opened = SystemFiles::open(directory, Access::Read).ok();
    let Some(client) = opened.and_then(|system| connect(&system, Access::Read)) else { return all };
    tracing::debug!("the server of the mount is asked for many files at once");
    let paths: Vec<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
    // Links may lead out of the directory, where the session has no paths.
    let Ok(found) = client.stat_many(&paths, Links::Stay) else { return all };
    let is_small = |stat: &Stat| stat.is_file() && stat.size <= SMALL_FILE_BYTES;
    let small: Vec<(usize, u64)> = found
        .into_iter()
        .enumerate()
        .filter_map(|(at, stat)| stat.ok().filter(is_small).map(|stat| (at, stat.size)))
        .collect();
    // One byte more shows a file that has grown.
    let piece = |(at, size): &(usize, u64)| Piece { path: paths[*at], offset: 0, length: size + 1 };
    let pieces: Vec<Piece<'_>> = small.iter().map(piece).collect();
    let read = client.read_many(&pieces, &mut |piece, data| {
        if let (Some((at, size)), Ok(data)) = (small.get(piece), data)
            && data.len() as u64 == *size
        {
            all[*at] = Some(data.to_vec());
        }
        true
    });
    match read {
        Ok(()) => all,
        Err(_) => vec![None; names.len()],
    }
}

/// Begins a session for a tree.
fn connect(system: &SystemFiles, access: Access) -> Option<Client> {
    let top = system.open_to_list().ok()?;
    let shown = std::fs::read_link(format!("/proc/self/fd/{}", top.as_raw_fd())).ok()?;
    let client = Client::at(top).ok()?;
    let flags = client.flags().ok()?;
    let is_useful = !flags.write_back && (access == Access::Read || !flags.read_only);
    let mounts = std::fs::read("/proc/self/mountinfo").ok()?;
    (is_useful && !is_mounted_below(&mounts, &shown)).then_some(client)
}

/// True if `/proc/self/mountinfo` has something below a directory.
fn is_mounted_below(mounts: &[u8], directory: &Path) -> bool {
    let mut points =
        mounts.split(|byte| *byte == b'\n').filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    let is_below = |point: &[u8]| {
        let point = PathBuf::from(OsStr::from_bytes(&unescaped(point)));
        point != directory && point.starts_with(directory)
    };
    points.any(is_below)
}

/// A path with octal escapes for blanks and the like.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let (mut out, mut left) = (Vec::with_capacity(text.len()), text);
    while let Some((first, rest)) = left.split_first() {
        let octal =
            rest.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                left = &rest[3..];
            }
            None => {
                out.push(*first);
                left = rest;
            }
        }
    }
    out
}

/// A path as the session has it.
fn place(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"." } else { path }
}

/// True if content has this size, and only zeros outside of these ranges: what was asked for before
/// it was read holds for it too. A hole that was filled in between would be lost otherwise.
fn has_holes(data: &[u8], size: u64, extents: &[Range<u64>]) -> bool {
    let mut at = 0;
    let is_hole_before = |extent: Range<u64>| {
        let hole = data.get(usize::try_from(at).ok()?..usize::try_from(extent.start).ok()?)?;
        at = extent.end;
        Some(hole.iter().all(|byte| *byte == 0))
    };
    let mut holes = extents.iter().cloned().chain(std::iter::once(size..size)).map(is_hole_before);
    data.len() as u64 == size && holes.all(|is_hole| is_hole == Some(true))
}

/// The rest of a path that is `top` or lies below it.
fn below<'p>(top: &[u8], path: &'p [u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(top)?;
    if top.is_empty() || rest.is_empty() { Some(rest) } else { rest.strip_prefix(b"/") }
}

fn give(entry: &Entry, each: &mut dyn FnMut(TreeEntry<'_>) -> bool) -> bool {
    // A server tells of no kind of file that there is not.
    let Some(attr) = attr_of(&entry.stat) else { return true };
    each(TreeEntry { path: &entry.path, attr, is_closed: entry.is_closed })
}

/// What a server says, as the system says it; what only a client knows as it is.
fn failed(error: &espalier_client::Error) -> FsError {
    match error {
        espalier_client::Error::Refused { errno, .. } => failed_with(*errno),
        other => FsError::new(FsErrorKind::Io, other.to_string()),
    }
}

/// What of new files a call refers to: ranges that are no holes, content, extended attributes.
struct Parts {
    holes: Option<(u64, Ranges)>,
    content: Vec<u8>,
    xattrs: Xattrs,
}

impl Parts {
    fn of(file: &NewFile) -> Self {
        let mut parts = Self { holes: None, content: Vec::new(), xattrs: Xattrs::default() };
        file.attributes.xattrs.iter().for_each(|(name, value)| parts.xattrs.push(name, value));
        if let NewContent::Regular(size, pieces) = &file.content
            && whole(*size, pieces).is_none()
        {
            let pieces = pieces.iter().filter(|(_, data)| !data.is_empty());
            let ranges = pieces.clone().map(|(at, data)| *at..at + data.len() as u64);
            parts.holes = Some((*size, Ranges::new(ranges)));
            pieces.for_each(|(_, data)| parts.content.extend_from_slice(data));
        }
        parts
    }

    fn request<'r>(&'r self, file: &'r NewFile) -> Write<'r> {
        let NewFile { path, content, attributes } = file;
        let write = match (content, &self.holes) {
            (NewContent::Regular(..), Some((size, ranges))) => {
                Write::sparse(path, *size, ranges, &self.content)
            }
            (NewContent::Regular(size, pieces), None) => {
                Write::file(path, whole(*size, pieces).unwrap_or_default())
            }
            (NewContent::Symlink(target), _) => Write::symlink(path, target),
            (NewContent::Node(node), _) => match *node {
                NewNode::Regular => Write::file(path, b""),
                NewNode::Fifo => Write::node(path, libc::S_IFIFO, 0),
                NewNode::Socket => Write::node(path, libc::S_IFSOCK, 0),
                NewNode::CharDevice(device) => Write::node(path, libc::S_IFCHR, device),
                NewNode::BlockDevice(device) => Write::node(path, libc::S_IFBLK, device),
            },
        };
        let &Attributes { mode, owner, atime, mtime, .. } = attributes;
        let (uid, gid) = owner.unzip();
        let mut write = write.with_mode(mode).with_owner(uid, gid).with_xattrs(&self.xattrs);
        write = atime.map_or(write, |atime| write.with_atime(atime));
        mtime.map_or(write, |mtime| write.with_mtime(mtime))
    }
}

/// The content of a file without holes.
fn whole(size: u64, pieces: &[(u64, Vec<u8>)]) -> Option<&[u8]> {
    match pieces {
        [] if size == 0 => Some(b""),
        [(0, data)] if data.len() as u64 == size => Some(data),
        _ => None,
    }
}

impl Files for ClientFiles {
    fn stat(&self, path: &[u8]) -> FilesResult<Attr> {
        self.system.stat(path)
    }

    fn list(&self, path: &[u8]) -> FilesResult<Vec<(Vec<u8>, Attr)>> {
        // One without entries, and one that may not be listed, the system tells apart.
        self.list_by_walk(path).map_or_else(|| self.system.list(path), Ok)
    }

    fn walk(&self, filter: &Filter, each: &mut dyn FnMut(TreeEntry<'_>) -> bool) -> FilesResult<()> {
        // Only what it lets through crosses the socket.
        let Ok(walk) = self.client.walk(".", &listing_of(filter)) else {
            return self.system.walk(filter, each);
        };
        let mut given = 0;
        for entry in walk {
            given += 1;
            if !give(&entry.map_err(|error| failed(&error))?, each) {
                break;
            }
        }
        tracing::debug!("the server of the mount gave {given} entries");
        Ok(())
    }

    fn walk_to_read(&self, each: &mut dyn FnMut(TreeEntry<'_>) -> bool) -> FilesResult<()> {
        let Ok(walk) = self.client.walk(".", &Listing::default()) else {
            return self.system.walk_to_read(each);
        };
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for entry in walk {
            let entry = entry.map_err(|error| failed(&error))?;
            bytes += entry.stat.size.min(SMALL_FILE_BYTES);
            entries.push(entry);
            if entries.len() >= AHEAD_ENTRIES || bytes >= AHEAD_BYTES {
                bytes = 0;
                if !self.give(&mut entries, each) {
                    return Ok(());
                }
            }
        }
        self.give(&mut entries, each);
        Ok(())
    }

    fn read_link(&self, path: &[u8]) -> FilesResult<Vec<u8>> {
        let ahead = self.ahead.lock();
        match ahead.get(path).map(|known| &known.details.target).filter(|target| !target.is_empty()) {
            Some(target) => Ok(target.clone()),
            None => self.system.read_link(path),
        }
    }

    fn xattrs(&self, path: &[u8]) -> FilesResult<Vec<Xattr>> {
        let ahead = self.ahead.lock();
        match ahead.get(path) {
            Some(known) => Ok(known.details.xattrs.clone()),
            None => self.system.xattrs(path),
        }
    }

    fn open<'f>(&'f self, path: &[u8]) -> FilesResult<Box<dyn OpenFile + 'f>> {
        let mut ahead = self.ahead.lock();
        match ahead.get_mut(path).and_then(|known| Some((known.content.take()?, &known.details.extents))) {
            Some((content, (size, extents))) => {
                Ok(Box::new(SmallFile { size: *size, extents: extents.clone(), content }))
            }
            None => self.system.open(path),
        }
    }

    fn write_many(&self, files: &[NewFile], told: &mut dyn FnMut(usize, FilesResult<()>)) {
        let parts: Vec<Parts> = files.iter().map(Parts::of).collect();
        let writes: Vec<Write<'_>> =
            files.iter().zip(&parts).map(|(file, parts)| parts.request(file)).collect();
        let how = WriteFlags { replace: true, directories: None };
        for (at, written) in self.client.write_many(&writes, how).into_iter().enumerate() {
            match written {
                Ok(()) => told(at, Ok(())),
                Err(error) if matches!(error.errno(), libc::ENOSPC | libc::EDQUOT) => {
                    told(at, Err(failed(&error)));
                }
                // The system says what is wrong, or knows that nothing is.
                Err(_) => self.system.write_many(&files[at..=at], &mut |_, written| told(at, written)),
            }
        }
    }

    fn write_large(&self, file: &NewFile, size: u64, data: &mut dyn Data) -> Result<()> {
        self.system.write_large(file, size, data)
    }

    fn make_directory(&self, path: &[u8], mode: u32) -> FilesResult<()> {
        self.client.make_directory(path, mode, false).or_else(|_| self.system.make_directory(path, mode))
    }

    fn set_attributes(&self, path: &[u8], attributes: &Attributes) -> FilesResult<()> {
        self.system.set_attributes(path, attributes)
    }

    fn link(&self, old: &[u8], new: &[u8]) -> FilesResult<()> {
        self.system.link(old, new)
    }

    fn sync(&self) -> FilesResult<()> {
        self.system.sync()
    }
}

impl OpenFile for SmallFile {
    fn size(&self) -> u64 {
        self.size
    }

    fn extents(&self) -> FilesResult<Vec<Range<u64>>> {
        Ok(self.extents.clone())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> FilesResult<usize> {
        let from = usize::try_from(offset).map_or(self.content.len(), |at| at.min(self.content.len()));
        let length = out.len().min(self.content.len() - from);
        out[..length].copy_from_slice(&self.content[from..from + length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_below_is_found() {
        let mounts = b"1 0 0:1 / / rw - ext4 a rw\n2 1 0:2 / /mnt rw - fuse b rw\n\
            3 2 0:3 / /mnt/a\\040b/c rw - tmpfs c rw\n";
        let is_below = |path: &str| is_mounted_below(mounts, Path::new(path));
        assert!(is_below("/mnt") && is_below("/mnt/a b") && is_below("/"));
        assert!(!is_below("/mnt/a b/c") && !is_below("/mnt/a") && !is_below("/mn"));
    }

    #[test]
    fn content_with_a_hole_that_was_filled_is_not_that_of_the_ranges() {
        let mut data = vec![0; 12];
        data[4..8].fill(7);
        let one = |range: Range<u64>| vec![range];
        for extents in [one(4..8), one(0..8), vec![4..6, 6..12], one(0..12)] {
            assert!(has_holes(&data, 12, &extents), "{extents:?}");
            assert!(!has_holes(&data, 11, &extents) && !has_holes(&data, 13, &extents), "{extents:?}");
        }
        for filled in [0, 3, 8, 11] {
            let mut data = data.clone();
            data[filled] = 1;
            assert!(!has_holes(&data, 12, &one(4..8)), "{filled}");
            assert!(has_holes(&data, 12, &one(0..12)), "{filled}");
        }
        assert!(has_holes(&[0; 12], 12, &[]) && !has_holes(&data, 12, &[]));
        // Ranges that no file has.
        assert!(!has_holes(&data, 12, &[6..8, 4..6]) && !has_holes(&data, 12, &one(4..20)));
    }

    #[test]
    fn paths_below_a_top() {
        assert_eq!(below(b"", b"a/b"), Some(&b"a/b"[..]));
        assert_eq!(below(b"a", b"a/b"), Some(&b"b"[..]));
        assert_eq!(below(b"a", b"a"), Some(&b""[..]));
        assert_eq!(below(b"a", b"ab"), None);
    }
}
