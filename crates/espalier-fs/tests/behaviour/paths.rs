//! Calls by path: bad input, and what the library remembers against what changes.

use crate::Bench;
use espalier_engine::Store;
use espalier_fs::{
    Attr, Caller, Credentials, FileSystem, FormatOptions, FsErrorKind, Links, ModeChange, NewNode, NodeId,
    Open, OwnerChange, PathCaller, Paths, RenameHow, Result, XattrMode,
};
use espalier_storage::{BLOCK, Device, Environment, MemoryDevice, SystemEnvironment};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Vec::new() }
}

/// A file system, root, and user 7.
pub(crate) fn bench() -> (Bench, Arc<Paths>, PathCaller, PathCaller) {
    let bench = Bench::new(1);
    let paths = Paths::new(bench.fs.clone()).unwrap();
    let (root, seven) = (paths.caller(Credentials::default()), paths.caller(user(7)));
    (bench, paths, root, seven)
}

#[track_caller]
pub(crate) fn assert_kind<T>(result: Result<T>, kind: FsErrorKind) {
    match result {
        Ok(_) => panic!("it succeeded"),
        Err(error) => assert_eq!(error.kind(), kind, "{error}"),
    }
}

pub(crate) fn stat(caller: &PathCaller, path: &str) -> Result<Attr> {
    caller.stat(path, Links::Follow)
}

/// Makes the directories of a path.
pub(crate) fn make(root: &PathCaller, path: &str) {
    for (at, _) in path.match_indices('/').skip(1).chain([(path.len(), "")]) {
        root.mkdir(&path[..at], 0o755).unwrap();
    }
}

#[test]
fn bad_paths_are_refused() {
    let (bench, _paths, root, _) = bench();
    root.mkdir("/d", 0o755).unwrap();
    root.mknod("/f", NewNode::Regular, 0o644).unwrap();
    assert_kind(stat(&root, ""), FsErrorKind::NotFound);
    assert_kind(root.stat(b"/d\0", Links::Follow), FsErrorKind::Invalid);
    assert_kind(root.mkdir(b"/d/\0", 0o755), FsErrorKind::Invalid);
    assert_kind(root.symlink(b"a\0", "/l"), FsErrorKind::Invalid);
    assert_kind(stat(&root, &"x".repeat(256)), FsErrorKind::NameTooLong);
    assert_kind(stat(&root, &format!("/f/{}", "x".repeat(256))), FsErrorKind::NotDirectory);
    assert_kind(stat(&root, &"x/".repeat((1 << 19) + 1)), FsErrorKind::NameTooLong);
    assert_kind(stat(&root, &"x/".repeat(1 << 19)), FsErrorKind::NotFound);
    // As many as a path has room for lead there.
    assert_eq!(
        stat(&root, &format!("/d{}", "/.".repeat((1 << 19) - 2))).unwrap().ino,
        stat(&root, "/d").unwrap().ino
    );
    let back_and_forth = format!("/{}d", "d/../".repeat(100_000));
    assert_eq!(stat(&root, &back_and_forth).unwrap().ino, stat(&root, "/d").unwrap().ino);
    assert_kind(stat(&root, &"/f/..".repeat(10)), FsErrorKind::NotDirectory);
    for bytes in [&b"\xff\xfe"[..], b"\x01", b"\x02\x01\x02", b"a\nb", b" "] {
        root.mknod(bytes, NewNode::Regular, 0o644).unwrap();
        assert_eq!(root.stat(bytes, Links::Stay).unwrap().size, 0);
        root.mkdir(&[b"/d/", bytes].concat(), 0o755).unwrap();
        let below = [b"/d/", bytes, b"/", bytes].concat();
        root.mknod(&below, NewNode::Regular, 0o644).unwrap();
        root.unlink(&below).unwrap();
    }
    bench.check(0);
}

