//! Storage that holds other bytes than were written: bit rot, scrambled, zeroed and stale blocks,
//! and writes that were lost or went astray.

use super::FaultTally;
use crate::failure::ensure;
use crate::history::{Event, History};
use crate::model::show;
use crate::setup::slots;
use crate::{Bench, Model, Outcome, Setup, Step};
use bytes::Bytes;
use espalier_engine::{Error, ErrorKind, KeyRange, Store};
use espalier_storage::{AlignedBuf, BLOCK, Device, Random, SimulatedDevice};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Where the log begins.
pub(super) const LOG_OFFSET: u64 = 32 * 4096;

/// Carries out steps, closes the store, damages the device in `rounds` ways and reads everything:
/// each answer is right or an error.
///
/// # Errors
/// If an answer is wrong.
pub fn run_rot(setup: &Setup, steps: &[Step], rounds: u64) -> Outcome<FaultTally> {
    let (bench, history) = build(setup, steps)?;
    bench.store.close()?;
    let image = bench.device.durable_image();
    let exact = history.len()..=history.len();
    let keys = all_keys(&history);
    let mut tally = FaultTally::default();
    for round in 0..rounds {
        let mut random = Random::new(setup.seed ^ (0x207 + round));
        let device = Arc::new(SimulatedDevice::from_image(image.clone(), random.next_u64()));
        let (_, what) = damage(&device, &mut random);
        tally.runs += 1;
        tally.faults += 1;
        tally.errors += look(setup, device, &history, exact.clone(), &keys)
            .map_err(|e| e.during(format_args!("round {round}, {what}")))?;
    }
    Ok(tally)
}

/// Carries out steps, of which one may make the device lose or misdirect a write, cuts the power
/// and reads everything: the answers belong to one prefix of the batches, or are errors.
///
/// # Errors
/// If an answer is wrong.
pub fn run_liar(setup: &Setup, steps: &[Step]) -> Outcome<FaultTally> {
    let (bench, history) = build(setup, steps)?;
    let faults = bench.device.fault_counts().total();
    let keys = all_keys(&history);
    let crashed = Arc::new(bench.device.crash());
    let errors = look(setup, crashed, &history, 0..=history.len(), &keys)?;
    Ok(FaultTally { runs: 1, faults, errors })
}

