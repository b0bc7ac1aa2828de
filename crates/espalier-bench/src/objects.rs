//! File systems in an object store, on a server of loopback whose requests are made to wait.
//!
//! Protocol: versitygw serves a directory, a [proxy] before it lets every request wait for
//! so many milliseconds and counts requests and bytes, for all contenders alike. Beside each delay
//! plain puts and gets of the crate `object_store` say what the link gives. A part begins with a
//! fresh file system in an empty bucket; what is read is read on a fresh mount with dropped caches.
//! A contender that fails in a part is left out there, and the error is told.

mod bench;
mod contender;
mod day;
mod figures;
mod http;
mod overwrites;
mod parts;
mod plain;
mod processors;
mod proxy;
mod readers;
mod server;

use crate::options::{Options, chosen};
use crate::steps::Setting;
use crate::system::{self, Undo};
use anyhow::{Context, Result};
use bench::{Bench, PLAIN};
use contender::Contender;
use figures::Figures;
use processors::ProcessorTime;
use server::Server;
use std::time::Duration;

/// A part of the suite.
struct Part {
    name: &'static str,
    run: fn(&mut Bench<'_, '_>) -> Result<()>,
    /// Only Espalier can do it.
    is_ours: bool,
}

/// In the order in which they run.
const PARTS: &[Part] = &[
    Part { name: "sequential", run: parts::sequential, is_ours: false },
    Part { name: "tree", run: parts::tree, is_ours: false },
    Part { name: "fsync", run: parts::fsync, is_ours: false },
    Part { name: "clone", run: parts::clone, is_ours: true },
    Part { name: "mount", run: parts::mount, is_ours: false },
    Part { name: "readers", run: readers::readers, is_ours: true },
    Part { name: "day", run: day::day, is_ours: true },
];

/// The part that needs no server, and is measured once.
const OVERWRITES: &str = "overwrites";

/// Runs the chosen parts and prints the table.
pub(crate) fn run(options: &Options, undo: &Undo) -> Result<()> {
    system::require_root()?;
    std::fs::create_dir_all(&options.dir)
        .with_context(|| format!("{} cannot be made", options.dir.display()))?;
    let chosen = chosen(names(), &options.steps)?;
    let mut figures = Figures::default();
    if chosen.contains(&OVERWRITES) {
        overwrites::overwrites(options, &mut figures)?;
    }
    let parts: Vec<&Part> = PARTS.iter().filter(|part| chosen.contains(&part.name)).collect();
    if !parts.is_empty() {
        let setting = Setting::prepare(options)?;
        for round in 0..options.rounds {
            println!("round {}", round + 1);
            one_round(options, undo, &setting, &parts, &mut figures)?;
        }
    }
    println!("{}", figures.text());
    figures.write_json(&options.json())?;
    println!("all figures: {}", options.json().display());
    Ok(())
}

fn one_round(
    options: &Options,
    undo: &Undo,
    setting: &Setting,
    parts: &[&Part],
    figures: &mut Figures,
) -> Result<()> {
    let server = Server::start(&options.dir, undo)?;
    for &delay_ms in &options.delays {
        server.proxy.set_delay(Duration::from_millis(delay_ms));
        let (put, get) = plain::rates(&server, options.file_size)?;
        for (name, plain) in [("put", put), ("get", get)] {
            figures.tell(PLAIN, delay_ms, &format!("{name}_mib_s"), plain.rate);
            figures.tell(PLAIN, delay_ms, &format!("{name}_cpu_ms_mib"), plain.work);
        }
        for name in &options.contenders {
            let Some(mut contender) = Contender::new(name, options, &server, undo)? else { continue };
            let is_ours = contender.is_ours();
            for part in parts.iter().filter(|part| !part.is_ours || is_ours) {
                let mut bench = Bench {
                    contender: &mut contender,
                    server: &server,
                    setting,
                    options,
                    undo,
                    figures: &mut *figures,
                    delay_ms,
                    worked: ProcessorTime::default(),
                };
                if let Err(error) = (part.run)(&mut bench) {
                    eprintln!("{name} at {delay_ms} ms, {}: {error:#}", part.name);
                    let _ = bench.contender.unmount();
                }
                figures.write_json(&options.json())?;
            }
        }
    }
    Ok(())
}

/// What there is to choose from.
pub(crate) fn names() -> Vec<&'static str> {
    PARTS.iter().map(|part| part.name).chain([OVERWRITES]).collect()
}
