//! Calls by path that change nothing.

use crate::model::access::{READ, WRITE};
use crate::model::acl::{ACCESS_ACL_XATTR, DEFAULT_ACL_XATTR};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::types::*;
use crate::path::caller::{At, Links, PathCaller};
use crate::path::handle::Open;
use crate::path::place::PathPlace;

/// The largest file that is read as a whole, in bytes.
const MAX_READ_BYTES: u64 = 1 << 30;
/// What extended attributes of programs with privileges begin with.
const TRUSTED: &[u8] = b"trusted.";
/// What extended attributes of users begin with.
const USER: &[u8] = b"user.";

impl PathCaller {
    /// The attributes of a file (`stat`, `lstat`, `fstatat`).
    ///
    /// # Errors
    /// Those of paths ([`PathCaller`]).
    pub fn stat<'a>(&self, path: impl Into<At<'a>>, links: Links) -> Result<Attr> {
        self.object(path.into(), links)?.attr()
    }

    /// Finds out whether the caller may read (4), write (2) and execute or search (1) a file, as
    /// the bits of `want` ask (`faccessat` with `AT_EACCESS`); 0: whether it exists.
    ///
    /// # Errors
    /// [`FsErrorKind::AccessDenied`]; [`FsErrorKind::ReadOnly`] to write in a file system that is
    /// read-only; [`FsErrorKind::Invalid`] for other bits.
    pub fn access<'a>(&self, path: impl Into<At<'a>>, want: u32, links: Links) -> Result<()> {
        if want > 7 {
            return fail(FsErrorKind::Invalid, format!("no access is called {want}"));
        }
        let place = self.object(path.into(), links)?;
        if let PathPlace::Node(hold) = &place
            && want & WRITE != 0
            && matches!(place.kind(), FileKind::Regular | FileKind::Directory | FileKind::Symlink)
            && hold.volume.is_live()
        {
            hold.fs().volume.check_writable()?;
        }
        if want == 0 { Ok(()) } else { place.check(self.credentials(), want) }
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// [`FsErrorKind::Invalid`] if it is none.
    pub fn read_link<'a>(&self, path: impl Into<At<'a>>) -> Result<Vec<u8>> {
        match self.object(path.into(), Links::Stay)? {
            PathPlace::Node(hold) => hold.fs().readlink(hold.node.id),
            PathPlace::Snapshots(_) => fail(FsErrorKind::Invalid, "not a symbolic link"),
        }
    }

    /// Room and limits at a file or directory.
    ///
    /// # Errors
    /// Those of paths ([`PathCaller`]).
    pub fn statfs<'a>(&self, path: impl Into<At<'a>>) -> Result<StatFs> {
        match self.object(path.into(), Links::Follow)? {
            PathPlace::Node(hold) => hold.fs().statfs_at(hold.node.id),
            PathPlace::Snapshots(of) => of.fs().statfs(),
        }
    }

    /// The whole content of a regular file.
    ///
    /// # Errors
    /// [`FsErrorKind::TooBig`] for more than 1 GiB, which is read in parts; as for
    /// [`PathCaller::open`].
    pub fn read<'a>(&self, path: impl Into<At<'a>>) -> Result<Vec<u8>> {
        let file = self.open(path, &Open::read())?;
        let size = file.stat()?.size;
        if size > MAX_READ_BYTES {
            return fail(FsErrorKind::TooBig, format!("{size} bytes; {MAX_READ_BYTES} are read at a time"));
        }
        let mut data = vec![0; size as usize];
        let length = file.read_at(0, &mut data)?;
        data.truncate(length);
        Ok(data)
    }

    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`FsErrorKind::NoData`] if there is none, or it is not this caller's to see.
    pub fn get_xattr<'a>(&self, path: impl Into<At<'a>>, name: &[u8], links: Links) -> Result<Vec<u8>> {
        let place = self.object(path.into(), links)?;
        self.get_xattr_of(&place, name)
    }

    pub(crate) fn get_xattr_of(&self, place: &PathPlace, name: &[u8]) -> Result<Vec<u8>> {
        let no_data = || fail(FsErrorKind::NoData, "there is no such extended attribute");
        let PathPlace::Node(hold) = place else { return no_data() };
        let is_list = name == ACCESS_ACL_XATTR || name == DEFAULT_ACL_XATTR;
        if is_list && place.kind() == FileKind::Symlink {
            return fail(FsErrorKind::Unsupported, "a symbolic link has no access control list");
        }
        if name.starts_with(TRUSTED) && !self.credentials().is_privileged() {
            return no_data();
        }
        if name.starts_with(USER) {
            if !matches!(place.kind(), FileKind::Regular | FileKind::Directory) {
                return no_data();
            }
            place.check(self.credentials(), READ)?;
        }
        hold.fs().getxattr(hold.node.id, name)
    }

    /// The names of all extended attributes, each followed by a NUL.
    ///
    /// # Errors
    /// Those of paths ([`PathCaller`]).
    pub fn list_xattr<'a>(&self, path: impl Into<At<'a>>, links: Links) -> Result<Vec<u8>> {
        match self.object(path.into(), links)? {
            PathPlace::Node(hold) => hold.fs().listxattr(hold.node.id),
            PathPlace::Snapshots(_) => Ok(Vec::new()),
        }
    }
}
