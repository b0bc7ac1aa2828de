//! What clones, moves and snapshots cost, in space, height and headers.

use espalier_engine::{
    Batch, ErrorKind, FormatOptions, IndexId, KeyRange, MergeFunctions, OpenOptions, READ_ONLY_VOLUME, Store,
    Tuning,
};
use espalier_storage::{Random, SimulatedDevice, SimulatedEnvironment};
use std::sync::Arc;
use std::time::Duration;

const DEVICE: u64 = 256 << 20;

/// Blocks of a file that is patched again and again.
const BLOCKS: usize = 16;

fn open(tuning: Tuning) -> (Arc<Store>, IndexId) {
    let device = Arc::new(SimulatedDevice::new(DEVICE, 1));
    let env = Arc::new(SimulatedEnvironment::new(1));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let options =
        OpenOptions { memory: 64 << 20, merge: MergeFunctions::new(), tuning, ..OpenOptions::default() };
    let store = Store::open(device, env, options).unwrap();
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    (store, IndexId { volume, index: 0 })
}

/// Bytes in use once everything is at rest.
fn used(store: &Store) -> u64 {
    for _ in 0..3 {
        while store.step().unwrap() {}
        store.checkpoint().unwrap();
    }
    let space = store.statistics().space;
    space.total - space.free
}

fn height(store: &Store, index: IndexId) -> u8 {
    store.statistics().heights.iter().find(|(id, _)| *id == index).unwrap().1
}

/// A tree of directories with files whose blocks are large values, and small ones.
fn unpack(store: &Store, index: IndexId, top: &str, dirs: usize, files: usize, block: usize) {
    let mut random = Random::new(7);
    for dir in 0..dirs {
        for file in 0..files {
            let mut batch = Batch::new();
            let mut value = vec![0; block];
            random.fill(&mut value);
            batch.insert(index, format!("{top}/dir{dir:03}/file{file:04}").as_bytes(), value);
            store.commit(batch).unwrap();
        }
    }
}

fn sound(store: &Store) {
    let report = store.verify(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems.first());
}

fn count(store: &Store, index: IndexId, prefix: &str) -> usize {
    let mut cursor = store.cursor(index, KeyRange::prefix(prefix.as_bytes())).unwrap();
    let mut keys = 0;
    while cursor.next().unwrap().is_some() {
        keys += 1;
    }
    keys
}

#[test]
fn a_clone_after_unpacking_adds_little() {
    for block in [300, 6000] {
        let (store, index) = open(Tuning::default());
        unpack(&store, index, "a", 40, 100, block);
        let mut batch = Batch::new();
        batch.clone_range(index, b"a", b"b");
        store.commit(batch).unwrap();
        assert_eq!(count(&store, index, "b/"), 4000);
        let with = used(&store);
        sound(&store);
        let mut batch = Batch::new();
        batch.delete_range(index, KeyRange::prefix(b"b"));
        store.commit(batch).unwrap();
        let without = used(&store);
        println!("blocks of {block}: clone adds {} KiB", with.saturating_sub(without) >> 10);
        assert!(with <= without + (256 << 10), "{with} {without}");
        assert_eq!(count(&store, index, "a/"), 4000);
        sound(&store);
    }
}

/// What rounds of clones and edits cost.
struct Rounds {
    /// Bytes once everything is at rest.
    added: u64,
    /// Node headers.
    nodes: u64,
    /// Bytes that were owed by what was in memory, at most.
    owed: u64,
}

