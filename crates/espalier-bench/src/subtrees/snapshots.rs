//! A thousand snapshots of one volume.

use super::bench::{Bench, files_below};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Instant;

/// Makes them, edits between them, and drops them.
pub(super) fn many(bench: &mut Bench<'_>) -> Result<()> {
    let tree = bench.unpack("tree")?;
    bench.settle()?;
    let files = files_below(&tree, 1000)?;
    bench.contender.remount_cold()?;
    let space = bench.contender.used_bytes()?;
    let height = height(bench)?;
    let (mount, look_up) = mount_and_look_up(bench, &files)?;
    let root = bench.root();
    let count = bench.count(1000);
    for number in 0..count {
        let name = format!("s{number}");
        let arguments = ["snapshot".as_ref(), "create".as_ref(), root.as_os_str(), name.as_ref()];
        bench.time("snapshot_ms", |bench| bench.contender.espalier(&arguments))?;
    }
    bench.settle()?;
    let (mount_after, look_up_after) = mount_and_look_up(bench, &files)?;
    let added = self::height(bench)? - height;
    bench.tell("snapshots_height_added", added);
    bench.tell("snapshots_mount_growth", mount_after / mount);
    bench.tell("snapshots_lookup_growth", look_up_after / look_up);
    for number in 0..count {
        let name = format!("s{number}");
        let arguments = ["snapshot".as_ref(), "delete".as_ref(), root.as_os_str(), name.as_ref()];
        bench.contender.espalier(&arguments)?;
    }
    bench.settle()?;
    bench.contender.remount_cold()?;
    let left = bench.contender.used_bytes()?.saturating_sub(space);
    bench.tell("snapshots_space_left_kib", left as f64 / 1024.0);
    Ok(())
}

/// Medians of five: seconds of a cold mount, and of looking at files after it.
fn mount_and_look_up(bench: &mut Bench<'_>, files: &[PathBuf]) -> Result<(f64, f64)> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let mount = bench.contender.remount_cold()?;
        let started = Instant::now();
        for file in files {
            std::fs::symlink_metadata(file)?;
        }
        times.push((mount, started.elapsed().as_secs_f64()));
    }
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Ok((median(times.iter().map(|t| t.0).collect()), median(times.iter().map(|t| t.1).collect())))
}

/// The greatest height of any index.
fn height(bench: &Bench<'_>) -> Result<f64> {
    let root = bench.root();
    let text = bench.contender.espalier(&["info".as_ref(), "--json".as_ref(), root.as_os_str()])?;
    let told: serde_json::Value = serde_json::from_str(&text.context("espalier info")?)?;
    heights(&told).into_iter().max_by(f64::total_cmp).context("espalier info tells no height")
}

/// Every number under the name `height`, wherever it is.
fn heights(value: &serde_json::Value) -> Vec<f64> {
    match value {
        serde_json::Value::Object(fields) => {
            let own = fields.get("height").and_then(serde_json::Value::as_f64);
            own.into_iter().chain(fields.values().flat_map(heights)).collect()
        }
        serde_json::Value::Array(values) => values.iter().flat_map(heights).collect(),
        _ => Vec::new(),
    }
}
