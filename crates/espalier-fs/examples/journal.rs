//! What the log costs and what it gives, measured on a file system without a mount.
//!
//! `cargo run --release -p espalier-fs --example journal -- IMAGE PART...` makes and removes IMAGE
//! (up to 12 GiB, direct I/O). Parts:
//! - `sequential`: a file of 4 GiB in writes of 1 MiB, then an fsync; with the log and without it,
//!   by turns;
//! - `recovery`: the time until a store opens, against the length of its log;
//! - `pauses`: the longest call of each kind while a checkpoint writes 1 GiB of dirty nodes;
//! - `creates`: messages and bytes of the log for a file that is made, written and given mode,
//!   owner and times.

#![allow(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use espalier_engine::{OpenOptions, Statistics, Store, Tuning};
use espalier_fs::{Caller, FileSystem, FormatOptions, NewNode, NodeId, SetAttr, SetTime, merge_functions};
use espalier_storage::{Device, Existing, FileDevice, Random, SystemEnvironment};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The server's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: journal IMAGE sequential|recovery|pauses|creates ...";
    let image = PathBuf::from(arguments.next().ok_or(usage)?);
    for part in arguments {
        let outcome = match part.as_str() {
            "sequential" => sequential(&image),
            "recovery" => recovery(&image),
            "pauses" => pauses(&image),
            "creates" => creates(&image),
            _ => return Err(usage.into()),
        };
        let _ = std::fs::remove_file(&image);
        outcome?;
    }
    Ok(())
}

/// An open file system on an image of its own.
struct Place {
    device: Arc<dyn Device>,
    env: Arc<SystemEnvironment>,
    options: OpenOptions,
    store: Arc<Store>,
    fs: Arc<FileSystem>,
}

impl Place {
    /// Formats a new image. It is written from end to end before, so that nothing below has to
    /// allocate.
    fn new(image: &Path, size: u64, log: Option<u64>, memory: u64, unlogged: bool) -> Outcome<Self> {
        let _ = std::fs::remove_file(image);
        let device: Arc<dyn Device> = Arc::new(FileDevice::create_with(image, size, Existing::Refuse)?);
        let tuning = Tuning { unlogged, ..Tuning::default() };
        let options = OpenOptions { memory, merge: merge_functions(), tuning, ..OpenOptions::default() };
        let env = Arc::new(SystemEnvironment::new(2));
        let format = espalier_engine::FormatOptions { log_bytes: log, ..Default::default() };
        Store::format(device.clone(), env.clone(), &format)?;
        let store = Store::open(device.clone(), env.clone(), options.clone())?;
        FileSystem::format(&store, &FormatOptions::default())?;
        let fs = FileSystem::open(store.clone(), env.clone(), espalier_fs::OpenOptions::default())?;
        Ok(Self { device, env, options, store, fs })
    }

    fn file(&self, parent: NodeId, name: &str) -> Outcome<NodeId> {
        let caller = Caller::default();
        Ok(self.fs.mknod(parent, name.as_bytes(), NewNode::Regular, 0o644, &caller)?.node)
    }

    /// Ends as a crash does, and opens again; how long that took.
    fn crash(self) -> Outcome<(Duration, Statistics)> {
        let Self { device, env, options, store, fs } = self;
        drop(fs);
        drop(store);
        let start = Instant::now();
        let store = Store::open(device, env, options)?;
        Ok((start.elapsed(), store.statistics()))
    }
}

