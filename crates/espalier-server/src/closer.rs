//! The closer: closes descriptors that clients passed, away from the threads that serve clients.
//!
//! To close a descriptor may take as long as its file system likes: a FUSE server need not answer a
//! FLUSH, a dead NFS server does not, a socket may linger. So a serving thread closes only what the
//! kernel itself closes: memory with seals, and directories of the mount. Everything else waits in
//! the line of its user, which one thread at a time works off: a descriptor that does not close
//! holds up those of the same user alone. The threads are detached, and the end of the server does
//! not wait for them.
//!
//! Connections hold descriptors too: those of packets that nothing has read. The kernel closes them
//! with the connection. So a connection is drained first, and closed here if such a packet is left.
//!
//! What waits is bounded: a user with [`MAX_WAITING_OF_USER`] descriptors begins no session, and
//! those that it has end with their next packet. With [`MAX_WAITING`] of all users no packet with
//! descriptors is received, and with twice as many no connection is accepted.

use espalier_sync::{Mutex, MutexGuard};
use rustix::fs::{AtFlags, FileType, StatxFlags, fcntl_get_seals, statx};
use rustix::net::{RecvAncillaryBuffer, RecvFlags, ReturnFlags, Shutdown, recvmsg, shutdown, sockopt};
use std::collections::{HashMap, VecDeque};
use std::io::IoSliceMut;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Descriptors of one user that wait to be closed,
const MAX_WAITING_OF_USER: usize = 16;
/// and of all users. A packet may bring 253 more (`SCM_MAX_FD`), and a process often may have 1024.
const MAX_WAITING: usize = 256;
/// Threads that close: one user fewer may have a descriptor that does not close, and no other one
/// is held up.
const MAX_THREADS: usize = 16;

/// Closes what must not be closed by a serving thread.
pub(crate) struct Closer {
    /// The number of the device of the mount.
    device: (u32, u32),
    lines: Arc<Mutex<Lines>>,
    receiving: Mutex<()>,
}

#[derive(Default)]
struct Lines {
    /// By user; none is empty and without a thread.
    all: HashMap<u32, Line>,
    /// Descriptors in all, with those that are being closed.
    count: usize,
    threads: usize,
}

#[derive(Default)]
struct Line {
    waiting: VecDeque<OwnedFd>,
    has_thread: bool,
}

impl Line {
    fn count(&self) -> usize {
        self.waiting.len() + usize::from(self.has_thread)
    }
}

impl Closer {
    pub(crate) fn new(device: (u32, u32)) -> Arc<Self> {
        Arc::new(Self { device, lines: Arc::default(), receiving: Mutex::default() })
    }

    /// Closes a descriptor of a user, now if that waits for nothing.
    pub(crate) fn close(&self, uid: u32, descriptor: OwnedFd) {
        if !self.closes_at_once(&descriptor) {
            self.close_later(uid, descriptor);
        }
    }

    /// True for memory of the kernel, files of tmpfs included, which have seals, and for a
    /// directory of the mount: the kernel tells no server that a directory is closed, or does not
    /// wait for the answer.
    fn closes_at_once(&self, descriptor: &OwnedFd) -> bool {
        if fcntl_get_seals(descriptor).is_ok() {
            return true;
        }
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        statx(descriptor, c"", flags, StatxFlags::TYPE).is_ok_and(|found| {
            (found.stx_dev_major, found.stx_dev_minor) == self.device
                && FileType::from_raw_mode(found.stx_mode.into()) == FileType::Directory
        })
    }

    fn close_later(&self, uid: u32, descriptor: OwnedFd) {
        let mut lines = self.lines.lock();
        lines.count += 1;
        lines.all.entry(uid).or_default().waiting.push_back(descriptor);
        if lines.threads == MAX_THREADS || lines.all.values().all(|line| line.has_thread) {
            return;
        }
        let shared = Arc::clone(&self.lines);
        match std::thread::Builder::new().name("client-closer".into()).spawn(move || run(&shared)) {
            Ok(_detached) => lines.threads += 1,
            // The next descriptor brings another try.
            Err(error) => tracing::warn!(%error, "what a client passed is not closed yet"),
        }
    }

