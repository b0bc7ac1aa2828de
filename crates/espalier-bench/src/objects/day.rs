//! What a day of a developer's use costs in requests.
//!
//! The day: eight hours in which an editor saves 400 files (a new file, fsync, rename), git looks
//! at the tree 60 times, 30 builds write 100 objects each, and 20 commits are made; the mount stays
//! for 24 hours. A twentieth of the saves, looks, builds and commits is done and counted; saves are
//! three seconds apart, so that each of them reaches the store by itself, as it does in the eight
//! hours. A minute without use says what the rest of the day costs.

use super::bench::{Bench, mib};
use super::parts::git;
use crate::random::Random;
use crate::steps;
use crate::system::make_durable;
use anyhow::Result;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

const PART: u32 = 20;
const SAVES: u32 = 400 / PART;
const LOOKS: u32 = 60 / PART;
const BUILDS: u32 = 30 / PART + 1;
const BUILDS_A_DAY: u32 = 30;
const COMMITS: u32 = 20 / PART;
const OBJECTS_PER_BUILD: u32 = 100;
const OBJECT_BYTES: usize = 30_000;
const SAVED_BYTES: usize = 12_000;
const BETWEEN_SAVES: Duration = Duration::from_secs(3);
const IDLE: Duration = Duration::from_secs(60);
const IDLE_MINUTES: f64 = 24.0 * 60.0;
/// What S3 takes in US dollars for a thousand requests (standard class, us-east-1).
const DOLLARS_PER_1000_PUTS: f64 = 0.005;
const DOLLARS_PER_1000_GETS: f64 = 0.0004;

/// Tells what a day would cost.
pub(super) fn day(bench: &mut Bench<'_, '_>) -> Result<()> {
    bench.fresh()?;
    let dir = bench.contender.dir.clone();
    let tree = dir.join("tree");
    steps::run("unpack", &dir, bench.setting)?;
    git(&tree, &["init", "-q"])?;
    git(&tree, &["add", "-A", "-f"])?;
    git(&tree, &["commit", "-q", "-m", "all"])?;
    make_durable(&dir)?;
    bench.remount()?;
    let mut random = Random(5);
    let mut total = (0.0, 0.0, 0.0);
    let mut add =
        |bench: &mut Bench<'_, '_>, name: &str, times: f64, work: &mut dyn FnMut() -> Result<()>| {
            let before = bench.server.proxy.traffic();
            work()?;
            let traffic = bench.server.proxy.traffic().since(&before);
            let (puts, gets) = ((traffic.puts + traffic.lists) as f64 * times, traffic.gets as f64 * times);
            bench.tell(&format!("day_{name}_puts"), puts);
            bench.tell(&format!("day_{name}_gets"), gets);
            let bytes = mib(traffic.bytes_put + traffic.bytes_got) * times;
            total = (total.0 + puts, total.1 + gets, total.2 + bytes);
            anyhow::Ok(())
        };
    add(bench, "saves", f64::from(PART), &mut || (0..SAVES).try_for_each(|n| save(&tree, n, &mut random)))?;
    add(bench, "looks", f64::from(PART), &mut || {
        (0..LOOKS).try_for_each(|_| git(&tree, &["status", "--porcelain"]))
    })?;
    add(bench, "builds", f64::from(BUILDS_A_DAY) / f64::from(BUILDS), &mut || {
        (0..BUILDS).try_for_each(|_| build(&dir.join("out"), &mut random))?;
        std::thread::sleep(BETWEEN_SAVES);
        Ok(())
    })?;
    add(bench, "commits", f64::from(PART), &mut || {
        (0..COMMITS).try_for_each(|_| {
            git(&tree, &["add", "-A", "-f"])?;
            git(&tree, &["commit", "-q", "-m", "more"])
        })?;
        std::thread::sleep(BETWEEN_SAVES);
        Ok(())
    })?;
    add(bench, "rest", IDLE_MINUTES, &mut || {
        std::thread::sleep(IDLE);
        Ok(())
    })?;
    bench.tell("day_puts", total.0);
    bench.tell("day_gets", total.1);
    bench.tell("day_mib", total.2);
    let dollars = total.0 / 1e3 * DOLLARS_PER_1000_PUTS + total.1 / 1e3 * DOLLARS_PER_1000_GETS;
    bench.tell("day_cents", dollars * 100.0);
    bench.contender.unmount()
}

/// What an editor does.
fn save(tree: &Path, number: u32, random: &mut Random) -> Result<()> {
    let mut bytes = vec![0; SAVED_BYTES];
    random.fill(&mut bytes);
    let (new, name) = (tree.join(format!(".saved-{number}~")), tree.join(format!("saved-{number}")));
    let mut file = File::create(&new)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, &name)?;
    std::thread::sleep(BETWEEN_SAVES);
    Ok(())
}

/// What a compiler leaves; nothing waits for it.
fn build(out: &Path, random: &mut Random) -> Result<()> {
    std::fs::create_dir_all(out)?;
    let mut bytes = vec![0; OBJECT_BYTES];
    for number in 0..OBJECTS_PER_BUILD {
        random.fill(&mut bytes);
        std::fs::write(out.join(format!("{number}.o")), &bytes)?;
    }
    Ok(())
}
