//! A command that a test stops before each of its system calls that may change a file, to kill it
//! or its server exactly there, or to let something else happen meanwhile.
//!
//! It is traced (ptrace(2)), with all calls but its own threads' and children's. So every moment at
//! which it is stopped has a number, and a test that goes through all numbers has seen all moments.

use std::ffi::{OsStr, c_long, c_void};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::ptr::null_mut;

/// A command that is stopped whenever no method of this runs.
pub struct Traced {
    child: Child,
    ended: Option<ExitStatus>,
    /// It is not traced any more.
    is_free: bool,
}

/// System calls that may change a file by a path or descriptor. Opening counts if it may create or
/// cut; writing to standard output and error does not.
const CHANGING: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_mkdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rmdir,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_unlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_symlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_link,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_renameat2,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_symlinkat,
    libc::SYS_linkat,
    libc::SYS_mknodat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    libc::SYS_utimensat,
    libc::SYS_ftruncate,
    libc::SYS_copy_file_range,
    libc::SYS_sendfile,
    libc::SYS_ioctl,
];
/// Those that change what descriptor 0 of their arguments leads to, if that is a file.
const WRITING: &[c_long] = &[libc::SYS_write, libc::SYS_writev, libc::SYS_pwrite64];
/// The last of the standard descriptors.
const STANDARD_ERROR: u64 = 2;
/// The letter of terminals in the numbers of ioctls.
const OF_TERMINALS: u64 = 'T' as u64;

impl Traced {
    /// Starts a command; it has done nothing yet. Its output is where the caller sends it, and must
    /// not be more than a pipe holds.
    pub fn start(command: &mut Command) -> Self {
        let trace_me = || {
            // SAFETY: the call takes no pointers, and is one system call.
            match unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, null_mut::<c_void>(), null_mut::<c_void>()) }
            {
                -1 => Err(std::io::Error::last_os_error()),
                _ => Ok(()),
            }
        };
        // SAFETY: the closure makes a system call and allocates nothing.
        let child = unsafe { command.pre_exec(trace_me) }.spawn().expect("the command starts");
        let mut this = Self { child, ended: None, is_free: false };
        assert_eq!(this.wait(), Some(libc::SIGTRAP), "a traced program stops at its begin");
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC | libc::PTRACE_O_EXITKILL;
        this.ask(libc::PTRACE_SETOPTIONS, 0, options as *mut c_void);
        this
    }

    /// Goes on until right before its next call that may change a file; false if it has ended.
    pub fn next_change(&mut self) -> bool {
        while self.go_on() {
            if self.is_before_a_change() {
                return true;
            }
        }
        false
    }

    /// Lets it go on without further stops.
    pub fn let_go(&mut self) {
        if self.ended.is_none() && !self.is_free {
            self.ask(libc::PTRACE_DETACH, 0, null_mut());
            self.is_free = true;
        }
    }

    /// Goes on to the end without further stops.
    pub fn finish(mut self) -> ExitStatus {
        self.let_go();
        if self.ended.is_none() {
            self.wait();
        }
        self.ended.expect("it has ended")
    }

    /// Kills it where it is.
    pub fn kill(mut self) {
        if self.ended.is_none() {
            self.child.kill().expect("a child can be killed");
            while self.ended.is_none() {
                self.wait();
            }
        }
    }

    /// How it ended, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        self.ended
    }

    /// Lets it go on to the begin or end of a system call, or to its end; then false.
    fn go_on(&mut self) -> bool {
        let mut signal = 0;
        loop {
            if self.ended.is_some() {
                return false;
            }
            self.ask(libc::PTRACE_SYSCALL, 0, signal as *mut c_void);
            match self.wait() {
                None => return false,
                Some(found) if found == libc::SIGTRAP | 0x80 => return true,
                // It is in another program from here on.
                Some(libc::SIGTRAP) => signal = 0,
                Some(other) => signal = other,
            }
        }
    }

    fn is_before_a_change(&self) -> bool {
        // SAFETY: all bytes zero are a value of this structure of numbers.
        let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
        let size = std::mem::size_of_val(&info);
        self.ask(libc::PTRACE_GET_SYSCALL_INFO, size, (&raw mut info).cast());
        if info.op != libc::PTRACE_SYSCALL_INFO_ENTRY {
            return false;
        }
        // SAFETY: the operation says which part the kernel has filled.
        let entry = unsafe { info.u.entry };
        let (call, arguments) = (entry.nr as c_long, entry.args);
        match call {
            libc::SYS_openat => arguments[2] & (libc::O_CREAT | libc::O_TRUNC) as u64 != 0,
            libc::SYS_ioctl => arguments[1] >> 8 & 0xff != OF_TERMINALS,
            _ if WRITING.contains(&call) => arguments[0] > STANDARD_ERROR,
            _ => CHANGING.contains(&call),
        }
    }

    fn ask(&self, request: libc::c_uint, address: usize, data: *mut c_void) {
        let pid = self.child.id() as libc::pid_t;
        // SAFETY: `data` is a number, or leads to as many bytes as `address` says.
        let done = unsafe { libc::ptrace(request, pid, address as *mut c_void, data) };
        assert!(done != -1, "ptrace: {}", std::io::Error::last_os_error());
    }

    /// Waits until it stops, and gives the signal; `None` if it ended.
    fn wait(&mut self) -> Option<i32> {
        let mut status = 0;
        // SAFETY: the pointer leads to a number.
        let found = unsafe { libc::waitpid(self.child.id() as libc::pid_t, &raw mut status, libc::__WALL) };
        assert_eq!(found, self.child.id() as libc::pid_t, "{}", std::io::Error::last_os_error());
        if libc::WIFSTOPPED(status) {
            return Some(libc::WSTOPSIG(status));
        }
        self.ended = Some(ExitStatus::from_raw(status));
        None
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
        }
    }
}

/// `espalier workspace` with blanks between its words, around `top`, by a user; it works outside of
/// all mounts, so that they can be taken down under it.
pub fn workspace_command(user: Option<u32>, top: &OsStr, words: &str) -> Command {
    let mut command = super::as_user(user, env!("CARGO_BIN_EXE_espalier"));
    command.arg("workspace").arg("--in").arg(top).args(words.split(' ')).current_dir("/").env("HOME", top);
    command
}
