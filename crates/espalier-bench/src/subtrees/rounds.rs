//! The clone benchmark of "Copy-on-Abundant-Write for Nimble File System Clones" (TOS 2021, section
//! 5.2): eight directories of eight 4-MiB files; each round writes 16 bytes into every file of the
//! head or of the tail, clones the head or the tail, and reads what was changed with cold caches.

use super::bench::Bench;
use crate::random::Random;
use crate::steps::drain;
use anyhow::Result;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

const FILE_COUNT: usize = 64;
const FILE_BYTES: usize = 4 << 20;
/// Cold scans of which the median counts: one takes a fifth of a second, of which a tenth is noise.
const SCAN_COUNT: usize = 9;

/// What is cloned and what is edited.
struct Configuration {
    name: &'static str,
    clones_head: bool,
    edits_head: bool,
}

/// All three configurations, one after the other.
pub(super) fn all(bench: &mut Bench<'_>) -> Result<()> {
    for configuration in [
        Configuration { name: "head_tail", clones_head: true, edits_head: false },
        Configuration { name: "head_head", clones_head: true, edits_head: true },
        Configuration { name: "tail_tail", clones_head: false, edits_head: false },
    ] {
        rounds(bench, &configuration)?;
    }
    Ok(())
}

fn rounds(bench: &mut Bench<'_>, configuration: &Configuration) -> Result<()> {
    let base = bench.root().join(configuration.name);
    let head = base.join("head");
    write_files(&head)?;
    bench.settle()?;
    bench.contender.remount_cold()?;
    let before = bench.contender.used_bytes()?;
    let mut tail = head.clone();
    let (mut clones, mut greps) = (Vec::new(), Vec::new());
    let mut random = Random(17);
    let rounds = bench.count(128);
    for round in 0..rounds {
        let source = if configuration.clones_head { &head } else { &tail };
        let clone = base.join(format!("clone-{round}"));
        let started = Instant::now();
        bench.clone_tree(source, &clone)?;
        clones.push(started.elapsed().as_secs_f64() * 1e3);
        tail = clone;
        let edited = if configuration.edits_head { &head } else { &tail };
        edit(edited, random.next() as usize % (FILE_BYTES - 16), round as u64)?;
        bench.settle()?;
        if round == 0 || round + 1 == rounds {
            greps.push(cold_grep(bench, edited)?);
        }
    }
    bench.settle()?;
    bench.contender.remount_cold()?;
    let added = bench.contender.used_bytes()?.saturating_sub(before);
    let name = |figure: &str| format!("rounds_{}_{figure}", configuration.name);
    let eighth = (rounds / 8).max(1);
    let (early, late) = (median(&clones[..eighth]), median(&clones[rounds - eighth..]));
    bench.tell(&name("clone_ms"), median(&clones));
    bench.tell(&name("growth"), late / early);
    bench.tell(&name("grep_ms"), greps[1]);
    bench.tell(&name("grep_growth"), greps[1] / greps[0]);
    bench.tell(&name("space_mib"), added as f64 / 1048576.0);
    Ok(())
}

fn path(dir: &Path, file: usize) -> PathBuf {
    dir.join(format!("dir-{}", file / 8)).join(format!("file-{}", file % 8))
}

fn write_files(dir: &Path) -> Result<()> {
    let mut content = vec![0; FILE_BYTES];
    let mut random = Random(5);
    for file in 0..FILE_COUNT {
        let path = path(dir, file);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        random.fill(&mut content);
        std::fs::write(path, &content)?;
    }
    Ok(())
}

fn edit(dir: &Path, offset: usize, round: u64) -> Result<()> {
    for file in 0..FILE_COUNT {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&round.to_le_bytes());
        OpenOptions::new().write(true).open(path(dir, file))?.write_all_at(&bytes, offset as u64)?;
    }
    Ok(())
}

/// The median of [`SCAN_COUNT`] cold scans, in milliseconds.
fn cold_grep(bench: &mut Bench<'_>, dir: &Path) -> Result<f64> {
    let mut times = Vec::new();
    for _ in 0..SCAN_COUNT {
        bench.contender.remount_cold()?;
        let started = Instant::now();
        // -c counts in every file, so that it prints and reads to the end.
        drain("grep", &["-r", "-c", "no such words"], dir).or_else(only_nothing_found)?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    Ok(median(&times))
}

/// grep says with exit code 1 that it found nothing, which is what it shall find.
fn only_nothing_found(error: anyhow::Error) -> Result<()> {
    if error.to_string().contains("exit status: 1") { Ok(()) } else { Err(error) }
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
