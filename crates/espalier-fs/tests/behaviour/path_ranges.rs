//! Calls by path on whole trees and on many files at once.

use crate::Bench;
use crate::paths::{assert_kind, bench, make, stat};
use espalier_fs::{
    At, Caching, Caller, Filter, FsErrorKind, Links, ModeChange, NewNode, NodeId, Open, OwnerChange,
    PathCaller, ReadRequest, RenameHow, SetTime,
};

fn write(root: &PathCaller, path: &str, content: &[u8]) {
    root.open(path, &Open::create(0o644)).unwrap().write_at(0, content).unwrap();
}

/// What a walk gives: paths, and whether they are closed to the caller.
fn walked(caller: &PathCaller, path: &str) -> Vec<(String, bool)> {
    let mut all = Vec::new();
    caller
        .walk(path, &Filter::default(), &mut |entry| {
            all.push((String::from_utf8(entry.path.to_vec()).unwrap(), entry.is_closed));
            true
        })
        .unwrap();
    all
}

fn expected(paths: &[(&str, bool)]) -> Vec<(String, bool)> {
    paths.iter().map(|(path, is_closed)| ((*path).to_owned(), *is_closed)).collect()
}

/// Directories a/b/c, with a file in each, one of them with a second name.
fn tree() -> (Bench, PathCaller, PathCaller) {
    let (bench, _paths, root, seven) = bench();
    make(&root, "/t/a/b/c");
    for path in ["/t/f", "/t/a/f", "/t/a/b/f", "/t/a/b/c/f", "/t/a/z"] {
        write(&root, path, path.as_bytes());
    }
    root.mkdir("/t/ab", 0o755).unwrap();
    root.link("/t/a/b/f", "/t/ab/again", Links::Stay).unwrap();
    (bench, root, seven)
}

#[test]
fn a_walk_gives_what_the_caller_could_list() {
    let (bench, root, seven) = tree();
    let all = [
        ("f", false),
        ("a", false),
        ("ab", false),
        ("a/f", false),
        ("a/z", false),
        ("a/b", false),
        ("a/b/f", false),
        ("a/b/c", false),
        ("a/b/c/f", false),
        ("ab/again", false),
    ];
    let sorted = |mut paths: Vec<(String, bool)>| {
        paths.sort();
        paths
    };
    assert_eq!(sorted(walked(&seven, "/t")), sorted(expected(&all)));
    for mode in [0o711, 0o744, 0o700] {
        root.chmod("/t/a/b", mode, Links::Follow).unwrap();
        let seen = [
            ("a", false),
            ("a/b", true),
            ("a/f", false),
            ("a/z", false),
            ("ab", false),
            ("ab/again", false),
            ("f", false),
        ];
        assert_eq!(sorted(walked(&seven, "/t")), sorted(expected(&seen)), "{mode:o}");
        assert_eq!(sorted(walked(&root, "/t")), sorted(expected(&all)));
        assert_kind(seven.walk("/t/a/b", &Filter::default(), &mut |_| true), FsErrorKind::AccessDenied);
    }
    assert_kind(root.walk("/t/f", &Filter::default(), &mut |_| true), FsErrorKind::NotDirectory);
    assert_kind(root.walk("/.snapshots", &Filter::default(), &mut |_| true), FsErrorKind::Unsupported);
    let mut seen = 0;
    let mut stop = |_: espalier_fs::WalkEntry<'_>| {
        seen += 1;
        seen < 3
    };
    root.walk("/t", &Filter::default(), &mut stop).unwrap();
    assert_eq!(seen, 3);
    // The attributes are those of each path.
    root.walk("/t", &Filter::default(), &mut |entry| {
        let path = format!("/t/{}", String::from_utf8_lossy(entry.path));
        assert_eq!(entry.attr, root.stat(&path, Links::Stay).unwrap(), "{path}");
        true
    })
    .unwrap();
    // A filter hides no directory that could not be looked into.
    let filter = Filter { pattern: Some(b"a/**/f".to_vec()), ..Filter::default() };
    let filtered = |caller: &PathCaller| {
        let mut paths = Vec::new();
        let mut each = |entry: espalier_fs::WalkEntry<'_>| {
            paths.push(String::from_utf8(entry.path.to_vec()).unwrap());
            true
        };
        caller.walk("/t", &filter, &mut each).unwrap();
        paths
    };
    assert_eq!(filtered(&root), ["a/b/f", "a/b/c/f"]);
    assert_eq!(filtered(&seven), ["a/b"]);
    bench.fs.snapshot("s", false).unwrap();
    root.remove_tree("/t/a").unwrap();
    assert_eq!(sorted(walked(&root, "/.snapshots/s/t")), sorted(expected(&all)));
    assert_eq!(sorted(walked(&root, "/t")), expected(&[("ab", false), ("ab/again", false), ("f", false)]));
    bench.check(0);
}

