use super::{Life, check_mounted, life_in, life_of, mount_points_in, unescape_mount_path};
use crate::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn the_start_of_a_process_is_known_while_it_runs() {
    assert!(matches!(life_of(std::process::id() as i32), Ok(Life::Runs(_))));
    assert_eq!(life_of(i32::MAX).unwrap(), Life::Ended);
    // Until its end is asked for, it is listed.
    let mut ended = Command::new("true").stdin(Stdio::null()).spawn().unwrap();
    let pid = ended.id().cast_signed();
    ended.wait().unwrap();
    assert_eq!(life_of(pid).unwrap(), Life::Ended);
}

#[test]
fn without_proc_nothing_is_told_of_processes_and_mounts() {
    let empty = tempfile::tempdir().unwrap();
    for proc in [empty.path(), &empty.path().join("missing")] {
        let pid = std::process::id().cast_signed();
        for pid in [pid, i32::MAX] {
            assert!(matches!(life_in(proc, pid), Err(Error::NoProc)));
        }
        assert!(matches!(mount_points_in(proc), Err(Error::NoProc)));
        let why = check_mounted(proc).unwrap_err().to_string();
        assert!(why.starts_with("/proc is not mounted"), "{why}");
    }
}

#[test]
fn a_process_that_is_not_shown_has_not_ended() {
    // A place that shows the calling process alone, as with `hidepid`.
    let proc = tempfile::tempdir().unwrap();
    std::fs::create_dir(proc.path().join("self")).unwrap();
    std::fs::write(proc.path().join("self/stat"), "").unwrap();
    assert_eq!(life_in(proc.path(), std::process::id().cast_signed()).unwrap(), Life::Hidden);
    assert_eq!(life_in(proc.path(), i32::MAX).unwrap(), Life::Ended);
}

#[test]
fn escapes_are_undone() {
    assert_eq!(unescape_mount_path(br"/mnt/two\040words\134"), Path::new(r"/mnt/two words\"));
}
