//! Calls by path that change attributes of a file.

use crate::file::xattr::XattrChange;
use crate::model::access::{Granted, WRITE};
use crate::model::acl::{ACCESS_ACL_XATTR, DEFAULT_ACL_XATTR};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::record::Inode;
use crate::model::types::*;
use crate::path::caller::{At, Links, PathCaller};
use crate::path::place::{Hold, PathPlace};

impl PathCaller {
    fn change(
        &self,
        at: At<'_>,
        links: Links,
        is_size: bool,
        judge: &dyn Fn(&Inode) -> Result<SetAttr>,
    ) -> Result<()> {
        let place = self.object(at, links)?;
        let PathPlace::Node(Hold { volume, node }) = &place else {
            judge(&place.inode()?)?;
            return fail(FsErrorKind::ReadOnly, "snapshots cannot be changed");
        };
        volume.fs.setattr_judged(node.id, is_size, judge).map(drop)
    }

    /// Sets the mode: the low 12 bits. A caller that is not in the file's group cannot set the
    /// set-group-id bit.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] unless the caller owns the file;
    /// [`FsErrorKind::Unsupported`] for a symbolic link.
    pub fn chmod<'a>(&self, path: impl Into<At<'a>>, mode: u32, links: Links) -> Result<()> {
        let credentials = self.credentials();
        self.change(path.into(), links, false, &|inode| {
            let mode = Some(credentials.judge_mode(inode, mode)?);
            Ok(SetAttr { mode, ..SetAttr::default() })
        })
    }

    /// Sets owner and group; `None` leaves as it is. Privileges of a file go.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] unless the caller is root, or owns the file, leaves the owner
    /// and is in the new group.
    pub fn chown<'a>(&self, path: impl Into<At<'a>>, owner: OwnerChange, links: Links) -> Result<()> {
        let credentials = self.credentials();
        let OwnerChange { uid, gid } = owner;
        self.change(path.into(), links, false, &|inode| {
            credentials.check_chown(inode, owner)?;
            let kill_privileges = !inode.is_dir();
            Ok(SetAttr { uid, gid, kill_privileges, ..SetAttr::default() })
        })
    }

    /// Sets the times of the last read and of the last change of the content; `None` leaves as it
    /// is (`utimensat`).
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] unless the caller owns the file; to set both to now,
    /// [`FsErrorKind::AccessDenied`] unless the caller may write.
    pub fn set_times<'a>(
        &self,
        path: impl Into<At<'a>>,
        (atime, mtime): (Option<SetTime>, Option<SetTime>),
        links: Links,
    ) -> Result<()> {
        let credentials = self.credentials();
        if atime.is_none() && mtime.is_none() {
            // As Linux does, without a look at the path.
            return Ok(());
        }
        self.change(path.into(), links, false, &|inode| {
            let now = Some(SetTime::Now);
            if (atime, mtime) != (now, now) {
                credentials.check_owner(inode)?;
            } else if credentials.check_owner(inode).is_err() {
                credentials.check(Granted::by(inode), WRITE)?;
            }
            Ok(SetAttr { atime, mtime, ..SetAttr::default() })
        })
    }

    /// Gives a regular file `size` bytes. Its privileges go unless the caller is root.
    ///
    /// # Errors
    /// [`FsErrorKind::IsDirectory`], [`FsErrorKind::Invalid`] for other objects,
    /// [`FsErrorKind::FileTooLarge`].
    pub fn truncate<'a>(&self, path: impl Into<At<'a>>, size: u64) -> Result<()> {
        let credentials = self.credentials();
        self.change(path.into(), Links::Follow, true, &|inode| {
            match inode.kind {
                FileKind::Regular => {}
                FileKind::Directory => return fail(FsErrorKind::IsDirectory, "a directory has no size"),
                _ => return fail(FsErrorKind::Invalid, "only a regular file has a size"),
            }
            credentials.check(Granted::by(inode), WRITE)?;
            let kill_privileges = !credentials.is_privileged();
            Ok(SetAttr { size: Some(size), kill_privileges, ..SetAttr::default() })
        })
    }

    /// Sets an extended attribute, or an access control list.
    ///
    /// # Errors
    /// [`FsErrorKind::Permission`] for attributes that are not the caller's to set; as for
    /// [`FileSystem::setxattr`](crate::FileSystem::setxattr).
    pub fn set_xattr<'a>(
        &self,
        path: impl Into<At<'a>>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        links: Links,
    ) -> Result<()> {
        self.change_xattr(path.into(), (name, Some(value), mode), links)
    }

    /// Removes an extended attribute, or an access control list.
    ///
    /// # Errors
    /// [`FsErrorKind::NoData`] if there is none; as for [`PathCaller::set_xattr`].
    pub fn remove_xattr<'a>(&self, path: impl Into<At<'a>>, name: &[u8], links: Links) -> Result<()> {
        self.change_xattr(path.into(), (name, None, XattrMode::Replace), links)
    }

    fn change_xattr(
        &self,
        at: At<'_>,
        (name, value, mode): (&[u8], Option<&[u8]>, XattrMode),
        links: Links,
    ) -> Result<()> {
        let place = self.object(at, links)?;
        if name == DEFAULT_ACL_XATTR && !matches!(place.kind(), FileKind::Directory | FileKind::Symlink) {
            // Linux asks for no right to take away what cannot be there.
            return match value {
                Some(_) => fail(FsErrorKind::AccessDenied, "only a directory has a default list"),
                None => Ok(()),
            };
        }
        let judge = |inode: &Inode| Ok(self.credentials().judge_xattr(inode, name)? && value.is_some());
        let is_list = name == ACCESS_ACL_XATTR || name == DEFAULT_ACL_XATTR;
        // Linux sets an access control list whether there is one or not.
        let mode = if is_list && value.is_some() { XattrMode::Set } else { mode };
        let PathPlace::Node(Hold { volume, node }) = &place else {
            judge(&place.inode()?)?;
            return fail(FsErrorKind::ReadOnly, "snapshots cannot be changed");
        };
        judge(&node.state().inode)?;
        volume.fs.change_xattr(node.id, &XattrChange { name, value, mode, judge: &judge })
    }
}
