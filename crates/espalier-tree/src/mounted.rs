//! Calls on the files of a mount, through its server.

use crate::calls::{Attribute, BelowChange, Calls, Subtree, Xattrs};
use crate::error::{Error, Result};
use crate::file::{File, OpenHow};
use crate::walk::{Diff, Walk};
use crate::watch::Watch;
use espalier_client::{
    Changes, Client, Links, Listing, Piece, Rename, SetXattr, Stat, Write, WriteFlags, open_beneath,
};
use rustix::fs::{Mode, OFlags};
use std::sync::{Arc, PoisonError, RwLock};

/// The calls of one process on a mount.
pub(crate) struct MountCalls {
    /// Where paths begin.
    directory: std::fs::File,
    /// `None` after [`Calls::close`].
    client: RwLock<Option<Arc<Client>>>,
}

impl MountCalls {
    /// Begins a session with the server of the mount in which `directory` lies.
    ///
    /// # Errors
    /// ENOTTY if it lies in no mount of Espalier; EOPNOTSUPP or EACCES if the server takes no
    /// clients or not this one.
    pub(crate) fn connect(directory: &std::fs::File) -> Result<Self> {
        let client = Client::at(directory.try_clone()?)?;
        Ok(Self { directory: directory.try_clone()?, client: RwLock::new(Some(Arc::new(client))) })
    }

    fn client(&self) -> Result<Arc<Client>> {
        let client = self.client.read().unwrap_or_else(PoisonError::into_inner);
        client.clone().ok_or_else(|| Error::new(libc::EBADF, "the tree was closed"))
    }
}

impl Calls for MountCalls {
    fn stat_many(&self, paths: &[&[u8]], links: Links) -> Result<Vec<Result<Stat>>> {
        let found = self.client()?.stat_many(paths, links)?;
        Ok(found.into_iter().map(|stat| stat.map_err(Error::from)).collect())
    }

    fn read_many(
        &self,
        pieces: &[Piece<'_>],
        each: &mut dyn FnMut(usize, Result<&[u8]>) -> bool,
    ) -> Result<()> {
        let mut each = |at: usize, data: espalier_client::Result<&[u8]>| each(at, data.map_err(Error::from));
        Ok(self.client()?.read_many(pieces, &mut each)?)
    }

    fn walk(&self, path: &[u8], listing: &Listing) -> Result<Walk> {
        Ok(Walk::of_mount(self.client()?.walk(path, listing)?, path))
    }

    fn write_many(&self, files: &[Write<'_>], how: WriteFlags) -> Result<Vec<Result<()>>> {
        let written = self.client()?.write_many(files, how);
        Ok(written.into_iter().map(|result| result.map_err(Error::from)).collect())
    }

    fn open(&self, path: &[u8], how: &OpenHow) -> Result<File> {
        self.client()?;
        let mut flags = match (how.read, how.write) {
            (true, true) => OFlags::RDWR,
            (false, true) => OFlags::WRONLY,
            _ => OFlags::RDONLY,
        };
        flags |= OFlags::NONBLOCK;
        for (is_wanted, flag) in [
            (how.create.is_some(), OFlags::CREATE),
            (how.exclusive, OFlags::EXCL),
            (how.truncate, OFlags::TRUNC),
        ] {
            flags.set(flag, is_wanted);
        }
        let mode = Mode::from_raw_mode(how.create.unwrap_or(0) & 0o7777);
        // As for the server: the directory is the root.
        Ok(File::of_mount(open_beneath(&self.directory, path, flags, mode)?))
    }

    fn make_directory(&self, path: &[u8], mode: u32, parents: bool) -> Result<()> {
        Ok(self.client()?.make_directory(path, mode, parents)?)
    }

    fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        Ok(self.client()?.symlink(target, path)?)
    }

    fn link(&self, old: &[u8], new: &[u8]) -> Result<()> {
        Ok(self.client()?.link(old, new)?)
    }

    fn unlink(&self, path: &[u8]) -> Result<()> {
        Ok(self.client()?.unlink(path)?)
    }

    fn remove_directory(&self, path: &[u8]) -> Result<()> {
        Ok(self.client()?.remove_directory(path)?)
    }

    fn remove_tree(&self, path: &[u8]) -> Result<()> {
        Ok(self.client()?.remove_tree(path)?)
    }

    fn clone_tree(&self, old: &[u8], new: &[u8]) -> Result<()> {
        Ok(self.client()?.clone_tree(old, new)?)
    }

    fn rename(&self, old: &[u8], new: &[u8], how: Rename) -> Result<()> {
        Ok(self.client()?.rename(old, new, how)?)
    }

    fn set(&self, path: &[u8], attribute: Attribute) -> Result<()> {
        let client = self.client()?;
        let set = match attribute {
            Attribute::Mode(mode) => client.set_mode(path, mode),
            Attribute::Owner(uid, gid, links) => client.set_owner(path, uid, gid, links),
            Attribute::Times(read, changed, links) => client.set_times(path, (read, changed), links),
            Attribute::Size(size) => client.truncate(path, size),
        };
        Ok(set?)
    }

    fn set_below(&self, path: &[u8], change: BelowChange) -> Result<()> {
        let client = self.client()?;
        let set = match change {
            BelowChange::Owner(uid, gid) => client.own_tree(path, uid, gid),
            BelowChange::Modes(bits) => client.mode_tree(path, bits),
        };
        Ok(set?)
    }

    fn xattrs(&self, path: &[u8], links: Links) -> Result<Xattrs> {
        Ok(self.client()?.xattrs(path, links)?)
    }

    fn set_xattr(&self, path: &[u8], xattr: (&[u8], &[u8]), how: SetXattr, links: Links) -> Result<()> {
        Ok(self.client()?.set_xattr(path, xattr, how, links)?)
    }

    fn remove_xattr(&self, path: &[u8], name: &[u8], links: Links) -> Result<()> {
        Ok(self.client()?.remove_xattr(path, name, links)?)
    }

    fn diff(&self, old: &[u8], new: &[u8]) -> Result<Diff> {
        Ok(Diff::of_mount(self.client()?.diff(old, new)?, new))
    }

    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        Ok(self.client()?.read_link(path)?)
    }

    fn changes(&self, path: &[u8], position: &[u8]) -> Result<Changes> {
        Ok(self.client()?.changes(path, position)?)
    }

    fn watch(&self, path: &[u8], position: &[u8]) -> Result<Watch> {
        Ok(Watch::of_mount(self.client()?.watch(path, position)?, path))
    }

    fn watch_since(&self, path: &[u8], snapshot: &[u8]) -> Result<Watch> {
        Ok(Watch::of_mount(self.client()?.watch_since(path, snapshot)?, path))
    }

    fn subtree(&self, path: &[u8]) -> Result<Subtree> {
        self.client()?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Ok(Subtree::Mount(open_beneath(&self.directory, path, flags, Mode::empty())?))
    }

    fn sync(&self) -> Result<()> {
        Ok(self.client()?.sync()?)
    }

    fn close(&self) -> Result<()> {
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(())
    }
}