/// 128 rounds of one clone and 64 edits of a tree that is unpacked for it, and whose clones have
/// numbers behind `name`. `chain` clones the newest clone each time and not the first tree, `tail`
/// edits the newest one.
fn rounds(store: &Store, index: IndexId, name: &str, chain: bool, tail: bool) -> Rounds {
    unpack(store, index, &format!("{name}000"), 64, BLOCKS, 64 << 10);
    let before = used(store);
    let nodes = store.census().unwrap().nodes;
    let mut owed = 0;
    let mut random = Random::new(3);
    for round in 1..=128 {
        let source = if chain { round - 1 } else { 0 };
        let mut batch = Batch::new();
        let (from, to) = (format!("{name}{source:03}"), format!("{name}{round:03}"));
        batch.clone_range(index, from.as_bytes(), to.as_bytes());
        store.commit(batch).unwrap();
        let edited = if tail { round } else { 0 };
        for file in 0..64 {
            let mut batch = Batch::new();
            let key = format!("{name}{edited:03}/dir{file:03}/file{:04}", random.index(BLOCKS));
            batch.patch(index, key.as_bytes(), random.below(65_000) as u32, vec![round as u8; 16]);
            store.commit(batch).unwrap();
        }
        while store.step().unwrap() {}
        if round % 8 == 0 {
            owed = owed.max(store.statistics().space.unwritten);
            store.checkpoint().unwrap();
        }
    }
    let cost = Rounds { added: used(store) - before, nodes: store.census().unwrap().nodes - nodes, owed };
    println!(
        "{name}, chain {chain}, tail {tail}: 128 rounds add {} KiB and {} nodes, height {}, {} KiB owed at most",
        cost.added >> 10,
        cost.nodes,
        height(store, index),
        cost.owed >> 10
    );
    sound(store);
    cost
}

#[test]
fn rounds_of_clones_and_edits_add_little() {
    for (chain, tail) in [(false, true), (false, false), (true, true)] {
        let (store, index) = open(Tuning::default());
        let Rounds { added, nodes, owed } = rounds(&store, index, "r", chain, tail);
        assert!(added < 3 << 19, "{added}");
        // Most clones have no header of their own.
        assert!(nodes < 64, "{nodes}");
        // What eight rounds leave in memory is counted once, not once for each edge that sees it.
        assert!(owed < 1 << 19, "{owed}");
    }
}

/// There what is cloned waits on a few edges above nothing, and has not come down to leaves.
#[test]
fn rounds_beside_other_trees_add_as_little() {
    let (store, index) = open(Tuning::default());
    for (name, chain, tail) in [("a", false, true), ("b", false, false), ("c", true, true)] {
        let added = rounds(&store, index, name, chain, tail).added;
        assert!(added < 3 << 19, "{name}: {added}");
    }
}

#[test]
fn renames_back_and_forth_leave_nothing() {
    let (store, index) = open(Tuning::default());
    unpack(&store, index, "a", 20, 100, 300);
    unpack(&store, index, "x", 2, 100, 300);
    let before = used(&store);
    let high = height(&store, index);
    for round in 0..10_000 {
        let names = [&b"a/"[..], &b"b/"[..]];
        let mut batch = Batch::new();
        batch.move_range(index, names[round % 2], names[(round + 1) % 2]);
        store.commit(batch).unwrap();
        while store.step().unwrap() {}
    }
    assert_eq!(count(&store, index, "a/"), 2000);
    let after = used(&store);
    println!(
        "10,000 renames: {} KiB more, height {high} and {}",
        (after as i64 - before as i64) >> 10,
        height(&store, index)
    );
    assert!(after < before + (512 << 10), "{before} {after}");
    assert!(height(&store, index) <= high + 1);
    sound(&store);
}

