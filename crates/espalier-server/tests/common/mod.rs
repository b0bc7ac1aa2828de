//! A file system on an image file, mounted and served to clients by another process: this test
//! binary, told by its environment to serve. So each test file has a test `serves_when_asked` that
//! calls [`serve_if_asked`]. These tests need root and FUSE, and fail without.
#![allow(dead_code, reason = "every test file uses a part of it")]

use espalier_client::Client;
use espalier_engine::Store;
use espalier_fs::FileSystem;
use espalier_fuse::{Ended, ForgetHook, Mount, MountOptions};
use espalier_server::ClientServer;
use espalier_storage::{Device, Environment, FileDevice, OpenMode, SystemEnvironment};
use espalier_sync::Mutex;
use rustix::process::Resource;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const IMAGE: &str = "ESPALIER_TEST_IMAGE";
const POINT: &str = "ESPALIER_TEST_POINT";
const OPTIONS: &str = "ESPALIER_TEST_OPTIONS";
/// How long a connection may be without a session, milliseconds.
const HELLO_LIMIT: &str = "ESPALIER_TEST_HELLO_LIMIT";
const READY: &str = "espalier-test: mounted";
const ENDED: &str = "espalier-test: ended";

/// Held while a process is started: until it is in its program it has everything open that the
/// tests have.
static STARTING: Mutex<()> = Mutex::new(());

/// A mounted file system, the process that serves it, and the directory that it is mounted on.
pub(crate) struct Mounted {
    server: Child,
    output: BufReader<ChildStdout>,
    directory: tempfile::TempDir,
    image: tempfile::NamedTempFile,
    ended: bool,
}

fn environment() -> Arc<dyn Environment> {
    Arc::new(SystemEnvironment::new(2))
}

fn open(image: &Path) -> Arc<Store> {
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, OpenMode::ReadWrite).unwrap());
    let options = espalier_engine::OpenOptions {
        memory: 128 << 20,
        merge: espalier_fs::merge_functions(),
        ..Default::default()
    };
    Store::open(device, environment(), options).unwrap()
}

fn format(image: &Path, bytes: u64) {
    std::fs::File::options().write(true).open(image).unwrap().set_len(bytes).unwrap();
    let device: Arc<dyn Device> = Arc::new(FileDevice::open(image, OpenMode::ReadWrite).unwrap());
    Store::format(device, environment(), &espalier_engine::FormatOptions::default()).unwrap();
    let store = open(image);
    FileSystem::format(&store, &espalier_fs::FormatOptions::default()).unwrap();
    store.close().unwrap();
}

impl Mounted {
    /// A new file system of 128 MiB.
    pub(crate) fn new(options: &str) -> Self {
        Self::of_size(128 << 20, options)
    }

    /// A new file system in an image of so many bytes.
    pub(crate) fn of_size(bytes: u64, options: &str) -> Self {
        let image = {
            let _none_starts = STARTING.lock();
            let image = tempfile::NamedTempFile::new().unwrap();
            format(image.path(), bytes);
            image
        };
        let directory = tempfile::tempdir().unwrap();
        let (server, output) = start(image.path(), directory.path(), options, &[]);
        Self { server, output, directory, image, ended: false }
    }

    /// Ends, and begins anew with a server that ends connections without a session so early.
    pub(crate) fn with_hello_limit(mut self, milliseconds: u64) -> Self {
        self.kill();
        self.unmount_dead();
        let limit = [(HELLO_LIMIT, milliseconds.to_string())];
        (self.server, self.output) = start(self.image.path(), self.directory.path(), "", &limit);
        self
    }

    fn unmount_dead(&self) {
        rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The file that the server has as its image.
    pub(crate) fn image(&self) -> &Path {
        self.image.path()
    }

    /// A client whose root is the mount's.
    pub(crate) fn client(&self) -> Client {
        Client::connect(self.path()).unwrap()
    }

    /// Unmounts; the server verifies what is stored. Returns what it said.
    pub(crate) fn end(self) -> String {
        self.end_and(|| ())
    }

    /// As [`Mounted::end`]; between, when the server has done everything, but may still have
    /// threads, `last` is done.
    pub(crate) fn end_and(mut self, last: impl FnOnce()) -> String {
        {
            let _none_starts = STARTING.lock();
            // Nothing of it may be in use: the server could not end.
            rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::empty()).unwrap();
        }
        self.ended = true;
        let mut said = self.wait_for(ENDED);
        last();
        self.output.read_to_string(&mut said).unwrap();
        assert!(self.server.wait().unwrap().success(), "the server failed: {said}");
        said
    }

    /// Waits until the server says something, or ends; returns what it said until then.
    pub(crate) fn wait_for(&mut self, words: &str) -> String {
        let mut said = String::new();
        while !said.contains(words) && self.output.read_line(&mut said).unwrap() > 0 {}
        said
    }

    /// Has the server open no more descriptors than so many; returns how many it could.
    pub(crate) fn limit_descriptors(&self, count: u64) -> u64 {
        let (pid, what) = (rustix::process::Pid::from_child(&self.server), Resource::Nofile);
        let mut limit = rustix::process::getrlimit(what);
        limit.current = Some(count);
        rustix::process::prlimit(Some(pid), what, limit).unwrap().current.unwrap_or(1024)
    }

