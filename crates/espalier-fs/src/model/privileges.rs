//! Privileges that a file grants to its callers: set-id bits and capabilities; and the rule of the
//! ownership mark, which excludes them.

use crate::model::record::Inode;

const SET_UID: u32 = 0o4000;
pub(crate) const SET_GID: u32 = 0o2000;
/// The bits that let a program run with the rights of the file's owner or group.
pub(crate) const SET_ID: u32 = SET_UID | SET_GID;
const GROUP_EXECUTE: u32 = 0o010;
/// The extended attribute that holds the capabilities of a program.
pub(crate) const CAPABILITIES: &[u8] = b"security.capability";

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
    let special = !inode.is_dir() && inode.mode & SET_ID != 0;
    let capable = inode.xattrs.as_ref().is_some_and(|x| x.contains_key(CAPABILITIES));
    inode.uid == uid && !special && !capable && (!inode.is_dir() || inode.owned_alone)
}