/// `fs.protected_regular` holds for a call that would make the file if it were missing.
#[test]
fn what_would_be_made_is_not_taken_from_others() {
    let (bench, paths, root, seven) = bench();
    root.mkdir("/tmp", 0o777).unwrap();
    root.chmod("/tmp", 0o1777, Links::Stay).unwrap();
    paths.caller(user(8)).mknod("/tmp/other", NewNode::Regular, 0o666).unwrap();
    root.chmod("/tmp/other", 0o666, Links::Stay).unwrap();
    seven.mknod("/tmp/own", NewNode::Regular, 0o600).unwrap();
    let write = Open { write: true, ..Open::default() };
    let would = Open { would_create: true, ..write };
    assert!(seven.open("/tmp/other", &write).is_ok());
    assert_kind(seven.open("/tmp/other", &would), FsErrorKind::AccessDenied);
    assert_kind(seven.open("/tmp/other", &Open { create: Some(0o600), ..write }), FsErrorKind::AccessDenied);
    assert!(seven.open("/tmp/own", &would).is_ok());
    for how in [write, would] {
        assert_kind(seven.open("/tmp/none", &how), FsErrorKind::NotFound);
    }
    assert_kind(stat(&seven, "/tmp/none"), FsErrorKind::NotFound);
    bench.check(0);
}

#[test]
fn forty_links_are_followed() {
    let (_bench, _paths, root, _) = bench();
    root.mknod("/0", NewNode::Regular, 0o644).unwrap();
    for n in 1..=41 {
        root.symlink(format!("{}", n - 1).as_bytes(), &format!("/{n}")).unwrap();
    }
    assert_eq!(stat(&root, "/40").unwrap().ino, stat(&root, "/0").unwrap().ino);
    assert_kind(stat(&root, "/41"), FsErrorKind::Loop);
    assert_eq!(root.read_link("/41").unwrap(), b"40");
    root.symlink(b"loop/x", "/loop").unwrap();
    assert_kind(stat(&root, "/loop"), FsErrorKind::Loop);
    assert_kind(root.open("/loop/a/b", &Open::create(0o644)), FsErrorKind::Loop);
    // A target that begins at the root, with as much behind it as fits.
    root.symlink(b"/", "/top").unwrap();
    assert_eq!(stat(&root, &format!("/{}0", "top/".repeat(40))).unwrap().ino, stat(&root, "/0").unwrap().ino);
    assert_kind(stat(&root, &format!("/{}0", "top/".repeat(41))), FsErrorKind::Loop);
}

#[test]
fn a_known_path_costs_no_look_up_but_that_of_the_last_name() {
    let (bench, _paths, root, seven) = bench();
    let deep = format!("/{}", vec!["deep"; 64].join("/"));
    make(&root, &deep);
    let file = format!("{deep}/file");
    root.mknod(&file, NewNode::Regular, 0o644).unwrap();
    stat(&seven, &file).unwrap();
    let before = bench.fs.statistics();
    for _ in 0..10 {
        stat(&root, &file).unwrap();
        stat(&seven, &file).unwrap();
    }
    let after = bench.fs.statistics();
    let asked = |s: &espalier_fs::FsStatistics| s.lookup_hits + s.lookup_misses;
    assert_eq!(asked(&after) - asked(&before), 20);
}

/// The call by path finds the node that a caller by node has, with what is not stored yet.
#[test]
fn a_path_leads_to_the_node_in_use() {
    let (bench, _paths, root, _) = bench();
    let dir = bench.dir(NodeId::ROOT, "d");
    let file = bench.file(dir, "f");
    bench.fs.write(file, 0, b"abc", false).unwrap();
    assert_eq!(root.read("/d/f").unwrap(), b"abc");
    root.open("/d/f", &Open::write()).unwrap().write_at(3, b"d").unwrap();
    assert_eq!(bench.read(file), b"abcd");
    bench.fs.link(file, NodeId::ROOT, b"again").unwrap();
    assert_eq!(stat(&root, "/again").unwrap(), bench.fs.getattr(file).unwrap());
    // What waits to be applied to nodes in memory.
    let owner = OwnerChange { uid: Some(7), gid: None };
    bench.fs.chown_tree(dir, owner, &Caller::default()).unwrap();
    assert_eq!((stat(&root, "/d/f").unwrap().uid, stat(&root, "/again").unwrap().uid), (7, 7));
}

