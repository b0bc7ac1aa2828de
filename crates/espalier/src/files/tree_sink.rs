//! A tree as a sink of items: small files are written many at once, and attributes of directories
//! are set in the end, because writing into them changes their times.
//!
//! Items may come from a hostile archive. A path that is not plain is refused, and so is one that
//! leads through anything but directories: each directory on the way is looked at once, without
//! following links. A link is made as it is, wherever it leads; nothing is written through it.

use crate::files::transfer::{Item, ItemKind, ItemSink, Report};
use crate::files::tree::{Attributes, Data, Files, FilesResult, NewContent, NewFile, fail, is_plain, split};
use anyhow::Result;
use espalier_fs::{FileKind, FsError, FsErrorKind};
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Files of up to so many bytes are written many at once.
const SMALL_FILE_BYTES: u64 = 1 << 20;
/// So many files are written at once, or so many bytes.
const BATCH_FILES: usize = 256;
const BATCH_BYTES: u64 = 4 << 20;
/// What is written is made durable so often: what an interruption may cost.
const SYNC_PERIOD: Duration = Duration::from_secs(10);
/// Where a file lies that is not complete.
const PART_NAME: &[u8] = b".espalier-part";
/// The mode of directories that nothing is known of.
const DIRECTORY_MODE: u32 = 0o755;

/// How items are written.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SinkOptions {
    /// Owners are set; otherwise all belongs to the user that writes it.
    pub(crate) owners: bool,
    /// A file that is there with the same kind, size and time of change is left as it is.
    pub(crate) resume: bool,
}

/// See the [module](self).
pub(crate) struct TreeSink<'f> {
    files: &'f dyn Files,
    options: SinkOptions,
    /// Files that are not written yet, and their bytes.
    waiting: Vec<NewFile>,
    waiting_bytes: u64,
    /// Paths that are directories, and no links.
    known: HashSet<Vec<u8>>,
    /// Directories with the attributes that they get in the end.
    directories: Vec<(Vec<u8>, Attributes)>,
    synced: Instant,
}

impl<'f> TreeSink<'f> {
    pub(crate) fn new(files: &'f dyn Files, options: SinkOptions) -> Self {
        Self {
            files,
            options,
            waiting: Vec::new(),
            waiting_bytes: 0,
            known: HashSet::from([Vec::new()]),
            directories: Vec::new(),
            synced: Instant::now(),
        }
    }

    /// Makes sure that a path is that of a directory.
    fn make_directory(&mut self, path: &[u8]) -> FilesResult<()> {
        if self.known.contains(path) {
            return Ok(());
        }
        let (above, _) = split(path);
        self.make_directory(above)?;
        match self.files.make_directory(path, DIRECTORY_MODE) {
            Err(error) if error.kind() == FsErrorKind::Exists => self.check_directory(path)?,
            made => made?,
        }
        self.known.insert(path.to_vec());
        Ok(())
    }

    fn check_directory(&self, path: &[u8]) -> FilesResult<()> {
        match self.files.stat(path)?.kind {
            FileKind::Directory => Ok(()),
            FileKind::Symlink => fail(FsErrorKind::Loop, "the path leads through a symbolic link"),
            _ => fail(FsErrorKind::NotDirectory, "the path leads through what is no directory"),
        }
    }

    fn put_item(&mut self, mut item: Item, data: &mut dyn Data, report: &mut Report) -> Result<()> {
        if !item.path.is_empty() && !is_plain(&item.path) {
            return Err(refused("the path is absolute, or leads out by .., and is not used").into());
        }
        let (above, name) = split(&item.path);
        if name == PART_NAME {
            return Err(refused("the name is used for files that are not complete").into());
        }
        if !self.options.owners {
            item.attributes.owner = None;
        }
        if self.waiting.iter().any(|file| is_above(&file.path, &item.path)) {
            self.write_waiting(report)?;
        }
        if item.kind == ItemKind::Directory {
            self.make_directory(&item.path)?;
            self.directories.push((item.path, item.attributes));
            return Ok(());
        }
        if item.path.is_empty() {
            return Err(refused("only a directory can be the top").into());
        }
        self.make_directory(above)?;
        if self.is_there(&item)? {
            report.skipped += 1;
            return Ok(());
        }
        self.put_file(item, data, report)
    }

    fn put_file(&mut self, item: Item, data: &mut dyn Data, report: &mut Report) -> Result<()> {
        let Item { path, kind, attributes } = item;
        let content = match kind {
            ItemKind::HardLink(first) => {
                if !is_plain(&first) {
                    return Err(refused("the link leads out, and is not used").into());
                }
                self.write_waiting(report)?;
                let (above, _) = split(&first);
                self.check_way(above)?;
                return Ok(self.files.link(&first, &path)?);
            }
            ItemKind::Regular(size, extents) => {
                let bytes = extents.iter().map(|extent| extent.end - extent.start).sum::<u64>();
                if bytes > SMALL_FILE_BYTES {
                    self.write_waiting(report)?;
                    let file = NewFile { path, content: NewContent::Regular(size, Vec::new()), attributes };
                    return self.files.write_large(&file, size, data);
                }
                let (mut pieces, mut buffer) = (Vec::new(), Vec::new());
                while let Some(offset) = data.next(&mut buffer)? {
                    self.waiting_bytes += buffer.len() as u64;
                    pieces.push((offset, std::mem::take(&mut buffer)));
                }
                NewContent::Regular(size, pieces)
            }
            ItemKind::Symlink(target) => NewContent::Symlink(target),
            ItemKind::Node(node) => NewContent::Node(node),
            ItemKind::Directory => return Ok(()),
        };
        self.waiting.push(NewFile { path, content, attributes });
        if self.waiting.len() >= BATCH_FILES || self.waiting_bytes >= BATCH_BYTES {
            self.write_waiting(report)?;
        }
        Ok(())
    }

