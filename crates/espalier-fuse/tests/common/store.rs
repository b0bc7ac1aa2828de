//! A file system on an image file, mounted by another process: a test that were its own server
//! could wait for itself in a page fault, and could not be killed.
//!
//! The other process is the same test binary, told by its environment to serve. So each test file
//! that mounts has
//!
//! ```ignore
//! #[test]
//! fn serves_when_asked() {
//!     common::store::serve_if_asked();
//! }
//! ```

use super::Watchdog;
use espalier_engine::Store;
use espalier_fs::{FileSystem, HandleLifetime};
use espalier_fuse::transport::Kind;
use espalier_fuse::{DESCRIPTION_XATTR, Description, Ended, ForgetHook, Mount, MountOptions};
use espalier_storage::{Device, Environment, FileDevice, OpenMode, SystemEnvironment};
use espalier_sync::Mutex;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

const IMAGE: &str = "ESPALIER_TEST_IMAGE";
const POINT: &str = "ESPALIER_TEST_POINT";
const OPTIONS: &str = "ESPALIER_TEST_OPTIONS";
const READY: &str = "espalier-test: mounted";

/// Held while a process is started, and by tests that need that none is: until it is in its program
/// the new one has everything open that the tests have, images and files on mounts too, which are
/// busy then.
static STARTING: Mutex<()> = Mutex::new(());

/// Starts a process and lets `until` wait for a sign that it is in its program. That `spawn`
/// returned is none: the kernel lets the parent go on before it closes what the child has open.
pub(crate) fn start(command: &mut Command, until: impl FnOnce(&mut Child)) -> Child {
    let _starting = STARTING.lock();
    let mut child = command.spawn().unwrap();
    until(&mut child);
    child
}

/// Runs a process to its end; true if it succeeded.
pub(crate) fn run(command: &mut Command) -> bool {
    let ended = |child: &mut Child| {
        child.wait().unwrap();
    };
    start(command, ended).wait().unwrap().success()
}

/// Runs a process to its end; what it said.
pub(crate) fn output(command: &mut Command) -> std::io::Result<std::process::Output> {
    let _starting = STARTING.lock();
    command.output()
}

/// A file with a file system in it.
pub(crate) struct Image {
    file: tempfile::NamedTempFile,
}

/// A mounted file system, the process that serves it, and the directory that it is mounted on.
pub(crate) struct Mounted {
    server: Child,
    output: BufReader<ChildStdout>,
    directory: tempfile::TempDir,
    watchdog: Watchdog,
}

fn environment() -> Arc<dyn Environment> {
    Arc::new(SystemEnvironment::new(2))
}

fn open(image: &Path) -> Arc<Store> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, OpenMode::ReadWrite).unwrap());
    let options = espalier_engine::OpenOptions {
        memory: 256 << 20,
        merge: espalier_fs::merge_functions(),
        ..Default::default()
    };
    Store::open(device, environment(), options).unwrap()
}

impl Image {
    /// Formats a file of `bytes`.
    pub(crate) fn new(bytes: u64) -> Self {
        let _none_starts = STARTING.lock();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        let device: Arc<dyn Device> = Arc::new(FileDevice::open(file.path(), OpenMode::ReadWrite).unwrap());
        Store::format(device, environment(), &espalier_engine::FormatOptions::default()).unwrap();
        let store = open(file.path());
        FileSystem::format(&store, &espalier_fs::FormatOptions::default()).unwrap();
        store.close().unwrap();
        Self { file }
    }

    /// Calls `work` on the file system in it, which is not mounted.
    pub(crate) fn embedded<T>(&self, work: impl FnOnce(&Arc<FileSystem>) -> T) -> T {
        let store = open(self.file.path());
        let fs = FileSystem::open(Arc::clone(&store), environment(), Default::default()).unwrap();
        let done = work(&fs);
        fs.close().unwrap();
        drop(fs);
        store.close().unwrap();
        done
    }

