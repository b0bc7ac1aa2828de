//! The process at the other end of a socket: its user and groups, and what the kernel says of it.

use crate::failure::{Failure, Outcome};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;

/// `SO_PEERPIDFD` of Linux 6.5.
const SO_PEERPIDFD: libc::c_int = 77;
/// More supplementary groups than a process can have.
const MAX_GROUPS: usize = 1 << 16;

/// User, group and process of the peer of a socket, as they were when it connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(super) pid: i32,
}

/// The process of a peer, held so that its number stays its own.
pub(super) struct Process {
    handle: OwnedFd,
    directory: PathBuf,
}

impl Peer {
    /// The peer of `socket`.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn of(socket: &impl AsFd) -> io::Result<Self> {
        let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = size_of::<libc::ucred>() as libc::socklen_t;
        let place = (&raw mut found).cast();
        // SAFETY: `place` has room for `length` bytes, of a type for which any bytes are a value.
        unsafe { get_option(socket, libc::SO_PEERCRED, place, &mut length) }?;
        Ok(Self { uid: found.uid, gid: found.gid, pid: found.pid })
    }

    /// Its supplementary groups.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn groups(socket: &impl AsFd) -> io::Result<Vec<u32>> {
        let mut groups = vec![0u32; 64];
        loop {
            let mut length = size_of_val(&groups[..]) as libc::socklen_t;
            // SAFETY: the vector has room for `length` bytes, and any bytes are numbers.
            let got =
                unsafe { get_option(socket, libc::SO_PEERGROUPS, groups.as_mut_ptr().cast(), &mut length) };
            match got {
                Ok(()) => {
                    groups.truncate(length as usize / size_of::<u32>());
                    return Ok(groups);
                }
                Err(error) if error.raw_os_error() == Some(libc::ERANGE) && groups.len() < MAX_GROUPS => {
                    groups.resize(groups.len() * 4, 0);
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// `getsockopt` for options of the socket level.
///
/// # Safety
/// `place` has room for `length` bytes.
unsafe fn get_option(
    socket: &impl AsFd,
    option: libc::c_int,
    place: *mut libc::c_void,
    length: &mut libc::socklen_t,
) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the caller says that so many bytes have room.
    match unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, option, place, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

impl Process {
    /// The process of a peer that connected by `socket`.
    ///
    /// # Errors
    /// It has ended, or cannot be seen from here.
    pub(super) fn of(socket: &impl AsFd, peer: &Peer) -> Outcome<Self> {
        let unseen = || Failure::new(libc::EACCES, "the process cannot be seen from the server");
        let pid = rustix::process::Pid::from_raw(peer.pid).filter(|_| peer.pid > 0).ok_or_else(unseen)?;
        let handle = match peer_handle(socket) {
            Some(handle) => handle,
            None => rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
                .map_err(|error| Failure::from(io::Error::from(error)))?,
        };
        Ok(Self { handle, directory: PathBuf::from(format!("/proc/{}", peer.pid)) })
    }

    /// A file that `/proc` has of it.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn read(&self, name: &str) -> Outcome<Vec<u8>> {
        std::fs::read(self.directory.join(name))
            .map_err(|error| Failure::new(libc::EACCES, format!("{name} of the process: {error}")))
    }

    /// The profile by which AppArmor confines it; empty where there is no AppArmor.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn profile(&self) -> Outcome<Vec<u8>> {
        let own = self.read_if_there("attr/apparmor/current")?;
        let is_on = || std::fs::read("/sys/module/apparmor/parameters/enabled").is_ok_and(|on| on == b"Y\n");
        match own.is_empty() && is_on() {
            // Linux before 5.8.
            true => self.read_if_there("attr/current"),
            false => Ok(own),
        }
    }

    /// A file that `/proc` may have of it; nothing where the kernel does not fill it.
    fn read_if_there(&self, name: &str) -> Outcome<Vec<u8>> {
        match std::fs::read(self.directory.join(name)) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINVAL)) => Ok(Vec::new()),
            Err(error) => Err(Failure::new(libc::EACCES, format!("{name} of the process: {error}"))),
            read => Ok(read?),
        }
    }

    /// True if it is in the user namespace of the server.
    pub(super) fn has_own_users(&self) -> bool {
        let users = |of: &std::path::Path| std::fs::read_link(of.join("ns/user")).ok();
        let own = users(std::path::Path::new("/proc/self"));
        own.is_some() && own == users(&self.directory)
    }

    /// What was read of it was of the process that connected, which has not ended yet.
    ///
    /// # Errors
    /// It has ended.
    pub(super) fn check_lives(&self) -> Outcome<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match poll(&mut [PollFd::new(&self.handle, PollFlags::IN)], Some(&now)) {
            Ok(0) => Ok(()),
            _ => Err(Failure::new(libc::ESRCH, "the process that connected has ended")),
        }
    }
}

/// A handle of the very process that connected, where the kernel gives one.
fn peer_handle(socket: &impl AsFd) -> Option<OwnedFd> {
    let mut handle: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: there is room for one number.
    unsafe { get_option(socket, SO_PEERPIDFD, (&raw mut handle).cast(), &mut length) }.ok()?;
    // SAFETY: the kernel has just opened it for this process, and nothing else knows it.
    (handle >= 0).then(|| unsafe { OwnedFd::from_raw_fd(handle) })
}

/// The value of a line of `/proc/PID/status`.
pub(super) fn field<'a>(status: &'a str, name: &str) -> &'a str {
    status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim()
}
