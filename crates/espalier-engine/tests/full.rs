//! Deleting in a store that is full: what may be refused, what may not, and that no checkpoint ever
//! is.

use espalier_engine::{
    Batch, ErrorKind, FormatOptions, IndexId, KeyRange, OpenOptions, READ_ONLY_VOLUME, Store,
};
use espalier_storage::{BLOCK, MemoryDevice, Random, SimulatedEnvironment};
use std::sync::Arc;

/// Length of the values of a tree.
const VALUE: usize = 1000;

/// A volume of a few trees like each other, and one more index that takes all space that they
/// leave.
struct Full {
    device: Arc<MemoryDevice>,
    store: Arc<Store>,
    volume: u32,
    trees: u8,
    keys: u64,
    /// What was free before anything was there.
    empty: u64,
}

fn open(device: &Arc<MemoryDevice>) -> Arc<Store> {
    let options = OpenOptions { memory: 64 << 20, ..OpenOptions::default() };
    Store::open(device.clone(), Arc::new(SimulatedEnvironment::new(1)), options).unwrap()
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:06}").into_bytes()
}

/// Bytes that cannot be compressed.
fn value(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

impl Full {
    /// With `trees` of `keys` each, in a store of so many MiB that has room for more.
    fn with_room(mib: u64, trees: u8, keys: u64) -> Self {
        let device = Arc::new(MemoryDevice::new(mib << 20));
        let format = FormatOptions { log_bytes: Some(2 << 20), ..FormatOptions::default() };
        Store::format(device.clone(), Arc::new(SimulatedEnvironment::new(1)), &format).unwrap();
        let store = open(&device);
        let volume = store.create_volume("v", trees + 1, 0, &[]).unwrap();
        let empty = store.statistics().space.free;
        let full = Self { device, store, volume, trees, keys, empty };
        for tree in 0..trees {
            for from in (0..keys).step_by(50) {
                let mut batch = Batch::new();
                for n in from..keys.min(from + 50) {
                    batch.insert(full.tree(tree), &key(n), value(u64::from(tree) * keys + n, VALUE));
                }
                full.store.commit(batch).unwrap();
            }
        }
        while full.store.step().unwrap() {}
        full.store.checkpoint().unwrap();
        full
    }

    /// The same, where nothing more fits.
    fn new(mib: u64, trees: u8, keys: u64) -> Self {
        let full = Self::with_room(mib, trees, keys);
        full.fill();
        full
    }

    fn fill(&self) {
        for len in [32 << 10, VALUE] {
            for n in 0.. {
                let mut batch = Batch::new();
                batch.insert(self.tree(self.trees), format!("{len} {n}").as_bytes(), value(n, len));
                if self.takes(batch).is_none() {
                    break;
                }
            }
        }
        self.store.checkpoint().unwrap();
    }

    fn tree(&self, index: u8) -> IndexId {
        IndexId { volume: self.volume, index }
    }

    /// Commits a batch, if there is room for it.
    fn takes(&self, batch: Batch) -> Option<()> {
        match self.store.commit(batch) {
            Ok(_) => Some(()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
                None
            }
        }
    }

    /// Every `step`th key from `first` on, in each of these trees.
    fn deletions(&self, trees: impl IntoIterator<Item = u8>, first: u64, step: usize) -> Batch {
        let mut batch = Batch::new();
        for tree in trees {
            (first..self.keys).step_by(step).for_each(|n| batch.delete(self.tree(tree), &key(n)));
        }
        batch
    }

    /// What a power cut would leave is the same, without an error.
    fn reopen(self) -> Self {
        let Self { device, store, volume, trees, keys, empty } = self;
        store.sync_all().unwrap();
        drop(store);
        let store = open(&device);
        store.checkpoint().unwrap();
        Self { device, store, volume, trees, keys, empty }
    }

    fn assert_sound(&self) {
        let report = self.store.verify(&mut |_| ()).unwrap();
        assert!(report.problems.is_empty(), "{:?}", report.problems);
    }

    /// Snapshots can be dropped and everything can be deleted, and that sets free what it took.
    fn empty(self) {
        for volume in self.store.volumes().iter().filter(|volume| volume.id != self.volume) {
            self.store.delete_volume(volume.id).unwrap();
        }
        let mut batch = Batch::new();
        (0..=self.trees).for_each(|tree| batch.delete_range(self.tree(tree), KeyRange::all()));
        self.store.commit(batch).unwrap();
        let full = self.reopen();
        (0..2).for_each(|_| full.store.checkpoint().unwrap());
        full.assert_sound();
        let (free, before) = (full.store.statistics().space.free, full.empty);
        assert!(free + before / 50 >= before, "{free} bytes are free, {before} were");
    }
}

/// Deletes single keys, until that is refused or has been done so many times; each time there is a
/// new snapshot if `often`. Returns how often it was not refused.
fn delete_beside_snapshots(full: &Full, often: bool, rounds: u64, step: usize) -> u64 {
    for round in 0..rounds {
        if often || round == 0 {
            full.store.snapshot_volume(full.volume, &round.to_string(), READ_ONLY_VOLUME).unwrap();
        }
        let taken = full.takes(full.deletions(0..full.trees, round, step));
        full.store.checkpoint().unwrap();
        if taken.is_none() {
            full.assert_sound();
            return round;
        }
    }
    rounds
}

/// Each snapshot keeps a leaf of each tree, which the deletions after it write anew.
#[test]
fn deletions_between_snapshots_never_let_a_checkpoint_fail() {
    let full = Full::new(40, 2, 250);
    let taken = delete_beside_snapshots(&full, true, 25, 25);
    let left = (0..250).filter(|n| full.store.contains(full.tree(1), &key(*n)).unwrap()).count();
    assert_eq!(left as u64, 250 - taken * 10);
    let full = full.reopen();
    full.store.snapshot_volume(full.volume, "last", READ_ONLY_VOLUME).unwrap();
    full.empty();
}

/// They leave twice what they change, and so are refused one day.
#[test]
fn deletions_all_over_higher_trees_beside_a_snapshot_are_refused_before_a_checkpoint_fails() {
    let full = Full::new(64, 10, 2500);
    let taken = delete_beside_snapshots(&full, false, 100, 100);
    assert!(taken < 100, "all is deleted, is still there in the snapshot, and nothing was refused");
    full.reopen().empty();
}

#[test]
fn one_batch_over_small_trees_is_taken_or_refused_and_the_checkpoint_is_made() {
    for trees in [2, 4, 8] {
        for beside_snapshot in [false, true] {
            let full = Full::with_room(40, trees, 250);
            if beside_snapshot {
                full.store.snapshot_volume(full.volume, "s", READ_ONLY_VOLUME).unwrap();
            }
            full.fill();
            let taken = full.takes(full.deletions(0..trees, 0, 10)).is_some();
            full.store.checkpoint().unwrap();
            full.assert_sound();
            if !beside_snapshot {
                // One tree after the other each gives back what it takes.
                let alone = if taken { 1 } else { 0 };
                (0..trees).for_each(|tree| {
                    full.store.commit(full.deletions([tree], alone, 10)).unwrap();
                });
            }
            full.reopen().empty();
        }
    }
}

/// What stays of the leaves in which a range begins and ends is written anew, for which there
/// always is room.
#[test]
fn a_range_can_be_deleted_wherever_it_begins_and_ends() {
    let full = Full::new(40, 1, 15_000);
    for (from, to) in [(1333, 4777), (5021, 5999), (7001, 14_321)] {
        let mut batch = Batch::new();
        batch.delete_range(full.tree(0), KeyRange::new(key(from), key(to)));
        full.store.commit(batch).unwrap();
    }
    full.store.checkpoint().unwrap();
    for (n, there) in
        [(1332, true), (1333, false), (5020, true), (5021, false), (14_320, false), (14_321, true)]
    {
        assert_eq!(full.store.contains(full.tree(0), &key(n)).unwrap(), there, "key {n}");
    }
    full.empty();
}

/// With so many hundredths in use a store is short of space, and yet not full: what most of a tree
/// held needs no more than the checkpoints that come anyway.
#[test]
fn what_was_deleted_with_ranges_in_a_store_nearly_full_comes_back_by_checkpoints_alone() {
    const PERCENT: u64 = 95;
    let full = Full::with_room(32, 0, 0);
    let (total, mut n, mut fits) = (full.empty, 0, true);
    while fits && full.store.statistics().space.free * 100 > total * (100 - PERCENT) {
        let mut batch = Batch::new();
        (n..n + 50).for_each(|n| batch.insert(full.tree(0), &key(n), value(n, VALUE)));
        fits = full.takes(batch).is_some();
        n += if fits { 50 } else { 0 };
        if n % 5000 == 0 {
            while full.store.step().unwrap() {}
            full.store.checkpoint().unwrap();
        }
    }
    full.store.checkpoint().unwrap();
    let before = full.store.statistics().space.free;
    let mut batch = Batch::new();
    batch.delete_range(full.tree(0), KeyRange::new(key(n / 20 + 7), key(n - n / 20 - 7)));
    full.store.commit(batch).unwrap();
    (0..2).for_each(|_| full.store.checkpoint().unwrap());
    let back = full.store.statistics().space.free.saturating_sub(before);
    assert!(back > (total - before) / 10 * 8, "{back} bytes of {} came back", total - before);
    full.empty();
}

/// Deletions that wait in the log take no more after a crash than they had been promised before.
#[test]
fn a_full_store_that_crashed_can_make_checkpoints() {
    let full = Full::new(40, 8, 276);
    for round in 0..30 {
        let mut batch = full.deletions(0..8, round * 6, 270);
        if round == 29 {
            // So each index has memtables that are sealed.
            (0..8).for_each(|tree| batch.move_range(full.tree(tree), b"x", b"y"));
        }
        full.store.commit(batch).unwrap();
    }
    full.store.sync_all().unwrap();
    let Full { device, store, volume, trees, keys, empty } = full;
    drop(store);
    let full = Full { store: open(&device), device, volume, trees, keys, empty };
    while full.store.step().unwrap() {}
    full.store.checkpoint().unwrap();
    full.assert_sound();
    full.empty();
}

/// In a small store space is always short, and yet what is written now and then must not wait above
/// the leaves, a block each time, nor in many runs on the edges of a higher tree.
#[test]
fn a_little_now_and_then_takes_no_more_than_it_is() {
    for keys in [250, 5000] {
        let full = Full::with_room(14, 1, keys);
        full.store.checkpoint().unwrap();
        let before = full.store.statistics().space.free;
        for round in 0..100u64 {
            let mut batch = Batch::new();
            batch.insert(full.tree(0), &key(7 + round % 3), value(round, VALUE));
            full.store.commit(batch).unwrap();
            full.store.checkpoint().unwrap();
        }
        full.store.checkpoint().unwrap();
        let after = full.store.statistics().space.free;
        let blocks = 30 * BLOCK as u64;
        assert!(
            after + blocks >= before,
            "of {before} free bytes {after} are left of a store with {keys} keys"
        );
    }
}
