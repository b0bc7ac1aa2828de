//! Runs random operations on the file system and on the model, and compares every answer.

use crate::giving_up::{Caring, Watched};
use crate::tree::{Id, ROOT, Tree};
use crate::world::{Random, World};
use espalier_engine::{Store, Tuning};
use espalier_fs::{
    AreaCorrection, Attr, Caller, Fallocate, FileFlags, FileKind, FileSystem, FormatOptions, FsError,
    FsErrorKind, HandleLifetime, ModeChange, NewNode, NodeId, OpenOptions, OwnerChange, RenameMode, Seek,
    SetAttr, SetTime, TreeLimits, XattrMode, merge_functions,
};
use espalier_storage::{Device, MemoryDevice};
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Operations between comparisons of the whole tree.
const CHECK_EVERY: usize = 100;
/// Objects in use at a time.
const MAX_OPEN: usize = 16;
/// Objects beyond which little is created.
const MAX_OBJECTS_ALIVE: usize = 60;

/// A file system, its model, and what is in use of both.
pub(crate) struct Run {
    pub(crate) seed: u64,
    pub(crate) random: Random,
    pub(crate) world: Arc<World>,
    pub(crate) device: Arc<dyn Device>,
    pub(crate) store: Arc<Store>,
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) tree: Tree,
    /// What is in use: model object, node, references.
    open: Vec<(Id, NodeId, u64)>,
    /// File handles: node and generation, and what they stand for.
    handles: Vec<(NodeId, u32, Id)>,
    /// Decides about handles, apart from what decides about calls.
    handle_random: Random,
    /// Decides about limits, apart from all else.
    limit_random: Random,
    /// A directory that has a limit until the next step.
    limited_now: Option<(Id, NodeId)>,
    /// Directories that got a limit, and such that got none for files with names on both sides.
    pub(crate) limited: (usize, usize),
    /// Handles outlive remounts.
    pub(crate) keeps_handles: bool,
    /// The numbers that users have seen.
    numbers: HashMap<Id, u64>,
    pub(crate) step: usize,
    pub(crate) last: String,
    /// Mostly links, renames and clones.
    pub(crate) of_links: bool,
    /// The last step made this object durable, or (`Some(None)`) everything.
    pub(crate) synced: Option<Option<Id>>,
    caring: Arc<Caring>,
    /// Some calls are given up before they are made.
    gives_up: bool,
    /// How many were.
    pub(crate) given_up: usize,
    /// Calls that renamed several entries at once.
    pub(crate) renamed_all: usize,
    /// Those of them that renamed several names of one file.
    pub(crate) renamed_names: usize,
    /// Another file system goes on in place of this one now and then.
    pub(crate) hands_over: bool,
    /// How often that happened, and how many objects without a name were in use then.
    pub(crate) handed_over: (usize, usize),
}

pub(crate) fn open_store(device: &Arc<dyn Device>, world: &Arc<World>) -> Arc<Store> {
    let options = espalier_engine::OpenOptions {
        memory: 4 << 20,
        merge: merge_functions(),
        tuning: Tuning::tiny(),
        ..Default::default()
    };
    Store::open(device.clone(), world.clone(), options).expect("the store opens")
}

pub(crate) fn open_fs(
    store: &Arc<Store>,
    world: &Arc<World>,
    random: &mut Random,
    caring: &Arc<Caring>,
    keep_handles: bool,
) -> Arc<FileSystem> {
    let options = open_options(random, caring, keep_handles);
    FileSystem::open(store.clone(), world.clone(), options).expect("the file system opens")
}

fn open_options(random: &mut Random, caring: &Arc<Caring>, keep_handles: bool) -> OpenOptions {
    let name_memory = *random.pick(&[0, 1500, 1 << 20]);
    // As a mount has it, in a third of all cases: small files that are forgotten wait for others.
    let forget_drain = (name_memory == 1500).then(|| Arc::new(|| ()) as espalier_fs::ForgetDrain);
    OpenOptions {
        name_memory,
        forget_drain,
        waiter: Some(caring.clone()),
        // Two thirds correct copies of link areas at once, and one third hardly ever.
        area_correction: match name_memory {
            0 => AreaCorrection::WhenRoomIsShort,
            _ => AreaCorrection::Always,
        },
        handles: if keep_handles { HandleLifetime::Stored } else { HandleLifetime::Open },
        ..Default::default()
    }
}

impl Run {
    pub(crate) fn new(seed: u64) -> Self {
        Self::on(seed, Arc::new(MemoryDevice::new(256 << 20)))
    }

    /// Some calls are given up before they are made, and others may wait for nothing once they have
    /// changed something.
    pub(crate) fn giving_up(seed: u64) -> Self {
        let caring = Arc::<Caring>::default();
        let device = Arc::new(Watched(MemoryDevice::new(256 << 20), caring.clone()));
        Self { gives_up: true, ..Self::with(seed, device, caring) }
    }

    pub(crate) fn on(seed: u64, device: Arc<dyn Device>) -> Self {
        Self::with(seed, device, Arc::default())
    }

