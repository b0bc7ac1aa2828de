//! What the tests on real mounts share.

#![allow(dead_code, reason = "every test binary uses its own part")]

pub(crate) mod mapping;
pub(crate) mod store;
pub(crate) mod toy;

use espalier_fuse::transport::Kind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Switches FUSE over io_uring on where the kernel has it; false where it does not.
pub(crate) fn enable_uring() -> bool {
    std::fs::write("/sys/module/fuse/parameters/enable_uring", "Y").is_ok()
}

/// The transports that this kernel has.
pub(crate) fn kinds() -> Vec<Kind> {
    if enable_uring() {
        vec![Kind::Uring, Kind::Classic]
    } else {
        eprintln!("this kernel has no FUSE over io_uring: only the classic device is tested");
        vec![Kind::Classic]
    }
}

/// How many CPUs there are.
pub(crate) fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Keeps the calling thread on a CPU.
pub(crate) fn stay_on(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// Aborts a mount that takes too long, or whose test failed: a test that is its own client cannot
/// be killed while its requests wait for itself.
pub(crate) struct Watchdog {
    point: PathBuf,
    done: Option<Sender<()>>,
}

impl Watchdog {
    pub(crate) fn watch(point: &Path) -> Self {
        let (done, is_done) = channel();
        let of_thread = point.to_owned();
        std::thread::spawn(move || {
            if is_done.recv_timeout(Duration::from_secs(900)) == Err(RecvTimeoutError::Timeout) {
                eprintln!("the mount on {} took too long: aborting it", of_thread.display());
                abort(&of_thread);
            }
        });
        Self { point: point.to_owned(), done: Some(done) }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.done.take();
        if std::thread::panicking() {
            abort(&self.point);
        }
    }
}

fn abort(point: &Path) {
    use rustix::mount::{UnmountFlags, unmount};
    // It may be unmounted by now.
    let _ = unmount(point, UnmountFlags::FORCE);
    let _ = unmount(point, UnmountFlags::DETACH);
}