#[test]
fn a_change_of_rights_above_is_seen_by_the_next_call() {
    let (bench, _paths, root, seven) = bench();
    make(&root, "/a/b/c/d");
    root.mknod("/a/b/c/d/f", NewNode::Regular, 0o644).unwrap();
    let node = |path: &str| {
        path.split('/')
            .filter(|n| !n.is_empty())
            .fold(NodeId::ROOT, |at, name| bench.fs.lookup(at, name.as_bytes()).unwrap().node)
    };
    let file = "/a/b/c/d/f";
    for dir in ["/a", "/a/b", "/a/b/c", "/a/b/c/d"] {
        stat(&seven, file).unwrap();
        root.chmod(dir, 0o700, Links::Follow).unwrap();
        assert_kind(stat(&seven, file), FsErrorKind::AccessDenied);
        root.chown(dir, OwnerChange { uid: Some(7), gid: None }, Links::Follow).unwrap();
        stat(&seven, file).unwrap();
        root.chown(dir, OwnerChange { uid: Some(0), gid: None }, Links::Follow).unwrap();
        root.chmod(dir, 0o755, Links::Follow).unwrap();
        stat(&seven, file).unwrap();
        // A list that gives user 7 nothing.
        let entries: [(u16, u16, u32); 5] = [(1, 7, !0), (2, 0, 7), (4, 5, !0), (16, 7, !0), (32, 5, !0)];
        let mut list = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            list.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            list.extend(id.to_le_bytes());
        }
        let name = b"system.posix_acl_access";
        root.set_xattr(dir, name, &list, XattrMode::Set, Links::Follow).unwrap();
        assert_kind(stat(&seven, file), FsErrorKind::AccessDenied);
        root.remove_xattr(dir, name, Links::Follow).unwrap();
        root.chmod(dir, 0o755, Links::Follow).unwrap();
        stat(&seven, file).unwrap();
        // By node, as through a mount, and of a whole tree.
        let modes = |keep, add| ModeChange {
            keep_directories: keep,
            add_directories: add,
            keep_files: !0,
            add_files: 0,
            add_executables: 0,
        };
        bench.fs.chmod_tree(node(dir), modes(!0o077, 0), &Caller::default()).unwrap();
        assert_kind(stat(&seven, file), FsErrorKind::AccessDenied);
        bench.fs.chmod_tree(node(dir), modes(!0, 0o055), &Caller::default()).unwrap();
        stat(&seven, file).unwrap();
    }
}

