//! Which trees users may handle as a whole, after calls that bring foreign objects into them in
//! less usual ways: `rename_all`, files without names, calls by path, flags, access control lists.

use crate::ownership::{OTHER_GROUP, ROOT, Trees, USER, capabilities_of, keep, set};
use espalier_fs::{
    Caller, Content, Credentials, FileFlags, FsErrorKind, Links, NewAttributes, NewNode, NodeId, OwnerChange,
    PathCaller, Paths, RenameAction, RenameMode, RenameStep, WriteHow, WriteRequest, XattrMode,
};
use std::sync::Arc;

const OTHER: Caller = Caller { uid: 8, gid: 8, pid: 0, umask: 0 };
const ACCESS_LIST: &[u8] = b"system.posix_acl_access";
const DEFAULT_LIST: &[u8] = b"system.posix_acl_default";

/// An access control list that gives the other user all permissions, as the kernel passes it.
fn list_for_the_other() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(0x01, 7, !0), (0x02, 7, OTHER.uid), (0x04, 5, !0), (0x10, 7, !0), (0x20, 0, !0)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend_from_slice(&tag.to_le_bytes());
        list.extend_from_slice(&permissions.to_le_bytes());
        list.extend_from_slice(&id.to_le_bytes());
    }
    list
}

impl Trees {
    /// One step of root between `mine` and the root directory, where things are staged.
    fn step(&self, action: RenameAction, place: &[&str], staged: &str) {
        let mut at = (self.mine, (0, 0));
        for name in place {
            let Ok(entry) = self.bench.fs.lookup(at.0, name.as_bytes()) else {
                at.1 = (0, 0);
                break;
            };
            at = (entry.node, (entry.attr.ino, entry.attr.ctime));
        }
        let place = place.iter().map(|name| name.as_bytes().to_vec()).collect();
        let step = RenameStep { action, place, staged: staged.into(), expected: at.1 };
        self.bench.fs.rename_all(self.mine, NodeId::ROOT, &[step], &ROOT).expect("all or none");
    }

    fn other_makes(&self, dir: NodeId, name: &str) -> NodeId {
        let made = self.bench.fs.mknod(dir, name.as_bytes(), NewNode::Regular, 0o644, &OTHER);
        made.expect("mknod").node
    }

    fn other_makes_dir(&self, dir: NodeId, name: &str) -> NodeId {
        self.bench.fs.mkdir(dir, name.as_bytes(), 0o755, &OTHER).expect("mkdir").node
    }

    fn set_list(&self, node: NodeId, name: &[u8]) {
        self.bench.fs.setxattr(node, name, &list_for_the_other(), XattrMode::Set, false).expect("setfacl");
    }

    /// A process of a user that makes calls by path.
    fn process(&self, user: &Caller) -> (Arc<Paths>, PathCaller) {
        let paths = Paths::new(self.bench.fs.clone()).expect("paths");
        let credentials = Credentials { uid: user.uid, gid: user.gid, groups: Vec::new() };
        let caller = paths.caller(credentials);
        (paths, caller)
    }
}

/// Has a process write a file with its directories.
fn write(process: &PathCaller, path: &str, attributes: NewAttributes<'_>) {
    let request = WriteRequest { at: path.into(), content: Content::Data(b"data"), attributes };
    let how = WriteHow { directories: Some(0o755), ..Default::default() };
    process.write_many(&[request], how, &mut |batch| {
        batch.result.as_ref().expect("write");
        true
    });
}

#[test]
fn foreign_entries_come_by_rename_all() {
    use RenameAction::{Enter, Exchange, ExchangeAttributes};
    Trees::refused_after(|t| {
        t.other_makes(NodeId::ROOT, "foreign");
        t.step(Enter, &["below", "new"], "foreign");
    });
    Trees::refused_after(|t| {
        t.other_makes(NodeId::ROOT, "foreign");
        t.step(Exchange, &["below", "file"], "foreign");
    });
    // In the other direction: `mine` itself is staged.
    Trees::refused_after(|t| {
        let dir = t.other_makes_dir(NodeId::ROOT, "foreign");
        t.other_makes(dir, "file");
        t.step(Exchange, &["below"], "foreign");
    });
    // A directory of the user's own with something foreign in it.
    Trees::refused_after(|t| {
        t.other_makes(t.elsewhere, "foreign");
        t.step(Enter, &["below", "new"], "elsewhere");
        t.bench.dir(NodeId::ROOT, "one entry more");
    });
    // A name of a file that has several, given away through another one.
    Trees::refused_after(|t| {
        let file = t.other_makes(NodeId::ROOT, "foreign");
        t.bench.fs.link(file, NodeId::ROOT, b"foreign-2").expect("link");
        t.step(Enter, &["below", "new"], "foreign-2");
    });
    // Owners change places.
    Trees::refused_after(|t| {
        t.other_makes_dir(NodeId::ROOT, "foreign");
        t.step(ExchangeAttributes, &["below"], "foreign");
    });
    Trees::refused_after(|t| {
        t.bench.fs.mkdir(NodeId::ROOT, b"odd", 0o755, &USER).expect("mkdir");
        let odd = t.bench.look(NodeId::ROOT, "odd");
        let value = capabilities_of(OTHER.uid);
        t.bench.fs.setxattr(odd, b"security.capability", &value, XattrMode::Set, false).expect("setxattr");
        t.step(ExchangeAttributes, &["below"], "odd");
    });
}

