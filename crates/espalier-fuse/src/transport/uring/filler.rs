//! A process that makes requests of a mount, so that every entry of a ring gets one.
//!
//! Its requests wait for answers that nothing gives until a handover has ended, one way or the
//! other, and a thread that waits so cannot be killed. So it must be a process of its own, and it
//! must have nothing of the connection: if it did, and both servers died, the kernel would see a
//! connection that is in use, and its callers would wait for ever. It is started before anything is
//! held, makes its requests when it is told how many, and ends with the last answer.
//!
//! Its standard input says how many requests on which CPU, its standard output is a descriptor of
//! the mount's root, and its standard error a pipe: while this is open the process lives.

use crate::transport::config::RequestMaker;
use crate::transport::cpu;
use rustix::fs::{AtFlags, StatxFlags};
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Stdio};

/// Stack of a thread that makes one call.
const STACK_BYTES: usize = 64 << 10;

/// The process.
pub struct Filler {
    process: Option<Child>,
    input: Option<ChildStdin>,
    lives: PipeReader,
}

impl Filler {
    /// Starts the process, for the mount of which `root` is the root.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(maker: RequestMaker, root: OwnedFd) -> io::Result<Self> {
        let (lives, life) = io::pipe()?;
        let mut command = maker();
        // Signals of the terminal are not for it.
        command.process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(root).stderr(OwnedFd::from(life));
        let mut process = command.spawn()?;
        let input = process.stdin.take();
        Ok(Self { process: Some(process), input, lives })
    }

    /// Has it make so many requests on each CPU, one from each of as many threads.
    pub(super) fn fill(&mut self, wanted: &[(usize, usize)]) -> io::Result<()> {
        let text: String = wanted.iter().map(|(cpu, count)| format!("{cpu} {count}\n")).collect();
        match self.input.take() {
            Some(mut input) => input.write_all(text.as_bytes()),
            None => Err(io::Error::other("it makes requests already")),
        }
    }

    /// At its end when the process has ended.
    pub(super) fn lives(&self) -> BorrowedFd<'_> {
        self.lives.as_fd()
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        drop(self.input.take());
        let Some(mut process) = self.process.take() else { return };
        // It ends when its requests are answered; until then callers do not wait for it here.
        let reaped = std::thread::Builder::new().name("fuse-filled".into()).spawn(move || process.wait());
        if let Err(error) = reaped {
            tracing::debug!(%error, "a process that has ended stays in the table of processes");
        }
    }
}

/// What the process of a [`Filler`] does; it is to end afterwards.
///
/// # Errors
/// Its input says nothing that it understands, or no thread can be had.
pub fn make_requests() -> io::Result<()> {
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let root = io::stdout();
    std::thread::scope(|scope| {
        for line in text.lines() {
            let (cpu, count) = line.split_once(' ').ok_or(io::ErrorKind::InvalidInput)?;
            let cpu: usize = cpu.parse().map_err(io::Error::other)?;
            for _ in 0..count.parse().map_err(io::Error::other)? {
                let root = &root;
                let body = move || {
                    // On another CPU it would fill another queue.
                    if cpu::stay_on(cpu).is_ok() {
                        request(root);
                    }
                };
                std::thread::Builder::new().stack_size(STACK_BYTES).spawn_scoped(scope, body)?;
            }
        }
        Ok(())
    })
}

/// Makes one request: the attributes of the root, whatever the kernel knows of them. To answer that
/// takes nothing and changes nothing; what the answer says does not matter.
fn request(root: &impl AsFd) {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let _ = rustix::fs::statx(root, "", flags, StatxFlags::BASIC_STATS);
}
