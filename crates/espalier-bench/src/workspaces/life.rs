//! From creation to removal: what each command takes, quiet and beside a build.

use super::bench::{Bench, Way};
use super::load::Build;
use crate::random::Random;
use anyhow::{Context, Result};
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

/// Files that are changed before a comparison.
const CHANGED: usize = 100;

/// Creation and removal of one, quiet.
pub(super) fn create(bench: &mut Bench<'_>) -> Result<()> {
    bench.first()?;
    for _ in 0..bench.count(200) {
        create_and_discard(bench, "create_ms", "discard_ms")?;
    }
    bench.show("create_ms");
    bench.show("discard_ms");
    Ok(())
}

/// The same while another workspace is built.
pub(super) fn beside_a_build(bench: &mut Bench<'_>) -> Result<()> {
    let names = bench.create_many("built", 1)?;
    let build = Build::start(bench, &names[0])?;
    for _ in 0..bench.count(200) {
        create_and_discard(bench, "create_beside_build_ms", "discard_beside_build_ms")?;
    }
    build.stop()?;
    bench.discard_many(&names)?;
    bench.show("create_beside_build_ms");
    Ok(())
}

fn create_and_discard(bench: &mut Bench<'_>, create: &str, discard: &str) -> Result<()> {
    let command = bench.create("one");
    bench.timed(create, command)?;
    let command = bench.discard(&["one".into()]);
    bench.timed(discard, command)
}

/// The first `git status` of a new workspace, beside a warm one of the original.
pub(super) fn status(bench: &mut Bench<'_>) -> Result<()> {
    for _ in 0..bench.count(20) {
        let original = bench.time([bench.status(super::tree::BASE)])?;
        let names = bench.create_many("looked", 1)?;
        let first = bench.time([bench.status(&names[0])])?;
        bench.discard_many(&names)?;
        bench.tell("status_original_ms", original);
        bench.tell("status_first_ms", first);
        bench.tell("status_first_by_original", first / original);
    }
    bench.show("status_first_by_original");
    Ok(())
}

/// Comparison of a workspace in which a hundred files were changed, and their way into what it was
/// made of: a workspace itself, so that the original stays as it is.
pub(super) fn changes(bench: &mut Bench<'_>) -> Result<()> {
    if bench.way != Way::Workspace {
        let names = bench.create_many("changed", 1)?;
        change(bench, &names[0], CHANGED, 1)?;
        let mut diff = bench.command("sh");
        diff.args([
            "-c",
            "diff -rq --no-dereference \"$0\" \"$1\" || test $? = 1",
            super::tree::BASE,
            &names[0],
        ]);
        bench.timed("diff_100_ms", diff)?;
        bench.show("diff_100_ms");
        return bench.discard_many(&names).map(drop);
    }
    let target = bench.create_many("target", 1)?.remove(0);
    for round in 0..bench.count(10) {
        bench.time([bench.espalier(&["ws", "create", "changed", "--from", &target])])?;
        change(bench, "changed", CHANGED, 1 + round as u64)?;
        let command = bench.espalier(&["ws", "diff", "changed"]);
        bench.timed("diff_100_ms", command)?;
        let command = bench.espalier(&["ws", "apply", "changed"]);
        bench.timed("apply_100_ms", command)?;
        bench.discard_many(&["changed".into()])?;
    }
    bench.show("diff_100_ms");
    bench.show("apply_100_ms");
    bench.discard_many(&[target]).map(drop)
}

/// A checkpoint, some changes, and the way back.
pub(super) fn undo(bench: &mut Bench<'_>) -> Result<()> {
    if bench.way != Way::Workspace {
        return Ok(());
    }
    let names = bench.create_many("undone", 1)?;
    for round in 0..bench.count(100) {
        let command = bench.espalier(&["ws", "checkpoint", &names[0]]);
        bench.timed("checkpoint_ms", command)?;
        change(bench, &names[0], 10, 1 + round as u64)?;
        let command = bench.espalier(&["ws", "undo", &names[0]]);
        bench.timed("undo_ms", command)?;
    }
    bench.show("undo_ms");
    bench.discard_many(&names).map(drop)
}

/// Lists of a thousand workspaces, and of all that are live.
pub(super) fn list(bench: &mut Bench<'_>) -> Result<()> {
    if bench.way != Way::Workspace {
        return Ok(());
    }
    let full = bench.count(1000);
    let names = match full.checked_sub(bench.column.live) {
        Some(missing) if missing > 0 => bench.create_many("listed", missing)?,
        _ => Vec::new(),
    };
    let figure = if bench.column.live > full { "list_all_ms" } else { "list_1000_ms" };
    // After their creation, or after the last remount: nothing has been compared yet.
    let command = bench.espalier(&["ws", "list"]);
    bench.timed("list_first_ms", command)?;
    bench.show("list_first_ms");
    for _ in 0..bench.count(5) {
        let command = bench.espalier(&["ws", "list"]);
        bench.timed(figure, command)?;
    }
    bench.show(figure);
    bench.discard_many(&names).map(drop)
}

/// Writes into so many files of a copy, all over the tree.
pub(super) fn change(bench: &Bench<'_>, name: &str, count: usize, seed: u64) -> Result<()> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let step = (bench.files.len() / count).max(1);
    for at in 0..count {
        let file = &bench.files[(at * step + random.next() as usize % step) % bench.files.len()];
        let path = bench.top().join(name).join(file);
        let file = OpenOptions::new().write(true).open(&path);
        let file = file.with_context(|| format!("{} cannot be changed", path.display()))?;
        file.write_all_at(&random.next().to_le_bytes(), 16)?;
    }
    Ok(())
}
