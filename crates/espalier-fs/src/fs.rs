//! The calls.

use crate::error::{FsErrorKind, Result, fail};
use crate::types::*;

/// A mounted volume. All calls may come from many threads at once.
pub struct FileSystem {}

fn pending<T>() -> Result<T> {
    fail(FsErrorKind::Unsupported, "not connected to the engine yet")
}

#[allow(unused_variables, reason = "the signatures come before the bodies")]
impl FileSystem {
    /// Finds `name` in directory `parent` and takes a reference on it. `.` and `..` are understood.
    pub fn lookup(&self, parent: NodeId, name: &[u8]) -> Result<Entry> {
        pending()
    }

    /// Gives back `count` references. An unlinked file goes away with the last one.
    pub fn forget(&self, node: NodeId, count: u64) {}

    /// The attributes of `node`.
    pub fn getattr(&self, node: NodeId) -> Result<Attr> {
        pending()
    }

    /// Changes attributes; returns the new ones.
    pub fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr> {
        pending()
    }

    /// The target of a symbolic link.
    pub fn readlink(&self, node: NodeId) -> Result<Vec<u8>> {
        pending()
    }

    /// Makes a symbolic link to `target`.
    pub fn symlink(&self, parent: NodeId, name: &[u8], target: &[u8], caller: &Caller) -> Result<Entry> {
        pending()
    }

    /// Makes a file that is no directory and no symbolic link. `mode`: the low 12 bits.
    pub fn mknod(&self, parent: NodeId, name: &[u8], what: NewNode, mode: u32, caller: &Caller) -> Result<Entry> {
        pending()
    }

    /// Makes a directory.
    pub fn mkdir(&self, parent: NodeId, name: &[u8], mode: u32, caller: &Caller) -> Result<Entry> {
        pending()
    }

    /// Removes the entry of something that is no directory.
    pub fn unlink(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        pending()
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, parent: NodeId, name: &[u8]) -> Result<()> {
        pending()
    }

    /// Gives `node`, which is no directory, one name more.
    pub fn link(&self, node: NodeId, parent: NodeId, name: &[u8]) -> Result<Entry> {
        pending()
    }

    /// Moves an entry.
    pub fn rename(
        &self,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<()> {
        pending()
    }

    /// Fills `out` from `offset` as far as the file reaches; returns the number of bytes.
    pub fn read(&self, node: NodeId, offset: u64, out: &mut [u8]) -> Result<usize> {
        pending()
    }

    /// Writes all of `data` at `offset`. `kill_privileges`: clear set-id bits and capabilities.
    pub fn write(&self, node: NodeId, offset: u64, data: &[u8], kill_privileges: bool) -> Result<usize> {
        pending()
    }

    /// Allocates, zeroes or punches a range. `kill_privileges` as for write.
    pub fn fallocate(
        &self,
        node: NodeId,
        offset: u64,
        length: u64,
        what: Fallocate,
        kill_privileges: bool,
    ) -> Result<()> {
        pending()
    }

    /// The next data or hole at or after `offset`.
    pub fn lseek(&self, node: NodeId, offset: u64, what: Seek) -> Result<u64> {
        pending()
    }

    /// Copies up to `length` bytes; returns how many. Short copies are normal.
    pub fn copy_file_range(
        &self,
        from: NodeId,
        from_offset: u64,
        to: NodeId,
        to_offset: u64,
        length: u64,
    ) -> Result<u64> {
        pending()
    }

    /// Lists directory `node` from `cookie` (0: the beginning) until `each` returns false, which
    /// means that it did not keep the entry. `.` and `..` come first, then non-directories, then directories.
    pub fn readdir(&self, node: NodeId, cookie: u64, each: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        pending()
    }

    /// As `readdir`, and takes a reference on each entry kept, other than `.` and `..`.
    pub fn readdirplus(
        &self,
        node: NodeId,
        cookie: u64,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        pending()
    }

    /// The value of an extended attribute.
    pub fn getxattr(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>> {
        pending()
    }

    /// Sets an extended attribute. `clear_setgid`: with an ACL, clear the set-group-id bit.
    pub fn setxattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        clear_setgid: bool,
    ) -> Result<()> {
        pending()
    }

    /// The names of all extended attributes, each followed by a NUL.
    pub fn listxattr(&self, node: NodeId) -> Result<Vec<u8>> {
        pending()
    }

    /// Removes an extended attribute.
    pub fn removexattr(&self, node: NodeId, name: &[u8]) -> Result<()> {
        pending()
    }

    /// Room and limits.
    pub fn statfs(&self) -> Result<StatFs> {
        pending()
    }

    /// Makes what was done to `node` before this call durable; for a directory, everything.
    pub fn fsync(&self, node: NodeId, datasync: bool) -> Result<()> {
        pending()
    }

    /// Makes everything durable.
    pub fn syncfs(&self) -> Result<()> {
        pending()
    }

    /// What the mount calls every few seconds (default 5): writes out delayed times, makes
    /// everything durable.
    pub fn background_tick(&self) -> Result<()> {
        pending()
    }

    /// Empties the orphan area, writes out delayed times. The store is the caller's to close.
    pub fn close(&self) -> Result<()> {
        pending()
    }

    /// The attribute's block size: the unit of data that is efficient to write.
    pub fn block_size(&self) -> u32 {
        0
    }

    /// The path of `node` in the volume, for messages; for an unlinked file a description.
    pub fn path(&self, node: NodeId) -> Result<Vec<u8>> {
        pending()
    }

    /// Counters and memory.
    pub fn statistics(&self) -> FsStatistics {
        FsStatistics::default()
    }
}