#[test]
fn moves_and_removals_above_are_seen_by_the_next_call() {
    let (bench, _paths, root, seven) = bench();
    make(&root, "/a/b/c");
    make(&root, "/x/b/c");
    for path in ["/a/b/c/f", "/x/b/c/f"] {
        root.mknod(path, NewNode::Regular, 0o644).unwrap();
    }
    let (first, second) = (stat(&seven, "/a/b/c/f").unwrap().ino, stat(&seven, "/x/b/c/f").unwrap().ino);
    root.rename("/a/b", "/x/b", RenameHow::Exchange).unwrap();
    assert_eq!(stat(&seven, "/a/b/c/f").unwrap().ino, second);
    assert_eq!(stat(&seven, "/x/b/c/f").unwrap().ino, first);
    // A private directory comes to lie above a path that was free.
    make(&root, "/private/b/c");
    root.chmod("/private", 0o700, Links::Follow).unwrap();
    root.rename("/a", "/old", RenameHow::Replace).unwrap();
    root.rename("/private", "/a", RenameHow::Replace).unwrap();
    assert_kind(stat(&seven, "/a/b/c"), FsErrorKind::AccessDenied);
    assert_eq!(stat(&seven, "/old/b/c/f").unwrap().ino, second);
    assert_kind(stat(&root, "/a/b/c/f"), FsErrorKind::NotFound);
    // The same directory at the same path, below others.
    make(&root, "/closed/b");
    root.chmod("/closed", 0o700, Links::Follow).unwrap();
    stat(&seven, "/old/b/c/f").unwrap();
    root.rename("/old/b/c", "/c", RenameHow::Replace).unwrap();
    root.rename("/old", "/older", RenameHow::Replace).unwrap();
    root.rename("/closed", "/old", RenameHow::Replace).unwrap();
    root.rename("/c", "/old/b/c", RenameHow::Replace).unwrap();
    assert_kind(stat(&seven, "/old/b/c/f"), FsErrorKind::AccessDenied);
    root.chmod("/old", 0o755, Links::Follow).unwrap();
    // Removed one by one and made anew, private.
    root.unlink("/old/b/c/f").unwrap();
    root.rmdir("/old/b/c").unwrap();
    root.mkdir("/old/b/c", 0o700).unwrap();
    root.mkdir("/old/b/c/d", 0o755).unwrap();
    assert_kind(stat(&seven, "/old/b/c/d"), FsErrorKind::AccessDenied);
    // Removed as a whole: what the library remembers keeps nothing in use.
    stat(&root, "/x/b/c/f").unwrap();
    bench.fs.remove_tree(NodeId::ROOT, b"x", &Caller::default()).unwrap();
    assert_kind(stat(&root, "/x/b/c/f"), FsErrorKind::NotFound);
    assert_eq!(bench.fs.statistics().orphans, 0);
    // A clone has files of its own.
    let source = bench.fs.lookup(NodeId::ROOT, b"old").unwrap().node;
    bench.fs.clone_tree(source, NodeId::ROOT, b"x", &Caller::default()).unwrap();
    assert_ne!(stat(&root, "/x/b/c/d").unwrap().ino, stat(&root, "/old/b/c/d").unwrap().ino);
    assert_kind(stat(&seven, "/x/b/c/d"), FsErrorKind::AccessDenied);
    bench.fs.forget(source, 1);
    bench.check(0);
}

#[test]
fn callers_begin_where_they_are() {
    let (_bench, _paths, root, seven) = bench();
    make(&root, "/jail/home");
    root.symlink(b"/home", "/jail/link").unwrap();
    root.symlink(b"../../../home", "/jail/home/up").unwrap();
    root.mknod("/outside", NewNode::Regular, 0o644).unwrap();
    assert_kind(seven.clone().in_root("/jail"), FsErrorKind::Permission);
    let inside = root.clone().in_root("/jail").unwrap().with_credentials(user(7));
    assert_eq!(stat(&inside, "/link").unwrap().ino, stat(&root, "/jail/home").unwrap().ino);
    assert_eq!(stat(&inside, "home/up").unwrap().ino, stat(&root, "/jail/home").unwrap().ino);
    assert_eq!(stat(&inside, "/../..").unwrap().ino, stat(&root, "/jail").unwrap().ino);
    assert_kind(stat(&inside, "/../outside"), FsErrorKind::NotFound);
    let home = root.open("/jail/home", &Open::default()).unwrap();
    root.chmod("/jail", 0o700, Links::Follow).unwrap();
    // Above an open directory nothing is asked; `..` may be looked up in it.
    assert_eq!(seven.stat(home.at("."), Links::Follow).unwrap().ino, home.stat().unwrap().ino);
    assert_eq!(seven.stat(home.at(".."), Links::Follow).unwrap().mode, 0o700);
    assert_kind(seven.stat(home.at("../home"), Links::Follow), FsErrorKind::AccessDenied);
    let there = seven.clone().in_directory(home.at(".")).unwrap();
    assert_eq!(there.read_link("up").unwrap(), b"../../../home");
    assert_kind(home.read_at(0, &mut [0]), FsErrorKind::AccessDenied);
}

