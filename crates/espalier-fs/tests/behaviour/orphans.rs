//! Files without a name live as long as they have references, and no longer.

use crate::Bench;
use espalier_fs::{Caller, FileKind, FsErrorKind, NodeId, RenameMode, XattrMode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

fn text(n: u8) -> Vec<u8> {
    vec![n; 10_000]
}

#[test]
fn unlinked_files_can_be_read_and_written_until_forgotten() {
    let bench = Bench::new(0);
    let file = bench.file(NodeId::ROOT, "file");
    bench.fs.write(file, 0, &text(1), false).expect("write");
    bench.fs.unlink(NodeId::ROOT, b"file").expect("unlink");
    assert_eq!(bench.read(file), text(1));
    bench.fs.write(file, 5000, b"changed", false).expect("write");
    assert_eq!(&bench.read(file)[4999..5008], b"\x01changed\x01");
    assert_eq!(bench.fs.getattr(file).expect("attributes").nlink, 0);
    assert_eq!(bench.fs.link(file, NodeId::ROOT, b"again").map_err(|e| e.kind()), Err(FsErrorKind::NotFound));
    bench.check(1);
    bench.fs.forget(file, 1);
    bench.check(0);
    assert_eq!(bench.fs.getattr(file).map_err(|e| e.kind()), Err(FsErrorKind::Stale));
}

#[test]
fn new_files_at_the_same_place_are_others() {
    let bench = Bench::new(0);
    let dir = bench.dir(NodeId::ROOT, "dir");
    let mut old = Vec::new();
    for n in 0..5 {
        let file = bench.file(dir, "file");
        assert_eq!(bench.read(file), b"");
        bench.fs.write(file, 0, &text(n), false).expect("write");
        old.push(file);
        match n {
            0 | 1 => bench.fs.unlink(dir, b"file").expect("unlink"),
            2 | 3 => {
                let other = bench.file(dir, "other");
                bench.fs.write(other, 0, &text(100 + n), false).expect("write");
                bench.fs.rename(dir, b"other", dir, b"file", RenameMode::Replace).expect("rename");
                assert_eq!(bench.read(other), text(100 + n));
                bench.fs.unlink(dir, b"file").expect("unlink");
                bench.fs.forget(other, 1);
            }
            _ => bench
                .fs
                .rename(dir, b"file", NodeId::ROOT, b"elsewhere", RenameMode::Replace)
                .expect("rename"),
        }
    }
    bench.fs.rmdir(NodeId::ROOT, b"dir").expect("it is empty");
    let again = bench.dir(NodeId::ROOT, "dir");
    let file = bench.file(again, "file");
    bench.fs.write(file, 0, b"new", false).expect("write");
    for (n, file) in old.iter().enumerate() {
        assert_eq!(bench.read(*file), text(n as u8), "file {n}");
    }
    bench.check(4);
    old.iter().for_each(|file| bench.fs.forget(*file, 1));
    assert_eq!(bench.read(file), b"new");
    bench.check(0);
}

#[test]
fn moving_a_directory_leaves_what_was_removed_from_it() {
    let bench = Bench::new(0);
    let dir = bench.dir(NodeId::ROOT, "dir");
    let file = bench.file(dir, "file");
    bench.fs.write(file, 0, &text(1), false).expect("write");
    bench.fs.unlink(dir, b"file").expect("unlink");
    bench.fs.rename(NodeId::ROOT, b"dir", NodeId::ROOT, b"moved", RenameMode::Replace).expect("rename");
    assert_eq!(bench.read(file), text(1));
    assert_eq!(bench.read(bench.file(dir, "file")), b"");
    bench.check(1);
    bench.fs.forget(file, 1);
    bench.check(0);
}

#[test]
fn a_crash_removes_what_has_no_name() {
    let bench = Bench::new(0);
    for n in 0..20 {
        let name = format!("file{n}");
        let file = bench.file(NodeId::ROOT, &name);
        bench.fs.write(file, 0, &text(n), false).expect("write");
        if n % 2 == 0 {
            bench.fs.unlink(NodeId::ROOT, name.as_bytes()).expect("unlink");
            if n % 4 == 0 {
                // Its data has to make room.
                let new = bench.file(NodeId::ROOT, &name);
                bench.fs.write(new, 0, b"new", false).expect("write");
            }
        }
    }
    bench.check(10);
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    bench.check(0);
    for n in 0..20u8 {
        let found = bench.fs.lookup(NodeId::ROOT, format!("file{n}").as_bytes());
        match n % 4 {
            0 => assert_eq!(bench.read(found.expect("it was made again").node), b"new"),
            2 => assert_eq!(found.map_err(|e| e.kind()), Err(FsErrorKind::NotFound)),
            _ => assert_eq!(bench.read(found.expect("it was kept").node), text(n)),
        }
    }
}

#[test]
fn pending_forgets_are_asked_for_before_data_moves() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let drain: espalier_fs::ForgetDrain = Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    let bench = Bench::with(0, espalier_fs::OpenOptions { forget_drain: Some(drain), ..Default::default() });
    let dir = bench.dir(NodeId::ROOT, "dir");
    bench.dir(NodeId::ROOT, "other");
    let file = bench.file(dir, "file");
    bench.fs.write(file, 0, b"data", false).expect("write");
    bench.fs.unlink(dir, b"file").expect("unlink");
    bench.fs.rmdir(NodeId::ROOT, b"other").expect("rmdir");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    bench.fs.rmdir(NodeId::ROOT, b"dir").expect("rmdir");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    assert_eq!(bench.read(file), b"data");
}

