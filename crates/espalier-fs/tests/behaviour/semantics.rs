//! The page `docs/semantics.md`, sentence by sentence where a sentence can be tested.

use crate::Bench;
use espalier_fs::{
    Caller, Fallocate, FsErrorKind, NewNode, NodeId, RenameMode, Seek, SetAttr, SetTime, XattrMode,
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
