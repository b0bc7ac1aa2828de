//! Ageing by git (Conway and others, "File systems fated for senescence? Nonsense, says science!",
//! FAST 2017): a work tree pulls commit after commit, and is searched cold from time to time. At
//! the end the same tree is searched on a fresh file system.

use super::bench::Bench;
use crate::random::Random;
use crate::steps::{drain, trees};
use crate::system;
use anyhow::{Context, Result};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Searches on the way.
const SEARCHES: u64 = 10;

/// The files that one commit changes, of a hundred; besides, one is new and one gone.
const CHANGED_PERCENT: u64 = 2;

/// Pulls, and searches meanwhile: seconds for a gibibyte by the number of pulls.
pub(super) fn git(bench: &mut Bench<'_>) -> Result<()> {
    let pulls = bench.count(100);
    let upstream = upstream(bench, pulls)?;
    let tree = bench.root().join("aged");
    std::fs::create_dir(&tree)?;
    system::output(trees::git(&tree).args(["init", "--quiet"]))?;
    let mut seconds = 0.0;
    for pull in 0..=pulls {
        let started = Instant::now();
        let tag = tag(pull);
        let fetch = ["fetch", "--quiet", "--no-tags"];
        system::output(trees::git(&tree).args(fetch).arg(&upstream).arg(format!("refs/tags/{tag}")))?;
        system::output(trees::git(&tree).args(["checkout", "--quiet", "FETCH_HEAD"]))?;
        bench.settle()?;
        seconds += started.elapsed().as_secs_f64();
        if pull % (pulls / SEARCHES).max(1) == 0 {
            let (cost, reads) = search(bench, "aged")?;
            bench.point("ageing_grep", pull as f64, cost);
            bench.point("ageing_grep_reads", pull as f64, reads);
        }
    }
    bench.point("ageing_pulls_s", pulls as f64, seconds);
    bench.renew()?;
    let fresh = bench.root().join("fresh");
    system::output(
        trees::git(&upstream).args(["clone", "--quiet", "--branch", &tag(pulls)]).arg(&upstream).arg(&fresh),
    )?;
    let (cost, reads) = search(bench, "fresh")?;
    bench.point("ageing_fresh_grep", pulls as f64, cost);
    bench.point("ageing_fresh_reads", pulls as f64, reads);
    Ok(())
}

/// Seconds, and reads of the device, of a cold `grep -r` of the work tree for each gibibyte in it.
fn search(bench: &mut Bench<'_>, name: &str) -> Result<(f64, f64)> {
    let tree = bench.root().join(name);
    let bytes = total(&tree)?;
    bench.settle()?;
    bench.contender.remount_cold()?;
    let before = bench.contender.counts()?;
    let started = Instant::now();
    drain("grep", &["-r", "--exclude-dir=.git", "cpu_to_be64"], &tree)?;
    let seconds = started.elapsed().as_secs_f64();
    let reads = bench.contender.counts()?.since(&before).reads;
    let gibibytes = bytes as f64 / f64::from(1 << 30);
    Ok((seconds / gibibytes, reads as f64 / gibibytes))
}

/// Bytes of all files of a work tree, without what git keeps.
fn total(tree: &Path) -> Result<u64> {
    let mut bytes = 0;
    let mut left = vec![tree.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let told = entry.metadata()?;
            if told.is_dir() && entry.file_name() != ".git" {
                left.push(entry.path());
            } else if told.is_file() {
                bytes += told.size();
            }
        }
    }
    Ok(bytes)
}

fn tag(pull: u64) -> String {
    format!("pull-{pull}")
}

/// The repository that all contenders pull from, beside their devices. It is made once: the source
/// tree, and commits that rewrite parts of files, take some away and add others, the same in every
/// run.
fn upstream(bench: &Bench<'_>, pulls: u64) -> Result<PathBuf> {
    let tarball = &bench.setting.tarball;
    let name = tarball.file_stem().and_then(|name| name.to_str()).context("an archive without a name")?;
    let place = std::path::absolute(bench.options.dir.join(format!("upstream-{name}-{pulls}")))?;
    if place.exists() {
        return Ok(place);
    }
    println!("making {} once", place.display());
    let partial = place.with_extension("partial");
    if partial.exists() {
        std::fs::remove_dir_all(&partial)?;
    }
    trees::unpack(tarball, &partial)?;
    system::output(trees::git(&partial).args(["init", "--quiet"]))?;
    let mut files = sorted_files(&partial)?;
    let mut random = Random(1);
    for pull in 0..=pulls {
        if pull > 0 {
            change(&mut files, &mut random, pull)?;
        }
        trees::commit_all(&partial)?;
        system::output(trees::git(&partial).args(["tag", &tag(pull)]))?;
    }
    std::fs::rename(&partial, &place)?;
    Ok(place)
}

fn change(files: &mut Vec<PathBuf>, random: &mut Random, pull: u64) -> Result<()> {
    for number in 0..(files.len() as u64 * CHANGED_PERCENT / 100).max(4) {
        let at = random.next() as usize % files.len();
        let path = &files[at];
        match number % 50 {
            0 => {
                std::fs::remove_file(path)?;
                files.swap_remove(at);
            }
            1 => {
                let new = path.with_file_name(format!("new-{pull}-{number}.c"));
                std::fs::copy(path, &new)?;
                files.push(new);
            }
            _ => {
                let mut content = std::fs::read(path)?;
                let begin = random.next() as usize % content.len().max(1);
                let line = format!("\n/* {pull}.{number}: {:016x} cpu_to_be64 */\n", random.next());
                content.splice(begin..begin, line.bytes());
                std::fs::write(path, content)?;
            }
        }
    }
    Ok(())
}

/// The regular files of a work tree in the order of their paths.
fn sorted_files(root: &Path) -> Result<Vec<PathBuf>> {
    let told = system::output(
        Command::new("find").arg(root).args(["-name", ".git", "-prune", "-o", "-type", "f", "-print"]),
    )?;
    let mut files: Vec<_> = told.lines().map(PathBuf::from).collect();
    files.sort();
    Ok(files)
}
