//! Open files and directories.

use crate::model::access::{READ, STICKY, WRITE};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::record::Inode;
use crate::model::types::*;
use crate::namespace::lookup::no_entry;
use crate::path::caller::{At, PathCaller};
use crate::path::place::{PathPlace, number_of};
use crate::path::resolver::{Ending, Last, Want};
use crate::snapshot::volume::snapshot_directory_number;

/// A file that is made and removed by others is looked up so often.
const MAX_RACES: u32 = 100;

/// How [`PathCaller::open`] opens a file; the default opens only its path (`O_PATH`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Open {
    /// Reading is wanted (`O_RDONLY`, `O_RDWR`).
    pub read: bool,
    /// Writing is wanted (`O_WRONLY`, `O_RDWR`).
    pub write: bool,
    /// A file that does not exist is made with this mode (`O_CREAT`).
    pub create: Option<u32>,
    /// With `create`: it must not exist (`O_EXCL`).
    pub exclusive: bool,
    /// A regular file is emptied (`O_TRUNC`).
    pub truncate: bool,
    /// It must be a directory (`O_DIRECTORY`).
    pub directory: bool,
    /// A link at the end of the path is not followed (`O_NOFOLLOW`).
    pub stay: bool,
    /// Without `create`: a missing file would be made by a further call, so what `O_CREAT` does not
    /// open is not opened (`fs.protected_regular`, `fs.protected_fifos`).
    pub would_create: bool,
}

impl Open {
    /// To read, or to list a directory.
    pub fn read() -> Self {
        Self { read: true, ..Self::default() }
    }

    /// To read and write an existing file.
    pub fn write() -> Self {
        Self { read: true, write: true, ..Self::default() }
    }

    /// To read and write a file that is made with `mode` if it does not exist.
    pub fn create(mode: u32) -> Self {
        Self { create: Some(mode), ..Self::write() }
    }

    fn is_path_only(&self) -> bool {
        !self.read && !self.write
    }
}

/// An open file or directory. Rights were checked when it was opened.
pub struct Handle {
    pub(crate) place: PathPlace,
    pub(crate) caller: PathCaller,
    read: bool,
    write: bool,
}

