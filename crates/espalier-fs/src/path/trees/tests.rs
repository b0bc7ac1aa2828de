//! What other callers do while a caller begins to wait for a change.

use super::BEFORE_ASKED;
use crate::model::access::Credentials;
use crate::model::error::FsErrorKind;
use crate::path::caller::Paths;
use crate::path::changes::RenameHow;
use crate::volume::change_journal::ChangeWaiter;
use std::sync::Arc;

struct Deaf;

impl ChangeWaiter for Deaf {
    fn wake(&self) {}
}

#[test]
fn a_directory_that_moves_away_as_a_wait_begins_is_not_waited_for() {
    let (_, _, fs) = crate::test_support::empty();
    let root = Paths::new(fs).unwrap().caller(Credentials::default());
    for path in ["/d", "/d/below", "/other"] {
        root.mkdir(path, 0o755).unwrap();
    }
    let waiter: Arc<dyn ChangeWaiter> = Arc::new(Deaf);
    let exact = root.changed_paths("/d", b"").unwrap().exact;
    let moves = root.clone();
    BEFORE_ASKED.set(Some(Box::new(move || moves.rename("/d", "/e", RenameHow::Replace).unwrap())));
    let error = root.changed_paths_or_wait("/d", exact.as_bytes(), &waiter).unwrap_err();
    assert_eq!(error.kind(), FsErrorKind::NotFound, "{error}");
    // Another one that comes to the place is asked about instead.
    let exact = root.changed_paths("/e", b"").unwrap().exact;
    let moves = root.clone();
    BEFORE_ASKED.set(Some(Box::new(move || moves.rename("/other", "/e", RenameHow::Exchange).unwrap())));
    assert!(root.changed_paths_or_wait("/e", exact.as_bytes(), &waiter).unwrap().everything);
}
