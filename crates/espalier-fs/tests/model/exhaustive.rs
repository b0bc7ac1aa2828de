//! Every history of three operations and a sync, with a power cut at every change of the device, in
//! the manner of CrashMonkey [OSDI 2018]. A tree of two directories and two files is there,
//! durable, before.
//!
//! There are 13,500 histories. A test takes each so-and-so-many-th, another ones with each seed:
//! `ESPALIER_HISTORIES=1` takes all, `ESPALIER_HISTORY=n` only the n-th.

use crate::crash::{History, crash};
use crate::run::Run;
use crate::tree::{Id, ROOT, Tree};
use crate::world::Random;
use espalier_fs::{
    Caller, Fallocate, FileKind, FsError, FsErrorKind, NewNode, NodeId, RenameMode, SetAttr, XattrMode,
};
use espalier_storage::{Image, SimulatedDevice};
use std::sync::Arc;

const STEPS: usize = 15;
const SYNCS: usize = 4;
const HISTORIES: usize = STEPS * STEPS * STEPS * SYNCS;

/// What is there before.
struct Base {
    image: Image,
    tree: Tree,
}

/// Finds a path on both sides; each look-up's reference is given back at once, because no
/// file is open.
fn find(run: &Run, path: &str) -> Option<(Id, NodeId)> {
    let (mut id, mut node) = (ROOT, NodeId::ROOT);
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let found = run.fs.lookup(node, name.as_bytes()).ok().map(|entry| entry.node);
        let expected = run.tree.lookup(id, name.as_bytes()).ok();
        assert_eq!(found.is_some(), expected.is_some(), "{path}");
        if node != NodeId::ROOT {
            run.fs.forget(node, 1);
        }
        (id, node) = (expected?, found?);
    }
    Some((id, node))
}

fn same<T, U>(what: &str, got: Result<T, FsError>, expected: Result<U, FsErrorKind>) -> Option<T> {
    assert_eq!(got.as_ref().err().map(FsError::kind), expected.err(), "{what}");
    got.ok()
}

/// Does operation `which` on both sides; one whose objects are not there does nothing.
fn step(run: &mut Run, which: usize) -> Option<()> {
    run.tree.now = run.world.step(20_000_000);
    let caller = Caller::default();
    let (dir, other) = (find(run, "A"), find(run, "B"));
    let file = find(run, "A/foo");
    let hold = |entry: Option<espalier_fs::Entry>, run: &Run| {
        if let Some(entry) = entry {
            run.fs.forget(entry.node, 1);
        }
    };
    match which {
        0 => {
            let (id, node) = dir?;
            let expected = run.tree.create(id, b"new", FileKind::Regular, 0o644, 0, b"", &caller);
            let made = same("create", run.fs.mknod(node, b"new", NewNode::Regular, 0o644, &caller), expected);
            hold(made, run);
        }
        1 | 2 => {
            let (id, node) = file?;
            let size = run.tree.objects[id].data.len();
            let (offset, length) = if which == 1 { (0, 5000) } else { (size, 9000) };
            let data = vec![0x40 + run.step as u8; length];
            let expected = run.tree.write(id, offset, &data, false);
            same("write", run.fs.write(node, offset as u64, &data, false), expected);
        }
        3 => {
            let (id, node) = file?;
            let set = SetAttr { size: Some(1000), ..SetAttr::default() };
            let expected = run.tree.setattr(id, &set);
            same("truncate", run.fs.setattr(node, &set), expected);
        }
        4 => {
            let (id, node) = dir?;
            let expected = run.tree.unlink(id, b"foo");
            same("unlink", run.fs.unlink(node, b"foo"), expected);
        }
        5 | 6 | 7 | 11 => {
            let (from, name, to, new, mode) = match which {
                5 => (dir?, "foo", dir?, "bar", RenameMode::Replace),
                6 => (dir?, "foo", other?, "foo", RenameMode::Replace),
                7 => ((ROOT, NodeId::ROOT), "A", (ROOT, NodeId::ROOT), "C", RenameMode::Replace),
                _ => (dir?, "foo", dir?, "bar", RenameMode::Exchange),
            };
            let expected = run.tree.rename(from.0, name.as_bytes(), to.0, new.as_bytes(), mode);
            let got = run.fs.rename(from.1, name.as_bytes(), to.1, new.as_bytes(), mode);
            same("rename", got, expected);
        }
        8 => {
            let ((id, node), (above, into)) = (file?, other?);
            let expected = run.tree.link(id, above, b"link");
            let made = same("link", run.fs.link(node, into, b"link"), expected);
            hold(made, run);
        }
        9 => {
            let (id, node) = dir?;
            let expected = run.tree.create(id, b"sub", FileKind::Directory, 0o755, 0, b"", &caller);
            let made = same("mkdir", run.fs.mkdir(node, b"sub", 0o755, &caller), expected);
            hold(made, run);
        }
        10 => {
            let expected = run.tree.rmdir(ROOT, b"B");
            same("rmdir", run.fs.rmdir(NodeId::ROOT, b"B"), expected);
        }
        12 => {
            let (id, node) = dir?;
            let expected = run.tree.create(id, b"sym", FileKind::Symlink, 0, 0, b"foo", &caller);
            let made = same("symlink", run.fs.symlink(node, b"sym", b"foo", &caller), expected);
            hold(made, run);
        }
        13 => {
            let (id, node) = file?;
            let value = vec![run.step as u8; 700];
            let expected = run.tree.setxattr(id, b"user.x", Some(&value), XattrMode::Set);
            same("setxattr", run.fs.setxattr(node, b"user.x", &value, XattrMode::Set, false), expected);
        }
        _ => {
            let (id, node) = file?;
            let expected = run.tree.fallocate(id, 0, 4096, Fallocate::PunchHole);
            same("punch", run.fs.fallocate(node, 0, 4096, Fallocate::PunchHole, false), expected);
        }
    }
    Some(())
}