#[test]
fn a_thousand_clones_and_a_thousand_snapshots() {
    let (store, index) = open(Tuning::default());
    unpack(&store, index, "a", 20, 100, 300);
    let before = used(&store);
    let high = height(&store, index);
    for n in 0..1000 {
        let mut batch = Batch::new();
        batch.clone_range(index, b"a", format!("c{n:04}").as_bytes());
        store.commit(batch).unwrap();
        while store.step().unwrap() {}
    }
    assert_eq!(count(&store, index, "c"), 2_000_000);
    let with = used(&store);
    println!(
        "1000 clones: {} KiB each, height {high} and {}",
        ((with - before) / 1000) >> 10,
        height(&store, index)
    );
    sound(&store);
    let mut batch = Batch::new();
    batch.delete_range(index, KeyRange::prefix(b"c"));
    store.commit(batch).unwrap();
    let after = used(&store);
    println!("{} KiB more after their deletion", (after as i64 - before as i64) >> 10);
    assert!(after <= before + (256 << 10), "{before} {after}");

    let before = used(&store);
    let high = height(&store, index);
    let ids: Vec<u32> = (0..1000)
        .map(|n| store.snapshot_volume(index.volume, &format!("s{n}"), READ_ONLY_VOLUME).unwrap())
        .collect();
    let with = used(&store);
    println!("1000 snapshots: {} bytes each", (with - before) / 1000);
    assert!(with <= before + (512 << 10));
    assert_eq!(height(&store, index), high);
    assert_eq!(count(&store, IndexId { volume: ids[500], index: 0 }, "a/"), 2000);
    let mut batch = Batch::new();
    batch.delete_range(index, KeyRange::prefix(b"a"));
    store.commit(batch).unwrap();
    assert_eq!(count(&store, IndexId { volume: ids[999], index: 0 }, "a/"), 2000);
    for id in ids {
        store.delete_volume(id).unwrap();
    }
    let after = used(&store);
    println!("{} KiB used in the end", after >> 10);
    assert!(after < 40 << 20 && after < before);
    sound(&store);
}

#[test]
fn a_diff_looks_only_at_what_differs() {
    let (store, index) = open(Tuning::default());
    unpack(&store, index, "a", 40, 100, 3000);
    let mut batch = Batch::new();
    batch.clone_range(index, b"a", b"b");
    store.commit(batch).unwrap();
    for n in 0..10 {
        let mut batch = Batch::new();
        batch.insert(index, format!("b/dir{:03}/file{:04}", n * 4, n * 7).as_bytes(), vec![n as u8; 100]);
        store.commit(batch).unwrap();
    }
    used(&store);
    let mut diff = store.diff((index, b"a"), (index, b"b")).unwrap();
    let mut keys = 0;
    while diff.next().unwrap().is_some() {
        keys += 1;
    }
    println!("a diff of 10 keys in 4000: {} nodes", diff.nodes());
    assert_eq!(keys, 10);
    assert!(diff.nodes() < 30);
}

#[test]
fn clones_into_themselves_end_in_time() {
    let (store, index) = open(Tuning::default());
    unpack(&store, index, "a", 20, 40, 300);
    let mut clones = 0;
    let refusal = loop {
        let mut batch = Batch::new();
        batch.clone_range(index, b"", b"x");
        match store.commit(batch) {
            Ok(_) => clones += 1,
            Err(error) => break Some(error),
        }
        while store.step().unwrap() {}
        if clones == 200 {
            break None;
        }
    };
    println!("{clones} clones into themselves, height {}, {refusal:?}", height(&store, index));
    assert!(refusal.is_none_or(|error| error.kind() == ErrorKind::InvalidArgument));
    assert!(clones > 30);
    used(&store);
    sound(&store);
    let key = [&vec![b'x'; clones][..], b"a/dir019/file0039"].concat();
    assert!(store.contains(index, &key).unwrap());
    assert!(!store.contains(index, &[b"x", &key[..]].concat()).unwrap());
}

