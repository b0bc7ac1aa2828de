//! Room that `fallocate` reserves: within what `statfs` tells, kept for the file and no other, also
//! in crashes, moves, clones and snapshots, and given back when the file does not need it.

use crate::Bench;
use espalier_fs::{
    Caller, Fallocate, FileSystem, FormatOptions, FsErrorKind, NewNode, NodeId, RenameAction, RenameMode,
    RenameStep, SetAttr, merge_functions,
};
use espalier_storage::{Device, MemoryDevice, Random, SimulatedEnvironment};
use std::sync::Arc;

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };
const GROW: Fallocate = Fallocate::Allocate { keep_size: false };
const KEEP: Fallocate = Fallocate::Allocate { keep_size: true };
const MIB: u64 = 1 << 20;

/// Bytes that cannot be compressed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// With nodes of the usual sizes, in a store of so many MiB.
fn store_of(mib: u64, block_size: u32) -> Bench {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(mib * MIB));
    let env: Arc<dyn espalier_storage::Environment> = Arc::new(SimulatedEnvironment::new(1));
    espalier_engine::Store::format(device.clone(), env.clone(), &Default::default()).expect("format");
    let options = espalier_engine::OpenOptions { merge: merge_functions(), ..Default::default() };
    let store = espalier_engine::Store::open(device.clone(), env.clone(), options).expect("open");
    FileSystem::format(&store, &FormatOptions { block_size, ..Default::default() }).expect("format");
    let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).expect("open");
    Bench { device, env, store, fs }
}

fn reopen(bench: Bench) -> Bench {
    let Bench { device, env, store, fs } = bench;
    drop((fs, store));
    let options = espalier_engine::OpenOptions { merge: merge_functions(), ..Default::default() };
    let store = espalier_engine::Store::open(device.clone(), env.clone(), options).expect("open");
    let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).expect("open");
    Bench { device, env, store, fs }
}

impl Bench {
    fn allocate(&self, file: NodeId, range: std::ops::Range<u64>, what: Fallocate) {
        self.fs.fallocate(file, range.start, range.end - range.start, what, false).expect("there is room");
    }

    fn kept(&self) -> u64 {
        self.store.statistics().space.kept
    }

    fn free(&self) -> u64 {
        let told = self.fs.statfs().expect("statfs");
        told.available * u64::from(told.block_size)
    }

    fn units(&self, node: NodeId) -> u64 {
        self.fs.getattr(node).expect("attributes").blocks
    }

    fn cut(&self, node: NodeId, size: u64) {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.fs.setattr(node, &set).expect("a size can be set");
    }

    /// Writes files until nothing more fits.
    fn fill(&self) {
        for len in [MIB as usize, 64 << 10, 1000, 10] {
            let name = format!("fill {len}");
            let made = self.fs.mknod(NodeId::ROOT, name.as_bytes(), NewNode::Regular, 0o644, &ROOT);
            let Ok(full) = made.map(|entry| entry.node) else { return };
            for n in 0.. {
                match self.fs.write(full, n * len as u64, &noise(n, len), false) {
                    Ok(_) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), FsErrorKind::NoSpace, "{error}");
                        break;
                    }
                }
            }
        }
    }

    /// The records say what the store keeps.
    #[track_caller]
    fn check_kept(&self) {
        let report = espalier_fs::check(&self.store, "main", &mut |_| {}).expect("the volume can be checked");
        assert_eq!(report.problems, []);
        assert_eq!(report.reserved, self.kept());
    }
}

#[test]
fn what_is_reserved_is_not_free_and_counts_as_blocks() {
    let bench = store_of(64, 64 << 10);
    let file = bench.file(NodeId::ROOT, "file");
    let before = bench.free();
    bench.allocate(file, 0..10 * MIB, GROW);
    let after = bench.free();
    assert!(after + 10 * MIB <= before && after + 12 * MIB > before, "{before}, then {after}");
    assert_eq!(bench.units(file), 10 * MIB / 512);
    assert_eq!(bench.fs.getattr(file).expect("attributes").size, 10 * MIB);
    bench.allocate(file, 0..10 * MIB, GROW);
    assert_eq!(bench.kept(), bench.store.room_for(160, 64 << 10, 10 * MIB), "not reserved again");
    bench.fs.write(file, 0, &noise(1, MIB as usize), false).expect("write");
    assert_eq!(bench.units(file), 10 * MIB / 512);
    assert!(bench.kept() < bench.store.room_for(160, 64 << 10, 10 * MIB) - MIB);
    bench.allocate(file, 10 * MIB..12 * MIB, KEEP);
    assert_eq!(bench.units(file), 12 * MIB / 512, "behind the end");
    bench.check_kept();
    bench.cut(file, 10 * MIB);
    assert_eq!(bench.units(file), 10 * MIB / 512);
    bench.fs.fallocate(file, 0, 2 * MIB, Fallocate::PunchHole, false).expect("punch");
    assert_eq!(bench.units(file), 8 * MIB / 512);
    bench.check_kept();
    bench.fs.fallocate(file, 0, 2 * MIB, Fallocate::ZeroRange { keep_size: true }, false).expect("zero");
    assert_eq!(bench.units(file), 10 * MIB / 512);
    bench.check_kept();
    bench.cut(file, 0);
    assert_eq!((bench.kept(), bench.units(file)), (0, 0));
    bench.check_kept();
}

