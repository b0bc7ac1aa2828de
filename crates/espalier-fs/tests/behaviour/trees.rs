//! Clones, removals and changes of whole trees.

use crate::Bench;
use espalier_fs::{
    Caller, FsErrorKind, ModeChange, NewNode, NodeId, OwnerChange, RenameMode, SetAttr, XattrMode,
};
use std::collections::BTreeSet;

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

impl Bench {
    pub(crate) fn look(&self, parent: NodeId, path: &str) -> NodeId {
        path.split('/').fold(parent, |at, name| self.fs.lookup(at, name.as_bytes()).expect("lookup").node)
    }

    pub(crate) fn ino(&self, node: NodeId) -> u64 {
        self.fs.getattr(node).expect("attributes").ino
    }

    pub(crate) fn clone_to(&self, source: NodeId, name: &str) -> NodeId {
        self.fs.clone_tree(source, NodeId::ROOT, name.as_bytes(), &ROOT).expect("clone").node
    }

    /// /src/{a,sub/{b,empty}}, with data, an extended attribute of each kind, times of its own.
    fn source(&self) -> NodeId {
        let src = self.dir(NodeId::ROOT, "src");
        let sub = self.dir(src, "sub");
        self.dir(sub, "empty");
        let a = self.file(src, "a");
        self.fs.write(a, 0, &[1; 9000], false).expect("write");
        self.fs.setxattr(a, b"user.small", b"value", XattrMode::Set, false).expect("setxattr");
        self.fs.setxattr(src, b"user.large", &[7; 5000], XattrMode::Set, false).expect("setxattr");
        let b = self.file(sub, "b");
        self.fs.write(b, 0, b"text", false).expect("write");
        src
    }
}

#[test]
fn a_clone_has_everything_and_numbers_of_its_own() {
    let bench = Bench::new(0);
    let src = bench.source();
    let copy = bench.clone_to(src, "copy");
    let mut numbers = BTreeSet::new();
    for path in ["a", "sub", "sub/b", "sub/empty"] {
        let (old, new) = (bench.look(src, path), bench.look(copy, path));
        let (mut before, after) =
            (bench.fs.getattr(old).expect("attr"), bench.fs.getattr(new).expect("attr"));
        assert!(numbers.insert(before.ino) && numbers.insert(after.ino), "{path}");
        before.ino = after.ino;
        assert_eq!(before, after, "{path}");
    }
    assert_eq!(bench.read(bench.look(copy, "a")), [1; 9000]);
    assert_eq!(bench.fs.getxattr(copy, b"user.large").expect("getxattr"), [7; 5000]);
    assert_eq!(bench.fs.getxattr(bench.look(copy, "a"), b"user.small").expect("getxattr"), b"value");
    // Both sides change alone.
    bench.fs.write(bench.look(copy, "sub/b"), 0, b"NEW", false).expect("write");
    bench.fs.unlink(src, b"a").expect("unlink");
    assert_eq!(bench.read(bench.look(src, "sub/b")), b"text");
    assert_eq!(bench.read(bench.look(copy, "a")), [1; 9000]);
    bench.fs.syncfs().expect("sync");
    let numbers = ["a", "sub/b"].map(|path| bench.ino(bench.look(copy, path)));
    let bench = bench.crash();
    let copy = bench.look(NodeId::ROOT, "copy");
    assert_eq!(numbers, ["a", "sub/b"].map(|path| bench.ino(bench.look(copy, path))));
    bench.check(0);
}

#[test]
fn numbers_in_a_clone_survive_renames_out_of_it_and_clones_of_it() {
    let bench = Bench::new(0);
    let src = bench.source();
    let copy = bench.clone_to(src, "copy");
    let b = bench.look(copy, "sub/b");
    let number = bench.ino(b);
    bench.fs.rename(copy, b"sub", NodeId::ROOT, b"moved", RenameMode::Replace).expect("rename");
    let again = bench.clone_to(bench.look(NodeId::ROOT, "moved"), "again");
    bench.fs.rename(NodeId::ROOT, b"moved", again, b"deep", RenameMode::Replace).expect("rename");
    assert_eq!(bench.ino(bench.look(again, "deep/b")), number);
    assert_ne!(bench.ino(bench.look(again, "b")), number);
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    assert_eq!(bench.ino(bench.look(NodeId::ROOT, "again/deep/b")), number);
    bench.check(0);
}

