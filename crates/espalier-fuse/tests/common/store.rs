//! A file system on a device in memory, mounted.

use super::Watchdog;
use espalier_engine::Store;
use espalier_fs::FileSystem;
use espalier_fuse::transport::Kind;
use espalier_fuse::{Ended, ForgetHook, Mount, MountOptions};
use espalier_storage::{Device, Environment, MemoryDevice, SystemEnvironment};
use std::path::Path;
use std::sync::Arc;

/// A device with a file system on it.
pub(crate) struct Image {
    device: Arc<dyn Device>,
    env: Arc<dyn Environment>,
}

/// A mounted file system, and the directory that it is mounted on.
pub(crate) struct Mounted {
    mount: Mount,
    fs: Arc<FileSystem>,
    store: Arc<Store>,
    directory: tempfile::TempDir,
    _watchdog: Watchdog,
}

impl Image {
    /// Formats `bytes` of memory.
    pub(crate) fn new(bytes: u64) -> Self {
        let image =
            Self { device: Arc::new(MemoryDevice::new(bytes)), env: Arc::new(SystemEnvironment::new(2)) };
        let (device, env) = (Arc::clone(&image.device), Arc::clone(&image.env));
        Store::format(device, env, &espalier_engine::FormatOptions::default()).unwrap();
        let store = image.open();
        FileSystem::format(&store, &espalier_fs::FormatOptions::default()).unwrap();
        store.close().unwrap();
        image
    }

    fn open(&self) -> Arc<Store> {
        let options = espalier_engine::OpenOptions {
            memory: 256 << 20,
            merge: espalier_fs::merge_functions(),
            ..Default::default()
        };
        Store::open(Arc::clone(&self.device), Arc::clone(&self.env), options).unwrap()
    }

    /// Mounts it on a directory of its own.
    pub(crate) fn mount(&self, kind: Kind, options: MountOptions) -> Mounted {
        let store = self.open();
        let forgets = ForgetHook::default();
        let open = espalier_fs::OpenOptions { forget_drain: Some(forgets.drain()), ..Default::default() };
        let fs = FileSystem::open(Arc::clone(&store), Arc::clone(&self.env), open).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let options = MountOptions { transport: Some(kind), forgets: Some(forgets), ..options };
        let mount = Mount::start(Arc::clone(&fs), directory.path(), &options);
        let mount = mount.unwrap_or_else(|error| panic!("these tests need root and FUSE: {error}"));
        let watchdog = Watchdog::watch(directory.path());
        Mounted { mount, fs, store, directory, _watchdog: watchdog }
    }
}

impl Mounted {
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Unmounts, verifies what is stored, and closes it.
    pub(crate) fn end(self) {
        self.mount.unmount(false).unwrap();
        assert_eq!(self.mount.wait(), Ended::Unmounted);
        self.fs.close().unwrap();
        let report = self.store.verify(&mut |_| ()).unwrap();
        assert!(report.problems.is_empty(), "{:#?}", report.problems);
        self.store.close().unwrap();
    }
}
