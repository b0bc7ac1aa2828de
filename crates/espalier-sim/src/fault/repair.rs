//! Repair of damaged stores: what is left is right and whole, and what is gone is told.

use super::FaultTally;
use super::damage::{LOG_OFFSET, all_keys, build, check_error, damage};
use crate::failure::ensure;
use crate::history::History;
use crate::model::show;
use crate::setup::{contents, slots, verify};
use crate::{Change, Model, Outcome, Setup, Step};
use bytes::Bytes;
use espalier_engine::{ErrorKind, IndexId, Loss, Store};
use espalier_storage::{BLOCK, Fault, Random, SimulatedDevice};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Carries out steps, with or without closing the store at the end, damages the device in `rounds`
/// ways and repairs it each time: every key has its value or nothing, and then a loss covers it.
/// The store verifies afterwards, and a power cut in the middle of the repair changes nothing about
/// that.
///
/// # Errors
/// If anything else is found.
pub fn run_repair(setup: &Setup, steps: &[Step], rounds: u64) -> Outcome<FaultTally> {
    let mut random = Random::new(setup.seed ^ 0x5a1f);
    let closed = random.one_in(2);
    // The newest group of the log, damaged, cannot be told from one that was never synced, nor can
    // the values that it alone names. So let it be a small one.
    let last = Change::Insert(0, Bytes::from_static(b"last"), Bytes::from_static(b"of all"));
    let end = [Step::Sync, Step::Commit(vec![last]), Step::Sync];
    let steps = if closed { steps.to_vec() } else { [steps, &end].concat() };
    let (bench, history) = build(setup, &steps)?;
    if closed {
        bench.store.close()?;
    } else {
        bench.store.sync_all()?;
    }
    // As after a kill: all that was written is there, the second copy of the superblock too.
    let image = bench.device.image();
    let keys = all_keys(&history);
    let mut tally = FaultTally::default();
    for round in 0..rounds {
        let device = Arc::new(SimulatedDevice::from_image(image.clone(), random.next_u64()));
        let places = random.between(1..=4);
        let damages: Vec<(u64, String)> = (0..places).map(|_| damage(&device, &mut random)).collect();
        let mut damages = damages;
        let mut unreadable = Random::new(setup.seed ^ (0xbad << 32) ^ round);
        if unreadable.one_in(3) {
            damages.push(make_unreadable(&device, &mut unreadable));
        }
        let what: Vec<&str> = damages.iter().map(|(_, what)| what.as_str()).collect();
        let log = !closed
            && damages
                .iter()
                .any(|(at, _)| (LOG_OFFSET..LOG_OFFSET + setup.log.unwrap_or(4 << 20)).contains(at));
        tally.runs += 1;
        tally.faults += damages.len() as u64;
        tally.errors += repair(&Case { setup, history: &history, keys: &keys, log }, device, &mut random)
            .map_err(|e| e.during(format_args!("round {round}, {}", what.join(", "))))?;
    }
    Ok(tally)
}

/// Lets reads of a few blocks fail.
fn make_unreadable(device: &SimulatedDevice, random: &mut Random) -> (u64, String) {
    let image = device.image();
    let blocks: Vec<u64> = image.blocks().map(|(offset, _)| offset).collect();
    let start = blocks[random.index(blocks.len())];
    let bytes = start..start + BLOCK as u64 * random.between(1..=3);
    device.inject(Fault::Unreadable(bytes.clone()));
    (start, format!("bytes {bytes:?} cannot be read"))
}

/// What the damaged store held.
struct Case<'a> {
    setup: &'a Setup,
    history: &'a History,
    keys: &'a BTreeSet<(usize, Bytes)>,
    /// The end of the log may be lost without a report.
    log: bool,
}

/// Returns the number of keys lost.
fn repair(case: &Case<'_>, device: Arc<SimulatedDevice>, random: &mut Random) -> Outcome<u64> {
    if random.one_in(4) {
        // Repair that does not come to its end: it has happened, or it has not.
        let cut = Arc::new(SimulatedDevice::from_image(device.durable_image(), random.next_u64()));
        cut.record_crash_points(1);
        if let Ok(rescue) = case.setup.open_damaged(cut.clone()) {
            rescue.store.close()?;
            let points = cut.take_crash_points();
            if let Some(point) = points.get(random.index(points.len().max(1))) {
                let device = Arc::new(point.crash(random.next_u64()));
                return finish(case, device, rescue.losses);
            }
        }
    }
    finish(case, device, Vec::new())
}

fn finish(case: &Case<'_>, device: Arc<SimulatedDevice>, mut losses: Vec<Loss>) -> Outcome<u64> {
    let mut rescue = match case.setup.open_damaged(device.clone()) {
        Ok(rescue) => rescue,
        // Without any superblock or volume table nothing can be told from anything else.
        Err(error) if error.kind() == ErrorKind::NotAStore => return Ok(1),
        Err(error) => return check_error(&error).map(|()| 1),
    };
    // What an earlier repair has told may have come true.
    losses.append(&mut rescue.losses);
    let lost = compare(&rescue.store, case, &losses)?;
    let left = contents(&rescue.store)?;
    // What is written from now on can be read again: a disk puts it elsewhere.
    device.clear_faults();
    verify(&rescue.store)?;
    rescue.store.close()?;
    drop(rescue);
    let store = case.setup.open(device)?;
    verify(&store)?;
    ensure!(
        contents(&store)?.digest() == left.digest(),
        "the repaired store holds something else when opened"
    );
    Ok(lost)
}

/// Every key has its value, or none and a loss covers it. Without the end of the log that holds of
/// the values after some prefix of the batches.
fn compare(store: &Store, case: &Case<'_>, losses: &[Loss]) -> Outcome<u64> {
    let Case { history, keys, log, .. } = *case;
    let shortened = log || losses.iter().any(|loss| loss.index.is_none() && loss.message.contains("log"));
    let indexes = slots(store);
    let whole = history.model(history.len());
    let mut states: Vec<Model> = if shortened {
        (0..=history.len()).map(|events| history.model(events)).collect()
    } else {
        vec![whole.clone()]
    };
    let mut lost = 0;
    for (slot, key) in keys.iter().filter(|(slot, _)| *slot < indexes.len()) {
        let found = store.get(indexes[*slot], key)?;
        lost += u64::from(found.as_ref() != whole.get(*slot, key));
        let told = covered(losses, indexes[*slot], key);
        if told && found.is_none() {
            continue;
        }
        let before = states.len();
        states.retain(|state| state.get(*slot, key) == found.as_ref());
        ensure!(
            !states.is_empty(),
            "index {slot}, key {}: {:?} instead of {:?}, which fits none of {before} states, {}; losses {losses:?}",
            show(key),
            found.map(|v| show(&v)),
            whole.get(*slot, key).map(|v| show(v)),
            if told { "told" } else { "not told" }
        );
    }
    Ok(lost)
}

pub(super) fn covered(losses: &[Loss], index: IndexId, key: &[u8]) -> bool {
    let mut ranges =
        losses.iter().filter(|loss| loss.index == Some(index)).filter_map(|loss| loss.range.as_ref());
    ranges.any(|range| range.contains(key))
}