#[test]
fn links_stay_together_in_a_clone_and_apart_from_the_source() {
    let bench = Bench::correcting(0);
    let src = bench.source();
    let a = bench.look(src, "a");
    bench.fs.link(a, bench.look(src, "sub"), b"a2").expect("link");
    bench.fs.link(a, NodeId::ROOT, b"outside").expect("link");
    let other = bench.file(NodeId::ROOT, "other");
    bench.fs.link(other, NodeId::ROOT, b"other2").expect("link");
    let copy = bench.clone_to(src, "copy");
    let in_copy = bench.fs.lookup(copy, b"a").expect("lookup");
    assert_eq!((in_copy.attr.nlink, bench.fs.getattr(a).expect("attr").nlink), (2, 3));
    assert_eq!(bench.look(copy, "sub/a2"), in_copy.node);
    assert_ne!(in_copy.attr.ino, bench.ino(a));
    bench.fs.write(in_copy.node, 0, b"changed", false).expect("write");
    assert_eq!(bench.read(a), [1; 9000]);
    bench.check(0);
    // The counts are corrected and the rests dropped.
    bench.fs.background_tick().expect("tick");
    bench.check(0);
    let files = |bench: &Bench| espalier_fs::check(&bench.store, "main", &mut |_| {}).expect("check").files;
    assert_eq!(files(&bench), 5);
    let second = bench.clone_to(copy, "second");
    assert_eq!(bench.fs.lookup(second, b"a").expect("lookup").attr.nlink, 2);
    bench.fs.unlink(second, b"a").expect("unlink");
    assert_eq!(bench.fs.lookup(second, b"sub").map(|e| e.attr.size).expect("lookup"), 3);
    assert_eq!(bench.fs.getattr(bench.look(second, "sub/a2")).expect("attr").nlink, 1);
    // The last name may leave.
    let sub = bench.look(second, "sub");
    bench.fs.rename(sub, b"a2", NodeId::ROOT, b"out", RenameMode::Replace).expect("rename");
    assert_eq!(&bench.read(bench.look(NodeId::ROOT, "out"))[..7], b"changed");
    bench.fs.background_tick().expect("tick");
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    assert_eq!(bench.fs.lookup(NodeId::ROOT, b"outside").expect("lookup").attr.nlink, 3);
    bench.check(0);
}

/// git makes each object under a second name and removes the first.
#[test]
fn clones_of_a_directory_full_of_names_that_are_gone_keep_what_is_linked() {
    const GONE: usize = 600;
    for (linked, settles) in [(false, false), (true, false), (false, true), (true, true)] {
        let bench = Bench::new(0);
        let src = bench.source();
        for number in 0..GONE {
            let file = bench.file(src, "new");
            bench.fs.link(file, src, format!("object{number}").as_bytes()).expect("link");
            bench.fs.unlink(src, b"new").expect("unlink");
        }
        if linked {
            bench.fs.link(bench.look(src, "a"), src, b"second").expect("link");
        }
        if settles {
            bench.fs.syncfs().expect("sync");
            bench.fs.background_tick().expect("tick");
        }
        let first = bench.clone_to(src, "first");
        let second = bench.clone_to(first, "second");
        for copy in [first, second] {
            let links = bench.fs.lookup(copy, b"a").expect("lookup").attr.nlink;
            assert_eq!(links, if linked { 2 } else { 1 });
            assert_eq!(bench.fs.lookup(copy, b"object7").expect("lookup").attr.nlink, 1);
            assert_eq!(bench.fs.getattr(copy).expect("attr").size, 2 + GONE as u64 + u64::from(linked));
        }
        // A file of a clone gets a second name there, and loses it.
        let object = bench.look(second, "object9");
        bench.fs.link(object, second, b"again").expect("link");
        assert_eq!(bench.fs.getattr(object).expect("attr").nlink, 2);
        bench.fs.unlink(second, b"object9").expect("unlink");
        bench.check(0);
        bench.fs.syncfs().expect("sync");
        let bench = bench.crash();
        assert_eq!(bench.fs.getattr(bench.look(NodeId::ROOT, "second/again")).expect("attr").nlink, 1);
        bench.check(0);
    }
}

