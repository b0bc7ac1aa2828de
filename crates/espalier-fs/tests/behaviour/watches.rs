//! Waits for changes of a directory: none is left alone with what it waits for.

use crate::paths::bench;
use espalier_fs::{ChangeWaiter, FsErrorKind, PathCaller, RenameHow};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

const ROUNDS: usize = 1000;

#[derive(Default)]
struct Waiter(AtomicBool);

impl ChangeWaiter for Waiter {
    fn wake(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_directory_that_moves_away_ends_a_wait_that_just_begins() {
    let (bench, _paths, root, _) = bench();
    root.mkdir("/d", 0o755).unwrap();
    // One with no keys of its own, and one with some.
    moves_end_waits(&root);
    root.mkdir("/d/below", 0o755).unwrap();
    moves_end_waits(&root);
    bench.check(0);
}

/// Has `/d` move away at another instant of a call that begins to wait each time.
fn moves_end_waits(root: &PathCaller) {
    let (begin, end) = (Barrier::new(2), Barrier::new(2));
    // A round that fails is told at the end, so that the other thread ends.
    let mut left_alone = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                begin.wait();
                (0..round % 64 * 20).for_each(|_| std::hint::spin_loop());
                root.rename("/d", "/e", RenameHow::Replace).unwrap();
                end.wait();
            }
        });
        for round in 0..ROUNDS {
            let exact = root.changed_paths("/d", b"").unwrap().exact;
            let waiter = Arc::new(Waiter::default());
            let woken: Arc<dyn ChangeWaiter> = waiter.clone();
            begin.wait();
            let changed = root.changed_paths_or_wait("/d", exact.as_bytes(), &woken);
            end.wait();
            let is_told = changed.as_ref().is_ok_and(|it| it.everything || !it.paths.is_empty());
            let is_gone = changed.is_err_and(|error| error.kind() == FsErrorKind::NotFound);
            if !is_told && !is_gone && !waiter.0.load(Ordering::SeqCst) {
                left_alone.push(round);
            }
            root.rename("/e", "/d", RenameHow::Replace).unwrap();
        }
    });
    assert_eq!(left_alone, [0; 0], "rounds with no answer and no wake");
}

#[test]
fn an_empty_directory_that_goes_ends_a_wait() {
    let (bench, _paths, root, _) = bench();
    let goes: [&dyn Fn(); 3] =
        [&|| root.rmdir("/d").unwrap(), &|| root.rename("/d", "/e", RenameHow::Replace).unwrap(), &|| {
            root.rename("/d", "/f", RenameHow::Exchange).unwrap()
        }];
    root.mkdir("/f", 0o755).unwrap();
    for go in goes {
        root.mkdir("/d", 0o755).unwrap();
        let exact = root.changed_paths("/d", b"").unwrap().exact;
        let waiter = Arc::new(Waiter::default());
        let woken: Arc<dyn ChangeWaiter> = waiter.clone();
        let changed = root.changed_paths_or_wait("/d", exact.as_bytes(), &woken).unwrap();
        assert!(!changed.everything && changed.paths.is_empty());
        go();
        assert!(waiter.0.load(Ordering::SeqCst), "it is woken");
    }
    bench.check(0);
}

#[test]
fn changes_are_told_by_path_as_by_node() {
    let (bench, _paths, root, seven) = bench();
    root.mkdir("/d", 0o700).unwrap();
    let exact = root.changed_paths("/d", b"").unwrap().exact;
    root.mkdir("/d/new", 0o755).unwrap();
    let waiter: Arc<dyn ChangeWaiter> = Arc::new(Waiter::default());
    for changed in [
        root.changed_paths("/d", exact.as_bytes()),
        root.changed_paths_or_wait("/d", exact.as_bytes(), &waiter),
    ] {
        assert_eq!(changed.unwrap().paths, [b"new"]);
    }
    assert_eq!(seven.changed_paths("/d", b"").unwrap_err().kind(), FsErrorKind::Permission);
    assert_eq!(root.changed_paths("/none", b"").unwrap_err().kind(), FsErrorKind::NotFound);
    bench.check(0);
}
