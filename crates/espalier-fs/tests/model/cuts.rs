//! A power cut at every change of the device while whole trees are cloned, changed, kept in
//! snapshots, put back and removed, and while a recovery from such a cut is under way. What is
//! found is what was there before a step or after it, snapshots included; main volume and snapshots
//! are sound, and nothing is left of what was removed.
//!
//! `ESPALIER_SEED=n` runs that seed alone, `ESPALIER_SEEDS=n` the first n.

use crate::crash::{History, hash_found};
use crate::run::{open_fs, open_store};
use crate::seeds;
use crate::world::{Random, World};
use espalier_engine::Store;
use espalier_fs::{
    Caller, FileSystem, FormatOptions, ModeChange, NewNode, NodeId, OpenOptions, OwnerChange, RenameAction,
    RenameMode, RenameStep, SetAttr, check, snapshots,
};
use espalier_storage::{CrashPoint, Device, Image, SimulatedDevice};
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
/// Steps of one run.
const STEPS: usize = 12;
/// Kinds of steps.
const KINDS: usize = 16;
/// The one that copies a large file.
const COPY: usize = 15;
/// Blocks of a file whose copy is a clone.
const LARGE_BLOCKS: usize = 66;
/// Of so many runs one has such a file: to look at all of it takes time.
const LARGE_EVERY: u64 = 4;
/// Of so many cuts one is followed by cuts of the recovery.
const AGAIN: usize = 40;

pub(crate) struct Cuts {
    world: Arc<World>,
    device: Arc<SimulatedDevice>,
    store: Arc<Store>,
    fs: Arc<FileSystem>,
    random: Random,
    /// In use while what is above them goes.
    held: Vec<NodeId>,
    /// The last step was durable when it returned.
    durable: bool,
    /// There is a large file.
    has_large: bool,
}

/// Everything that users can see, of the volume and of all snapshots.
pub(crate) fn view(store: &Arc<Store>, fs: &FileSystem, world: &Arc<World>) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&hash_found(fs).to_le_bytes());
    for snapshot in snapshots(store) {
        let options =
            OpenOptions { volume: snapshot.volume.clone(), read_only: true, ..OpenOptions::default() };
        let alone = FileSystem::open(store.clone(), world.clone(), options).expect("a snapshot opens");
        hash.update(format!("{} {:?} {};", snapshot.name, snapshot.directory, snapshot.writable).as_bytes());
        hash.update(&hash_found(&alone).to_le_bytes());
    }
    hash.digest()
}

impl Cuts {
    /// /A/{foo,bar,sub/{bar2,x}}, /B, /out, /C; bar and bar2 are one file, out is foo, C is a clone
    /// of A. In some runs also /B/{large,copy}; copy is empty.
    pub(crate) fn new(seed: u64) -> Self {
        let device = Arc::new(SimulatedDevice::new(32 << 20, seed));
        let world = World::new(seed);
        let now = world.step(1);
        Store::format(device.clone(), world.clone(), &Default::default()).expect("format");
        let store = open_store(&(device.clone() as Arc<dyn Device>), &world);
        FileSystem::format(&store, &FormatOptions { block_size: 4096, now, ..Default::default() })
            .expect("format");
        let mut random = Random(seed);
        let fs = open_fs(&store, &world, &mut random, &Arc::default(), false);
        let dir = |parent, name: &[u8]| fs.mkdir(parent, name, 0o755, &ROOT).expect("mkdir").node;
        let (a, b) = (dir(NodeId::ROOT, b"A"), dir(NodeId::ROOT, b"B"));
        let sub = dir(a, b"sub");
        let file = |parent, name: &[u8], size: usize| {
            let file = fs.mknod(parent, name, NewNode::Regular, 0o644, &ROOT).expect("mknod").node;
            fs.write(file, 0, &vec![name[0]; size], false).expect("write");
            file
        };
        let (linked, other, x) = (file(a, b"foo", 9000), file(a, b"bar", 300), file(sub, b"x", 5000));
        let has_large = seed.is_multiple_of(LARGE_EVERY);
        if has_large {
            let sizes = [(&b"large"[..], LARGE_BLOCKS * 4096 + 5), (b"copy", 0)];
            sizes.into_iter().for_each(|(name, size)| fs.forget(file(b, name, size), 1));
        }
        fs.link(other, sub, b"bar2").expect("link");
        fs.link(linked, NodeId::ROOT, b"out").expect("link");
        fs.forget(other, 1);
        fs.forget(linked, 1);
        let c = fs.clone_tree(a, NodeId::ROOT, b"C", &ROOT).expect("clone").node;
        [a, b, c, sub, linked, other, x].into_iter().for_each(|node| fs.forget(node, 1));
        fs.syncfs().expect("syncfs");
        Self { world, device, store, fs, random, held: Vec::new(), durable: false, has_large }
    }

    /// Carries out steps that do something.
    pub(crate) fn work(&mut self, steps: usize) {
        for _ in 0..steps {
            self.any_step();
        }
    }