#[test]
fn a_clone_of_the_root_lies_in_it_and_does_not_contain_itself() {
    let bench = Bench::new(0);
    let src = bench.source();
    bench.fs.link(bench.look(src, "a"), NodeId::ROOT, b"linked").expect("link");
    let copy = bench.clone_to(NodeId::ROOT, "copy");
    assert_eq!(bench.fs.getattr(copy).expect("attr").size, 2);
    assert_eq!(bench.fs.lookup(copy, b"linked").expect("lookup").attr.nlink, 2);
    assert_eq!(bench.fs.lookup(copy, b"copy").map(|_| ()).map_err(|e| e.kind()), Err(FsErrorKind::NotFound));
    let deep = bench.fs.clone_tree(NodeId::ROOT, copy, b"deep", &ROOT).expect("clone").node;
    assert_eq!(bench.read(bench.look(deep, "copy/src/sub/b")), b"text");
    bench.check(0);
}

#[test]
fn what_is_in_use_in_a_removed_tree_can_be_used_until_given_up() {
    let bench = Bench::new(0);
    let src = bench.source();
    let a = bench.look(src, "a");
    let sub = bench.look(src, "sub");
    bench.fs.link(a, NodeId::ROOT, b"outside").expect("link");
    bench.fs.remove_tree(NodeId::ROOT, b"src", &ROOT).expect("remove");
    assert_eq!(bench.fs.getattr(NodeId::ROOT).expect("attr").nlink, 2);
    let gone =
        |result: Result<(), espalier_fs::FsError>| result.map_err(|e| e.kind()) == Err(FsErrorKind::NotFound);
    assert!(gone(bench.fs.lookup(NodeId::ROOT, b"src").map(|_| ())));
    assert_eq!((bench.fs.getattr(a).expect("attr").nlink, bench.read(a).len()), (1, 9000));
    assert!(gone(bench.fs.lookup(sub, b"b").map(|_| ())));
    assert!(gone(bench.fs.mkdir(sub, b"new", 0o755, &ROOT).map(|_| ())));
    assert!(gone(bench.fs.rename(NodeId::ROOT, b"outside", sub, b"x", RenameMode::Replace)));
    // The place is free.
    let again = bench.source();
    let b = bench.look(again, "sub/b");
    bench.check(1);
    bench.fs.remove_tree(NodeId::ROOT, b"src", &ROOT).expect("remove");
    assert_eq!(bench.read(b), b"text");
    bench.fs.write(b, 4, b" and more", false).expect("write");
    bench.check(2);
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    bench.check(0);
    assert_eq!(bench.fs.getattr(NodeId::ROOT).expect("attr").size, 1);
}

#[test]
fn a_tree_goes_with_the_last_reference_below_it() {
    let bench = Bench::new(0);
    let src = bench.dir(NodeId::ROOT, "src");
    let file = bench.file(src, "file");
    bench.fs.write(file, 0, &[1; 5000], false).expect("write");
    bench.fs.remove_tree(NodeId::ROOT, b"src", &ROOT).expect("remove");
    bench.fs.forget(src, 1);
    bench.check(1);
    assert_eq!(bench.read(file), [1; 5000]);
    bench.fs.forget(file, 1);
    bench.check(0);
    assert_eq!(bench.fs.statistics().nodes, 3);
}

#[test]
fn only_root_clones_or_removes_what_is_not_all_his_own() {
    let bench = Bench::new(0);
    let open = SetAttr { mode: Some(0o777), ..Default::default() };
    bench.fs.setattr(NodeId::ROOT, &open).expect("chmod");
    let user = Caller { uid: 7, gid: 7, ..Default::default() };
    let dir = bench.fs.mkdir(NodeId::ROOT, b"mine", 0o755, &user).expect("mkdir").node;
    let below = bench.fs.mkdir(dir, b"below", 0o755, &user).expect("mkdir").node;
    let file = bench.fs.mknod(below, b"file", NewNode::Regular, 0o644, &user).expect("mknod").node;
    let clone = |name: &str| {
        let cloned = bench.fs.clone_tree(dir, NodeId::ROOT, name.as_bytes(), &user);
        cloned.map(|_| ()).map_err(|e| e.kind())
    };
    assert_eq!(clone("one"), Ok(()));
    let set = |mode, uid| SetAttr { mode, uid, ..Default::default() };
    bench.fs.setattr(file, &SetAttr { gid: Some(9), ..set(Some(0o2755), None) }).expect("chmod");
    assert_eq!(clone("two"), Err(FsErrorKind::Permission));
    bench.fs.setattr(file, &set(Some(0o755), None)).expect("chmod");
    assert_eq!(clone("two"), Ok(()));
    bench.fs.setattr(file, &set(None, Some(8))).expect("chown");
    assert_eq!(clone("three"), Err(FsErrorKind::Permission));
    let removed = bench.fs.remove_tree(NodeId::ROOT, b"mine", &user);
    assert_eq!(removed.map_err(|e| e.kind()), Err(FsErrorKind::Permission));
    bench.fs.remove_tree(NodeId::ROOT, b"one", &user).expect("remove");
    // The test holds the clone.
    bench.check(1);
}

