//! Power cuts under the file system. What is found afterwards is the tree after some prefix of the
//! operations, at or after the last that was made durable; it is sound, and work can go on.
//!
//! States are compared by a hash of everything that users can see, but the times of the last read,
//! which may be lost, and what has no name, which must be.

use crate::run::{Run, open_fs, open_store};
use crate::tree::{Id, ROOT, Tree};
use crate::world::Random;
use espalier_fs::{Caller, FileFlags, FileKind, FileSystem, NewNode, NodeId};
use espalier_sim::CrashDevice;
use espalier_storage::Device;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

const STEPS: usize = 250;

/// What was, after each step.
pub(crate) struct History {
    /// Changes of the device when the step began, and the tree after it.
    states: Vec<(u64, u64)>,
    /// A crash after so many changes finds at least so many steps done.
    promises: Vec<(u64, usize)>,
    /// For each object its hash and the step that changed it last.
    changed: HashMap<Id, (u64, usize)>,
}

impl History {
    /// Begins with a durable state.
    pub(crate) fn new(now: u64) -> Self {
        Self { states: vec![], promises: vec![(now, 0)], changed: HashMap::new() }
    }

    /// A sync has returned: what was done to an object, or everything, is durable at `now`.
    pub(crate) fn promise(&mut self, now: u64, what: Option<Id>) {
        let step = what.map_or(self.states.len() - 1, |id| self.changed[&id].1);
        self.promises.push((now, step));
    }

    pub(crate) fn record(&mut self, began: u64, tree: &Tree) {
        self.states.push((began, hash_model(tree)));
        let step = self.states.len() - 1;
        for id in 0..tree.objects.len() {
            let hash = hash_object(tree, id);
            let entry = self.changed.entry(id).or_insert((hash, step));
            if entry.0 != hash {
                *entry = (hash, step);
            }
        }
    }

    /// As [`History::record`], by what was seen itself.
    pub(crate) fn record_view(&mut self, began: u64, hash: u64) {
        self.states.push((began, hash));
    }

    /// After a crash at `change` this is seen.
    #[track_caller]
    pub(crate) fn assert_possible(&self, change: u64, found: u64, what: &str) {
        self.assert_among(self.possible(change, change), found, what);
    }

    /// This is what there was after one of some steps.
    #[track_caller]
    fn assert_among(&self, possible: std::ops::RangeInclusive<usize>, found: u64, what: &str) {
        assert!(
            self.states[possible.clone()].iter().any(|(_, hash)| *hash == found),
            "{what}: the tree is none of those after steps {possible:?}, but {:?}",
            self.states.iter().rposition(|(_, hash)| *hash == found)
        );
    }

    /// The steps after which a crash at `change` may find the store, if what began before `reach`
    /// may have changed something.
    fn possible(&self, change: u64, reach: u64) -> std::ops::RangeInclusive<usize> {
        let least =
            self.promises.iter().filter(|(at, _)| *at <= change).map(|(_, step)| *step).max().unwrap_or(0);
        let most = self.states.iter().rposition(|(began, _)| *began < reach || *began == 0).unwrap_or(0);
        least..=most.max(least)
    }
}

/// `set` says what the run is to do more often.
pub(crate) fn run<D: CrashDevice>(seed: u64, set: impl FnOnce(&mut Run)) {
    let device = D::blank(64 << 20, seed).expect("a device");
    let mut run = Run::on(seed, device.clone());
    set(&mut run);
    run.fs.syncfs().expect("syncfs");
    device.settle().expect("what was synced is safe");
    let mut random = Random(seed ^ 0xc7a5);
    device.record_crash_points(1 + random.next() % 12);
    let start = device.changes();
    let mut history = History::new(start);
    history.record(0, &run.tree);
    for _ in 0..STEPS {
        let began = device.changes();
        run.synced = None;
        run.step();
        history.record(began, &run.tree);
        if let Some(what) = run.synced {
            history.promise(device.changes(), what);
        }
    }
    device.record_crash_points(0);
    for point in device.take_crash_points() {
        for _ in 0..2 {
            crash::<D>(&run, &history, &point, random.next());
        }
    }
}

