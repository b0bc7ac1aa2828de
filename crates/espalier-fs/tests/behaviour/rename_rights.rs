//! What `rename_all` refuses a user that rename(2) and chmod(2) would refuse.

use crate::Bench;
use espalier_fs::{Caller, FsErrorKind, NodeId, RenameAction, RenameStep, SetAttr};

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
const ALICE: Caller = Caller { uid: 7, gid: 7, pid: 0, umask: 0 };
const BOB: Caller = Caller { uid: 8, gid: 8, pid: 0, umask: 0 };

/// /shared, which belongs to Alice and in which all may make entries, and her /shared/staging.
struct Shared {
    bench: Bench,
    top: NodeId,
    staging: NodeId,
}

impl Shared {
    fn new() -> Self {
        let bench = Bench::new(0);
        let make = |parent, name: &[u8]| bench.fs.mkdir(parent, name, 0o755, &ALICE).expect("mkdir").node;
        let top = make(NodeId::ROOT, b"shared");
        let staging = make(top, b"staging");
        bench.fs.setattr(top, &SetAttr { mode: Some(0o1777), ..Default::default() }).expect("chmod");
        bench.fs.setattr(staging, &SetAttr { mode: Some(0o777), ..Default::default() }).expect("chmod");
        Self { bench, top, staging }
    }

    fn make(&self, dir: NodeId, name: &str, mode: u32, owner: &Caller) -> NodeId {
        self.bench.fs.mkdir(dir, name.as_bytes(), mode, owner).expect("mkdir").node
    }

    /// One step between entry `place` of the shared directory and entry `staged` of `staging`.
    fn step(
        &self,
        action: RenameAction,
        place: &str,
        (staging, staged): (NodeId, &str),
        caller: &Caller,
    ) -> Result<(), FsErrorKind> {
        let there = self.bench.fs.lookup(self.top, place.as_bytes());
        let expected = there.map_or((0, 0), |entry| (entry.attr.ino, entry.attr.ctime));
        let step = RenameStep { action, place: vec![place.into()], staged: staged.into(), expected };
        self.bench.fs.rename_all(self.top, staging, &[step], caller).map_err(|error| error.kind())
    }

    fn mode_and_owner(&self, node: NodeId) -> (u32, u32) {
        let attr = self.bench.fs.getattr(node).expect("attributes");
        (attr.mode, attr.uid)
    }
}

#[test]
fn attributes_of_another_users_directories_are_not_exchanged() {
    use RenameAction::ExchangeAttributes;
    let shared = Shared::new();
    let (private, public) =
        (shared.make(shared.top, "private", 0o700, &BOB), shared.make(shared.top, "public", 0o755, &BOB));
    let own = shared.make(shared.top, "own", 0o711, &ALICE);
    let also = shared.make(shared.top, "also", 0o751, &ALICE);
    let exchange =
        |place, staged, caller| shared.step(ExchangeAttributes, place, (shared.top, staged), caller);
    let refused = Err(FsErrorKind::Permission);
    assert_eq!(exchange("private", "public", &ALICE), refused);
    assert_eq!(exchange("private", "own", &ALICE), refused);
    assert_eq!(exchange("own", "private", &ALICE), refused);
    assert_eq!([private, public].map(|node| shared.mode_and_owner(node)), [(0o700, 8), (0o755, 8)]);
    assert_eq!(exchange("own", "also", &ALICE), Ok(()));
    assert_eq!([own, also].map(|node| shared.mode_and_owner(node)), [(0o751, 7), (0o711, 7)]);
    assert_eq!(exchange("private", "own", &ROOT), Ok(()));
    assert_eq!([private, own].map(|node| shared.mode_and_owner(node)), [(0o751, 7), (0o700, 8)]);
    shared.bench.check(0);
}

#[test]
fn another_users_directory_gets_another_parent_only_where_it_may_be_written() {
    use RenameAction::{Enter, Exchange, Leave};
    for (mode, own_group, expected) in [
        (0o755, false, Err(FsErrorKind::AccessDenied)),
        (0o775, false, Err(FsErrorKind::AccessDenied)),
        (0o775, true, Ok(())),
        (0o757, true, Err(FsErrorKind::AccessDenied)),
        (0o777, false, Ok(())),
    ] {
        for action in [Enter, Leave, Exchange] {
            let shared = Shared::new();
            let (top, staging) = (shared.top, shared.staging);
            let dir = if action == Enter { staging } else { top };
            let gid = if own_group { ALICE.gid } else { BOB.gid };
            let foreign = shared.make(dir, "foreign", mode, &BOB);
            let set = SetAttr { gid: Some(gid), ..Default::default() };
            shared.bench.fs.setattr(foreign, &set).expect("chgrp");
            // Its owner may move a directory that is not to be written.
            shared.make(staging, "own", 0o500, &ALICE);
            let (place, staged) = match action {
                Enter => ("entered", "foreign"),
                Leave => ("foreign", "left"),
                _ => ("foreign", "own"),
            };
            let done = shared.step(action, place, (staging, staged), &ALICE);
            assert_eq!(done, expected, "{action:?} of {mode:o}");
            if expected.is_err() {
                assert!(shared.bench.fs.lookup(dir, b"foreign").is_ok());
                assert_eq!(shared.step(action, place, (staging, staged), &ROOT), Ok(()));
            }
            shared.bench.check(0);
        }
    }
    // From the other side of an exchange; and to another name in the same parent.
    let shared = Shared::new();
    shared.make(shared.staging, "foreign", 0o755, &BOB);
    shared.make(shared.top, "own", 0o755, &ALICE);
    let done = shared.step(Exchange, "own", (shared.staging, "foreign"), &ALICE);
    assert_eq!(done, Err(FsErrorKind::AccessDenied));
    shared.make(shared.top, "foreign", 0o755, &BOB);
    assert_eq!(shared.step(Leave, "foreign", (shared.top, "other name"), &ALICE), Ok(()));
}
