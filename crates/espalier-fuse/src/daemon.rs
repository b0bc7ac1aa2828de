//! What a server in the background needs: a fork before any thread, a report to the process that
//! started it, and signals that arrive as calls.
//!
//! The daemon keeps no descriptor of its caller. A lock file or the pipe of a test runner that the
//! daemon kept open would make another process wait for as long as the mount exists.

use rustix::event::{PollFd, PollFlags, poll};
use std::fs::File;
use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// Which side of the fork this is.
pub enum Forked {
    /// The process that was there before.
    Parent(Child),
    /// The daemon.
    Daemon(Report),
}

/// The parent's end: what becomes of the daemon.
pub struct Child(File);

/// The daemon's end. Dropped without a word it says that the daemon failed.
pub struct Report(File);

/// Forks a daemon: a session of its own. Its standard streams stay until [`Report::ready`], so that
/// it can say why it fails; every other descriptor that the caller left open is closed.
///
/// Call it before the process opens anything that the daemon needs.
///
/// # Errors
/// More than one thread runs already (a fork would leave locks held for ever), or the system
/// refuses.
pub fn fork() -> io::Result<Forked> {
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        return Err(io::Error::other("a daemon can be forked only before any thread is started"));
    }
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // SAFETY: the process has one thread, so the child's copy of its memory has no lock held by
    // another.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(read);
            close_inherited(write.as_raw_fd())?;
            rustix::process::setsid()?;
            Ok(Forked::Daemon(Report(File::from(write))))
        }
        _ => {
            drop(write);
            Ok(Forked::Parent(Child(File::from(read))))
        }
    }
}

/// Closes all descriptors but the standard streams and `kept`.
fn close_inherited(kept: RawFd) -> io::Result<()> {
    // The list is complete before the first descriptor is closed: closing changes the directory.
    let listed: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|&descriptor| descriptor > libc::STDERR_FILENO && descriptor != kept)
        .collect();
    for descriptor in listed {
        // SAFETY: no object of this process owns the descriptor. The process has opened nothing but
        // the standard streams and the pipe, whose end is kept; the directory above is closed
        // already, and closing its number again fails without effect in a process of one thread.
        unsafe { libc::close(descriptor) };
    }
    Ok(())
}

impl Child {
    /// Waits until the daemon is ready, or has failed: then the error is what it said.
    ///
    /// # Errors
    /// The daemon's message; an empty one if it died without any.
    pub fn wait(mut self) -> Result<(), String> {
        let mut said = Vec::new();
        match self.0.read_to_end(&mut said) {
            Ok(_) if said.first() == Some(&0) => Ok(()),
            Ok(_) => Err(String::from_utf8_lossy(said.get(1..).unwrap_or_default()).into_owned()),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Report {
    /// True while the process that started the daemon waits for the report. It stops when it is
    /// interrupted, and then the daemon has to stop as well.
    pub fn is_awaited(&self) -> bool {
        let mut ends = [PollFd::new(&self.0, PollFlags::empty())];
        // The pipe reports an error as soon as its reader is gone.
        let ready = poll(&mut ends, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }));
        ready.is_err() || !ends[0].revents().contains(PollFlags::ERR)
    }

    /// The daemon does its work: leaves the working directory and the standard streams, and lets
    /// the parent go.
    ///
    /// # Errors
    /// The parent does not wait any more (all else is done), or what the system says.
    pub fn ready(mut self) -> io::Result<()> {
        std::env::set_current_dir("/")?;
        let null = File::options().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(null.as_fd())?;
        rustix::stdio::dup2_stdout(null.as_fd())?;
        rustix::stdio::dup2_stderr(null.as_fd())?;
        if !self.is_awaited() {
            return Err(io::Error::other("the command that started the server was interrupted"));
        }
        self.0.write_all(&[0])
    }

    /// The daemon cannot do its work; the parent is told why.
    pub fn failed(mut self, why: &str) {
        // The parent may have been interrupted.
        let _ = self.0.write_all(&[&[1], why.as_bytes()].concat());
    }
}

/// A signal that asks the process to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Termination {
    /// SIGTERM.
    Term,
    /// SIGINT.
    Interrupt,
    /// SIGHUP.
    HangUp,
}

/// The termination signals, kept from ending the process.
///
/// SIGXFSZ does not end it either: it is ignored.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks the termination signals in this thread and all that it starts from now on. Call it
    /// before starting any. What makes a file longer than the process may make one (`ulimit -f`)
    /// fails with an error and not with a signal from now on.
    ///
    /// # Errors
    /// What the system says.
    pub fn block() -> io::Result<Self> {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigemptyset` initializes the set; the others read or change an initialized one.
        let (set, result) = unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&raw mut set, signal);
            }
            (set, libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()))
        };
        // SAFETY: no handler is installed.
        unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
        if result == 0 { Ok(Self(set)) } else { Err(io::Error::from_raw_os_error(result)) }
    }

    /// True if a termination signal has arrived that [`Signals::wait`] has not returned yet.
    pub fn is_pending(&self) -> bool {
        let mut set = MaybeUninit::uninit();
        // SAFETY: `sigpending` initializes the set if it succeeds, and only then is it read.
        unsafe {
            libc::sigpending(set.as_mut_ptr()) == 0
                && [libc::SIGTERM, libc::SIGINT, libc::SIGHUP]
                    .iter()
                    .any(|&signal| libc::sigismember(set.as_ptr(), signal) == 1)
        }
    }

    /// Waits for the next one.
    pub fn wait(&self) -> Termination {
        loop {
            let mut signal = 0;
            // SAFETY: both point at initialized values that live for the length of the call.
            let result = unsafe { libc::sigwait(&raw const self.0, &raw mut signal) };
            match (result, signal) {
                (0, libc::SIGTERM) => return Termination::Term,
                (0, libc::SIGINT) => return Termination::Interrupt,
                (0, libc::SIGHUP) => return Termination::HangUp,
                _ => {}
            }
        }
    }
}