/// As a mount has it: what the kernel forgets is removed with others.
fn mounted() -> Bench {
    let drain: espalier_fs::ForgetDrain = Arc::new(|| ());
    Bench::with(0, espalier_fs::OpenOptions { forget_drain: Some(drain), ..Default::default() })
}

/// Makes and unlinks files with data that have no references any more.
fn forgotten(bench: &Bench, dir: NodeId, count: u16) {
    for n in 0..count {
        let name = format!("file{n}");
        let file = bench.file(dir, &name);
        bench.fs.write(file, 0, &text(n as u8), false).expect("write");
        bench.fs.unlink(dir, name.as_bytes()).expect("unlink");
        bench.fs.forget(file, 1);
    }
}

#[test]
fn small_files_go_with_their_directory_or_the_next_sync() {
    let bench = mounted();
    let (dir, other) = (bench.dir(NodeId::ROOT, "dir"), bench.dir(NodeId::ROOT, "other"));
    forgotten(&bench, dir, 10);
    forgotten(&bench, other, 5);
    bench.check(15);
    let commits = bench.store.statistics().last_lsn;
    bench.fs.rmdir(NodeId::ROOT, b"dir").expect("rmdir");
    assert_eq!(bench.store.statistics().last_lsn, commits + 1, "all of it is one batch");
    bench.check(5);
    let again = bench.dir(NodeId::ROOT, "dir");
    let file = bench.file(again, "file3");
    assert_eq!(bench.read(file), b"");
    bench.fs.write(file, 0, b"new", false).expect("write");
    bench.fs.syncfs().expect("sync");
    bench.check(0);
    forgotten(&bench, other, 5);
    bench.fs.statfs().expect("statfs");
    bench.check(0);
    let bench = bench.crash();
    bench.check(0);
    let dir = bench.fs.lookup(NodeId::ROOT, b"dir").expect("lookup").node;
    assert_eq!(bench.read(bench.fs.lookup(dir, b"file3").expect("lookup").node), b"new");
}

#[test]
fn places_of_forgotten_files_are_free_for_others() {
    let bench = mounted();
    let dir = bench.dir(NodeId::ROOT, "dir");
    forgotten(&bench, dir, 10);
    let file = bench.file(dir, "file3");
    assert_eq!(bench.read(file), b"");
    bench.fs.write(file, 0, b"new", false).expect("write");
    bench.check(9);
    bench.fs.rename(NodeId::ROOT, b"dir", NodeId::ROOT, b"moved", RenameMode::Replace).expect("rename");
    bench.check(0);
    forgotten(&bench, dir, 3);
    bench.fs.remove_tree(NodeId::ROOT, b"moved", &Caller::default()).expect("remove");
    assert_eq!(bench.read(file), b"new");
    bench.fs.forget(file, 1);
    bench.fs.forget(dir, 1);
    bench.fs.syncfs().expect("sync");
    bench.check(0);
    // A crash finds what had not gone yet.
    forgotten(&bench, NodeId::ROOT, 3);
    bench.file(NodeId::ROOT, "last");
    bench.store.sync_all().expect("sync");
    bench.check(3);
    bench.crash().check(0);
}

