//! What other callers do while a path is resolved.

use super::{BEFORE_UP, LOOKS_UP};
use crate::model::access::Credentials;
use crate::model::error::FsErrorKind;
use crate::path::caller::{Links, PathCaller, Paths};
use crate::path::changes::RenameHow;
use crate::{Caller, NewNode};

/// Callers whose roots are the volume's and `/jail`, which has `a/b`; outside is a file of which
/// the second one has no name.
fn callers() -> (PathCaller, PathCaller) {
    let (_, _, fs) = crate::test_support::empty();
    let all = Paths::new(fs).unwrap().caller(Credentials::default());
    for path in ["/jail", "/jail/a", "/jail/a/b", "/outside"] {
        all.mkdir(path, 0o755).unwrap();
    }
    all.mknod("/outside/secret", NewNode::Regular, 0o644).unwrap();
    let jailed = all.clone().in_root("/jail").unwrap();
    (all, jailed)
}

fn rename(caller: &PathCaller, old: &str, new: &str) {
    caller.rename(old, new, RenameHow::Replace).unwrap();
}

#[track_caller]
fn assert_leads_nowhere(caller: &PathCaller, path: &str) {
    let error = caller.stat(path, Links::Follow).unwrap_err();
    assert_eq!(error.kind(), FsErrorKind::NotFound, "{path}: {error}");
}

#[test]
fn what_is_moved_out_of_the_root_meanwhile_leads_nowhere() {
    for (moved, path) in [("a", "a/../secret"), ("a", "/a/.."), ("a", "a/b/../../secret"), ("a/b", "a/b/..")]
    {
        let (all, jailed) = callers();
        let from = format!("/jail/{moved}");
        BEFORE_UP.set(Some(Box::new(move || rename(&all, &from, "/outside/moved"))));
        assert_leads_nowhere(&jailed, path);
    }
    // What moves within the root leads where it is then.
    let (all, jailed) = callers();
    all.mkdir("/jail/other", 0o755).unwrap();
    let other = all.stat("/jail/other", Links::Follow).unwrap().ino;
    BEFORE_UP.set(Some(Box::new(move || rename(&all, "/jail/a", "/jail/other/a"))));
    assert_eq!(jailed.stat("a/..", Links::Follow).unwrap().ino, other);
}

#[test]
fn a_path_with_many_ways_up_is_looked_at_once_for_each_move() {
    let (all, jailed) = callers();
    let path = format!("a/b{}", "/../b".repeat(1000));
    let before = LOOKS_UP.get();
    jailed.stat(&*path, Links::Follow).unwrap();
    assert_eq!(LOOKS_UP.get() - before, 1);
    all.mkdir("/jail/c", 0o755).unwrap();
    BEFORE_UP.set(Some(Box::new(move || rename(&all, "/jail/c", "/jail/d"))));
    jailed.stat(&*format!("a/../{path}"), Links::Follow).unwrap();
    assert!(LOOKS_UP.get() - before <= 3);
}

#[test]
fn a_working_directory_that_left_the_root_has_nothing_above() {
    let (all, jailed) = callers();
    let inside = jailed.clone().in_directory("/a").unwrap();
    rename(&all, "/jail/a", "/outside/a");
    inside.stat("b", Links::Follow).unwrap();
    for path in ["..", "../secret", "b/..", "b/../.."] {
        assert_leads_nowhere(&inside, path);
    }
    rename(&all, "/outside/a", "/jail/a");
    let root = jailed.stat("/", Links::Follow).unwrap().ino;
    for path in ["..", "b/../..", "../.."] {
        assert_eq!(inside.stat(path, Links::Follow).unwrap().ino, root, "{path}");
    }
}

#[test]
fn snapshots_below_the_root_lead_back_to_it() {
    let (all, jailed) = callers();
    let directory = all.open("/jail/a", &Default::default()).unwrap();
    let fs = directory.place.fs();
    fs.snapshot_tree(directory.node().unwrap(), "s", false, &Caller::default()).unwrap();
    let ino = |path: &str| jailed.stat(path, Links::Follow).unwrap().ino;
    assert_eq!(ino("a/.snapshots/s/b/../../.."), ino("a"));
    assert_eq!(ino("a/.snapshots/s/../../.."), ino("/"));
    let in_snapshot = all.clone().in_root("/jail/a/.snapshots/s").unwrap();
    let top = in_snapshot.stat("/", Links::Follow).unwrap().ino;
    for path in ["..", "b/..", "b/../.."] {
        assert_eq!(in_snapshot.stat(path, Links::Follow).unwrap().ino, top, "{path}");
    }
    rename(&all, "/jail/a", "/outside/a");
    assert_eq!(in_snapshot.stat("b/..", Links::Follow).unwrap().ino, top);
}
