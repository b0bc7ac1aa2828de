//! The life of workspaces, from creation to removal, for root and for an ordinary user.
//!
//! Protocol: for each file system and each user a fresh file system gets one tree: sources in git,
//! packages of node and of Python, results of a build, with hard links inside the tree and across
//! its border. Each command is measured as its user sees it, from the start of the process to its
//! end. What the kernel's file systems do: a snapshot of a subvolume (Btrfs), `cp -a
//! --reflink=always` (XFS), `cp -a` (ext4), and `diff -rq`. Then, if so asked, many workspaces are
//! made, and all is measured again beside them, where a copy takes no longer than milliseconds.

mod bench;
mod column;
mod figures;
mod life;
mod load;
mod quota;
mod removal;
mod tree;

use crate::contender::Contender;
use crate::options::{Options, User, chosen};
use crate::system::{self, Undo};
use anyhow::{Context, Result};
use bench::{Bench, Way};
use column::Column;
use figures::Figures;
use std::path::Path;
use std::time::Instant;

/// How many workspaces one command makes.
const MADE_AT_ONCE: usize = 500;

/// A part of the suite.
struct Part {
    name: &'static str,
    run: fn(&mut Bench<'_>) -> Result<()>,
}

/// In the order in which they run.
const PARTS: &[Part] = &[
    Part { name: "create", run: life::create },
    Part { name: "build", run: life::beside_a_build },
    Part { name: "status", run: life::status },
    Part { name: "changes", run: life::changes },
    Part { name: "undo", run: life::undo },
    Part { name: "list", run: life::list },
    Part { name: "quota", run: quota::of_workspaces },
    Part { name: "removal", run: removal::of_clones },
    Part { name: "space", run: removal::space },
];

/// Runs the chosen parts and prints the table.
pub(crate) fn run(options: &Options, undo: &Undo) -> Result<()> {
    system::require_root()?;
    std::fs::create_dir_all(&options.dir)
        .with_context(|| format!("{} cannot be made", options.dir.display()))?;
    let parts = choose(&options.steps)?;
    let archive = tree::prepare(options)?;
    let mut contenders = Vec::new();
    for name in &options.contenders {
        let mut contender = Contender::new(name, &options.setup(), undo)?;
        if contender.has_subvolumes() {
            // Or else only root could remove a snapshot at once.
            contender.add_option("user_subvol_rm_allowed");
        }
        contenders.push(contender);
    }
    let mut figures = Figures::new(options.entries);
    for contender in &mut contenders {
        for &user in &options.users {
            let name = contender.name.clone();
            one(contender, user, &parts, &archive, options, &mut figures).with_context(|| name)?;
            figures.write_json(&options.json())?;
        }
    }
    println!("{}", figures.text());
    println!("all figures: {}", options.json().display());
    Ok(())
}

/// Everything of one file system and user.
fn one(
    contender: &mut Contender,
    user: User,
    parts: &[&Part],
    archive: &Path,
    options: &Options,
    figures: &mut Figures,
) -> Result<()> {
    contender.make()?;
    contender.mount()?;
    let (way, column) = (Way::of(contender), Column { contender: contender.name.clone(), user, live: 1 });
    let scale = options.scale.max(1);
    let mut bench = Bench { contender, way, column, scale, figures, files: Vec::new() };
    println!("{}: unpacking", bench.column.title());
    bench.unpack(archive)?;
    let mut live = bench.create_many("live", 1)?;
    all(&mut bench, parts)?;
    if options.live > 1 && way.is_at_once() {
        grow(&mut bench, options.live, &mut live)?;
        all(&mut bench, parts)?;
    }
    let milliseconds = bench.discard_many(&live)?;
    bench.tell("shrink_each_ms", milliseconds / live.len() as f64);
    bench.show("shrink_each_ms");
    bench.contender.unmount()
}

/// Makes workspaces until so many are live.
fn grow(bench: &mut Bench<'_>, wanted: usize, live: &mut Vec<String>) -> Result<()> {
    bench.column.live = wanted;
    let begun = Instant::now();
    let first = live.len();
    while live.len() < wanted {
        let count = (wanted - live.len()).min(MADE_AT_ONCE);
        live.extend(bench.create_many(&format!("live-{}", live.len()), count)?);
    }
    let made = (live.len() - first).max(1);
    bench.tell("grow_each_ms", begun.elapsed().as_secs_f64() * 1e3 / made as f64);
    bench.show("grow_each_ms");
    Ok(())
}

/// The parts with the live workspaces that there are, and the memory that the server has then.
fn all(bench: &mut Bench<'_>, parts: &[&Part]) -> Result<()> {
    bench.settle()?;
    bench.remount()?;
    for part in parts {
        let title = bench.column.title();
        (part.run)(bench).with_context(|| format!("{} of {title}", part.name))?;
    }
    if let Some(resident) = bench.contender.resident()? {
        bench.tell("memory_mib", resident as f64 / 1048576.0);
        let peak = bench.contender.peak_resident()?;
        bench.tell("memory_peak_mib", peak as f64 / 1048576.0);
    }
    Ok(())
}

/// What there is to choose from.
pub(crate) fn names() -> Vec<&'static str> {
    PARTS.iter().map(|part| part.name).collect()
}

fn choose(asked: &[String]) -> Result<Vec<&'static Part>> {
    let chosen = chosen(names(), asked)?;
    Ok(PARTS.iter().filter(|part| chosen.contains(&part.name)).collect())
}
