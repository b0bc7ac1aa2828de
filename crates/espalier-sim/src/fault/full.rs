//! A store that fills up: the answer comes with the batch and not with the sync, everything stays
//! readable, whatever frees space works, and the space comes back.

use super::FaultTally;
use crate::failure::ensure;
use crate::model::show;
use crate::setup::{compare, verify};
use crate::{Bench, Change, Outcome, Setup, Step, differential};
use bytes::Bytes;
use espalier_engine::{ErrorKind, KeyRange};
use espalier_storage::{BLOCK, Random, SimulatedDevice};
use std::sync::Arc;

/// Fills a store to the last batch, makes room by deleting, and fills it again.
///
/// # Errors
/// If an answer is wrong, anything but a batch that adds data fails for lack of room, or what was
/// deleted does not make room.
pub fn run_full(setup: &Setup, rounds: usize) -> Outcome<FaultTally> {
    let mut random = Random::new(setup.seed ^ 0xf011);
    let mut bench = Bench::new(setup.clone())?;
    let mut tally = FaultTally { runs: 1, ..FaultTally::default() };
    let mut first = None;
    for round in 0..rounds {
        let during = |what: &str| format!("round {round}, {what}");
        let taken = fill(&mut bench, &mut random).map_err(|e| e.during(during("filling")))?;
        let least = *first.get_or_insert(taken) / 64;
        ensure!(taken >= least, "round {round}: {taken} bytes fit where {least} were expected");
        tally.errors += 1;
        bench.store.sync_all().map_err(|e| crate::Failure::from(e).during(during("sync when full")))?;
        check(&bench).map_err(|e| e.during(during("when full")))?;
        let crashed = bench.setup.open(Arc::new(bench.device.crash()))?;
        compare(&crashed, &bench.model).map_err(|e| e.during(during("after a crash when full")))?;
        check_store(&crashed).map_err(|e| e.during(during("checkpoint after a crash when full")))?;
        drop(crashed);
        if random.one_in(2) {
            reopen(&mut bench).map_err(|e| e.during(during("reopening")))?;
        }
        make_room(&mut bench, &mut random).map_err(|e| e.during(during("making room")))?;
        check(&bench).map_err(|e| e.during(during("after making room")))?;
    }
    reopen(&mut bench)?;
    check(&bench)?;
    Ok(tally)
}

/// Fills a store to the last byte and empties it, again and again: all space comes back each time.
///
/// # Errors
/// As for [`run_full`].
pub fn run_cycles(setup: &Setup, cycles: usize) -> Outcome<FaultTally> {
    let mut random = Random::new(setup.seed ^ 0xc1c1e);
    let mut bench = Bench::new(setup.clone())?;
    let mut tally = FaultTally { runs: 1, ..FaultTally::default() };
    let mut first = None;
    let before = free_when_idle(&bench)?;
    for cycle in 0..cycles {
        let during = |what: &str| format!("cycle {cycle}, {what}");
        let mut taken = fill(&mut bench, &mut random).map_err(|e| e.during(during("filling")))?;
        taken += top_up(&mut bench, &mut random).map_err(|e| e.during(during("topping up")))?;
        let first = *first.get_or_insert(taken);
        ensure!(taken >= first / 10 * 8, "cycle {cycle}: {taken} bytes fit, in the first it were {first}");
        tally.errors += 1;
        check(&bench).map_err(|e| e.during(during("when full")))?;
        if random.one_in(4) {
            reopen(&mut bench).map_err(|e| e.during(during("reopening")))?;
        }
        empty(&mut bench, &mut random).map_err(|e| e.during(during("emptying")))?;
        check(&bench).map_err(|e| e.during(during("when empty")))?;
        let after = free_when_idle(&bench)?;
        // Tables grow a little with the numbers of the pieces.
        ensure!(after + 32 >= before, "cycle {cycle}: {after} blocks are free, {before} were at first");
    }
    reopen(&mut bench)?;
    check(&bench)?;
    Ok(tally)
}

