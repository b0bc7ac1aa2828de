//! The rights of a caller: what it may search, read, write, remove and change, as on Linux.
//!
//! Pure functions of inodes. The kernel does the same for a mount (`default_permissions`); this is
//! for calls by path, which no kernel has judged. Errors come in the order of the kernel's.

use crate::model::acl::{self, Acl};
use crate::model::error::{FsErrorKind, Result, fail};
use crate::model::privileges::SET_GID;
use crate::model::record::{Inode, XattrValue};
use crate::model::types::{FileKind, OwnerChange};

/// Permission to read, in the lowest three bits of a mode.
pub(crate) const READ: u32 = 4;
/// Permission to write.
pub(crate) const WRITE: u32 = 2;
/// Permission to execute; of a directory, to search.
pub(crate) const SEARCH: u32 = 1;

const SET_UID: u32 = 0o4000;
/// Entries of a directory with this bit can be removed by their owner and its own only.
pub(crate) const STICKY: u32 = 0o1000;
/// With both bits a program runs with the rights of its group.
const LENDS_GROUP: u32 = SET_GID | 0o010;
const EXECUTE_BITS: u32 = 0o111;

/// A user with groups, as a process has them for access to files.
///
/// User 0 has all privileges over files (the capabilities `DAC_OVERRIDE`, `FOWNER`, `CHOWN`,
/// `FSETID`, `MKNOD` and, for extended attributes, `SYS_ADMIN`), other users have none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

/// The rights by which a change is judged, with all that it concerns locked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Judge<'a> {
    /// The kernel has judged.
    Kernel,
    /// By this caller's.
    Caller(&'a Credentials),
}

impl Judge<'_> {
    /// Refuses to make an entry in `dir`.
    pub(crate) fn create(self, dir: &Inode) -> Result<()> {
        match self {
            Self::Kernel => Ok(()),
            Self::Caller(caller) => caller.check(Granted::by(dir), WRITE | SEARCH),
        }
    }

    /// The mode that a new file gets in `dir`, of those that a call asks for: without the
    /// set-group-id bit where it would lend the rights of a group that is not the caller's.
    pub(crate) fn mode_in(self, dir: &Inode, mode: u32) -> u32 {
        match self {
            Self::Kernel => mode,
            Self::Caller(caller) => {
                let lends = mode & LENDS_GROUP == LENDS_GROUP && dir.mode & SET_GID != 0;
                let may_lend = caller.is_privileged() || caller.is_in_group(dir.gid);
                if lends && !may_lend { mode & !SET_GID } else { mode }
            }
        }
    }

    /// Refuses to take the entry of `victim` out of `dir`.
    pub(crate) fn delete(self, dir: &Inode, victim: &Inode) -> Result<()> {
        match self {
            Self::Kernel => Ok(()),
            Self::Caller(caller) => caller.check_delete(dir, victim),
        }
    }

    /// Refuses to move a directory to another one, which changes its `..`.
    pub(crate) fn move_directory(self, dir: &Inode) -> Result<()> {
        match self {
            Self::Kernel => Ok(()),
            Self::Caller(caller) => caller.check(Granted::by(dir), WRITE),
        }
    }
}

/// What permissions an object gives: its mode, owner and group, and its access control list.
#[derive(Clone, Copy)]
pub(crate) struct Granted<'a> {
    kind: FileKind,
    mode: u32,
    uid: u32,
    gid: u32,
    list: Option<&'a XattrValue>,
}

impl<'a> Granted<'a> {
    pub(crate) fn by(inode: &'a Inode) -> Self {
        let list = inode.xattrs.as_ref().and_then(|xattrs| xattrs.get(acl::ACCESS_ACL_XATTR));
        Self { kind: inode.kind, mode: inode.mode, uid: inode.uid, gid: inode.gid, list }
    }
}

/// True if callers may have other rights on `new` than on `old`, two states of one directory.
pub(crate) fn grants_differ(old: &Inode, new: &Inode) -> bool {
    let same_lists = || match (&old.xattrs, &new.xattrs) {
        (None, None) => true,
        (Some(old), Some(new)) if std::sync::Arc::ptr_eq(old, new) => true,
        _ => Granted::by(old).list == Granted::by(new).list,
    };
    (old.mode, old.uid, old.gid) != (new.mode, new.uid, new.gid) || !same_lists()
}

impl Credentials {
    /// True if the user has all privileges over files.
    pub(crate) fn is_privileged(&self) -> bool {
        self.uid == 0
    }

    /// True if the caller belongs to group `gid`.
    pub(crate) fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// True if the caller owns the object, or may act as its owner.
    pub(crate) fn may_act_as_owner(&self, inode: &Inode) -> bool {
        self.is_privileged() || self.uid == inode.uid
    }

    /// Refuses what is the owner's to do.
    pub(crate) fn check_owner(&self, inode: &Inode) -> Result<()> {
        if self.may_act_as_owner(inode) {
            return Ok(());
        }
        fail(FsErrorKind::Permission, "only the owner may do this")
    }

    /// Refuses a caller that has not all permissions of `want`.
    pub(crate) fn check(&self, granted: Granted<'_>, want: u32) -> Result<()> {
        if self.has(granted, want) {
            return Ok(());
        }
        fail(FsErrorKind::AccessDenied, format!("user {} has no permission", self.uid))
    }

