//! What it costs to resolve a path, in time and in look-ups of the store, by the number of its
//! components: whole, and component by component. `cargo run --release -p espalier-fs --example
//! paths`; the first argument sets how many paths of each depth there are.
//!
//! *Cold* means that the store was opened anew: nothing is in memory but what the paths before have
//! left, and each path has directories of its own. *Warm* means that each path was asked for
//! before. Component by component means one `FileSystem::lookup` for each name: with all references
//! given back afterwards, as a program without a cache of names does it, or with the directories
//! held, as a kernel's cache of names holds them.

use espalier_engine::Store;
use espalier_fs::{
    Caller, Credentials, FileSystem, FormatOptions, Links, NodeId, Open, OpenOptions, PathCaller, Paths,
    merge_functions,
};
use espalier_storage::{Device, Environment, MemoryDevice, SystemEnvironment};
use std::sync::Arc;
use std::time::{Duration, Instant};

const DEPTHS: [usize; 4] = [1, 4, 16, 64];
/// Entries of each directory beside the one that a path leads through.
const SIBLINGS: usize = 8;
/// A warm path is resolved so often.
const ROUNDS: usize = 20;

struct Bench {
    device: Arc<dyn Device>,
    env: Arc<dyn Environment>,
}

/// A file system that was opened anew.
struct Opened {
    store: Arc<Store>,
    fs: Arc<FileSystem>,
    paths: Arc<Paths>,
}

impl Bench {
    fn new() -> Self {
        let bench =
            Self { device: Arc::new(MemoryDevice::new(4 << 30)), env: Arc::new(SystemEnvironment::new(1)) };
        Store::format(bench.device.clone(), bench.env.clone(), &Default::default()).unwrap();
        let store = bench.store();
        FileSystem::format(&store, &FormatOptions::default()).unwrap();
        store.close().unwrap();
        bench
    }

    fn store(&self) -> Arc<Store> {
        let options = espalier_engine::OpenOptions { merge: merge_functions(), ..Default::default() };
        Store::open(self.device.clone(), self.env.clone(), options).unwrap()
    }

    fn open(&self) -> Opened {
        let store = self.store();
        let fs = FileSystem::open(store.clone(), self.env.clone(), OpenOptions::default()).unwrap();
        let paths = Paths::new(fs.clone()).unwrap();
        Opened { store, fs, paths }
    }
}

impl Opened {
    fn close(self) {
        let Self { store, fs, paths } = self;
        drop(paths);
        fs.close().unwrap();
        drop(fs);
        store.close().unwrap();
    }

    fn caller(&self, uid: u32) -> PathCaller {
        self.paths.caller(Credentials { uid, gid: uid, groups: Vec::new() })
    }
}

/// The path of file `number` of those with so many components.
fn path(depth: usize, number: usize) -> String {
    let mut path = format!("/d{depth}-{number:05}");
    (1..depth).for_each(|level| path += &format!("/level-{level}"));
    path
}

fn make(opened: &Opened, files: usize) {
    let root = opened.caller(0);
    for depth in DEPTHS {
        for number in 0..files {
            let file = path(depth, number);
            let above: Vec<usize> = file.match_indices('/').map(|(at, _)| at).skip(1).collect();
            for end in above {
                root.mkdir(&file[..end], 0o755).unwrap();
                for sibling in 0..SIBLINGS {
                    root.mkdir(&format!("{}/other-{sibling}", &file[..end]), 0o755).unwrap();
                }
            }
            root.open(&file, &Open::create(0o644)).unwrap();
        }
    }
}

/// Time and look-ups of the store for each of `count` calls.
fn measure(fs: &FileSystem, count: usize, call: impl FnMut(usize)) -> (Duration, f64) {
    let (asked, begun) = (fs.statistics().lookup_misses, Instant::now());
    (0..count).for_each(call);
    let time = begun.elapsed() / count as u32;
    (time, (fs.statistics().lookup_misses - asked) as f64 / count as f64)
}

/// Resolves a path name by name; `held` gets references on the directories.
fn by_component(fs: &FileSystem, path: &str, held: Option<&mut Vec<NodeId>>) {
    let mut at = NodeId::ROOT;
    let mut found = Vec::new();
    for name in path.split('/').skip(1) {
        at = fs.lookup(at, name.as_bytes()).unwrap().node;
        found.push(at);
    }
    fs.getattr(at).unwrap();
    match held {
        Some(held) => held.extend(found),
        None => found.into_iter().rev().for_each(|node| fs.forget(node, 1)),
    }
}

