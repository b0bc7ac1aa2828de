//! Power cuts and failing devices during checkpoints.

use super::*;
use espalier_storage::{Fault, Operation};

/// What a checkpoint accounts for.
type Counts = BTreeMap<PieceId, u64>;

/// Runs checkpoints with pieces coming and going, from a store that accounts for `counts`; returns
/// what each generation accounts for.
fn history(
    space: &Arc<Space>,
    random: &mut Random,
    rounds: usize,
    mut counts: Counts,
) -> BTreeMap<u64, Counts> {
    let mut generations = BTreeMap::from([(space.superblock().generation, counts.clone())]);
    for _ in 0..rounds {
        let mut deltas = HashMap::new();
        let mut pieces = Vec::new();
        for _ in 0..random.below(12) {
            let blocks = random.between(1..=20) as u32;
            let Ok(piece) = write_piece(space, blocks, PieceKind::KeyValue, Vec::new()) else { break };
            if !random.one_in(4) {
                deltas.insert(piece.id(), random.between(1..=3) as i64);
            }
            pieces.push(piece);
        }
        for (id, count) in &counts {
            if random.one_in(4) {
                deltas.insert(*id, -(random.between(1..=*count) as i64));
            }
        }
        if space.count(&deltas).is_err() {
            return generations;
        }
        for (id, delta) in deltas {
            let count = counts.entry(id).or_default();
            *count = count.saturating_add_signed(delta);
        }
        counts.retain(|_, count| *count > 0);
        // A checkpoint and its copy.
        let generation = space.superblock().generation;
        generations.extend([generation + 1, generation + 2].map(|g| (g, counts.clone())));
        if checkpoint(space).is_err() {
            return generations;
        }
    }
    generations
}

/// The store on `device` is exactly what one of the generations says; returns which.
fn assert_recovers(device: SimulatedDevice, generations: &BTreeMap<u64, Counts>, what: &str) -> u64 {
    let opened = Space::open(GuardedDevice::new(Arc::new(device), false), &OPTIONS)
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    let space = opened.space;
    let generation = space.superblock().generation;
    let counts = generations.get(&generation).unwrap_or_else(|| panic!("{what}: generation {generation}"));
    let references = counts.iter().map(|(id, count)| (*id, *count)).collect();
    assert_eq!(problems(&space, &references), Vec::<String>::new(), "{what}");
    counts.keys().for_each(|id| read_piece(&space, *id));
    assert_accounted(&space);
    // It also goes on from there.
    history(&space, &mut Random::new(generation), 2, counts.clone());
    generation
}

#[test]
fn a_crash_at_any_write_leaves_a_whole_checkpoint() {
    for seed in 0..6 {
        let device = simulated(seed);
        let space = new_store(device.clone());
        device.record_crash_points(1);
        let generations = history(&space, &mut Random::new(seed), 12, Counts::new());
        let points = device.take_crash_points();
        assert!(points.len() > 50);
        let mut newest = 0;
        for point in points {
            for crash in 0..3 {
                let what = format!("seed {seed}, change {}, crash {crash}", point.change());
                let device = GuardedDevice::new(Arc::new(point.crash(crash)), true);
                let torn = read_superblocks(&device).unwrap().damaged;
                assert!(torn.is_empty(), "{what}: {torn:?}");
                let generation = assert_recovers(point.crash(crash), &generations, &what);
                assert!(generation + 1 >= newest, "{what}: back to generation {generation} of {newest}");
                newest = newest.max(generation);
            }
        }
        assert_eq!(newest, space.superblock().generation);
    }
}

#[test]
fn mkfs_is_all_or_nothing() {
    for seed in 0..10 {
        let device = simulated(seed);
        device.record_crash_points(1);
        new_store(device.clone());
        for point in device.take_crash_points() {
            let device = GuardedDevice::new(Arc::new(point.crash(seed)), false);
            match heal(&device).and_then(|_| Space::open(device, &OPTIONS)) {
                Ok(opened) => assert_eq!(problems(&opened.space, &HashMap::new()), Vec::<String>::new()),
                Err(error) => assert_eq!(error.kind(), ErrorKind::NotAStore, "{error}"),
            }
        }
    }
}

#[test]
fn the_first_failed_write_or_sync_stops_everything() {
    for seed in 0..60 {
        let device = simulated(seed);
        let space = new_store(device.clone());
        let mut random = Random::new(seed);
        let mut generations = history(&space, &mut random, 3, Counts::new());
        device.inject(if seed % 2 == 0 {
            Fault::Fail { operation: Operation::Sync, nth: random.below(4) }
        } else {
            Fault::Fail { operation: Operation::Write, nth: random.below(30) }
        });
        let counts = generations.last_entry().expect("there is one").get().clone();
        generations.extend(history(&space, &mut random, 10, counts));
        assert!(space.device.failure().is_some(), "seed {seed}: the fault was not met");
        assert_eq!(checkpoint(&space).unwrap_err().kind(), ErrorKind::ReadOnly);
        device.clear_faults();
        assert!(checkpoint(&space).is_err(), "it stays read-only when the device is well again");
        assert_recovers(device.crash(), &generations, &format!("seed {seed}"));
    }
}