    fn with(seed: u64, device: Arc<dyn Device>, caring: Arc<Caring>) -> Self {
        let mut random = Random(seed);
        let keeps_handles = seed.is_multiple_of(2);
        let world = World::new(seed);
        let now = world.step(1);
        Store::format(device.clone(), world.clone(), &Default::default())
            .expect("the device can be formatted");
        let store = open_store(&device, &world);
        FileSystem::format(&store, &FormatOptions { block_size: 4096, now, ..Default::default() })
            .expect("format");
        let fs = open_fs(&store, &world, &mut random, &caring, keeps_handles);
        let tree = Tree::new(now);
        let open = vec![(ROOT, NodeId::ROOT, 1)];
        let numbers = HashMap::new();
        let last = String::new();
        Self {
            seed,
            random,
            world,
            device,
            store,
            fs,
            tree,
            open,
            numbers,
            handles: Vec::new(),
            handle_random: Random(seed ^ 0x68),
            limit_random: Random(seed ^ 0x71),
            limited_now: None,
            limited: (0, 0),
            keeps_handles,
            step: 0,
            last,
            of_links: false,
            synced: None,
            caring,
            gives_up: false,
            given_up: 0,
            renamed_all: 0,
            renamed_names: 0,
            hands_over: false,
            handed_over: (0, 0),
        }
    }

    /// On a device that holds what `tree` says.
    pub(crate) fn on_existing(seed: u64, device: Arc<dyn Device>, tree: Tree) -> Self {
        let mut random = Random(seed);
        let keeps_handles = seed.is_multiple_of(2);
        let world = World::new(seed);
        // Later than everything in the tree.
        world.step(1_000_000_000);
        let store = open_store(&device, &world);
        let caring = Arc::default();
        let fs = open_fs(&store, &world, &mut random, &caring, keeps_handles);
        let (open, numbers, last) = (vec![(ROOT, NodeId::ROOT, 1)], HashMap::new(), String::new());
        Self {
            seed,
            random,
            world,
            device,
            store,
            fs,
            tree,
            open,
            numbers,
            handles: Vec::new(),
            handle_random: Random(seed ^ 0x68),
            limit_random: Random(seed ^ 0x71),
            limited_now: None,
            limited: (0, 0),
            keeps_handles,
            step: 0,
            last,
            of_links: false,
            synced: None,
            caring,
            gives_up: false,
            given_up: 0,
            renamed_all: 0,
            renamed_names: 0,
            hands_over: false,
            handed_over: (0, 0),
        }
    }

    /// Steps until `steps` are done, with comparisons of everything in between.
    pub(crate) fn steps(&mut self, steps: usize) {
        for _ in 0..steps {
            self.step();
            if self.step.is_multiple_of(CHECK_EVERY) {
                self.compare_all();
            }
        }
        self.compare_all();
    }

    pub(crate) fn step(&mut self) {
        self.step += 1;
        if self.limit() {
            return;
        }
        // More than a tick of the clock, within which changes get different times all the same.
        let pause = *self.random.pick(&[10_000_001, 20_000_000, 1_000_000_000, 100_000_000_000_000]);
        self.tree.now = self.world.step(pause);
        let kind = match self.of_links && !self.random.chance(4) {
            true => *self.random.pick(&[0, 3, 6, 7, 8, 9, 10, 9, 10, 24, 31, 32, 33, 35]),
            false => self.random.below(38),
        };
        match kind {
            0..=2 => self.create(),
            30 => self.tmpfile(),
            3 => self.mkdir(),
            4..=5 => self.remove(),
            6..=8 => self.rename(),
            9..=10 => self.link(),
            11..=14 => self.write(),
            15..=16 => self.read(),
            17 => self.setattr(),
            18 => self.resize(),
            19 => self.fallocate(),
            20 => self.copy(),
            21 => self.seek(),
            22..=23 => self.xattr(),
            24..=25 => self.list(),
            26 => self.forget(),
            27 => self.sync(),
            28 if self.random.chance(8) => self.remount(),
            31..=32 => self.clone_tree(),
            33 => self.remove_tree(),
            34 => self.change_tree(),
            35..=36 => self.rename_all(),
            37 => self.set_flags(),
            _ => self.lookup(),
        }
        if self.handle_random.chance(4) {
            self.resolve();
        }
        if self.hands_over && self.handle_random.chance(25) {
            self.hand_over();
        }
    }

    /// Has the file system do something that changes what users see, if anything. If calls are
    /// given up, this one may be given up first, which changes nothing.
    pub(crate) fn ask<T>(&mut self, call: impl Fn(&FileSystem) -> Result<T, FsError>) -> Result<T, FsError> {
        if self.gives_up && self.random.chance(2) {
            self.caring.given_up.store(true, Ordering::Relaxed);
            let got = call(&self.fs);
            self.caring.given_up.store(false, Ordering::Relaxed);
            self.given_up += usize::from(got.is_err_and(|error| error.kind() == FsErrorKind::Interrupted));
        }
        self.caring.asked.store(0, Ordering::Relaxed);
        self.caring.late.store(0, Ordering::Relaxed);
        let got = call(&self.fs);
        self.caring.decided.store(false, Ordering::Relaxed);
        let (asked, late) =
            (self.caring.asked.load(Ordering::Relaxed), self.caring.late.load(Ordering::Relaxed));
        assert!(late == 0, "seed {}, step {}: {} waited after its change", self.seed, self.step, self.last);
        assert!(asked <= 1, "seed {}, step {}: {} was done by halves", self.seed, self.step, self.last);
        got
    }

    #[track_caller]
    fn same<T: PartialEq + Debug>(
        &self,
        what: &str,
        got: Result<T, FsError>,
        expected: Result<T, espalier_fs::FsErrorKind>,
    ) -> Option<T> {
        let kinds = got.as_ref().map_err(FsError::kind);
        assert!(
            kinds == expected.as_ref().map_err(|k| *k),
            "seed {}, step {}: {what} after {}:\n got {got:?}\n expected {expected:?}",
            self.seed,
            self.step,
            self.last
        );
        got.ok()
    }