/// Gives back what a step has looked up.
fn forget(run: &Run) {
    for path in ["A", "B", "A/foo"] {
        if let Some((_, node)) = find(run, path) {
            // One for this look-up; those of the step are gone with it.
            run.fs.forget(node, u64::MAX >> 1);
        }
    }
}

fn base() -> Base {
    let device = Arc::new(SimulatedDevice::new(16 << 20, 1));
    let mut run = Run::on(1, device.clone());
    let caller = Caller::default();
    for (name, kind) in [(&b"A"[..], FileKind::Directory), (b"B", FileKind::Directory)] {
        let entry = run.fs.mkdir(NodeId::ROOT, name, 0o755, &caller).unwrap();
        run.tree.create(ROOT, name, kind, 0o755, 0, b"", &caller).unwrap();
        run.fs.forget(entry.node, 1);
    }
    for (name, length) in [(&b"foo"[..], 6000), (b"bar", 300)] {
        let (id, node) = find(&run, "A").unwrap();
        let entry = run.fs.mknod(node, name, NewNode::Regular, 0o644, &caller).unwrap();
        let file = run.tree.create(id, name, FileKind::Regular, 0o644, 0, b"", &caller).unwrap();
        run.tree.now = run.world.step(20_000_000);
        run.fs.write(entry.node, 0, &vec![1; length], false).unwrap();
        run.tree.write(file, 0, &vec![1; length], false).unwrap();
        run.fs.forget(entry.node, 1);
        run.fs.forget(node, 1);
    }
    run.fs.syncfs().unwrap();
    run.store.close().unwrap();
    Base { image: device.durable_image(), tree: run.tree.clone() }
}

/// Runs history `number` of [`HISTORIES`]; returns the number of power cuts tried.
fn one(base: &Base, number: usize) -> usize {
    let device = Arc::new(SimulatedDevice::from_image(base.image.clone(), number as u64));
    let mut run = Run::on_existing(number as u64, device.clone(), base.tree.clone());
    device.record_crash_points(1);
    let mut history = History::new(device.counts().changes());
    history.record(0, &run.tree);
    let steps = [number % STEPS, number / STEPS % STEPS, number / STEPS / STEPS % STEPS];
    for which in steps {
        run.step += 1;
        let began = device.counts().changes();
        step(&mut run, which);
        forget(&run);
        history.record(began, &run.tree);
    }
    let sync = number / STEPS / STEPS / STEPS;
    let target = match sync {
        0 => None,
        1 => find(&run, "A/foo"),
        _ => find(&run, "A"),
    };
    match target {
        Some((id, node)) => {
            run.fs.fsync(node, number.is_multiple_of(2)).unwrap();
            let is_dir = run.tree.objects[id].is_dir();
            history.promise(device.counts().changes(), Some(id).filter(|_| !is_dir));
        }
        None => {
            run.fs.syncfs().unwrap();
            history.promise(device.counts().changes(), None);
        }
    }
    if sync == 3 {
        run.store.checkpoint().unwrap();
    }
    let mut random = Random(number as u64);
    let points = device.take_crash_points();
    for point in &points {
        for _ in 0..2 {
            crash::<SimulatedDevice>(&run, &history, point, random.next());
        }
    }
    2 * points.len()
}

#[test]
fn power_cuts_in_all_short_histories() {
    let number = |name| std::env::var(name).ok().and_then(|s| s.parse::<usize>().ok());
    let base = base();
    if let Some(one_of_them) = number("ESPALIER_HISTORY") {
        one(&base, one_of_them);
        return;
    }
    let stride = number("ESPALIER_HISTORIES").unwrap_or(29).max(1);
    let first = number("ESPALIER_SEED").unwrap_or(0) % stride;
    let mut cuts = 0;
    for history in (first..HISTORIES).step_by(stride) {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| one(&base, history)));
        cuts += outcome.unwrap_or_else(|_| panic!("ESPALIER_HISTORY={history}"));
    }
    println!("{cuts} power cuts");
}
