//! Removal of clones, straight after they were made and changed, and cold; and the space that comes
//! back.

use super::bench::{Bench, Way};
use super::life::change;
use super::tree::BASE;
use anyhow::Result;
use std::process::Command;
use std::time::{Duration, Instant};

/// So many are removed one by one, and so many by one command.
const REMOVED: usize = 200;
/// What a workspace has of its own before it is thrown away, for the space that must come back.
const OWN_BYTES: usize = 16 << 20;
/// Space that is not back after so long, divided by the scale, is not waited for.
const BACK_LIMIT: Duration = Duration::from_secs(120);

/// Removal of clones.
pub(super) fn of_clones(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.way.is_at_once() {
        return Ok(());
    }
    for (one, all, cold) in
        [("rm_pending_ms", "rm_pending_200_ms", false), ("rm_cold_ms", "rm_cold_200_ms", true)]
    {
        let count = bench.count(REMOVED);
        let names: Vec<_> = (0..2 * count).map(|number| format!("clone-{number}")).collect();
        for (number, name) in names.iter().enumerate() {
            let command = make(bench, name);
            bench.timed("clone_ms", command)?;
            change(bench, name, 10, 1 + number as u64)?;
        }
        if cold {
            bench.settle()?;
            bench.remount()?;
        }
        let (singly, together) = names.split_at(count);
        for name in singly {
            let command = remove(bench, std::slice::from_ref(name));
            bench.timed(one, command)?;
        }
        let command = remove(bench, together);
        bench.timed(all, command)?;
        bench.show(one);
        bench.show(all);
    }
    bench.first()
}

/// What a clone without the life of a workspace is made by.
fn make(bench: &Bench<'_>, name: &str) -> Command {
    if bench.way == Way::Workspace { bench.espalier(&["clone", BASE, name]) } else { bench.create(name) }
}

fn remove(bench: &Bench<'_>, names: &[String]) -> Command {
    if bench.way != Way::Workspace {
        return bench.discard(names);
    }
    let mut command = bench.espalier(&["rm"]);
    command.args(names);
    command
}

/// Bytes that each of some new workspaces takes; then, with files of their own, how long it takes
/// to discard them, and until `df` shows their space.
pub(super) fn space(bench: &mut Bench<'_>) -> Result<()> {
    let before = bench.settle()?;
    let count = bench.count(REMOVED);
    let names = bench.create_many("space", count)?;
    let after = bench.settle()?;
    bench.tell("workspace_takes_kib", after.saturating_sub(before) as f64 / 1024.0 / count as f64);
    bench.show("workspace_takes_kib");
    let mut content = vec![0; OWN_BYTES];
    let mut random = crate::random::Random(11);
    for name in names.iter().take(20) {
        random.fill(&mut content);
        let file = bench.files.iter().max_by_key(|file| file.as_os_str().len());
        std::fs::write(bench.top().join(name).join(file.unwrap_or(&bench.files[0])), &content)?;
    }
    let full = bench.settle()?;
    let milliseconds = bench.time([bench.discard(&names)])?;
    bench.tell("discard_200_ms", milliseconds);
    bench.show("discard_200_ms");
    let wanted = before + full.saturating_sub(before) / 20;
    let begun = Instant::now();
    let limit = BACK_LIMIT / u32::try_from(bench.scale)?;
    while bench.contender.used_bytes()? > wanted && begun.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    bench.tell("space_back_s", begun.elapsed().as_secs_f64());
    bench.show("space_back_s");
    Ok(())
}