    pub(crate) fn name(&mut self) -> Vec<u8> {
        const NAMES: [&[u8]; 9] =
            [b"a", b"b", b"ab", b"a\x01", b"\x02", b"\x01\x02", b"\xff", b"a ", b"\x03x"];
        if self.random.chance(200) { vec![b'n'; 256] } else { self.random.pick(&NAMES).to_vec() }
    }

    fn any(&mut self) -> (Id, NodeId) {
        let (id, node, _) = *self.random.pick(&self.open);
        (id, node)
    }

    /// Something in use, a directory if there is a choice.
    pub(crate) fn a_dir(&mut self) -> (Id, NodeId) {
        for _ in 0..8 {
            let (id, node) = self.any();
            if self.tree.objects[id].is_dir() {
                return (id, node);
            }
        }
        self.any()
    }

    fn a_file(&mut self) -> (Id, NodeId) {
        for _ in 0..8 {
            let (id, node) = self.any();
            if self.tree.objects[id].kind == FileKind::Regular {
                return (id, node);
            }
        }
        self.any()
    }

    /// Takes note of a reference on `node`, which stands for `id`.
    #[track_caller]
    fn opened(&mut self, id: Id, node: NodeId) {
        match self.open.iter_mut().find(|(i, ..)| *i == id) {
            Some((_, known, references)) => {
                assert_eq!(*known, node, "seed {}, step {}: two nodes for object {id}", self.seed, self.step);
                *references += 1;
            }
            None => self.open.push((id, node, 1)),
        }
        while self.open.len() > MAX_OPEN {
            self.forget();
        }
    }

    fn forget(&mut self) {
        if self.open.len() > 1 {
            let at = 1 + self.random.below(self.open.len() - 1);
            let (_, node, references) = self.open.swap_remove(at);
            self.fs.forget(node, references);
        }
    }

    fn caller(&mut self) -> Caller {
        let uid = self.random.below(3) as u32;
        let umask = *self.random.pick(&[0, 0o022, 0o077]);
        Caller { uid, gid: uid + 10, pid: 1, umask }
    }

    #[track_caller]
    fn check_attr(&mut self, id: Id, attr: &Attr) {
        let object = &self.tree.objects[id];
        // What a removed directory says of its entries does not count any more.
        let is_lost = object.is_dir() && object.lost;
        let expected = Attr {
            ino: *self.numbers.entry(id).or_insert(attr.ino),
            kind: object.kind,
            mode: object.mode,
            nlink: if is_lost { attr.nlink } else { object.nlink(&self.tree) },
            uid: object.uid,
            gid: object.gid,
            rdev: object.rdev,
            size: if is_lost { attr.size } else { object.size() },
            blocks: attr.blocks,
            blksize: 4096,
            atime: object.atime,
            mtime: object.mtime,
            ctime: object.ctime,
            btime: object.btime,
        };
        assert_eq!(
            *attr, expected,
            "seed {}, step {} after {}: object {id}",
            self.seed, self.step, self.last
        );
        let full = object.data.len().max(object.allocated).div_ceil(4096) as u64 * 8;
        assert!(attr.blocks <= full, "seed {}, step {}: {} blocks", self.seed, self.step, attr.blocks);
        if object.data.iter().any(|b| *b != 0) {
            assert!(attr.blocks > 0, "seed {}, step {}: data without blocks", self.seed, self.step);
        }
    }

    fn lookup(&mut self) {
        let (dir, node) = self.a_dir();
        let name = self.name();
        self.last = format!("lookup {name:?} in {dir}");
        let expected = self.tree.lookup(dir, &name);
        let got = self.fs.lookup(node, &name);
        if let (Ok(entry), Ok(id)) = (&got, &expected) {
            self.check_attr(*id, &entry.attr);
            self.handles.push((entry.node, entry.generation, *id));
            self.opened(*id, entry.node);
        } else {
            self.same("lookup", got.map(|_| ()), expected.map(|_| ()));
        }
    }

    /// Finds an object by a handle that was made at any time.
    fn resolve(&mut self) {
        if self.handles.is_empty() {
            return;
        }
        let (node, generation, id) = *self.handle_random.pick(&self.handles);
        let named = self.named().contains(&id);
        match self.fs.lookup(node, b".") {
            Ok(entry) if entry.generation == generation => {
                assert!(named, "seed {}, step {}: {id} has no name", self.seed, self.step);
                self.check_attr(id, &entry.attr);
                self.fs.forget(entry.node, 1);
            }
            Ok(entry) => {
                self.fs.forget(entry.node, 1);
                assert!(!named, "seed {}, step {}: another is found for {id}", self.seed, self.step);
            }
            Err(error) => {
                assert_eq!(error.kind(), espalier_fs::FsErrorKind::Stale);
                let lost = named && self.keeps_handles;
                assert!(!lost, "seed {}, step {}: {id} is not found", self.seed, self.step);
            }
        }
    }

    /// All objects that have a name below the root, and the root.
    fn named(&self) -> std::collections::HashSet<Id> {
        let (mut named, mut waiting) = (std::collections::HashSet::from([ROOT]), vec![ROOT]);
        while let Some(dir) = waiting.pop() {
            for (_, child) in self.tree.listing(dir) {
                if named.insert(child) && self.tree.objects[child].is_dir() {
                    waiting.push(child);
                }
            }
        }
        named
    }

