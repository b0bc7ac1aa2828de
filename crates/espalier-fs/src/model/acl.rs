//! POSIX access control lists, in the form in which the kernel passes them as extended attributes.
//!
//! For a mount the kernel checks them (FUSE_POSIX_ACL). What is left to the file system is to keep
//! them and the mode in step (`setxattr`, `chmod`), to let new entries inherit the directory's
//! default list, and to check them for calls by path.

use crate::model::error::{FsErrorKind, Result, fail};

/// The list that rules access.
pub(crate) const ACCESS_ACL_XATTR: &[u8] = b"system.posix_acl_access";
/// The list that new entries of a directory inherit.
pub(crate) const DEFAULT_ACL_XATTR: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// An access control list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<AclEntry>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AclEntry {
    tag: u16,
    permissions: u16,
    id: u32,
}

impl Acl {
    /// Decodes and validates a list; one without entries is `None`.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        let Some((version, rest)) = bytes.split_first_chunk::<4>() else {
            return fail(FsErrorKind::Invalid, "an access control list is cut off");
        };
        if u32::from_le_bytes(*version) != VERSION || !rest.len().is_multiple_of(8) {
            return fail(FsErrorKind::Unsupported, "an access control list of unknown form");
        }
        let entries: Vec<_> = rest
            .chunks_exact(8)
            .map(|e| AclEntry {
                tag: u16::from_le_bytes([e[0], e[1]]),
                permissions: u16::from_le_bytes([e[2], e[3]]),
                id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            })
            .collect();
        if entries.is_empty() {
            return Ok(None);
        }
        let acl = Self(entries);
        if acl.is_valid() {
            Ok(Some(acl))
        } else {
            fail(FsErrorKind::Invalid, "an invalid access control list")
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.permissions.to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out
    }

    /// One entry each for owner, group and others, in ascending order of tags, and a mask where
    /// users or groups are named.
    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|e| e.tag == tag).count();
        let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER];
        self.0.is_sorted_by_key(|e| e.tag)
            && self.0.iter().all(|e| known.contains(&e.tag) && e.permissions <= 7)
            && [USER_OBJ, GROUP_OBJ, OTHER].iter().all(|tag| count(*tag) == 1)
            && count(MASK) <= 1
            && (count(USER) + count(GROUP) == 0 || count(MASK) == 1)
    }

    /// True if the mode says all there is to say.
    pub(crate) fn is_plain(&self) -> bool {
        self.0.iter().all(|e| matches!(e.tag, USER_OBJ | GROUP_OBJ | OTHER))
    }

    /// The nine permission bits that go with the list.
    pub(crate) fn mode(&self) -> u32 {
        self.bits(|entry| u32::from(entry.permissions))
    }

    fn bits(&self, value: impl Fn(&AclEntry) -> u32) -> u32 {
        let group = self.group_class();
        let shifted = |e: &AclEntry| match e.tag {
            USER_OBJ => value(e) << 6,
            OTHER => value(e),
            tag if tag == group => value(e) << 3,
            _ => 0,
        };
        self.0.iter().map(shifted).fold(0, |a, b| a | b)
    }

    /// The entry that the group bits of the mode stand for.
    fn group_class(&self) -> u16 {
        if self.0.iter().any(|e| e.tag == MASK) { MASK } else { GROUP_OBJ }
    }

    fn change(&mut self, change: impl Fn(u16, u16) -> u16, mode: u32) {
        let group = self.group_class();
        for entry in &mut self.0 {
            let bits = match entry.tag {
                USER_OBJ => mode >> 6,
                OTHER => mode,
                tag if tag == group => mode >> 3,
                _ => continue,
            };
            entry.permissions = change(entry.permissions, (bits & 7) as u16);
        }
    }

    /// True if the list gives user `uid`, which does not own the object, all permissions of `want`.
    /// `gid`: the group of the object. The entry for the caller's user counts alone; of those for
    /// the caller's groups one must give all; only a caller without any is one of the others.
    pub(crate) fn permits(&self, uid: u32, is_in_group: impl Fn(u32) -> bool, gid: u32, want: u16) -> bool {
        let of = |tag| self.0.iter().find(move |entry| entry.tag == tag).map(|entry| entry.permissions);
        let mask = of(MASK).unwrap_or(7);
        if let Some(user) = self.0.iter().find(|entry| entry.tag == USER && entry.id == uid) {
            return want & !(user.permissions & mask) == 0;
        }
        let is_own = |entry: &&AclEntry| match entry.tag {
            GROUP_OBJ => is_in_group(gid),
            GROUP => is_in_group(entry.id),
            _ => false,
        };
        let mut groups = self.0.iter().filter(is_own).peekable();
        if groups.peek().is_some() {
            return groups.any(|entry| want & !(entry.permissions & mask) == 0);
        }
        want & !of(OTHER).unwrap_or_default() == 0
    }

    /// What `chmod` makes of the list.
    pub(crate) fn chmod(&mut self, mode: u32) {
        self.change(|_, bits| bits, mode);
    }

    /// The access list and mode of a new entry made with `mode` where this is the default list.
    pub(crate) fn inherit(&self, mode: u32) -> (Self, u32) {
        let mut acl = self.clone();
        acl.change(|permissions, bits| permissions & bits, mode);
        let mode = (mode & !0o777) | acl.mode();
        (acl, mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        Acl(entries.iter().map(|&(tag, permissions, id)| AclEntry { tag, permissions, id }).collect())
    }

    #[test]
    fn lists_come_back() {
        let list = acl(&[(USER_OBJ, 7, !0), (USER, 5, 7), (GROUP_OBJ, 5, !0), (MASK, 5, !0), (OTHER, 0, !0)]);
        assert_eq!(Acl::parse(&list.encode()).unwrap(), Some(list));
        assert_eq!(Acl::parse(&VERSION.to_le_bytes()).unwrap(), None);
    }

    #[test]
    fn invalid_lists_are_refused() {
        for list in [
            acl(&[(USER_OBJ, 7, !0)]),
            acl(&[(USER_OBJ, 7, !0), (USER, 5, 7), (GROUP_OBJ, 5, !0), (OTHER, 0, !0)]),
            acl(&[(GROUP_OBJ, 5, !0), (USER_OBJ, 7, !0), (OTHER, 0, !0)]),
            acl(&[(USER_OBJ, 8, !0), (GROUP_OBJ, 5, !0), (OTHER, 0, !0)]),
        ] {
            assert!(Acl::parse(&list.encode()).is_err(), "{list:?}");
        }
        assert!(Acl::parse(b"").is_err());
        assert!(Acl::parse(&[2, 0, 0, 0, 1]).is_err());
    }

    #[test]
    fn modes_follow_lists_and_lists_modes() {
        let plain = acl(&[(USER_OBJ, 6, !0), (GROUP_OBJ, 4, !0), (OTHER, 4, !0)]);
        assert!(plain.is_plain());
        assert_eq!(plain.mode(), 0o644);
        let mut full =
            acl(&[(USER_OBJ, 7, !0), (USER, 7, 7), (GROUP_OBJ, 5, !0), (MASK, 6, !0), (OTHER, 1, !0)]);
        assert_eq!(full.mode(), 0o761);
        full.chmod(0o640);
        assert_eq!(full.mode(), 0o640);
        let (inherited, mode) = full.inherit(0o2764);
        assert_eq!((inherited.mode(), mode), (0o640, 0o2640));
        let (_, mode) = full.inherit(0o400);
        assert_eq!(mode, 0o400);
    }
}