#[test]
fn space_is_told_apart_by_who_shares_it() {
    let (store, index) = open(Tuning::default());
    unpack(&store, index, "a", 40, 100, 3000);
    unpack(&store, index, "c", 4, 100, 3000);
    let space = |prefix: &[u8]| store.space_of(&[(index, KeyRange::prefix(prefix))]).unwrap();
    let alone = space(b"a");
    println!("alone {alone:?}, {:?}", space(b"c"));
    assert!(alone.bytes > 12_000_000 && alone.exclusive > 11_000_000, "{alone:?}");
    let mut batch = Batch::new();
    batch.clone_range(index, b"a", b"b");
    store.commit(batch).unwrap();
    let (source, clone) = (space(b"a"), space(b"b"));
    println!("source {source:?}, clone {clone:?}");
    assert!(source.exclusive < 200_000 && clone.exclusive < 200_000 && clone.bytes > 11_000_000);
    let alone = |prefix: &[u8]| {
        let ranges = [(index, KeyRange::prefix(prefix))];
        store.exclusive_space_of(&ranges, Duration::ZERO).unwrap()
    };
    assert_eq!([alone(b"a"), alone(b"b")], [source.exclusive, clone.exclusive]);
    // What lies within a shared tree is shared.
    for within in [&b"a/dir003"[..], b"a/dir01", b"b/dir007/file002"] {
        let part = space(within);
        assert!(part.exclusive < 200_000, "{part:?}");
        assert_eq!(alone(within), part.exclusive);
    }
    // Both together are theirs alone.
    let both = store.space_of(&[(index, KeyRange::prefix(b"a")), (index, KeyRange::prefix(b"b"))]).unwrap();
    println!("both {both:?}");
    assert!(both.exclusive > 11_000_000 && both.bytes < 16_000_000);
    let mut batch = Batch::new();
    batch.delete_range(index, KeyRange::prefix(b"b"));
    store.commit(batch).unwrap();
    assert!(space(b"a").exclusive > 11_000_000);
}

/// A long list asks for the bytes of one tree after the other, while others are written to.
#[test]
fn bytes_of_trees_that_nothing_was_written_to_need_no_checkpoint() {
    let (store, index) = open(Tuning::default());
    unpack(&store, index, "a", 40, 100, 3000);
    used(&store);
    let clone = |n: usize| format!("c{n:02}/");
    for n in 0..20 {
        let mut batch = Batch::new();
        batch.clone_range(index, b"a/", clone(n).as_bytes());
        store.commit(batch).unwrap();
    }
    let write = |key: String| {
        let mut batch = Batch::new();
        batch.insert(index, key.as_bytes(), vec![1; 3000]);
        store.commit(batch).unwrap();
    };
    let alone = |n: usize| {
        let before = store.statistics().checkpoints;
        let ranges = [(index, KeyRange::prefix(clone(n).as_bytes()))];
        let bytes = store.exclusive_space_of(&ranges, Duration::from_secs(1 << 20)).unwrap();
        (bytes, store.statistics().checkpoints - before)
    };
    // The first one is newer than the last checkpoint, and so are the others.
    assert_eq!(alone(0).1, 1);
    let bare: Vec<usize> = (0..20).filter(|n| alone(*n) == (0, 0)).collect();
    assert!(bare.len() > 10, "{bare:?} have no header of their own");
    for n in &bare {
        write(format!("other/{n}"));
        assert_eq!(alone(*n), (0, 0), "clone {n}");
        if n % 5 == 0 {
            store.checkpoint().unwrap();
        }
    }
    // Now something is written to them: in a memtable, and in the tree.
    for n in bare[..4].iter().copied() {
        write(format!("{}file", clone(n)));
        if n % 2 == 0 {
            store.diff((index, clone(n).as_bytes()), (index, b"a/")).unwrap();
        }
        let (bytes, checkpoints) = alone(n);
        assert!(bytes > 0 && checkpoints == 1, "clone {n}: {bytes} bytes, {checkpoints} checkpoints");
        write(format!("other/again {n}"));
        assert_eq!(alone(n), (bytes, 0));
    }
    // A clone is bound later, or takes the place of another.
    for n in bare[5..9].iter().copied() {
        let mut batch = Batch::new();
        batch.clone_range(index, clone(bare[0]).as_bytes(), clone(n).as_bytes());
        store.commit(batch).unwrap();
        assert_eq!(alone(n).1, 1, "clone {n}");
    }
}