    fn create(&mut self) {
        let (dir, node) = self.a_dir();
        let (name, caller) = (self.name(), self.caller());
        let mode = *self.random.pick(&[0o644, 0o6755, 0o1777, 0]);
        let (kind, new) = *self.random.pick(&[
            (FileKind::Regular, NewNode::Regular),
            (FileKind::Regular, NewNode::Regular),
            (FileKind::Regular, NewNode::Regular),
            (FileKind::Fifo, NewNode::Fifo),
            (FileKind::Socket, NewNode::Socket),
            (FileKind::CharDevice, NewNode::CharDevice(77)),
            (FileKind::BlockDevice, NewNode::BlockDevice(u64::MAX)),
            (FileKind::Symlink, NewNode::Regular),
        ]);
        let rdev = match new {
            NewNode::CharDevice(rdev) | NewNode::BlockDevice(rdev) => rdev,
            _ => 0,
        };
        let target: &[u8] = if kind == FileKind::Symlink { b"../x\x01" } else { b"" };
        self.last = format!("create {name:?} in {dir}");
        let expected = self.tree.create(dir, &name, kind, mode, rdev, target, &caller);
        let got = match kind {
            FileKind::Symlink => self.ask(|fs| fs.symlink(node, &name, target, &caller)),
            _ => self.ask(|fs| fs.mknod(node, &name, new, mode, &caller)),
        };
        let settles = FileFlags(FileFlags::SYNC.0 | FileFlags::DIRSYNC.0);
        if got.is_ok() && self.tree.objects[dir].flags.has(settles) {
            self.synced = Some(None);
        }
        self.created(got, expected);
    }

    fn tmpfile(&mut self) {
        let (dir, node) = self.a_dir();
        let caller = self.caller();
        let mode = *self.random.pick(&[0o644, 0o6755, 0]);
        self.last = format!("tmpfile in {dir}");
        let expected = self.tree.tmpfile(dir, mode, &caller);
        let got = self.fs.tmpfile(node, mode, &caller);
        self.created(got, expected);
    }

    fn mkdir(&mut self) {
        if self.tree.objects.iter().filter(|o| o.names > 0 && !o.lost).count() > MAX_OBJECTS_ALIVE {
            return self.remove();
        }
        let (dir, node) = self.a_dir();
        let (name, caller) = (self.name(), self.caller());
        let mode = *self.random.pick(&[0o755, 0o1777]);
        self.last = format!("mkdir {name:?} in {dir}");
        let expected = self.tree.create(dir, &name, FileKind::Directory, mode, 0, b"", &caller);
        let got = self.ask(|fs| fs.mkdir(node, &name, mode, &caller));
        self.created(got, expected);
    }

    fn created(
        &mut self,
        got: Result<espalier_fs::Entry, FsError>,
        expected: Result<Id, espalier_fs::FsErrorKind>,
    ) {
        let entry = self.same("create", got.as_ref().map(|_| ()).map_err(Clone::clone), expected.map(|_| ()));
        if let (Some(()), Ok(entry), Ok(id)) = (entry, got, expected) {
            self.check_attr(id, &entry.attr);
            self.handles.push((entry.node, entry.generation, id));
            self.opened(id, entry.node);
        }
    }

    fn remove(&mut self) {
        let (dir, node) = self.a_dir();
        let name = self.name();
        if self.random.chance(2) {
            self.last = format!("unlink {name:?} in {dir}");
            let expected = self.tree.unlink(dir, &name);
            let got = self.ask(|fs| fs.unlink(node, &name));
            self.same("unlink", got, expected);
        } else {
            self.last = format!("rmdir {name:?} in {dir}");
            let expected = self.tree.rmdir(dir, &name);
            let got = self.ask(|fs| fs.rmdir(node, &name));
            self.same("rmdir", got, expected);
        }
    }

    fn rename(&mut self) {
        let ((from, from_node), (to, to_node)) = (self.a_dir(), self.a_dir());
        let (name, new) = (self.name(), self.name());
        let whiteout = RenameMode::Whiteout { replace: self.random.chance(2), uid: 7, gid: 8 };
        let mode = *self.random.pick(&[
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
            whiteout,
        ]);
        self.last = format!("rename {name:?} in {from} to {new:?} in {to}, {mode:?}");
        let expected = self.tree.rename(from, &name, to, &new, mode);
        let got = self.ask(|fs| fs.rename(from_node, &name, to_node, &new, mode));
        self.same("rename", got, expected);
    }

    /// Mostly root, which may do anything.
    pub(crate) fn tree_caller(&mut self) -> Caller {
        let uid = *self.random.pick(&[0, 0, 0, 1, 2]);
        Caller { uid, gid: uid + 10, pid: 1, umask: 0 }
    }

    fn clone_tree(&mut self) {
        if self.tree.objects.iter().filter(|o| o.names > 0 && !o.lost).count() > MAX_OBJECTS_ALIVE {
            return self.remove_tree();
        }
        let ((source, node), (dir, parent)) = (self.any(), self.a_dir());
        let (name, caller) = (self.name(), self.tree_caller());
        self.last = format!("clone {source} to {name:?} in {dir} by {}", caller.uid);
        let expected = self.tree.clone_tree(source, dir, &name, &caller);
        let got = self.ask(|fs| fs.clone_tree(node, parent, &name, &caller));
        self.created(got, expected);
    }

