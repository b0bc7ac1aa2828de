//! The page `docs/semantics.md`, sentence by sentence where a sentence can be tested.

use crate::Bench;
use espalier_fs::{
    Caller, Fallocate, FileFlags, FsErrorKind, ModeChange, NewNode, NodeId, OwnerChange, RenameMode, Seek,
    SetAttr, SetTime, XattrMode,
};

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&permissions.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";

#[test]
fn the_size_of_a_directory_is_its_number_of_entries() {
    let bench = Bench::new(0);
    let dir = bench.dir(NodeId::ROOT, "dir");
    bench.file(dir, "a");
    bench.dir(dir, "b");
    let attr = bench.fs.getattr(dir).expect("attributes");
    assert_eq!((attr.size, attr.nlink, attr.blocks), (2, 3, 0));
}

#[test]
fn blocks_count_data_and_not_holes() {
    let bench = Bench::new(0);
    let file = bench.file(NodeId::ROOT, "file");
    bench.fs.write(file, 1 << 20, &[1; 4096], false).expect("write");
    let attr = bench.fs.getattr(file).expect("attributes");
    assert_eq!((attr.size, attr.blocks), ((1 << 20) + 4096, 8));
    assert_eq!(bench.fs.lseek(file, 0, Seek::Data).expect("seek"), 1 << 20);
    let (size, hole) = (attr.size, |offset| bench.fs.next_hole(file, offset).expect("hole"));
    assert_eq!(hole(5), (5..1 << 20, size));
    assert_eq!(hole((1 << 20) + 7), (size..u64::MAX, size));
    assert_eq!(hole(size + 7), (size + 7..u64::MAX, size));
    bench.fs.fallocate(file, 1 << 20, 4096, Fallocate::PunchHole, false).expect("punch");
    assert_eq!(bench.fs.getattr(file).expect("attributes").blocks, 0);
    assert_eq!(bench.fs.next_hole(file, 5).expect("hole"), (5..u64::MAX, size));
    assert_eq!(bench.fs.lseek(file, 0, Seek::Data).map_err(|e| e.kind()), Err(FsErrorKind::NoSuchOffset));
}

#[test]
fn what_a_change_of_size_answers_counts_what_is_left() {
    let bench = Bench::new(0);
    let file = bench.file(NodeId::ROOT, "file");
    for block in [1, 3, 5] {
        bench.fs.write(file, block * 4096, &[1; 4096], false).expect("write");
    }
    for size in [1 << 20, 6 * 4096, 5 * 4096 + 700, 5 * 4096, 3 * 4096 + 1, 4096, 1 << 16, 0] {
        let told =
            bench.fs.setattr(file, &SetAttr { size: Some(size), ..Default::default() }).expect("truncate");
        let node = bench.fs.lookup(NodeId::ROOT, b"file").expect("look-up").node;
        assert_eq!(node, file);
        // Changes nothing but what was remembered.
        bench.fs.fallocate(file, 1 << 30, 1, Fallocate::PunchHole, false).expect("punch");
        let counted = bench.fs.getattr(file).expect("attributes");
        assert_eq!((told.size, told.blocks), (counted.size, counted.blocks), "{size} bytes");
    }
}

#[test]
fn fallocate_refuses_what_there_is_no_room_for() {
    let bench = Bench::new(0);
    let file = bench.file(NodeId::ROOT, "file");
    let allocate = Fallocate::Allocate { keep_size: false };
    let refused = bench.fs.fallocate(file, 0, 1 << 40, allocate, false);
    assert_eq!(refused.map_err(|e| e.kind()), Err(FsErrorKind::NoSpace));
    bench.fs.fallocate(file, 0, 10_000, allocate, false).expect("there is room");
    let attr = bench.fs.getattr(file).expect("attributes");
    assert_eq!((attr.size, attr.blocks), (10_000, 20));
}