    /// A step that does something; returns which.
    fn any_step(&mut self) -> usize {
        loop {
            let which = match self.has_large && self.random.chance(4) {
                true => COPY,
                false => self.random.below(KINDS),
            };
            if self.step(which).is_some() {
                return which;
            }
        }
    }

    /// Makes everything durable and ends the store, in order or as if the process was killed;
    /// returns what is on the device.
    pub(crate) fn leave(mut self) -> (Image, Arc<World>) {
        self.held.drain(..).for_each(|node| self.fs.forget(node, 1));
        self.fs.syncfs().expect("syncfs");
        let killed = self.random.chance(2);
        let written = self.device.image();
        drop(self.fs);
        self.store.close().expect("close");
        (if killed { written } else { self.device.image() }, self.world)
    }

    /// The node of a path, with a reference that the caller gives back.
    fn find(&self, path: &str) -> Option<NodeId> {
        let mut at = NodeId::ROOT;
        for name in path.split('/') {
            let next = self.fs.lookup(at, name.as_bytes()).ok();
            self.fs.forget(at, 1);
            at = next?.node;
        }
        Some(at)
    }

    /// One step; one whose objects are not there does nothing.
    fn step(&mut self, which: usize) -> Option<()> {
        let fs = self.fs.clone();
        self.world.step(1_000_000_000);
        self.durable = false;
        let (a, c) = (self.find("A"), self.find("C"));
        let _given_back = [a, c].map(|node| node.map(|node| GivenBack(&fs, node)));
        let snapshot_of = |node: NodeId| fs.snapshots_of(node).expect("snapshots").pop();
        let give_back = |node: NodeId| fs.forget(node, 1);
        match which {
            0 if c.is_none() => {
                give_back(fs.clone_tree(a?, NodeId::ROOT, b"C", &ROOT).expect("clone").node);
            }
            // The clone's link area becomes one with that of the root.
            0 | 1 => {
                let path = *self.random.pick(&["C/foo", "C/bar"]);
                let file = self.find(path)?;
                let name = format!("joined{}", self.random.below(3));
                let linked = fs.link(file, NodeId::ROOT, name.as_bytes());
                give_back(file);
                give_back(linked.ok()?.node);
            }
            2 => {
                match snapshot_of(a?) {
                    Some(old) => drop(fs.snapshot_tree_delete(a?, &old.name, &ROOT).expect("delete")),
                    None => {
                        let writable = self.random.chance(2);
                        fs.snapshot_tree(a?, "kept", writable, &ROOT).expect("snapshot");
                    }
                }
                self.durable = true;
            }
            3 => {
                let file = self.find("A/foo")?;
                // One call in each step: between two, a cut would find neither before nor after.
                if fs.unlink(a?, b"bar").is_err() {
                    fs.write(file, 3000, b"changed", false).expect("write");
                }
                give_back(file);
            }
            4 => {
                let kept = snapshot_of(a?)?;
                let made = fs.restore_tree(NodeId::ROOT, b"A", &kept.name, &ROOT).expect("restore");
                give_back(made.node);
                self.durable = true;
            }
            // Removed while in use, and given up later.
            5 => {
                self.held.extend(["C/sub/x", "C/bar"].map(|path| self.find(path)).into_iter().flatten());
                fs.remove_tree(NodeId::ROOT, b"C", &ROOT).ok()?;
            }
            6 => fs.remove_tree(NodeId::ROOT, b"C", &ROOT).ok()?,
            7 => {
                let owner = OwnerChange { uid: Some(self.random.below(9) as u32), gid: None };
                fs.chown_tree(a?, owner, &ROOT).expect("chown");
            }
            8 => {
                let change = ModeChange {
                    keep_directories: 0o7777,
                    add_directories: 0,
                    keep_files: 0o777,
                    add_files: 0o022,
                    add_executables: 0,
                };
                fs.chmod_tree(c?, change, &ROOT).expect("chmod");
            }
            9 => {
                let name = *self.random.pick(&[&b"sub"[..], b"foo"]);
                let b = self.find("B")?;
                let moved = fs.rename(c?, name, b, name, RenameMode::Replace);
                give_back(b);
                moved.ok()?;
            }
            10 => {
                match fs.snapshots_of(NodeId::ROOT).expect("snapshots").pop() {
                    Some(old) => fs.snapshot_delete(&old.name).expect("delete"),
                    None => fs.snapshot("whole", false).expect("snapshot"),
                }
                self.durable = true;
            }
            11 => self.held.drain(..).for_each(give_back),
            14 => {
                let b = self.find("B")?;
                let there = GivenBack(&fs, b);
                let step = |action, path: &str, staged: &str| {
                    let node = self.find(&format!("C/{path}"));
                    let attr = node.map(|node| fs.getattr(node).expect("attributes"));
                    node.into_iter().for_each(give_back);
                    let place = path.split('/').map(|name| name.as_bytes().to_vec()).collect();
                    let expected = attr.map_or((0, 0), |attr| (attr.ino, attr.ctime));
                    RenameStep { action, place, staged: staged.as_bytes().to_vec(), expected }
                };
                let steps = [
                    step(RenameAction::Exchange, "sub/x", "foo"),
                    step(RenameAction::Leave, "bar", "taken"),
                    step(RenameAction::Enter, "sub/new", "sub"),
                ];
                // As many of them as can be made now.
                let possible = (1..=steps.len()).rev().any(|count| {
                    (0..steps.len()).any(|first| {
                        let some = steps.get(first..first + count);
                        some.is_some_and(|some| fs.rename_all(c.unwrap_or(b), b, some, &ROOT).is_ok())
                    })
                });
                drop(there);
                possible.then_some(())?;
            }
            // A copy that is a clone, into a file that is cut to nothing first.
            COPY => {
                let (large, copy) = (self.find("B/large")?, self.find("B/copy")?);
                let _given_back = [GivenBack(&fs, large), GivenBack(&fs, copy)];
                let size = |node| fs.getattr(node).expect("attributes").size;
                if size(copy) == 0 {
                    fs.copy_file_range(large, 0, copy, 0, 1 << 40, false).expect("copy");
                } else {
                    fs.setattr(copy, &SetAttr { size: Some(0), ..Default::default() }).expect("size");
                }
            }
            12 => {
                fs.background_tick().expect("tick");
                self.durable = true;
            }
            _ => {
                self.store.checkpoint().expect("checkpoint");
                while self.store.step().expect("background work") {}
            }
        }
        Some(())
    }
}

