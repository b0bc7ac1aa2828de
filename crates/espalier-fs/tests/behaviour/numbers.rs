//! Inode numbers with 32 bits, for programs that take no others.

use super::Bench;
use espalier_fs::{Caller, FileSystem, FsErrorKind, NodeId, OpenOptions};
use std::collections::BTreeMap;

const NARROW: u64 = 1 << 32;

fn narrow() -> Bench {
    Bench::with(0, OpenOptions { narrow_numbers: true, ..Default::default() })
}

/// The numbers below the root by path, with those of one file under two names once.
fn numbers(bench: &Bench) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    let each = &mut |entry: espalier_fs::TreeEntry<'_>| {
        all.insert(String::from_utf8(entry.path.to_vec()).unwrap(), entry.attr.ino);
        true
    };
    bench.fs.list_tree(NodeId::ROOT, each).unwrap();
    all
}

#[track_caller]
fn assert_narrow_and_unique(bench: &Bench, orphans: u64) {
    let all = numbers(bench);
    let mut seen: BTreeMap<u64, &str> = BTreeMap::new();
    for (path, number) in &all {
        assert!(*number < NARROW, "{path}: {number:#x}");
        let other = seen.insert(*number, path);
        let is_link = |path: &str| path.ends_with("file") || path.ends_with("second");
        assert!(other.is_none_or(|other| is_link(other) && is_link(path)), "{path} and {other:?}");
    }
    bench.check(orphans);
}

#[test]
fn copies_have_narrow_numbers_of_their_own() {
    let bench = narrow();
    let caller = Caller::default();
    let a = bench.dir(NodeId::ROOT, "a");
    let inner = bench.dir(a, "inner");
    let file = bench.file(inner, "file");
    bench.fs.link(file, a, b"second").unwrap();
    bench.file(inner, "other");
    let copy = bench.fs.clone_tree(a, NodeId::ROOT, b"copy", &caller).unwrap().node;
    assert_narrow_and_unique(&bench, 0);
    // A copy of a copy in which files were made, within another.
    bench.file(copy, "new");
    let again = bench.fs.clone_tree(copy, inner, b"again", &caller).unwrap().node;
    bench.file(again, "newer");
    bench.fs.clone_tree(a, NodeId::ROOT, b"third", &caller).unwrap();
    assert_narrow_and_unique(&bench, 0);
    bench.fs.snapshot_tree(a, "before", false, &caller).unwrap();
    bench.file(a, "later");
    bench.fs.restore_tree(NodeId::ROOT, b"a", "before", &caller).unwrap();
    let restored = bench.fs.lookup(NodeId::ROOT, b"a").unwrap().node;
    bench.file(restored, "latest");
    // What the snapshot replaced is in use.
    assert_narrow_and_unique(&bench, 1);
}

impl Bench {
    /// Opened anew with these options.
    fn reopened(self, options: OpenOptions) -> Self {
        let Self { device, env, store, fs } = self;
        fs.syncfs().unwrap();
        drop(fs);
        let fs = FileSystem::open(store.clone(), env.clone(), options).unwrap();
        Self { device, env, store, fs }
    }
}

#[test]
fn a_copy_whose_numbers_are_too_far_apart_fails_and_changes_nothing() {
    let caller = Caller::default();
    let bench = Bench::new(0);
    let tree = bench.dir(NodeId::ROOT, "tree");
    let inner = bench.dir(tree, "inner");
    bench.file(inner, "file");
    // Two copies made without the option: one by itself, one beside its source.
    assert!(bench.fs.clone_tree(inner, NodeId::ROOT, b"alone", &caller).unwrap().attr.ino >= NARROW);
    assert!(bench.fs.clone_tree(inner, tree, b"beside", &caller).unwrap().attr.ino >= NARROW);
    let bench = bench.reopened(OpenOptions { narrow_numbers: true, ..Default::default() });
    let tree = bench.fs.lookup(NodeId::ROOT, b"tree").unwrap().node;
    let alone = bench.fs.lookup(NodeId::ROOT, b"alone").unwrap().node;
    let before = numbers(&bench);
    let error = bench.fs.clone_tree(tree, NodeId::ROOT, b"copy", &caller).expect_err("too far apart");
    assert_eq!(error.kind(), FsErrorKind::NoSpace, "{error}");
    assert_eq!(numbers(&bench), before);
    // The numbers of a tree by itself lie close together, wherever they are.
    let made = bench.fs.clone_tree(alone, NodeId::ROOT, b"copy", &caller).unwrap();
    assert!(made.attr.ino < NARROW);
    assert!(bench.fs.lookup(made.node, b"file").unwrap().attr.ino < NARROW);
    bench.check(0);
}
