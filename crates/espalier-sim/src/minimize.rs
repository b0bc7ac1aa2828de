//! Makes a failing list of steps short.

use crate::{Change, Failure, Outcome, Step};

/// The shortest list found that still fails, by leaving out runs of steps and then single changes
/// of batches (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002);
/// and how it fails. `budget` bounds the number of runs.
pub fn minimize(
    steps: Vec<Step>,
    failure: Failure,
    mut budget: usize,
    run: impl Fn(&[Step]) -> Outcome,
) -> (Vec<Step>, Failure) {
    let mut best = (steps, failure);
    let mut chunk = best.0.len().div_ceil(2);
    while chunk > 0 && budget > 0 {
        let shorter = leave_out(&best.0, chunk, &mut budget, &run);
        match shorter {
            Some(shorter) => best = shorter,
            None => chunk /= 2,
        }
        chunk = chunk.min(best.0.len());
    }
    while let Some(shorter) = leave_out_change(&best.0, &mut budget, &run) {
        best = shorter;
    }
    best
}

fn leave_out(
    steps: &[Step],
    chunk: usize,
    budget: &mut usize,
    run: &impl Fn(&[Step]) -> Outcome,
) -> Option<(Vec<Step>, Failure)> {
    // From the end, where what is left out disturbs least.
    let starts = (0..steps.len()).step_by(chunk).rev();
    starts.map_while(|start| spend(budget).then_some(start)).find_map(|start| {
        let end = (start + chunk).min(steps.len());
        let shorter = [&steps[..start], &steps[end..]].concat();
        run(&shorter).err().map(|failure| (shorter, failure))
    })
}

fn leave_out_change(
    steps: &[Step],
    budget: &mut usize,
    run: &impl Fn(&[Step]) -> Outcome,
) -> Option<(Vec<Step>, Failure)> {
    for (i, step) in steps.iter().enumerate().rev() {
        let Step::Commit(changes) = step else { continue };
        for j in (0..changes.len()).rev().filter(|_| changes.len() > 1) {
            if !spend(budget) {
                return None;
            }
            let mut shorter = steps.to_vec();
            let left: Vec<Change> =
                changes.iter().enumerate().filter(|(k, _)| *k != j).map(|(_, c)| c.clone()).collect();
            shorter[i] = Step::Commit(left);
            if let Err(failure) = run(&shorter) {
                return Some((shorter, failure));
            }
        }
    }
    None
}

fn spend(budget: &mut usize) -> bool {
    let left = *budget > 0;
    *budget = budget.saturating_sub(1);
    left
}

/// A failing list for people.
pub fn show(steps: &[Step]) -> String {
    let mut text = String::new();
    for (i, step) in steps.iter().enumerate() {
        let line = format!("  {i:4}: {step:?}\n");
        match line.char_indices().nth(500) {
            Some((cut, _)) => text.extend([&line[..cut], "...\n"]),
            None => text.push_str(&line),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Profile, Workload};

    #[test]
    fn finds_the_two_steps_that_matter() {
        let steps = Workload::new(1, Profile::dense(), 2).steps(200);
        let run = |steps: &[Step]| {
            let sync = steps.iter().position(|s| *s == Step::Sync);
            let late = steps.iter().rposition(|s| matches!(s, Step::Commit(c) if c.len() > 2));
            match (sync, late) {
                (Some(sync), Some(late)) if sync < late => Err(Failure::new("both")),
                _ => Ok(()),
            }
        };
        let failure = run(&steps).unwrap_err();
        let (short, _) = minimize(steps, failure, 10_000, run);
        assert_eq!(short.len(), 2, "{}", show(&short));
        assert!(matches!(&short[1], Step::Commit(c) if c.len() == 3));
    }
}
