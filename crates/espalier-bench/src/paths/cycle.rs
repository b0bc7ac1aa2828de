//! The life of a tree: made, listed, read in order and shuffled, removed; by each way and number of
//! clients in a fresh directory.

use super::bench::Bench;
use super::figures::{CLIENT, What};
use super::work::{Work, WorkFile, shuffled};
use super::{client, python, system_calls};
use crate::system;
use anyhow::Result;
use std::path::Path;

/// How a tree is worked on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    SystemCalls,
    Client,
}

type Call = fn(&Work, &Path, usize) -> Result<()>;
type Read = fn(&Work, &Path, &[&WorkFile], usize) -> Result<()>;

impl Way {
    fn create(self) -> Call {
        if self == Self::Client { client::create } else { system_calls::create }
    }

    fn list(self) -> Call {
        if self == Self::Client { client::list } else { system_calls::list }
    }

    fn read_all(self) -> Read {
        if self == Self::Client { client::read_all } else { system_calls::read_all }
    }

    fn remove(self) -> Call {
        if self == Self::Client { client::remove } else { system_calls::remove }
    }
}

/// The tree of equal files.
pub(super) fn of_files(bench: &mut Bench<'_>) -> Result<()> {
    all(bench, 0)
}

/// The source tree.
pub(super) fn of_tree(bench: &mut Bench<'_>) -> Result<()> {
    all(bench, 1)
}

fn all(bench: &mut Bench<'_>, which: usize) -> Result<()> {
    let works = bench.works;
    let work = &works[which];
    let ours = bench.contender.is_ours();
    for clients in bench.options.clients.clone() {
        one(bench, work, Way::SystemCalls, clients)?;
        if ours {
            one(bench, work, Way::Client, clients)?;
        }
    }
    bench.contender.unmount()
}

fn one(bench: &mut Bench<'_>, work: &Work, way: Way, clients: usize) -> Result<()> {
    let column = match way {
        Way::SystemCalls => bench.contender.name.clone(),
        Way::Client => CLIENT.to_owned(),
    };
    let what = |step: &str| What::seconds(work.name, step, clients);
    let mib = |step: &str| What { unit: "MiB", ..what(step) };
    let in_order: Vec<&WorkFile> = work.regular().collect();
    let in_chance: Vec<&WorkFile> = shuffled(in_order.len()).into_iter().map(|at| in_order[at]).collect();
    let name = "work";
    let mut own_memory = 0;
    bench.mount_cold()?;
    bench.time_change(&column, &what("create"), |root| {
        std::fs::create_dir(root.join(name))?;
        (way.create())(work, &root.join(name), clients)
    })?;
    for (step, order) in [("list", None), ("read", Some(&in_order)), ("read shuffled", Some(&in_chance))] {
        bench.mount_cold()?;
        let own = system::begin_peak()?;
        for temperature in ["cold", "warm"] {
            bench.time(&column, &what(&format!("{step} {temperature}")), |root| match order {
                None => (way.list())(work, &root.join(name), clients),
                Some(order) => (way.read_all())(work, &root.join(name), order, clients),
            })?;
        }
        own_memory = own_memory.max(system::peak_since(own)?);
    }
    if way == Way::Client {
        bench.tell(&column, &mib("memory of the clients"), own_memory as f64 / 1048576.0);
    }
    if bench.contender.is_ours() {
        let peak = bench.contender.peak_resident()? as f64 / 1048576.0;
        bench.tell(&column, &mib("memory of the server"), peak);
    }
    if way == Way::Client && clients == 1 {
        python::all(bench, work, name)?;
    }
    bench.mount_cold()?;
    bench.time_change(&column, &what("remove"), |root| (way.remove())(work, &root.join(name), clients))
}