/// Gives back a reference at the end.
struct GivenBack<'a>(&'a FileSystem, NodeId);

impl Drop for GivenBack<'_> {
    fn drop(&mut self) {
        self.0.forget(self.1, 1);
    }
}

/// Main volume, snapshots and the store below them are sound.
pub(crate) fn assert_sound(store: &Arc<Store>, what: &str) {
    let mut volumes = vec!["main".to_owned()];
    volumes.extend(snapshots(store).into_iter().map(|snapshot| snapshot.volume));
    for volume in volumes {
        let report = check(store, &volume, &mut |_| {}).expect("the volume can be checked");
        let orphans = if volume == "main" { report.orphans } else { 0 };
        assert_eq!((report.problems, orphans), (vec![], 0), "{what}: {volume}");
    }
    let verified = store.verify(&mut |_| ()).expect("the store can be verified");
    assert!(verified.problems.is_empty(), "{what}: {:?}", verified.problems.first());
}

/// Recovers after a cut, and looks at everything; returns the cuts that the recovery itself offers.
fn recover(run: &Cuts, history: &History, point: &CrashPoint, upto: u64, what: &str) -> Vec<CrashPoint> {
    let device = Arc::new(point.crash(upto ^ point.change()));
    device.record_crash_points(1);
    let store = open_store(&(device.clone() as Arc<dyn Device>), &run.world);
    let fs = open_fs(&store, &run.world, &mut Random(upto), &Arc::default(), false);
    fs.syncfs().unwrap_or_else(|error| panic!("{what}: {error}"));
    device.record_crash_points(0);
    assert_sound(&store, what);
    history.assert_possible(upto, view(&store, &fs, &run.world), what);
    device.take_crash_points()
}

/// Returns the number of cuts tried; counts steps that did something, by kind.
fn one(seed: u64, done: &mut [usize; KINDS]) -> usize {
    let mut run = Cuts::new(seed);
    run.device.record_crash_points(1);
    let mut history = History::new(run.device.counts().changes());
    history.record_view(0, view(&run.store, &run.fs, &run.world));
    for _ in 0..STEPS {
        let began = run.device.counts().changes();
        let which = run.any_step();
        done[which] += 1;
        let ended = run.device.counts().changes();
        history.record_view(began, view(&run.store, &run.fs, &run.world));
        if run.durable {
            history.promise(ended, None);
        }
    }
    run.device.record_crash_points(0);
    let mut cuts = 0;
    for point in run.device.take_crash_points() {
        let upto = point.change();
        let what = format!("seed {seed}, cut at change {upto}");
        let again = recover(&run, &history, &point, upto, &what);
        cuts += 1;
        if run.random.chance(AGAIN) {
            for second in again {
                recover(&run, &history, &second, upto, &format!("{what}, and again at {}", second.change()));
                cuts += 1;
            }
        }
    }
    cuts
}

#[test]
fn power_cuts_in_all_steps_of_whole_trees() {
    let seeds = seeds(24);
    let (count, mut done) = (seeds.clone().count(), [0; KINDS]);
    let cuts: usize = seeds.map(|seed| one(seed, &mut done)).sum();
    println!("{cuts} power cuts, steps of each kind: {done:?}");
    assert!(count < 24 || done.iter().all(|steps| *steps > 2), "{done:?}");
}