/// Steps on a store that is full but for a little: for nothing, for some more bytes, and so on.
/// Whatever allocation it is that meets the end, the answer comes with a batch that adds data. What
/// deletes, syncs, checkpoints, closes and opens works, nothing accepted is lost, also by a power
/// cut, and what is deleted makes room.
///
/// # Errors
/// If anything else happens.
pub fn run_brim(setup: &Setup, steps: &[Step], levels: u64) -> Outcome<FaultTally> {
    let mut random = Random::new(setup.seed ^ 0xb414);
    let mut bench = Bench::new(setup.clone())?;
    fill(&mut bench, &mut random)?;
    top_up(&mut bench, &mut random)?;
    bench.store.close()?;
    let (image, full) = (bench.device.image(), bench.model.clone());
    let mut tally = FaultTally::default();
    for level in 0..levels {
        let device = Arc::new(SimulatedDevice::from_image(image.clone(), random.next_u64()));
        let store = setup.open(device.clone())?;
        let mut bench = Bench { setup: setup.clone(), device, store, model: full.clone() };
        tally.runs += 1;
        tally.errors +=
            brim(&mut bench, steps, level).map_err(|e| e.during(format_args!("level {level}")))?;
    }
    Ok(tally)
}

/// A full store of which all has been cloned, and then keys of the clones are deleted, moved and
/// replaced, which takes space and gives none, and so is refused one day. All of it can be deleted
/// in the end.
///
/// # Errors
/// If anything else happens.
pub fn run_shared(setup: &Setup, rounds: u64) -> Outcome<FaultTally> {
    let mut random = Random::new(setup.seed ^ 0x5a4ed);
    let mut bench = Bench::new(setup.clone())?;
    let mut tally = FaultTally { runs: 1, ..FaultTally::default() };
    fill(&mut bench, &mut random)?;
    top_up(&mut bench, &mut random)?;
    let clones = random.between(1..=4);
    for n in 0..clones {
        // A clone needs some room beyond the pool, and so does what it shares when it changes.
        let start = random.below(19_000);
        let key = |n: u64| format!("{n:05}").into_bytes();
        bench
            .commit(&[Change::DeleteRange(0, KeyRange::new(key(start), key(start + random.below(1000))))])?;
        let of = if random.one_in(2) { String::new() } else { random.below(2).to_string() };
        let clone = Change::CloneRange(0, Bytes::from(of), Bytes::from(format!("c{n}/")));
        refusable(&mut bench, &[clone], &mut tally)?;
    }
    for round in 0..rounds {
        shared_step(&mut bench, &mut random, &mut tally)
            .map_err(|e| e.during(format_args!("step {round}")))?;
    }
    check(&bench)?;
    if random.one_in(2) {
        reopen(&mut bench)?;
    }
    bench.commit(&[Change::DeleteRange(0, KeyRange::all())])?;
    free_when_idle(&bench)?;
    let value = Bytes::from(vec![1; (bench.setup.device / 16) as usize]);
    bench.commit(&[Change::Insert(0, Bytes::from_static(b"again"), value)])?;
    check(&bench).map_err(|e| e.during("emptied"))?;
    Ok(tally)
}

fn shared_step(bench: &mut Bench, random: &mut Random, tally: &mut FaultTally) -> Outcome {
    let count = bench.model.slot(0).len();
    if count == 0 {
        return Ok(());
    }
    let key = |random: &mut Random| {
        bench.model.slot(0).keys().nth(random.index(count)).cloned().unwrap_or_default()
    };
    let changes = match random.below(16) {
        0..=6 => (0..random.between(1..=20)).map(|_| Change::Delete(0, key(random))).collect(),
        7..=9 => {
            let (a, b) = (key(random), key(random));
            let step = 20 + random.index(40);
            let (from, to) = (a.clone().min(b.clone()), a.max(b));
            let keys = bench.model.slot(0).range(from.clone()..to);
            let end = keys.map(|(key, _)| key.clone()).take(step).last().unwrap_or_else(|| from.clone());
            vec![Change::DeleteRange(0, KeyRange::new(from.to_vec(), end.to_vec()))]
        }
        10 => vec![
            Change::Delete(0, key(random)),
            Change::CloneRange(0, Bytes::from_static(b"c0/0"), Bytes::from(format!("d{}/", random.below(9)))),
        ],
        11 => {
            let n = random.below(5);
            let names = [format!("c{n}/"), format!("m{n}/")].map(Bytes::from);
            let [from, to] = names;
            vec![Change::MoveRange(0, from.clone(), to.clone()), Change::MoveRange(0, to, from)]
        }
        12..=13 => {
            let mut value = vec![0; random.index(5000)];
            random.fill(&mut value);
            vec![Change::Delete(0, key(random)), Change::Insert(0, key(random), value.into())]
        }
        14 => {
            bench.store.sync_all()?;
            return bench.work(random.index(50)).map_err(Into::into);
        }
        _ => return bench.store.checkpoint().map_err(Into::into),
    };
    refusable(bench, &changes, tally)
}