impl PathCaller {
    /// Opens a file or directory (`open`, `openat`, `creat`). A file without a name is made by
    /// [`PathCaller::open_unnamed`]. What is no regular file and no directory is opened by its path
    /// only.
    ///
    /// # Errors
    /// [`FsErrorKind::Exists`] as `exclusive` says; [`FsErrorKind::IsDirectory`] to write to a
    /// directory or make one; [`FsErrorKind::Loop`] for a link as `stay` says;
    /// [`FsErrorKind::NoSuchOffset`] (ENXIO) for devices, pipes and sockets.
    pub fn open<'a>(&self, path: impl Into<At<'a>>, how: &Open) -> Result<Handle> {
        let at = path.into();
        for _ in 0..MAX_RACES {
            match self.try_open(at, how) {
                // Another caller has made the file between the two looks.
                Err(error) if error.kind() == FsErrorKind::Exists && !how.exclusive => {}
                opened => return opened,
            }
        }
        self.try_open(at, how)
    }

    /// The directory of a path, opened by its path only, and the last name of the path, with a
    /// slash behind it if one follows there: a call by this name relative to that directory is the
    /// same call whatever is moved meanwhile. `None` for a path that ends with no name: with `.`,
    /// `..` or the root.
    ///
    /// # Errors
    /// Those of paths ([`PathCaller`]).
    pub fn open_parent<'a>(&self, path: impl Into<At<'a>>) -> Result<Option<(Handle, Vec<u8>)>> {
        let (place, last, is_slash) = self.name(path.into())?;
        let Last::Name(mut name) = last else { return Ok(None) };
        name.extend_from_slice(if is_slash { b"/" } else { b"" });
        Ok(Some((Handle::opened(place, self, &Open::default()), name)))
    }

    fn try_open(&self, at: At<'_>, how: &Open) -> Result<Handle> {
        let follow = !(how.stay || how.create.is_some() && how.exclusive);
        let want = match how.create {
            Some(_) if !how.is_path_only() => Want::ObjectOrPlace { follow },
            None if how.would_create => Want::ObjectOrPlace { follow },
            _ => Want::Object { follow },
        };
        let found = self.resolve(at, want)?;
        let place = match found.end {
            Ending::Object(_) if how.create.is_some() && how.exclusive && !how.is_path_only() => {
                return fail(FsErrorKind::Exists, "the file exists");
            }
            Ending::Object(_) => found.place,
            Ending::Name(Last::Name(name), _) if how.create.is_none() => return Err(no_entry(&name)),
            Ending::Name(Last::Name(name), _) => return self.make_and_open(&found.place, &name, how),
            Ending::Name(..) => return fail(FsErrorKind::IsDirectory, "a directory cannot be made by open"),
        };
        if let Some(above) = &found.above {
            self.check_made_by_other(&above.inode()?, &place.inode()?)?;
        }
        self.check_open(&place, how)?;
        let handle = Handle::opened(place, self, how);
        if how.truncate && handle.place.kind() == FileKind::Regular && !how.is_path_only() {
            handle.cut(0)?;
        }
        Ok(handle)
    }

    /// Refuses to take what another user has put in a shared directory for the caller's own.
    fn check_made_by_other(&self, dir: &Inode, inode: &Inode) -> Result<()> {
        let level = match inode.kind {
            FileKind::Regular => self.policy.guard_files,
            FileKind::Fifo => self.policy.guard_pipes,
            FileKind::Directory => 0,
            _ => 1,
        };
        let is_for_all = dir.mode & 0o002 != 0;
        let is_guarded = level > 0 && (is_for_all || level > 1 && dir.mode & 0o020 != 0);
        let is_other = inode.uid != dir.uid && inode.uid != self.credentials().uid;
        if dir.mode & STICKY != 0 && is_guarded && is_other {
            return fail(FsErrorKind::AccessDenied, "another user has made the file");
        }
        Ok(())
    }

    /// Refuses to open an object in this way.
    pub(crate) fn check_open(&self, place: &PathPlace, how: &Open) -> Result<()> {
        let kind = place.kind();
        if how.directory && kind != FileKind::Directory {
            return fail(FsErrorKind::NotDirectory, "not a directory");
        }
        if how.is_path_only() {
            return Ok(());
        }
        match kind {
            FileKind::Directory if how.create.is_some() || how.write || how.truncate => {
                return fail(FsErrorKind::IsDirectory, "a directory cannot be written to");
            }
            FileKind::Symlink => return fail(FsErrorKind::Loop, "a symbolic link is not followed"),
            _ => {}
        }
        let write = if how.write || how.truncate { WRITE } else { 0 };
        place.check(self.credentials(), if how.read { READ } else { 0 } | write)?;
        match (kind, place) {
            // In a snapshot the first change fails, as on a mount.
            (FileKind::Regular, PathPlace::Node(hold)) if write != 0 && hold.volume.is_live() => {
                hold.fs().volume.check_writable()
            }
            (FileKind::Regular | FileKind::Directory, _) => Ok(()),
            _ => fail(FsErrorKind::NoSuchOffset, "only files and directories have content here"),
        }
    }

    fn make_and_open(&self, dir: &PathPlace, name: &[u8], how: &Open) -> Result<Handle> {
        let made = self.make_file(dir, name, how.create.unwrap_or_default())?;
        Ok(Handle::opened(made, self, how))
    }
}

impl Handle {
    /// A path that begins here, if it does not begin with a slash (`openat` and the like).
    pub fn at<'a, T: AsRef<[u8]> + ?Sized>(&'a self, path: &'a T) -> At<'a> {
        At::below(&self.place, path.as_ref())
    }