    fn remove_tree(&mut self) {
        let (dir, node) = self.a_dir();
        let (name, caller) = (self.name(), self.tree_caller());
        // Large extended attributes are not kept, and the model does not know which are large.
        let is_large = |id: Id| self.tree.objects[id].xattrs.values().any(|value| value.len() > 64);
        let keeps = self.tree.lookup(dir, &name).is_ok_and(|id| !is_large(id));
        if keeps && self.random.chance(2) {
            self.last = format!("empty tree {name:?} in {dir} by {}", caller.uid);
            let expected = self.tree.empty_tree(dir, &name, &caller);
            let got = self.ask(|fs| fs.empty_tree(node, &name, &caller));
            self.same("empty_tree", got.map(drop), expected);
            return;
        }
        self.last = format!("remove tree {name:?} in {dir} by {}", caller.uid);
        let expected = self.tree.remove_tree(dir, &name, &caller);
        let got = self.ask(|fs| fs.remove_tree(node, &name, &caller));
        self.same("remove_tree", got, expected);
    }

    fn change_tree(&mut self) {
        let (id, node) = self.any();
        let caller = self.tree_caller();
        if self.random.chance(2) {
            let uid = *self.random.pick(&[None, Some(0), Some(1), Some(2)]);
            let gid = *self.random.pick(&[None, Some(12)]);
            let caller = Caller::default();
            self.last = format!("chown {uid:?} {gid:?} of tree {id}");
            let expected = self.tree.change_tree(id, &caller, |object, now| {
                (object.uid, object.gid) = (uid.unwrap_or(object.uid), gid.unwrap_or(object.gid));
                object.ctime = now;
                Tree::kill(object);
            });
            let got = self.ask(|fs| fs.chown_tree(node, OwnerChange { uid, gid }, &caller));
            self.same("chown_tree", got.map(drop), expected);
            return;
        }
        let bits = |random: &mut Random| (random.next() as u32) & 0o7777;
        let change = ModeChange {
            keep_directories: bits(&mut self.random) | 0o700,
            add_directories: bits(&mut self.random) & 0o3777,
            keep_files: bits(&mut self.random),
            add_files: bits(&mut self.random) & *self.random.pick(&[0o777, 0o7777]),
            add_executables: bits(&mut self.random) & 0o111,
        };
        self.last = format!("chmod {change:?} of tree {id} by {}", caller.uid);
        let expected = self.tree.change_tree(id, &caller, |object, now| {
            if object.kind == FileKind::Symlink {
                return;
            }
            object.mode = if object.is_dir() {
                object.mode & change.keep_directories | change.add_directories
            } else {
                let more = if object.mode & 0o111 != 0 { change.add_executables } else { 0 };
                object.mode & change.keep_files | change.add_files | more
            };
            object.ctime = now;
        });
        let got = self.ask(|fs| fs.chmod_tree(node, change, &caller));
        self.same("chmod_tree", got.map(drop), expected);
    }

    /// Gives a directory a limit, with which it gets a link area of its own, or takes it away in
    /// the step after that; false if it does neither.
    fn limit(&mut self) -> bool {
        let is_due = self.of_links && self.limit_random.chance(6);
        if self.limited_now.is_none() && !is_due {
            return false;
        }
        self.tree.now = self.world.step(20_000_000);
        let caller = Caller::default();
        let (id, got, expected) = if let Some((id, node)) = self.limited_now.take() {
            self.last = format!("clear the limit of {id}");
            (id, self.ask(|fs| fs.set_quota(node, None, &caller, false)), Ok(()))
        } else {
            let open = self.open.iter().filter(|(id, ..)| self.tree.objects[*id].is_dir());
            let open: Vec<(Id, NodeId)> = open.map(|(id, node, _)| (*id, *node)).collect();
            let (id, node) = *self.limit_random.pick(&open);
            self.last = format!("limit {id}");
            let object = &self.tree.objects[id];
            let expected = match (object.names == 0 || object.lost, object.flags.protect()) {
                (true, _) => Err(FsErrorKind::NotFound),
                (_, true) => Err(FsErrorKind::Permission),
                _ if !self.tree.split_area(id) => Err(FsErrorKind::Unsupported),
                _ => Ok(()),
            };
            self.limited_now = expected.is_ok().then_some((id, node));
            self.limited.0 += usize::from(expected.is_ok());
            self.limited.1 += usize::from(expected == Err(FsErrorKind::Unsupported));
            let limits = TreeLimits { exclusive: Some(1 << 50), total: None };
            (id, self.ask(|fs| fs.set_quota(node, Some(limits), &caller, false)), expected)
        };
        if self.same("a limit", got, expected).is_some() {
            self.tree.objects[id].ctime = self.tree.now;
        }
        true
    }

    fn link(&mut self) {
        let ((id, file), (dir, node)) = (self.a_file(), self.a_dir());
        let name = self.name();
        self.last = format!("link {id} to {name:?} in {dir}");
        let expected = self.tree.link(id, dir, &name);
        let got = self.ask(|fs| fs.link(file, node, &name));
        self.created(got, expected.map(|()| id));
    }

    /// An offset where something may happen: near the boundaries of blocks.
    fn offset(&mut self) -> usize {
        let block = self.random.below(6) * 4096;
        match self.random.below(3) {
            0 => block,
            1 => (block + self.random.below(30)).saturating_sub(15),
            _ => block + self.random.below(4096),
        }
    }

