//! Privileges that a file grants to its callers: set-id bits and capabilities; and the rule of the
//! ownership mark, which excludes those that are not its owner's to grant.

use crate::model::record::{Inode, XattrValue};

const SET_UID: u32 = 0o4000;
pub(crate) const SET_GID: u32 = 0o2000;
/// The bits that let a program run with the rights of the file's owner or group.
pub(crate) const SET_ID: u32 = SET_UID | SET_GID;
const GROUP_EXECUTE: u32 = 0o010;
/// The extended attribute that holds the capabilities of a program.
pub(crate) const CAPABILITIES: &[u8] = b"security.capability";

/// The revision of capabilities that count only in user namespaces of one owner, in the highest
/// byte of their first word, and their length (`struct vfs_ns_cap_data` of the kernel).
const NAMESPACED_REVISION: u8 = 3;
const NAMESPACED_LENGTH: usize = 24;

/// Clears the set-id bits of a file; the set-group-id bit only if group members may execute the
/// file, because without that it means mandatory locking.
pub(crate) fn clear_set_id(inode: &mut Inode) {
    inode.mode &= !SET_UID;
    if inode.mode & GROUP_EXECUTE != 0 {
        inode.mode &= !SET_GID;
    }
}

/// True if an entry may lie below a directory of `uid` that bears the ownership mark.
pub(crate) fn agrees_with_mark(inode: &Inode, uid: u32) -> bool {
    belongs_alone(inode, uid) && (!inode.is_dir() || inode.owned_alone)
}

/// True if an object belongs to `uid`, no flag keeps `uid` from changing it, and it lends no rights
/// that `uid` could not lend by hand: its owner may set the set-user-id bit, and give it
/// capabilities that count only in the owner's own user namespaces. The group of a file may not be
/// one of its owner's groups.
pub(crate) fn belongs_alone(inode: &Inode, uid: u32) -> bool {
    inode.uid == uid
        && !lends_group_rights(inode)
        && has_own_capabilities(inode, uid)
        && !inode.flags.protect()
}

/// As [`belongs_alone`], for a caller of known group: it could set the set-group-id bit of a file
/// of its group.
pub(crate) fn belongs_to_caller(inode: &Inode, uid: u32, gid: u32) -> bool {
    inode.uid == uid
        && (!lends_group_rights(inode) || inode.gid == gid)
        && has_own_capabilities(inode, uid)
        && !inode.flags.protect()
}

fn lends_group_rights(inode: &Inode) -> bool {
    !inode.is_dir() && inode.mode & SET_GID != 0
}

/// True if an object has capabilities, of whatever kind.
pub(crate) fn has_capabilities(inode: &Inode) -> bool {
    inode.xattrs.as_ref().is_some_and(|xattrs| xattrs.contains_key(CAPABILITIES))
}

fn has_own_capabilities(inode: &Inode, uid: u32) -> bool {
    match inode.xattrs.as_ref().and_then(|xattrs| xattrs.get(CAPABILITIES)) {
        None => true,
        Some(XattrValue::Inline(value)) => are_capabilities_of(value, uid),
        Some(XattrValue::Large(_)) => false,
    }
}

/// True if capabilities count only in user namespaces whose root is `uid`.
pub(crate) fn are_capabilities_of(value: &[u8], uid: u32) -> bool {
    value.len() == NAMESPACED_LENGTH
        && value[3] == NAMESPACED_REVISION
        && value[NAMESPACED_LENGTH - 4..] == uid.to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::FileKind;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    const OWNER: u32 = 1000;
    const GROUP: u32 = 50;

    fn file(mode: u32, capabilities: Option<&[u8]>) -> Inode {
        let mut inode = Inode::new(FileKind::Regular, mode, OWNER, GROUP, 1, 0);
        inode.xattrs = capabilities.map(|value| {
            let value = XattrValue::Inline(value.to_vec().into());
            Arc::new(BTreeMap::from([(CAPABILITIES.into(), value)]))
        });
        inode
    }

    #[test]
    fn what_an_owner_may_lend() {
        assert!(belongs_alone(&file(0o755, None), OWNER));
        assert!(!belongs_alone(&file(0o755, None), OWNER + 1));
        assert!(belongs_alone(&file(0o4755, None), OWNER));
        assert!(!belongs_alone(&file(0o2755, None), OWNER));
        assert!(belongs_to_caller(&file(0o2755, None), OWNER, GROUP));
        assert!(!belongs_to_caller(&file(0o2755, None), OWNER, GROUP + 1));
        assert!(!belongs_to_caller(&file(0o6755, None), OWNER + 1, GROUP));
    }

    #[test]
    fn whose_capabilities() {
        let capabilities = |revision: u8, length: usize, uid: u32| {
            let mut value = vec![0; length];
            value[3] = revision;
            value[length - 4..].copy_from_slice(&uid.to_le_bytes());
            file(0o755, Some(&value))
        };
        assert!(belongs_alone(&capabilities(3, 24, OWNER), OWNER));
        assert!(!belongs_alone(&capabilities(3, 24, OWNER + 1), OWNER));
        assert!(!belongs_alone(&capabilities(3, 24, 0), OWNER));
        // Those of revision 2 count everywhere; their last bytes are no owner.
        assert!(!belongs_alone(&capabilities(2, 20, OWNER), OWNER));
        assert!(!belongs_alone(&capabilities(2, 24, OWNER), OWNER));
        assert!(!belongs_alone(&file(0o755, Some(b"")), OWNER));
    }
}