/// Commits what may be too much.
fn refusable(bench: &mut Bench, changes: &[Change], tally: &mut FaultTally) -> Outcome {
    if let Err(error) = bench.commit(changes) {
        ensure!(error.kind() == ErrorKind::NoSpace, "{:?} error: {error}", error.kind());
        tally.errors += 1;
    }
    Ok(())
}

/// Returns how many batches were refused.
fn brim(bench: &mut Bench, steps: &[Step], level: u64) -> Outcome<u64> {
    // Room for so much, or a little more.
    let mut freed = 0;
    while freed < level * 1500 {
        let Some((key, value)) = bench.model.slot(0).iter().next().map(|(k, v)| (k.clone(), v.len())) else {
            break;
        };
        freed += value as u64 + 1;
        bench.commit(&[Change::Delete(0, key)])?;
    }
    bench.store.checkpoint()?;
    let mut refused = 0;
    for (i, step) in steps.iter().enumerate() {
        brim_step(bench, step, &mut refused).map_err(|e| {
            e.during(format_args!("step {i} of {}, {}", steps.len(), differential::name(step)))
        })?;
    }
    bench.store.sync_all()?;
    let crashed = bench.setup.open(Arc::new(bench.device.crash()))?;
    compare(&crashed, &bench.model).map_err(|e| e.during("after a power cut"))?;
    check_store(&crashed).map_err(|e| e.during("checkpoint after a power cut"))?;
    drop(crashed);
    check(bench)?;
    reopen(bench)?;
    check(bench).map_err(|e| e.during("opened again"))?;
    for slot in 0..bench.model.slots() {
        bench.commit(&[Change::DeleteRange(slot, KeyRange::all())])?;
    }
    free_when_idle(bench)?;
    let value = Bytes::from(vec![1; (bench.setup.device / 16) as usize]);
    bench.commit(&[Change::Insert(0, Bytes::from_static(b"again"), value)])?;
    bench.store.sync_all()?;
    check(bench).map_err(|e| e.during("emptied"))?;
    Ok(refused)
}

fn brim_step(bench: &mut Bench, step: &Step, refused: &mut u64) -> Outcome {
    match step {
        Step::Commit(changes) => match bench.commit(changes) {
            Ok(()) => {}
            Err(error) => {
                let frees = |change: &Change| matches!(change, Change::Delete(..) | Change::DeleteRange(..));
                ensure!(error.kind() == ErrorKind::NoSpace, "{:?} error: {error}", error.kind());
                ensure!(!changes.iter().all(frees), "what only deletes is refused: {error}");
                *refused += 1;
            }
        },
        Step::Sync => bench.store.sync_all()?,
        Step::Checkpoint => bench.store.checkpoint()?,
        Step::Work(pieces) => bench.work(*pieces)?,
        Step::Reopen => reopen(bench)?,
        Step::Read(slot, key, offset, length) => bench.read(*slot, key, *offset, *length)?,
        _ => {}
    }
    Ok(())
}

/// Blocks that are free once all background work is done.
fn free_when_idle(bench: &Bench) -> Outcome<u64> {
    for _ in 0..3 {
        bench.work(usize::MAX)?;
        bench.store.checkpoint()?;
    }
    Ok(bench.store.statistics().space.free / BLOCK as u64)
}