#[test]
fn trees_are_cloned_changed_and_removed_by_path() {
    let (bench, root, seven) = tree();
    root.chmod("/", 0o1777, Links::Follow).unwrap();
    assert_kind(seven.clone_tree("/t", "/mine"), FsErrorKind::Permission);
    assert_kind(seven.remove_tree("/t"), FsErrorKind::Permission);
    root.clone_tree("/t", "/u").unwrap();
    assert_eq!(walked(&root, "/u"), walked(&root, "/t"));
    assert_kind(root.clone_tree("/t", "/u"), FsErrorKind::Exists);
    assert_kind(root.clone_tree("/t/f", "/v/"), FsErrorKind::NotFound);
    root.chown_tree("/u", OwnerChange { uid: Some(7), gid: Some(7) }).unwrap();
    assert_eq!(stat(&root, "/u/a/b/c/f").unwrap().uid, 7);
    seven.clone_tree("/u", "/mine").unwrap();
    let keep = ModeChange {
        keep_directories: !0o077,
        add_directories: 0,
        keep_files: !0o077,
        add_files: 0,
        add_executables: 0,
    };
    seven.chmod_tree("/mine", keep).unwrap();
    assert_eq!(stat(&seven, "/mine/a/b/c/f").unwrap().mode, 0o600);
    assert_kind(seven.chmod_tree("/t", keep), FsErrorKind::Permission);
    seven.remove_tree("/mine").unwrap();
    assert_kind(seven.remove_tree("/mine"), FsErrorKind::NotFound);
    assert_kind(root.remove_tree("/t/f"), FsErrorKind::NotDirectory);
    bench.fs.snapshot("s", false).unwrap();
    assert_kind(root.remove_tree("/.snapshots/s/t"), FsErrorKind::ReadOnly);
    assert_kind(root.clone_tree("/.snapshots/s/t", "/back"), FsErrorKind::CrossesVolumes);
    // A directory without permission to write.
    root.chmod("/u", 0o555, Links::Follow).unwrap();
    assert_kind(seven.remove_tree("/u/a"), FsErrorKind::AccessDenied);
    bench.check(0);
}

#[test]
fn many_files_are_as_each() {
    let (bench, root, seven) = tree();
    root.symlink(b"a/b", "/t/link").unwrap();
    root.symlink(b"nowhere", "/t/a/dangling").unwrap();
    root.chmod("/t/a/b/c", 0o700, Links::Follow).unwrap();
    bench.fs.snapshot("s", false).unwrap();
    let paths = [
        "/t/a/z",
        "/t/f",
        "t/a/b/c/f",
        "/t/a/b/../f",
        "/t/link/f",
        "/t/link",
        "/t/a/dangling",
        "/t/a/none",
        "/t/a/f",
        "/t/a/f/",
        "",
        "/",
        "/t/a/b/f",
        "/t/a//b/./f",
        "/.snapshots/s/t/f",
        "/t/f/x",
        "/.snapshots",
        "/t/a/z",
        "..",
        "/t/a\0/f",
    ];
    let asked: Vec<At<'_>> = paths.iter().map(At::from).collect();
    for caller in [&root, &seven] {
        for links in [Links::Follow, Links::Stay] {
            let many = caller.stat_many(&asked, links);
            assert_eq!(many.len(), paths.len());
            for (path, many) in paths.iter().zip(many) {
                match (caller.stat(path, links), many) {
                    (Ok(one), Ok(many)) => assert_eq!(one, many, "{path}"),
                    (Err(one), Err(many)) => assert_eq!(one.kind(), many.kind(), "{path}"),
                    (one, many) => panic!("{path}: {one:?}, {many:?}"),
                }
            }
        }
        let requests: Vec<_> = asked.iter().map(|at| ReadRequest { at: *at, range: None }).collect();
        let mut given = vec![0; paths.len()];
        caller.read_many(&requests, &mut |at, many| {
            given[at] += 1;
            match (caller.read(paths[at]), many) {
                (Ok(one), Ok(many)) => assert_eq!(one, many, "{}", paths[at]),
                (Err(one), Err(many)) => assert_eq!(one.kind(), many.kind(), "{}", paths[at]),
                (one, many) => panic!("{}: {one:?}, {many:?}", paths[at]),
            }
            true
        });
        assert_eq!(given, vec![1; paths.len()]);
        // In any order, and however the store caches, it is the same.
        let order: Vec<usize> = (0..paths.len()).rev().collect();
        for caching in [Caching::Keep, Caching::ReadAhead, Caching::Keep] {
            caller.read_in_order(&requests, &order, caching, &mut |at, many| {
                given[at] += 1;
                assert_eq!(many.ok().map(<[u8]>::to_vec), caller.read(paths[at]).ok(), "{}", paths[at]);
                true
            });
        }
        assert_eq!(given, vec![4; paths.len()]);
    }
    let part = |range| [ReadRequest { at: At::from("/t/f"), range: Some(range) }];
    let read = |range, expected: &[u8]| {
        root.read_many(&part(range), &mut |_, read| {
            assert_eq!(read.unwrap(), expected);
            true
        });
    };
    read(1..3, b"t/");
    read(2..u64::MAX, b"/f");
    read(9..u64::MAX, b"");
    root.truncate("/t/f", 1 << 40).unwrap();
    root.read_many(&part(0..u64::MAX), &mut |_, read| {
        assert_kind(read.map(drop), FsErrorKind::TooBig);
        true
    });
    let mut count = 0;
    root.read_many(&[part(0..1), part(0..1)].concat(), &mut |_, _| {
        count += 1;
        false
    });
    assert_eq!(count, 1);
}

