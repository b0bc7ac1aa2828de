//! The same from Python, by the package `espalier` if it can be imported.

use super::bench::Bench;
use super::figures::{PYTHON, What};
use super::work::{Work, shuffled};
use anyhow::{Context, Result, ensure};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// What lists and reads.
const SCRIPT: &str = include_str!("tree.py");

/// True if the package is there; says so if it is not.
fn is_there() -> bool {
    let import = ["-c", "import espalier; espalier.Tree"];
    let found = Command::new("python3").args(import).stderr(Stdio::null()).status();
    let is_there = found.is_ok_and(|status| status.success());
    if !is_there {
        println!("         python       there is no package espalier, and so no column of it");
    }
    is_there
}

/// Lists the tree in directory `name` of the mount and reads it in batches, shuffled.
pub(super) fn all(bench: &mut Bench<'_>, work: &Work, name: &str) -> Result<()> {
    if !is_there() {
        return Ok(());
    }
    let mut paths = Vec::new();
    let files: Vec<_> = work.regular().collect();
    for at in shuffled(files.len()) {
        paths.extend_from_slice(files[at].path.as_bytes());
        paths.push(0);
    }
    let entries = work.entries(1) as u64;
    for (step, word, expected) in [("list", "list", entries), ("read shuffled", "read", work.bytes)] {
        bench.mount_cold()?;
        let top = bench.contender.dir.join(name);
        for (temperature, seconds) in ["cold", "warm"].into_iter().zip(run(&top, word, expected, &paths)?) {
            let what = What::seconds(work.name, &format!("{step} {temperature}"), 1);
            bench.tell(PYTHON, &what, seconds);
        }
    }
    Ok(())
}

/// The seconds of both times.
fn run(top: &Path, step: &str, expected: u64, paths: &[u8]) -> Result<Vec<f64>> {
    let mut command = Command::new("python3");
    command.arg("-c").arg(SCRIPT).arg(top).args([step, &expected.to_string()]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    // It reads all of it before it prints anything.
    child.stdin.take().context("no pipe")?.write_all(paths)?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "the loop in Python failed ({})", output.status);
    let text = String::from_utf8(output.stdout)?;
    text.lines().map(|line| line.parse::<f64>().context("no number")).collect()
}
