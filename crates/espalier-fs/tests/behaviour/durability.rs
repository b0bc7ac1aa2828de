//! What a sync waits for, what a new file costs, and what is free: counted.

use crate::Bench;
use espalier_engine::{OpenOptions, Store};
use espalier_fs::{
    Caller, FileFlags, FileSystem, FormatOptions, FsErrorKind, NodeId, RenameAction, RenameStep, SetAttr,
    SetTime, merge_functions,
};
use espalier_storage::{Device, Environment, Fault, MemoryDevice, SimulatedDevice, SystemEnvironment};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// With nodes of the usual size: tiny ones take more room than what they hold.
fn usual() -> Bench {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20));
    let env: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(0));
    Store::format(device.clone(), env.clone(), &Default::default()).expect("format");
    let options = OpenOptions { memory: 64 << 20, merge: merge_functions(), ..Default::default() };
    let store = Store::open(device.clone(), env.clone(), options).expect("open");
    FileSystem::format(&store, &FormatOptions::default()).expect("format");
    let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).expect("open");
    Bench { device, env, store, fs }
}

fn bytes_written(bench: &Bench) -> u64 {
    bench.store.statistics().device.bytes_written
}

/// Writes so many MiB to a new file.
fn write_much(bench: &Bench, name: &str, mib: u64) -> NodeId {
    let file = bench.file(NodeId::ROOT, name);
    for n in 0..mib {
        bench.fs.write(file, n * MIB, &vec![n as u8 + 1; MIB as usize], false).expect("write");
    }
    file
}

#[test]
fn a_small_fsync_does_not_wait_for_what_somebody_else_writes() {
    let bench = Bench::new(0);
    let small = bench.file(NodeId::ROOT, "small");
    bench.fs.write(small, 0, b"a few bytes", false).expect("write");
    // Threads that write back-to-back would write more.
    write_much(&bench, "large", 8);
    let before = bytes_written(&bench);
    bench.fs.fsync(small, false).expect("fsync");
    let written = bytes_written(&bench) - before;
    assert!(written <= 16 << 10, "{written} bytes");
    let bench = bench.crash();
    let small = bench.fs.lookup(NodeId::ROOT, b"small").expect("it is durable").node;
    assert_eq!(bench.read(small), b"a few bytes");
}

/// What `tar` does for each file: make it, then size, times, owner and mode, one call each.
#[test]
fn a_new_file_and_its_attributes_are_one_message() {
    let bench = usual();
    let dir = bench.dir(NodeId::ROOT, "dir");
    bench.store.checkpoint().expect("checkpoint");
    let before = bench.store.statistics().absorbed;
    const FILES: u64 = 20;
    for n in 0..FILES {
        let file = bench.file(dir, &format!("file {n}"));
        let time = Some(SetTime::At(1_000_000_000_000));
        for set in [
            SetAttr { size: Some(5000), ..SetAttr::default() },
            SetAttr { atime: time, mtime: time, ..SetAttr::default() },
            SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() },
            SetAttr { mode: Some(0o600), ..SetAttr::default() },
        ] {
            bench.fs.setattr(file, &set).expect("setattr");
        }
    }
    bench.store.checkpoint().expect("checkpoint");
    // One for each entry, one for the directory, one for the state of the volume.
    let messages = bench.store.statistics().absorbed - before;
    assert!((FILES..=FILES + 2).contains(&messages), "{messages} messages for {FILES} files");
}

/// Bytes that can still be stored, once nothing is left to be done.
fn free(bench: &Bench) -> u64 {
    for _ in 0..3 {
        // After a sync the free space is known.
        bench.fs.syncfs().expect("sync");
        while bench.store.step().expect("work") {}
        bench.store.checkpoint().expect("checkpoint");
    }
    bench.fs.statfs().expect("statfs").available * 4096
}

/// A clone takes next to nothing, what is changed in it is taken once, and what only one of the two
/// has is free when that one is gone.
#[test]
fn free_space_is_told_truly_before_during_and_after_with_clones() {
    let bench = usual();
    let dir = bench.dir(NodeId::ROOT, "dir");
    let empty = free(&bench);
    let file = bench.file(dir, "file");
    for n in 0..8 {
        bench.fs.write(file, n * MIB, &vec![n as u8 + 1; MIB as usize], false).expect("write");
    }
    // Before anything of it lies where it will: what was accepted is not free.
    let told = bench.fs.statfs().expect("statfs").available * 4096;
    assert!(told + 8 * MIB <= empty, "{} bytes are gone for 8 MiB that were accepted", empty - told);
    let whole = free(&bench);
    let near = |found: u64, expected: u64, what: &str| {
        assert!(found.abs_diff(expected) <= MIB / 2, "{what}: {found} bytes, {expected} expected");
    };
    near(empty - whole, 8 * MIB, "the file takes");
    let copy = bench.fs.clone_tree(dir, NodeId::ROOT, b"copy", &Caller::default()).expect("clone").node;
    near(free(&bench), whole, "free beside a clone");
    let copied = bench.fs.lookup(copy, b"file").expect("lookup").node;
    bench.fs.write(copied, 0, &vec![99; 3 * MIB as usize], false).expect("write");
    near(free(&bench), whole - 3 * MIB, "free when 3 MiB of the clone are its own");
    let (_, exclusive) = bench.fs.space_of_tree(copy).expect("space");
    near(exclusive, 3 * MIB, "exclusive of the clone");
    let told = bench.fs.exclusive_space_of_tree(copy, &Caller::default()).expect("exclusive space");
    assert_eq!(told, exclusive, "the two ways of counting");
    let stranger = Caller { uid: 1000, gid: 1000, ..Caller::default() };
    let refused = bench.fs.exclusive_space_of_tree(copy, &stranger).expect_err("another user's tree");
    assert_eq!(refused.kind(), FsErrorKind::Permission);
    // A removed file in use goes with its last reference.
    [file, dir, copied, copy].iter().for_each(|node| bench.fs.forget(*node, 1));
    // The first three MiB were the source's alone. They may lie in one part with what the clone
    // still has; then they are not free yet, and must not be called so.
    bench.fs.remove_tree(NodeId::ROOT, b"dir", &Caller::default()).expect("remove");
    let found = free(&bench);
    assert!(
        (whole - 7 * MIB / 2..whole + MIB / 2).contains(&found),
        "free without the source: {found}, {whole}"
    );
    bench.fs.remove_tree(NodeId::ROOT, b"copy", &Caller::default()).expect("remove");
    near(free(&bench), empty, "free without both");
}

