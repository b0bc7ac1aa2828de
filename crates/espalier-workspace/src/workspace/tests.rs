use super::Lock;
use crate::error::Error;
use crate::gc::Collect;
use crate::processes::Processes;
use crate::registry::Registry;
use crate::testing::{Ground, Plain};
use std::fs::{remove_file, rename};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{scope, sleep};
use std::time::Duration;

/// Time enough for a thread to come to where it waits.
const A_WHILE: Duration = Duration::from_millis(300);
/// What takes longer than this does not come.
const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_lock_whose_file_was_removed_is_taken_anew() {
    let ground = Ground::new();
    let dir = ground.workspace.dir();
    let first = Lock::of(&dir).unwrap();
    let (taken, is_taken) = channel();
    scope(|scope| {
        scope.spawn(|| {
            let _lock = Lock::of(&dir).unwrap();
            taken.send(()).unwrap();
        });
        sleep(A_WHILE);
        remove_file(dir.join("lock")).unwrap();
        let second = Lock::of(&dir).unwrap();
        drop(first);
        assert_eq!(is_taken.recv_timeout(A_WHILE), Err(RecvTimeoutError::Timeout));
        drop(second);
        assert_eq!(is_taken.recv_timeout(LONG), Ok(()));
    });
}

#[test]
fn a_command_that_waited_for_what_was_discarded_says_so() {
    let ground = Ground::new();
    let dir = ground.workspace.dir();
    let lock = Lock::of(&dir).unwrap();
    scope(|scope| {
        let waiting = scope.spawn(|| ground.workspace.clone().checkpoint(&Plain, "late"));
        sleep(A_WHILE);
        rename(&dir, dir.with_file_name("elsewhere")).unwrap();
        drop(lock);
        let found = waiting.join().unwrap();
        assert!(matches!(&found, Err(Error::Gone(name)) if name == "w"), "{found:?}");
    });
    let found = ground.workspace.clone().checkpoint(&Plain, "later");
    assert!(matches!(found, Err(Error::Gone(_))), "{found:?}");
    assert!(!dir.exists());
}

#[test]
fn a_record_that_is_gone_is_not_written_again() {
    let ground = Ground::new();
    let record = ground.workspace.dir().join("record");
    remove_file(&record).unwrap();
    let found = ground.workspace.clone().checkpoint(&Plain, "late");
    assert!(matches!(found, Err(Error::Gone(_))), "{found:?}");
    assert!(!record.exists());
}

#[test]
fn a_command_does_not_touch_what_has_taken_the_place_of_a_workspace() {
    let ground = Ground::new();
    rename(ground.path("w"), ground.path("moved")).unwrap();
    std::fs::create_dir(ground.path("w")).unwrap();
    let found = ground.workspace.clone().checkpoint(&Plain, "late");
    assert!(matches!(found, Err(Error::Gone(_))), "{found:?}");
    // What was found elsewhere is taken from there, though the record does not say so yet.
    let mut found = ground.workspace.clone();
    found.record.place = "moved".into();
    found.checkpoint(&Plain, "kept").unwrap();
    let record = ground.record();
    assert_eq!((record.place.to_str(), record.checkpoints.len()), (Some("moved"), 1));
}

#[test]
fn gc_does_not_write_what_it_has_read_before_the_lock() {
    let ground = Ground::new();
    let far = ground.move_far();
    let mut registry = Registry::around(&ground.top).unwrap();
    assert!(registry.workspaces().is_empty());
    let mut found = Registry::locate(&ground.top, far.as_os_str()).unwrap();
    found.checkpoint(&Plain, "kept").unwrap();
    let collect = Collect { missing: true, ..Collect::default() };
    assert_eq!(registry.collect(&Plain, &Processes::default(), collect).unwrap().len(), 0);
    let record = ground.record();
    assert_eq!((record.checkpoints.len(), record.missing), (1, None));
}

#[test]
fn a_lookup_leaves_the_record_to_the_command_at_work() {
    let ground = Ground::new();
    rename(ground.path("w"), ground.path("moved")).unwrap();
    let lock = Lock::of(&ground.workspace.dir()).unwrap();
    let registry = Registry::around(&ground.top).unwrap();
    assert_eq!(registry.workspaces()[0].place(), ground.path("moved"));
    assert_eq!(ground.record().place.to_str(), Some("w"));
    drop(lock);
    Registry::around(&ground.top).unwrap();
    assert_eq!(ground.record().place.to_str(), Some("moved"));
}
