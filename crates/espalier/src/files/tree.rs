//! What commands ask of a tree of files.
//!
//! Protocol: a tree has a *top*, a file or directory. Paths are relative to it, names with slashes
//! between them; the empty path is the top. What a call names is never followed if it is a symbolic
//! link, and no path leads out of the top.

use anyhow::Result;
use espalier_fs::{Attr, Filter, FsError, FsErrorKind, NewNode};
use std::ops::Range;

/// The outcome of a call on files.
pub(crate) type FilesResult<T> = std::result::Result<T, FsError>;

/// An extended attribute: name and value.
pub(crate) type Xattr = (Vec<u8>, Vec<u8>);

/// What a file has besides its content.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Attributes {
    /// The low 12 bits of the mode.
    pub(crate) mode: u32,
    /// Owner and group; `None`: those of the user that makes it.
    pub(crate) owner: Option<(u32, u32)>,
    /// The time of the last read, nanoseconds since the Unix epoch; `None`: now.
    pub(crate) atime: Option<i64>,
    /// The time of the last change of the content.
    pub(crate) mtime: Option<i64>,
    /// Extended attributes, access control lists among them.
    pub(crate) xattrs: Vec<Xattr>,
}

/// What a new file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NewContent {
    /// A regular file: its size, and pieces of content with the byte where each begins.
    Regular(u64, Vec<(u64, Vec<u8>)>),
    /// A symbolic link to this target.
    Symlink(Vec<u8>),
    /// A named pipe, a socket or a device.
    Node(NewNode),
}

/// A file to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewFile {
    pub(crate) path: Vec<u8>,
    pub(crate) content: NewContent,
    pub(crate) attributes: Attributes,
}

/// An entry of a tree.
#[derive(Debug, Clone)]
pub(crate) struct TreeEntry<'a> {
    /// The path below the top.
    pub(crate) path: &'a [u8],
    pub(crate) attr: Attr,
    /// A directory that may not be listed; nothing below it is given.
    pub(crate) is_closed: bool,
}

/// An open regular file.
pub(crate) trait OpenFile {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// The ranges that are no holes, in order.
    fn extents(&self) -> FilesResult<Vec<Range<u64>>>;

    /// Fills `out` from byte `offset` as far as the file reaches; returns the number of bytes.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> FilesResult<usize>;
}

/// The content of a regular file, piece by piece.
pub(crate) trait Data {
    /// Puts the next piece that is no hole into `buffer`; returns the byte where it begins, `None`
    /// behind the last one.
    ///
    /// # Errors
    /// What the source says.
    fn next(&mut self, buffer: &mut Vec<u8>) -> Result<Option<u64>>;
}

/// What a command does to a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// It reads.
    Read,
    /// It changes what is in a directory.
    Change,
    /// It changes what is in a directory, which is made if it is missing.
    Make,
}

/// A tree of files.
pub(crate) trait Files {
    /// The attributes of a file.
    fn stat(&self, path: &[u8]) -> FilesResult<Attr>;

    /// The names in a directory with attributes, in the order of the names.
    fn list(&self, path: &[u8]) -> FilesResult<Vec<(Vec<u8>, Attr)>>;

    /// Gives everything below the top that `filter` lets through, each directory before what is in
    /// it, until `each` returns false. A directory that may not be listed is given in any case.
    fn walk(&self, filter: &Filter, each: &mut dyn FnMut(TreeEntry<'_>) -> bool) -> FilesResult<()>;

    /// The same of everything, for a caller that asks for attributes and content of each entry
    /// while it has it.
    fn walk_to_read(&self, each: &mut dyn FnMut(TreeEntry<'_>) -> bool) -> FilesResult<()> {
        self.walk(&Filter::default(), each)
    }

    /// The target of a symbolic link.
    fn read_link(&self, path: &[u8]) -> FilesResult<Vec<u8>>;

    /// The extended attributes of a file.
    fn xattrs(&self, path: &[u8]) -> FilesResult<Vec<Xattr>>;

    /// Opens a regular file to read.
    fn open<'f>(&'f self, path: &[u8]) -> FilesResult<Box<dyn OpenFile + 'f>>;

    /// Writes files whose directories exist; what has their names goes, unless it is a directory.
    /// Each is there as a whole or not at all. `told` gets the place of each file among the others
    /// and how it fared.
    fn write_many(&self, files: &[NewFile], told: &mut dyn FnMut(usize, FilesResult<()>));

    /// Writes a file whose content is not in memory, of so many bytes: it gets its name when it is
    /// complete.
    fn write_large(&self, file: &NewFile, size: u64, data: &mut dyn Data) -> Result<()>;

    /// Makes a directory.
    fn make_directory(&self, path: &[u8], mode: u32) -> FilesResult<()>;

    /// Sets attributes of a directory; the list of extended attributes is completed, not replaced.
    fn set_attributes(&self, path: &[u8], attributes: &Attributes) -> FilesResult<()>;

    /// Gives the file at `old` one name more; what has that name goes, unless it is a directory.
    fn link(&self, old: &[u8], new: &[u8]) -> FilesResult<()>;

    /// Makes durable what was written so far.
    fn sync(&self) -> FilesResult<()>;
}

/// True if no path like this leads out of the top, and none leads to it by another way: names that
/// are neither empty nor dots, with slashes between them.
pub(crate) fn is_plain(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/')
        .all(|name| !name.is_empty() && name != b"." && name != b".." && !name.contains(&0))
}

/// A path with a name behind it.
pub(crate) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

/// Directory and last name of a path.
pub(crate) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (b"", path),
    }
}

/// A path as it is shown.
pub(crate) fn show(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'")
}

/// A text in which names may be shown, on one line and without what a terminal obeys.
pub(crate) fn show_text(text: &str) -> String {
    show(text.as_bytes()).replace("\\\\", "\\")
}

/// The ranges of an open file that are no holes, in order and inside of its size.
///
/// # Errors
/// Of the file; [`FsErrorKind::Io`] for ranges that no file has, as a faulty server may tell them.
pub(crate) fn extents_of(file: &dyn OpenFile) -> FilesResult<Vec<Range<u64>>> {
    let extents = file.extents()?;
    let mut at = 0;
    for extent in &extents {
        if extent.start < at || extent.end < extent.start || extent.end > file.size() {
            return fail(FsErrorKind::Io, "where its content lies is told wrong");
        }
        at = extent.end;
    }
    Ok(extents)
}

/// Shorthand for a failure.
pub(crate) fn fail<T>(kind: FsErrorKind, message: impl Into<String>) -> FilesResult<T> {
    Err(FsError::new(kind, message))
}

#[cfg(test)]
mod tests;
