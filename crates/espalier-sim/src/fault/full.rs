//! A store that fills up: the answer comes with the batch and not with the sync, everything stays
//! readable, and room can be made.

use super::Tally;
use crate::failure::ensure;
use crate::model::show;
use crate::setup::{compare, verify};
use crate::{Bench, Change, Outcome, Setup};
use bytes::Bytes;
use espalier_engine::{ErrorKind, KeyRange};
use espalier_storage::Random;
use std::sync::Arc;

/// Fills a store to the last batch, makes room by deleting, and fills it again.
///
/// # Errors
/// If an answer is wrong, or a sync or a delete fails for lack of room.
pub fn run_full(setup: &Setup, rounds: usize) -> Outcome<Tally> {
    let mut random = Random::new(setup.seed ^ 0xf011);
    let mut bench = Bench::new(setup.clone())?;
    let mut tally = Tally { runs: 1, ..Tally::default() };
    for round in 0..rounds {
        let during = |what: &str| format!("round {round}, {what}");
        fill(&mut bench, &mut random).map_err(|e| e.during(during("filling")))?;
        tally.errors += 1;
        bench.store.sync_all().map_err(|e| crate::Failure::from(e).during(during("sync when full")))?;
        check(&bench, &mut tally).map_err(|e| e.during(during("when full")))?;
        let crashed = bench.setup.open(Arc::new(bench.device.crash()))?;
        compare(&crashed, &bench.model).map_err(|e| e.during(during("after a crash when full")))?;
        drop(crashed);
        if random.one_in(2) {
            reopen(&mut bench, &mut tally).map_err(|e| e.during(during("reopening")))?;
        }
        make_room(&mut bench, &mut random).map_err(|e| e.during(during("making room")))?;
        check(&bench, &mut tally).map_err(|e| e.during(during("after making room")))?;
    }
    reopen(&mut bench, &mut tally)?;
    check(&bench, &mut tally)?;
    Ok(tally)
}

/// Closing may find no room for its checkpoint; the log has everything that was synced.
fn reopen(bench: &mut Bench, tally: &mut Tally) -> Outcome {
    bench.store.sync_all()?;
    if let Err(error) = bench.store.close() {
        ensure!(error.kind() == ErrorKind::NoSpace, "closing: {error}");
        tally.errors += 1;
    }
    bench.open_again()
}

/// Everything is there and sound. The tightest of stores may find no room for a checkpoint, which
/// verification begins with: then what can be read is compared, and nothing else.
fn check(bench: &Bench, tally: &mut Tally) -> Outcome {
    compare(&bench.store, &bench.model)?;
    match bench.store.checkpoint() {
        Err(error) if error.kind() == ErrorKind::NoSpace => {
            tally.errors += 1;
            Ok(())
        }
        outcome => {
            outcome?;
            verify(&bench.store)
        }
    }
}

/// Refusals of large values, which need free blocks in a row, that do not yet make a store full.
const LARGE_REFUSALS: usize = 10;

/// Commits until there is no room.
fn fill(bench: &mut Bench, random: &mut Random) -> Outcome {
    let (mut accepted, mut refused) = (0u64, 0);
    let limit = bench.setup.device / 1000;
    loop {
        let length = if random.one_in(4) { random.between(4096..=20_000) } else { random.below(900) };
        let mut value = vec![0; length as usize];
        random.fill(&mut value);
        let key = Bytes::from(format!("{:05}", random.below(20_000)));
        match bench.commit(&[Change::Insert(0, key.clone(), value.into())]) {
            Ok(()) => {
                accepted += 1;
                bench.work(random.index(3))?;
            }
            Err(error) => {
                ensure!(error.kind() == ErrorKind::NoSpace, "{:?} error: {error}", error.kind());
                let slots = bench.slots();
                let found = bench.store.get(slots[0], &key)?;
                ensure!(
                    found.as_ref() == bench.model.get(0, &key),
                    "a refused insert of {} shows",
                    show(&key)
                );
                refused += 1;
                if length < 4096 || refused == LARGE_REFUSALS {
                    return Ok(());
                }
            }
        }
        ensure!(accepted < limit, "{accepted} batches fit on {} bytes", bench.setup.device);
        if random.one_in(200) {
            bench.store.sync_all()?;
        }
    }
}

/// Deletes a half, by range or key by key.
fn make_room(bench: &mut Bench, random: &mut Random) -> Outcome {
    if random.one_in(2) {
        bench.commit(&[Change::DeleteRange(0, KeyRange::new(*b"05000", *b"15000"))])?;
        return Ok(());
    }
    let keys: Vec<Bytes> = bench.model.slot(0).keys().step_by(2).cloned().collect();
    for key in keys {
        bench.commit(&[Change::Delete(0, key)])?;
    }
    Ok(())
}