pub(crate) fn crash<D: CrashDevice>(run: &Run, history: &History, point: &D::Point, survivors: u64) {
    let what = format!("seed {}, crash at change {}, survivors {survivors}", run.seed, D::change(point));
    let device = D::crash_at(point, survivors).unwrap_or_else(|e| panic!("{what}: {e}"));
    let possible = history.possible(D::change(point), D::reach(point));
    let possible = if device.loses_synced() { 0..=*possible.end() } else { possible };
    let device: Arc<dyn Device> = Arc::new(device);
    let store = open_store(&device, &run.world);
    let fs = open_fs(&store, &run.world, &mut Random(survivors), &Arc::default(), run.keeps_handles);
    let sound = || {
        let report = espalier_fs::check(&store, "main", &mut |_| {}).expect("the volume can be checked");
        assert_eq!((report.problems, report.orphans), (vec![], 0), "{what}");
    };
    sound();
    history.assert_among(possible, hash_found(&fs), &what);
    // Work goes on, and nothing given out before is given out again.
    fs.set_flags(NodeId::ROOT, FileFlags::default(), &Caller::default()).expect("root may");
    let new = fs.mknod(NodeId::ROOT, b"after the crash", NewNode::Regular, 0o644, &Caller::default());
    let new = new.unwrap_or_else(|e| panic!("{what}: {e}")).node;
    fs.write(new, 5000, b"new", false).unwrap_or_else(|e| panic!("{what}: {e}"));
    sound();
}

fn add(hash: &mut Xxh3, what: impl Debug) {
    hash.update(format!("{what:?};").as_bytes());
}

/// What an object shows, without its names and entries.
fn hash_object(tree: &Tree, id: Id) -> u64 {
    let object = &tree.objects[id];
    let mut hash = Xxh3::new();
    add(&mut hash, (object.kind, object.mode, object.uid, object.gid, object.rdev, object.nlink(tree)));
    add(&mut hash, (object.size(), object.mtime, object.ctime, object.btime, object.flags));
    add(&mut hash, &object.target);
    for (name, value) in &object.xattrs {
        add(&mut hash, name);
        hash.update(value);
    }
    hash.update(&object.data);
    hash.digest()
}

fn hash_model(tree: &Tree) -> u64 {
    let mut hash = Xxh3::new();
    let mut seen = HashMap::new();
    add_model(tree, ROOT, &mut hash, &mut seen);
    hash.digest()
}

fn add_model(tree: &Tree, id: Id, hash: &mut Xxh3, seen: &mut HashMap<u64, usize>) {
    let order = seen.len();
    let first = *seen.entry(id as u64).or_insert(order);
    add(hash, (first, hash_object(tree, id)));
    for (name, child) in tree.listing(id) {
        add(hash, name);
        add_model(tree, child, hash, seen);
    }
    add(hash, "end");
}

pub(crate) fn hash_found(fs: &FileSystem) -> u64 {
    let mut hash = Xxh3::new();
    let mut seen = HashMap::new();
    add_found(fs, NodeId::ROOT, &mut hash, &mut seen);
    hash.digest()
}

fn add_found(fs: &FileSystem, node: NodeId, hash: &mut Xxh3, seen: &mut HashMap<u64, usize>) {
    let attr = fs.getattr(node).expect("attributes");
    let order = seen.len();
    let first = *seen.entry(attr.ino).or_insert(order);
    let mut own = Xxh3::new();
    add(&mut own, (attr.kind, attr.mode, attr.uid, attr.gid, attr.rdev, attr.nlink));
    let flags = fs.flags(node).expect("flags");
    add(&mut own, (attr.size, attr.mtime, attr.ctime, attr.btime, flags));
    let target = if attr.kind == FileKind::Symlink { fs.readlink(node).expect("target") } else { Vec::new() };
    add(&mut own, &target);
    let names = fs.listxattr(node).expect("names");
    for name in names.split(|b| *b == 0).filter(|n| !n.is_empty()) {
        add(&mut own, name.to_vec());
        own.update(&fs.getxattr(node, name).expect("value"));
    }
    if attr.kind == FileKind::Regular {
        let mut data = vec![0; attr.size as usize];
        assert_eq!(fs.read(node, 0, &mut data).expect("data"), data.len());
        own.update(&data);
    }
    add(hash, (first, own.digest()));
    let mut names = Vec::new();
    if attr.kind == FileKind::Directory {
        fs.readdir(node, 2, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        })
        .expect("a listing");
    }
    for name in names {
        let child = fs.lookup(node, &name).expect("what is listed is there").node;
        add(hash, name);
        add_found(fs, child, hash, seen);
        fs.forget(child, 1);
    }
    add(hash, "end");
}
