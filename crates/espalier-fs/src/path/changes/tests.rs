//! The judge of a change is asked where the change is made, whatever was asked before.

use crate::model::access::{Credentials, Judge};
use crate::model::error::{FsErrorKind, Result};
use crate::model::types::*;
use crate::namespace::create::Maker;
use std::cell::Cell;

const OTHER: u32 = 7;

#[track_caller]
fn assert_refused<T>(result: Result<T>, kind: FsErrorKind) {
    match result {
        Ok(_) => panic!("it was not refused"),
        Err(error) => assert_eq!(error.kind(), kind, "{error}"),
    }
}

#[test]
fn names_are_judged_where_they_change() {
    let (_, _, fs) = crate::test_support::empty();
    let root = Caller::default();
    let user = Credentials { uid: OTHER, gid: OTHER, groups: Vec::new() };
    let (judge, owner) = (Judge::Caller(&user), Caller { uid: OTHER, ..Caller::default() });
    let maker = Maker { caller: &owner, judge };
    let shared = fs.mkdir(NodeId::ROOT, b"shared", 0o1777, &root).unwrap().node;
    let closed = fs.mkdir(NodeId::ROOT, b"closed", 0o755, &root).unwrap().node;
    fs.setattr(shared, &SetAttr { mode: Some(0o1777), ..SetAttr::default() }).unwrap();
    let file = fs.mknod(shared, b"f", NewNode::Regular, 0o644, &root).unwrap().node;
    fs.mkdir(shared, b"d", 0o755, &root).unwrap();
    assert_refused(fs.make_node(closed, b"x", NewNode::Regular, 0o644, maker), FsErrorKind::AccessDenied);
    assert_refused(fs.make_directory(closed, b"x", 0o755, maker), FsErrorKind::AccessDenied);
    assert_refused(fs.make_symlink(closed, b"x", b"t", maker), FsErrorKind::AccessDenied);
    assert_refused(fs.unlink_judged(shared, b"f", judge), FsErrorKind::Permission);
    assert_refused(fs.rmdir_judged(shared, b"d", judge), FsErrorKind::Permission);
    let mode = RenameMode::Replace;
    for name in [&b"f"[..], b"d"] {
        assert_refused(
            fs.rename_judged((shared, name), (shared, b"g"), mode, judge),
            FsErrorKind::Permission,
        );
    }
    fs.make_node(shared, b"own", NewNode::Regular, 0o644, maker).unwrap();
    let over = fs.rename_judged((shared, b"own"), (shared, b"f"), mode, judge);
    assert_refused(over, FsErrorKind::Permission);
    let away = fs.rename_judged((shared, b"own"), (closed, b"own"), mode, judge);
    assert_refused(away, FsErrorKind::AccessDenied);
    let refuse = |above: &_, _: &_| judge.create(above);
    assert_refused(fs.link_judged(file, closed, b"again", Some(&refuse)), FsErrorKind::AccessDenied);
    // The caller's own.
    fs.rename_judged((shared, b"own"), (shared, b"mine"), mode, judge).unwrap();
    fs.unlink_judged(shared, b"mine", judge).unwrap();
}

/// A directory that the caller may change when a call begins, and not any more when it is made.
#[test]
fn whole_trees_are_judged_where_they_change() {
    let (_, _, fs) = crate::test_support::empty();
    let user = Credentials { uid: OTHER, gid: OTHER, groups: Vec::new() };
    let (judge, owner) = (Judge::Caller(&user), Caller { uid: OTHER, gid: OTHER, ..Caller::default() });
    let maker = Maker { caller: &owner, judge };
    let dir = fs.mkdir(NodeId::ROOT, b"dir", 0o777, &Caller::default()).unwrap().node;
    let mode = |mode| fs.setattr(dir, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
    mode(0o777);
    let file = fs.make_node(dir, b"file", NewNode::Regular, 0o644, maker).unwrap().node;
    let tree = fs.make_directory(dir, b"tree", 0o755, maker).unwrap().node;
    mode(0o755);
    for source in [file, tree] {
        assert_refused(fs.clone_tree_judged(source, dir, b"clone", maker), FsErrorKind::AccessDenied);
    }
    let removed = || fs.remove_tree_judged(dir, b"tree", &owner, judge);
    assert_refused(removed(), FsErrorKind::AccessDenied);
    // Other users' names stay where the directory has the sticky bit.
    mode(0o1777);
    fs.mkdir(dir, b"foreign", 0o755, &Caller::default()).unwrap();
    assert_refused(fs.remove_tree_judged(dir, b"foreign", &owner, judge), FsErrorKind::Permission);
    for source in [file, tree] {
        fs.clone_tree_judged(source, dir, format!("{source:?}").as_bytes(), maker).unwrap();
    }
    removed().unwrap();
    assert_refused(fs.lookup(dir, b"tree"), FsErrorKind::NotFound);
}

/// An owner sets the set-user-id bit of a file that is given away between the two looks.
#[test]
fn attributes_are_judged_under_the_lock_of_the_state() {
    let (_, _, fs) = crate::test_support::empty();
    let owner = Caller { uid: OTHER, ..Caller::default() };
    let file = fs.mknod(NodeId::ROOT, b"f", NewNode::Regular, 0o755, &owner).unwrap().node;
    let user = Credentials { uid: OTHER, gid: OTHER, groups: Vec::new() };
    let looks = Cell::new(0);
    let changed = fs.setattr_judged(file, false, &|inode| {
        user.check_owner(inode)?;
        looks.set(looks.get() + 1);
        if looks.get() == 1 {
            // Nothing is locked at the first look.
            fs.setattr(file, &SetAttr { uid: Some(0), ..SetAttr::default() })?;
        }
        Ok(SetAttr { mode: Some(0o4755), ..SetAttr::default() })
    });
    assert_refused(changed, FsErrorKind::Permission);
    assert_eq!(fs.getattr(file).unwrap().mode, 0o755);
    // What the second look says is done, if it says something else.
    let changed = fs.setattr_judged(file, false, &|inode| {
        looks.set(looks.get() + 1);
        if looks.get() == 2 {
            fs.setattr(file, &SetAttr { gid: Some(OTHER), ..SetAttr::default() })?;
        }
        let mode = if inode.gid == OTHER { 0o700 } else { 0o777 };
        Ok(SetAttr { mode: Some(mode), ..SetAttr::default() })
    });
    assert_eq!(changed.unwrap().mode, 0o700);
}
