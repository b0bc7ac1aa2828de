//! Snapshots of directories.

use crate::Bench;
use espalier_fs::{
    Caller, FileKind, FileSystem, FsErrorKind, NodeId, OpenOptions, RenameMode, SetAttr, SnapshotInfo,
    Waiter, XattrMode,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

/// What a path has: number, mode, owner, names, size, times, content (of a link its target).
type Facts = (u64, u32, u32, u32, u64, [i64; 2], Vec<u8>);

/// Everything below a directory, by path.
fn all(fs: &FileSystem, top: NodeId) -> BTreeMap<String, Facts> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(String::new(), top)];
    while let Some((path, dir)) = todo.pop() {
        let mut names = Vec::new();
        fs.readdir(dir, 0, &mut |entry| {
            names.push(String::from_utf8_lossy(entry.name).into_owned());
            true
        })
        .expect("readdir");
        for name in names.into_iter().filter(|name| name != "." && name != "..") {
            let entry = fs.lookup(dir, name.as_bytes()).expect("lookup");
            let path = format!("{path}/{name}");
            let attr = entry.attr;
            let mut data = vec![0; attr.size as usize];
            match attr.kind {
                FileKind::Regular => {
                    assert_eq!(fs.read(entry.node, 0, &mut data).expect("read"), data.len());
                }
                FileKind::Directory => todo.push((path.clone(), entry.node)),
                _ => data = fs.readlink(entry.node).expect("readlink"),
            }
            let size = if attr.kind == FileKind::Directory { 0 } else { attr.size };
            let facts = (attr.ino, attr.mode, attr.uid, attr.nlink, size, [attr.mtime, attr.ctime], data);
            found.insert(path, facts);
            if attr.kind != FileKind::Directory {
                fs.forget(entry.node, 1);
            }
        }
        if dir != top {
            fs.forget(dir, 1);
        }
    }
    found
}

/// The same without numbers.
fn content(fs: &FileSystem, top: NodeId) -> BTreeMap<String, Facts> {
    let mut all = all(fs, top);
    all.values_mut().for_each(|facts| facts.0 = 0);
    all
}

impl Bench {
    /// The snapshot mounted on its own.
    fn alone(&self, snapshot: &SnapshotInfo) -> Arc<FileSystem> {
        let read_only = !snapshot.writable;
        let options = OpenOptions { volume: snapshot.volume.clone(), read_only, ..OpenOptions::default() };
        FileSystem::open(self.store.clone(), self.env.clone(), options).expect("open")
    }

    #[track_caller]
    fn check_volume(&self, name: &str) {
        let report = espalier_fs::check(&self.store, name, &mut |_| {}).expect("the volume can be checked");
        assert_eq!(report.problems, vec![], "{name}");
    }

    #[track_caller]
    fn check_all(&self) {
        self.check_volume("main");
        for snapshot in self.fs.snapshots() {
            self.check_volume(&snapshot.volume);
        }
        let report = self.store.verify(&mut |_| ()).expect("the store can be verified");
        assert!(report.problems.is_empty(), "{:?}", report.problems.first());
    }

    fn snapshot(&self, dir: NodeId, name: &str, writable: bool) -> SnapshotInfo {
        self.fs.snapshot_tree(dir, name, writable, &ROOT).expect("snapshot");
        self.fs.snapshot_of(dir, name).expect("it is there")
    }

    /// /top/work/{a, sub/{b, many...}}, with links inside and across.
    fn work(&self, files: usize) -> NodeId {
        let top = self.dir(NodeId::ROOT, "top");
        let work = self.dir(top, "work");
        let sub = self.dir(work, "sub");
        let a = self.file(work, "a");
        self.fs.write(a, 0, &[1; 9000], false).expect("write");
        for n in 0..files {
            let file = self.file(sub, &format!("file{n:04}"));
            self.fs
                .write(file, 0, format!("content {n}").repeat(n % 7 + 1).as_bytes(), false)
                .expect("write");
            self.fs.forget(file, 1);
        }
        let big = self.file(sub, "big");
        let mut random = 1u64;
        for block in 0..600u64 {
            // Nothing that can be compressed.
            let data: Vec<u8> = (0..512)
                .flat_map(|_| {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    (random ^ random >> 32).to_le_bytes()
                })
                .collect();
            self.fs.write(big, block * 4096, &data, false).expect("write");
        }
        self.fs.setxattr(work, b"user.large", &[7; 5000], XattrMode::Set, false).expect("setxattr");
        let link = self.fs.symlink(work, b"link", b"sub/file0000", &ROOT).expect("symlink").node;
        [a, sub, big, link].into_iter().for_each(|node| self.fs.forget(node, 1));
        work
    }