#[test]
fn open_files_have_all_calls() {
    let (bench, _paths, root, seven) = bench();
    let file = root.open("/f", &Open::create(0o600)).unwrap();
    root.chown(file.itself(), OwnerChange { uid: Some(7), gid: None }, Links::Follow).unwrap();
    root.rename("/f", "/g", RenameHow::Replace).unwrap();
    seven.chmod(file.itself(), 0o640, Links::Follow).unwrap();
    seven.truncate(file.itself(), 1 << 40).unwrap();
    assert_eq!((file.stat().unwrap().mode, file.stat().unwrap().uid), (0o640, 7));
    assert_kind(root.read("/g"), FsErrorKind::TooBig);
    assert_kind(root.unlink(file.itself()), FsErrorKind::IsDirectory);
    // One without a name gets one, and one that has lost it can be used.
    let unnamed = root.open_unnamed("/", 0o644).unwrap();
    unnamed.write_at(0, b"abc").unwrap();
    root.link_open(&unnamed, "/h").unwrap();
    root.unlink("/h").unwrap();
    let mut read = [0; 3];
    assert_eq!((unnamed.read_at(0, &mut read).unwrap(), &read), (3, b"abc"));
    assert_eq!(unnamed.stat().unwrap().nlink, 0);
    unnamed.sync().unwrap();
    drop((file, unnamed));
    bench.check(0);
}

/// A call that may make a file finds one or makes it, whatever others do meanwhile.
#[test]
fn a_file_is_made_or_found() {
    let (bench, _paths, root, seven) = bench();
    root.chmod("/", 0o777, Links::Follow).unwrap();
    std::thread::scope(|scope| {
        for caller in [&root, &seven] {
            scope.spawn(move || {
                for n in 0..1000 {
                    caller.open(&format!("/f{}", n / 2), &Open::create(0o666)).unwrap();
                }
            });
        }
    });
    bench.check(0);
}

/// While directories change places and rights, a user never reaches what was closed during the
/// whole call.
#[test]
fn what_is_closed_stays_closed_while_directories_move() {
    let (bench, _paths, root, seven) = bench();
    for path in ["/open/a/b", "/closed/a/b"] {
        make(&root, path);
        root.mknod(&format!("{path}/f"), NewNode::Regular, 0o644).unwrap();
    }
    root.chmod("/closed", 0o700, Links::Follow).unwrap();
    let secret = stat(&root, "/closed/a/b/f").unwrap().ino;
    std::thread::scope(|scope| {
        let mover = scope.spawn(|| {
            for _ in 0..500 {
                root.rename("/open", "/closed", RenameHow::Exchange).unwrap();
            }
        });
        while !mover.is_finished() {
            for path in ["/open/a/b/f", "/closed/a/b/f"] {
                match stat(&seven, path) {
                    Ok(attr) => {
                        assert_ne!(attr.ino, secret, "user 7 has come into a closed directory");
                    }
                    Err(error) => assert_eq!(error.kind(), FsErrorKind::AccessDenied),
                }
            }
        }
    });
    bench.check(0);
}

/// What a change of rights that has returned says holds for every call that begins afterwards.
#[test]
fn rights_are_seen_in_the_order_of_their_changes() {
    let (bench, _paths, root, seven) = bench();
    make(&root, "/a/b/c");
    root.mknod("/a/b/c/f", NewNode::Regular, 0o644).unwrap();
    // Odd: /a is closed, and a change has returned; even: one is under way, or it is open.
    let state = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2000 {
                root.chmod("/a", 0o700, Links::Follow).unwrap();
                state.fetch_add(1, Ordering::SeqCst);
                std::thread::yield_now();
                state.fetch_add(1, Ordering::SeqCst);
                root.chmod("/a", 0o755, Links::Follow).unwrap();
            }
        });
        for caller in [seven.clone(), seven.clone()] {
            let state = &state;
            scope.spawn(move || {
                for _ in 0..10_000 {
                    let before = state.load(Ordering::SeqCst);
                    let result = stat(&caller, "/a/b/c/f");
                    let is_closed = before % 2 == 1 && state.load(Ordering::SeqCst) == before;
                    assert!(!is_closed || result.is_err(), "a call went through a closed directory");
                }
            });
        }
    });
    stat(&seven, "/a/b/c/f").unwrap();
    bench.check(0);
}