/// Directories that ask for it (`chattr +S`, `+D`) have many renames durable at once, too.
#[test]
fn many_renames_are_durable_when_a_directory_asks_for_it() {
    let root = Caller::default();
    let sync = Some(FileFlags::SYNC);
    let cases = [
        (None, None, RenameAction::Exchange),
        (sync, None, RenameAction::Exchange),
        (Some(FileFlags::DIRSYNC), None, RenameAction::Leave),
        (None, Some(FileFlags::DIRSYNC), RenameAction::Enter),
        (None, sync, RenameAction::Exchange),
        // Of the two whose attributes change places one asks for it.
        (None, None, RenameAction::ExchangeAttributes),
    ];
    for (n, (above, staged, action)) in cases.into_iter().enumerate() {
        let bench = Bench::new(0);
        let (target, staging) = (bench.dir(NodeId::ROOT, "target"), bench.dir(NodeId::ROOT, "staging"));
        let inner = bench.dir(target, "inner");
        let name = if action == RenameAction::Enter { "new" } else { "old" };
        let old = if action == RenameAction::Enter { None } else { Some(bench.dir(inner, name)) };
        let new = (action != RenameAction::Leave).then(|| bench.dir(staging, "staged"));
        let flagged = [(inner, above), (staging, staged)];
        let one = new.filter(|_| action == RenameAction::ExchangeAttributes).map(|new| (new, sync));
        for (dir, flags) in flagged.into_iter().chain(one) {
            flags.into_iter().for_each(|flags| bench.fs.set_flags(dir, flags, &root).expect("flags"));
        }
        if let Some(dir) = new.filter(|_| action == RenameAction::ExchangeAttributes) {
            let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
            bench.fs.setattr(dir, &set).expect("setattr");
        }
        bench.fs.syncfs().expect("sync");
        let number = |bench: &Bench| {
            let find = |dir: NodeId, name: &str| bench.fs.lookup(dir, name.as_bytes());
            let inner = find(find(NodeId::ROOT, "target").expect("lookup").node, "inner").expect("lookup");
            find(inner.node, name).map(|found| (found.attr.ino, found.attr.mode)).ok()
        };
        let before = number(&bench);
        let attr = old.map(|old| bench.fs.getattr(old).expect("attributes"));
        let step = RenameStep {
            action,
            place: vec![b"inner".to_vec(), name.into()],
            staged: b"staged".to_vec(),
            expected: attr.map_or((0, 0), |attr| (attr.ino, attr.ctime)),
        };
        bench.fs.rename_all(target, staging, &[step], &root).expect("all or none");
        let after = number(&bench);
        assert_ne!(before, after, "case {n}");
        let found = number(&bench.crash());
        assert_eq!(found, if n == 0 { before } else { after }, "case {n}");
    }
}

/// What a slow reader of an object store meets: no damage, and no error as of damage.
#[test]
fn what_was_deleted_with_a_replaced_state_is_gone_and_not_damaged() {
    let simulated = Arc::new(SimulatedDevice::new(64 * MIB, 3));
    let device: Arc<dyn Device> = simulated.clone();
    let env: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(0));
    Store::format(device.clone(), env.clone(), &Default::default()).expect("format");
    let open = |read_only| {
        let merge = merge_functions();
        let options = OpenOptions { memory: 4 << 20, read_only, merge, ..Default::default() };
        Store::open(device.clone(), env.clone(), options).expect("open")
    };
    let store = open(false);
    FileSystem::format(&store, &FormatOptions::default()).expect("format");
    let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).expect("open");
    let bench = Bench { device: device.clone(), env: env.clone(), store: store.clone(), fs };
    write_much(&bench, "large", 24);
    bench.fs.close().expect("close");
    drop(bench);
    store.close().expect("close");
    drop(store);

    let store = open(true);
    let read_only = espalier_fs::OpenOptions { read_only: true, ..Default::default() };
    let fs = FileSystem::open(store.clone(), env, read_only).expect("open");
    let large = fs.lookup(NodeId::ROOT, b"large").expect("it is there").node;
    assert!(espalier_fs::check(&store, "main", &mut |_| ()).expect("whole").problems.is_empty());
    simulated.inject(Fault::Deleted(0..u64::MAX));
    let mut read = (0..24).map(|n| fs.read(large, n * MIB, &mut vec![0; MIB as usize]));
    let error = read.find_map(Result::err).expect("most of it was read from the device");
    assert_eq!(error.kind(), FsErrorKind::Gone, "{error}");
    let checked = espalier_fs::check(&store, "main", &mut |_| ());
    assert_eq!(checked.unwrap_err().kind(), FsErrorKind::Gone);
}
