//! Clones, renames, removals and comparisons of whole subtrees.
//!
//! Protocol: every scenario begins on a fresh file system of each contender that can take part;
//! what it finds out is a list of figures with names. A figure told several times is shown as its
//! median. The kernel's file systems do what people do with them today: `cp -a --reflink=always`,
//! `rm -rf`, `chown -R`.

mod changes;
mod clones;
mod figures;
mod renames;
mod rounds;
mod snapshots;

use crate::contender::Contender;
use crate::options::Options;
use crate::steps::{Setting, make_durable};
use crate::system::{self, Undo};
use crate::tree;
use anyhow::{Context, Result, bail, ensure};
use figures::Figures;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A piece of work and those who can do it.
struct Scenario {
    name: &'static str,
    takes_part: fn(&Contender) -> bool,
    run: fn(&mut Bench<'_>) -> Result<()>,
}

/// In the order in which they run.
const SCENARIOS: &[Scenario] = &[
    Scenario { name: "clones", takes_part: clones_at_all, run: clones::of_a_tree },
    Scenario { name: "links", takes_part: Contender::is_ours, run: clones::with_links },
    Scenario { name: "larger", takes_part: Contender::is_ours, run: clones::of_ten_trees },
    Scenario { name: "changes", takes_part: Contender::is_ours, run: changes::of_clones },
    Scenario { name: "rounds", takes_part: clones_at_all, run: rounds::all },
    Scenario { name: "snapshots", takes_part: Contender::is_ours, run: snapshots::many },
    Scenario { name: "renames", takes_part: |_| true, run: renames::interleaved },
    Scenario { name: "million", takes_part: Contender::is_ours, run: changes::removal_of_many },
    Scenario { name: "two_trees", takes_part: |_| true, run: changes::removal_of_two_trees },
];

fn clones_at_all(contender: &Contender) -> bool {
    contender.is_ours() || contender.has_reflinks()
}

/// What a scenario works with.
struct Bench<'a> {
    contender: &'a mut Contender,
    setting: &'a Setting,
    scale: usize,
    figures: &'a mut Figures,
}

/// Runs the chosen scenarios and prints the table.
pub(crate) fn run(options: &Options, undo: &Undo) -> Result<()> {
    system::require_root()?;
    std::fs::create_dir_all(&options.dir)
        .with_context(|| format!("{} cannot be made", options.dir.display()))?;
    let chosen = choose(&options.steps)?;
    let setting = Setting {
        tarball: tree::prepare(options)?,
        file_bytes: options.file_size,
        overwrites: options.overwrites,
        appends: options.appends,
        touch: options.touch,
    };
    let mut contenders = Vec::new();
    for name in &options.contenders {
        contenders.push(Contender::new(name, options, undo)?);
    }
    let mut figures = Figures::new(&options.contenders);
    for round in 0..options.rounds {
        for scenario in &chosen {
            for turn in 0..contenders.len() {
                let contender = &mut contenders[(turn + round) % options.contenders.len()];
                if !(scenario.takes_part)(contender) {
                    continue;
                }
                println!("round {}  {:<12} {}", round + 1, contender.name, scenario.name);
                let name = contender.name.clone();
                contender.make()?;
                contender.mount()?;
                system::drop_caches()?;
                setting.warm_up()?;
                let scale = options.scale.max(1);
                let mut bench = Bench { contender, setting: &setting, scale, figures: &mut figures };
                (scenario.run)(&mut bench).with_context(|| format!("{} on {name}", scenario.name))?;
                bench.contender.unmount()?;
            }
            figures.write_json(&options.json())?;
        }
    }
    println!("{}", figures.text());
    println!("all figures: {}", options.json().display());
    Ok(())
}

fn choose(names: &[String]) -> Result<Vec<&'static Scenario>> {
    if names.iter().any(|name| name == "all") {
        return Ok(SCENARIOS.iter().collect());
    }
    if let Some(unknown) = names.iter().find(|name| SCENARIOS.iter().all(|s| s.name != **name)) {
        let known: Vec<_> = SCENARIOS.iter().map(|s| s.name).collect();
        bail!("'{unknown}' is no scenario; there are all, {}", known.join(", "));
    }
    Ok(SCENARIOS.iter().filter(|s| names.iter().any(|name| name == s.name)).collect())
}

impl Bench<'_> {
    /// The root of the file system.
    fn root(&self) -> PathBuf {
        self.contender.dir.clone()
    }

    /// A number of things, divided by the scale.
    fn count(&self, full: usize) -> usize {
        (full / self.scale).max(2)
    }

    /// Tells a figure of this contender.
    fn tell(&mut self, name: &str, value: f64) {
        println!("         {:<12} {name:<32} {value:>12.3}", self.contender.name);
        self.figures.add(&self.contender.name, name, value);
    }

    /// Does something and tells how many milliseconds it took.
    fn time<T>(&mut self, name: &str, work: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        let started = Instant::now();
        let done = work(self)?;
        let milliseconds = started.elapsed().as_secs_f64() * 1e3;
        self.tell(name, milliseconds);
        Ok(done)
    }

    /// Unpacks the source tree into the new directory `name` of the root; the result is its path.
    fn unpack(&self, name: &str) -> Result<PathBuf> {
        let tree = self.root().join(name);
        std::fs::create_dir_all(&tree)?;
        system::output(Command::new("tar").arg("-xf").arg(&self.setting.tarball).arg("-C").arg(&tree))?;
        Ok(tree)
    }

    /// Makes everything durable.
    fn settle(&self) -> Result<()> {
        make_durable(&self.root())
    }

    /// Clones a directory: our command, or the peers' `cp -a --reflink=always`.
    fn clone_tree(&self, from: &Path, to: &Path) -> Result<()> {
        let ours = self.contender.espalier(&[OsStr::new("clone"), from.as_os_str(), to.as_os_str()])?;
        if ours.is_none() {
            system::output(Command::new("cp").args(["-a", "--reflink=always"]).arg(from).arg(to))?;
        }
        Ok(())
    }

    /// Removes a directory and all below: our command, or `rm -rf`.
    fn remove_tree(&self, dir: &Path) -> Result<()> {
        if self.contender.espalier(&[OsStr::new("rm"), dir.as_os_str()])?.is_none() {
            system::output(Command::new("rm").arg("-rf").arg(dir))?;
        }
        Ok(())
    }

    /// Waits until `df` tells no more than `bytes` in use; the result is how many seconds it took.
    fn wait_for_space(&self, bytes: u64) -> Result<f64> {
        let started = Instant::now();
        while self.contender.used_bytes()? > bytes {
            ensure!(
                started.elapsed() < Duration::from_secs(60),
                "{} bytes are in use after a minute, {bytes} were expected",
                self.contender.used_bytes()?
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(started.elapsed().as_secs_f64())
    }
}

/// Regular files below `dir`, in a stable order, at most `limit`.
fn files_below(dir: &Path, limit: usize) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![dir.to_path_buf()];
    while let Some(dir) = left.pop() {
        let mut entries: Vec<_> = std::fs::read_dir(&dir)?.collect::<std::io::Result<_>>()?;
        entries.sort_by_key(std::fs::DirEntry::file_name);
        for entry in entries {
            let kind = entry.file_type()?;
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path());
            }
            if found.len() == limit {
                return Ok(found);
            }
        }
    }
    Ok(found)
}
