//! How rates change with number, size, age, fullness and threads: the tables of the papers as
//! curves, beside the kernel's file systems.
//!
//! Protocol: every scenario begins on a fresh file system of each contender that takes part, and
//! adds points to its curves. Rounds repeat it; tables and pictures show medians.

mod ageing;
mod bench;
mod fullness;
mod report;
mod servers;
mod sizes;
mod small;

use crate::contender::Contender;
use crate::options::{Options, chosen};
use crate::steps::Setting;
use crate::system::{self, Undo};
use anyhow::{Context, Result, ensure};
use bench::Bench;
use report::{Curves, Shape};

/// A piece of work, the contenders that can do it, and the curves that it adds to.
struct Scenario {
    name: &'static str,
    takes_part: fn(&Contender) -> bool,
    run: fn(&mut Bench<'_>) -> Result<()>,
    curves: &'static [Shape],
}

const fn shape(name: &'static str, title: &'static str, x: &'static str, y: &'static str) -> Shape {
    Shape { name, title, x, y }
}

/// A scenario with one curve by the number of threads.
const fn by_threads(
    name: &'static str,
    run: fn(&mut Bench<'_>) -> Result<()>,
    curves: &'static [Shape],
) -> Scenario {
    Scenario { name, takes_part: |_| true, run, curves }
}

/// In the order in which they run.
const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "creation",
        takes_part: |_| true,
        run: small::creation,
        curves: &[shape("creation", "TokuBench: new files of 200 bytes", "files", "files per second")],
    },
    Scenario {
        name: "memory",
        takes_part: Contender::is_ours,
        run: small::memory,
        curves: &[
            shape("memory_64M", "Resident memory, budget of 64 MiB", "files", "MiB"),
            shape("creation_64M", "New files, two programs, budget of 64 MiB", "files", "files per second"),
            shape("memory_256M", "Resident memory, budget of 256 MiB", "files", "MiB"),
            shape("creation_256M", "New files, two programs, budget of 256 MiB", "files", "files per second"),
        ],
    },
    Scenario {
        name: "ageing",
        takes_part: |_| true,
        run: ageing::git,
        curves: &[
            shape("ageing_grep", "Cold grep after pulls by git", "pulls", "seconds per GiB"),
            shape("ageing_grep_reads", "Reads of the device meanwhile", "pulls", "reads per GiB"),
            shape("ageing_fresh_grep", "The same on a fresh file system", "pulls", "seconds per GiB"),
            shape("ageing_fresh_reads", "Reads of the device meanwhile, fresh", "pulls", "reads per GiB"),
            shape("ageing_pulls_s", "All pulls", "pulls", "seconds"),
        ],
    },
    by_threads("mail", servers::mail, &[shape("mail", "Maildirs", "threads", "operations per second")]),
    by_threads(
        "fileserver",
        servers::fileserver,
        &[shape("fileserver", "filebench fileserver", "threads", "turns per second")],
    ),
    by_threads(
        "webserver",
        servers::webserver,
        &[shape("webserver", "filebench webserver", "threads", "turns per second")],
    ),
    by_threads(
        "varmail",
        servers::varmail,
        &[shape("varmail", "filebench varmail", "threads", "turns per second")],
    ),
    by_threads(
        "fsyncs",
        fullness::fsyncs,
        &[shape("fsyncs", "Appends of 4 KiB, each with an fsync", "threads", "appends per second")],
    ),
    Scenario {
        name: "full",
        takes_part: |_| true,
        run: fullness::churn,
        curves: &[shape(
            "nearly_full",
            "Changes when the device is nearly full",
            "percent",
            "operations per second",
        )],
    },
    Scenario {
        name: "files",
        takes_part: |_| true,
        run: sizes::files,
        curves: &[
            shape("files_created", "New files, 256 MiB for Espalier", "files", "files per second"),
            shape("files_stat_us", "A look at one of the files, cold", "files", "us"),
            shape("files_listed", "A list of all, cold", "files", "files per second"),
        ],
    },
    Scenario {
        name: "bytes",
        takes_part: |_| true,
        run: sizes::bytes,
        curves: &[
            shape("file_read_us", "4 KiB at random from a file, cold, 256 MiB for Espalier", "GiB", "us"),
            shape("file_overwrite_us", "4 KiB overwritten at random, and an fsync", "GiB", "us"),
        ],
    },
];

/// Runs the chosen scenarios, prints the tables, and writes JSON and a page with pictures.
///
/// # Errors
/// Something cannot be done, or something that must hold does not (the memory of the server).
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
    let mut curves = Curves::new(&options.contenders);
    let page = options.json().with_extension("html");
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
                system::touch_memory(options.touch)?;
                let mut bench = Bench { contender, options, setting: &setting, curves: &mut curves };
                (scenario.run)(&mut bench).with_context(|| format!("{} on {name}", scenario.name))?;
                bench.contender.unmount()?;
            }
            curves.write_json(&options.json())?;
        }
    }
    let shapes: Vec<_> = chosen.iter().flat_map(|scenario| scenario.curves).copied().collect();
    curves.write_html(&shapes, &page)?;
    println!("{}", curves.text(&shapes));
    println!("all points: {}; pictures: {}", options.json().display(), page.display());
    ensure!(curves.failures().is_empty(), "{}", curves.failures().join("; "));
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

#[cfg(test)]
mod tests;