#[test]
fn forgotten_files_stay_with_a_directory_that_stays() {
    struct Impatient(AtomicBool);
    impl espalier_fs::Waiter for Impatient {
        fn waits(&self) -> bool {
            !self.0.load(Ordering::SeqCst)
        }
        fn stays(&self) -> bool {
            self.waits()
        }
    }
    let impatient = Arc::new(Impatient(AtomicBool::new(false)));
    let drain: espalier_fs::ForgetDrain = Arc::new(|| ());
    let bench = Bench::with(
        0,
        espalier_fs::OpenOptions {
            forget_drain: Some(drain),
            waiter: Some(impatient.clone()),
            ..Default::default()
        },
    );
    let dir = bench.dir(NodeId::ROOT, "dir");
    forgotten(&bench, dir, 4);
    impatient.0.store(true, Ordering::SeqCst);
    let given_up = bench.fs.rmdir(NodeId::ROOT, b"dir").map_err(|e| e.kind());
    assert_eq!(given_up, Err(FsErrorKind::Interrupted));
    impatient.0.store(false, Ordering::SeqCst);
    bench.check(4);
    // Their places are still known.
    assert_eq!(bench.read(bench.file(dir, "file1")), b"");
    bench.check(3);
    bench.fs.unlink(dir, b"file1").expect("unlink");
    bench.fs.rmdir(NodeId::ROOT, b"dir").expect("rmdir");
    bench.check(0);
    assert_eq!(bench.fs.statistics().orphans, 0);
}

#[test]
fn who_finds_no_space_gets_that_of_forgotten_files() {
    let bench = mounted();
    assert!(!bench.fs.release_unlinked());
    let file = bench.fs.tmpfile(NodeId::ROOT, 0o600, &Caller::default()).expect("tmpfile").node;
    bench.fs.write(file, 0, &text(1), false).expect("write");
    bench.fs.forget(file, 1);
    bench.check(1);
    assert!(bench.fs.release_unlinked());
    bench.check(0);
    forgotten(&bench, NodeId::ROOT, 3);
    assert!(bench.fs.release_unlinked());
    bench.check(0);
}

#[test]
fn forgotten_files_that_are_many_or_large_do_not_wait() {
    let bench = mounted();
    forgotten(&bench, NodeId::ROOT, 1000);
    assert!(bench.fs.statistics().orphans < 256);
    bench.fs.syncfs().expect("sync");
    let file = bench.file(NodeId::ROOT, "large");
    bench.fs.write(file, 0, &[1; 100_000], false).expect("write");
    bench.fs.unlink(NodeId::ROOT, b"large").expect("unlink");
    bench.fs.forget(file, 1);
    bench.check(0);
}

#[test]
fn a_file_made_without_a_name_can_be_given_one() {
    let bench = Bench::new(0);
    let dir = bench.dir(NodeId::ROOT, "dir");
    let caller = Caller { uid: 5, gid: 6, umask: 0o022, ..Caller::default() };
    let made = bench.fs.tmpfile(dir, 0o666, &caller).expect("tmpfile");
    assert_eq!((made.attr.nlink, made.attr.mode, made.attr.uid), (0, 0o644, 5));
    let file = made.node;
    bench.fs.write(file, 0, &text(1), false).expect("write");
    bench.fs.setxattr(file, b"user.long", &[7; 5000], XattrMode::Set, false).expect("setxattr");
    bench.check(1);
    let named = bench.fs.link(file, dir, b"name").expect("link");
    assert_eq!((named.node, named.attr.ino, named.attr.nlink), (file, made.attr.ino, 1));
    bench.check(0);
    assert_eq!(bench.read(file), text(1));
    // The second name is one more link; when all are gone, no name comes back.
    bench.fs.link(file, NodeId::ROOT, b"second").expect("link");
    bench.fs.unlink(dir, b"name").expect("unlink");
    bench.fs.rmdir(NodeId::ROOT, b"dir").expect("rmdir");
    bench.fs.syncfs().expect("sync");
    let bench = bench.crash();
    bench.check(0);
    let found = bench.fs.lookup(NodeId::ROOT, b"second").expect("it was synced");
    assert_eq!((found.attr.ino, bench.read(found.node)), (made.attr.ino, text(1)));
    assert_eq!(bench.fs.getxattr(found.node, b"user.long").expect("xattr"), [7; 5000]);
    bench.fs.unlink(NodeId::ROOT, b"second").expect("unlink");
    let again = bench.fs.link(found.node, NodeId::ROOT, b"third");
    assert_eq!(again.map_err(|e| e.kind()), Err(FsErrorKind::NotFound));
}