/// 4 GiB and a sync, with the log and without it.
fn sequential(image: &Path) -> Outcome {
    let pairs = 4;
    println!(
        "{:<10} {:>14} {:>14} {:>18} {:>18}",
        "", "s to the fsync", "s to the close", "written per byte", "after the close"
    );
    let (size, mut totals) = (4 * GIB, [0.0; 2]);
    for turn in 0..2 * pairs {
        // The order turns: a slow minute hits both.
        let unlogged = (turn % 2 == 1) != (turn / 2 % 2 == 1);
        let place = Place::new(image, 10 * GIB, None, GIB, unlogged)?;
        // The space is allocated below before anything is measured.
        let file = place.file(NodeId::ROOT, "file")?;
        let mut data = vec![0u8; MIB as usize];
        Random::new(7).fill(&mut data);
        let before = place.store.statistics().device.bytes_written;
        let start = Instant::now();
        for at in (0..size).step_by(data.len()) {
            data[..8].copy_from_slice(&at.to_le_bytes());
            place.fs.write(file, at, &data, false)?;
        }
        place.fs.fsync(file, false)?;
        let synced = start.elapsed().as_secs_f64();
        let share = |written: u64| (written - before) as f64 / size as f64;
        let written = share(place.store.statistics().device.bytes_written);
        place.store.close()?;
        let closed = start.elapsed().as_secs_f64();
        totals[usize::from(unlogged)] += synced;
        let name = if unlogged { "without" } else { "with log" };
        let after = share(place.store.statistics().device.bytes_written);
        println!("{name:<10} {synced:>14.2} {closed:>14.2} {written:>18.4} {after:>18.4}");
    }
    println!("with / without: {:.3}", totals[0] / totals[1]);
    Ok(())
}

/// Small files, or writes of 1 MiB, until the log is so long; then a crash.
fn recovery(image: &Path) -> Outcome {
    println!("{:<14} {:>10} {:>10} {:>10} {:>10}", "work", "data MiB", "log MiB", "batches", "seconds");
    for (work, length, each) in [
        ("small files", 16, 2000),
        ("small files", 64, 2000),
        ("small files", 256, 2000),
        ("small files", 1024, 2000),
        ("large file", 0, MIB),
    ] {
        let place = Place::new(image, 12 * GIB, Some(3 * GIB), 8 * GIB, false)?;
        let mut data = vec![0u8; each as usize];
        Random::new(7).fill(&mut data);
        let (first, mut n, mut node) = (place.store.statistics(), 0u64, place.file(NodeId::ROOT, "large")?);
        loop {
            if each == MIB {
                place.fs.write(node, n * each, &data, false)?;
            } else {
                node = place.file(NodeId::ROOT, &format!("{n:09}"))?;
                place.fs.write(node, 0, &data, false)?;
                place.fs.forget(node, 1);
            }
            n += 1;
            let stop = if each == MIB {
                n * each >= 2 * GIB
            } else {
                n.is_multiple_of(1000) && place.store.statistics().log_used >= length * MIB
            };
            if stop {
                break;
            }
        }
        place.fs.syncfs()?;
        let last = place.store.statistics();
        let (took, opened) = place.crash()?;
        if opened.last_lsn != last.last_lsn || last.checkpoints != first.checkpoints {
            return Err("something else than recovery was measured".into());
        }
        println!(
            "{work:<14} {:>10} {:>10} {:>10} {:>10.2}",
            n * each / MIB,
            last.log_used / MIB,
            last.last_lsn - last.checkpoint_lsn,
            took.as_secs_f64()
        );
    }
    Ok(())
}

/// The slowest calls of one kind.
#[derive(Default)]
struct Times {
    count: u64,
    all: Vec<Duration>,
}

impl Times {
    fn take<T>(&mut self, call: impl FnOnce() -> espalier_fs::Result<T>) -> Outcome<T> {
        let start = Instant::now();
        let done = call()?;
        self.all.push(start.elapsed());
        self.count += 1;
        Ok(done)
    }

    fn show(&mut self, phase: &str, name: &str) {
        self.all.sort_unstable();
        let at = |share: f64| {
            let place = (self.all.len() as f64 * share) as usize;
            self.all.get(place.min(self.all.len().saturating_sub(1))).map_or(0.0, |t| t.as_secs_f64() * 1e3)
        };
        println!(
            "{phase:<12} {name:<16} {:>9} {:>10.3} {:>10.3} {:>10.3}",
            self.count,
            at(0.5),
            at(0.999),
            at(1.0)
        );
    }
}