    fn len(&mut self) -> usize {
        match self.random.below(4) {
            0 => self.random.below(20),
            1 => 4096,
            2 => self.random.below(4096),
            _ => self.random.below(4) * 4096 + self.random.below(3),
        }
    }

    fn write(&mut self) {
        let (id, node) = self.a_file();
        let (offset, len, kill) = (self.offset(), self.len(), self.random.chance(2));
        let offset = if self.random.chance(3) { self.tree.objects[id].data.len() } else { offset };
        if offset > 60_000 {
            return self.resize();
        }
        let byte = self.random.next() as u8;
        let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
        self.last = format!("write {len} bytes at {offset} of {id}");
        let expected = self.tree.write(id, offset, &data, kill);
        let got = self.ask(|fs| fs.write(node, offset as u64, &data, kill));
        let object = &self.tree.objects[id];
        if got.is_ok() && object.flags.has(FileFlags::SYNC) && object.names > 0 {
            self.synced = Some(Some(id));
        }
        self.same("write", got, expected);
    }

    fn read(&mut self) {
        let (id, node) = self.a_file();
        let (offset, len) = (self.offset(), self.len());
        self.last = format!("read {len} bytes at {offset} of {id}");
        let expected = self.tree.read(id, offset, len);
        let mut out = vec![0xee; len];
        let got = self.fs.read(node, offset as u64, &mut out).map(|len| out[..len].to_vec());
        self.same("read", got, expected);
    }

    fn resize(&mut self) {
        let (id, node) = self.a_file();
        let size = if self.random.chance(4) { 0 } else { self.offset() as u64 };
        self.set(id, node, &SetAttr { size: Some(size), ..Default::default() });
    }

    fn setattr(&mut self) {
        let (id, node) = self.any();
        let random = &mut self.random;
        let time = |random: &mut Random| match random.below(4) {
            0 => Some(SetTime::Now),
            1 => Some(SetTime::At(random.next() as i64 / 2)),
            _ => None,
        };
        let set = SetAttr {
            mode: random.chance(2).then(|| random.below(0o10000) as u32),
            uid: random.chance(4).then(|| random.below(5) as u32),
            gid: random.chance(4).then(|| random.below(5) as u32),
            size: None,
            atime: time(random),
            mtime: time(random),
            ctime: time(random),
            kill_privileges: random.chance(4),
        };
        self.set(id, node, &set);
    }

    /// Mostly takes protection away again, so that there is something to do.
    fn set_flags(&mut self) {
        let protected: Vec<_> =
            self.open.iter().filter(|(id, ..)| self.tree.objects[*id].flags.protect()).collect();
        let (id, node) = match protected[..] {
            [] => self.any(),
            [(id, node, _), ..] if self.random.chance(2) => (*id, *node),
            _ => self.any(),
        };
        let mut rest = self.random.next() as u32 & FileFlags::ALL.0 & !FileFlags::PROTECTION.0;
        if self.gives_up {
            // Such calls wait after their change, until it is durable.
            rest &= !(FileFlags::SYNC.0 | FileFlags::DIRSYNC.0);
        }
        let protection = *self.random.pick(&[0, 0, 0x10, 0x20, 0x30]);
        let flags = FileFlags(if self.tree.objects[id].flags.protect() { rest } else { rest | protection });
        let caller = self.tree_caller();
        self.last = format!("flags {:#x} of {id} by {}", flags.0, caller.uid);
        let expected = self.tree.set_flags(id, flags, &caller);
        let got = self.ask(|fs| fs.set_flags(node, flags, &caller));
        self.same("set_flags", got, expected);
    }

    fn set(&mut self, id: Id, node: NodeId, set: &SetAttr) {
        self.last = format!("setattr {set:?} of {id}");
        let expected = self.tree.setattr(id, set);
        let got = self.ask(|fs| fs.setattr(node, set));
        self.same("setattr", got.as_ref().map(|_| ()).map_err(Clone::clone), expected);
        if let Ok(attr) = got {
            self.check_attr(id, &attr);
        }
    }

    fn fallocate(&mut self) {
        let (id, node) = self.a_file();
        let (offset, len) = (self.offset(), self.len());
        let what = *self.random.pick(&[
            Fallocate::Allocate { keep_size: true },
            Fallocate::Allocate { keep_size: false },
            Fallocate::PunchHole,
            Fallocate::PunchHole,
            Fallocate::ZeroRange { keep_size: true },
            Fallocate::ZeroRange { keep_size: false },
        ]);
        self.last = format!("{what:?} {len} bytes at {offset} of {id}");
        let expected = self.tree.fallocate(id, offset, len, what);
        let got = self.ask(|fs| fs.fallocate(node, offset as u64, len as u64, what, false));
        self.same("fallocate", got, expected);
    }

    fn copy(&mut self) {
        let ((from, from_node), (to, to_node)) = (self.a_file(), self.a_file());
        let (from_offset, to_offset, len) = (self.offset(), self.offset(), self.len());
        let overlap = from == to && from_offset < to_offset + len && to_offset < from_offset + len;
        self.last = format!("copy {len} bytes from {from_offset} of {from} to {to_offset} of {to}");
        let expected = if overlap {
            Err(espalier_fs::FsErrorKind::Invalid)
        } else if len == 0 {
            Ok(0)
        } else {
            let data = self.tree.read(from, from_offset, len);
            data.and_then(
                |data| if data.is_empty() { Ok(0) } else { self.tree.write(to, to_offset, &data, false) },
            )
        };
        let args = (from_offset as u64, to_offset as u64, len as u64);
        let got = self.ask(|fs| fs.copy_file_range(from_node, args.0, to_node, args.1, args.2, false));
        self.same("copy_file_range", got, expected.map(|n| n as u64));
    }

