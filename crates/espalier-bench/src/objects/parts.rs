//! Parts that every contender does: sequential work, a source tree, fsync, mounting; and clones.

use super::bench::{Bench, mib};
use crate::steps::{self, drain};
use crate::system;
use crate::system::make_durable;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Appends with an fsync each, at most.
const MAX_APPENDS: u64 = 50;
/// How often a file system is mounted.
const MOUNTS: usize = 3;

/// Writes a file, and reads it from the store.
pub(super) fn sequential(bench: &mut Bench<'_, '_>) -> Result<()> {
    let bytes = bench.setting.file_bytes;
    bench.fresh()?;
    let (seconds, _) = bench.measure("write_seq", |bench| {
        step("write_seq", bench)?;
        // Only then has every contender put all of it.
        bench.contender.unmount()
    })?;
    bench.tell_rate("write_seq", bytes, seconds, "put_mib_s");
    bench.tell_work("write_seq", bytes, "put_cpu_ms_mib");
    bench.contender.mount()?;
    let (seconds, _) = bench.measure("read_seq", |bench| step("read_seq_cold", bench))?;
    bench.tell_rate("read_seq", bytes, seconds, "get_mib_s");
    bench.tell_work("read_seq", bytes, "get_cpu_ms_mib");
    bench.contender.unmount()
}

fn step(name: &str, bench: &Bench<'_, '_>) -> Result<()> {
    steps::run(name, &bench.contender.dir, bench.setting).map(drop)
}

/// Unpacks the source tree, searches it and looks at it with git, from the store each time.
pub(super) fn tree(bench: &mut Bench<'_, '_>) -> Result<()> {
    bench.fresh()?;
    bench.setting.warm_up()?;
    bench.measure("unpack", |bench| {
        step("unpack", bench)?;
        bench.contender.unmount()
    })?;
    bench.contender.mount()?;
    let tree = bench.contender.dir.join("tree");
    let grep = || drain("grep", &["-rc", "include"], &tree);
    let (seconds, traffic) = bench.measure("grep_cold", |_| grep())?;
    bench.tell_rate("grep_cold", bytes_below(&tree)?, seconds, "get_mib_s");
    // The same from the kernel's pages: what of the time is not the store's.
    bench.measure("grep_warm", |_| grep())?;
    bench.tell("grep_cold_got_by_tree", mib(traffic.bytes_got) / mib(bytes_below(&tree)?));
    git(&tree, &["init", "-q"])?;
    git(&tree, &["add", "-A", "-f"])?;
    git(&tree, &["commit", "-q", "-m", "all"])?;
    make_durable(&bench.contender.dir)?;
    bench.remount()?;
    bench.measure("git_status_cold", |_| git(&tree, &["status", "--porcelain"]))?;
    bench.measure("git_status_warm", |_| git(&tree, &["status", "--porcelain"]))?;
    bench.contender.unmount()
}

/// Runs git in a directory, as a user without settings.
pub(super) fn git(dir: &Path, arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("git");
    command.args(["-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "user.name=bench"]);
    command.args(["-c", "user.email=bench@example.org", "-c", "safe.directory=*"]).args(arguments);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").current_dir(dir);
    system::output(&mut command).map(drop)
}

fn bytes_below(dir: &Path) -> Result<u64> {
    let text = system::run("du", &["-sb".as_ref(), dir.as_os_str()])?;
    let word = text.split_whitespace().next().context("du prints nothing")?;
    Ok(word.parse()?)
}

/// Appends 4 KiB and waits for it, again and again.
pub(super) fn fsync(bench: &mut Bench<'_, '_>) -> Result<()> {
    bench.fresh()?;
    let count = bench.setting.appends.min(MAX_APPENDS);
    let mut times = Vec::new();
    let path = bench.contender.dir.join("log");
    let (_, traffic) = bench.measure("append_fsync", |_| {
        let mut file = File::create(&path)?;
        for _ in 0..count {
            let started = Instant::now();
            file.write_all(&[5; 4096])?;
            file.sync_all()?;
            times.push(started.elapsed().as_secs_f64() * 1e3);
        }
        Ok(())
    })?;
    times.sort_by(f64::total_cmp);
    bench.tell("fsync_ms", times[times.len() / 2]);
    bench.tell("fsync_p90_ms", times[times.len() * 9 / 10]);
    bench.tell("fsync_requests_each", traffic.requests() as f64 / count as f64);
    bench.contender.unmount()
}

/// Clones the source tree, and makes the clone durable.
pub(super) fn clone(bench: &mut Bench<'_, '_>) -> Result<()> {
    bench.fresh()?;
    step("unpack", bench)?;
    bench.remount()?;
    let dir = bench.contender.dir.display().to_string();
    bench.measure("clone_cold", |bench| {
        bench.contender.espalier(&["clone", &format!("{dir}/tree"), &format!("{dir}/one")])?;
        make_durable(&bench.contender.dir)
    })?;
    bench.measure("clone_warm", |bench| {
        bench.contender.espalier(&["clone", &format!("{dir}/tree"), &format!("{dir}/two")])?;
        make_durable(&bench.contender.dir)
    })?;
    bench.contender.unmount()
}

/// Mounts what the source tree is in; file systems of ours have 100 GiB of blocks.
pub(super) fn mount(bench: &mut Bench<'_, '_>) -> Result<()> {
    bench.fresh()?;
    step("unpack", bench)?;
    bench.contender.unmount()?;
    for _ in 0..MOUNTS {
        let before = bench.server.proxy.traffic();
        let seconds = bench.contender.mount()?;
        bench.tell("mount_ms", seconds * 1e3);
        let traffic = bench.server.proxy.traffic().since(&before);
        bench.tell("mount_requests", traffic.requests() as f64);
        bench.contender.unmount()?;
    }
    Ok(())
}
