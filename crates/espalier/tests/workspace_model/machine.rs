//! A machine whose power fails: a process that serves a mount of a simulated device, which loses
//! what was not synced, in any order, torn at sectors.
//!
//! The process is this test's own program, told by its environment to serve: a test that were its
//! own server could wait for itself. It reads commands from its standard input, answers each with a
//! line, and ends with its input. A cut takes a moment that the device has recorded since the last
//! mark, so the calls of the test end as if nothing had happened: what came after the moment is
//! lost with the mount.

use espalier_engine::{Store, VerifyReport};
use espalier_fs::FileSystem;
use espalier_fuse::{ForgetHook, Mount, MountOptions};
use espalier_storage::{Device, Environment, SimulatedDevice, SystemEnvironment};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

/// For the process: the seed of the device, and the directory to mount on.
const TASK: &str = "ESPALIER_MACHINE_TASK";
/// What the process puts before each answer.
const ANSWER: &str = "machine: ";
/// The size of the device, in bytes.
const DEVICE_BYTES: u64 = 256 << 20;
/// The memory of the store, in bytes.
const STORE_MEMORY_BYTES: u64 = 64 << 20;
/// Of so many changes of the device one is remembered as a moment at which the power may fail.
const MOMENTS_ONE_IN: u64 = 2;

/// The process, and the mount.
pub(crate) struct Machine {
    process: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(crate) mount: tempfile::TempDir,
}

impl Machine {
    /// Starts one, with a new file system that is mounted.
    pub(crate) fn start(seed: u64) -> Self {
        let mount = tempfile::Builder::new().prefix("cut-").tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "serves_when_asked", "--nocapture", "--test-threads=1"])
            .env(TASK, format!("{seed} {}", mount.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = process.stdin.take();
        let output = BufReader::new(process.stdout.take().unwrap());
        let mut this = Self { process, input, output, mount };
        this.answer();
        this
    }

    /// From now on the power fails at moments after this one.
    pub(crate) fn mark(&mut self) {
        self.ask("mark");
    }

    /// The power fails at a moment since the last mark or cut that `which` chooses, and comes back:
    /// the mount is that of what is found. Returns how many moments there were.
    pub(crate) fn cut(&mut self, which: u64, seed: u64) -> u64 {
        self.ask(&format!("cut {which} {seed}")).parse().unwrap()
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
        self.answer()
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let length = self.output.read_line(&mut line).unwrap();
            assert_ne!(length, 0, "the machine ended; these tests need root and FUSE");
            if let Some((_, answer)) = line.trim_end().split_once(ANSWER) {
                return answer.to_owned();
            }
        }
    }

    /// Unmounts, and checks what the device holds.
    pub(crate) fn end(mut self) {
        self.ask("end");
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.input.take();
        if std::thread::panicking() {
            let _ = rustix::mount::unmount(self.mount.path(), rustix::mount::UnmountFlags::DETACH);
        }
        let _ = self.process.wait();
    }
}

/// Is a machine, if this process was started for that.
pub(crate) fn serve_if_asked() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (seed, point) = task.split_once(' ').unwrap();
    let seed: u64 = seed.parse().unwrap();
    let point = PathBuf::from(point);
    let device = Arc::new(SimulatedDevice::with_garbage(DEVICE_BYTES, seed));
    let options = espalier_engine::FormatOptions::default();
    Store::format(Arc::clone(&device) as Arc<dyn Device>, environment(), &options).unwrap();
    let store = open_store(&device);
    FileSystem::format(&store, &espalier_fs::FormatOptions::default()).unwrap();
    store.close().unwrap();
    let mut running = Some(Running::start(device, &point));
    answer("mounted");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["mark"] => {
                running.as_ref().unwrap().device.take_crash_points();
                answer("marked");
            }
            ["cut", which, seed] => {
                let device = &running.as_ref().unwrap().device;
                let mut moments = device.take_crash_points();
                moments.push(device.crash_point());
                let moment = &moments[which.parse::<usize>().unwrap() % moments.len()];
                let seed: u64 = seed.parse().unwrap();
                running.take().unwrap().stop();
                // Twice the same: one to check, one to go on with.
                check(&Arc::new(moment.crash(seed)));
                running = Some(Running::start(Arc::new(moment.crash(seed)), &point));
                answer(&moments.len().to_string());
            }
            ["end"] => {
                let device = running.take().unwrap().stop();
                check(&device);
                return answer("ended");
            }
            _ => panic!("an unknown command: {line}"),
        }
    }
    if let Some(running) = running {
        running.stop();
    }
}

fn answer(text: &str) {
    // What the harness of the tests prints may stand before it.
    println!("{ANSWER}{text}");
}

/// A mounted file system.
struct Running {
    device: Arc<SimulatedDevice>,
    store: Arc<Store>,
    fs: Arc<FileSystem>,
    mount: Mount,
    point: PathBuf,
}

impl Running {
    fn start(device: Arc<SimulatedDevice>, point: &Path) -> Self {
        device.record_crash_points(MOMENTS_ONE_IN);
        let store = open_store(&device);
        let forgets = ForgetHook::default();
        let open = espalier_fs::OpenOptions {
            forget_drain: Some(forgets.drain()),
            waiter: Some(Arc::new(espalier_fuse::Requester)),
            ..Default::default()
        };
        let fs = FileSystem::open(Arc::clone(&store), environment(), open).unwrap();
        let options =
            MountOptions { forgets: Some(forgets), source: "simulated".into(), ..MountOptions::default() };
        let mount = Mount::start(Arc::clone(&fs), point, &options).unwrap();
        Self { device, store, fs, mount, point: point.to_owned() }
    }

    /// Unmounts.
    fn stop(self) -> Arc<SimulatedDevice> {
        rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH).unwrap();
        self.mount.wait();
        self.fs.close().unwrap();
        drop(self.fs);
        self.store.close().unwrap();
        self.device
    }
}

fn environment() -> Arc<dyn Environment> {
    Arc::new(SystemEnvironment::new(2))
}

fn open_store(device: &Arc<SimulatedDevice>) -> Arc<Store> {
    let options = espalier_engine::OpenOptions {
        memory: STORE_MEMORY_BYTES,
        merge: espalier_fs::merge_functions(),
        ..Default::default()
    };
    Store::open(Arc::clone(device) as Arc<dyn Device>, environment(), options).unwrap()
}

/// Every invariant holds, of the store and of the file system.
fn check(device: &Arc<SimulatedDevice>) {
    let store = open_store(device);
    let VerifyReport { problems, .. } = store.verify(&mut |_| ()).unwrap();
    assert!(problems.is_empty(), "{problems:#?}");
    let volume = espalier_fs::OpenOptions::default().volume;
    let report = espalier_fs::check(&store, &volume, &mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:#?}", report.problems);
    store.close().unwrap();
}