    fn links(&self, work: NodeId) {
        let a = self.fs.lookup(work, b"a").expect("lookup").node;
        let sub = self.fs.lookup(work, b"sub").expect("lookup").node;
        self.fs.link(a, sub, b"second").expect("link");
        self.fs.link(a, NodeId::ROOT, b"outside").expect("link");
        let other = self.file(NodeId::ROOT, "other");
        self.fs.link(other, NodeId::ROOT, b"other2").expect("link");
        self.fs.forget(other, 1);
    }
}

#[test]
fn a_snapshot_of_a_directory_is_a_volume_with_its_numbers() {
    for (files, links) in [(3, false), (300, false), (3, true), (300, true)] {
        let bench = Bench::new(0);
        let work = bench.work(files);
        if links {
            bench.links(work);
        }
        let mut before = all(&bench.fs, work);
        let attr = bench.fs.getattr(work).expect("attributes");
        let snapshot = bench.snapshot(work, "then", false);
        assert_eq!(snapshot.directory, Some(attr.ino));
        bench.check_all();
        let error = bench.fs.snapshot_tree(work, "then", true, &ROOT).expect_err("there is one");
        assert_eq!(error.kind(), FsErrorKind::Exists);
        // What happens afterwards is not in it.
        let a = bench.fs.lookup(work, b"a").expect("lookup").node;
        bench.fs.write(a, 0, b"changed", false).expect("write");
        bench.fs.unlink(work, b"link").expect("unlink");
        let fs = bench.alone(&snapshot);
        if links {
            // The name outside does not count.
            for name in ["/a", "/sub/second"] {
                before.get_mut(name).expect("it was there").3 = 2;
            }
        }
        assert_eq!(all(&fs, NodeId::ROOT), before);
        let root = fs.getattr(NodeId::ROOT).expect("attributes");
        assert_eq!((root.ino, root.mode, root.mtime), (attr.ino, attr.mode, attr.mtime));
        assert_eq!(fs.getxattr(NodeId::ROOT, b"user.large").expect("getxattr"), [7; 5000]);
        // Looked into beside the live tree its numbers are others.
        let beside = bench.fs.open_snapshot(&snapshot, 1 << 20).expect("open");
        assert_ne!(beside.getattr(NodeId::ROOT).expect("attributes").ino, attr.ino);
        drop((fs, beside));
        bench.fs.syncfs().expect("sync");
        let bench = bench.crash();
        let again = bench.fs.snapshots();
        assert_eq!(again, std::slice::from_ref(&snapshot));
        assert_eq!(all(&bench.alone(&snapshot), NodeId::ROOT), before);
        bench.check_all();
    }
}

#[test]
fn a_writable_snapshot_is_a_file_system_of_its_own() {
    let bench = Bench::new(0);
    let work = bench.work(50);
    bench.links(work);
    let before = all(&bench.fs, work);
    let snapshot = bench.snapshot(work, "mine", true);
    let fs = bench.alone(&snapshot);
    let sub = fs.lookup(NodeId::ROOT, b"sub").expect("lookup").node;
    let new = fs.mknod(sub, b"new", espalier_fs::NewNode::Regular, 0o600, &ROOT).expect("mknod");
    assert!(before.values().all(|facts| facts.0 != new.attr.ino));
    let a = fs.lookup(NodeId::ROOT, b"a").expect("lookup").node;
    fs.write(a, 0, b"mine", false).expect("write");
    fs.link(a, NodeId::ROOT, b"third").expect("link");
    assert_eq!(fs.getattr(a).expect("attributes").nlink, 3);
    fs.background_tick().expect("settles");
    fs.syncfs().expect("sync");
    drop(fs);
    assert_eq!(all(&bench.fs, work), before);
    bench.check_all();
    // The changed one can be put back too.
    let changed = content(&bench.alone(&snapshot), NodeId::ROOT);
    let top = bench.fs.lookup(NodeId::ROOT, b"top").expect("lookup").node;
    let restored = bench.fs.restore_tree(top, b"work", "mine", &ROOT).expect("restore").node;
    assert_eq!(content(&bench.fs, restored), changed);
    bench.fs.forget(work, 1);
    bench.fs.background_tick().expect("settles");
    bench.check_all();
}

