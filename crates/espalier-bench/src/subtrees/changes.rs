//! Comparing clones, and removing many files one by one.

use super::bench::{Bench, files_below};
use crate::system;
use anyhow::{Context, Result, ensure};
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;
use std::time::Instant;

/// The difference of two clones that differ in ten files, cold.
pub(super) fn of_clones(bench: &mut Bench<'_>) -> Result<()> {
    const CHANGED_FILES: usize = 10;
    let root = bench.root();
    let tree = bench.unpack("tree")?;
    let (left, right) = (root.join("left"), root.join("right"));
    for clone in [&left, &right] {
        bench.clone_tree(&tree, clone)?;
    }
    let files = files_below(&right, usize::MAX)?;
    for file in files.iter().step_by(files.len() / CHANGED_FILES + 1) {
        OpenOptions::new().append(true).open(file)?.write_all(b"one more line\n")?;
    }
    bench.settle()?;
    bench.contender.remount_cold()?;
    let arguments = ["diff".as_ref(), "--json".as_ref(), left.as_os_str(), right.as_os_str()];
    let text = bench.time("diff_ms", |bench| bench.contender.espalier::<&OsStr>(&arguments))?;
    let told: serde_json::Value = serde_json::from_str(&text.context("espalier diff")?)?;
    let changed = told["changed"].as_array().context("espalier diff names no changed paths")?;
    let regular = changed.iter().filter_map(|p| p.as_str()).filter(|p| right.join(p).is_file());
    ensure!(regular.count() >= CHANGED_FILES - 1, "espalier diff found too little: {changed:?}");
    bench.tell("diff_nodes", told["nodes_read"].as_f64().context("espalier diff counts no nodes")?);
    Ok(())
}

/// `rm -rf` of a hundred thousand and of a million small files, per file.
pub(super) fn removal_of_many(bench: &mut Bench<'_>) -> Result<()> {
    let per_file = |bench: &mut Bench<'_>, files: usize, name: &str| -> Result<f64> {
        let dir = bench.root().join(name);
        for number in 0..files {
            let parent = dir.join((number / 1000).to_string());
            if number % 1000 == 0 {
                std::fs::create_dir_all(&parent)?;
            }
            std::fs::write(parent.join(number.to_string()), b"a small file\n")?;
        }
        bench.settle()?;
        bench.contender.remount_cold()?;
        let started = Instant::now();
        system::output(Command::new("rm").arg("-rf").arg(&dir))?;
        bench.settle()?;
        let each = started.elapsed().as_secs_f64() * 1e6 / files as f64;
        bench.tell(name, each);
        Ok(each)
    };
    let (fewer, more) = (bench.count(100_000), bench.count(1_000_000));
    let fewer = per_file(bench, fewer, "unlink_us_of_100k")?;
    let more = per_file(bench, more, "unlink_us_of_1m")?;
    bench.tell("unlink_growth", more / fewer);
    Ok(())
}

/// `rm -rf` of two source trees.
pub(super) fn removal_of_two_trees(bench: &mut Bench<'_>) -> Result<()> {
    let trees = [bench.unpack("one")?, bench.unpack("two")?];
    bench.settle()?;
    bench.contender.remount_cold()?;
    bench.time("remove_two_trees_ms", |bench| {
        system::output(Command::new("rm").arg("-rf").args(&trees))?;
        bench.settle()
    })
}