fn show(what: &str, (time, asked): (Duration, f64)) {
    println!("  {what:<46} {:>9.2} us {asked:>8.2} look-ups", time.as_nanos() as f64 / 1000.0);
}

fn depths(bench: &Bench, files: usize) {
    for depth in DEPTHS {
        println!("{depth} components");
        let cold = |call: &mut dyn FnMut(&Opened, &str)| {
            let opened = bench.open();
            let measured = measure(&opened.fs, files, |number| call(&opened, &path(depth, number)));
            opened.close();
            measured
        };
        let stat = |caller: &PathCaller, path: &str| {
            caller.stat(path, Links::Follow).unwrap();
        };
        show("cold, by component", cold(&mut |opened, path| by_component(&opened.fs, path, None)));
        show("cold, whole", cold(&mut |opened, path| stat(&opened.caller(0), path)));
        show("cold, whole, as a user", cold(&mut |opened, path| stat(&opened.caller(7), path)));
        let opened = bench.open();
        let warm = |call: &mut dyn FnMut(&str)| {
            (0..files).for_each(|number| call(&path(depth, number)));
            measure(&opened.fs, files * ROUNDS, |number| call(&path(depth, number % files)))
        };
        show("warm, by component", warm(&mut |path| by_component(&opened.fs, path, None)));
        let mut held = Vec::new();
        (0..files).for_each(|number| by_component(&opened.fs, &path(depth, number), Some(&mut held)));
        show("warm, by component, names held", warm(&mut |path| by_component(&opened.fs, path, None)));
        held.into_iter().rev().for_each(|node| opened.fs.forget(node, 1));
        let (root, user) = (opened.caller(0), opened.caller(7));
        show("warm, whole", warm(&mut |path| stat(&root, path)));
        show("warm, whole, as a user", warm(&mut |path| stat(&user, path)));
        opened.close();
    }
}

/// What the parts of a resolution add, on a path of 16 components.
fn parts(bench: &Bench) {
    println!("parts, 16 components, warm");
    let opened = bench.open();
    let (root, user) = (opened.caller(0), opened.caller(7));
    let file = path(16, 0);
    let count = 10_000;
    let run = |what, call: &mut dyn FnMut()| {
        call();
        show(what, measure(&opened.fs, count, |_| call()));
    };
    let stat = |caller: &PathCaller, path: &str| {
        caller.stat(path, Links::Follow).unwrap();
    };
    let directory = file.rsplit_once('/').unwrap().0;
    run("the last name asked of the store", &mut || stat(&root, &file));
    let open = root.open(&file, &Open::default()).unwrap();
    run("the last name known", &mut || stat(&root, &file));
    run("as a user, rights known", &mut || stat(&user, &file));
    let mut mode = 0o755;
    run("as a user, and a chmod of the first directory", &mut || {
        mode ^= 0o200;
        root.chmod(&file[..file[1..].find('/').unwrap() + 1], mode, Links::Follow).unwrap();
        stat(&user, &file);
    });
    run("that chmod alone", &mut || {
        mode ^= 0o200;
        root.chmod(&file[..file[1..].find('/').unwrap() + 1], mode, Links::Follow).unwrap();
    });
    let top = root.open(directory, &Open::default()).unwrap();
    let name = &file[directory.len() + 1..];
    run("from an open directory", &mut || {
        root.stat(top.at(name), Links::Follow).unwrap();
    });
    root.symlink(directory.as_bytes(), "/link").unwrap();
    let linked = format!("/link/{name}");
    run("through a link", &mut || stat(&root, &linked));
    let up = format!("{directory}/../{}", &file[directory.rfind('/').unwrap() + 1..]);
    run("with .. before the last directory", &mut || stat(&root, &up));
    opened.fs.snapshot("s", false).unwrap();
    let snapshot = format!("/.snapshots/s{file}");
    run("in a snapshot", &mut || stat(&root, &snapshot));
    drop((open, top));
    let source = opened.fs.lookup(NodeId::ROOT, path(16, 1).split('/').nth(1).unwrap().as_bytes()).unwrap();
    opened.fs.clone_tree(source.node, NodeId::ROOT, b"clone", &Caller::default()).unwrap();
    opened.fs.forget(source.node, 1);
    let cloned = format!("/clone{}", &path(16, 1)[path(16, 1)[1..].find('/').unwrap() + 1..]);
    run("in a clone", &mut || stat(&root, &cloned));
    drop((root, user));
    opened.close();
}

fn main() {
    let files = std::env::args().nth(1).map_or(200, |files| files.parse().expect("a number of paths"));
    let bench = Bench::new();
    let opened = bench.open();
    make(&opened, files);
    opened.close();
    depths(&bench, files);
    parts(&bench);
}
