//! Full paths and many files at once, past the kernel, beside system calls on every file system.
//!
//! Protocol: one tree is many files of 4 KiB, the other one the source tree, both with their
//! content in memory. For each contender, each way to work on it (system calls; for Espalier also a
//! client of the mount), and each number of clients, a fresh directory is filled, listed with
//! attributes, read in the order of its names and shuffled in batches, and removed. Clients are
//! threads that share the work out; each has a session of its own. What changes something ends with
//! syncfs. *Cold* means a fresh mount and dropped caches, *warm* the second time.
//!
//! Archives go the way of `tar` on the kernel's file systems, and of `espalier import` and `export`
//! on ours. Paths by the number of their components are resolved by the library, on the device of
//! an unmounted file system.

mod archives;
mod bench;
mod client;
mod cycle;
mod depth;
mod figures;
mod goals;
mod python;
mod system_calls;
mod work;

use crate::contender::{Contender, Setup};
use crate::options::{Options, chosen};
use crate::system::{self, Undo};
use crate::tree;
use anyhow::{Context, Result};
use bench::Bench;
use figures::Figures;
use std::path::{Path, PathBuf};
use work::Work;

/// A part of the suite.
struct Part {
    name: &'static str,
    needs_tree: bool,
    run: fn(&mut Bench<'_>) -> Result<()>,
}

/// In the order in which they run.
const PARTS: &[Part] = &[
    Part { name: "depth", needs_tree: false, run: depth::all },
    Part { name: "files", needs_tree: false, run: cycle::of_files },
    Part { name: "tree", needs_tree: true, run: cycle::of_tree },
    Part { name: "archives", needs_tree: true, run: archives::all },
];

/// Runs the chosen parts and prints the table.
pub(crate) fn run(options: &Options, undo: &Undo) -> Result<()> {
    system::require_root()?;
    std::fs::create_dir_all(&options.dir)
        .with_context(|| format!("{} cannot be made", options.dir.display()))?;
    let parts = choose(&options.steps)?;
    let files = Work::files(options.files / options.scale.max(1));
    let (archive, works) = match parts.iter().any(|part| part.needs_tree) {
        true => {
            let archive = tree::prepare(options)?;
            let tree = Work::tree(&unpacked(options, &archive)?)?;
            (archive, [files, tree])
        }
        false => (PathBuf::new(), [files, Work::files(0)]),
    };
    let mut contenders = Vec::new();
    // One tree at a time, or a path of the other part, and some room.
    let entries = works.iter().map(|work| work.entries(1) as u64).max().unwrap_or(0);
    for name in &options.contenders {
        contenders.push(Contender::new(name, &Setup { entries, ..options.setup() }, undo)?);
    }
    let mut figures = Figures::new(&options.contenders);
    for round in 0..options.rounds {
        for part in &parts {
            for turn in 0..contenders.len() {
                let contender = &mut contenders[(turn + round) % options.contenders.len()];
                let name = contender.name.clone();
                println!("round {}  {name}: {}", round + 1, part.name);
                contender.make()?;
                let (figures, archive) = (&mut figures, &archive);
                let mut bench = Bench { contender, options, works: &works, archive, figures };
                (part.run)(&mut bench).with_context(|| format!("{} on {name}", part.name))?;
                figures.write_json(&options.json())?;
            }
        }
    }
    println!("{}", figures.text());
    println!("all figures: {}", options.json().display());
    Ok(())
}

/// The source tree, unpacked beside the results once.
fn unpacked(options: &Options, archive: &Path) -> Result<PathBuf> {
    let name = archive.file_stem().context("an archive without a name")?;
    let (dir, partial) = (options.dir.join(name), options.dir.join("unpacking"));
    if !dir.exists() {
        std::fs::create_dir_all(&partial)?;
        system::run("tar", &["-xf".as_ref(), archive.as_os_str(), "-C".as_ref(), partial.as_os_str()])?;
        std::fs::rename(&partial, &dir)?;
    }
    Ok(dir)
}

/// What there is to choose from.
pub(crate) fn names() -> Vec<&'static str> {
    PARTS.iter().map(|part| part.name).collect()
}

fn choose(asked: &[String]) -> Result<Vec<&'static Part>> {
    let chosen = chosen(names(), asked)?;
    Ok(PARTS.iter().filter(|part| chosen.contains(&part.name)).collect())
}