    /// Kills the server and takes the dead mount away.
    pub(crate) fn kill(&mut self) {
        self.server.kill().unwrap();
        self.server.wait().unwrap();
    }

    /// Serves the image again, after [`Mounted::kill`], at the same place.
    pub(crate) fn serve_again(&mut self, options: &str) {
        self.unmount_dead();
        (self.server, self.output) = start(self.image.path(), self.directory.path(), options, &[]);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if !self.ended {
            // A failed test: the server ends with its mount.
            let _ = self.server.kill();
            let _ = self.server.wait();
            let _ = rustix::mount::unmount(self.path(), rustix::mount::UnmountFlags::DETACH);
        }
    }
}

fn start(
    image: &Path,
    point: &Path,
    options: &str,
    variables: &[(&str, String)],
) -> (Child, BufReader<ChildStdout>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "serves_when_asked", "--nocapture", "--test-threads=1"])
        .env(IMAGE, image)
        .env(POINT, point)
        .env(OPTIONS, options)
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped());
    let _starting = STARTING.lock();
    let mut server = command.spawn().unwrap();
    let mut said = BufReader::new(server.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(READY) {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it did not mount; these tests need root and FUSE");
    }
    (server, said)
}

/// Runs this test binary again, through `wrapper`, to carry out its test `name`; true if that
/// passed.
pub(crate) fn again(wrapper: &[&str], name: &str, variables: &[(&str, &str)]) -> bool {
    let own = std::env::current_exe().unwrap();
    let words: Vec<&std::ffi::OsStr> = wrapper.iter().map(std::ffi::OsStr::new).collect();
    let (program, rest) =
        words.split_first().map_or((own.as_os_str(), &[][..]), |(first, rest)| (*first, rest));
    let mut command = Command::new(program);
    command.args(rest);
    if !wrapper.is_empty() {
        command.arg(&own);
    }
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]).envs(variables.iter().copied());
    let _starting = STARTING.lock();
    command.status().unwrap().success()
}

/// The image that this process serves, if it was started for that.
pub(crate) fn served_image() -> Option<PathBuf> {
    std::env::var_os(IMAGE).map(PathBuf::from)
}

/// Serves, if this process was started for that; returns when the mount has ended.
pub(crate) fn serve_if_asked() {
    let Some(image) = served_image() else { return };
    // Another test may have set it, which the process has then as well.
    let _ = tracing::subscriber::set_global_default(Warnings);
    let mut options = MountOptions { source: image.clone(), ..MountOptions::default() };
    for option in std::env::var(OPTIONS).unwrap().split(',').filter(|option| !option.is_empty()) {
        assert_eq!(options.apply(option), Ok(true), "{option}");
    }
    let store = open(&image);
    let forgets = ForgetHook::default();
    let open = espalier_fs::OpenOptions {
        forget_drain: Some(forgets.drain()),
        waiter: Some(Arc::new(espalier_fuse::Requester)),
        read_only: options.read_only,
        ..Default::default()
    };
    let fs = FileSystem::open(Arc::clone(&store), environment(), open).unwrap();
    options.forgets = Some(forgets);
    let point = PathBuf::from(std::env::var_os(POINT).unwrap());
    let mount = Mount::start(Arc::clone(&fs), &point, &options).unwrap();
    let access = mount.client_access(&options).unwrap();
    let clients = match std::env::var(HELLO_LIMIT) {
        Ok(limit) => {
            let limit = Duration::from_millis(limit.parse().unwrap());
            ClientServer::start_with_hello_limit(access, limit)
        }
        Err(_) => ClientServer::start(access),
    };
    let clients = clients.unwrap();
    println!("\n{READY}");
    assert_eq!(mount.wait(), Ended::Unmounted);
    drop(clients);
    fs.close().unwrap();
    let report = store.verify(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    store.close().unwrap();
    println!("\n{ENDED}");
}

/// Has a server say its warnings.
struct Warnings;

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut said = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            said.push_str(&format!("{}={value:?} ", field.name()));
        });
        println!("warning: {said}");
    }

    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}

    fn enter(&self, _span: &tracing::span::Id) {}

    fn exit(&self, _span: &tracing::span::Id) {}
}

/// Does `work` in a process of its own, which runs as this user: the server looks at the ids of the
/// whole process. The process holds what the tests have open, so none is started meanwhile.
pub(crate) fn as_user(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce()) {
    let _starting = STARTING.lock();
    // SAFETY: the child has this thread alone, and ends without running anything of the others.
    let child = unsafe { libc::fork() };
    assert_ne!(child, -1);
    if child == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            std::panic::set_hook(Box::new(|info| {
                let said = format!("as user: {info}\n");
                // SAFETY: the bytes are there, and so many.
                unsafe { libc::write(2, said.as_ptr().cast(), said.len()) };
            }));
            // SAFETY: the calls take numbers, and a slice with its length.
            unsafe {
                assert_eq!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()), 0);
                assert_eq!(libc::syscall(libc::SYS_setresgid, gid, gid, gid), 0);
                assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
            }
            work();
        }));
        // SAFETY: nothing is to be done after it.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let mut status = -1;
    // SAFETY: there is room for one number.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "what a user does failed");
}