#[test]
fn a_full_store_says_so_and_lets_one_delete() {
    let bench = Bench::sized(24 << 20, 0, espalier_fs::OpenOptions::default(), &Default::default());
    for round in 0..4 {
        let mut names = Vec::new();
        let error = loop {
            let name = format!("round{round}-{}", names.len());
            let made =
                bench.fs.mknod(NodeId::ROOT, name.as_bytes(), NewNode::Regular, 0o644, &Caller::default());
            match made {
                Ok(entry) => {
                    names.push(name);
                    let written = bench.fs.write(entry.node, 0, &[round; 200_000], false);
                    bench.fs.forget(entry.node, 1);
                    if let Err(error) = written {
                        break error;
                    }
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), FsErrorKind::NoSpace, "{error}");
        assert!(names.len() > 20, "round {round}: {} files", names.len());
        bench.fs.syncfs().expect("what was accepted can be made durable");
        bench.check(0);
        for name in names {
            bench.fs.unlink(NodeId::ROOT, name.as_bytes()).expect("what exists can be removed");
        }
    }
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    assert_eq!(bench.fs.getattr(NodeId::ROOT).expect("attributes").size, 0);
    bench.check(0);
}

#[test]
fn linked_files_have_one_node_and_one_number() {
    let bench = Bench::new(0);
    let file = bench.file(NodeId::ROOT, "a");
    bench.fs.write(file, 0, b"text", false).expect("write");
    let number = bench.fs.getattr(file).expect("attributes").ino;
    let linked = bench.fs.link(file, NodeId::ROOT, b"b").expect("link");
    assert_eq!((linked.node, linked.attr.ino, linked.attr.nlink), (file, number, 2));
    assert_eq!(bench.fs.lookup(NodeId::ROOT, b"a").expect("lookup").node, file);
    bench.fs.unlink(NodeId::ROOT, b"a").expect("unlink");
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    let found = bench.fs.lookup(NodeId::ROOT, b"b").expect("lookup");
    assert_eq!((found.attr.ino, found.attr.nlink), (number, 1));
    assert_eq!(bench.read(found.node), b"text");
    bench.check(0);
}

#[test]
fn numbers_survive_rename_and_remount() {
    let bench = Bench::new(0);
    let dir = bench.dir(NodeId::ROOT, "dir");
    let file = bench.file(dir, "file");
    let numbers = [dir, file].map(|n| bench.fs.getattr(n).expect("attributes").ino);
    bench.fs.rename(NodeId::ROOT, b"dir", NodeId::ROOT, b"moved", RenameMode::Replace).expect("rename");
    bench.fs.rename(dir, b"file", NodeId::ROOT, b"out", RenameMode::Replace).expect("rename");
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    let found = [&b"moved"[..], b"out"].map(|n| bench.fs.lookup(NodeId::ROOT, n).expect("lookup").attr.ino);
    assert_eq!(numbers, found);
}

#[test]
fn files_and_directories_larger_than_the_log_can_move() {
    let log = espalier_engine::FormatOptions { log_bytes: Some(1 << 20), ..Default::default() };
    let bench = Bench::made(0, espalier_fs::OpenOptions::default(), &log);
    let file = bench.file(NodeId::ROOT, "file");
    for i in 0..64u64 {
        bench.fs.write(file, i << 17, &[i as u8; 1 << 17], false).expect("write");
    }
    bench.fs.rename(NodeId::ROOT, b"file", NodeId::ROOT, b"moved", RenameMode::Replace).expect("rename");
    let dir = bench.dir(NodeId::ROOT, "dir");
    for i in 0..3000 {
        let below = bench.file(dir, &format!("{i}{}", "n".repeat(200)));
        bench.fs.forget(below, 1);
    }
    bench.fs.rename(NodeId::ROOT, b"dir", NodeId::ROOT, b"much", RenameMode::Replace).expect("rename");
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    let found = bench.fs.lookup(NodeId::ROOT, b"moved").expect("lookup").node;
    assert!(bench.read(found).chunks(1 << 17).zip(0u8..).all(|(chunk, i)| chunk.iter().all(|b| *b == i)));
    bench.check(0);
}

#[test]
fn set_group_id_directories_pass_their_group_on() {
    let bench = Bench::new(0);
    let dir = bench.dir(NodeId::ROOT, "dir");
    let set = SetAttr { mode: Some(0o2775), gid: Some(77), ..Default::default() };
    bench.fs.setattr(dir, &set).expect("setattr");
    let caller = Caller { uid: 5, gid: 6, ..Default::default() };
    let file = bench.fs.mknod(dir, b"file", NewNode::Regular, 0o644, &caller).expect("mknod").attr;
    assert_eq!((file.uid, file.gid, file.mode), (5, 77, 0o644));
    let below = bench.fs.mkdir(dir, b"below", 0o755, &caller).expect("mkdir").attr;
    assert_eq!((below.gid, below.mode), (77, 0o2755));
}

#[test]
fn default_lists_are_inherited_instead_of_the_umask() {
    let bench = Bench::new(0);
    let dir = bench.dir(NodeId::ROOT, "dir");
    let list = acl(&[(1, 7, !0), (2, 6, 42), (4, 5, !0), (16, 6, !0), (32, 0, !0)]);
    bench.fs.setxattr(dir, DEFAULT, &list, XattrMode::Set, false).expect("setxattr");
    let caller = Caller { umask: 0o777, ..Default::default() };
    let file = bench.fs.mknod(dir, b"file", NewNode::Regular, 0o666, &caller).expect("mknod");
    assert_eq!(file.attr.mode, 0o660);
    let inherited = acl(&[(1, 6, !0), (2, 6, 42), (4, 5, !0), (16, 6, !0), (32, 0, !0)]);
    assert_eq!(bench.fs.getxattr(file.node, ACCESS).expect("getxattr"), inherited);
    let below = bench.fs.mkdir(dir, b"below", 0o777, &caller).expect("mkdir").node;
    assert_eq!(bench.fs.getxattr(below, DEFAULT).expect("getxattr"), list);
    // The mode and the list stay in step.
    let attr =
        bench.fs.setattr(file.node, &SetAttr { mode: Some(0o600), ..Default::default() }).expect("chmod");
    assert_eq!(attr.mode, 0o600);
    let changed = acl(&[(1, 6, !0), (2, 6, 42), (4, 5, !0), (16, 0, !0), (32, 0, !0)]);
    assert_eq!(bench.fs.getxattr(file.node, ACCESS).expect("getxattr"), changed);
    let plain = acl(&[(1, 7, !0), (4, 4, !0), (32, 4, !0)]);
    bench.fs.setxattr(file.node, ACCESS, &plain, XattrMode::Set, false).expect("setxattr");
    assert_eq!(bench.fs.getattr(file.node).expect("attributes").mode, 0o744);
    assert_eq!(bench.fs.getxattr(file.node, ACCESS).map_err(|e| e.kind()), Err(FsErrorKind::NoData));
    let broken = bench.fs.setxattr(file.node, ACCESS, &acl(&[(1, 7, !0)]), XattrMode::Set, false);
    assert_eq!(broken.map_err(|e| e.kind()), Err(FsErrorKind::Invalid));
}

#[test]
fn paths_may_be_long_but_not_endless() {
    let options = espalier_fs::OpenOptions { max_key: 16 << 10, ..Default::default() };
    let bench = Bench::with(0, options);
    let name = "n".repeat(255);
    let mut dirs = vec![NodeId::ROOT];
    let error = loop {
        match bench.fs.mkdir(dirs[dirs.len() - 1], name.as_bytes(), 0o755, &Caller::default()) {
            Ok(entry) => dirs.push(entry.node),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), FsErrorKind::NameTooLong);
    assert!(dirs.len() > 60, "{} levels", dirs.len());
    let long = bench.fs.mkdir(NodeId::ROOT, &[b'm'; 256], 0o755, &Caller::default());
    assert_eq!(long.map_err(|e| e.kind()), Err(FsErrorKind::NameTooLong));
    // A path below must not become too long by a move either.
    let deep = bench.dir(NodeId::ROOT, "deep");
    let below = bench.dir(deep, &name);
    let (top, bottom) = (dirs[1], dirs[dirs.len() - 1]);
    let moved = bench.fs.rename(NodeId::ROOT, b"deep", bottom, b"deep", RenameMode::Replace);
    assert_eq!(moved.map_err(|e| e.kind()), Err(FsErrorKind::NameTooLong));
    let moved = bench.fs.rename(NodeId::ROOT, name.as_bytes(), below, name.as_bytes(), RenameMode::Replace);
    assert_eq!(moved.map_err(|e| e.kind()), Err(FsErrorKind::NameTooLong));
    assert_eq!(bench.fs.path(top).expect("path").len(), 256);
    for (i, dir) in dirs.iter().enumerate().rev().skip(1).take(dirs.len() - 1) {
        bench.fs.rmdir(*dir, name.as_bytes()).expect("it is empty");
        bench.fs.forget(dirs[i + 1], 1);
    }
    bench.check(0);
}

#[test]
fn times_of_the_last_read_follow_relatime() {
    let bench = Bench::new(0);
    let file = bench.file(NodeId::ROOT, "file");
    bench.fs.write(file, 0, b"text", false).expect("write");
    bench.read(file);
    let first = bench.fs.getattr(file).expect("attributes").atime;
    bench.read(file);
    assert_eq!(bench.fs.getattr(file).expect("attributes").atime, first, "a second read changes nothing");
    let old = SetAttr { atime: Some(SetTime::At(5)), ..Default::default() };
    bench.fs.setattr(file, &old).expect("setattr");
    bench.read(file);
    assert!(bench.fs.getattr(file).expect("attributes").atime >= first);
    // The time is written when the file is synced.
    let atime = bench.fs.getattr(file).expect("attributes").atime;
    bench.fs.fsync(file, false).expect("fsync");
    let bench = bench.crash();
    assert_eq!(bench.fs.lookup(NodeId::ROOT, b"file").expect("lookup").attr.atime, atime);
}

#[test]
fn read_only_mounts_refuse_changes() {
    let bench = Bench::new(0);
    let file = bench.file(NodeId::ROOT, "file");
    bench.fs.close().expect("close");
    let options = espalier_fs::OpenOptions { read_only: true, ..Default::default() };
    let fs = espalier_fs::FileSystem::open(bench.store.clone(), bench.env.clone(), options).expect("open");
    let node = fs.lookup(NodeId::ROOT, b"file").expect("lookup").node;
    let refused = [
        fs.write(node, 0, b"x", false).map(drop),
        fs.unlink(NodeId::ROOT, b"file"),
        fs.setattr(node, &SetAttr::default()).map(drop),
        fs.mkdir(NodeId::ROOT, b"dir", 0o755, &Caller::default()).map(drop),
    ];
    assert!(refused.iter().all(|r| r.as_ref().is_err_and(|e| e.kind() == FsErrorKind::ReadOnly)));
    fs.syncfs().expect("nothing to do");
    let _ = file;
}

#[test]
fn room_is_told_in_units_of_4096_bytes() {
    let bench = Bench::new(0);
    let room = bench.fs.statfs().expect("statfs");
    let bytes = room.blocks * u64::from(room.block_size);
    assert!(bytes > 128 << 20 && bytes <= bench.device.len());
    assert!(room.available <= room.free && room.free <= room.blocks && room.available > 0);
}

#[test]
fn files_of_many_blocks_move_whole_with_attributes_and_without() {
    const LARGE: &[u8] = &[7; 5000];
    let bench = Bench::new(0);
    let (one, two) = (bench.dir(NodeId::ROOT, "one"), bench.dir(NodeId::ROOT, "two"));
    // Up to 64 blocks move key by key, more as a range.
    for blocks in [64usize, 65, 200] {
        for with in [false, true] {
            let name = format!("{blocks} {with}");
            let file = bench.file(one, &name);
            let content: Vec<u8> = (0..blocks * 4096).map(|n| (n / 100 + blocks) as u8).collect();
            bench.fs.write(file, 0, &content, false).expect("write");
            if with {
                bench.fs.setxattr(file, b"user.large", LARGE, XattrMode::Set, false).expect("setxattr");
            }
            for (from, to) in [(one, two), (two, one), (one, two)] {
                let name = name.as_bytes();
                bench.fs.rename(from, name, to, name, RenameMode::Replace).expect("rename");
                bench.fs.write(file, 5000, &content[5000..5003], false).expect("write");
            }
            assert!(bench.read(file) == content, "{name}");
        }
    }
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    let two = bench.fs.lookup(NodeId::ROOT, b"two").expect("lookup").node;
    for blocks in [64usize, 65, 200] {
        for with in [false, true] {
            let name = format!("{blocks} {with}");
            let file = bench.fs.lookup(two, name.as_bytes()).expect("lookup").node;
            let content: Vec<u8> = (0..blocks * 4096).map(|n| (n / 100 + blocks) as u8).collect();
            assert!(bench.read(file) == content, "{name}");
            let large = bench.fs.getxattr(file, b"user.large").ok();
            assert_eq!(large.as_deref(), with.then_some(LARGE), "{name}");
            // Without a name it moves to another place.
            bench.fs.unlink(two, name.as_bytes()).expect("unlink");
            assert!(bench.read(file) == content, "{name} without a name");
            bench.fs.forget(file, 1);
        }
    }
    bench.check(0);
}

#[test]
fn flags_are_cloned_and_inherited_and_take_the_ownership_mark_away() {
    let bench = Bench::new(0);
    let owner = Caller { uid: 7, gid: 7, ..Caller::default() };
    let dir = bench.fs.mkdir(NodeId::ROOT, b"dir", 0o755, &owner).expect("mkdir").node;
    bench.fs.set_flags(dir, FileFlags(FileFlags::NODUMP.0 | FileFlags::NOATIME.0), &owner).expect("flags");
    let file = bench.fs.mknod(dir, b"file", NewNode::Regular, 0o644, &owner).expect("mknod").node;
    assert_eq!(bench.fs.flags(file).expect("flags"), FileFlags(0xc0));
    let refused = bench.fs.set_flags(file, FileFlags::IMMUTABLE, &owner).expect_err("only root may");
    assert_eq!(refused.kind(), FsErrorKind::Permission);
    for unknown in [FileFlags(0x100), FileFlags::DIRSYNC] {
        let refused = bench.fs.set_flags(file, unknown, &Caller::default()).expect_err("not of a file");
        assert_eq!(refused.kind(), FsErrorKind::Unsupported);
    }
    bench.fs.set_flags(file, FileFlags::IMMUTABLE, &Caller::default()).expect("root may");
    bench.check(0);
    let refused = bench.fs.remove_tree(NodeId::ROOT, b"dir", &owner).expect_err("not all may be removed");
    assert_eq!(refused.kind(), FsErrorKind::Permission);
    let clone = bench.fs.clone_tree(dir, NodeId::ROOT, b"clone", &Caller::default()).expect("clone").node;
    let copy = bench.fs.lookup(clone, b"file").expect("lookup").node;
    assert_eq!(bench.fs.flags(copy).expect("flags"), FileFlags::IMMUTABLE);
    for node in [file, copy] {
        let refused = bench.fs.write(node, 0, b"x", false).expect_err("it is immutable");
        assert_eq!(refused.kind(), FsErrorKind::Permission);
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        assert!(bench.fs.setattr(node, &cut).is_err());
        let grow = Fallocate::Allocate { keep_size: false };
        assert!(bench.fs.fallocate(node, 0, 10, grow, false).is_err());
        assert!(bench.fs.setxattr(node, b"user.x", b"y", XattrMode::Set, false).is_err());
    }
    bench.check(0);
}

/// Root may change and remove no tree in which something is immutable, however it is named there.
#[test]
fn a_tree_with_something_immutable_is_changed_by_no_user() {
    let bench = Bench::new(0);
    let (root, owner) = (Caller::default(), Caller { uid: 7, gid: 7, ..Caller::default() });
    let top = bench.fs.mkdir(NodeId::ROOT, b"top", 0o755, &root).expect("mkdir").node;
    let dir = bench.fs.mkdir(top, b"dir", 0o755, &owner).expect("mkdir").node;
    let file = bench.fs.mknod(dir, b"file", NewNode::Regular, 0o644, &owner).expect("mknod").node;
    let outside = bench.fs.mkdir(NodeId::ROOT, b"outside", 0o755, &root).expect("mkdir").node;
    let refused = |what: espalier_fs::Result<()>| {
        let error = what.expect_err("something there is immutable");
        assert_eq!(error.kind(), FsErrorKind::Permission);
        assert!(error.to_string().contains("immutable"), "{error}");
    };
    let change = ModeChange {
        keep_directories: 0o700,
        add_directories: 0,
        keep_files: 0o600,
        add_files: 0,
        add_executables: 0,
    };
    let all_refused = || {
        refused(bench.fs.remove_tree(NodeId::ROOT, b"top", &root));
        refused(bench.fs.chmod_tree(top, change, &root));
        refused(bench.fs.chown_tree(top, OwnerChange { uid: Some(9), gid: None }, &root));
        refused(bench.fs.restore_tree(NodeId::ROOT, b"top", "before", &root).map(drop));
        bench.check(0);
    };
    bench.fs.snapshot_tree(top, "before", false, &root).expect("snapshot");
    bench.fs.set_flags(file, FileFlags::IMMUTABLE, &root).expect("flags");
    all_refused();
    bench.fs.set_flags(file, FileFlags::default(), &root).expect("flags");
    // By a name in the tree of a file that lies outside of it.
    let second = bench.fs.mknod(outside, b"file", NewNode::Regular, 0o644, &owner).expect("mknod").node;
    bench.fs.link(second, dir, b"second").expect("link");
    bench.fs.set_flags(second, FileFlags::APPEND, &root).expect("flags");
    all_refused();
    bench.fs.set_flags(second, FileFlags::default(), &root).expect("flags");
    // The snapshot holds what was immutable when it was made, and restoring it brings that back.
    bench.fs.set_flags(file, FileFlags::IMMUTABLE, &root).expect("flags");
    bench.fs.snapshot_tree(top, "fixed", false, &root).expect("snapshot");
    bench.fs.set_flags(file, FileFlags::default(), &root).expect("flags");
    let restored = bench.fs.restore_tree(NodeId::ROOT, b"top", "fixed", &root).expect("restore").node;
    let dir = bench.fs.lookup(restored, b"dir").expect("lookup").node;
    let file = bench.fs.lookup(dir, b"file").expect("lookup").node;
    assert_eq!(bench.fs.flags(file).expect("flags"), FileFlags::IMMUTABLE);
    refused(bench.fs.remove_tree(NodeId::ROOT, b"top", &root));
    bench.fs.set_flags(file, FileFlags::default(), &root).expect("flags");
    bench.fs.remove_tree(NodeId::ROOT, b"top", &root).expect("nothing is immutable any more");
    // Both trees are in use here.
    bench.check(2);
}

/// The kernel writes a whole page when a program has appended to a file.
#[test]
fn write_back_appends_to_an_append_only_file_and_changes_nothing_before_its_end() {
    let bench = Bench::new(0);
    let file = bench.file(NodeId::ROOT, "log");
    bench.fs.write(file, 0, b"first", false).expect("write");
    bench.fs.set_flags(file, FileFlags::APPEND, &Caller::default()).expect("flags");
    bench.fs.write_back(file, 0, b"first, second").expect("only the end is new");
    let refused = bench.fs.write_back(file, 0, b"First").expect_err("a byte is another one");
    assert_eq!(refused.kind(), FsErrorKind::Permission);
    let mut out = [0; 20];
    let length = bench.fs.read(file, 0, &mut out).expect("read");
    assert_eq!(&out[..length], b"first, second");
    bench.check(0);
}