/// Writes whole files into what was reserved when nothing else fits any more.
fn reserved_room_can_be_written(mib: u64, block_size: u32, piece: usize, order: u64) {
    let bench = store_of(mib, block_size);
    let file = bench.file(NodeId::ROOT, "file");
    let small = bench.file(NodeId::ROOT, "small");
    let size = mib * MIB / 4;
    bench.allocate(file, 0..size, GROW);
    bench.allocate(small, 0..100_000, KEEP);
    bench.fill();
    let mut pieces: Vec<u64> = (0..size / piece as u64).collect();
    if order > 0 {
        Random::new(order).shuffle(&mut pieces);
    }
    for (done, n) in pieces.iter().enumerate() {
        let written = bench.fs.write(file, n * piece as u64, &noise(*n, piece), false);
        written.unwrap_or_else(|error| panic!("piece {done} of {}: {error}", pieces.len()));
        if done % 64 == 0 {
            // Other writers take what they can get.
            let _ = bench.fs.write(file, size, &[1], false);
            bench.fill_a_little(done as u64);
        }
    }
    for n in 0..1000 {
        bench.fs.write(small, n * 100, &noise(n, 100), false).expect("small pieces");
    }
    bench.fs.syncfs().expect("sync");
    bench.check_kept();
    let bench = reopen(bench);
    let file = bench.fs.lookup(NodeId::ROOT, b"file").expect("lookup").node;
    let data = bench.read(file);
    for n in pieces {
        let at = n as usize * piece;
        assert!(data[at..at + piece] == noise(n, piece), "piece {n}");
    }
    bench.check_kept();
}

impl Bench {
    fn fill_a_little(&self, seed: u64) {
        let name = format!("more {seed}");
        if let Ok(more) = self.fs.mknod(NodeId::ROOT, name.as_bytes(), NewNode::Regular, 0o644, &ROOT) {
            for n in 0..8 {
                let _ = self.fs.write(more.node, n * 4096, &noise(n, 4096), false);
            }
        }
    }
}

#[test]
fn a_full_store_has_the_room_that_was_reserved() {
    reserved_room_can_be_written(64, 64 << 10, 128 << 10, 0);
    reserved_room_can_be_written(16, 64 << 10, 1 << 20, 1);
}

#[test]
fn a_full_store_has_the_room_for_small_and_scattered_writes() {
    reserved_room_can_be_written(64, 64 << 10, 4096, 7);
    reserved_room_can_be_written(32, 4096, 4096, 5);
    reserved_room_can_be_written(32, 64 << 10, 3000, 6);
    reserved_room_can_be_written(32, 64 << 10, 10_000, 0);
}

#[test]
fn data_is_replaced_in_a_full_store() {
    let bench = store_of(64, 64 << 10);
    let file = bench.file(NodeId::ROOT, "file");
    bench.allocate(file, 0..8 * MIB, GROW);
    bench.fill();
    for round in 0..6 {
        for n in 0..512 {
            let written = bench.fs.write(file, n * 16384, &noise(round * 512 + n, 16384), false);
            written.unwrap_or_else(|error| panic!("round {round}, {n}: {error}"));
        }
    }
    bench.fs.syncfs().expect("sync");
    bench.check_kept();
}

#[test]
fn a_disk_is_filled_by_allocation() {
    let bench = store_of(64, 64 << 10);
    let mut refused = 0;
    for n in 0.. {
        let file = bench.file(NodeId::ROOT, &format!("file{n}"));
        if bench.fs.fallocate(file, 0, MIB, GROW, false).is_err() {
            refused = n;
            break;
        }
    }
    let total = bench.fs.statfs().expect("statfs").blocks * 4096 / MIB;
    assert!(refused > total * 85 / 100, "{refused} MiB of {total}");
    assert!(bench.free() < 2 * MIB, "{} bytes are told to be free", bench.free());
    for n in 0..refused {
        let file = bench.fs.lookup(NodeId::ROOT, format!("file{n}").as_bytes()).expect("lookup").node;
        bench.fs.write(file, 0, &noise(n, MIB as usize), false).expect("there is room");
    }
    bench.fs.syncfs().expect("sync");
    bench.check_kept();
}

