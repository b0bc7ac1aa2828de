//! The merge functions of the file system. Their ids and meanings are part of the format.

use crate::model::acl::{self, Acl};
use crate::model::privileges::{CAPABILITIES, SET_ID, clear_set_id};
use crate::model::record::{Inode, Record, XattrValue};
use crate::model::types::{FileKind, ModeChange};
use espalier_engine::MergeFunctions;
use std::sync::Arc;

/// Shortens a value to at most the length in the argument (u32); a missing value stays missing.
pub(crate) const TRUNCATE: u16 = 1;
/// Zeroes bytes of a value: argument offset (u32) and length (u32). The value keeps its length.
pub(crate) const ZERO: u16 = 2;

/// Changes owner and group of an inode; links stay as they are. Argument: time of the change (i64),
/// which to set (u32: 1 the owner, 2 the group), owner (u32), group (u32).
pub(crate) const CHANGE_OWNER: u16 = 3;
/// Changes the mode of an inode; links and symbolic links stay as they are. Argument: time of the
/// change (i64), then u32 each: bits that directories keep and get, that others keep and get, and
/// get if an execute bit is set.
pub(crate) const CHANGE_MODE: u16 = 4;

/// Gives directories of one owner the ownership mark; everything else stays as it is. Argument: the
/// owner (u32).
pub(crate) const MARK_OWNED: u16 = 5;

const SET_OWNER: u32 = 1;
const SET_GROUP: u32 = 2;

/// What a store that holds file systems is opened with.
pub fn merge_functions() -> MergeFunctions {
    MergeFunctions::new()
        .with(TRUNCATE, truncate)
        .with(ZERO, zero)
        .with(CHANGE_OWNER, |old, argument| with_inode(old?, argument, change_owner))
        .with(CHANGE_MODE, |old, argument| with_inode(old?, argument, change_mode))
        .with(MARK_OWNED, |old, argument| with_inode(old?, argument, mark_owned))
}

/// Changes a stored inode. What is none, or cannot be understood, stays as it is.
fn with_inode(old: &[u8], argument: &[u8], change: impl Fn(&mut Inode, &[u8])) -> Option<Vec<u8>> {
    let Ok(Record::Inode(mut inode)) = Record::decode(old) else { return Some(old.to_vec()) };
    change(&mut inode, argument);
    Some(inode.encode())
}

/// The argument of [`CHANGE_OWNER`].
pub(crate) fn owner_argument(uid: Option<u32>, gid: Option<u32>, now: i64) -> Vec<u8> {
    let what = uid.map_or(0, |_| SET_OWNER) | gid.map_or(0, |_| SET_GROUP);
    let mut out = now.to_le_bytes().to_vec();
    for field in [what, uid.unwrap_or(0), gid.unwrap_or(0)] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out
}

/// The argument of [`CHANGE_MODE`].
pub(crate) fn mode_argument(change: &ModeChange, now: i64) -> Vec<u8> {
    let mut out = now.to_le_bytes().to_vec();
    for field in [
        change.keep_directories,
        change.add_directories,
        change.keep_files,
        change.add_files,
        change.add_executables,
    ] {
        out.extend_from_slice(&field.to_le_bytes());
    }
    out
}

/// The time and the numbers of an argument; `None` if it is too short.
fn fields<const N: usize>(argument: &[u8]) -> Option<(i64, [u32; N])> {
    let (time, rest) = argument.split_first_chunk::<8>()?;
    let mut out = [0; N];
    for (n, field) in out.iter_mut().enumerate() {
        *field = u32_at(rest, 4 * n)? as u32;
    }
    Some((i64::from_le_bytes(*time), out))
}

/// What [`CHANGE_OWNER`] does.
pub(crate) fn change_owner(inode: &mut Inode, argument: &[u8]) {
    let Some((now, [what, uid, gid])) = fields(argument) else { return };
    if what & SET_OWNER != 0 {
        inode.uid = uid;
    }
    if what & SET_GROUP != 0 {
        inode.gid = gid;
    }
    inode.ctime = now;
    if inode.is_dir() {
        return;
    }
    clear_set_id(inode);
    if let Some(xattrs) = &inode.xattrs
        && xattrs.contains_key(CAPABILITIES)
    {
        let mut left = (**xattrs).clone();
        left.remove(CAPABILITIES);
        inode.xattrs = (!left.is_empty()).then(|| Arc::new(left));
    }
}

