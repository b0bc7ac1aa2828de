//! Fixed workloads of the file system layer, for counting the instructions that they take.
//!
//! `cargo run --release -p espalier-fs --example instructions -- WORKLOAD`; the script
//! `scripts/instructions` runs all of them under callgrind and prints the table. Only what runs
//! inside [`measured`] counts. Everything is decided by a seed: the device is memory, the clock and
//! the random numbers are simulated, and there are no threads, so background work runs in the call
//! that waits for it.

use espalier_engine::Store;
use espalier_fs::{Caller, FileSystem, FormatOptions, NewNode, NodeId, merge_functions};
use espalier_storage::{Device, MemoryDevice, Random, SimulatedEnvironment};
use std::hint::black_box;
use std::sync::Arc;

type Outcome<T = ()> = Result<T, Box<dyn std::error::Error>>;

const DEVICE_BYTES: u64 = 512 << 20;
const MEMORY_BYTES: u64 = 64 << 20;
const FILE_BYTES: usize = 2000;
const FILES_PER_DIRECTORY: u64 = 100;
const SEED: u64 = 29;

fn main() -> Outcome {
    let usage = "usage: instructions small-commits|point-reads|scan|clones";
    match std::env::args().nth(1).ok_or(usage)?.as_str() {
        "small-commits" => small_commits(),
        "point-reads" => point_reads(),
        "scan" => scan(),
        "clones" => clones(),
        _ => Err(usage.into()),
    }
}

/// Runs the part of a workload that counts; callgrind finds it by its name.
#[inline(never)]
fn measured(work: &mut dyn FnMut() -> Outcome) -> Outcome {
    let outcome = work();
    // The call above is not the last thing here, so that it does not become a jump.
    black_box(&outcome);
    outcome
}

/// A file system in memory.
struct Bed {
    device: Arc<dyn Device>,
    fs: Arc<FileSystem>,
}

impl Bed {
    fn new() -> Outcome<Self> {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(DEVICE_BYTES));
        let env = Arc::new(SimulatedEnvironment::new(SEED));
        Store::format(device.clone(), env, &espalier_engine::FormatOptions::default())?;
        let store = open_store(&device)?;
        FileSystem::format(&store, &FormatOptions::default())?;
        Ok(Self { device, fs: mount(store)? })
    }

    /// With so many directories, each full of files, all on the device; reopened, so that the cache
    /// is empty.
    fn filled(directories: u64) -> Outcome<Self> {
        let mut bed = Self::new()?;
        for n in 0..directories {
            bed.fill(&directory(n))?;
        }
        bed.fs.close()?;
        bed.fs = mount(open_store(&bed.device)?)?;
        Ok(bed)
    }

    /// Makes a directory with [`FILES_PER_DIRECTORY`] files.
    fn fill(&self, name: &str) -> Outcome {
        let caller = Caller::default();
        let directory = self.fs.mkdir(NodeId::ROOT, name.as_bytes(), 0o755, &caller)?.node;
        for n in 0..FILES_PER_DIRECTORY {
            let file = self.fs.mknod(directory, file(n).as_bytes(), NewNode::Regular, 0o644, &caller)?.node;
            self.fs.write(file, 0, &[n as u8; FILE_BYTES], false)?;
            self.fs.forget(file, 1);
        }
        self.fs.forget(directory, 1);
        Ok(())
    }

    /// Reads one file by its path.
    fn read(&self, directory: &str, file: &str) -> Outcome {
        let directory = self.fs.lookup(NodeId::ROOT, directory.as_bytes())?.node;
        let file = self.fs.lookup(directory, file.as_bytes())?.node;
        let mut bytes = [0; FILE_BYTES];
        assert_eq!(self.fs.read(file, 0, &mut bytes)?, FILE_BYTES);
        black_box(bytes);
        self.fs.forget(file, 1);
        self.fs.forget(directory, 1);
        Ok(())
    }
}

fn open_store(device: &Arc<dyn Device>) -> Outcome<Arc<Store>> {
    let env = Arc::new(SimulatedEnvironment::new(SEED));
    let merge = merge_functions();
    let options = espalier_engine::OpenOptions { memory: MEMORY_BYTES, merge, ..Default::default() };
    Ok(Store::open(device.clone(), env, options)?)
}