#[test]
fn a_restored_directory_is_what_it_was() {
    for (files, links) in [(3, false), (300, false), (300, true)] {
        let bench = Bench::new(0);
        let work = bench.work(files);
        if links {
            bench.links(work);
        }
        let ino = bench.fs.getattr(work).expect("attributes").ino;
        let mut before = content(&bench.fs, work);
        if links {
            for name in ["/a", "/sub/second"] {
                before.get_mut(name).expect("it was there").3 = 2;
            }
        }
        bench.snapshot(work, "then", false);
        let sub = bench.fs.lookup(work, b"sub").expect("lookup").node;
        let top = bench.fs.lookup(NodeId::ROOT, b"top").expect("lookup").node;
        bench.fs.rename(sub, b"big", NodeId::ROOT, b"moved", RenameMode::Replace).expect("rename");
        bench.fs.rename(top, b"work", NodeId::ROOT, b"elsewhere", RenameMode::Replace).expect("rename");
        let used = bench.file(work, "used");
        bench.fs.write(used, 0, b"in use", false).expect("write");
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
        bench.fs.setattr(work, &set).expect("setattr");
        // It moved: its snapshots moved along.
        let entry = bench.fs.restore_tree(NodeId::ROOT, b"elsewhere", "then", &ROOT).expect("restore");
        assert_eq!((entry.attr.ino, entry.attr.mode & 0o777), (ino, 0o755));
        assert_eq!(content(&bench.fs, entry.node), before);
        assert_eq!(bench.fs.getxattr(entry.node, b"user.large").expect("getxattr"), [7; 5000]);
        // No number is there twice, though a file was moved away.
        let numbers: Vec<u64> = all(&bench.fs, NodeId::ROOT).values().map(|facts| facts.0).collect();
        let moved = bench.fs.lookup(NodeId::ROOT, b"moved").expect("lookup").attr.ino;
        assert_eq!(numbers.iter().filter(|number| **number == moved).count(), 1);
        // What is in use stays, and goes when it is given up.
        assert_eq!(bench.read(used), b"in use");
        let gone = bench.fs.lookup(work, b"a").expect_err("the old directory is empty");
        assert_eq!(gone.kind(), FsErrorKind::NotFound);
        for node in [used, sub, work] {
            bench.fs.forget(node, 3);
        }
        bench.fs.background_tick().expect("settles");
        bench.check_all();
        let after = all(&bench.fs, entry.node);
        bench.fs.syncfs().expect("sync");
        let bench = bench.crash();
        let work = bench.fs.lookup(NodeId::ROOT, b"elsewhere").expect("lookup").node;
        assert_eq!(all(&bench.fs, work), after);
        assert_eq!(bench.fs.snapshots_of(work).expect("snapshots").len(), 1);
        bench.check(0);
    }
}

#[test]
fn deleting_a_snapshot_gives_its_space_back_and_no_other() {
    let bench = Bench::new(0);
    let work = bench.work(200);
    let free = |bench: &Bench| {
        for _ in 0..4 {
            while bench.store.step().expect("step") {}
            bench.store.checkpoint().expect("checkpoint");
        }
        bench.fs.statfs().expect("statfs").free * 4096
    };
    let before = free(&bench);
    let snapshot = bench.snapshot(work, "then", false);
    let with = free(&bench);
    assert!(before - with < 256 << 10, "a snapshot took {} KiB", (before - with) >> 10);
    let top = bench.fs.lookup(NodeId::ROOT, b"top").expect("lookup").node;
    // What is beside the directory is not kept by it.
    let beside = bench.file(top, "beside");
    bench.fs.write(beside, 0, &[9; 1 << 20], false).expect("write");
    bench.fs.unlink(top, b"beside").expect("unlink");
    bench.fs.forget(beside, 1);
    bench.fs.forget(work, 1);
    bench.fs.remove_tree(top, b"work", &ROOT).expect("remove");
    let kept = free(&bench);
    // Without a directory of that number it is named with it.
    let name = format!("{}/then", snapshot.directory.expect("it is of a directory"));
    assert_eq!(bench.alone(&snapshot).statfs().expect("statfs").free * 4096, kept);
    bench.fs.snapshot_tree_delete(top, &name, &ROOT).expect("delete");
    let after = free(&bench);
    assert!(after > kept + (2 << 20), "{kept} {after}");
    assert!(bench.fs.snapshots().is_empty());
    bench.check_all();
}

