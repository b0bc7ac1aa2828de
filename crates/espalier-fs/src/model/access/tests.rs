use super::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const OWNER: u32 = 1000;
const GROUP: u32 = 50;

fn user(uid: u32, groups: &[u32]) -> Credentials {
    Credentials { uid, gid: 99, groups: groups.to_vec() }
}

fn inode(kind: FileKind, mode: u32) -> Inode {
    Inode::new(kind, mode, OWNER, GROUP, 1, 0)
}

fn with_list(mode: u32, entries: &[(u16, u16, u32)]) -> Inode {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    let mut inode = inode(FileKind::Regular, mode);
    let value = XattrValue::Inline(value.into());
    inode.xattrs = Some(Arc::new(BTreeMap::from([(acl::ACCESS_ACL_XATTR.into(), value)])));
    inode
}

#[test]
fn the_owners_bits_alone_count_for_the_owner() {
    let file = inode(FileKind::Regular, 0o077);
    assert!(!user(OWNER, &[GROUP]).has(Granted::by(&file), READ));
    assert!(user(1, &[GROUP]).has(Granted::by(&file), READ | WRITE | SEARCH));
    assert!(user(1, &[]).has(Granted::by(&file), READ));
    let file = inode(FileKind::Regular, 0o607);
    assert!(!user(1, &[GROUP]).has(Granted::by(&file), READ));
}

#[test]
fn root_executes_only_what_is_executable() {
    let root = Credentials::default();
    assert!(root.has(Granted::by(&inode(FileKind::Directory, 0)), READ | WRITE | SEARCH));
    assert!(root.has(Granted::by(&inode(FileKind::Regular, 0)), READ | WRITE));
    assert!(!root.has(Granted::by(&inode(FileKind::Regular, 0o644)), SEARCH));
    assert!(root.has(Granted::by(&inode(FileKind::Regular, 0o001)), SEARCH));
}

#[test]
fn lists_are_asked_in_their_order() {
    // USER_OBJ, USER 7, GROUP_OBJ, GROUP 60, MASK, OTHER.
    let entries = [(1, 7, !0), (2, 4, 7), (4, 0, !0), (8, 6, 60), (16, 5, !0), (32, 7, !0)];
    let file = with_list(0o757, &entries);
    let granted = Granted::by(&file);
    assert!(user(7, &[60]).has(granted, READ));
    assert!(!user(7, &[60]).has(granted, WRITE), "the entry of the user counts alone");
    assert!(user(8, &[GROUP, 60]).has(granted, READ), "one of the groups is enough");
    assert!(!user(8, &[GROUP, 60]).has(granted, WRITE), "the mask takes it away");
    assert!(!user(8, &[GROUP]).has(granted, READ), "a group member is none of the others");
    assert!(user(8, &[]).has(granted, WRITE));
    // Without bits in the mask the list is not asked.
    let file = with_list(0o707, &entries);
    assert!(user(7, &[]).has(Granted::by(&file), WRITE));
}

#[test]
fn rights_of_directories_differ_with_mode_owner_and_list() {
    let plain = inode(FileKind::Directory, 0o755);
    let mut other = plain.clone();
    (other.size, other.mtime) = (7, 9);
    assert!(!grants_differ(&plain, &other));
    other.mode = 0o700;
    assert!(grants_differ(&plain, &other));
    let list = with_list(0o755, &[(1, 7, !0), (4, 0, !0), (32, 7, !0)]);
    let mut other = plain.clone();
    other.xattrs = list.xattrs;
    assert!(grants_differ(&plain, &other));
    assert!(!grants_differ(&other, &other.clone()));
}

#[test]
fn the_sticky_bit_keeps_what_is_others() {
    let dir = inode(FileKind::Directory, 0o1777);
    let mut victim = inode(FileKind::Regular, 0o777);
    victim.uid = 5;
    assert!(user(5, &[]).check_delete(&dir, &victim).is_ok());
    assert!(user(OWNER, &[]).check_delete(&dir, &victim).is_ok());
    let kind = |result: Result<()>| result.unwrap_err().kind();
    assert_eq!(kind(user(6, &[]).check_delete(&dir, &victim)), FsErrorKind::Permission);
    let dir = inode(FileKind::Directory, 0o1775);
    assert_eq!(kind(user(6, &[]).check_delete(&dir, &victim)), FsErrorKind::AccessDenied);
}
