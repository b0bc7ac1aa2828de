//! Limits on trees against a model that knows which blocks each file has: what a tree holds alone
//! are the blocks that lie in it and nowhere else. From that follow a least and a most: a call may
//! be refused only if the tree would be nearly full, and must be if it would hold much more.

use crate::seeds;
use crate::world::{Random, World};
use espalier_engine::Store;
use espalier_fs::{
    Caller, FileSystem, FormatOptions, FsError, FsErrorKind, NewNode, NodeId, RenameMode, SetAttr,
    TreeLimits, merge_functions,
};
use espalier_storage::{Device, MemoryDevice};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 64 << 10;
/// Names, nodes on borders, parts of a leaf that two trees lie in.
const SLACK_BYTES: u64 = 256 << 10;
/// Garbage collection may write values of neighbouring trees into one part.
const MIXED_BYTES: u64 = 512 << 10;
/// What headers and parts take beside the blocks, of these at most so much.
const OVERHEAD: u64 = 16;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

/// A directory at the top: files with the numbers of their blocks, and the limit.
#[derive(Debug, Clone, Default)]
struct Tree {
    files: BTreeMap<u64, Vec<u64>>,
    limit: Option<u64>,
    /// All blocks that files in it had. Where a leaf is shared, deleting them waits above it.
    had: BTreeSet<u64>,
}

struct Run {
    seed: u64,
    random: Random,
    world: Arc<World>,
    device: Arc<dyn Device>,
    store: Arc<Store>,
    fs: Arc<FileSystem>,
    trees: BTreeMap<u64, Tree>,
    /// The nodes in use, each with one reference.
    nodes: RefCell<BTreeMap<u64, NodeId>>,
    /// The steps in which blocks were written where a limit was: their values share value parts
    /// with those of the same step only. What was written before may not count.
    apart: BTreeMap<u64, usize>,
    next: u64,
    refused: u64,
    step: usize,
}

fn open(device: &Arc<dyn Device>, world: &Arc<World>) -> (Arc<Store>, Arc<FileSystem>) {
    let options =
        espalier_engine::OpenOptions { memory: 32 << 20, merge: merge_functions(), ..Default::default() };
    let store = Store::open(device.clone(), world.clone(), options).expect("the store opens");
    let fs = FileSystem::open(store.clone(), world.clone(), Default::default()).expect("it opens");
    (store, fs)
}

fn name(number: u64) -> Vec<u8> {
    format!("{number:04}").into_bytes()
}

impl Run {
    fn new(seed: u64) -> Self {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
        let world = World::new(seed);
        Store::format(device.clone(), world.clone(), &Default::default()).expect("format");
        let options =
            espalier_engine::OpenOptions { memory: 32 << 20, merge: merge_functions(), ..Default::default() };
        let store = Store::open(device.clone(), world.clone(), options).expect("the store opens");
        FileSystem::format(&store, &FormatOptions { now: world.step(1), ..Default::default() })
            .expect("format");
        let fs = FileSystem::open(store.clone(), world.clone(), Default::default()).expect("it opens");
        Self {
            seed,
            random: Random(seed),
            world,
            device,
            store,
            fs,
            trees: BTreeMap::new(),
            nodes: RefCell::default(),
            apart: BTreeMap::new(),
            next: 1,
            refused: 0,
            step: 0,
        }
    }

    /// The node of a tree, which is in use from now on.
    fn node(&self, tree: u64) -> NodeId {
        let find = || self.fs.lookup(NodeId::ROOT, &name(tree)).expect("the directory is there").node;
        *self.nodes.borrow_mut().entry(tree).or_insert_with(find)
    }

    /// A tree is no longer in use.
    fn leave(&self, tree: u64) {
        if let Some(node) = self.nodes.borrow_mut().remove(&tree) {
            self.fs.forget(node, 1);
        }
    }

    /// Bytes of blocks that lie in this tree and in no other: those that must count, and all. Of
    /// blocks that share value parts those count that are more than the ones that others had.
    fn alone(&self, tree: u64) -> (u64, u64) {
        let blocks = |tree: &Tree| tree.files.values().flatten().copied().collect::<BTreeSet<u64>>();
        let others: Vec<BTreeSet<u64>> =
            self.trees.iter().filter(|(number, _)| **number != tree).map(|(_, tree)| blocks(tree)).collect();
        let own = blocks(&self.trees[&tree]);
        // What lies in a tree twice may count twice.
        let named = self.trees[&tree].files.values().flatten();
        let alone = named.filter(|block| !others.iter().any(|other| other.contains(block))).count();
        let mut of_step: BTreeMap<usize, i64> = BTreeMap::new();
        let step = |block: &u64| self.apart.get(block).copied();
        own.iter().filter_map(step).for_each(|step| *of_step.entry(step).or_default() += 1);
        let had = self.trees.iter().filter(|(number, _)| **number != tree).flat_map(|(_, tree)| &tree.had);
        had.filter_map(step).for_each(|step| *of_step.entry(step).or_default() -= 1);
        let least: i64 = of_step.values().filter(|blocks| **blocks > 0).sum();
        (least as u64 * BLOCK, alone as u64 * BLOCK)
    }

