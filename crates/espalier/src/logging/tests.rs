use super::*;
use std::os::unix::fs::PermissionsExt;

#[test]
fn a_server_logs_to_the_best_place_that_the_machine_has() {
    let home = || Some(PathBuf::from("/home/ann"));
    let with = |sockets: &'static [&str]| move |path: &Path| sockets.iter().any(|s| Path::new(s) == path);
    assert_eq!(Sink::choose(&with(&[JOURNAL_SOCKET, SYSLOG_SOCKET]), true, home()), Sink::Journal);
    assert_eq!(Sink::choose(&with(&[SYSLOG_SOCKET]), false, home()), Sink::Syslog);
    assert_eq!(Sink::choose(&with(&[]), true, home()), Sink::File(ROOT_LOG_PATH.into()));
    let of_user = Sink::File("/home/ann/.local/state/espalier/log".into());
    assert_eq!(Sink::choose(&with(&[]), false, home()), of_user);
    assert_eq!(Sink::choose(&with(&[]), false, None), Sink::Nowhere);
}

#[test]
fn a_log_file_is_made_with_its_directory_and_appended_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("state/espalier/log");
    for line in ["one\n", "two\n"] {
        open(&path).unwrap().write_all(line.as_bytes()).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(open(dir.path()).is_err());
}

#[test]
fn a_stream_leads_to_the_journal_if_it_is_the_one_that_systemd_has_given() {
    use rustix::fs::fstat;
    let file = tempfile::tempfile().unwrap();
    let stat = fstat(&file).unwrap();
    let said = format!("{}:{}", stat.st_dev, stat.st_ino);
    assert!(is_stream(&file, Some(&said)));
    assert!(!is_stream(tempfile::tempfile().unwrap(), Some(&said)));
    assert!(!is_stream(&file, Some("")) && !is_stream(&file, None));
}