#[test]
fn owners_and_modes_of_a_tree_change_at_once() {
    let bench = Bench::new(0);
    let src = bench.source();
    let a = bench.look(src, "a");
    bench.fs.link(bench.look(src, "sub/b"), NodeId::ROOT, b"outside").expect("link");
    let change = OwnerChange { uid: Some(7), gid: Some(8) };
    bench.fs.chown_tree(src, change, &ROOT).expect("chown");
    let attr = bench.fs.getattr(a).expect("attr");
    assert_eq!((attr.uid, attr.gid), (7, 8));
    let modes = ModeChange {
        keep_directories: 0,
        add_directories: 0o700,
        keep_files: 0o111,
        add_files: 0o400,
        add_executables: 0,
    };
    let user = Caller { uid: 7, gid: 8, ..Default::default() };
    bench.fs.chmod_tree(src, modes, &user).expect("chmod");
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    for (path, mode) in [("src", 0o700), ("src/a", 0o400), ("src/sub/b", 0o400), ("outside", 0o400)] {
        let attr = bench.fs.getattr(bench.look(NodeId::ROOT, path)).expect("attr");
        assert_eq!((attr.mode, attr.uid, attr.gid), (mode, 7, 8), "{path}");
    }
    assert_eq!(bench.fs.getattr(NodeId::ROOT).expect("attr").uid, 0);
    bench.check(0);
}

fn owner(uid: u32) -> OwnerChange {
    OwnerChange { uid: Some(uid), gid: None }
}

#[test]
fn nodes_in_memory_learn_of_a_change_wherever_they_have_gone() {
    let bench = Bench::new(0);
    let (src, other) = (bench.source(), bench.dir(NodeId::ROOT, "other"));
    let (sub, b) = (bench.look(src, "sub"), bench.look(src, "sub/b"));
    let uid = |node| bench.fs.getattr(node).expect("attr").uid;
    // Their states are not read between the steps.
    bench.fs.chown_tree(other, owner(5), &ROOT).expect("chown");
    bench.fs.chown_tree(src, owner(6), &ROOT).expect("chown");
    bench.fs.rename(src, b"sub", other, b"sub", RenameMode::Replace).expect("rename");
    bench.fs.chown_tree(src, owner(7), &ROOT).expect("chown");
    assert_eq!((uid(sub), uid(b)), (6, 6));
    bench.fs.chown_tree(other, owner(8), &ROOT).expect("chown");
    bench.fs.rename(other, b"sub", NodeId::ROOT, b"sub", RenameMode::Replace).expect("rename");
    bench.fs.chown_tree(other, owner(9), &ROOT).expect("chown");
    let gone = bench.look(sub, "empty");
    bench.fs.chown_tree(NodeId::ROOT, OwnerChange { uid: None, gid: Some(4) }, &ROOT).expect("chown");
    bench.fs.rmdir(sub, b"empty").expect("rmdir");
    bench.fs.unlink(sub, b"b").expect("unlink");
    bench.fs.chown_tree(sub, owner(10), &ROOT).expect("chown");
    let attr = bench.fs.getattr(b).expect("attr");
    assert_eq!((attr.uid, attr.gid, uid(gone), uid(sub)), (8, 4, 8, 10));
    let changed: BTreeSet<_> = bench.fs.changed_nodes().into_iter().collect();
    assert!([sub, b, src, other, bench.look(src, "a")].iter().all(|node| changed.contains(node)));
    assert!(bench.fs.changed_nodes().is_empty());
    // What is noted goes, and what is then noted still counts.
    bench.fs.chown_tree(src, owner(11), &ROOT).expect("chown");
    assert_eq!(uid(bench.look(src, "a")), 11);
}

#[test]
fn a_tree_removed_in_use_stays_what_it_was() {
    let bench = Bench::new(0);
    let src = bench.source();
    let b = bench.look(src, "sub/b");
    bench.fs.chown_tree(src, owner(6), &ROOT).expect("chown");
    bench.fs.remove_tree(NodeId::ROOT, b"src", &ROOT).expect("remove");
    bench.fs.chown_tree(NodeId::ROOT, owner(7), &ROOT).expect("chown");
    assert_eq!(bench.fs.getattr(b).expect("attr").uid, 6);
}