/// What leaves a tree by `rename_all` takes nothing away from what was said of the rest.
#[test]
fn trees_that_exchanged_entries_by_rename_all_are_known() {
    let trees = Trees::new();
    trees.bench.fs.mkdir(NodeId::ROOT, b"own", 0o700, &USER).expect("mkdir");
    trees.step(RenameAction::ExchangeAttributes, &["below"], "own");
    trees.step(RenameAction::Exchange, &["below"], "own");
    trees.step(RenameAction::Leave, &["alone"], "left");
    trees.clone_of(trees.mine).expect("all of it is the user's own");
    assert_eq!(trees.walks(), 0);
    trees.bench.check(0);
}

#[test]
fn files_without_names_get_theirs_in_a_tree() {
    Trees::refused_after(|t| {
        let made = t.bench.fs.tmpfile(t.below, 0o600, &OTHER).expect("tmpfile").node;
        t.bench.fs.link(made, t.below, b"new").expect("linkat");
        t.bench.fs.forget(made, 2);
    });
    // What the user made, and another user was given before it had a name.
    Trees::refused_after(|t| {
        let made = t.bench.fs.tmpfile(t.below, 0o600, &USER).expect("tmpfile").node;
        t.bench.fs.write(made, 0, b"data", false).expect("write");
        t.bench.fs.setattr(made, &set(None, Some(OTHER.uid), None)).expect("chown");
        t.bench.fs.link(made, t.below, b"new").expect("linkat");
        t.bench.fs.forget(made, 2);
    });
    Trees::refused_after(|t| {
        let made = t.bench.fs.tmpfile(t.below, 0o600, &USER).expect("tmpfile").node;
        t.bench.fs.setattr(made, &set(Some(0o2755), None, Some(OTHER_GROUP))).expect("chmod");
        t.bench.fs.link(made, t.below, b"new").expect("linkat");
        t.bench.fs.forget(made, 2);
    });
    // After it has its name.
    Trees::refused_after(|t| {
        let made = t.bench.fs.tmpfile(t.below, 0o600, &USER).expect("tmpfile").node;
        t.bench.fs.link(made, t.below, b"new").expect("linkat");
        t.bench.fs.link(made, t.elsewhere, b"new").expect("link");
        t.bench.fs.setattr(made, &set(None, Some(OTHER.uid), None)).expect("chown");
        t.bench.fs.forget(made, 3);
    });
    let trees = Trees::new();
    let made = trees.bench.fs.tmpfile(trees.below, 0o600, &USER).expect("tmpfile").node;
    trees.bench.fs.link(made, trees.below, b"new").expect("linkat");
    trees.clone_of(trees.mine).expect("all of it is the user's own");
    assert_eq!(trees.walks(), 0);
}