#[test]
fn what_was_removed_is_free_at_once() {
    let bench = store_of(64, 64 << 10);
    let before = bench.free();
    for n in 0..3 {
        let file = bench.file(NodeId::ROOT, "large");
        for piece in 0..24 {
            bench.fs.write(file, piece * MIB, &noise(n * 24 + piece, MIB as usize), false).expect("write");
        }
        bench.fs.syncfs().expect("sync");
        assert!(bench.free() + 23 * MIB < before);
        bench.fs.unlink(NodeId::ROOT, b"large").expect("unlink");
        bench.fs.forget(file, 1);
        let free = bench.free();
        assert!(free + MIB > before, "round {n}: {free} of {before}");
    }
}

#[test]
fn reservations_survive_crashes_and_moves() {
    let bench = store_of(64, 4096);
    let (a, b) = (bench.dir(NodeId::ROOT, "a"), bench.dir(NodeId::ROOT, "b"));
    let file = bench.file(a, "file");
    bench.allocate(file, 0..4 * MIB, KEEP);
    bench.fs.write(file, 0, &noise(1, 100), false).expect("write");
    let kept = bench.kept();
    assert!(kept > 4 * MIB);
    bench.fs.rename(a, b"file", b, b"moved", RenameMode::Replace).expect("rename");
    bench.fs.rename(NodeId::ROOT, b"b", a, b"below", RenameMode::Replace).expect("rename");
    bench.fs.link(file, NodeId::ROOT, b"second").expect("link");
    bench.check_kept();
    bench.fs.unlink(NodeId::ROOT, b"second").expect("unlink");
    bench.fs.syncfs().expect("sync");
    let bench = reopen(bench);
    assert_eq!(bench.kept(), kept);
    bench.check_kept();
    let a = bench.fs.lookup(NodeId::ROOT, b"a").expect("lookup").node;
    let below = bench.fs.lookup(a, b"below").expect("lookup").node;
    let file = bench.fs.lookup(below, b"moved").expect("lookup").node;
    assert_eq!(bench.units(file), 4 * MIB / 512);
    bench.fs.fallocate(file, 0, 4 * MIB, KEEP, false).expect("allocate again");
    assert_eq!(bench.kept(), kept);
    // A removed tree in use.
    bench.fs.remove_tree(NodeId::ROOT, b"a", &ROOT).expect("remove");
    assert_eq!(bench.kept(), kept);
    bench.fs.write(file, 4096, &noise(2, 8192), false).expect("write");
    assert!(bench.kept() < kept);
    bench.fs.syncfs().expect("sync");
    let bench = reopen(bench);
    assert_eq!(bench.kept(), 0, "nothing is left after a crash");
    bench.check_kept();
}

#[test]
fn clones_and_snapshots_reserve_nothing() {
    let bench = store_of(64, 64 << 10);
    let dir = bench.dir(NodeId::ROOT, "dir");
    let file = bench.file(dir, "file");
    bench.allocate(file, 0..4 * MIB, GROW);
    let kept = bench.kept();
    let clone = bench.fs.clone_tree(dir, NodeId::ROOT, b"clone", &ROOT).expect("clone").node;
    bench.fs.clone_tree(file, NodeId::ROOT, b"copy", &ROOT).expect("clone");
    bench.fs.snapshot("all", false).expect("snapshot");
    assert_eq!(bench.kept(), kept);
    let copy = bench.fs.lookup(clone, b"file").expect("lookup").node;
    assert_eq!(bench.units(copy), 0, "a length and no data");
    bench.fs.write(copy, 0, &noise(1, MIB as usize), false).expect("write");
    assert_eq!(bench.kept(), kept);
    assert_eq!(bench.units(file), 4 * MIB / 512);
    bench.check_kept();
    bench.allocate(copy, 0..4 * MIB, GROW);
    assert!(bench.kept() > kept);
    bench.check_kept();
    bench.fs.remove_tree(NodeId::ROOT, b"clone", &ROOT).expect("remove");
    for node in [copy, clone] {
        bench.fs.forget(node, 1);
    }
    bench.fs.background_tick().expect("tick");
    bench.check_kept();
}

