//! A tree: the calls on what lies below a directory, with their paths in their errors.

use crate::calls::{Attribute, BelowChange, Calls};
use crate::error::{Error, Result};
use crate::file::{File, OpenHow};
use crate::image::ImageOptions;
use crate::located::{Located, Place};
use crate::processes::Processes;
use crate::walk::{Diff, Walk};
use crate::watch::Watch;
use espalier_client::{
    Changes, Entry, Links, Listing, Piece, Rename, SetXattr, Stat, Time, Write, WriteFlags,
};
use std::path::Path;
use std::sync::Arc;

/// What lies below a directory of a mount, or of an image that is not mounted.
///
/// Calls may come from several threads; on a mount those of one tree come one after the other, so
/// threads that shall not wait for each other have a tree each. After `fork` the child's first call
/// opens the place anew; an image that the parent writes cannot be used by the child.
///
/// All calls fail with the numbers of Linux for their paths: ENOENT, ENOTDIR, EACCES, ELOOP,
/// ENAMETOOLONG (a path has up to 1 MiB), EINVAL for a NUL. On a mount any call may fail with
/// ECONNRESET if the server went away ([`Error::is_uncertain`]), and with ENOTCONN if there is
/// none.
pub struct Tree(Arc<Processes>);

/// A change of the modes of everything below a directory, of the low 12 bits: each entry gets its
/// mode without `clear`, and with `add`; directories, and files that have an execute bit, also get
/// `execute`, as for the `X` of `chmod`. Symbolic links have no mode.
///
/// `{ clear: 0o022, add: 0o600, execute: 0o100 }` is `chmod -R u+rwX,go-w`; with `clear: 0o7777`
/// modes are set: `{ add: 0o644, execute: 0o111, .. }` gives 0755 to directories and programs and
/// 0644 to all else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModeBits {
    /// Bits that go.
    pub clear: u32,
    /// Bits that all get.
    pub add: u32,
    /// Bits that directories and executable files get besides.
    pub execute: u32,
}

impl ModeBits {
    fn change(self) -> BelowChange {
        const ALL: u32 = 0o7777;
        let Self { clear, add, execute } = self;
        let (keep, add, execute) = (!clear & ALL, add & ALL, execute & ALL);
        BelowChange::Modes([keep, add | execute, keep, add, execute])
    }
}

impl Tree {
    /// Opens a place: a directory in a mount; an image that is not mounted, `IMAGE`; or a directory
    /// in one, `IMAGE:/DIRECTORY`. `options` are for images.
    ///
    /// # Errors
    /// ENOENT and ENOTDIR for what is neither; as for [`Tree::at`]. Of an image: EACCES; EBUSY if
    /// another process has it open, as the server of a mount has; EIO if it is none, or damaged.
    pub fn open(place: impl AsRef<Path>, options: &ImageOptions) -> Result<Self> {
        let place = place.as_ref();
        let open = || match Place::of(place)? {
            Place::Directory(path) => {
                use rustix::fs::{Mode, OFlags};
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let directory = rustix::fs::open(&path, flags, Mode::empty());
                Self::at(directory.map_err(std::io::Error::from)?.into())
            }
            Place::Image(path, inside) => {
                let path = path.canonicalize()?;
                Processes::open(Located::Image(path, inside, options.clone())).map(Self::of)
            }
        };
        open().map_err(|error| error.of(place.as_os_str().as_encoded_bytes()))
    }

    /// Opens what lies below an open directory of a mount.
    ///
    /// # Errors
    /// ENOTTY if it lies in no mount of Espalier, EXDEV in a snapshot; EOPNOTSUPP if the server
    /// takes no clients; EACCES if not this one (`docs/protocol.md`, "Rights").
    pub fn at(directory: std::fs::File) -> Result<Self> {
        Processes::open(Located::Mount(directory)).map(Self::of)
    }

    fn of(processes: Processes) -> Self {
        Self(Arc::new(processes))
    }