#[test]
fn calls_by_path_bring_foreign_files() {
    let to_the_other = OwnerChange { uid: Some(OTHER.uid), gid: None };
    let as_root = |does: &dyn Fn(&PathCaller)| {
        Trees::refused_after(|t| {
            let (_paths, root) = t.process(&ROOT);
            does(&root);
        });
    };
    as_root(&|root| write(root, "/mine/below/new", NewAttributes::default()));
    as_root(&|root| write(root, "/mine/below/a/b/new", NewAttributes::default()));
    // In the place of the user's own.
    as_root(&|root| {
        let attributes = NewAttributes { owner: to_the_other, mode: Some(0o644), ..Default::default() };
        write(root, "/mine/below/second", attributes);
    });
    let to_the_user = OwnerChange { uid: Some(USER.uid), gid: Some(OTHER_GROUP) };
    as_root(&|root| {
        let attributes = NewAttributes { owner: to_the_user, mode: Some(0o2755), ..Default::default() };
        write(root, "/mine/below/new", attributes);
    });
    as_root(&|root| {
        let value = capabilities_of(OTHER.uid);
        let xattrs: &[(&[u8], &[u8])] = &[(b"security.capability", &value)];
        let attributes =
            NewAttributes { owner: to_the_user, mode: Some(0o755), xattrs, ..Default::default() };
        write(root, "/mine/below/new", attributes);
    });
    as_root(&|root| root.mkdir("/mine/below/new", 0o755).expect("mkdir"));
    as_root(&|root| root.symlink(b"target", "/mine/below/new").expect("symlink"));
    as_root(&|root| root.chown("/elsewhere/third", to_the_other, Links::Follow).expect("chown"));
    as_root(&|root| {
        root.chown("/mine/alone", to_the_user, Links::Follow).expect("chgrp");
        root.chmod("/mine/alone", 0o2755, Links::Follow).expect("chmod");
    });
    as_root(&|root| {
        let made = root.open_unnamed("/", 0o600).expect("open");
        root.link_open(&made, "/mine/below/new").expect("linkat");
    });
    as_root(&|root| {
        root.mkdir("/foreign", 0o755).expect("mkdir");
        root.clone_tree("/foreign", "/mine/below/new").expect("clone");
    });
    // What the user writes is the user's own.
    let trees = Trees::new();
    let (_paths, user) = trees.process(&USER);
    write(&user, "/mine/below/a/b/new", NewAttributes { mode: Some(0o4755), ..Default::default() });
    trees.clone_of(trees.mine).expect("all of it is the user's own");
    assert_eq!(trees.walks(), 0);
}

#[test]
fn a_whiteout_of_another_user_is_in_the_way() {
    Trees::refused_after(|t| {
        let mode = RenameMode::Whiteout { replace: false, uid: OTHER.uid, gid: OTHER.gid };
        t.bench.fs.rename(t.below, b"second", NodeId::ROOT, b"moved", mode).expect("rename");
    });
}

#[test]
fn a_group_that_a_directory_lends_is_in_the_way() {
    Trees::refused_after(|t| {
        t.bench.fs.setattr(t.below, &set(Some(0o2755), None, Some(OTHER_GROUP))).expect("chmod");
        t.bench.fs.mknod(t.below, b"new", NewNode::Regular, 0o2755, &USER).expect("mknod");
    });
}

#[test]
fn protected_objects_are_in_the_way_of_their_owner() {
    for flag in [FileFlags::IMMUTABLE, FileFlags::APPEND] {
        for pick in [|t: &Trees| t.alone, |t: &Trees| t.below, |t: &Trees| t.file] {
            Trees::refused_after(|t| t.bench.fs.set_flags(pick(t), flag, &ROOT).expect("chattr"));
            let trees = Trees::new();
            trees.bench.fs.set_flags(pick(&trees), flag, &ROOT).expect("chattr");
            trees.refused(trees.mine);
            // Root may read it, but not change it.
            let (fs, root) = (&trees.bench.fs, NodeId::ROOT);
            fs.clone_tree(trees.mine, root, b"copied", &ROOT).expect("clone");
            for refused in [
                fs.remove_tree(root, b"mine", &ROOT),
                fs.chmod_tree(trees.mine, keep(0o700, 0), &ROOT),
                fs.remove_tree(root, b"copied", &ROOT),
            ] {
                assert_eq!(refused.map_err(|error| error.kind()), Err(FsErrorKind::Permission));
            }
            fs.set_flags(pick(&trees), FileFlags::default(), &ROOT).expect("chattr");
            trees.clone_of(trees.mine).expect("nothing is protected any more");
            fs.chmod_tree(trees.mine, keep(0o700, 0), &ROOT).expect("chmod");
            trees.bench.check(0);
        }
    }
    // Flags of the owner are no obstacle, and go on to what is made there.
    let trees = Trees::new();
    let flags = FileFlags(FileFlags::NODUMP.0 | FileFlags::NOATIME.0);
    trees.bench.fs.set_flags(trees.below, flags, &USER).expect("chattr");
    trees.bench.fs.mknod(trees.below, b"new", NewNode::Regular, 0o644, &USER).expect("mknod");
    trees.clone_of(trees.mine).expect("all of it is the user's own");
    assert_eq!(trees.walks(), 0);
}