    /// The open file or directory itself, for calls by path (`AT_EMPTY_PATH`): so each of them has
    /// a form for open files (`fchmod`, `fchown`, `futimens`, `fgetxattr` and the like).
    pub fn itself(&self) -> At<'_> {
        At::itself(&self.place)
    }

    /// The node by which a mount knows it; `None` for what lies in a snapshot. It stays the same
    /// node as long as this is open.
    pub fn node(&self) -> Option<NodeId> {
        match &self.place {
            PathPlace::Node(hold) if hold.volume.is_live() => Some(hold.node.id),
            _ => None,
        }
    }

    /// The attributes.
    ///
    /// # Errors
    /// Of the store.
    pub fn stat(&self) -> Result<Attr> {
        self.place.attr()
    }

    /// Fills `out` from byte `offset` as far as the file reaches; returns the number of bytes.
    ///
    /// # Errors
    /// [`FsErrorKind::AccessDenied`] if it is not open to read; [`FsErrorKind::IsDirectory`]; of
    /// the store.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        check_opened(self.read)?;
        match &self.place {
            PathPlace::Node(hold) => hold.fs().read(hold.node.id, offset, out),
            PathPlace::Snapshots(_) => fail(FsErrorKind::IsDirectory, "a directory has no content"),
        }
    }

    /// The next byte at or after `offset` that is in a hole, or is not (`lseek` with `SEEK_HOLE`
    /// and `SEEK_DATA`).
    ///
    /// # Errors
    /// [`FsErrorKind::NoSuchOffset`] if there is none, or `offset` is not inside the file;
    /// [`FsErrorKind::AccessDenied`] if it is not open to read; [`FsErrorKind::IsDirectory`]; of
    /// the store.
    pub fn seek(&self, offset: u64, what: Seek) -> Result<u64> {
        check_opened(self.read)?;
        match &self.place {
            PathPlace::Node(hold) => hold.fs().lseek(hold.node.id, offset, what),
            PathPlace::Snapshots(_) => fail(FsErrorKind::IsDirectory, "a directory has no content"),
        }
    }

    /// Writes all of `data` at byte `offset`; privileges of the file go unless the caller is root.
    ///
    /// # Errors
    /// [`FsErrorKind::AccessDenied`] if it is not open to write; [`FsErrorKind::NoSpace`],
    /// [`FsErrorKind::QuotaExceeded`], [`FsErrorKind::FileTooLarge`]; of the store.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<usize> {
        check_opened(self.write)?;
        match &self.place {
            PathPlace::Node(hold) => hold.fs().write(hold.node.id, offset, data, self.kills_privileges()),
            PathPlace::Snapshots(_) => fail(FsErrorKind::IsDirectory, "a directory has no content"),
        }
    }

    /// Gives the file `size` bytes (`ftruncate`).
    ///
    /// # Errors
    /// [`FsErrorKind::Invalid`] if it is not open to write; as for [`Handle::write_at`].
    pub fn truncate(&self, size: u64) -> Result<()> {
        if !self.write {
            return fail(FsErrorKind::Invalid, "the file is not open to write");
        }
        self.cut(size)
    }

    fn cut(&self, size: u64) -> Result<()> {
        let PathPlace::Node(hold) = &self.place else { return fail(FsErrorKind::Invalid, "not a file") };
        let kill_privileges = self.kills_privileges();
        let set = SetAttr { size: Some(size), kill_privileges, ..SetAttr::default() };
        hold.fs().setattr(hold.node.id, &set).map(drop)
    }

    /// Of an object that may be opened in this way.
    pub(crate) fn opened(place: PathPlace, caller: &PathCaller, how: &Open) -> Self {
        Self { place, caller: caller.clone(), read: how.read, write: how.write }
    }

    pub(crate) fn writable(place: PathPlace, caller: &PathCaller) -> Self {
        Self { place, caller: caller.clone(), read: true, write: true }
    }

    fn kills_privileges(&self) -> bool {
        !self.caller.credentials().is_privileged()
    }

    /// Lists a directory from `cookie` (0: the beginning) until `each` returns false, which means
    /// that it did not keep the entry, as [`FileSystem::readdir`](crate::FileSystem::readdir).
    ///
    /// # Errors
    /// [`FsErrorKind::AccessDenied`] if it is not open to read; [`FsErrorKind::NotDirectory`]; of
    /// the store.
    pub fn list(&self, cookie: u64, each: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        check_opened(self.read)?;
        let of = match &self.place {
            PathPlace::Node(hold) => return hold.fs().readdir(hold.node.id, cookie, each),
            PathPlace::Snapshots(of) => of,
        };
        let directory = number_of(of);
        let own = snapshot_directory_number(directory);
        let mut names = vec![(1, b".".to_vec(), own), (2, b"..".to_vec(), own)];
        // The number of a volume is never used again, so it serves as the cookie of the entry.
        let snapshots = of.fs().snapshots().into_iter().filter(|s| s.directory == directory);
        names.extend(snapshots.map(|s| (u64::from(s.id) + 3, s.name.into_bytes(), u64::from(s.id) + 3)));
        names.sort_unstable();
        for (at, name, ino) in names.iter().filter(|(at, ..)| *at > cookie) {
            let kind = FileKind::Directory;
            if !each(DirEntry { name, ino: *ino, kind, cookie: *at, entry: None }) {
                break;
            }
        }
        Ok(())
    }

    /// Makes what was done to the file durable; of a directory, everything that was done.
    ///
    /// # Errors
    /// As for [`FileSystem::fsync`](crate::FileSystem::fsync).
    pub fn sync(&self) -> Result<()> {
        match &self.place {
            PathPlace::Node(hold) => hold.fs().fsync(hold.node.id, false),
            PathPlace::Snapshots(of) => of.fs().syncfs(),
        }
    }
}

fn check_opened(for_this: bool) -> Result<()> {
    if for_this {
        return Ok(());
    }
    fail(FsErrorKind::AccessDenied, "the file was not opened for this")
}