/// Three threads work while a checkpoint writes 1 GiB.
fn pauses(image: &Path) -> Outcome {
    let place = Place::new(image, 16 * GIB, Some(6 * GIB), 8 * GIB, false)?;
    let mut random = Random::new(1);
    let mut directories = Vec::new();
    for n in 0..1000 {
        let name = format!("dir-{n:04}");
        directories.push(place.fs.mkdir(NodeId::ROOT, name.as_bytes(), 0o755, &Caller::default())?.node);
    }
    let mut data = vec![0u8; 2000];
    random.fill(&mut data);
    let start = Instant::now();
    let (mut files, checkpoints) = (0u64, place.store.statistics().checkpoints);
    while place.store.statistics().dirty_bytes < GIB {
        for _ in 0..1000 {
            let node = place.file(directories[random.index(directories.len())], &format!("{files:09}"))?;
            place.fs.write(node, 0, &data, false)?;
            place.fs.forget(node, 1);
            files += 1;
        }
    }
    let dirty = place.store.statistics().dirty_bytes;
    println!(
        "{files} files of 2,000 bytes in {:.1} s; {} MiB of nodes are dirty",
        start.elapsed().as_secs_f64(),
        dirty / MIB
    );
    if place.store.statistics().checkpoints != checkpoints {
        return Err("there was a checkpoint before its time".into());
    }
    println!(
        "{:<12} {:<16} {:>9} {:>10} {:>10} {:>10}",
        "", "call", "calls", "median ms", "99.9% ms", "longest ms"
    );
    phase(&place, "quiet", &directories, || {
        std::thread::sleep(Duration::from_secs(5));
        Ok(())
    })?;
    let written = place.store.statistics().device.bytes_written;
    let mut took = Duration::ZERO;
    phase(&place, "checkpoint", &directories, || {
        let start = Instant::now();
        place.store.checkpoint()?;
        took = start.elapsed();
        Ok(())
    })?;
    let written = place.store.statistics().device.bytes_written - written;
    println!("the checkpoint took {:.2} s; {} MiB were written meanwhile", took.as_secs_f64(), written / MIB);
    place.store.close()?;
    Ok(())
}