    /// True if a user has so much to be closed that nothing more is taken of it.
    pub(crate) fn is_behind_of(&self, uid: u32) -> bool {
        let lines = self.lines.lock();
        lines.all.get(&uid).is_some_and(|line| line.count() >= MAX_WAITING_OF_USER)
    }

    /// True if no more descriptors of a user can be taken, because of it or of all users.
    pub(crate) fn is_behind(&self, uid: u32) -> bool {
        self.is_behind_of(uid) || self.lines.lock().count >= MAX_WAITING
    }

    /// True if there is no room for connections either.
    pub(crate) fn is_full(&self) -> bool {
        self.lines.lock().count >= 2 * MAX_WAITING
    }

    /// Held while a packet with descriptors is received: so no more than one packet comes on top of
    /// the bounds.
    pub(crate) fn receive_alone(&self) -> MutexGuard<'_, ()> {
        self.receiving.lock()
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        if self.lines.lock().count > 0 {
            // Without a thread they would be closed here.
            std::mem::forget(Arc::clone(&self.lines));
        }
    }
}

/// Closes the descriptors of one user after the other, until no user without a thread has any.
fn run(shared: &Mutex<Lines>) {
    let mut lines = shared.lock();
    while let Some((uid, line)) = lines.all.iter_mut().find(|(_, line)| !line.has_thread) {
        let uid = *uid;
        line.has_thread = true;
        while let Some(descriptor) = lines.all.get_mut(&uid).and_then(|line| line.waiting.pop_front()) {
            MutexGuard::unlocked(&mut lines, || drop(descriptor));
            lines.count -= 1;
        }
        lines.all.remove(&uid);
    }
    lines.threads -= 1;
}

/// Descriptors that a client passed with a packet. What is left of them is closed as they allow.
pub(crate) struct Passed<'c> {
    pub(crate) descriptors: Vec<OwnedFd>,
    pub(crate) closer: &'c Closer,
    pub(crate) uid: u32,
}

impl Drop for Passed<'_> {
    fn drop(&mut self) {
        for descriptor in self.descriptors.drain(..) {
            self.closer.close(self.uid, descriptor);
        }
    }
}

/// A socket of a client, or the one that clients connect to.
pub(crate) struct Connection {
    socket: ManuallyDrop<OwnedFd>,
    uid: u32,
    closer: Arc<Closer>,
}

impl Connection {
    /// The connection of a user.
    pub(crate) fn new(socket: OwnedFd, uid: u32, closer: &Arc<Closer>) -> Self {
        Self { socket: ManuallyDrop::new(socket), uid, closer: Arc::clone(closer) }
    }

    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Ends the connection for both sides. What was sent before can be received.
    pub(crate) fn end(&self) {
        // An error means that there is none any more.
        let _ = shutdown(self, Shutdown::Both);
    }

    /// True if the next packet brings descriptors. It stays where it is.
    pub(crate) fn brings_descriptors(&self) -> rustix::io::Result<bool> {
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        // For descriptors there is no room, which the kernel tells; as the packet stays, they do.
        let none = &mut RecvAncillaryBuffer::default();
        let found = recvmsg(self, &mut [IoSliceMut::new(&mut [])], none, flags)?;
        Ok(found.flags.contains(ReturnFlags::CTRUNC))
    }

    /// Takes packets without descriptors out of a connection that has ended; true if none is left.
    fn drain(&self) -> rustix::io::Result<bool> {
        loop {
            // The ids of the sender, for which there is no room either, come with every packet,
            // also with an empty one; with the end nothing comes.
            sockopt::set_socket_passcred(self, true)?;
            if !self.brings_descriptors()? {
                return Ok(true);
            }
            sockopt::set_socket_passcred(self, false)?;
            if self.brings_descriptors()? {
                return Ok(false);
            }
            rustix::net::recv(self, &mut [0; 1][..], RecvFlags::DONTWAIT)?;
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // After this no further packet comes.
        self.end();
        // A socket that listens cannot be read: what waits to be accepted may hold descriptors too.
        let is_drained = self.drain() == Ok(true);
        // SAFETY: it is taken once, here, and not used any more.
        let socket = unsafe { ManuallyDrop::take(&mut self.socket) };
        if is_drained {
            drop(socket);
        } else {
            self.closer.close_later(self.uid, socket);
        }
    }
}

#[cfg(test)]
mod tests;
