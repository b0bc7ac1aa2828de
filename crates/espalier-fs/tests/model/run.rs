//! Runs random operations on the file system and on the model, and compares every answer.

use crate::copies::Copied;
use crate::giving_up::{Caring, Watched};
use crate::tree::{Id, ROOT, Tree};
use crate::world::{Random, World};
use espalier_engine::{Store, Tuning};
use espalier_fs::{
    AreaCorrection, Caller, FileKind, FileSystem, FormatOptions, FsError, FsErrorKind, HandleLifetime,
    NodeId, OpenOptions, merge_functions,
};
use espalier_storage::{Device, MemoryDevice};
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Operations between comparisons of the whole tree.
pub(crate) const CHECK_EVERY: usize = 100;
/// Objects in use at a time.
pub(crate) const MAX_OPEN: usize = 16;
/// Objects beyond which little is created.
pub(crate) const MAX_OBJECTS_ALIVE: usize = 60;

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
    pub(crate) open: Vec<(Id, NodeId, u64)>,
    /// File handles: node and generation, and what they stand for.
    pub(crate) handles: Vec<(NodeId, u32, Id)>,
    /// Decides about handles, apart from what decides about calls.
    pub(crate) handle_random: Random,
    /// Decides about limits, apart from all else.
    pub(crate) limit_random: Random,
    /// A directory that has a limit until the next step.
    pub(crate) limited_now: Option<(Id, NodeId)>,
    /// Directories that got a limit, and such that got none for files with names on both sides.
    pub(crate) limited: (usize, usize),
    /// Handles outlive remounts.
    pub(crate) keeps_handles: bool,
    /// The numbers that users have seen.
    pub(crate) numbers: HashMap<Id, u64>,
    pub(crate) step: usize,
    pub(crate) last: String,
    /// Mostly links, renames and clones.
    pub(crate) of_links: bool,
    /// Half of the steps copy large files.
    pub(crate) of_copies: bool,
    /// What was copied so.
    pub(crate) copied: Copied,
    /// The last step made this object durable, or (`Some(None)`) everything.
    pub(crate) synced: Option<Option<Id>>,
    pub(crate) caring: Arc<Caring>,
    /// Some calls are given up before they are made.
    pub(crate) gives_up: bool,
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

pub(crate) fn open_options(random: &mut Random, caring: &Arc<Caring>, keep_handles: bool) -> OpenOptions {
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

    pub(crate) fn with(seed: u64, device: Arc<dyn Device>, caring: Arc<Caring>) -> Self {
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
            of_copies: false,
            copied: Copied::default(),
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
            of_copies: false,
            copied: Copied::default(),
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
        if self.of_copies && self.random.chance(2) {
            return self.copy_large();
        }
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
    pub(crate) fn same<T: PartialEq + Debug>(
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

    pub(crate) fn any(&mut self) -> (Id, NodeId) {
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

    pub(crate) fn a_file(&mut self) -> (Id, NodeId) {
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
    pub(crate) fn opened(&mut self, id: Id, node: NodeId) {
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

    pub(crate) fn forget(&mut self) {
        if self.open.len() > 1 {
            let at = 1 + self.random.below(self.open.len() - 1);
            let (_, node, references) = self.open.swap_remove(at);
            self.fs.forget(node, references);
        }
    }

    pub(crate) fn caller(&mut self) -> Caller {
        let uid = self.random.below(3) as u32;
        let umask = *self.random.pick(&[0, 0o022, 0o077]);
        Caller { uid, gid: uid + 10, pid: 1, umask }
    }
}