/// A device far away: a read of blocks that were not announced waits for an answer.
#[derive(Debug)]
struct Distant {
    inner: MemoryDevice,
    announced: Mutex<BTreeSet<u64>>,
    waits: AtomicU64,
    /// It wants to be told of reads.
    is_far: AtomicBool,
}

fn blocks(range: Range<u64>) -> Range<u64> {
    range.start / BLOCK as u64..range.end / BLOCK as u64
}

impl Device for Distant {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> espalier_storage::Result<()> {
        let mut announced = self.announced.lock().unwrap();
        let wanted = blocks(offset..offset + buffer.len() as u64);
        if !wanted.into_iter().all(|block| announced.remove(&block)) {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.read_at(offset, buffer)
    }
    fn announce(&self, ranges: &[Range<u64>]) {
        self.announced.lock().unwrap().extend(ranges.iter().cloned().flat_map(blocks));
    }
    fn read_ahead_bytes(&self) -> u64 {
        if self.is_far.load(Ordering::Relaxed) { 1 << 20 } else { 0 }
    }
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

/// A path of so many components.
fn deep(depth: usize) -> String {
    (0..depth).map(|level| format!("/level-{level}")).collect()
}

/// Where each read takes long, those for the directories above a path are begun together.
#[test]
fn the_directories_above_are_read_side_by_side() {
    const DEPTH: usize = 64;
    let (inner, announced, waits) = (MemoryDevice::new(256 << 20), Mutex::default(), AtomicU64::new(0));
    let distant = Arc::new(Distant { inner, announced, waits, is_far: AtomicBool::new(true) });
    let device: Arc<dyn Device> = distant.clone();
    let env: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(0));
    Store::format(device.clone(), env.clone(), &Default::default()).unwrap();
    let open = || {
        let store = Bench::open_store(&device, &env);
        let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).unwrap();
        let paths = Paths::new(fs.clone()).unwrap();
        (store, fs, paths)
    };
    let store = Bench::open_store(&device, &env);
    FileSystem::format(&store, &FormatOptions::default()).unwrap();
    store.close().unwrap();
    drop(store);
    let (store, fs, paths) = open();
    let root = paths.caller(Credentials::default());
    for above in 1..DEPTH {
        let directory = format!("/d{}", deep(above - 1));
        root.mkdir(&directory, 0o755).unwrap();
        for n in 0..30 {
            root.mknod(&format!("{directory}/other-{n}"), NewNode::Regular, 0o644).unwrap();
        }
    }
    root.mknod(&format!("/d{}", deep(DEPTH - 1)), NewNode::Regular, 0o644).unwrap();
    drop((root, paths));
    fs.close().unwrap();
    drop(fs);
    store.close().unwrap();
    drop(store);
    // Of a path whose upper half is in memory the lower half waits.
    for warm in [0, DEPTH / 2] {
        let [one_by_one, together] = [false, true].map(|is_far| {
            distant.is_far.store(is_far, Ordering::Relaxed);
            let (store, fs, paths) = open();
            let seven = paths.caller(user(7));
            // What any path needs.
            assert_kind(stat(&seven, "/none"), FsErrorKind::NotFound);
            if warm > 0 {
                stat(&seven, &format!("/d{}/other-0", deep(warm))).unwrap();
            }
            let before = distant.waits.load(Ordering::Relaxed);
            stat(&seven, &format!("/d{}", deep(DEPTH - 1))).unwrap();
            let waits = distant.waits.load(Ordering::Relaxed) - before;
            drop((seven, paths));
            fs.close().unwrap();
            drop(fs);
            store.close().unwrap();
            waits
        });
        assert!(
            together * 3 < one_by_one,
            "{together} waits for a path of {DEPTH} names, {one_by_one} alone; {warm} in memory"
        );
    }
}
