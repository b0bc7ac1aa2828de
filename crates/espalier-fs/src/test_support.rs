//! What unit tests begin with.

use crate::{FileSystem, FormatOptions, merge_functions};
use espalier_engine::{OpenOptions, Store};
use espalier_storage::{Environment, MemoryDevice, SystemEnvironment};
use std::sync::Arc;

/// An empty file system in memory.
pub(crate) fn empty() -> (Arc<Store>, Arc<dyn Environment>, Arc<FileSystem>) {
    empty_with(Default::default())
}

/// The same, opened in a certain way.
pub(crate) fn empty_with(open: crate::OpenOptions) -> (Arc<Store>, Arc<dyn Environment>, Arc<FileSystem>) {
    let env: Arc<dyn Environment> = Arc::new(SystemEnvironment::new(0));
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Store::format(device.clone(), env.clone(), &Default::default()).unwrap();
    let options = OpenOptions { merge: merge_functions(), memory: 8 << 20, ..Default::default() };
    let store = Store::open(device, env.clone(), options).unwrap();
    FileSystem::format(&store, &FormatOptions { block_size: 4096, ..Default::default() }).unwrap();
    let fs = FileSystem::open(store.clone(), env.clone(), open).unwrap();
    (store, env, fs)
}