#[test]
fn more_changes_than_are_noted_are_all_seen() {
    let bench = Bench::new(0);
    let src = bench.source();
    let (a, b) = (bench.look(src, "a"), bench.look(src, "sub/b"));
    for n in 1..=200 {
        bench.fs.chown_tree(src, OwnerChange { uid: Some(n), gid: None }, &ROOT).expect("chown");
        if n % 3 == 0 {
            let gid = Some(1000 + n);
            let sub = bench.look(src, "sub");
            bench.fs.chown_tree(sub, OwnerChange { uid: None, gid }, &ROOT).expect("chown");
        }
    }
    let attr = |node| bench.fs.getattr(node).map(|a| (a.uid, a.gid)).expect("attr");
    assert_eq!((attr(a).0, attr(b)), (200, (200, 1198)));
}

#[test]
fn a_listing_under_way_does_not_bring_back_old_owners() {
    let bench = Bench::new(0);
    let src = bench.source();
    bench.fs.syncfs().expect("sync");
    // Nothing below is in memory, and entries are read ahead of the first one shown.
    let bench = bench.crash();
    let src = bench.fs.lookup(NodeId::ROOT, b"src").map_or(src, |entry| entry.node);
    let mut changed = false;
    bench
        .fs
        .readdirplus(src, 0, &mut |_| {
            if !std::mem::replace(&mut changed, true) {
                bench.fs.chown_tree(src, owner(6), &ROOT).expect("chown");
            }
            true
        })
        .expect("list");
    for name in ["a", "sub"] {
        assert_eq!(bench.fs.getattr(bench.look(src, name)).expect("attr").uid, 6, "{name}");
    }
}

#[test]
fn a_tree_is_listed_in_one_sweep() {
    let bench = Bench::new(0);
    let src = bench.source();
    bench.fs.link(bench.look(src, "a"), bench.look(src, "sub"), b"link").expect("link");
    let copy = bench.clone_to(src, "copy");
    for top in [src, copy] {
        let mut seen = Vec::new();
        bench
            .fs
            .list_tree(top, &mut |entry| {
                seen.push((String::from_utf8_lossy(entry.path).into_owned(), entry.attr.ino));
                true
            })
            .expect("list");
        let expected: Vec<_> = ["a", "sub", "sub/b", "sub/empty", "sub/link"]
            .map(|path| (path.to_owned(), bench.ino(bench.look(top, path))))
            .into();
        assert_eq!(seen, expected);
    }
}

#[test]
fn clones_and_removals_are_of_one_instant_while_others_work() {
    let bench = Bench::new(2);
    let src = bench.dir(NodeId::ROOT, "src");
    let (left, right) = (bench.dir(src, "left"), bench.dir(src, "right"));
    // One file wanders between two directories and is always in exactly one; two files are written
    // in turn.
    let wanderer = bench.file(left, "wanderer");
    bench.fs.write(wanderer, 0, b"here", false).expect("write");
    let pair = [bench.file(src, "first"), bench.file(src, "second")];
    let stop = std::sync::atomic::AtomicBool::new(false);
    let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for (from, to) in [(left, right), (right, left)].into_iter().cycle() {
                if stopped() {
                    break;
                }
                bench.fs.rename(from, b"wanderer", to, b"wanderer", RenameMode::Replace).expect("rename");
            }
        });
        scope.spawn(|| {
            for n in 0u64.. {
                if stopped() {
                    break;
                }
                for file in pair {
                    bench.fs.write(file, 0, &n.to_le_bytes(), false).expect("write");
                }
            }
        });
        for n in 0..60 {
            let name = format!("copy{n}");
            let copy = bench.clone_to(src, &name);
            let found = ["left", "right"].iter().filter(|dir| {
                let dir = bench.look(copy, dir);
                bench.fs.lookup(dir, b"wanderer").is_ok()
            });
            assert_eq!(found.count(), 1, "{name}");
            let number = |file: &str| {
                let bytes = bench.read(bench.look(copy, file));
                bytes.try_into().map(u64::from_le_bytes).unwrap_or(0)
            };
            let (first, second) = (number("first"), number("second"));
            assert!(first == second || first == second + 1, "{name}: {first} and {second}");
            if n % 2 == 0 {
                bench.fs.remove_tree(NodeId::ROOT, name.as_bytes(), &ROOT).expect("remove");
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert_eq!(bench.fs.getattr(NodeId::ROOT).expect("attr").nlink, 2 + 1 + 30);
    bench.check(30);
}