/// Closing and opening always works.
fn reopen(bench: &mut Bench) -> Outcome {
    bench.store.close()?;
    bench.open_again()
}

/// Everything is there and sound.
fn check(bench: &Bench) -> Outcome {
    compare(&bench.store, &bench.model)?;
    check_store(&bench.store)
}

fn check_store(store: &espalier_engine::Store) -> Outcome {
    store.checkpoint()?;
    verify(store)
}

/// Commits until there is no room; returns the bytes that were accepted.
fn fill(bench: &mut Bench, random: &mut Random) -> Outcome<u64> {
    let (mut accepted, mut bytes) = (0u64, 0);
    let limit = bench.setup.device / 100;
    loop {
        let length = if random.one_in(4) { random.between(4096..=20_000) } else { random.below(900) };
        let key = Bytes::from(format!("{:05}", random.below(20_000)));
        if !insert(bench, random, key, length)? {
            return Ok(bytes);
        }
        bytes += length;
        accepted += 1;
        bench.work(random.index(3))?;
        ensure!(accepted < limit, "{accepted} batches fit on {} bytes", bench.setup.device);
        if random.one_in(200) {
            bench.store.sync_all()?;
        }
    }
}

/// Commits ever smaller batches, until not even the smallest is accepted.
fn top_up(bench: &mut Bench, random: &mut Random) -> Outcome<u64> {
    let (mut length, mut bytes, mut refused, mut count) = (BLOCK as u64, 0, 0, 0u64);
    while refused < 3 {
        let key = Bytes::from(format!("{:05}", random.below(20_000)));
        match insert(bench, random, key, length)? {
            true => bytes += length,
            false if length > 0 => length /= 2,
            false => refused += 1,
        }
        count += 1;
        ensure!(count < bench.setup.device / 100, "the last bytes have no end");
    }
    Ok(bytes)
}

/// False if there was no room, and then nothing was done.
fn insert(bench: &mut Bench, random: &mut Random, key: Bytes, length: u64) -> Outcome<bool> {
    let mut value = vec![0; length as usize];
    random.fill(&mut value);
    let Err(error) = bench.commit(&[Change::Insert(0, key.clone(), value.into())]) else { return Ok(true) };
    ensure!(error.kind() == ErrorKind::NoSpace, "{:?} error: {error}", error.kind());
    let slots = bench.slots();
    let found = bench.store.get(slots[0], &key)?;
    ensure!(found.as_ref() == bench.model.get(0, &key), "a refused insert of {} shows", show(&key));
    Ok(false)
}

/// Deletes a half, by range or key by key.
fn make_room(bench: &mut Bench, random: &mut Random) -> Outcome {
    if random.one_in(2) {
        bench.commit(&[Change::DeleteRange(0, KeyRange::new(*b"05000", *b"15000"))])?;
        return Ok(());
    }
    let keys: Vec<Bytes> = bench.model.slot(0).keys().step_by(2).cloned().collect();
    delete(bench, random, keys)
}

fn delete(bench: &mut Bench, random: &mut Random, keys: Vec<Bytes>) -> Outcome {
    for key in keys {
        bench.commit(&[Change::Delete(0, key)])?;
        if random.one_in(100) {
            bench.work(1)?;
        }
    }
    Ok(())
}

/// Deletes everything: at once, in slices, or key by key in any order.
fn empty(bench: &mut Bench, random: &mut Random) -> Outcome {
    match random.below(3) {
        0 => bench.commit(&[Change::DeleteRange(0, KeyRange::all())])?,
        1 => {
            for start in 0..40 {
                let bound = |n: u64| format!("{:05}", n * 500).into_bytes();
                bench.commit(&[Change::DeleteRange(0, KeyRange::new(bound(start), bound(start + 1)))])?;
            }
        }
        _ => {
            let mut keys: Vec<Bytes> = bench.model.slot(0).keys().cloned().collect();
            for i in (1..keys.len()).rev() {
                keys.swap(i, random.index(i + 1));
            }
            delete(bench, random, keys)?;
        }
    }
    Ok(())
}
