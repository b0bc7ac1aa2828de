//! The ioctls that Linux defines for file systems: the flags of `chattr`, `fstrim`, the label,
//! shutdown.

use super::caller;
use super::errno::{Errno, or_errno, shown_path};
use super::node_tag;
use super::snapshots::SnapshotTable;
use crate::notifier::Notifier;
use crate::protocol::linux_ioctl::{self, LinuxCommand};
use crate::protocol::request::Header;
use espalier_fs::{FileFlags, FileSystem, NodeId};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

/// Flags with the numbers that XFS has for them.
const XFLAGS: [(FileFlags, u32); 5] = [
    (FileFlags::IMMUTABLE, 0x8),
    (FileFlags::APPEND, 0x10),
    (FileFlags::SYNC, 0x20),
    (FileFlags::NOATIME, 0x40),
    (FileFlags::NODUMP, 0x80),
];

/// The flags with the numbers of XFS. Those without a number there are left out.
fn xflags(flags: FileFlags) -> u32 {
    XFLAGS.iter().filter(|(flag, _)| flags.has(*flag)).map(|(_, bit)| bit).sum()
}

/// Flags with the numbers of XFS; `None` if some do not exist here.
fn from_xflags(bits: u32) -> Option<FileFlags> {
    let known: u32 = XFLAGS.iter().map(|(_, bit)| bit).sum();
    let chosen = XFLAGS.iter().filter(|(_, bit)| bits & bit != 0).map(|(flag, _)| flag.0).sum();
    (bits & !known == 0).then_some(FileFlags(chosen))
}

/// Carries out the ioctls.
pub(super) struct LinuxCommands {
    /// The live file system.
    fs: Arc<FileSystem>,
    snapshots: Arc<SnapshotTable>,
    /// Set once the mount exists.
    notifier: OnceLock<Arc<Notifier>>,
    is_shut_down: AtomicBool,
}

impl LinuxCommands {
    /// Commands on `fs` and its `snapshots`.
    pub(super) fn new(fs: Arc<FileSystem>, snapshots: Arc<SnapshotTable>) -> Self {
        Self { fs, snapshots, notifier: OnceLock::new(), is_shut_down: AtomicBool::new(false) }
    }

    /// Hands over what tells the kernel of changes.
    pub(super) fn attach(&self, notifier: &Arc<Notifier>) {
        // There is one mount, so it is set once.
        let _ = self.notifier.set(Arc::clone(notifier));
    }

    /// Carries out a command on `node`; the result is its output. `write_pages` has the kernel
    /// write the dirty pages of the node.
    pub(super) fn carry_out(
        &self,
        node: NodeId,
        header: &Header,
        asked: LinuxCommand<'_>,
        write_pages: impl Fn(),
    ) -> Result<Vec<u8>, Errno> {
        if !asked.reads() && node_tag::tag(node) != 0 {
            return Err(Errno(libc::EROFS));
        }
        match asked {
            LinuxCommand::GetFlags => Ok(self.flags(node)?.0.to_ne_bytes().to_vec()),
            LinuxCommand::GetXflags => Ok(linux_ioctl::xflags_answer(xflags(self.flags(node)?)).to_vec()),
            LinuxCommand::SetFlags(flags) => self.set_flags(node, header, FileFlags(flags), write_pages),
            LinuxCommand::SetXflags(flags) => {
                let mut flags = flags.and_then(from_xflags).ok_or(Errno(libc::EOPNOTSUPP))?;
                flags.0 |= self.flags(node)?.0 & FileFlags::DIRSYNC.0;
                self.set_flags(node, header, flags, write_pages)
            }
            LinuxCommand::Trim { least } => {
                check_administrator(header)?;
                let trimmed = or_errno(self.fs.trim(least), || "/".into())?;
                Ok(linux_ioctl::trim_answer(trimmed, least))
            }
            LinuxCommand::GetLabel => linux_ioctl::label_bytes(&self.fs.label()).ok_or(Errno(libc::EINVAL)),
            LinuxCommand::SetLabel(label) => {
                check_administrator(header)?;
                let label = std::str::from_utf8(label).map_err(|_| Errno(libc::EINVAL))?;
                or_errno(self.fs.set_label(label), || "/".into()).map(|()| Vec::new())
            }
            LinuxCommand::ShutDown => {
                check_administrator(header)?;
                self.fs.shut_down();
                self.is_shut_down.store(true, Ordering::Release);
                Ok(Vec::new())
            }
        }
    }

    /// True if the file system was shut down: only what ends the mount is served then.
    pub(super) fn is_shut_down(&self) -> bool {
        self.is_shut_down.load(Ordering::Acquire)
    }

    /// The flags of a node of the live file system or of a snapshot.
    fn flags(&self, node: NodeId) -> Result<FileFlags, Errno> {
        if node_tag::is_snapshot_directory(node) {
            return Err(Errno(libc::ENOTTY));
        }
        let read = |fs: &FileSystem| or_errno(fs.flags(node_tag::local(node)), || shown_path(fs, node));
        match node_tag::tag(node) {
            0 => read(&self.fs),
            tag => read(self.snapshots.opened(tag)?.fs()),
        }
    }

    fn set_flags(
        &self,
        node: NodeId,
        header: &Header,
        flags: FileFlags,
        write_pages: impl Fn(),
    ) -> Result<Vec<u8>, Errno> {
        if flags.protect() {
            // What was stored before the file became immutable is to get there.
            write_pages();
        }
        let caller = caller::of_checked(header);
        or_errno(self.fs.set_flags(node, flags, &caller), || shown_path(&self.fs, node))?;
        if let Some(notifier) = self.notifier.get() {
            // The time of change.
            notifier.attributes_changed_here(node.0);
        }
        Ok(Vec::new())
    }
}

/// Refuses callers other than root and the user of the server.
fn check_administrator(header: &Header) -> Result<(), Errno> {
    let user = caller::user(header);
    if user == 0 || user == rustix::process::geteuid().as_raw() { Ok(()) } else { Err(Errno(libc::EPERM)) }
}
