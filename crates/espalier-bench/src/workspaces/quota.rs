//! Limits on workspaces: what they cost to have, to ask for and to set, what writing costs below
//! one, and that one holds.

use super::bench::{Bench, Way};
use super::tree::BASE;
use crate::random::Random;
use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Instant;

/// What a workspace may hold alone, as `--quota` has it, and in MiB.
const LIMIT: (&str, usize) = ("96M", 96);
/// What is written to see what writing costs, MiB.
const WRITTEN: usize = 32;
const MIB: usize = 1 << 20;

/// Workspaces with a limit: creation, questions, and writes beside one without.
pub(super) fn of_workspaces(bench: &mut Bench<'_>) -> Result<()> {
    if bench.way != Way::Workspace {
        return Ok(());
    }
    for _ in 0..bench.count(100) {
        let command = bench.espalier(&["ws", "create", "limited", "--from", BASE, "--quota", LIMIT.0]);
        bench.timed("create_limited_ms", command)?;
        bench.discard_many(&["limited".into()])?;
    }
    bench.time([
        bench.espalier(&["ws", "create", "limited", "--from", BASE, "--quota", LIMIT.0]),
        bench.espalier(&["ws", "create", "plain", "--from", BASE]),
    ])?;
    for _ in 0..bench.count(20) {
        let command = bench.espalier(&["quota", "show", "limited"]);
        bench.timed("quota_show_ms", command)?;
        let command = bench.espalier(&["quota", "set", "limited", LIMIT.0]);
        bench.timed("quota_set_ms", command)?;
        write_both(bench)?;
    }
    refuses(&bench.top().join("limited"))?;
    for figure in ["create_limited_ms", "quota_show_ms", "quota_set_ms", "write_limited_by_plain"] {
        bench.show(figure);
    }
    bench.discard_many(&["limited".into(), "plain".into()]).map(drop)
}

/// Writes a file below the limit and one without, by turns.
fn write_both(bench: &mut Bench<'_>) -> Result<()> {
    let mut content = vec![0; MIB];
    Random(17).fill(&mut content);
    let mut seconds = [0.0; 2];
    for (name, taken) in ["plain", "limited"].into_iter().zip(&mut seconds) {
        let path = bench.top().join(name).join("written");
        let begun = Instant::now();
        let written = File::create(&path).and_then(|mut file| {
            (0..WRITTEN).try_for_each(|_| file.write_all(&content))?;
            file.sync_all()
        });
        written.with_context(|| format!("{} cannot be written", path.display()))?;
        *taken = begun.elapsed().as_secs_f64();
        std::fs::remove_file(&path)?;
    }
    bench.tell("write_limited_by_plain", seconds[1] / seconds[0]);
    Ok(())
}

/// Writes more than the limit allows, which must be refused; then the space is given back.
fn refuses(dir: &Path) -> Result<()> {
    let path = dir.join("too-much");
    let mut content = vec![0; MIB];
    let mut random = Random(19);
    let mut file = File::create(&path)?;
    let refused = (0..2 * LIMIT.1).find_map(|_| {
        random.fill(&mut content);
        file.write_all(&content).and_then(|()| file.sync_all()).err()
    });
    let kind = refused.map(|error| error.kind());
    ensure!(
        kind == Some(ErrorKind::QuotaExceeded),
        "{}: twice the limit was to be refused for the limit: {kind:?}",
        path.display()
    );
    Ok(std::fs::remove_file(&path)?)
}
