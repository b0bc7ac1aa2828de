//! The calls that a place answers: a mount's through its server, an image's here.

use crate::error::Result;
use crate::file::{File, OpenHow};
use crate::walk::{Diff, Walk};
use crate::watch::Watch;
use espalier_client::{Changes, Links, Listing, Piece, Rename, SetXattr, Stat, Time, Write, WriteFlags};

/// A change of attributes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Attribute {
    /// The low 12 bits of the mode.
    Mode(u32),
    /// Owner and group; `None` stays.
    Owner(Option<u32>, Option<u32>, Links),
    /// The times of the last read and of the last change.
    Times(Time, Time, Links),
    /// The size in bytes.
    Size(u64),
}

/// Names and values of extended attributes.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// A change of everything below a directory.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BelowChange {
    /// Owner and group; `None` stays.
    Owner(Option<u32>, Option<u32>),
    /// Modes: bits of directories that stay, and that are added; the same of files; and bits that
    /// are added to files that are executable.
    Modes([u32; 5]),
}

/// A directory that a tree begins at.
pub(crate) enum Subtree {
    /// Of a mount: the directory, which each process may connect for itself.
    Mount(std::fs::File),
    /// Of an image.
    Image(Box<dyn Calls>),
}

/// What [`Tree`](crate::Tree) passes on. Its documentation has the meanings; errors get their path
/// there.
pub(crate) trait Calls: Send + Sync {
    fn stat_many(&self, paths: &[&[u8]], links: Links) -> Result<Vec<Result<Stat>>>;
    fn read_many(
        &self,
        pieces: &[Piece<'_>],
        each: &mut dyn FnMut(usize, Result<&[u8]>) -> bool,
    ) -> Result<()>;
    fn walk(&self, path: &[u8], listing: &Listing) -> Result<Walk>;
    fn write_many(&self, files: &[Write<'_>], how: WriteFlags) -> Result<Vec<Result<()>>>;
    fn open(&self, path: &[u8], how: &OpenHow) -> Result<File>;
    fn make_directory(&self, path: &[u8], mode: u32, parents: bool) -> Result<()>;
    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()>;
    fn link(&self, old: &[u8], new: &[u8]) -> Result<()>;
    fn unlink(&self, path: &[u8]) -> Result<()>;
    fn remove_directory(&self, path: &[u8]) -> Result<()>;
    fn remove_tree(&self, path: &[u8]) -> Result<()>;
    fn clone_tree(&self, old: &[u8], new: &[u8]) -> Result<()>;
    fn rename(&self, old: &[u8], new: &[u8], how: Rename) -> Result<()>;
    fn set(&self, path: &[u8], attribute: Attribute) -> Result<()>;
    fn set_below(&self, path: &[u8], change: BelowChange) -> Result<()>;
    fn xattrs(&self, path: &[u8], links: Links) -> Result<Xattrs>;
    fn set_xattr(&self, path: &[u8], xattr: (&[u8], &[u8]), how: SetXattr, links: Links) -> Result<()>;
    fn remove_xattr(&self, path: &[u8], name: &[u8], links: Links) -> Result<()>;
    fn diff(&self, old: &[u8], new: &[u8]) -> Result<Diff>;
    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>>;
    fn changes(&self, path: &[u8], position: &[u8]) -> Result<Changes>;
    fn watch(&self, path: &[u8], position: &[u8]) -> Result<Watch>;
    fn watch_since(&self, path: &[u8], snapshot: &[u8]) -> Result<Watch>;
    fn subtree(&self, path: &[u8]) -> Result<Subtree>;
    fn sync(&self) -> Result<()>;
    /// Makes everything durable, and lets go of the place: later calls fail.
    fn close(&self) -> Result<()>;
}