/// What [`CHANGE_MODE`] does.
pub(crate) fn change_mode(inode: &mut Inode, argument: &[u8]) {
    let Some((now, [keep_directories, add_directories, keep_files, add_files, add_executables])) =
        fields(argument)
    else {
        return;
    };
    if inode.kind == FileKind::Symlink {
        return;
    }
    let executable = inode.mode & 0o111 != 0;
    inode.mode = 0o7777
        & if inode.is_dir() {
            inode.mode & keep_directories | add_directories
        } else {
            inode.mode & keep_files | add_files | if executable { add_executables } else { 0 }
        };
    inode.ctime = now;
    if (add_files | add_executables) & SET_ID != 0 {
        inode.owned_alone = false;
    }
    let list = match inode.xattrs.as_ref().and_then(|x| x.get(acl::ACCESS_ACL_XATTR)) {
        Some(XattrValue::Inline(list)) => Acl::parse(list).ok().flatten(),
        _ => None,
    };
    if let (Some(mut list), Some(xattrs)) = (list, &inode.xattrs) {
        list.chmod(inode.mode);
        let mut xattrs = (**xattrs).clone();
        xattrs.insert(acl::ACCESS_ACL_XATTR.into(), XattrValue::Inline(list.encode().into()));
        inode.xattrs = Some(Arc::new(xattrs));
    }
}

/// What [`MARK_OWNED`] does.
fn mark_owned(inode: &mut Inode, argument: &[u8]) {
    inode.owned_alone |= inode.is_dir() && inode.uid.to_le_bytes() == *argument;
}

/// What [`CHANGE_OWNER`], [`CHANGE_MODE`] or [`MARK_OWNED`] makes of an inode.
pub(crate) fn changed_inode(inode: &Inode, function: u16, argument: &[u8]) -> Inode {
    let mut inode = inode.clone();
    match function {
        CHANGE_OWNER => change_owner(&mut inode, argument),
        MARK_OWNED => mark_owned(&mut inode, argument),
        _ => change_mode(&mut inode, argument),
    }
    inode
}

/// The argument of [`ZERO`].
pub(crate) fn zero_argument(offset: u32, length: u32) -> Vec<u8> {
    [offset.to_le_bytes(), length.to_le_bytes()].concat()
}

fn u32_at(argument: &[u8], at: usize) -> Option<usize> {
    let bytes = argument.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(bytes) as usize)
}

fn truncate(old: Option<&[u8]>, argument: &[u8]) -> Option<Vec<u8>> {
    let old = old?;
    let length = u32_at(argument, 0).unwrap_or(usize::MAX);
    Some(old[..old.len().min(length)].to_vec())
}

fn zero(old: Option<&[u8]>, argument: &[u8]) -> Option<Vec<u8>> {
    let mut value = old?.to_vec();
    if let (Some(offset), Some(length)) = (u32_at(argument, 0), u32_at(argument, 4)) {
        let end = offset.saturating_add(length).min(value.len());
        if offset < end {
            value[offset..end].fill(0);
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation() {
        assert_eq!(truncate(None, &3u32.to_le_bytes()), None);
        assert_eq!(truncate(Some(b"abcdef"), &3u32.to_le_bytes()), Some(b"abc".to_vec()));
        assert_eq!(truncate(Some(b"ab"), &3u32.to_le_bytes()), Some(b"ab".to_vec()));
        assert_eq!(truncate(Some(b"ab"), b""), Some(b"ab".to_vec()));
    }

    #[test]
    fn zeroing() {
        assert_eq!(zero(None, &zero_argument(0, 1)), None);
        assert_eq!(zero(Some(b"abcdef"), &zero_argument(1, 2)), Some(b"a\0\0def".to_vec()));
        assert_eq!(zero(Some(b"abc"), &zero_argument(2, 9)), Some(b"ab\0".to_vec()));
        assert_eq!(zero(Some(b"abc"), &zero_argument(7, u32::MAX)), Some(b"abc".to_vec()));
        assert_eq!(zero(Some(b"abc"), b"x"), Some(b"abc".to_vec()));
    }
}