/// Carries out what changes something; an error ends it, for the device may lie.
pub(super) fn build(setup: &Setup, steps: &[Step]) -> Outcome<(Bench, History)> {
    let mut bench = Bench::new(setup.clone())?;
    bench.store.sync_all()?;
    let mut history = History::new(bench.model.clone(), 0);
    for (i, step) in steps.iter().enumerate() {
        let done = match step {
            Step::Commit(changes) => bench.commit(changes).map(|()| {
                history.push(Event::Batch(changes.clone()), 0, &bench.model);
            }),
            Step::Sync => bench.store.sync_all(),
            Step::Checkpoint => bench.store.checkpoint(),
            Step::Work(pieces) => bench.work(*pieces),
            Step::Inject(fault) => {
                bench.device.inject(fault.clone());
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = done {
            ensure!(bench.device.fault_counts().total() > 0, "step {i}: {error}");
            check_error(&error)?;
            break;
        }
    }
    Ok((bench, history))
}

pub(super) fn all_keys(history: &History) -> BTreeSet<(usize, Bytes)> {
    let mut keys = BTreeSet::new();
    for events in 0..=history.len() {
        history.touched(events, |slot, key| {
            keys.insert((slot, key.clone()));
        });
    }
    keys
}

/// Damages a block that was written, or a few bits of it; says where and how.
pub(super) fn damage(device: &SimulatedDevice, random: &mut Random) -> (u64, String) {
    let image = device.image();
    let blocks: Vec<u64> = image.blocks().map(|(offset, _)| offset).collect();
    // The few blocks on which everything depends lie at the start.
    let few = if random.one_in(4) { blocks.len().min(3) } else { blocks.len() };
    let offset = blocks[random.index(few)];
    let mut block = AlignedBuf::zeroed(BLOCK);
    let what = match random.below(8) {
        0 => "zeroed",
        1 => {
            random.fill(&mut block);
            "scrambled"
        }
        2 => {
            let other = *random.choose(&blocks);
            device.read_at(other, &mut block).expect("no faults are injected");
            "replaced by another"
        }
        _ => {
            let count = random.between(1..=3) as usize;
            let places = device.rot(offset..offset + BLOCK as u64, count);
            return (offset, format!("bits flipped at {places:?}"));
        }
    };
    device.write_at(offset, &[&block]).expect("no faults are injected");
    (offset, format!("the block at byte {offset} {what}"))
}

/// Reads all that can be read; returns the number of errors. All answers must belong to the state
/// after one of the `possible` numbers of events.
fn look(
    setup: &Setup,
    device: Arc<SimulatedDevice>,
    history: &History,
    possible: RangeInclusive<usize>,
    keys: &BTreeSet<(usize, Bytes)>,
) -> Outcome<u64> {
    let store = match setup.open(device) {
        Ok(store) => store,
        Err(error) => return check_error(&error).map(|()| 1),
    };
    let mut states: Vec<Model> = possible.map(|events| history.model(events)).collect();
    let mut errors = look_at_keys(&store, &mut states, keys)?;
    errors += look_at_ranges(&store, &states)?;
    // It may find problems or fail; it must not panic or hang.
    if let Err(error) = store.checkpoint() {
        check_error(&error)?;
    }
    Ok(errors)
}

fn look_at_keys(store: &Store, states: &mut Vec<Model>, keys: &BTreeSet<(usize, Bytes)>) -> Outcome<u64> {
    let indexes = slots(store);
    let mut errors = 0;
    states.retain(|state| state.slots() == indexes.len());
    ensure!(!states.is_empty(), "{} indexes, which no state has", indexes.len());
    for (slot, key) in keys.iter().filter(|(slot, _)| *slot < indexes.len()) {
        match store.get(indexes[*slot], key) {
            Ok(found) => {
                let before = states.len();
                states.retain(|state| state.get(*slot, key) == found.as_ref());
                ensure!(
                    !states.is_empty(),
                    "index {slot}, key {}: {:?} fits none of {before} states left",
                    show(key),
                    found.map(|v| show(&v))
                );
            }
            Err(error) => {
                check_error(&error)?;
                errors += 1;
            }
        }
    }
    Ok(errors)
}

/// Walks up and down until an error; what is seen must fit one state, without gaps.
fn look_at_ranges(store: &Store, states: &[Model]) -> Outcome<u64> {
    let mut errors = 0;
    for (slot, index) in slots(store).into_iter().enumerate() {
        let mut cursor = match store.cursor(index, KeyRange::all()) {
            Ok(cursor) => cursor,
            Err(error) => {
                check_error(&error)?;
                errors += 1;
                continue;
            }
        };
        let mut seen = Vec::new();
        let ended = loop {
            match cursor.next().and_then(|e| e.map(|e| Ok((e.key, cursor.read(&e.value)?))).transpose()) {
                Ok(Some(entry)) => seen.push(entry),
                Ok(None) => break true,
                Err(error) => {
                    check_error(&error)?;
                    errors += 1;
                    break false;
                }
            }
        };
        let fits = |state: &&Model| {
            let map = state.slot(slot);
            (map.len() == seen.len() || !ended)
                && map.iter().zip(&seen).all(|((k, v), (key, value))| k[..] == key[..] && v == value)
                && map.len() >= seen.len()
        };
        ensure!(states.iter().find(fits).is_some(), "a walk over index {slot} fits no state that reads fit");
    }
    Ok(errors)
}

/// The error says what is wrong and where.
pub(super) fn check_error(error: &Error) -> Outcome {
    let text = error.to_string();
    ensure!(error.kind() != ErrorKind::InvalidArgument, "damage gives InvalidArgument: {text}");
    let place = text.contains(|c: char| c.is_ascii_digit()) || text.contains("superblock");
    ensure!(place, "an error names no place: {text}");
    Ok(())
}
