//! Running programs, the kernel's caches, and the list of what must be undone.

use anyhow::{Context, Result, bail, ensure};
use espalier_sync::Mutex;
use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Fails unless the process may make loop devices and mounts.
pub(crate) fn require_root() -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "loop devices and mounts need root: run it as root");
    Ok(())
}

/// Runs a program to its end; its output becomes part of the error if it fails.
pub(crate) fn run<A: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: &[A]) -> Result<String> {
    let mut command = Command::new(program.as_ref());
    command.args(arguments).stdin(Stdio::null());
    output(&mut command)
}

/// Runs a prepared command to its end and gives back what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let out = command.output().with_context(|| format!("{shown} cannot be run"))?;
    if !out.status.success() {
        bail!("{shown} failed ({}): {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Writes everything back and empties the page, entry and inode caches.
pub(crate) fn drop_caches() -> Result<()> {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("/proc/sys/vm/drop_caches cannot be written")
}

/// syncfs, and an fsync of the root directory, because a FUSE server never hears of syncfs.
pub(crate) fn make_durable(root: &Path) -> Result<()> {
    let dir = File::open(root)?;
    rustix::fs::syncfs(&dir).context("syncfs")?;
    dir.sync_all().context("fsync of the root directory")
}

/// Has so many bytes of memory at hand, or as much as half of what is available. The host of a
/// virtual machine may have taken back what was free; the first access to such a page takes
/// longer than anything that is measured here.
pub(crate) fn touch_memory(bytes: u64) -> Result<()> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    let text = std::fs::read_to_string("/proc/meminfo").context("/proc/meminfo cannot be read")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("MemAvailable")?;
    let available: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    let length = usize::try_from(bytes.min(available << 9))?;
    if length == 0 {
        return Ok(());
    }
    let flags = MapFlags::PRIVATE | MapFlags::POPULATE;
    // SAFETY: the kernel chooses the place, so nothing of ours lies there, and nothing looks at
    // it before it is gone.
    unsafe {
        let memory = mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, flags)?;
        munmap(memory, length)?;
    }
    Ok(())
}

/// Forgets how much memory this process had at most; returns what it has now, in bytes.
pub(crate) fn begin_peak() -> Result<u64> {
    std::fs::write("/proc/self/clear_refs", "5").context("/proc/self/clear_refs cannot be written")?;
    own_memory("VmRSS:")
}

/// How much more memory this process had at most than `before`, since [`begin_peak`], in bytes.
pub(crate) fn peak_since(before: u64) -> Result<u64> {
    Ok(own_memory("VmHWM:")?.saturating_sub(before))
}

/// A line of the status of this process, in bytes.
fn own_memory(name: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10)
}

/// True if something is mounted at `dir`.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let dir = dir.to_string_lossy();
    mounts.lines().any(|line| line.split(' ').nth(1) == Some(&*dir))
}

type Action = Box<dyn FnOnce() + Send>;

/// What must be undone before the program ends, in the order in which it was done.
#[derive(Clone, Default)]
pub(crate) struct Undo(Arc<Mutex<Vec<Action>>>);

impl Undo {
    /// An empty list that is played when SIGINT, SIGTERM or SIGHUP arrives. Must be called before
    /// any other thread is started.
    pub(crate) fn on_signals() -> Self {
        let undo = Self::default();
        // SAFETY: the set is initialized by sigemptyset before it is used; the calls touch nothing
        // else.
        let set = unsafe {
            let mut set = std::mem::zeroed::<libc::sigset_t>();
            libc::sigemptyset(&mut set);
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            set
        };
        let listener = undo.clone();
        std::thread::spawn(move || {
            let mut signal = 0;
            // SAFETY: both pointers are to live values of the right types.
            unsafe { libc::sigwait(&set, &mut signal) };
            eprintln!("espalier bench: interrupted; cleaning up");
            listener.play();
            std::process::exit(130);
        });
        undo
    }

    /// Adds an action; it must not fail for having been overtaken (an unmounted directory, a loop
    /// device that is gone).
    pub(crate) fn push(&self, action: impl FnOnce() + Send + 'static) {
        self.0.lock().push(Box::new(action));
    }

    /// Undoes everything, last first. A second call has nothing to do.
    pub(crate) fn play(&self) {
        let mut actions = self.0.lock();
        while let Some(action) = actions.pop() {
            action();
        }
    }
}
