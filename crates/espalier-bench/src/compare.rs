//! Comparison of file systems: the same small steps in each, with the time of every operation.
//!
//! Protocol: the *sites* are directories that are there, or fresh file systems on loop devices of
//! one size or on one device. In each round every site does all steps. With loop devices and
//! directories the sites take turns step by step, so that a slow moment of the machine hits all;
//! on one device a site does all its steps before the next one gets the device. A step begins with
//! cold caches where the user may drop them, and its time ends when everything is durable.

mod page;
mod plan;
mod plot;
mod recording;
mod results;
mod site;
mod work;

use crate::system::{self, Undo};
use anyhow::{Context, Result, bail, ensure};
pub use page::{html, write_html};
use plan::check_device;
pub use plan::{Amount, Plan};
pub use recording::Recording;
pub use results::{Outcome, Results, short_time};
use site::Site;
use std::path::{Path, PathBuf};
use work::{Work, Worker};

/// Where a kernel that has FUSE over io_uring says so.
const IO_URING_PATH: &str = "/sys/module/fuse/parameters/enable_uring";

/// The file systems of the kernel that this machine can make, and Espalier, over both transports
/// where the kernel has both.
pub fn contenders_of_machine() -> Vec<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.extend(["/sbin", "/usr/sbin"].map(PathBuf::from));
    let has = |kind: &&str| places.iter().any(|place| place.join(format!("mkfs.{kind}")).exists());
    let kernel = ["ext4", "xfs", "btrfs"].into_iter().filter(has);
    let own = ["espalier", "espalier+transport=classic"];
    // The first process that opens the device has the kernel load the module.
    let load = || drop(std::fs::File::open("/dev/fuse"));
    let own = own.into_iter().take(if is_in_kernel(Path::new(IO_URING_PATH), load) { 2 } else { 1 });
    kernel.chain(own).map(str::to_owned).collect()
}

/// True if the kernel has a parameter of a module, which `load` loads.
fn is_in_kernel(parameter: &Path, load: impl FnOnce()) -> bool {
    parameter.exists() || {
        load();
        parameter.exists()
    }
}

/// Runs a plan. `progress` is told of every step that is done. Blocks the termination signals, so
/// it is for the main thread of a program that has no other.
///
/// # Errors
/// What cannot be made, mounted or written; a plan that makes no sense.
pub fn run(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Results> {
    let undo = Undo::on_signals();
    let results = run_all(plan, &undo, progress);
    undo.play();
    results
}

fn run_all(plan: &Plan, undo: &Undo, progress: &mut dyn FnMut(&str)) -> Result<Results> {
    ensure!(plan.rounds > 0, "no rounds, no figures");
    let mut sites = match plan.dirs.is_empty() {
        false => plan.dirs.iter().map(|dir| Site::directory(dir, plan, undo)).collect::<Result<Vec<_>>>()?,
        true => {
            if !rustix::process::geteuid().is_root() {
                bail!("making file systems needs root; name directories to compare what lies there");
            }
            if let Some(device) = &plan.device {
                check_device(device, &plan.amount)?;
            }
            made(plan, undo)?
        }
    };
    let mut results = Results::new(plan, sites.iter().map(|site| site.name.clone()).collect());
    let worker = Worker::new(plan.amount);
    for round in 0..plan.rounds {
        if plan.device.is_some() {
            for site in &mut sites {
                begin(site)?;
                for work in Work::ALL {
                    one(site, plan, &worker, (work, round), &mut results, progress)?;
                }
                site.end()?;
            }
            continue;
        }
        sites.iter_mut().try_for_each(begin)?;
        for work in Work::ALL {
            // None always goes first.
            for turn in 0..sites.len() {
                let at = (turn + round) % sites.len();
                one(&mut sites[at], plan, &worker, (work, round), &mut results, progress)?;
            }
        }
        sites.iter_mut().try_for_each(Site::end)?;
    }
    Ok(results)
}

/// Fresh file systems.
fn made(plan: &Plan, undo: &Undo) -> Result<Vec<Site>> {
    let scratch: &Path = &plan.scratch;
    let is_new = !scratch.exists();
    std::fs::create_dir_all(scratch).with_context(|| format!("{} cannot be made", scratch.display()))?;
    let scratch = scratch.canonicalize()?;
    if plan.device.is_none() {
        let told = rustix::fs::statvfs(&scratch)?;
        let needed = plan.amount.device_bytes * plan.contenders.len() as u64;
        ensure!(
            told.f_bavail * told.f_frsize >= needed,
            "{}: {} MiB have to be free for the images (--scratch names another place)",
            scratch.display(),
            needed >> 20
        );
    }
    if is_new {
        let dir = scratch.clone();
        undo.push(move || {
            drop(std::fs::remove_dir_all(dir.join("mnt")).and_then(|()| std::fs::remove_dir(dir)))
        });
    }
    plan.contenders.iter().map(|name| Site::made(name, &scratch, plan, undo)).collect()
}

fn begin(site: &mut Site) -> Result<()> {
    site.begin().with_context(|| format!("{} cannot be made", site.name))
}

/// One step of one site.
fn one(
    site: &mut Site,
    plan: &Plan,
    worker: &Worker,
    (work, round): (Work, usize),
    results: &mut Results,
    progress: &mut dyn FnMut(&str),
) -> Result<()> {
    let failed = |site: &Site| format!("{} in {}", work.name(), site.name);
    let is_cold = site.make_cold().with_context(|| failed(site))?;
    results.note_transport(&site.name, || site.transport(&plan.espalier));
    system::touch_memory(worker.touched_bytes())?;
    let recording = worker.run(work, site.root()).with_context(|| failed(site))?;
    progress(&format!(
        "round {}  {:<14} {:<14} {:>8.2} s",
        round + 1,
        site.name,
        work.name(),
        recording.seconds()
    ));
    results.add(Outcome::new(round, &site.name, work.name(), is_cold, recording));
    Ok(())
}

#[cfg(test)]
mod tests;
