//! Walks over trees without the ownership mark: other calls go on meanwhile, and what they do is
//! not missed.

use crate::Bench;
use crate::ownership::{ROOT, USER, set};
use espalier_engine::{Store, Tuning};
use espalier_fs::{FileSystem, FormatOptions, FsErrorKind, NewNode, NodeId, RenameMode, merge_functions};
use espalier_storage::{Device, Environment, MemoryDevice, SystemEnvironment};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};

/// Less than what a walk reads, so that every walk reads from the device.
const MEMORY: u64 = 1 << 20;
const LINKS: usize = 600;
const TARGET_BYTES: usize = 3000;
/// Walks that one call makes at most.
const WALKS_MAX: u64 = 3;

/// A device that holds back the reads of one thread, until another thread lets each go on.
#[derive(Debug)]
struct Turnstile {
    inner: MemoryDevice,
    state: Mutex<TurnstileState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct TurnstileState {
    /// The thread whose reads are held back.
    walker: Option<ThreadId>,
    is_waiting: bool,
}

impl Turnstile {
    fn new() -> Arc<Self> {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Arc::new(Self { inner: MemoryDevice::new(256 << 20), state, changed })
    }

    /// Makes a call in a thread of its own. `meanwhile` is called each time the call waits for the
    /// device, and has to return before the call goes on.
    fn call<T: Send>(&self, call: impl FnOnce() -> T + Send, mut meanwhile: impl FnMut()) -> T {
        thread::scope(|scope| {
            let caller = scope.spawn(|| {
                self.state.lock().unwrap().walker = Some(thread::current().id());
                let done = call();
                self.state.lock().unwrap().walker = None;
                self.changed.notify_all();
                done
            });
            while !caller.is_finished() {
                let state = self.state.lock().unwrap();
                // The caller may not have begun, or may have ended.
                let has_ended = || caller.is_finished();
                let state = self
                    .changed
                    .wait_while(state, |state| !state.is_waiting && state.walker.is_some() && !has_ended())
                    .unwrap();
                if !state.is_waiting {
                    drop(state);
                    thread::yield_now();
                    continue;
                }
                drop(state);
                meanwhile();
                self.state.lock().unwrap().is_waiting = false;
                self.changed.notify_all();
            }
            caller.join().expect("the call")
        })
    }
}

impl Device for Turnstile {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> espalier_storage::Result<()> {
        let mut state = self.state.lock().unwrap();
        if state.walker == Some(thread::current().id()) {
            state.is_waiting = true;
            self.changed.notify_all();
            drop(self.changed.wait_while(state, |state| state.is_waiting).unwrap());
        } else {
            drop(state);
        }
        self.inner.read_at(offset, buffer)
    }
    fn announce(&self, _ranges: &[Range<u64>]) {}
    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> espalier_storage::Result<()> {
        self.inner.write_at(offset, buffers)
    }
    fn sync(&self) -> espalier_storage::Result<()> {
        self.inner.sync()
    }
    fn discard(&self, offset: u64, length: u64) -> espalier_storage::Result<()> {
        self.inner.discard(offset, length)
    }
}

/// /top, a large tree of the user's, which has to be walked: its /top/special lends the rights of
/// the user's own group.
struct Large {
    turnstile: Arc<Turnstile>,
    bench: Bench,
    top: NodeId,
    special: NodeId,
}

impl Large {
    fn new() -> Self {
        let turnstile = Turnstile::new();
        let device: Arc<dyn Device> = turnstile.clone();
        let env: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(0));
        Store::format(device.clone(), env.clone(), &Default::default()).expect("format");
        let open = |memory| {
            let (merge, tuning) = (merge_functions(), Tuning::tiny());
            let options = espalier_engine::OpenOptions { memory, merge, tuning, ..Default::default() };
            Store::open(device.clone(), env.clone(), options).expect("open")
        };
        // Made with more memory, so that no writer waits.
        let store = open(64 << 20);
        FileSystem::format(&store, &FormatOptions::default()).expect("format");
        let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).expect("open");
        fs.setattr(NodeId::ROOT, &set(Some(0o777), None, None)).expect("chmod");
        let top = fs.mkdir(NodeId::ROOT, b"top", 0o755, &USER).expect("mkdir").node;
        let special = fs.mknod(top, b"special", NewNode::Regular, 0o2755, &USER).expect("mknod").node;
        for n in 0..LINKS {
            // Of which no two are alike.
            let target: Vec<u8> = (0..TARGET_BYTES).map(|at| (at * (n + 7) % 253) as u8 + 1).collect();
            let made = fs.symlink(top, format!("link-{n}").as_bytes(), &target, &USER).expect("symlink");
            fs.forget(made.node, 1);
        }
        for node in [special, top] {
            fs.forget(node, 1);
        }
        fs.close().expect("close");
        store.close().expect("close");
        drop((fs, store));
        let store = open(MEMORY);
        let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).expect("open");
        let bench = Bench { device, env, store, fs };
        let top = bench.look(NodeId::ROOT, "top");
        let special = bench.look(top, "special");
        Self { turnstile, bench, top, special }
    }

    /// The user clones the tree. `meanwhile` is called each time that waits for the device.
    fn clone_while(&self, name: &str, meanwhile: impl FnMut()) -> Result<(), FsErrorKind> {
        let clone = || self.bench.fs.clone_tree(self.top, NodeId::ROOT, name.as_bytes(), &USER);
        self.turnstile.call(clone, meanwhile).map(|_| ()).map_err(|error| error.kind())
    }

    fn walks(&self) -> u64 {
        self.bench.fs.statistics().ownership_walks
    }
}