    /// A directory as a tree of its own, which the process may list and search: paths begin there,
    /// whatever happens to the name of the directory, and do not leave it (`openat2` with
    /// `RESOLVE_IN_ROOT`). On a mount it has a connection of its own. In an image it ends when this
    /// tree is closed (EBADF), and the image stays locked until both are dropped.
    ///
    /// # Errors
    /// Those of `open` for a directory; on a mount as for [`Tree::at`].
    pub fn subtree(&self, path: impl AsRef<[u8]>) -> Result<Self> {
        let path = path.as_ref();
        Processes::below(&self.0, path).map(Self::of).map_err(|error| error.of(path))
    }

    fn on<T>(&self, path: &[u8], call: impl FnOnce(&dyn Calls) -> Result<T>) -> Result<T> {
        self.0.calls().and_then(call).map_err(|error| error.of(path))
    }

    /// The attributes of a file.
    ///
    /// # Errors
    /// Those of `stat`.
    pub fn stat(&self, path: impl AsRef<[u8]>, links: Links) -> Result<Stat> {
        let mut all = self.stat_many(&[path.as_ref()], links)?;
        all.pop().unwrap_or_else(|| Err(Error::new(libc::EPROTO, "an answer for no file")))
    }

    /// The attributes of many files, in the order in which they were asked for, each of an instant
    /// of its own and with a result of its own.
    ///
    /// # Errors
    /// If no file can be asked for. Of each: those of `stat`.
    pub fn stat_many<P: AsRef<[u8]>>(&self, paths: &[P], links: Links) -> Result<Vec<Result<Stat>>> {
        let paths: Vec<&[u8]> = paths.iter().map(AsRef::as_ref).collect();
        let found = self.0.calls()?.stat_many(&paths, links)?;
        Ok(found.into_iter().zip(paths).map(|(stat, path)| stat.map_err(|error| error.of(path))).collect())
    }

    /// Reads parts of many files, in the order in which it is fastest, until `each` returns false.
    /// It gets the place of a part among the others, and what was read; a file that ends sooner
    /// gives less. It makes no calls on this tree itself.
    ///
    /// # Errors
    /// If nothing can be asked for. Of each part: those of `open` and `read`.
    pub fn read_many(
        &self,
        pieces: &[Piece<'_>],
        each: &mut dyn FnMut(usize, Result<&[u8]>) -> bool,
    ) -> Result<()> {
        self.0.calls()?.read_many(pieces, &mut |at, data| {
            each(at, data.map_err(|error| pieces.get(at).map_or(error.clone(), |piece| error.of(piece.path))))
        })
    }

    /// The whole content of a file.
    ///
    /// # Errors
    /// Those of `open` and `read`.
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let mut found = Err(Error::new(libc::EPROTO, "an answer for no file").of(path));
        self.read_many(&[Piece { path, offset: 0, length: u64::MAX }], &mut |_, data| {
            found = data.map(<[u8]>::to_vec);
            true
        })?;
        found
    }

    /// Everything below a directory that `listing` lets through, of one instant. Links are not
    /// followed, snapshots not shown. Directories that are closed to the caller are given whatever
    /// `listing` says.
    ///
    /// # Errors
    /// ENOTDIR; EACCES unless the caller may list and search the directory. Of an entry: on a mount
    /// ETIMEDOUT if the walk was left alone for a minute, ECONNRESET if the server went away.
    pub fn walk(&self, path: impl AsRef<[u8]>, listing: &Listing) -> Result<Walk> {
        let path = path.as_ref();
        self.on(path, |calls| calls.walk(path, listing))
    }

    /// The entries of a directory with their attributes, of one instant, in the order of their
    /// names; paths are the names.
    ///
    /// # Errors
    /// As for [`Tree::walk`].
    pub fn list(&self, path: impl AsRef<[u8]>) -> Result<Vec<Entry>> {
        self.entries(path, &Listing::default())?.collect()
    }

