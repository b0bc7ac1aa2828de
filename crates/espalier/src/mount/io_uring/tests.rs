use super::*;

#[test]
fn the_parameter_is_turned_on_once() {
    let dir = tempfile::tempdir().unwrap();
    let parameter = dir.path().join("enable_uring");
    assert!(enable_at(&parameter).is_err(), "a kernel without it");
    fs::write(&parameter, "N\n").unwrap();
    assert!(enable_at(&parameter).unwrap());
    assert!(is_on(&parameter).unwrap());
    assert!(!enable_at(&parameter).unwrap());
}

#[test]
fn a_user_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let note = dir.path().join("state/espalier/told");
    assert!(note_first(&note));
    assert!(!note_first(&note));
}
