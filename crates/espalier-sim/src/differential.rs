//! A store and its model, step by step.

use crate::failure::ensure;
use crate::model::show;
use crate::{Bench, Failure, Model, Outcome, Reference, Setup, Step};
use espalier_engine::{Cursor, IndexId, Snapshot};

/// Most snapshots kept at a time.
const KEPT_SNAPSHOTS: usize = 4;

/// A snapshot, what it must show, and a cursor on it.
struct Kept {
    snapshot: Snapshot,
    slots: Vec<IndexId>,
    model: Model,
    cursor: Cursor,
    reference: Reference,
}

/// Carries out steps on a new store and compares every answer.
///
/// # Errors
/// At the first difference or error.
pub fn run(setup: &Setup, steps: &[Step]) -> Outcome {
    let mut bench = Bench::new(setup.clone())?;
    let mut kept = Vec::new();
    for (i, step) in steps.iter().enumerate() {
        take(&mut bench, &mut kept, step)
            .map_err(|e| e.during(format_args!("step {i} of {}, {}", steps.len(), name(step))))?;
    }
    drop(kept);
    bench.verify().map_err(|e| e.during("at the end"))?;
    bench.store.close()?;
    bench.open_again()?;
    bench.verify().map_err(|e| e.during("reopened at the end"))
}

fn take(bench: &mut Bench, kept: &mut Vec<Kept>, step: &Step) -> Outcome {
    match step {
        Step::Commit(changes) => bench.commit(changes)?,
        Step::Read(slot, key, offset, length) => bench.read(*slot, key, *offset, *length)?,
        Step::Walk(slot, range, moves) => {
            let slots = bench.slots();
            let mut cursor = bench.store.cursor(slots[slot % slots.len()], range.clone())?;
            Reference::new(&bench.model, *slot, range).walk(&mut cursor, moves)?;
        }
        Step::Snapshot(slot, range) => {
            if kept.len() == KEPT_SNAPSHOTS {
                kept.remove(0);
            }
            let slots = bench.slots();
            let snapshot = bench.store.snapshot()?;
            let cursor = snapshot.cursor(slots[slot % slots.len()], range.clone())?;
            let reference = Reference::new(&bench.model, *slot, range);
            kept.push(Kept { snapshot, slots, model: bench.model.clone(), cursor, reference });
        }
        Step::LookBack(which, moves, key) if !kept.is_empty() => {
            let which = which % kept.len();
            let Kept { snapshot, slots, model, cursor, reference } = &mut kept[which];
            reference.walk(cursor, moves)?;
            let there = bench.slots();
            for (slot, index) in slots.iter().copied().enumerate() {
                // A snapshot in memory knows a volume that takes no changes only as long as it is
                // there.
                if model.is_read_only(slot) && !there.contains(&index) {
                    continue;
                }
                let found = snapshot.get(index, key)?;
                ensure!(
                    found.as_ref() == model.get(slot, key),
                    "in a snapshot, index {slot}, key {}: expected {:?}, found {:?}",
                    show(key),
                    model.get(slot, key).map(|v| show(v)),
                    found.map(|v| show(&v))
                );
            }
        }
        Step::Forget(which) if !kept.is_empty() => drop(kept.swap_remove(which % kept.len())),
        Step::LookBack(..) | Step::Forget(_) | Step::Inject(_) => {}
        Step::Sync => bench.store.sync_all()?,
        Step::Checkpoint => bench.store.checkpoint()?,
        Step::Work(pieces) => bench.work(*pieces)?,
        Step::Reopen => {
            kept.clear();
            bench.store.close()?;
            bench.open_again()?;
            bench.verify()?;
        }
        Step::Kill => {
            kept.clear();
            bench.store.sync_all()?;
            bench.open_again()?;
            bench.verify()?;
        }
        Step::Diff(old, new) => bench.diff(old, new)?,
        Step::Volumes(step) => drop(bench.change_volumes(step)?),
        Step::CreateVolume(indexes) => bench.create_volume(*indexes)?,
        Step::Verify => bench.verify()?,
    }
    Ok(())
}

/// The kind of a step.
pub(crate) fn name(step: &Step) -> String {
    let text = format!("{step:?}");
    text.split(['(', ' ']).next().unwrap_or_default().to_owned()
}

/// [`run`], with a seed that names everything, and panics made failures.
///
/// # Errors
/// As for [`run`].
pub fn run_caught(setup: &Setup, steps: &[Step]) -> Result<(), Failure> {
    crate::catch(|| run(setup, steps))
}