#[test]
fn others_make_and_restore_what_is_all_their_own() {
    let bench = Bench::new(0);
    let user = Caller { uid: 7, gid: 7, pid: 0, umask: 0 };
    let home = bench.fs.mkdir(NodeId::ROOT, b"home", 0o755, &user).expect("mkdir").node;
    let dir = bench.fs.mkdir(home, b"dir", 0o755, &user).expect("mkdir").node;
    bench.fs.snapshot_tree(dir, "mine", false, &user).expect("all is the user's");
    let file = bench.file(dir, "foreign");
    bench.fs.forget(file, 1);
    let refused = bench.fs.snapshot_tree(dir, "more", false, &user).expect_err("a file is root's");
    assert_eq!(refused.kind(), FsErrorKind::Permission);
    bench.snapshot(dir, "with", false);
    let refused =
        bench.fs.restore_tree(home, b"dir", "mine", &user).expect_err("it would remove root's file");
    assert_eq!(refused.kind(), FsErrorKind::Permission);
    bench.fs.unlink(dir, b"foreign").expect("unlink");
    let refused = bench.fs.restore_tree(home, b"dir", "with", &user).expect_err("it would make root's file");
    assert_eq!(refused.kind(), FsErrorKind::Permission);
    bench.fs.restore_tree(home, b"dir", "mine", &user).expect("all is the user's");
    let dir = bench.fs.lookup(home, b"dir").expect("lookup").node;
    let other = Caller { uid: 8, ..user };
    let refused = bench.fs.snapshot_tree_delete(dir, "mine", &other).expect_err("another user owns it");
    assert_eq!(refused.kind(), FsErrorKind::Permission);
    bench.fs.snapshot_tree_delete(dir, "mine", &user).expect("delete");
    bench.check_all();
}

/// A caller that waits, or has given up.
struct TestCaller(AtomicBool);

impl Waiter for TestCaller {
    fn waits(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn stays(&self) -> bool {
        self.waits()
    }
}

#[test]
fn snapshots_that_nobody_wants_any_more_are_neither_made_nor_deleted() {
    let waiter = Arc::new(TestCaller(AtomicBool::new(true)));
    let bench = Bench::with(0, OpenOptions { waiter: Some(waiter.clone()), ..Default::default() });
    let dir = bench.dir(NodeId::ROOT, "dir");
    bench.file(dir, "file");
    bench.fs.snapshot("whole", false).expect("snapshot");
    bench.fs.snapshot_tree(dir, "part", false, &ROOT).expect("snapshot");
    let names = || bench.fs.snapshots().into_iter().map(|snapshot| snapshot.name).collect::<Vec<_>>();
    let before = (names(), all(&bench.fs, NodeId::ROOT));
    waiter.0.store(false, Ordering::Relaxed);
    let given_up = |result: espalier_fs::Result<()>| {
        assert_eq!(result.map_err(|error| error.kind()), Err(FsErrorKind::Interrupted));
    };
    given_up(bench.fs.snapshot("late", false));
    given_up(bench.fs.snapshot_tree(dir, "late", false, &ROOT));
    given_up(bench.fs.snapshot_delete("whole"));
    given_up(bench.fs.snapshot_tree_delete(dir, "part", &ROOT).map(drop));
    given_up(bench.fs.restore_tree(NodeId::ROOT, b"dir", "part", &ROOT).map(drop));
    waiter.0.store(true, Ordering::Relaxed);
    assert_eq!((names(), all(&bench.fs, NodeId::ROOT)), before);
    bench.fs.snapshot_delete("whole").expect("delete");
    bench.check(0);
}
