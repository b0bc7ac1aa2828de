use super::*;

const TABLE: &str = "\
1: POSIX  ADVISORY  WRITE 700 fe:00:7341 0 EOF
2: FLOCK  ADVISORY  WRITE 809 fe:00:7341 0 EOF
2: -> FLOCK  ADVISORY  WRITE 810 fe:00:7341 0 EOF
3: FLOCK  ADVISORY  READ -1 fe:00:7342 0 EOF
";

#[test]
fn the_holder_is_found_and_waiting_processes_are_not() {
    assert_eq!(find(TABLE, (0xfe, 0, 7341)), Some(809));
    assert_eq!(find(TABLE, (0xfe, 1, 7341)), None);
}

#[test]
fn a_holder_that_the_process_table_lacks_is_not_named() {
    assert_eq!(find(TABLE, (0xfe, 0, 7342)), None);
    assert_eq!(find("", (0, 0, 0)), None);
}

#[test]
fn a_lock_of_this_process_is_found() {
    let file = tempfile::NamedTempFile::new().unwrap();
    rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let holder = of(file.path()).unwrap();
    assert_eq!(holder.process as u32, std::process::id());
    assert!(holder.program.is_some());
}
