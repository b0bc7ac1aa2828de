//! Clones, renames, removals and comparisons of whole subtrees.
//!
//! Protocol: every scenario begins on a fresh file system of each contender that can take part;
//! what it finds out is a list of figures with names. A figure told several times is shown as its
//! median. The kernel's file systems do what people do with them today: `cp -a --reflink=always`,
//! `rm -rf`, `chown -R`.

mod bench;
mod changes;
mod clones;
mod figures;
mod renames;
mod rounds;
mod snapshots;

use crate::contender::Contender;
use crate::options::{Options, chosen};
use crate::steps::Setting;
use crate::system::{self, Undo};
use anyhow::{Context, Result};
use bench::Bench;
use figures::Figures;

/// A piece of work and the contenders that can do it.
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

/// Runs the chosen scenarios and prints the table.
pub(crate) fn run(options: &Options, undo: &Undo) -> Result<()> {
    system::require_root()?;
    std::fs::create_dir_all(&options.dir)
        .with_context(|| format!("{} cannot be made", options.dir.display()))?;
    let chosen = choose(&options.steps)?;
    let setting = Setting::prepare(options)?;
    let mut contenders = Vec::new();
    for name in &options.contenders {
        contenders.push(Contender::new(name, &options.setup(), undo)?);
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

/// What there is to choose from.
pub(crate) fn names() -> Vec<&'static str> {
    SCENARIOS.iter().map(|s| s.name).collect()
}

fn choose(asked: &[String]) -> Result<Vec<&'static Scenario>> {
    let chosen = chosen(names(), asked)?;
    Ok(SCENARIOS.iter().filter(|s| chosen.contains(&s.name)).collect())
}