    /// Refuses a way to a file that leads through anything but directories.
    fn check_way(&mut self, path: &[u8]) -> FilesResult<()> {
        if self.known.contains(path) {
            return Ok(());
        }
        let (above, _) = split(path);
        self.check_way(above)?;
        self.check_directory(path)?;
        self.known.insert(path.to_vec());
        Ok(())
    }

    /// True if a file need not be written again.
    fn is_there(&self, item: &Item) -> FilesResult<bool> {
        if !self.options.resume {
            return Ok(false);
        }
        let attr = match self.files.stat(&item.path) {
            Err(error) if error.kind() == FsErrorKind::NotFound => return Ok(false),
            attr => attr?,
        };
        let is_same = |kind: FileKind| attr.kind == kind && item.attributes.mtime == Some(attr.mtime);
        Ok(match &item.kind {
            ItemKind::Regular(size, _) => is_same(FileKind::Regular) && attr.size == *size,
            ItemKind::Symlink(target) => {
                is_same(FileKind::Symlink) && self.files.read_link(&item.path)? == *target
            }
            ItemKind::HardLink(first) => match self.files.stat(first) {
                Ok(other) => (other.ino, other.kind) == (attr.ino, attr.kind),
                Err(_) => false,
            },
            ItemKind::Node(_) | ItemKind::Directory => false,
        })
    }

    /// Writes the files that wait.
    ///
    /// # Errors
    /// If there is no room for them: then there is none for others.
    fn write_waiting(&mut self, report: &mut Report) -> Result<()> {
        let files = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let mut full = None;
        self.files.write_many(&files, &mut |at, written| match written {
            Ok(()) => {}
            Err(error) if is_fatal(&error) => full = Some(error),
            Err(error) => report.complain(&files[at].path, error),
        });
        if let Some(error) = full {
            return Err(Fatal(error).into());
        }
        if self.synced.elapsed() >= SYNC_PERIOD {
            self.files.sync()?;
            self.synced = Instant::now();
        }
        Ok(())
    }
}

impl ItemSink for TreeSink<'_> {
    fn put(&mut self, item: Item, data: &mut dyn Data, report: &mut Report) -> Result<()> {
        let bytes = match &item.kind {
            ItemKind::Regular(size, _) => *size,
            _ => 0,
        };
        report.count(bytes);
        let path = item.path.clone();
        match self.put_item(item, data, report) {
            Ok(()) => Ok(()),
            Err(error) if error.is::<Fatal>() => Err(error),
            Err(error) if error.is::<SourceFailed>() => Err(error),
            Err(error) => match error.downcast::<FsError>() {
                Ok(error) if is_fatal(&error) => Err(Fatal(error).into()),
                Ok(error) => {
                    report.complain(&path, error);
                    Ok(())
                }
                Err(error) => {
                    report.complain(&path, error);
                    Ok(())
                }
            },
        }
    }

    fn finish(&mut self, report: &mut Report) -> Result<()> {
        self.write_waiting(report)?;
        // What lies deeper first: it changes the times of what is above.
        let mut directories = std::mem::take(&mut self.directories);
        // Of several attributes the last ones count.
        directories.reverse();
        directories.sort_by(|(one, _), (other, _)| other.cmp(one));
        directories.dedup_by(|(later, _), (earlier, _)| later == earlier);
        for (path, attributes) in directories {
            if let Err(error) = self.files.set_attributes(&path, &attributes) {
                report.complain(&path, error);
            }
        }
        Ok(self.files.sync()?)
    }
}

/// A failure of the tree after which nothing can be written.
#[derive(Debug)]
pub(crate) struct Fatal(FsError);

impl std::fmt::Display for Fatal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if matches!(self.0.kind(), FsErrorKind::NoSpace) {
            f.write_str("the file system is full: ")?;
        }
        write!(f, "{}; what is not there yet is left out", self.0)
    }
}

impl std::error::Error for Fatal {}

/// The content of an item ends before it should, or cannot be read: nothing behind it can.
#[derive(Debug)]
pub(crate) struct SourceFailed(pub(crate) String);

impl std::fmt::Display for SourceFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SourceFailed {}

fn is_fatal(error: &FsError) -> bool {
    matches!(error.kind(), FsErrorKind::NoSpace | FsErrorKind::QuotaExceeded | FsErrorKind::ReadOnly)
}

fn refused(why: &str) -> FsError {
    FsError::new(FsErrorKind::Invalid, why)
}

/// True if `path` is `above`, or lies below it.
fn is_above(above: &[u8], path: &[u8]) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
