//! A full file system with clones and snapshots: what shares with others may be in the way of
//! deleting single files, and of nothing else.

use crate::Bench;
use espalier_fs::{Caller, FileSystem, FsErrorKind, NewNode, NodeId, SetAttr, merge_functions};
use espalier_storage::{Device, Environment, MemoryDevice, Random, SimulatedEnvironment};
use std::sync::Arc;

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0, umask: 0 };

/// Bytes that cannot be compressed.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(seed).fill(&mut bytes);
    bytes
}

/// True if there was room for it.
#[track_caller]
fn fits<T>(result: espalier_fs::Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), FsErrorKind::NoSpace, "{error}");
            false
        }
    }
}

/// With nodes of the usual sizes.
fn mount(device: Arc<dyn Device>, env: Arc<dyn Environment>) -> Bench {
    let options = espalier_engine::OpenOptions {
        memory: 16 << 20,
        merge: merge_functions(),
        ..espalier_engine::OpenOptions::default()
    };
    let store = espalier_engine::Store::open(device.clone(), env.clone(), options).expect("open");
    let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).expect("open");
    Bench { device, env, store, fs }
}

fn remount(bench: Bench) -> Bench {
    let Bench { device, env, store, fs } = bench;
    fs.close().expect("a full file system can be unmounted");
    store.close().expect("a full store can be closed");
    drop((fs, store));
    mount(device, env)
}

fn empty(bytes: u64) -> Bench {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes));
    let env: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(1));
    espalier_engine::Store::format(device.clone(), env.clone(), &Default::default()).expect("format");
    let options = espalier_engine::OpenOptions { merge: merge_functions(), ..Default::default() };
    let store = espalier_engine::Store::open(device.clone(), env.clone(), options).expect("open");
    FileSystem::format(&store, &Default::default()).expect("format");
    store.close().expect("close");
    drop(store);
    mount(device, env)
}

impl Bench {
    /// Makes a file of noise, as far as it fits; true if all did.
    fn noise(&self, parent: NodeId, name: &str, seed: u64, len: usize) -> bool {
        match self.fs.mknod(parent, name.as_bytes(), NewNode::Regular, 0o644, &ROOT) {
            Ok(entry) => {
                let written = fits(self.fs.write(entry.node, 0, &noise(seed, len), false));
                self.fs.forget(entry.node, 1);
                written
            }
            Err(error) => fits(espalier_fs::Result::<()>::Err(error)),
        }
    }

    fn names(&self, dir: NodeId) -> Vec<Vec<u8>> {
        let mut names = Vec::new();
        self.fs
            .readdir(dir, 0, &mut |entry| {
                names.push(entry.name.to_vec());
                true
            })
            .expect("readdir");
        names.retain(|name| name != b"." && name != b"..");
        names
    }

    /// Removes one after the other what is in the root, and a level below.
    fn remove_all(&self) {
        for name in self.names(NodeId::ROOT) {
            let entry = self.fs.lookup(NodeId::ROOT, &name).expect("lookup");
            if entry.attr.kind == espalier_fs::FileKind::Directory {
                for below in self.names(entry.node) {
                    self.fs.unlink(entry.node, &below).expect("unlink");
                }
                self.fs.rmdir(NodeId::ROOT, &name).expect("rmdir");
            } else {
                self.fs.unlink(NodeId::ROOT, &name).expect("unlink");
            }
            self.fs.forget(entry.node, 1);
        }
    }

    /// Makes files until nothing more fits; returns how many did.
    fn fill_anew(&self) -> usize {
        let told = self.fs.statfs().expect("statfs");
        let len = 4096.max(told.blocks as usize * told.block_size as usize / 64);
        (0..).take_while(|n| self.noise(NodeId::ROOT, &format!("new{n}"), *n, len)).count()
    }
}

/// A file system of `bytes` with a tree of `files`, of `len` bytes and less, cloned several times
/// and in a snapshot, in which nothing more fits.
fn full_of_clones(bytes: u64, files: usize, len: usize, clones: usize) -> Bench {
    let bench = empty(bytes);
    let src = bench.dir(NodeId::ROOT, "src");
    for n in 0..files {
        assert!(bench.noise(src, &format!("file{n:04}"), n as u64, len / (1 + n % 7)), "the tree fits");
    }
    for n in 0..clones {
        let copy =
            bench.fs.clone_tree(src, NodeId::ROOT, format!("clone{n}").as_bytes(), &ROOT).expect("clone");
        bench.fs.forget(copy.node, 1);
    }
    bench.fs.forget(src, 1);
    bench.fs.snapshot("then", false).expect("snapshot");
    for len in [256 << 10, 16 << 10, 1000] {
        for n in 0.. {
            if !bench.noise(NodeId::ROOT, &format!("{len}-{n}"), n, len) {
                break;
            }
        }
    }
    remount(bench)
}

fn single_files_may_be_refused_and_nothing_else_is(bytes: u64, files: usize, len: usize, clones: usize) {
    let mut bench = full_of_clones(bytes, files, len, clones);
    let (mut taken, mut refused) = (0, 0);
    for clone in (0..clones).map(|n| format!("clone{n}")) {
        for (n, name) in (0..files).map(|n| (n, format!("file{n:04}"))) {
            let dir = bench.fs.lookup(NodeId::ROOT, clone.as_bytes()).expect("lookup").node;
            let done = if n % 2 == 0 {
                fits(bench.fs.unlink(dir, name.as_bytes()))
            } else {
                let file = bench.fs.lookup(dir, name.as_bytes()).expect("lookup");
                let size = if n % 4 == 1 { 0 } else { file.attr.size / 2 };
                let cut = bench.fs.setattr(file.node, &SetAttr { size: Some(size), ..Default::default() });
                bench.fs.forget(file.node, 1);
                fits(cut)
            };
            bench.fs.forget(dir, 1);
            *(if done { &mut taken } else { &mut refused }) += 1;
            if n % 16 == 0 || !done {
                bench.fs.syncfs().expect("what was accepted can be made durable");
                bench.store.checkpoint().expect("a checkpoint has room");
            }
            if !done {
                break;
            }
        }
        bench = remount(bench);
        bench.check(0);
    }
    assert!(taken > 0, "not even one file can be removed, {refused} were refused");
    for clone in (0..clones).map(|n| format!("clone{n}")) {
        bench.fs.remove_tree(NodeId::ROOT, clone.as_bytes(), &ROOT).expect("a whole clone can be removed");
        bench.fs.syncfs().expect("sync");
    }
    bench = remount(bench);
    bench.fs.snapshot_delete("then").expect("a snapshot can be dropped");
    bench.fs.syncfs().expect("sync");
    bench.remove_all();
    bench.fs.syncfs().expect("sync");
    bench = remount(bench);
    assert_eq!(bench.fs.getattr(NodeId::ROOT).expect("attributes").size, 0);
    bench.check(0);
    let (fit, fresh) = (bench.fill_anew(), empty(bytes).fill_anew());
    assert!(fit >= fresh / 2, "{fit} new files fit, and {fresh} into a new store");
    bench.fs.syncfs().expect("sync");
    bench = remount(bench);
    bench.check(0);
}

#[test]
fn in_a_small_full_store_only_single_files_of_clones_are_refused() {
    single_files_may_be_refused_and_nothing_else_is(4 << 20, 48, 6000, 3);
}

#[test]
fn in_a_full_store_only_single_files_of_clones_are_refused() {
    single_files_may_be_refused_and_nothing_else_is(64 << 20, 400, 20_000, 5);
}