/// What another caller does to a directory while many files are read holds for the next file, too.
#[test]
fn directories_that_change_while_many_files_are_read() {
    type Change = fn(&PathCaller);
    let changes: [(Change, FsErrorKind); 4] = [
        (|root| root.chmod("/t/a/b", 0o700, Links::Stay).unwrap(), FsErrorKind::AccessDenied),
        (|root| root.chmod("/t", 0o700, Links::Stay).unwrap(), FsErrorKind::AccessDenied),
        (|root| root.rename("/t/a/b", "/t/b", RenameHow::Replace).unwrap(), FsErrorKind::NotFound),
        (|root| root.rename("/t/a", "/t/c", RenameHow::Replace).unwrap(), FsErrorKind::NotFound),
    ];
    for (change, expected) in changes {
        let (_bench, root, seven) = tree();
        write(&root, "/t/a/b/g", b"g");
        let requests = ["/t/a/b/f", "/t/a/b/g"].map(|path| ReadRequest { at: path.into(), range: None });
        let mut results = Vec::new();
        seven.read_in_order(&requests, &[0, 1], Caching::Keep, &mut |at, read| {
            results.push(read.map(drop).map_err(|error| error.kind()));
            if at == 0 {
                change(&root);
            }
            true
        });
        assert_eq!(results, [Ok(()), Err(expected)]);
    }
}

/// Reading many files sets the times of their last read, also where one of them is read twice.
#[test]
fn many_reads_set_the_times_of_the_last_read() {
    let (_bench, _paths, root, _) = bench();
    make(&root, "/a");
    let mut paths: Vec<String> = (0..150).map(|n| format!("/a/{n}")).collect();
    for path in &paths {
        write(&root, path, b"x");
        root.set_times(path, (Some(SetTime::At(5)), Some(SetTime::At(6))), Links::Follow).unwrap();
    }
    paths.extend(["/a/3", "/a/149", "/a/149"].map(str::to_owned));
    let requests: Vec<_> = paths.iter().map(|path| ReadRequest { at: path.into(), range: None }).collect();
    let mut count = 0;
    root.read_many(&requests, &mut |_, data| {
        assert_eq!(data.unwrap(), b"x");
        count += 1;
        true
    });
    assert_eq!(count, paths.len());
    for path in &paths {
        assert!(stat(&root, path).unwrap().atime > 6, "{path}");
    }
}

/// Files of one directory share its look-up.
#[test]
fn many_files_of_a_directory_cost_a_look_up_each() {
    let (bench, _paths, root, seven) = bench();
    make(&root, "/a/b/c");
    let paths: Vec<String> = (0..100).map(|n| format!("/a/b/c/{n}")).collect();
    paths.iter().for_each(|path| root.mknod(path, NewNode::Regular, 0o644).unwrap());
    let asked = || {
        let s = bench.fs.statistics();
        s.lookup_hits + s.lookup_misses
    };
    let before = asked();
    let all: Vec<At<'_>> = paths.iter().map(At::from).collect();
    assert!(seven.stat_many(&all, Links::Follow).iter().all(Result::is_ok));
    assert!(asked() - before <= 103, "{}", asked() - before);
    let node = bench.fs.lookup(NodeId::ROOT, b"a").unwrap().node;
    bench.fs.chown_tree(node, OwnerChange { uid: Some(9), gid: None }, &Caller::default()).unwrap();
    assert!(seven.stat_many(&all, Links::Follow).into_iter().all(|attr| attr.unwrap().uid == 9));
}