    /// A call by which a tree holds more, so many bytes at least and at most, was made or refused.
    fn judge<T>(
        &mut self,
        tree: u64,
        (least_more, most_more): (u64, u64),
        result: Result<T, FsError>,
    ) -> Option<T> {
        let (least_held, most_held) = self.alone(tree);
        let limit = self.trees[&tree].limit;
        match (result, limit) {
            (Ok(done), Some(limit)) => {
                let (would, most) = (least_held + least_more, limit + SLACK_BYTES + MIXED_BYTES);
                assert!(would <= most, "seed {}, step {}: {would} of {limit}", self.seed, self.step);
                Some(done)
            }
            (Ok(done), None) => Some(done),
            (Err(error), limit) => {
                let kind = error.kind();
                assert_eq!(kind, FsErrorKind::QuotaExceeded, "seed {}, step {}", self.seed, self.step);
                let limit = limit.expect("only limits refuse");
                let would = most_held + most_held / OVERHEAD + most_more;
                let least = limit.saturating_sub(SLACK_BYTES);
                assert!(would >= least, "seed {}, step {}: {would} of {limit}", self.seed, self.step);
                self.refused += 1;
                None
            }
        }
    }

    fn a_tree(&mut self) -> Option<u64> {
        let all: Vec<u64> = self.trees.keys().copied().collect();
        (!all.is_empty()).then(|| *self.random.pick(&all))
    }

    fn a_file(&mut self) -> Option<(u64, u64)> {
        let all: Vec<(u64, u64)> =
            self.trees.iter().flat_map(|(tree, t)| t.files.keys().map(|file| (*tree, *file))).collect();
        (!all.is_empty()).then(|| *self.random.pick(&all))
    }

    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn make_tree(&mut self) {
        let tree = self.fresh();
        let node = self.fs.mkdir(NodeId::ROOT, &name(tree), 0o755, &CALLER).expect("mkdir").node;
        self.nodes.borrow_mut().insert(tree, node);
        self.trees.insert(tree, Tree::default());
    }

    fn limit(&mut self) {
        let Some(tree) = self.a_tree() else { return };
        let (_, alone) = self.alone(tree);
        let room = (1 + self.random.below(6) as u64) * MIB;
        let limit = (!self.random.chance(4)).then_some(alone + room);
        let limits = limit.map(|bytes| TreeLimits { exclusive: Some(bytes), total: None });
        self.fs.set_quota(self.node(tree), limits, &CALLER, false).expect("set");
        self.trees.get_mut(&tree).expect("it is there").limit = limit;
    }

    /// Appends blocks to a new file or one that is there.
    fn write(&mut self) {
        let Some(tree) = self.a_tree() else { return };
        let old = self.a_file().filter(|(of, _)| *of == tree).map(|(_, file)| file);
        let file = old.unwrap_or_else(|| self.fresh());
        let dir = self.node(tree);
        let made = if old.is_some() {
            self.fs.lookup(dir, &name(file)).expect("it is there")
        } else {
            let made = self.fs.mknod(dir, &name(file), NewNode::Regular, 0o644, &CALLER);
            let Some(made) = self.judge(tree, (0, 0), made) else { return };
            made
        };
        self.trees.get_mut(&tree).expect("it is there").files.entry(file).or_default();
        for _ in 0..=self.random.below(24) {
            let block = self.fresh();
            if self.trees[&tree].limit.is_some() {
                self.apart.insert(block, self.step);
            }
            let mut data = vec![0; BLOCK as usize];
            let mut bytes = espalier_storage::Random::new(block);
            bytes.fill(&mut data);
            let at = self.trees[&tree].files[&file].len() as u64 * BLOCK;
            let written = self.fs.write(made.node, at, &data, false);
            if self.judge(tree, (BLOCK, BLOCK), written).is_none() {
                break;
            }
            let of = self.trees.get_mut(&tree).expect("it is there");
            of.had.insert(block);
            of.files.get_mut(&file).expect("it is there").push(block);
        }
        self.fs.forget(made.node, 1);
    }