/// A protected object that comes from elsewhere.
#[test]
fn protected_objects_come_with_their_directory() {
    Trees::refused_after(|t| {
        let dir = t.bench.fs.mkdir(NodeId::ROOT, b"dir", 0o755, &USER).expect("mkdir").node;
        let file = t.bench.fs.mknod(dir, b"file", NewNode::Regular, 0o644, &USER).expect("mknod").node;
        t.bench.fs.set_flags(file, FileFlags::IMMUTABLE, &ROOT).expect("chattr");
        t.bench.fs.rename(NodeId::ROOT, b"dir", t.below, b"dir", RenameMode::Replace).expect("rename");
    });
}

#[test]
fn access_lists_are_the_owners_to_give() {
    let trees = Trees::new();
    for node in [trees.mine, trees.below, trees.file, trees.alone] {
        trees.set_list(node, ACCESS_LIST);
    }
    trees.set_list(trees.below, DEFAULT_LIST);
    // What is made below inherits the list, and belongs to its maker all the same.
    trees.bench.fs.mknod(trees.below, b"new", NewNode::Regular, 0o664, &USER).expect("mknod");
    let dir = trees.bench.fs.mkdir(trees.below, b"dir", 0o775, &USER).expect("mkdir").node;
    let copy = trees.clone_of(trees.mine).expect("all of it is the user's own");
    trees.bench.fs.chmod_tree(trees.mine, keep(0o770, 0), &USER).expect("chmod");
    assert_eq!(trees.walks(), 0);
    // The copy gives the permissions that the user gave.
    let copied = trees.bench.look(copy, "below/dir");
    for list in [ACCESS_LIST, DEFAULT_LIST] {
        let [old, new] = [dir, copied].map(|node| trees.bench.fs.getxattr(node, list).expect("a list"));
        assert_eq!(old, new);
    }
    trees.bench.check(0);
}

#[test]
fn access_lists_give_no_rights_over_trees() {
    let trees = Trees::new();
    for node in [trees.mine, trees.below, trees.file, trees.alone] {
        trees.set_list(node, ACCESS_LIST);
    }
    let (fs, root) = (&trees.bench.fs, NodeId::ROOT);
    for refused in [
        fs.clone_tree(trees.mine, root, b"copied", &OTHER).map(drop),
        fs.chmod_tree(trees.mine, keep(0o777, 0), &OTHER),
        fs.remove_tree(root, b"mine", &OTHER),
        fs.snapshot_tree(trees.mine, "mine", false, &OTHER),
        fs.diff_trees(fs, trees.mine, trees.elsewhere, &OTHER).map(drop),
    ] {
        assert_eq!(refused.map_err(|error| error.kind()), Err(FsErrorKind::Permission));
    }
    // Nor does a list on a foreign file make it the user's.
    Trees::refused_after(|t| {
        let file = t.other_makes(t.below, "new");
        let mut list = list_for_the_other();
        list[4 + 8 + 4..4 + 16].copy_from_slice(&USER.uid.to_le_bytes());
        t.bench.fs.setxattr(file, ACCESS_LIST, &list, XattrMode::Set, false).expect("setfacl");
    });
}

/// A list lets another user make entries: those are foreign.
#[test]
fn what_an_access_list_lets_in_is_in_the_way() {
    let as_other = |does: &dyn Fn(&PathCaller)| {
        Trees::refused_after(|t| {
            for list in [ACCESS_LIST, DEFAULT_LIST] {
                t.set_list(t.mine, list);
                t.set_list(t.below, list);
            }
            t.bench.fs.mkdir(t.below, b"heir", 0o775, &USER).expect("mkdir");
            let (_paths, other) = t.process(&OTHER);
            does(&other);
        });
    };
    as_other(&|other| write(other, "/mine/below/new", NewAttributes::default()));
    as_other(&|other| write(other, "/mine/below/heir/new", NewAttributes::default()));
    as_other(&|other| other.mkdir("/mine/below/heir/new", 0o777).expect("mkdir"));
    as_other(&|other| {
        other.mkdir("/other", 0o755).expect("mkdir");
        other.rename("/other", "/mine/below/heir/other", espalier_fs::RenameHow::NoReplace).expect("rename");
    });
    as_other(&|other| {
        let made = other.open_unnamed("/mine/below/heir", 0o600).expect("open");
        other.link_open(&made, "/mine/below/heir/new").expect("linkat");
    });
}