    /// The entries of a directory that `listing` lets through, in the order of [`Tree::list`].
    /// Directories that are closed to the caller are given whatever `listing` says.
    ///
    /// # Errors
    /// As for [`Tree::walk`].
    pub fn entries(&self, path: impl AsRef<[u8]>, listing: &Listing) -> Result<Walk> {
        // The entries of a directory come before all that lies below its subdirectories.
        self.walk(path, &Listing::default()).map(|walk| walk.only_top(listing))
    }

    /// Makes many files, or replaces what has their names; each has a result of its own, in the
    /// order in which they were given. Files of one directory are written together, in batches of
    /// which each takes effect as a whole: each file is seen with all of its content and attributes
    /// or not at all, also after a crash. Missing directories are made. What is larger than a batch
    /// (2 MiB on a mount, 4 MiB in an image) is written beside its place, under a name that begins
    /// with `.espalier-`, and renamed to it.
    ///
    /// # Errors
    /// Of each file: those of `open`, `write` and `rename`.
    pub fn write_many(&self, files: &[Write<'_>], how: WriteFlags) -> Vec<Result<()>> {
        match self.0.calls().and_then(|calls| calls.write_many(files, how)) {
            Ok(results) => {
                let of = |(result, file): (Result<()>, &Write<'_>)| {
                    result.map_err(|error| error.of(file.item().file.path))
                };
                results.into_iter().zip(files).map(of).collect()
            }
            Err(error) => files.iter().map(|file| Err(error.clone().of(file.item().file.path))).collect(),
        }
    }

    /// Makes a file with this content, or replaces it: it is seen with all of its content or not at
    /// all.
    ///
    /// # Errors
    /// As for [`Tree::write_many`].
    pub fn write(&self, path: impl AsRef<[u8]>, content: &[u8]) -> Result<()> {
        let flags = WriteFlags { replace: true, directories: None };
        self.write_many(&[Write::file(path.as_ref(), content)], flags).into_iter().collect()
    }

    /// Opens a regular file, or a directory to read its attributes.
    ///
    /// # Errors
    /// Those of `open`; ENXIO for devices, pipes and sockets of an image.
    pub fn open_file(&self, path: impl AsRef<[u8]>, how: &OpenHow) -> Result<File> {
        let path = path.as_ref();
        self.on(path, |calls| calls.open(path, how))
    }

    /// Makes a directory; with `parents` also those above that are missing, with the same mode, and
    /// then without an error if it is there.
    ///
    /// # Errors
    /// Those of `mkdir`.
    pub fn make_directory(&self, path: impl AsRef<[u8]>, mode: u32, parents: bool) -> Result<()> {
        let path = path.as_ref();
        self.on(path, |calls| calls.make_directory(path, mode, parents))
    }

    /// Makes a symbolic link to `target`.
    ///
    /// # Errors
    /// Those of `symlink`.
    pub fn symlink(&self, target: impl AsRef<[u8]>, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        self.on(path, |calls| calls.symlink(target.as_ref(), path))
    }

    /// Gives the file at `old` another name.
    ///
    /// # Errors
    /// Those of `link`.
    pub fn link(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<()> {
        let old = old.as_ref();
        self.on(old, |calls| calls.link(old, new.as_ref()))
    }

    /// Removes a name of a file.
    ///
    /// # Errors
    /// Those of `unlink`.
    pub fn unlink(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        self.on(path, |calls| calls.unlink(path))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Those of `rmdir`.
    pub fn remove_directory(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        self.on(path, |calls| calls.remove_directory(path))
    }

    /// Removes a directory with everything below, in one step.
    ///
    /// # Errors
    /// Those of `rmdir`; EPERM if the caller is not root, and something there is not its own.
    pub fn remove_tree(&self, path: impl AsRef<[u8]>) -> Result<()> {
        let path = path.as_ref();
        self.on(path, |calls| calls.remove_tree(path))
    }

    /// Makes `new` a clone of what is at `old` with everything below, in one step that copies
    /// nothing.
    ///
    /// # Errors
    /// Those of `mkdir` for `new`; EPERM if the caller is not root, and not all of `old` is its
    /// own.
    pub fn clone_tree(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<()> {
        let old = old.as_ref();
        self.on(old, |calls| calls.clone_tree(old, new.as_ref()))
    }

    /// Sets owner and group of what is at a path and of everything below, in one step; `None`
    /// leaves as it is. Links are not followed.
    ///
    /// # Errors
    /// EPERM unless the caller is root.
    pub fn own_tree(&self, path: impl AsRef<[u8]>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
        let path = path.as_ref();
        self.on(path, |calls| calls.set_below(path, BelowChange::Owner(uid, gid)))
    }

    /// Changes the modes of what is at a path and of everything below, in one step. Links are not
    /// followed.
    ///
    /// # Errors
    /// EPERM if the caller is not root, and something there is not its own.
    pub fn mode_tree(&self, path: impl AsRef<[u8]>, bits: ModeBits) -> Result<()> {
        let path = path.as_ref();
        self.on(path, |calls| calls.set_below(path, bits.change()))
    }

    /// What differs between two directories, of which the older one may lie in a snapshot
    /// (`.snapshots/NAME`): paths below both in the order of keys, files with several names last.
    /// The time grows with what differs, not with what there is.
    ///
    /// # Errors
    /// ENOTDIR, EACCES; EPERM if the caller is not root, and not everything in both is its own. Of
    /// a difference: as for [`Tree::walk`].
    pub fn diff(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>) -> Result<Diff> {
        let new = new.as_ref();
        self.on(new, |calls| calls.diff(old.as_ref(), new))
    }

    /// The extended attributes of a file, access control lists among them: names and values.
    ///
    /// # Errors
    /// Those of `listxattr` and `getxattr`.
    pub fn xattrs(&self, path: impl AsRef<[u8]>, links: Links) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let path = path.as_ref();
        self.on(path, |calls| calls.xattrs(path, links))
    }

    /// The value of an extended attribute, or an access control list.
    ///
    /// # Errors
    /// As for [`Tree::xattrs`]; ENODATA if there is none of this name.
    pub fn xattr(&self, path: impl AsRef<[u8]>, name: &[u8], links: Links) -> Result<Vec<u8>> {
        let path = path.as_ref();
        let found = self.xattrs(path, links)?.into_iter().find(|(known, _)| known == name);
        let missing = || Error::new(libc::ENODATA, "there is no such extended attribute").of(path);
        found.map(|(_, value)| value).ok_or_else(missing)
    }

    /// Sets an extended attribute, or an access control list.
    ///
    /// # Errors
    /// Those of `setxattr`; on a mount EOPNOTSUPP for attributes of which only the kernel knows the
    /// rules (`security.` other than capabilities).
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        (name, value): (&[u8], &[u8]),
        how: SetXattr,
        links: Links,
    ) -> Result<()> {
        let path = path.as_ref();
        self.on(path, |calls| calls.set_xattr(path, (name, value), how, links))
    }

    /// Removes an extended attribute, or an access control list.
    ///
    /// # Errors
    /// Those of `removexattr`.
    pub fn remove_xattr(&self, path: impl AsRef<[u8]>, name: &[u8], links: Links) -> Result<()> {
        let path = path.as_ref();
        self.on(path, |calls| calls.remove_xattr(path, name, links))
    }

    /// Moves what is at `old` to `new`.
    ///
    /// # Errors
    /// Those of `renameat2`.
    pub fn rename(&self, old: impl AsRef<[u8]>, new: impl AsRef<[u8]>, how: Rename) -> Result<()> {
        let old = old.as_ref();
        self.on(old, |calls| calls.rename(old, new.as_ref(), how))
    }

    fn set(&self, path: &[u8], attribute: Attribute) -> Result<()> {
        self.on(path, |calls| calls.set(path, attribute))
    }

    /// Sets the mode: the low 12 bits.
    ///
    /// # Errors
    /// Those of `chmod`.
    pub fn set_mode(&self, path: impl AsRef<[u8]>, mode: u32) -> Result<()> {
        self.set(path.as_ref(), Attribute::Mode(mode))
    }

    /// Sets owner and group; `None` leaves as it is.
    ///
    /// # Errors
    /// Those of `chown`.
    pub fn set_owner(
        &self,
        path: impl AsRef<[u8]>,
        uid: Option<u32>,
        gid: Option<u32>,
        links: Links,
    ) -> Result<()> {
        self.set(path.as_ref(), Attribute::Owner(uid, gid, links))
    }

    /// Sets the times of the last read and of the last change of the content.
    ///
    /// # Errors
    /// Those of `utimensat`.
    pub fn set_times(
        &self,
        path: impl AsRef<[u8]>,
        (read, changed): (Time, Time),
        links: Links,
    ) -> Result<()> {
        self.set(path.as_ref(), Attribute::Times(read, changed, links))
    }

    /// Gives a file `size` bytes.
    ///
    /// # Errors
    /// Those of `truncate`.
    pub fn truncate(&self, path: impl AsRef<[u8]>, size: u64) -> Result<()> {
        self.set(path.as_ref(), Attribute::Size(size))
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// Those of `readlink`.
    pub fn read_link(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let path = path.as_ref();
        self.on(path, |calls| calls.read_link(path))
    }

    /// What was changed below a directory since `position`, which is that of an earlier answer, or
    /// empty. The answer may tell too much, never too little: changes of the last second may be
    /// told again, and a position that is not known any more is answered with "everything", like
    /// the first two questions about a directory.
    ///
    /// # Errors
    /// EPERM if the caller is not root, and not everything below is its own; EROFS.
    pub fn changes(&self, path: impl AsRef<[u8]>, position: &[u8]) -> Result<Changes> {
        let path = path.as_ref();
        self.on(path, |calls| calls.changes(path, position))
    }

    /// Watches a directory with everything below, from `position` on, which is that of an earlier
    /// answer or of a watch that has ended; an empty one stands for now, and is answered with
    /// "everything" first. From then on each change is told once, when calls on the tree see it. A
    /// position is good in any process as long as the server of the mount runs; that of an image as
    /// long as this tree has it open. One that is not known any more is answered with "everything".
    ///
    /// # Errors
    /// Those of `stat`. Of a wait: as for [`Tree::changes`].
    pub fn watch(&self, path: impl AsRef<[u8]>, position: &[u8]) -> Result<Watch> {
        let path = path.as_ref();
        self.on(path, |calls| calls.watch(path, position))
    }

    /// Watches a directory with everything below, from a snapshot on that was made of it (the path
    /// `.snapshots/NAME` in the directory, or below that of one above): what differs is told first,
    /// and then what is changed. What was changed during this call may be told twice.
    ///
    /// # Errors
    /// As for [`Tree::watch`] and [`Tree::diff`].
    pub fn watch_since(&self, path: impl AsRef<[u8]>, snapshot: impl AsRef<[u8]>) -> Result<Watch> {
        let path = path.as_ref();
        self.on(path, |calls| calls.watch_since(path, snapshot.as_ref()))
    }

    /// Makes everything durable that was done so far; on a mount, by any program.
    ///
    /// # Errors
    /// EIO if the device fails.
    pub fn sync(&self) -> Result<()> {
        self.0.calls()?.sync()
    }

    /// Ends the use of the place; later calls fail with EBADF. An image is made durable and let go
    /// of (when its open files and walks have ended too). Dropping the tree does that as well, but
    /// without a word of what fails.
    ///
    /// # Errors
    /// EIO if the device of an image fails: what was not synced before may be lost.
    pub fn close(&self) -> Result<()> {
        // A child of fork that has not used it has nothing to end.
        self.0.opened().map_or(Ok(()), |calls| calls.close())
    }
}