fn mount(store: Arc<Store>) -> Outcome<Arc<FileSystem>> {
    let env = Arc::new(SimulatedEnvironment::new(SEED));
    Ok(FileSystem::open(store, env, espalier_fs::OpenOptions::default())?)
}

fn directory(n: u64) -> String {
    format!("project-{n:04}")
}

fn file(n: u64) -> String {
    format!("file-{n:02}")
}

/// Files that are made and written, a directory after the other with an fsync after each, then
/// writes of 200 bytes into random ones of them; then a sync of everything.
fn small_commits() -> Outcome {
    const DIRECTORIES: u64 = 40;
    const WRITES: u64 = 4_000;
    let (bed, mut random) = (Bed::new()?, Random::new(SEED));
    let fs = &bed.fs;
    measured(&mut || {
        for n in 0..DIRECTORIES {
            bed.fill(&directory(n))?;
            fs.fsync(NodeId::ROOT, false)?;
        }
        for n in 0..WRITES {
            let directory = directory(random.below(DIRECTORIES));
            let directory = fs.lookup(NodeId::ROOT, directory.as_bytes())?.node;
            let file = fs.lookup(directory, file(random.below(FILES_PER_DIRECTORY)).as_bytes())?.node;
            fs.write(file, random.below(8) * 200, &[n as u8; 200], false)?;
            if n % 64 == 0 {
                fs.fsync(file, false)?;
            }
            fs.forget(file, 1);
            fs.forget(directory, 1);
        }
        Ok(fs.syncfs()?)
    })
}

/// Random files are looked up by their path and read whole.
fn point_reads() -> Outcome {
    const DIRECTORIES: u64 = 40;
    const READS: u64 = 20_000;
    let (bed, mut random) = (Bed::filled(DIRECTORIES)?, Random::new(SEED));
    measured(&mut || {
        for _ in 0..READS {
            let (directory, file) =
                (directory(random.below(DIRECTORIES)), file(random.below(FILES_PER_DIRECTORY)));
            bed.read(&directory, &file)?;
        }
        Ok(())
    })
}

/// Every directory is listed with attributes, and each of its files read: four times, the first of
/// them from the device.
fn scan() -> Outcome {
    const DIRECTORIES: u64 = 40;
    let bed = Bed::filled(DIRECTORIES)?;
    let fs = &bed.fs;
    measured(&mut || {
        for _ in 0..4 {
            for n in 0..DIRECTORIES {
                let name = directory(n);
                let node = fs.lookup(NodeId::ROOT, name.as_bytes())?.node;
                let mut names = Vec::new();
                fs.readdir(node, 0, &mut |entry| {
                    if !entry.name.starts_with(b".") {
                        names.push(String::from_utf8_lossy(entry.name).into_owned());
                    }
                    true
                })?;
                fs.forget(node, 1);
                assert_eq!(names.len() as u64, FILES_PER_DIRECTORY);
                names.iter().try_for_each(|file| bed.read(&name, file))?;
            }
        }
        Ok(())
    })
}

/// Directories are cloned; in each copy ten files are written and all are read. Everything is
/// synced after each sixteenth.
fn clones() -> Outcome {
    const DIRECTORIES: u64 = 10;
    const CLONES: u64 = 160;
    let (bed, mut random) = (Bed::filled(DIRECTORIES)?, Random::new(SEED));
    let (fs, caller) = (&bed.fs, Caller::default());
    measured(&mut || {
        for n in 0..CLONES {
            let source = directory(random.below(DIRECTORIES));
            let source = fs.lookup(NodeId::ROOT, source.as_bytes())?.node;
            let name = format!("copy-{n:04}");
            let copy = fs.clone_tree(source, NodeId::ROOT, name.as_bytes(), &caller)?.node;
            for _ in 0..10 {
                let file = fs.lookup(copy, file(random.below(FILES_PER_DIRECTORY)).as_bytes())?.node;
                fs.write(file, 100, &[n as u8; 100], false)?;
                fs.forget(file, 1);
            }
            fs.forget(source, 1);
            fs.forget(copy, 1);
            for n in 0..FILES_PER_DIRECTORY {
                bed.read(&name, &file(n))?;
            }
            if n % 16 == 0 {
                fs.syncfs()?;
            }
        }
        Ok(())
    })
}
