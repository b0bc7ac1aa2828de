//! File systems in an object store, on a server of loopback whose requests are made to wait.
//!
//! Protocol: versitygw serves a directory, a [proxy](proxy) before it lets every request wait for
//! so many milliseconds and counts requests and bytes, for all contenders alike. Beside each delay
//! plain puts and gets of the crate `object_store` say what the link gives. A part begins with a
//! fresh file system in an empty bucket; what is read is read on a fresh mount with dropped caches.
//! A contender that fails in a part is left out there, and the error is told.

mod contender;
mod day;
mod figures;
mod http;
mod overwrites;
mod parts;
mod plain;
mod proxy;
mod readers;
mod server;

use crate::options::Options;
use crate::steps::Setting;
use crate::system::{self, Undo};
use anyhow::{Context, Result, bail};
use contender::Contender;
use figures::Figures;
use proxy::Traffic;
use server::Server;
use std::time::{Duration, Instant};

/// The contender whose figures are those of plain puts and gets.
const PLAIN: &str = "plain";

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

/// What a part works with.
struct Bench<'a, 's> {
    contender: &'a mut Contender<'s>,
    server: &'s Server,
    setting: &'a Setting,
    options: &'a Options,
    undo: &'a Undo,
    figures: &'a mut Figures,
    delay_ms: u64,
}

impl Bench<'_, '_> {
    fn tell(&mut self, name: &str, value: f64) {
        self.figures.tell(&self.contender.name, self.delay_ms, name, value);
    }

    /// A file system without anything in it, mounted.
    fn fresh(&mut self) -> Result<()> {
        self.contender.make(self.undo)?;
        self.contender.mount().map(drop)
    }

    /// Unmounts, and mounts with cold caches.
    fn remount(&mut self) -> Result<()> {
        self.contender.unmount()?;
        self.contender.mount().map(drop)
    }

    /// Does something, and tells requests and bytes under its name; returns the seconds that it
    /// took, and the requests.
    fn measure(&mut self, name: &str, work: impl FnOnce(&Self) -> Result<()>) -> Result<(f64, Traffic)> {
        let before = self.server.proxy.traffic();
        let started = Instant::now();
        work(self)?;
        let seconds = started.elapsed().as_secs_f64();
        let traffic = self.server.proxy.traffic().since(&before);
        self.tell(&format!("{name}_s"), seconds);
        self.tell(&format!("{name}_requests"), traffic.requests() as f64);
        self.tell(&format!("{name}_mib"), mib(traffic.bytes_put + traffic.bytes_got));
        Ok((seconds, traffic))
    }

    /// Tells a rate by that of plain gets or puts, if they were measured.
    fn tell_rate(&mut self, name: &str, bytes: u64, seconds: f64, plain: &str) {
        let rate = mib(bytes) / seconds;
        self.tell(&format!("{name}_mib_s"), rate);
        if let Some(plain) = self.figures.median(PLAIN, self.delay_ms, plain) {
            self.tell(&format!("{name}_by_plain"), rate / plain);
        }
    }
}

/// Runs the chosen parts and prints the table.
pub(crate) fn run(options: &Options, undo: &Undo) -> Result<()> {
    system::require_root()?;
    std::fs::create_dir_all(&options.dir)
        .with_context(|| format!("{} cannot be made", options.dir.display()))?;
    let chosen = choose(&options.steps)?;
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
        figures.tell(PLAIN, delay_ms, "put_mib_s", put);
        figures.tell(PLAIN, delay_ms, "get_mib_s", get);
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

fn mib(bytes: u64) -> f64 {
    bytes as f64 / 1048576.0
}

fn choose(names: &[String]) -> Result<Vec<&'static str>> {
    let known: Vec<&str> = PARTS.iter().map(|part| part.name).chain([OVERWRITES]).collect();
    if names.iter().any(|name| name == "all") {
        return Ok(known);
    }
    if let Some(unknown) = names.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("'{unknown}' is no part; there are all, {}", known.join(", "));
    }
    Ok(known.into_iter().filter(|part| names.iter().any(|name| name == part)).collect())
}
