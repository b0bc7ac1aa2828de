//! A benchmark of key-value engines: the engine of Espalier beside RocksDB, redb, fjall and LMDB,
//! with the same work, the same memory budget and the same durability.
//!
//! Each contender does each workload in a process of its own, whose traffic (`/proc/self/io`),
//! processor time and memory are its alone. What one workload leaves behind the next one finds.
//! The contenders take turns, workload by workload.

mod contenders;
mod measure;
mod table;
mod workload;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use measure::Figures;
use std::path::{Path, PathBuf};
use std::process::Command;
use workload::{WORKLOADS, Workload};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What is measured, and with how much.
#[derive(Debug, Clone, Parser)]
#[command(about = "The engine of Espalier beside RocksDB, redb, fjall and LMDB")]
struct Options {
    /// Where the stores are made; what the benchmark made there is removed.
    #[arg(long, default_value = "bench-out/engine")]
    folder: PathBuf,
    /// Contenders, separated by commas.
    #[arg(long, value_delimiter = ',', default_value = "espalier,rocksdb,fjall,redb,lmdb")]
    contenders: Vec<String>,
    /// Workloads, separated by commas; all without it. What they read is loaded in any case.
    #[arg(long, value_delimiter = ',')]
    workloads: Vec<String>,
    /// Bytes of each value; several sizes make several tables.
    #[arg(long, value_delimiter = ',', default_value = "100,4096")]
    value_bytes: Vec<usize>,
    /// MiB of keys and values that are loaded: so much for each value size.
    #[arg(long, default_value_t = 2048)]
    load: u64,
    /// The memory budget of each contender, in MiB.
    #[arg(long, default_value_t = 256)]
    budget: u64,
    /// Also writes all figures to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Does one workload with one contender in this process, and prints the figures as JSON.
    #[arg(long, hide = true)]
    here: Option<String>,
}

impl Options {
    /// Values that are loaded.
    fn values(&self, value_bytes: usize) -> u64 {
        ((self.load << 20) / (workload::KEY_BYTES + value_bytes) as u64).max(10_000)
    }

    /// The folder of a contender's store.
    fn store(&self, contender: &str, workload: &Workload, value_bytes: usize) -> PathBuf {
        self.folder.join(format!("{contender}-{value_bytes}-{}", workload.set))
    }

    fn wants(&self, workload: &Workload) -> bool {
        self.workloads.is_empty() || workload.is_load || self.workloads.iter().any(|w| w == workload.name)
    }
}

fn main() -> Result<()> {
    let options = Options::parse();
    if let Some(name) = &options.here {
        return here(&options, name);
    }
    for name in &options.workloads {
        ensure!(WORKLOADS.iter().any(|w| w.name == name), "there is no workload `{name}`");
    }
    let mut all = Vec::new();
    for &value_bytes in &options.value_bytes {
        for workload in WORKLOADS.iter().filter(|workload| options.wants(workload)) {
            for contender in &options.contenders {
                all.extend(apart(&options, contender, workload, value_bytes)?);
            }
            let rows = all.iter().filter(|f: &&Figures| f.value_bytes == value_bytes);
            table::print_workload(workload.name, rows.filter(|f| f.workload == workload.name));
        }
        remove_stores(&options, value_bytes)?;
    }
    table::print_ratios(&all);
    if let Some(path) = &options.json {
        std::fs::write(path, serde_json::to_string_pretty(&all)?)
            .with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Does the workload in a process of its own; nothing if the contender has no such operation.
fn apart(
    options: &Options,
    contender: &str,
    workload: &Workload,
    value_bytes: usize,
) -> Result<Option<Figures>> {
    let store = options.store(contender, workload, value_bytes);
    if workload.is_load {
        remove(&store)?;
        std::fs::create_dir_all(&store).with_context(|| format!("creating {}", store.display()))?;
    }
    let output = Command::new(std::env::current_exe()?)
        .args(["--here", workload.name, "--contenders", contender])
        .args(["--value-bytes", &value_bytes.to_string(), "--load", &options.load.to_string()])
        .args(["--budget", &options.budget.to_string()])
        .arg("--folder")
        .arg(&options.folder)
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("{contender} did not finish {} ({})", workload.name, output.status);
    }
    serde_json::from_slice(&output.stdout).context("what the process printed is no JSON")
}

/// Does one workload with one contender, and prints the figures.
fn here(options: &Options, name: &str) -> Result<()> {
    let workload = WORKLOADS.iter().find(|w| w.name == name).context("no such workload")?;
    let [contender] = &options.contenders[..] else { bail!("one contender, please") };
    let [value_bytes] = options.value_bytes[..] else { bail!("one value size, please") };
    let place = contenders::Place {
        folder: options.store(contender, workload, value_bytes),
        is_new: workload.is_load,
        budget: options.budget << 20,
        syncs_each: workload.syncs_each,
        // All that is written and what it replaces, three times over.
        capacity: 6 * (options.load << 20) + (4 << 30),
    };
    let load = workload::Load { values: options.values(value_bytes), value_bytes, budget: place.budget };
    let figures = workload::run(workload, contender, &place, load)?;
    println!("{}", serde_json::to_string(&figures)?);
    Ok(())
}

fn remove_stores(options: &Options, value_bytes: usize) -> Result<()> {
    for workload in WORKLOADS {
        for contender in &options.contenders {
            remove(&options.store(contender, workload, value_bytes))?;
        }
    }
    Ok(())
}

fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        _ => Ok(()),
    }
}
