//! Ten readers that follow one writer, each over a link of its own.

use super::bench::Bench;
use super::proxy::Proxy;
use crate::system;
use anyhow::{Result, ensure};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const READERS: usize = 10;
const ROUNDS: usize = 5;
/// A reader that has not seen a file by then does not follow.
const SIGHT_LIMIT: Duration = Duration::from_secs(60);
/// How long the readers are left alone, to count what that costs.
const IDLE: Duration = Duration::from_secs(20);

/// Tells how long it takes until the last of ten readers has seen a file, and what they cost.
pub(super) fn readers(bench: &mut Bench<'_, '_>) -> Result<()> {
    bench.fresh()?;
    let base = std::path::absolute(&bench.options.dir)?.join("mnt");
    let dirs: Vec<PathBuf> = (0..READERS).map(|n| base.join(format!("reader-{n}"))).collect();
    let mut proxies = Vec::with_capacity(READERS);
    for dir in &dirs {
        std::fs::create_dir_all(dir)?;
        let proxy = Proxy::start(bench.server.address)?;
        proxy.set_delay(Duration::from_millis(bench.delay_ms));
        let taken_down = dir.clone();
        bench.undo.push(move || drop(system::run("umount", &["-l".as_ref(), taken_down.as_os_str()])));
        bench.contender.mount_reader(dir, &proxy)?;
        proxies.push(proxy);
    }
    let outcome = follow(bench, &dirs, &proxies);
    for dir in &dirs {
        bench.contender.unmount_dir(dir)?;
    }
    outcome?;
    bench.contender.unmount()
}

fn follow(bench: &mut Bench<'_, '_>, dirs: &[PathBuf], proxies: &[Proxy]) -> Result<()> {
    for round in 0..ROUNDS {
        let name = format!("file-{round}");
        let mut file = File::create(bench.contender.dir.join(&name))?;
        file.write_all(name.as_bytes())?;
        file.sync_all()?;
        File::open(&bench.contender.dir)?.sync_all()?;
        let started = Instant::now();
        for (n, dir) in dirs.iter().enumerate() {
            while !std::fs::read(dir.join(&name)).is_ok_and(|read| read == name.as_bytes()) {
                ensure!(started.elapsed() < SIGHT_LIMIT, "reader {n} does not see {name}");
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        bench.tell("readers_see_ms", started.elapsed().as_secs_f64() * 1e3);
    }
    let requests = || proxies.iter().map(|proxy| proxy.traffic().requests()).sum::<u64>();
    let before = requests();
    std::thread::sleep(IDLE);
    let per_hour = 3600.0 / IDLE.as_secs_f64() / READERS as f64;
    bench.tell("idle_reader_requests_hour", (requests() - before) as f64 * per_hour);
    Ok(())
}