    /// True if the caller has all permissions of `want`.
    pub(crate) fn has(&self, granted: Granted<'_>, want: u32) -> bool {
        if self.is_granted(granted, want) {
            return true;
        }
        let is_executable = granted.kind == FileKind::Directory || granted.mode & EXECUTE_BITS != 0;
        self.is_privileged() && (want & SEARCH == 0 || is_executable)
    }

    fn is_granted(&self, granted: Granted<'_>, want: u32) -> bool {
        let Granted { mode, uid, gid, .. } = granted;
        if self.uid == uid {
            return want & !(mode >> 6) == 0;
        }
        // The group bits of an object with a list are its mask: without any, the list is not asked.
        if mode & 0o070 != 0
            && let Some(value) = granted.list
        {
            let XattrValue::Inline(value) = value else { return false };
            if let Ok(Some(list)) = Acl::parse(value) {
                return list.permits(self.uid, |group| self.is_in_group(group), gid, want as u16);
            }
        }
        let mode = if self.is_in_group(gid) { mode >> 3 } else { mode };
        want & !mode & 7 == 0
    }

    /// Refuses to take the entry of `victim` out of `dir`.
    pub(crate) fn check_delete(&self, dir: &Inode, victim: &Inode) -> Result<()> {
        self.check(Granted::by(dir), WRITE | SEARCH)?;
        let is_sticky = dir.mode & STICKY != 0;
        if is_sticky && !self.is_privileged() && self.uid != victim.uid && self.uid != dir.uid {
            return fail(FsErrorKind::Permission, "the directory has the sticky bit");
        }
        Ok(())
    }

    /// Refuses to give an object this owner or group (`chown`).
    pub(crate) fn check_chown(&self, inode: &Inode, change: OwnerChange) -> Result<()> {
        let OwnerChange { uid, gid } = change;
        let is_own = self.uid == inode.uid;
        let may_keep = uid.is_none_or(|uid| is_own && uid == inode.uid);
        let may_give = gid.is_none_or(|gid| is_own && (gid == inode.gid || self.is_in_group(gid)));
        if self.is_privileged() || may_keep && may_give {
            return Ok(());
        }
        fail(FsErrorKind::Permission, "only root gives files away")
    }

    /// The mode that an object gets of the one that a call asks for (`chmod`); refuses a caller
    /// that may not set it.
    pub(crate) fn judge_mode(&self, inode: &Inode, mode: u32) -> Result<u32> {
        if inode.kind == FileKind::Symlink {
            return fail(FsErrorKind::Unsupported, "a symbolic link has no mode");
        }
        self.check_owner(inode)?;
        let lends = !self.is_privileged() && !self.is_in_group(inode.gid);
        Ok(mode & 0o7777 & if lends { !SET_GID } else { !0 })
    }

    /// Refuses a change of an extended attribute that is not the caller's to make; else whether an
    /// access control list clears the set-group-id bit.
    pub(crate) fn judge_xattr(&self, inode: &Inode, name: &[u8]) -> Result<bool> {
        if name == acl::ACCESS_ACL_XATTR || name == acl::DEFAULT_ACL_XATTR {
            if inode.kind == FileKind::Symlink {
                return fail(FsErrorKind::Unsupported, "a symbolic link has no access control list");
            }
            self.check_owner(inode)?;
            return Ok(!self.is_privileged() && !self.is_in_group(inode.gid));
        }
        let refuse = || fail(FsErrorKind::Permission, "this extended attribute is not the caller's to set");
        if name.starts_with(b"user.") {
            if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
                return refuse();
            }
            if inode.is_dir() && inode.mode & STICKY != 0 {
                self.check_owner(inode)?;
            }
            self.check(Granted::by(inode), WRITE)?;
        } else if is_for_programs(name) && !self.is_privileged() {
            return refuse();
        }
        Ok(false)
    }

    /// Refuses to follow a symbolic link that another user has put in a directory which all may
    /// write to (`protected_symlinks`).
    pub(crate) fn check_follow(&self, dir: Granted<'_>, link: &Inode) -> Result<()> {
        let is_shared = dir.mode & (STICKY | 0o002) == STICKY | 0o002;
        if is_shared && self.uid != link.uid && dir.uid != link.uid {
            return fail(FsErrorKind::AccessDenied, "the symbolic link is another user's");
        }
        Ok(())
    }

    /// Refuses a further name for a file that the caller could not have made
    /// (`protected_hardlinks`).
    pub(crate) fn check_link(&self, inode: &Inode) -> Result<()> {
        let is_safe = inode.kind == FileKind::Regular
            && inode.mode & SET_UID == 0
            && inode.mode & LENDS_GROUP != LENDS_GROUP
            && self.has(Granted::by(inode), READ | WRITE);
        if is_safe || self.may_act_as_owner(inode) {
            return Ok(());
        }
        fail(FsErrorKind::Permission, "the file is another user's")
    }
}

/// True for the extended attributes of programs with privileges.
fn is_for_programs(name: &[u8]) -> bool {
    name.starts_with(b"trusted.") || name.starts_with(b"security.")
}

#[cfg(test)]
mod tests;