    /// Mounts it on a directory of its own, with `-o` options.
    pub(crate) fn mount(&self, kind: Kind, options: &str) -> Mounted {
        let directory = tempfile::tempdir().unwrap();
        let transport = match kind {
            Kind::Uring => "transport=io_uring",
            Kind::Classic => "transport=classic",
        };
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "serves_when_asked", "--nocapture", "--test-threads=1"])
            .env(IMAGE, self.file.path())
            .env(POINT, directory.path())
            .env(OPTIONS, format!("{transport},{options}"))
            .stdout(Stdio::piped());
        let mut output = None;
        let server = start(&mut command, |server| {
            let said = output.insert(BufReader::new(server.stdout.take().unwrap()));
            let mut line = String::new();
            while !line.contains(READY) {
                line.clear();
                let length = said.read_line(&mut line).unwrap();
                assert_ne!(
                    length, 0,
                    "the server ended before it had mounted; these tests need root and FUSE"
                );
            }
        });
        let watchdog = Watchdog::watch(directory.path());
        Mounted { server, output: output.unwrap(), directory, watchdog }
    }
}

impl Mounted {
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// How many requests of a kind were served; see [`espalier_fuse::metrics::Metrics::each`].
    pub(crate) fn count(&self, kind: &str) -> u64 {
        let mut text = [0; 8192];
        let length = rustix::fs::getxattr(self.path(), DESCRIPTION_XATTR, &mut text).unwrap();
        let text = std::str::from_utf8(&text[..length]).unwrap();
        let counted = text.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(' '));
        counted.map_or(0, |count| count.parse().unwrap())
    }

    /// Unmounts; the server verifies what is stored, and closes it.
    pub(crate) fn end(mut self) {
        unmount(self.path());
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        assert!(self.server.wait().unwrap().success(), "the server failed: {said}");
    }

    /// Kills the server, and takes away the dead mount after `look` at it.
    pub(crate) fn kill(mut self, look: impl FnOnce(&Path)) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
        look(self.path());
        unmount(self.path());
        drop(self.watchdog);
    }
}

/// Detaches it: a process that has just been started lets go of what this one had open a little
/// after it was started, and then the mount ends. A test that needs to know that it has ended
/// waits for the server.
fn unmount(point: &Path) {
    rustix::mount::unmount(point, rustix::mount::UnmountFlags::DETACH).unwrap();
}

/// Serves, if this process was started for that; returns when the mount has ended.
pub(crate) fn serve_if_asked() {
    let Some(image) = std::env::var_os(IMAGE).map(PathBuf::from) else { return };
    let mut options = MountOptions { source: image.clone(), ..MountOptions::default() };
    let words = std::env::var(OPTIONS).unwrap();
    let keep_handles = words.split(',').any(|word| word == "nfs_export");
    for option in words.split(',').filter(|option| !option.is_empty() && *option != "nfs_export") {
        assert_eq!(options.apply(option), Ok(true), "{option}");
    }
    let store = open(&image);
    let forgets = ForgetHook::default();
    let open = espalier_fs::OpenOptions {
        forget_drain: Some(forgets.drain()),
        waiter: Some(Arc::new(espalier_fuse::Requester)),
        read_only: options.read_only,
        handles: match (keep_handles, options.handles) {
            (true, _) => HandleLifetime::Stored,
            (false, true) => HandleLifetime::Open,
            (false, false) => HandleLifetime::Reference,
        },
        ..Default::default()
    };
    let fs = FileSystem::open(Arc::clone(&store), environment(), open).unwrap();
    options.forgets = Some(forgets);
    options.description = Some(Description(Arc::new(|metrics| {
        metrics.each().map(|(name, count)| format!("{name} {count}\n")).collect()
    })));
    let point = PathBuf::from(std::env::var_os(POINT).unwrap());
    let mount = Mount::start(Arc::clone(&fs), &point, &options).unwrap();
    println!("\n{READY}");
    assert_eq!(mount.wait(), Ended::Unmounted);
    fs.close().unwrap();
    let report = store.verify(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    store.close().unwrap();
}
