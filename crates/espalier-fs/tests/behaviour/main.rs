//! What the file system promises beyond the answers of single calls.

mod areas;
mod changes;
mod comparisons;
mod concurrency;
mod copies;
mod distant;
mod durability;
mod full;
mod handles;
mod listing;
mod numbers;
mod orphans;
mod ownership;
mod ownership_calls;
mod ownership_walks;
mod path_ranges;
mod paths;
mod quota;
mod rename_rights;
mod reserved;
mod semantics;
mod snapshots;
mod trees;
mod watches;
mod write_many;

use espalier_engine::{Store, Tuning};
use espalier_fs::{
    AreaCorrection, Caller, FileSystem, FormatOptions, NewNode, NodeId, OpenOptions, merge_functions,
};
use espalier_storage::{Device, Environment, MemoryDevice, SystemEnvironment};
use std::sync::Arc;

/// A file system and what lies under it.
struct Bench {
    device: Arc<dyn Device>,
    env: Arc<dyn Environment>,
    store: Arc<Store>,
    fs: Arc<FileSystem>,
}

impl Bench {
    /// With tiny nodes, and `threads` for background work.
    fn new(threads: usize) -> Self {
        Self::with(threads, OpenOptions::default())
    }

    fn with(threads: usize, options: OpenOptions) -> Self {
        Self::made(threads, options, &Default::default())
    }

    /// One whose background corrects link areas whenever it can.
    fn correcting(threads: usize) -> Self {
        Self::with(threads, OpenOptions { area_correction: AreaCorrection::Always, ..Default::default() })
    }

    fn made(threads: usize, options: OpenOptions, format: &espalier_engine::FormatOptions) -> Self {
        Self::sized(256 << 20, threads, options, format)
    }

    fn sized(
        bytes: u64,
        threads: usize,
        options: OpenOptions,
        format: &espalier_engine::FormatOptions,
    ) -> Self {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(bytes));
        let env: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(threads));
        Store::format(device.clone(), env.clone(), format).expect("format");
        let store = Self::open_store(&device, &env);
        FileSystem::format(&store, &FormatOptions { block_size: 4096, ..Default::default() })
            .expect("format");
        let fs = FileSystem::open(store.clone(), env.clone(), options).expect("open");
        Self { device, env, store, fs }
    }

    fn open_store(device: &Arc<dyn Device>, env: &Arc<dyn Environment>) -> Arc<Store> {
        let options = espalier_engine::OpenOptions {
            memory: 16 << 20,
            merge: merge_functions(),
            tuning: Tuning::tiny(),
            ..Default::default()
        };
        Store::open(device.clone(), env.clone(), options).expect("open")
    }

    /// As after a crash: nothing is given back or closed, only what was synced is there.
    fn crash(self) -> Self {
        let Self { device, env, store, fs } = self;
        drop((fs, store));
        let store = Self::open_store(&device, &env);
        let fs = FileSystem::open(store.clone(), env.clone(), Default::default()).expect("open");
        Self { device, env, store, fs }
    }

    fn file(&self, parent: NodeId, name: &str) -> NodeId {
        self.fs
            .mknod(parent, name.as_bytes(), NewNode::Regular, 0o644, &Caller::default())
            .expect("mknod")
            .node
    }

    fn dir(&self, parent: NodeId, name: &str) -> NodeId {
        self.fs.mkdir(parent, name.as_bytes(), 0o755, &Caller::default()).expect("mkdir").node
    }

    fn read(&self, node: NodeId) -> Vec<u8> {
        let size = self.fs.getattr(node).expect("attributes").size as usize;
        let mut data = vec![0; size];
        let len = self.fs.read(node, 0, &mut data).expect("read");
        data.truncate(len);
        data
    }

    #[track_caller]
    fn check(&self, orphans: u64) {
        let report = espalier_fs::check(&self.store, "main", &mut |_| {}).expect("the volume can be checked");
        assert_eq!((report.problems, report.orphans), (vec![], orphans));
    }
}