/// Creates files with data until it is to stop; returns how long creating and writing took.
fn create_files(
    place: &Place,
    name: &str,
    directories: &[NodeId],
    going: &(dyn Fn() -> bool + Sync),
) -> Outcome<[Times; 2]> {
    let (mut random, mut n, data) = (Random::new(2), 0, [5u8; 2000]);
    let [mut create, mut write] = [Times::default(), Times::default()];
    while going() {
        let parent = directories[random.index(directories.len())];
        let file = format!("{name}-{n:09}");
        let caller = Caller::default();
        let node =
            create.take(|| place.fs.mknod(parent, file.as_bytes(), NewNode::Regular, 0o644, &caller))?.node;
        write.take(|| place.fs.write(node, 0, &data, false))?;
        place.fs.forget(node, 1);
        n += 1;
        // At a rate that the store can keep up with; the highest rate is measured elsewhere.
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok([create, write])
}

/// Lists directories and reads files until it is to stop; returns how long that took.
fn read_files(
    place: &Place,
    directories: &[NodeId],
    going: &(dyn Fn() -> bool + Sync),
) -> Outcome<[Times; 2]> {
    let (mut random, mut out) = (Random::new(3), [0u8; 2000]);
    let [mut look, mut read] = [Times::default(), Times::default()];
    while going() {
        let parent = directories[random.index(directories.len())];
        let mut found = None;
        look.take(|| {
            place.fs.readdirplus(parent, 0, &mut |entry| {
                if let Some(entry) = entry.entry.filter(|_| found.is_none()) {
                    found = Some(entry.node);
                    return true;
                }
                found.is_none()
            })
        })?;
        if let Some(node) = found {
            read.take(|| place.fs.read(node, 0, &mut out))?;
            place.fs.forget(node, 1);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok([look, read])
}

/// Writes to a file and syncs it until it is to stop; returns how long syncing took.
fn sync_file(place: &Place, name: &str, going: &(dyn Fn() -> bool + Sync)) -> Outcome<[Times; 1]> {
    let node = place.file(NodeId::ROOT, &format!("{name}-synced"))?;
    let (mut sync, mut n) = (Times::default(), 0u64);
    while going() {
        place.fs.write(node, n % 100 * 100, &[9; 100], false)?;
        sync.take(|| place.fs.fsync(node, true))?;
        n += 1;
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok([sync])
}

/// Does `work` while other threads create, read and sync; prints how long their calls took.
fn phase(place: &Place, name: &str, directories: &[NodeId], work: impl FnOnce() -> Outcome) -> Outcome {
    let stop = AtomicBool::new(false);
    let going = || !stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let creator = scope.spawn(|| create_files(place, name, directories, &going));
        let reader = scope.spawn(|| read_files(place, directories, &going));
        let syncer = scope.spawn(|| sync_file(place, name, &going));
        let done = work();
        stop.store(true, Ordering::Relaxed);
        let panicked = |_| "a thread panicked";
        let [mut create, mut write] = creator.join().map_err(panicked)??;
        let [mut look, mut read] = reader.join().map_err(panicked)??;
        let [mut sync] = syncer.join().map_err(panicked)??;
        for (kind, times) in [
            ("create", &mut create),
            ("write", &mut write),
            ("list", &mut look),
            ("read", &mut read),
            ("fsync", &mut sync),
        ] {
            times.show(name, kind);
        }
        done
    })
}

/// What a program does that unpacks an archive: with data and without.
fn creates(image: &Path) -> Outcome {
    let place = Place::new(image, 2 * GIB, None, GIB, false)?;
    let files = 20_000;
    for (name, writes) in [("empty", 0), ("with data", 4)] {
        place.store.checkpoint()?;
        let before = place.store.statistics();
        create(&place, name, files, writes)?;
        place.fs.syncfs()?;
        place.store.checkpoint()?;
        let after = place.store.statistics();
        let each = |of: fn(&Statistics) -> u64| (of(&after) - of(&before)) as f64 / files as f64;
        println!(
            "{files} files: made, {writes} writes of 500 bytes, size, times, owner, mode; for each file"
        );
        println!("  batches                  {:>8.2}", each(|s| s.last_lsn));
        println!(
            "  messages for the trees   {:>8.2}  (one for the entry, one for data)",
            each(|s| s.absorbed)
        );
        println!(
            "  operations not logged    {:>8.2}  (a later one of the same group wipes them out)",
            each(|s| s.log.superseded)
        );
        println!("  bytes of the log         {:>8.0}", each(|s| s.log.bytes));
        println!("  bytes for the device     {:>8.0}", each(|s| s.device.bytes_written));
    }
    place.store.close()?;
    Ok(())
}

fn create(place: &Place, name: &str, files: u64, writes: u64) -> Outcome {
    let fs = &place.fs;
    let directory = fs.mkdir(NodeId::ROOT, name.as_bytes(), 0o755, &Caller::default())?.node;
    for n in 0..files {
        let node = place.file(directory, &format!("file-{n:06}"))?;
        for at in 0..writes {
            fs.write(node, at * 500, &[n as u8; 500], false)?;
        }
        fs.setattr(node, &SetAttr { size: Some(writes * 500), ..SetAttr::default() })?;
        let time = Some(SetTime::At(1_700_000_000_000_000_000 + n as i64));
        fs.setattr(node, &SetAttr { atime: time, mtime: time, ..SetAttr::default() })?;
        fs.setattr(node, &SetAttr { uid: Some(1000), gid: Some(1000), ..SetAttr::default() })?;
        fs.setattr(node, &SetAttr { mode: Some(0o600), ..SetAttr::default() })?;
        fs.forget(node, 1);
    }
    Ok(())
}
