//! Files without a name live as long as somebody holds them, and no longer.

use crate::Bench;
use espalier_fs::{FsErrorKind, NodeId, RenameMode};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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