    fn seek(&mut self) {
        let (id, node) = self.a_file();
        let offset = self.offset();
        self.last = format!("seek from {offset} in {id}");
        let data = &self.tree.objects[id].data;
        if self.tree.objects[id].kind != FileKind::Regular {
            return;
        }
        let tail = data.get(offset..).unwrap_or_default();
        match self.fs.lseek(node, offset as u64, Seek::Data) {
            Ok(found) => {
                let found = found as usize;
                assert!(found >= offset && found < data.len(), "seed {}: data at {found}", self.seed);
                assert!(data[offset..found].iter().all(|b| *b == 0), "seed {}: data skipped", self.seed);
            }
            Err(_) => {
                assert!(tail.iter().all(|b| *b == 0), "seed {}, step {}: data denied", self.seed, self.step)
            }
        }
        match self.fs.lseek(node, offset as u64, Seek::Hole) {
            Ok(found) => {
                let found = found as usize;
                assert!(found >= offset && found <= data.len(), "seed {}: hole at {found}", self.seed);
                let end = ((found / 4096 + 1) * 4096).min(data.len());
                assert!(
                    data[found..end].iter().all(|b| *b == 0),
                    "seed {}, step {}: no hole",
                    self.seed,
                    self.step
                );
            }
            Err(_) => assert!(tail.is_empty(), "seed {}: every file ends in a hole", self.seed),
        }
    }

    fn xattr(&mut self) {
        let (id, node) = self.any();
        let names: [&[u8]; 5] =
            [b"user.a", b"user.\x01\x02", b"trusted.b", b"security.capability", b"user.long"];
        let name = *self.random.pick(&names);
        let mode =
            *self.random.pick(&[XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]);
        if self.random.chance(4) {
            self.last = format!("removexattr {name:?} of {id}");
            let expected = self.tree.setxattr(id, name, None, XattrMode::Replace);
            let got = self.ask(|fs| fs.removexattr(node, name));
            self.same("removexattr", got, expected);
        } else {
            let lengths = if name == b"security.capability" { 4 } else { 6 };
            let len = *self.random.pick(&[0, 5, 500, 700, 5000, 65536][..lengths]);
            let value = vec![self.random.next() as u8; len];
            self.last = format!("setxattr {name:?} of {id} to {len} bytes, {mode:?}");
            let expected = self.tree.setxattr(id, name, Some(&value), mode);
            let got = self.ask(|fs| fs.setxattr(node, name, &value, mode, false));
            self.same("setxattr", got, expected);
        }
        self.compare_xattrs(id, node);
    }

    fn compare_xattrs(&self, id: Id, node: NodeId) {
        let object = &self.tree.objects[id];
        let names: Vec<u8> = object.xattrs.keys().flat_map(|n| n.iter().copied().chain([0])).collect();
        self.same("listxattr", self.fs.listxattr(node), Ok(names));
        for (name, value) in &object.xattrs {
            self.same("getxattr", self.fs.getxattr(node, name), Ok(value.clone()));
        }
    }

    fn list(&mut self) {
        let (id, node) = self.a_dir();
        self.last = format!("list {id}");
        if !self.tree.objects[id].is_dir() {
            return;
        }
        if self.tree.objects[id].names > 0 {
            self.tree.touch(id);
        }
        self.compare_listing(id, node);
    }

