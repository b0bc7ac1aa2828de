//! Many threads at once: readers never see a file half moved, and what is left is sound.

use crate::Bench;
use espalier_fs::{Caller, FsErrorKind, NewNode, NodeId, RenameMode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const ROUNDS: usize = 300;

#[test]
fn files_stay_readable_while_they_and_their_directories_move() {
    let bench = Bench::new(2);
    let (a, b) = (bench.dir(NodeId::ROOT, "a"), bench.dir(NodeId::ROOT, "b"));
    let sub = bench.dir(a, "sub");
    let content: Vec<u8> = (0..30_000u32).map(|i| (i % 251) as u8).collect();
    let files: Vec<NodeId> = (0..4)
        .map(|i| {
            let file = bench.file(sub, &format!("file{i}"));
            bench.fs.write(file, 0, &content, false).expect("write");
            file
        })
        .collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for file in &files {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    assert!(bench.read(*file) == content, "a moving file reads as something else");
                }
            });
        }
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                for (parent, name) in [(NodeId::ROOT, b"a"), (NodeId::ROOT, b"b")] {
                    let entry = bench.fs.lookup(parent, name).expect("it does not move");
                    bench.fs.readdirplus(entry.node, 0, &mut |e| e.entry.is_none()).expect("list");
                    bench.fs.forget(entry.node, 1);
                }
            }
        });
        for round in 0..ROUNDS {
            let (from, to) = if round % 2 == 0 { (a, b) } else { (b, a) };
            bench.fs.rename(from, b"sub", to, b"sub", RenameMode::Replace).expect("rename of the directory");
            bench.fs.rename(sub, b"file0", to, b"out", RenameMode::NoReplace).expect("rename out");
            bench.fs.rename(to, b"out", sub, b"file0", RenameMode::NoReplace).expect("rename in");
            bench.fs.rename(sub, b"file1", sub, b"file2", RenameMode::Exchange).expect("exchange");
            let linked = bench.fs.link(files[3], to, b"link").expect("link").node;
            assert_eq!(linked, files[3]);
            bench.fs.forget(linked, 1);
            bench.fs.unlink(to, b"link").expect("unlink");
        }
        done.store(true, Ordering::SeqCst);
    });
    bench.check(0);
}

#[test]
fn operations_on_the_same_names_exclude_each_other() {
    let bench = Bench::new(2);
    let dirs = [bench.dir(NodeId::ROOT, "x"), bench.dir(NodeId::ROOT, "y")];
    thread::scope(|scope| {
        for t in 0..4u64 {
            let bench = &bench;
            scope.spawn(move || {
                let mut seed = t;
                let mut next = |n: u64| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (seed >> 33) % n
                };
                let caller = Caller::default();
                for _ in 0..ROUNDS * 4 {
                    let (dir, other) = (dirs[next(2) as usize], dirs[next(2) as usize]);
                    let (name, new) = ([b'a' + next(3) as u8], [b'a' + next(3) as u8]);
                    let result = match next(7) {
                        0 => bench.fs.mknod(dir, &name, NewNode::Regular, 0o644, &caller).map(Some),
                        1 => bench.fs.mkdir(dir, &name, 0o755, &caller).map(Some),
                        2 => bench.fs.unlink(dir, &name).map(|()| None),
                        3 => bench.fs.rmdir(dir, &name).map(|()| None),
                        4 => bench.fs.rename(dir, &name, other, &new, RenameMode::Replace).map(|()| None),
                        5 => bench.fs.lookup(dir, &name).and_then(|entry| {
                            let result = bench.fs.link(entry.node, other, &new);
                            bench.fs.forget(entry.node, 1);
                            result.map(Some)
                        }),
                        _ => bench.fs.lookup(dir, &name).map(|entry| {
                            let written = bench.fs.write(entry.node, 0, &[t as u8; 5000], false);
                            let _ = written.map_err(|e| assert_ne!(e.kind(), FsErrorKind::Io, "{e}"));
                            Some(entry)
                        }),
                    };
                    match result {
                        Ok(Some(entry)) => bench.fs.forget(entry.node, 1),
                        Ok(None) => {}
                        Err(error) => assert!(
                            !matches!(error.kind(), FsErrorKind::Io | FsErrorKind::Stale),
                            "{error}: {:?}",
                            error.kind()
                        ),
                    }
                }
            });
        }
    });
    let statistics = bench.fs.statistics();
    assert_eq!((statistics.nodes, statistics.orphans), (5, 0), "{statistics:?}");
    bench.check(0);
}