#[test]
fn a_file_made_without_a_name_goes_with_its_last_reference_or_a_crash() {
    let bench = Bench::new(0);
    let kept = bench.fs.tmpfile(NodeId::ROOT, 0o600, &Caller::default()).expect("tmpfile").node;
    let empty = bench.fs.tmpfile(NodeId::ROOT, 0o600, &Caller::default()).expect("tmpfile").node;
    bench.fs.write(kept, 0, &text(1), false).expect("write");
    bench.fs.forget(empty, 1);
    bench.check(1);
    bench.fs.fsync(kept, false).expect("fsync");
    let bench = bench.crash();
    bench.check(0);
    let file = bench.fs.tmpfile(NodeId::ROOT, 0o600, &Caller::default()).expect("tmpfile").node;
    bench.fs.write(file, 0, &text(1), false).expect("write");
    bench.fs.forget(file, 1);
    bench.check(0);
}

#[test]
fn a_whiteout_is_left_where_the_entry_was() {
    let bench = Bench::new(0);
    let dir = bench.dir(NodeId::ROOT, "dir");
    let file = bench.file(dir, "file");
    bench.fs.write(file, 0, &text(1), false).expect("write");
    let mode = RenameMode::Whiteout { replace: false, uid: 3, gid: 4 };
    bench.fs.rename(dir, b"file", NodeId::ROOT, b"moved", mode).expect("rename");
    let left = bench.fs.lookup(dir, b"file").expect("something is left").attr;
    assert_eq!((left.kind, left.mode, left.rdev), (FileKind::CharDevice, 0, 0));
    assert_eq!((left.uid, left.gid), (3, 4));
    let other = bench.file(dir, "other");
    let refused = bench.fs.rename(dir, b"other", NodeId::ROOT, b"moved", mode);
    assert_eq!(refused.map_err(|e| e.kind()), Err(FsErrorKind::Exists));
    let mode = RenameMode::Whiteout { replace: true, uid: 0, gid: 0 };
    bench.fs.rename(dir, b"other", dir, b"file", mode).expect("rename over a whiteout");
    assert_eq!(bench.fs.lookup(dir, b"file").expect("moved").node, other);
    assert_eq!(bench.fs.getattr(dir).expect("attributes").size, 2);
    assert_eq!(bench.read(file), text(1));
    bench.check(0);
}

#[test]
fn names_in_removed_trees_are_told_as_long_as_they_are_in_use() {
    let bench = Bench::new(0);
    let top = bench.dir(NodeId::ROOT, "top");
    let dir = bench.dir(top, "dir");
    let file = bench.file(dir, "file");
    bench.file(NodeId::ROOT, "elsewhere");
    let told = || bench.fs.names_in_removed_trees(10);
    assert!(told().is_empty(), "nothing was removed");
    bench.fs.remove_tree(NodeId::ROOT, b"top", &Caller::default()).expect("remove");
    // What lies deeper first: then all that is above can be let go as well.
    let all = vec![(dir, Arc::from(&b"file"[..])), (top, Arc::from(&b"dir"[..]))];
    assert_eq!(told(), all);
    assert_eq!(bench.fs.names_in_removed_trees(1).len(), 1);
    bench.fs.forget(dir, 1);
    assert_eq!(told(), all, "the file keeps them");
    bench.fs.forget(file, 1);
    assert_eq!(told(), []);
    bench.check(1);
    bench.fs.forget(top, 1);
    assert!(told().is_empty());
    bench.check(0);
}
