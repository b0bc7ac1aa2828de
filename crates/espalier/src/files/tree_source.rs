//! A tree as a source of items.
//!
//! A walk gives the entries of a directory before what lies below. Here a directory is held back
//! until what is in it comes, or what comes behind that: so an archive has both one after the
//! other, as programs that read archives expect.

use crate::files::transfer::{Item, ItemKind, ItemSink, NoData, Report};
use crate::files::tree::{Attributes, Data, Files, FilesResult, OpenFile, TreeEntry, extents_of, split};
use anyhow::{Context, Result};
use espalier_fs::{Attr, FileKind, FsError, FsErrorKind, NewNode};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// What is read at a time, in bytes.
pub(crate) const PIECE_BYTES: u64 = 1 << 20;

/// Gives a tree to a sink: the top, and everything below.
///
/// # Errors
/// If the top cannot be read; of the sink.
pub(crate) fn give(files: &dyn Files, sink: &mut dyn ItemSink, report: &mut Report) -> Result<()> {
    let (names, held) = (HashMap::new(), BTreeMap::new());
    let mut source = TreeSource { files, sink, report, names, held, above: Vec::new(), error: None };
    let top = files.stat(b"")?;
    let is_directory = top.kind == FileKind::Directory;
    source.give(TreeEntry { path: b"", attr: top, is_closed: false })?;
    if !is_directory {
        return Ok(());
    }
    files.walk_to_read(&mut |entry| match source.give(entry) {
        Ok(()) => true,
        Err(error) => {
            source.error = Some(error);
            false
        }
    })?;
    match source.error.take() {
        Some(error) => Err(error),
        None => source.release(None),
    }
}

struct TreeSource<'a> {
    files: &'a dyn Files,
    sink: &'a mut dyn ItemSink,
    report: &'a mut Report,
    /// The first name of each file with several names, by number.
    names: HashMap<u64, Vec<u8>>,
    /// Directories that are held back, by the names on the way to them.
    held: BTreeMap<Vec<Vec<u8>>, Item>,
    /// The directory of the last entry.
    above: Vec<u8>,
    error: Option<anyhow::Error>,
}

impl TreeSource<'_> {
    /// Gives one entry; fails only if the sink does.
    fn give(&mut self, entry: TreeEntry<'_>) -> Result<()> {
        let TreeEntry { path, attr, is_closed } = entry;
        let (above, _) = split(path);
        if above != self.above {
            self.release(Some(above))?;
            self.above = above.to_vec();
        }
        if is_closed {
            self.report.complain(path, FsError::new(FsErrorKind::AccessDenied, "permission denied"));
        }
        let attributes = match self.attributes(path, &attr) {
            Ok(attributes) => attributes,
            Err(error) => {
                self.report.complain(path, error);
                return Ok(());
            }
        };
        if attr.nlink > 1 && attr.kind != FileKind::Directory {
            if let Some(first) = self.names.get(&attr.ino) {
                let kind = ItemKind::HardLink(first.clone());
                return self.put(Item { path: path.to_vec(), kind, attributes }, &mut NoData);
            }
            self.names.insert(attr.ino, path.to_vec());
        }
        if attr.kind == FileKind::Regular {
            return self.give_file(path, attributes);
        }
        let kind = match attr.kind {
            FileKind::Directory if !path.is_empty() => {
                let item = Item { path: path.to_vec(), kind: ItemKind::Directory, attributes };
                self.held.insert(names(path), item);
                return Ok(());
            }
            FileKind::Directory => ItemKind::Directory,
            FileKind::Symlink => match self.files.read_link(path) {
                Ok(target) => ItemKind::Symlink(target),
                Err(error) => {
                    self.report.complain(path, error);
                    return Ok(());
                }
            },
            FileKind::Fifo => ItemKind::Node(NewNode::Fifo),
            FileKind::Socket => ItemKind::Node(NewNode::Socket),
            FileKind::CharDevice => ItemKind::Node(NewNode::CharDevice(attr.rdev)),
            _ => ItemKind::Node(NewNode::BlockDevice(attr.rdev)),
        };
        self.put(Item { path: path.to_vec(), kind, attributes }, &mut NoData)
    }

    fn give_file(&mut self, path: &[u8], attributes: Attributes) -> Result<()> {
        let opened = self.files.open(path).and_then(|open| {
            let extents = extents_of(&*open)?;
            Ok((open, extents))
        });
        let (open, extents) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                self.report.complain(path, error);
                return Ok(());
            }
        };
        let kind = ItemKind::Regular(open.size(), extents.clone());
        let mut pieces = Pieces::new(&*open, extents);
        self.put(Item { path: path.to_vec(), kind, attributes }, &mut pieces)
    }

    /// Gives the directories that were held back and come before what is in `directory`, which is
    /// one of them; all of them if there is none.
    fn release(&mut self, directory: Option<&[u8]>) -> Result<()> {
        let last = directory.map(names);
        while let Some(entry) = self.held.first_entry()
            && last.as_ref().is_none_or(|last| entry.key() <= last)
        {
            let item = entry.remove();
            self.put(item, &mut NoData)?;
        }
        Ok(())
    }

    fn put(&mut self, item: Item, data: &mut dyn Data) -> Result<()> {
        self.sink.put(item, data, self.report)
    }

    fn attributes(&self, path: &[u8], attr: &Attr) -> FilesResult<Attributes> {
        Ok(Attributes {
            mode: attr.mode,
            owner: Some((attr.uid, attr.gid)),
            atime: Some(attr.atime),
            mtime: Some(attr.mtime),
            xattrs: self.files.xattrs(path)?,
        })
    }
}

/// The names of a path.
fn names(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect()
}

/// The content of an open file.
pub(crate) struct Pieces<'f> {
    file: &'f dyn OpenFile,
    extents: std::vec::IntoIter<Range<u64>>,
    /// What is left of an extent.
    at: Range<u64>,
}

impl<'f> Pieces<'f> {
    pub(crate) fn new(file: &'f dyn OpenFile, extents: Vec<Range<u64>>) -> Self {
        Self { file, extents: extents.into_iter(), at: 0..0 }
    }
}

impl Data for Pieces<'_> {
    fn next(&mut self, buffer: &mut Vec<u8>) -> Result<Option<u64>> {
        while self.at.is_empty() {
            match self.extents.next() {
                Some(extent) => self.at = extent,
                None => return Ok(None),
            }
        }
        let offset = self.at.start;
        let length = (self.at.end - offset).min(PIECE_BYTES);
        buffer.resize(length as usize, 0);
        let read = self.file.read_at(offset, buffer).context("it cannot be read")?;
        // A file that has become shorter ends with zeros, as its size was told before.
        buffer[read..].fill(0);
        self.at.start = offset + length;
        Ok(Some(offset))
    }
}
