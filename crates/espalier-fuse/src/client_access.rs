//! The mount as a server of clients sees it, which are programs that talk to the server of the
//! mount without the kernel.

use crate::dispatch::{ClientSocket, Dispatcher};
use crate::kernel_caches::KernelCaches;
use crate::protocol::control::Token;
use crate::transport::BackgroundAccess;
use espalier_fs::{FileSystem, NodeId};
use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// What a mount is, for those that ask whether something belongs to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountIdentity {
    /// The device number of what lies in it, major and minor (`st_dev`).
    pub device: (u32, u32),
    /// The user that mounted it.
    pub owner: u32,
    /// Other users are let in (`allow_other`).
    pub allows_others: bool,
    /// The kernel keeps written data, sizes and times to itself for a while (`-o writeback`).
    pub is_write_back: bool,
}

/// The access of a server of clients to the file system behind a mount.
pub struct ClientAccess {
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) background: BackgroundAccess,
    /// What the mount is.
    pub identity: MountIdentity,
}

impl ClientAccess {
    /// The file system. Calls on it are made within [`ClientAccess::call`].
    pub fn fs(&self) -> &Arc<FileSystem> {
        self.dispatcher.fs()
    }

    /// The kernel's caches, which have to be told of every change.
    pub fn caches(&self) -> &KernelCaches {
        self.dispatcher.caches()
    }

    /// Makes calls of the file system, as a request would; `None` if the file system was shut down,
    /// or is not to be trusted after a panic in it, now or before.
    pub fn call<T>(&self, call: impl FnOnce() -> T) -> Option<T> {
        if self.dispatcher.is_shut_down() {
            return None;
        }
        self.background.call(call)
    }

    /// From now on `ESPALIER_IOC_CLIENT` leads programs to the abstract socket with this name; with
    /// `None` it says that there are no clients.
    pub fn announce(&self, socket: Option<String>) {
        self.dispatcher.set_client_socket(socket.map_or(ClientSocket::None, ClientSocket::At));
    }

    /// The directory of a token that user `uid` got by `ESPALIER_IOC_CLIENT`. It is used up.
    pub fn redeem(&self, token: &Token, uid: u32) -> Option<NodeId> {
        self.dispatcher.redeem(token, uid)
    }
}

/// The device number of the root of the mount at `point`, without asking its server.
pub(crate) fn device_of(point: &Path) -> io::Result<(u32, u32)> {
    let flags = AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW;
    let found = rustix::fs::statx(CWD, point, flags, StatxFlags::INO)?;
    Ok((found.stx_dev_major, found.stx_dev_minor))
}