    fn cut(&mut self) {
        let Some((tree, file)) = self.a_file() else { return };
        let entry = self.fs.lookup(self.node(tree), &name(file)).expect("it is there");
        let blocks = self.trees.get_mut(&tree).and_then(|t| t.files.get_mut(&file)).expect("it is there");
        blocks.truncate(blocks.len() / 2);
        let size = Some(blocks.len() as u64 * BLOCK);
        self.fs.setattr(entry.node, &SetAttr { size, ..Default::default() }).expect("truncating works");
        self.fs.forget(entry.node, 1);
    }

    fn unlink(&mut self) {
        let Some((tree, file)) = self.a_file() else { return };
        self.fs.unlink(self.node(tree), &name(file)).expect("removing works");
        self.trees.get_mut(&tree).expect("it is there").files.remove(&file);
    }

    fn rename(&mut self) {
        let (Some((tree, file)), Some(to)) = (self.a_file(), self.a_tree()) else { return };
        let new = self.fresh();
        let mut after = self.trees.clone();
        let blocks = after.get_mut(&tree).and_then(|t| t.files.remove(&file)).expect("it is there");
        let target = after.get_mut(&to).expect("it is there");
        target.had.extend(&blocks);
        target.files.insert(new, blocks);
        let before = self.alone(to);
        let now = std::mem::replace(&mut self.trees, after);
        let then = self.alone(to);
        let after = std::mem::replace(&mut self.trees, now);
        let growth = if tree == to {
            (0, 0)
        } else {
            (then.0.saturating_sub(before.0), then.1.saturating_sub(before.1))
        };
        let (from_dir, to_dir) = (self.node(tree), self.node(to));
        let moved = self.fs.rename(from_dir, &name(file), to_dir, &name(new), RenameMode::NoReplace);
        if self.judge(to, growth, moved).is_some() {
            self.trees = after;
        }
    }

    fn clone_tree(&mut self) {
        let Some(tree) = self.a_tree() else { return };
        let new = self.fresh();
        let made = self.fs.clone_tree(self.node(tree), NodeId::ROOT, &name(new), &CALLER).expect("clone");
        self.fs.forget(made.node, 1);
        let copy = self.trees[&tree].clone();
        self.trees.insert(new, copy);
    }

    fn remove_tree(&mut self) {
        let Some(tree) = self.a_tree() else { return };
        self.leave(tree);
        self.fs.remove_tree(NodeId::ROOT, &name(tree), &CALLER).expect("removing works");
        self.trees.remove(&tree);
    }

    fn sync(&mut self) {
        self.fs.syncfs().expect("sync");
    }

    /// As after a crash: nothing is given back or closed, only what was synced is there.
    fn crash(&mut self) {
        self.sync();
        self.nodes.borrow_mut().clear();
        (self.store, self.fs) = open(&self.device, &self.world);
    }

    fn step(&mut self) {
        self.step += 1;
        self.world.step(3_000_000_000);
        match self.random.below(20) {
            0..=1 if self.trees.len() < 8 => self.make_tree(),
            2..=4 => self.limit(),
            5 => self.cut(),
            6..=7 => self.unlink(),
            8..=9 => self.rename(),
            10..=11 if self.trees.len() < 12 => self.clone_tree(),
            12 => self.remove_tree(),
            13 => self.sync(),
            14 if self.random.chance(4) => self.crash(),
            _ => self.write(),
        }
        self.compare();
    }

    /// What is shown of each limited tree is what it holds.
    fn compare(&mut self) {
        self.fs.background_tick().expect("a tick");
        while self.store.step().expect("a step") {}
        self.store.checkpoint().expect("checkpoint");
        for (tree, Tree { limit, .. }) in &self.trees {
            let quota = self.fs.quota(self.node(*tree), &CALLER).expect("quota");
            assert_eq!(quota.and_then(|quota| quota.limits.exclusive), *limit);
            let Some(quota) = quota else { continue };
            let (found, (least, most)) = (quota.exclusive, self.alone(*tree));
            let (least, most) = (least.saturating_sub(MIXED_BYTES), most + most / OVERHEAD);
            assert!(
                found + SLACK_BYTES >= least && found <= most + SLACK_BYTES,
                "seed {}, step {}: tree {tree} holds {least} to {most}, and {found} are shown",
                self.seed,
                self.step
            );
        }
    }
}

#[test]
fn limits_are_kept_and_do_not_refuse_what_fits() {
    let seeds = seeds(12);
    let (count, mut refused) = (seeds.clone().count() as u64, 0);
    for seed in seeds {
        let mut run = Run::new(seed);
        for _ in 0..150 {
            run.step();
        }
        run.fs.close().expect("close");
        let report = espalier_fs::check(&run.store, "main", &mut |_| {}).expect("it can be checked");
        assert_eq!(report.problems, vec![], "seed {seed}");
        refused += run.refused;
    }
    assert!(count < 12 || refused > count, "{refused} calls were refused in {count} runs");
}