#[test]
fn a_walk_holds_up_no_call_however_often_the_tree_changes() {
    let large = Large::new();
    let fs = &large.bench.fs;
    let aside = fs.mkdir(NodeId::ROOT, b"aside", 0o755, &USER).expect("mkdir").node;
    // Nothing contradicts what the walk says.
    let mut calls = 0;
    let done = large.clone_while("copy", || {
        calls += 1;
        // One that excludes all others.
        let (old, new) = (format!("aside{}", "'".repeat(calls - 1)), format!("aside{}", "'".repeat(calls)));
        if calls < 50 {
            let mode = RenameMode::NoReplace;
            fs.rename(NodeId::ROOT, old[..].as_bytes(), NodeId::ROOT, new.as_bytes(), mode).expect("rename");
            fs.mknod(aside, format!("{calls}").as_bytes(), NewNode::Regular, 0o644, &USER).expect("mknod");
        }
    });
    assert_eq!((done, large.walks()), (Ok(()), 1));
    assert!(calls > 0, "the walk reads nothing from the device");
    // The user makes every walk worthless.
    let before = large.walks();
    let mut reads = 0;
    let spoil = || {
        // Several times in each walk.
        if reads % 16 == 0 {
            fs.setattr(large.special, &set(Some(0o2755), None, None)).expect("chmod");
        }
        reads += 1;
    };
    assert_eq!(large.clone_while("spoiled", spoil), Err(FsErrorKind::Permission));
    assert_eq!(large.walks() - before, WALKS_MAX);
    // And that can be left alone.
    assert_eq!(large.clone_while("left alone", || {}), Ok(()));
    large.bench.check(0);
}

#[test]
fn a_tree_that_is_changed_once_is_walked_again() {
    let large = Large::new();
    let mut is_first = true;
    let done = large.clone_while("copy", || {
        if std::mem::take(&mut is_first) {
            large.bench.fs.setattr(large.special, &set(Some(0o2755), None, None)).expect("chmod");
        }
    });
    assert_eq!((done, large.walks()), (Ok(()), 2));
    large.bench.check(0);
}

#[test]
fn moves_within_a_tree_spoil_no_walk() {
    let large = Large::new();
    let fs = &large.bench.fs;
    let names: [&[u8]; 2] = [b"here", b"there"];
    let dir = fs.mkdir(large.top, names[0], 0o755, &USER).expect("mkdir").node;
    // Above it there are no marks, so the directory does not agree with one.
    fs.mknod(dir, b"special", NewNode::Regular, 0o2755, &USER).expect("mknod");
    let mut moves = 0;
    let done = large.clone_while("copy", || {
        // Each waits for the walk to let go of the tree lock.
        if moves < 20 {
            let (old, new) = (names[moves % 2], names[(moves + 1) % 2]);
            fs.rename(large.top, old, large.top, new, RenameMode::NoReplace).expect("rename");
            moves += 1;
        }
    });
    assert_eq!((done, large.walks()), (Ok(()), 1));
    assert!(moves > 0, "the walk reads nothing from the device");
    large.bench.check(0);
}

#[test]
fn no_walk_misses_a_foreign_file_behind_a_name_that_moves_in() {
    let large = Large::new();
    let fs = &large.bench.fs;
    let dir = fs.mkdir(NodeId::ROOT, b"dir", 0o755, &USER).expect("mkdir").node;
    let below = fs.mkdir(dir, b"below", 0o755, &USER).expect("mkdir").node;
    let file = fs.mknod(below, b"file", NewNode::Regular, 0o644, &USER).expect("mknod").node;
    fs.link(file, NodeId::ROOT, b"other name").expect("link");
    fs.setattr(file, &set(None, Some(8), None)).expect("chown");
    let mut is_first = true;
    let done = large.clone_while("copy", || {
        if std::mem::take(&mut is_first) {
            fs.rename(dir, b"below", large.top, b"below", RenameMode::NoReplace).expect("rename");
        }
    });
    assert!(!is_first, "the walk reads nothing from the device");
    assert_eq!(done, Err(FsErrorKind::Permission));
    large.bench.check(0);
}

/// Root walks where objects may be protected, and only for those.
#[test]
fn walks_for_root_are_spoiled_by_protected_objects_only() {
    use espalier_fs::FileFlags;
    let large = Large::new();
    let fs = &large.bench.fs;
    fs.set_flags(large.special, FileFlags::IMMUTABLE, &ROOT).expect("chattr");
    fs.set_flags(large.special, FileFlags::default(), &ROOT).expect("chattr");
    let other = fs.mknod(large.top, b"other", NewNode::Regular, 0o644, &ROOT).expect("mknod").node;
    let change = crate::ownership::keep(0o7777, 0);
    let chmod = |meanwhile: &mut dyn FnMut()| {
        let chmod = || fs.chmod_tree(large.top, change, &ROOT);
        large.turnstile.call(chmod, meanwhile).map_err(|error| error.kind())
    };
    let before = large.walks();
    let mut owner = 0;
    let gives = &mut || {
        owner = 8 - owner;
        fs.setattr(other, &set(None, Some(owner), None)).expect("chown");
    };
    assert_eq!((chmod(gives), large.walks() - before), (Ok(()), 1));
    let mut is_first = true;
    let protects = &mut || {
        if std::mem::take(&mut is_first) {
            fs.set_flags(large.special, FileFlags::APPEND, &ROOT).expect("chattr");
        }
    };
    assert_eq!(chmod(protects), Err(FsErrorKind::Permission));
    assert_eq!(
        fs.remove_tree(NodeId::ROOT, b"top", &ROOT).map_err(|e| e.kind()),
        Err(FsErrorKind::Permission)
    );
    large.bench.check(0);
}