#[test]
fn what_is_removed_or_refused_keeps_nothing() {
    let bench = store_of(64, 64 << 10);
    let file = bench.file(NodeId::ROOT, "file");
    bench.allocate(file, 0..4 * MIB, KEEP);
    bench.fs.unlink(NodeId::ROOT, b"file").expect("unlink");
    assert!(bench.kept() > 0, "it is still in use");
    bench.fs.write(file, 0, &noise(1, 100_000), false).expect("write");
    bench.fs.forget(file, 1);
    bench.fs.background_tick().expect("tick");
    assert_eq!(bench.kept(), 0);
    let file = bench.file(NodeId::ROOT, "file");
    let refused = bench.fs.fallocate(file, 0, 1 << 40, GROW, false).expect_err("that is too much");
    assert_eq!((refused.kind(), bench.kept()), (FsErrorKind::NoSpace, 0));
    bench.allocate(file, 0..4 * MIB, GROW);
    let other = bench.file(NodeId::ROOT, "other");
    bench.fs.forget(file, 1);
    bench.fs.rename(NodeId::ROOT, b"other", NodeId::ROOT, b"file", RenameMode::Replace).expect("rename");
    assert_eq!(bench.kept(), 0, "it was replaced");
    bench.fs.forget(other, 1);
    bench.check_kept();
    let temporary = bench.fs.tmpfile(NodeId::ROOT, 0o600, &ROOT).expect("tmpfile").node;
    bench.allocate(temporary, 0..MIB, GROW);
    bench.check_kept();
    bench.fs.link(temporary, NodeId::ROOT, b"named").expect("link");
    bench.check_kept();
    bench.fs.write(temporary, 0, &noise(3, MIB as usize), false).expect("write");
    assert_eq!(bench.kept(), 0);
    bench.check_kept();
}

/// Random writes, holes, sizes and allocations of one file agree with bytes in memory, and with
/// what `fsck` says of the reservation.
#[test]
fn random_changes_of_a_reserved_file_keep_its_data() {
    for seed in 0..6 {
        let bench = store_of(64, 4096);
        let file = bench.file(NodeId::ROOT, "file");
        let (mut random, mut bytes) = (Random::new(seed), Vec::new());
        bench.allocate(file, 0..MIB, if seed % 2 == 0 { GROW } else { KEEP });
        if seed % 2 == 0 {
            bytes.resize(MIB as usize, 0);
        }
        for step in 0..500 {
            let (at, len) = (random.index(MIB as usize), 1 + random.index(9000));
            let end = at + len;
            match random.below(12) {
                0 => {
                    bench.cut(file, at as u64);
                    bytes.resize(at, 0);
                }
                1 => {
                    let punch = Fallocate::PunchHole;
                    bench.fs.fallocate(file, at as u64, len as u64, punch, false).expect("punch");
                    let end = end.min(bytes.len());
                    bytes[at.min(end)..end].fill(0);
                }
                2 => {
                    let what = Fallocate::ZeroRange { keep_size: true };
                    bench.fs.fallocate(file, at as u64, len as u64, what, false).expect("zero");
                    let end = end.min(bytes.len());
                    bytes[at.min(end)..end].fill(0);
                }
                3 => bench.allocate(file, at as u64..(at + 20 * len) as u64, KEEP),
                4 => {
                    bench.allocate(file, at as u64..end as u64, GROW);
                    bytes.resize(bytes.len().max(end), 0);
                }
                _ => {
                    let data = noise(step, len);
                    bench.fs.write(file, at as u64, &data, false).expect("write");
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[at..end].copy_from_slice(&data);
                }
            }
            if step % 50 == 0 {
                assert!(bench.read(file) == bytes, "seed {seed}, step {step}");
                bench.check_kept();
            }
        }
        assert!(bench.read(file) == bytes, "seed {seed}");
        bench.check_kept();
    }
}

/// A file that grows by its size alone has a hole at its end, also where its last block is a part.
#[test]
fn a_hole_behind_reserved_blocks_stays_a_hole() {
    let bench = store_of(64, 4096);
    let file = bench.file(NodeId::ROOT, "file");
    bench.allocate(file, 0..4096, KEEP);
    bench.cut(file, 8193);
    bench.fs.write(file, 0, &noise(1, 4096), false).expect("write");
    assert_eq!(bench.units(file), 8);
    bench.check_kept();
}