    /// Lists a directory in small steps, with nodes or without.
    fn compare_listing(&mut self, id: Id, node: NodeId) {
        let plus = self.random.chance(2);
        let mut seen = Vec::new();
        let mut entries = Vec::new();
        let mut cookie = 0;
        loop {
            let (before, start) = (seen.len(), cookie);
            let mut room = 1 + self.random.below(4);
            let mut each = |entry: espalier_fs::DirEntry<'_>| {
                if room == 0 {
                    return false;
                }
                room -= 1;
                cookie = entry.cookie;
                seen.push((entry.name.to_vec(), entry.ino, entry.kind));
                entries.extend(entry.entry.cloned());
                true
            };
            if plus {
                self.fs.readdirplus(node, start, &mut each).expect("a directory can be listed");
            } else {
                self.fs.readdir(node, start, &mut each).expect("a directory can be listed");
            }
            if seen.len() == before {
                break;
            }
        }
        if self.tree.objects[id].names == 0 {
            assert_eq!(seen, [], "a removed directory lists nothing");
            return;
        }
        let names: Vec<_> = seen.iter().map(|(name, ..)| name.clone()).collect();
        let listing = self.tree.listing(id);
        let expected: Vec<Vec<u8>> = [b".".to_vec(), b"..".to_vec()]
            .into_iter()
            .chain(listing.iter().map(|(n, _)| n.clone()))
            .collect();
        assert_eq!(
            names, expected,
            "seed {}, step {} after {}: listing of {id}",
            self.seed, self.step, self.last
        );
        for ((_, child), (_, ino, kind)) in listing.iter().zip(&seen[2..]) {
            assert_eq!(self.tree.objects[*child].kind, *kind);
            assert_eq!(self.numbers.entry(*child).or_insert(*ino), ino, "seed {}: numbers change", self.seed);
        }
        for ((_, child), entry) in listing.iter().zip(&entries) {
            self.check_attr(*child, &entry.attr);
            self.fs.forget(entry.node, 1);
        }
        assert_eq!(entries.len(), if plus { listing.len() } else { 0 });
    }

    fn sync(&mut self) {
        let (id, node) = self.any();
        self.last = format!("sync {id}");
        match self.random.below(3) {
            0 => {
                self.fs.fsync(node, self.random.chance(2)).expect("fsync");
                let object = &self.tree.objects[id];
                // What has no name is lost in a crash, so nothing can be promised of it.
                if object.is_dir() || object.names > 0 {
                    self.synced = Some(Some(id).filter(|_| !object.is_dir()));
                }
                return;
            }
            1 => self.fs.syncfs().expect("syncfs"),
            _ => self.fs.background_tick().expect("tick"),
        }
        self.synced = Some(None);
        match self.random.below(8) {
            0 => self.store.checkpoint().expect("checkpoint"),
            1..=2 => while self.store.step().expect("background work") {},
            3 => while self.store.read_ahead() {},
            _ => {}
        }
    }

    /// Opens the file system anew, with or without having given back what was in use.
    fn remount(&mut self) {
        self.last = "remount".into();
        let polite = self.random.chance(2);
        if polite {
            while self.open.len() > 1 {
                self.forget();
            }
        }
        // Without this the times of the last read may be lost, which is allowed.
        self.fs.syncfs().expect("syncfs");
        self.synced = Some(None);
        if polite {
            self.fs.close().expect("close");
        }
        self.open.truncate(1);
        match self.random.below(3) {
            0 => {}
            1 => {
                self.store.close().expect("close");
                self.store = open_store(&self.device, &self.world);
            }
            _ => self.store = open_store(&self.device, &self.world),
        }
        self.fs = open_fs(&self.store, &self.world, &mut self.random, &self.caring, self.keeps_handles);
        self.compare_all();
    }

    /// Another file system goes on in place of this one. What is in use stays in use.
    fn hand_over(&mut self) {
        self.last = "hand over".into();
        let state = self.fs.hand_over().expect("hand over");
        let cut = self.handle_random.below(state.len());
        if self.handle_random.chance(2) {
            self.store = open_store(&self.device, &self.world);
        }
        let open = |run: &mut Self, state: &[u8]| {
            let options = open_options(&mut run.handle_random, &run.caring, run.keeps_handles);
            FileSystem::open_handed_over(run.store.clone(), run.world.clone(), options, state)
        };
        assert!(open(self, &state[..cut]).is_err(), "seed {}: {cut} of {}", self.seed, state.len());
        self.fs = open(self, &state).expect("what was handed over is taken");
        self.synced = Some(None);
        let nameless = self.open.iter().filter(|(id, ..)| self.tree.objects[*id].names == 0).count();
        self.handed_over = (self.handed_over.0 + 1, self.handed_over.1 + nameless);
        self.compare_all();
    }

    /// Compares everything: each object by each of its names, and what is in use without a name.
    pub(crate) fn compare_all(&mut self) {
        self.compare_below(ROOT, NodeId::ROOT);
        for (id, node, _) in self.open.clone() {
            self.compare_object(id, node);
        }
        self.check();
    }

    /// Every promise of the layout is kept.
    fn check(&self) {
        let report = espalier_fs::check(&self.store, "main", &mut |_| {}).expect("the volume can be checked");
        assert_eq!(report.problems, [], "seed {}, step {} after {}", self.seed, self.step, self.last);
        let kept = self.store.statistics().space.kept * 4096;
        assert_eq!(kept, report.reserved, "seed {}, step {} after {}", self.seed, self.step, self.last);
    }

    /// Gives everything back: nothing may be left of what has no name.
    pub(crate) fn finish(&mut self) {
        while self.open.len() > 1 {
            self.forget();
        }
        self.fs.background_tick().expect("tick");
        let report = espalier_fs::check(&self.store, "main", &mut |_| {}).expect("the volume can be checked");
        assert_eq!((report.problems, report.orphans), (vec![], 0), "seed {}", self.seed);
        let statistics = self.fs.statistics();
        assert_eq!((statistics.nodes, statistics.orphans), (3, 0), "seed {}: {statistics:?}", self.seed);
    }

    fn compare_below(&mut self, id: Id, node: NodeId) {
        self.compare_object(id, node);
        self.tree.touch(id);
        self.compare_listing(id, node);
        for (name, child) in self.tree.listing(id) {
            let entry = self.fs.lookup(node, &name).expect("what is listed is there");
            if self.tree.objects[child].is_dir() {
                self.compare_below(child, entry.node);
            } else {
                self.compare_object(child, entry.node);
            }
            self.fs.forget(entry.node, 1);
        }
    }

    fn compare_object(&mut self, id: Id, node: NodeId) {
        let attr = self.fs.getattr(node).expect("what is in use has attributes");
        self.check_attr(id, &attr);
        self.same("flags", self.fs.flags(node), Ok(self.tree.objects[id].flags));
        self.compare_xattrs(id, node);
        match self.tree.objects[id].kind {
            FileKind::Symlink => {
                self.tree.touch(id);
                let target = self.tree.objects[id].target.clone();
                self.same("readlink", self.fs.readlink(node), Ok(target));
            }
            FileKind::Regular => {
                let mut out = vec![0xee; self.tree.objects[id].data.len() + 10];
                let data = self.tree.read(id, 0, out.len());
                let got = self.fs.read(node, 0, &mut out).map(|len| out[..len].to_vec());
                self.same("read", got, data);
            }
            _ => {}
        }
    }
}
