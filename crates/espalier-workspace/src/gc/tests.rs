use super::{Collect, Collected, Reason, end_by};
use crate::error::Error;
use crate::processes::Processes;
use crate::procfs::Life;
use crate::registry::Registry;
use crate::testing::{Ground, Plain, write_record};
use crate::workspace::Lock;
use std::fs::write;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread::spawn;
use std::time::Duration;

/// What takes longer than this does not come.
const LONG: Duration = Duration::from_secs(10);

/// A workspace whose time is over.
fn expired() -> Ground {
    let mut ground = Ground::new();
    ground.workspace.record.expires = Some(1);
    write_record(&ground.workspace);
    ground
}

fn collect(mut registry: Registry) -> Vec<Collected> {
    // As if the processes had been looked at long before.
    registry.collect(&Plain, &Processes::default(), Collect::default()).unwrap()
}

#[test]
fn what_a_process_has_entered_since_processes_were_looked_at_is_kept() {
    let ground = expired();
    let mut command = Command::new("cat");
    command.current_dir(ground.path("w")).stdin(Stdio::piped()).stdout(Stdio::null());
    let mut process = command.spawn().unwrap();
    let kept = collect(Registry::around(&ground.top).unwrap());
    drop(process.stdin.take());
    process.wait().unwrap();
    assert!(kept[0].kept.as_ref().is_some_and(|why| why.contains("cat")), "{kept:?}");
    assert!(ground.path("w/w").exists());
    let gone = collect(Registry::around(&ground.top).unwrap());
    assert_eq!((gone[0].reason, &gone[0].kept), (Reason::Expired, &None));
    assert!(!ground.path("w").exists() && !ground.workspace.dir().exists());
}

#[test]
fn what_a_command_works_on_is_passed_by() {
    let ground = expired();
    let lock = Lock::of(&ground.workspace.dir()).unwrap();
    let registry = Registry::around(&ground.top).unwrap();
    let (done, is_done) = channel();
    let collecting = spawn(move || done.send(collect(registry).len()).unwrap());
    assert_eq!(is_done.recv_timeout(LONG), Ok(0));
    collecting.join().unwrap();
    assert!(ground.path("w/w").exists());
    drop(lock);
    assert_eq!(collect(Registry::around(&ground.top).unwrap()).len(), 1);
}

#[test]
fn what_was_discarded_or_is_not_due_any_more_stops_no_gc() {
    let ground = expired();
    let registry = Registry::around(&ground.top).unwrap();
    let mut changed = ground.workspace.clone();
    changed.record.expires = None;
    write_record(&changed);
    assert_eq!(collect(registry).len(), 0);
    assert!(ground.path("w/w").exists());
    write_record(&ground.workspace);
    let registry = Registry::around(&ground.top).unwrap();
    let mut other = ground.workspace.clone();
    crate::discard::Discard::default().run(&Plain, &mut other, &Processes::default()).unwrap();
    assert_eq!(collect(registry).len(), 0);
}

#[test]
fn what_was_made_for_a_process_goes_if_nothing_is_left_to_apply() {
    let mut ground = Ground::new();
    // No process has this number.
    ground.workspace.record.process = Some((i32::MAX, 1));
    write_record(&ground.workspace);
    write(ground.path("w/new"), "").unwrap();
    assert_eq!(collect(Registry::around(&ground.top).unwrap()).len(), 0);
    std::fs::remove_file(ground.path("w/new")).unwrap();
    let gone = collect(Registry::around(&ground.top).unwrap());
    assert_eq!((gone.len(), gone[0].reason), (1, Reason::ProcessEnded));
}

#[test]
fn a_process_counts_as_ended_only_if_that_is_known() {
    let mut workspace = Ground::new().workspace.clone();
    workspace.record.process = Some((7, 1));
    let end = |life: Life| end_by(&workspace, |_| Ok(life)).unwrap();
    assert_eq!((end(Life::Runs(1)), end(Life::Hidden)), (None, None));
    for gone in [Life::Ended, Life::Runs(2)] {
        assert_eq!(end(gone), Some(Reason::ProcessEnded));
    }
    assert!(matches!(end_by(&workspace, |_| Err(Error::NoProc)), Err(Error::NoProc)));
}