/// What one step of a call brings into a directory moves on with the directory in a later step.
#[test]
fn reserved_blocks_move_with_every_step_of_a_call() {
    let bench = store_of(64, 4096);
    let dir = bench.dir(NodeId::ROOT, "dir");
    let (_, inner) = (bench.dir(dir, "outer"), bench.dir(dir, "inner"));
    bench.allocate(bench.file(inner, "file"), 0..MIB, KEEP);
    bench.allocate(bench.file(dir, "alone"), 0..MIB, KEEP);
    let kept = bench.kept();
    let enter = |place: &[&str], staged: &str| RenameStep {
        action: RenameAction::Enter,
        place: place.iter().map(|name| name.as_bytes().to_vec()).collect(),
        staged: staged.into(),
        expected: (0, 0),
    };
    let steps = [
        enter(&["outer", "inner"], "inner"),
        enter(&["outer", "alone"], "alone"),
        enter(&["moved"], "outer"),
    ];
    bench.fs.rename_all(dir, dir, &steps, &ROOT).expect("all or none");
    bench.check_kept();
    let outer = bench.fs.lookup(dir, b"moved").expect("lookup").node;
    let inner = bench.fs.lookup(outer, b"inner").expect("lookup").node;
    for (dir, name) in [(inner, "file"), (outer, "alone")] {
        let file = bench.fs.lookup(dir, name.as_bytes()).expect("lookup").node;
        assert_eq!(bench.units(file), MIB / 512, "{name}");
        bench.fs.write(file, 0, &noise(1, MIB as usize), false).expect("write");
    }
    assert!(kept > 2 * MIB && bench.kept() == 0);
    bench.check_kept();
}

/// What a block has lost with the end of its file is not reserved: no call has asked for it.
#[test]
fn a_reserved_block_that_is_cut_keeps_no_more_room() {
    let bench = store_of(64, 4096);
    let file = bench.file(NodeId::ROOT, "file");
    bench.allocate(file, 0..20_000, KEEP);
    bench.fs.write(file, 8192, &noise(1, 3000), false).expect("write");
    bench.cut(file, 8192 + 2000);
    bench.check_kept();
    assert_eq!(bench.units(file), 2 * 8 + 4, "two blocks without data, and what is left of the third");
    bench.fs.write(file, 8192 + 2000, &noise(2, 2096), false).expect("write");
    bench.check_kept();
    // The end of the file behind the data of a block takes nothing from it.
    bench.allocate(file, 12288..16384, KEEP);
    bench.fs.write(file, 12288, &noise(3, 100), false).expect("write");
    bench.cut(file, 12288 + 3000);
    let kept = bench.kept();
    bench.cut(file, 12288 + 2000);
    assert_eq!((bench.units(file), bench.kept()), (4 * 8, kept));
    bench.cut(file, 12288 + 100);
    assert_eq!(bench.units(file), 3 * 8 + 1);
    bench.check_kept();
}

/// A size within the last block adds no data to what is counted, whatever it counts of.
#[test]
fn a_size_that_is_set_counts_no_reserved_block_twice() {
    let bench = store_of(64, 4096);
    let file = bench.file(NodeId::ROOT, "file");
    bench.allocate(file, 0..8192, KEEP);
    bench.fs.write(file, 0, &noise(1, 4097), false).expect("write");
    let set = SetAttr { size: Some(4096 + 600), ..SetAttr::default() };
    let told = bench.fs.setattr(file, &set).expect("a size can be set").blocks;
    assert_eq!((told, bench.units(file)), (16, 16));
    bench.check_kept();
}

/// Where data is that reaches as far as what is allocated, nothing is reserved.
#[test]
fn allocating_less_than_a_block_has_reserves_nothing() {
    let bench = store_of(64, 4096);
    let file = bench.file(NodeId::ROOT, "file");
    bench.fs.write(file, 0, &noise(1, 3000), false).expect("write");
    bench.allocate(file, 0..1000, KEEP);
    assert_eq!((bench.kept(), bench.units(file)), (0, 6));
    bench.allocate(file, 0..3001, KEEP);
    assert!(bench.kept() > 0);
    bench.check_kept();
}

/// A write needs no more room than was kept before it, however little it completes: the share of
/// a block in what leads to it does not depend on how much the others lack.
#[test]
fn a_block_that_is_completed_makes_no_others_dearer() {
    let bench = Bench::new(0);
    let file = bench.file(NodeId::ROOT, "file");
    bench.allocate(file, 0..9 * 4096, KEEP);
    for block in 0..8 {
        bench.fs.write(file, block * 4096, &noise(block, 4095), false).expect("write");
    }
    bench.check_kept();
    for block in 0..8 {
        bench.fs.write(file, block * 4096 + 4095, &[1], false).expect("write");
        bench.check_kept();
    }
}
