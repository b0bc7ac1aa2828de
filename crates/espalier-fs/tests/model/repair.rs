//! A repair of a damaged store that is ended at every change of the device, by a power cut and by
//! the death of the process alone, and run again: what is found then is what a repair finds that
//! comes to its end, and all of it is sound.
//!
//! `ESPALIER_SEED=n` runs that seed alone, `ESPALIER_SEEDS=n` the first n.

use crate::cuts::{Cuts, assert_sound, view};
use crate::run::{open_fs, open_store};
use crate::seeds;
use crate::world::{Random, World};
use espalier_engine::{ErrorKind, Rescue, Store, Tuning};
use espalier_fs::merge_functions;
use espalier_storage::{AlignedBuf, BLOCK, Device, SimulatedDevice};
use std::sync::Arc;

/// Steps before the damage.
const STEPS: usize = 10;
/// Damaged copies of the device in each run.
const ROUNDS: u64 = 4;
const NOW: i64 = 5_000_000_000;

/// Damages one to five blocks that were written.
fn damage(device: &SimulatedDevice, random: &mut Random) {
    let blocks: Vec<u64> = device.image().blocks().map(|(offset, _)| offset).collect();
    for _ in 0..=random.below(5) {
        // What leads to all else lies at the start.
        let few = if random.chance(4) { blocks.len().min(3) } else { blocks.len() };
        let offset = blocks[random.below(few)];
        let mut block = AlignedBuf::zeroed(BLOCK);
        match random.below(4) {
            0 => {}
            1 => block.iter_mut().for_each(|byte| *byte = random.next() as u8),
            _ => {
                device.read_at(offset, &mut block).expect("no faults are injected");
                block[random.below(BLOCK)] ^= 1 << random.below(8);
            }
        }
        device.write_at(offset, &[&block]).expect("no faults are injected");
    }
    device.sync().expect("no faults are injected");
}

/// What `espalier fsck --repair` does. `None` if nothing can be told from anything else.
fn repair(device: &Arc<SimulatedDevice>, world: &Arc<World>, what: &str) -> Option<usize> {
    let options = espalier_engine::OpenOptions {
        memory: 4 << 20,
        merge: merge_functions(),
        tuning: Tuning::tiny(),
        ..Default::default()
    };
    let rescue = Store::open_damaged(device.clone(), world.clone(), options, &mut |_| ());
    let Rescue { store, losses, mended, .. } = match rescue {
        Ok(rescue) => rescue,
        Err(error) if matches!(error.kind(), ErrorKind::NotAStore | ErrorKind::Damaged) => return None,
        Err(error) => panic!("{what}: {error}"),
    };
    let mut told = losses.len() + mended.len();
    for volume in store.volumes().into_iter().filter(|volume| volume.indexes == 3) {
        let done = espalier_fs::repair(&store, &volume.name, &losses, NOW, &mut |_| ());
        told += done.unwrap_or_else(|error| panic!("{what}: {}: {error}", volume.name)).len();
    }
    store.close().unwrap_or_else(|error| panic!("{what}: {error}"));
    Some(told)
}

/// The view of a repaired store, of which everything is sound.
fn found(device: &Arc<SimulatedDevice>, world: &Arc<World>, what: &str) -> u64 {
    let store = open_store(&(device.clone() as Arc<dyn Device>), world);
    let fs = open_fs(&store, world, &mut Random(1), &Arc::default(), false);
    assert_sound(&store, what);
    view(&store, &fs, world)
}

/// Repairs that are tried and losses and repairs that they told.
#[derive(Debug, Default)]
struct Tally {
    ended: usize,
    told: usize,
    hopeless: usize,
}

fn one(seed: u64, tally: &mut Tally) {
    let mut run = Cuts::new(seed);
    run.work(STEPS);
    let (image, world) = run.leave();
    for round in 0..ROUNDS {
        let what = format!("seed {seed}, round {round}");
        let mut random = Random(seed << 8 | round);
        let damaged = SimulatedDevice::from_image(image.clone(), random.next());
        damage(&damaged, &mut random);
        let device = Arc::new(SimulatedDevice::from_image(damaged.image(), random.next()));
        device.record_crash_points(1);
        let Some(told) = repair(&device, &world, &what) else {
            tally.hopeless += 1;
            continue;
        };
        device.record_crash_points(0);
        tally.told += told;
        let whole = found(&device, &world, &what);
        for point in device.take_crash_points() {
            let change = point.change();
            for (how, device) in [("power cut", point.crash(seed ^ change)), ("killed", point.kill())] {
                let what = format!("{what}, {how} at change {change}");
                let device = Arc::new(device);
                assert!(repair(&device, &world, &what).is_some(), "{what}: nothing can be found any more");
                assert_eq!(found(&device, &world, &what), whole, "{what}: something else is left");
                tally.ended += 1;
            }
        }
    }
}

#[test]
fn a_repair_ended_at_any_change_and_run_again_finds_the_same() {
    let seeds = seeds(8);
    let count = seeds.clone().count();
    let mut tally = Tally::default();
    seeds.for_each(|seed| one(seed, &mut tally));
    println!("{tally:?}");
    assert!(count < 8 || tally.ended > 800 && tally.told > 50, "{tally:?}");
}
