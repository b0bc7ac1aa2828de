//! What it costs to resolve a path by the number of its components: by the library on the device of
//! an unmounted file system, whole and name by name.
//!
//! *Cold* means that the store was opened anew and the paths were not asked for since; each has
//! directories of its own. *Warm* means that each was asked for before. Name by name means one
//! look-up for each, with the directories held meanwhile, as a kernel's cache of names does.

use super::bench::Bench;
use super::figures::{EMBEDDED, What};
use crate::system;
use anyhow::{Context, Result};
use espalier_engine::Store;
use espalier_fs::{
    Credentials, FileSystem, Links, NodeId, Open, OpenOptions, PathCaller, Paths, merge_functions,
};
use espalier_storage::{Environment, FileDevice, OpenMode, SystemEnvironment};
use std::sync::Arc;
use std::time::Instant;

const DEPTHS: [usize; 4] = [1, 4, 16, 64];
/// Paths of each depth.
const PATHS: usize = 200;
/// Entries of each directory beside the one that a path leads through.
const SIBLINGS: usize = 8;
/// A warm path is resolved so often.
const ROUNDS: usize = 20;

/// A file system that was opened anew.
struct Opened {
    store: Arc<Store>,
    fs: Arc<FileSystem>,
    paths: Arc<Paths>,
}

impl Opened {
    fn on(device: &std::path::Path) -> Result<Self> {
        system::drop_caches()?;
        let env: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(2));
        let device = Arc::new(FileDevice::open(device, OpenMode::ReadWrite)?);
        let options = espalier_engine::OpenOptions { merge: merge_functions(), ..Default::default() };
        let store = Store::open(device, env.clone(), options)?;
        let fs = FileSystem::open(store.clone(), env, OpenOptions::default())?;
        let paths = Paths::new(fs.clone())?;
        Ok(Self { store, fs, paths })
    }

    fn close(self) -> Result<()> {
        let Self { store, fs, paths } = self;
        drop(paths);
        fs.close()?;
        drop(fs);
        Ok(store.close()?)
    }

    fn caller(&self) -> PathCaller {
        // An ordinary user: root's permissions are not asked for.
        self.paths.caller(Credentials { uid: 1000, gid: 1000, groups: Vec::new() })
    }
}

/// All depths; only ours takes part.
pub(super) fn all(bench: &mut Bench<'_>) -> Result<()> {
    if !bench.contender.is_ours() {
        return Ok(());
    }
    let device = bench.contender.device().to_path_buf();
    let opened = Opened::on(&device)?;
    make(&opened)?;
    opened.close()?;
    for depth in DEPTHS {
        for (way, resolve) in WAYS {
            let opened = Opened::on(&device)?;
            let caller = opened.caller();
            let mut held = Vec::new();
            let mut run = |rounds: usize| -> Result<f64> {
                let begun = Instant::now();
                for number in 0..PATHS * rounds {
                    resolve(&opened.fs, &caller, &path(depth, number % PATHS), &mut held)?;
                }
                Ok(begun.elapsed().as_secs_f64() * 1e6 / (PATHS * rounds) as f64)
            };
            let (cold, warm) = (run(1)?, run(ROUNDS)?);
            held.into_iter().rev().for_each(|node| opened.fs.forget(node, 1));
            drop(caller);
            opened.close()?;
            for (temperature, value) in [("cold", cold), ("warm", warm)] {
                let step = format!("{depth} components, {way}, {temperature}");
                bench.tell(EMBEDDED, &What { work: "path", step, clients: 0, unit: "us" }, value);
            }
        }
    }
    Ok(())
}

type Resolve = fn(&FileSystem, &PathCaller, &str, &mut Vec<NodeId>) -> Result<()>;

const WAYS: [(&str, Resolve); 2] = [("whole", whole), ("by name", by_name)];

fn whole(_: &FileSystem, caller: &PathCaller, path: &str, _: &mut Vec<NodeId>) -> Result<()> {
    caller.stat(path, Links::Follow)?;
    Ok(())
}

fn by_name(fs: &FileSystem, _: &PathCaller, path: &str, held: &mut Vec<NodeId>) -> Result<()> {
    let mut at = NodeId::ROOT;
    let mut directories = path.matches('/').count() - 1;
    for name in path.split('/').skip(1) {
        at = fs.lookup(at, name.as_bytes())?.node;
        if directories > 0 {
            held.push(at);
            directories -= 1;
        }
    }
    fs.getattr(at).context("the last name")?;
    // The last name is asked of the store each time, as by the other way.
    fs.forget(at, 1);
    Ok(())
}

/// The path of file `number` of those with so many components.
fn path(depth: usize, number: usize) -> String {
    let mut path = format!("/d{depth}-{number:05}");
    (1..depth).for_each(|level| path += &format!("/level-{level}"));
    path
}

fn make(opened: &Opened) -> Result<()> {
    let root = opened.paths.caller(Credentials { uid: 0, gid: 0, groups: Vec::new() });
    for (depth, number) in DEPTHS.iter().flat_map(|depth| (0..PATHS).map(move |number| (*depth, number))) {
        let file = path(depth, number);
        for (end, _) in file.match_indices('/').skip(1) {
            root.mkdir(&file[..end], 0o755)?;
            for sibling in 0..SIBLINGS {
                root.mkdir(&format!("{}/other-{sibling}", &file[..end]), 0o755)?;
            }
        }
        root.open(&file, &Open::create(0o644))?;
    }
    Ok(())
}
