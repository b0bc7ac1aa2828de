//! The ioctls of a mount: commands on whole trees and on snapshots.
//!
//! The kernel has checked that the caller may read the file on which the ioctl is made. Whether the
//! caller may create and remove entries in a directory is checked here; rights on what lies below
//! are checked by the file system.
//!
//! When the change is done and all locks are released, and before the caller has its answer, the
//! kernel's caches are invalidated as far as that is cheap: it looks the name up again, and either
//! a few inodes are invalidated one by one, or the epoch of all names counts up. Invalidations that
//! take time for each file are queued.

mod handles;
mod renames;
mod user_entries;

use super::caller;
use super::errno::{Errno, or_errno, shown_path};
use super::node_tag::{self, SNAPSHOT_DIRECTORY};
use super::snapshots::{self, SnapshotTable};
use crate::kernel_caches::KernelCaches;
use crate::notifier::Notifier;
use crate::protocol::control::{self, Command, Surveyed, Token, TreeBytes};
use crate::protocol::reply;
use crate::protocol::request::Header;
use espalier_fs::{
    Caller, FileSystem, FsErrorKind, ModeChange, NodeId, OwnerChange, TreeDiff, TreeLimits, WireReader,
    WireWriter,
};
use espalier_sync::Mutex;
use handles::{ChangedPaths, Comparisons, Tokens};
use std::sync::{Arc, OnceLock};

/// Where clients reach the server past the kernel.
#[derive(Debug, Default)]
pub(crate) enum ClientSocket {
    /// Nowhere.
    #[default]
    None,
    /// Nowhere yet: the mount answers before its server takes clients, also after a handover.
    Awaited,
    /// At the abstract socket with this name.
    At(String),
}

/// A call that begins to compare: the newer file system and the older one, the older directory and
/// the newer one.
type BeginDiff = fn(&FileSystem, &FileSystem, NodeId, NodeId, &Caller) -> espalier_fs::Result<TreeDiff>;

/// Carries out ioctls.
pub(super) struct TreeCommands {
    /// The live file system.
    fs: Arc<FileSystem>,
    snapshots: Arc<SnapshotTable>,
    /// With `-o writeback` the kernel has data and times that the server does not know.
    kernel_keeps_data: bool,
    /// Set once the mount exists.
    notifier: OnceLock<Arc<Notifier>>,
    caches: Arc<KernelCaches>,
    tokens: Tokens,
    comparisons: Comparisons,
    /// The socket at which clients reach the server, if it takes any.
    client_socket: Mutex<ClientSocket>,
}

impl TreeCommands {
    /// Commands on `fs` and its `snapshots`.
    pub(super) fn new(fs: Arc<FileSystem>, snapshots: Arc<SnapshotTable>, caches: Arc<KernelCaches>) -> Self {
        Self {
            fs,
            snapshots,
            kernel_keeps_data: false,
            notifier: OnceLock::new(),
            caches,
            tokens: Tokens::default(),
            comparisons: Comparisons::default(),
            client_socket: Mutex::default(),
        }
    }

    /// From now on clients reach the server at this socket, or not at all.
    pub(super) fn set_client_socket(&self, socket: ClientSocket) {
        *self.client_socket.lock() = socket;
    }

    /// The directory of a token that user `uid` got with [`Command::Client`]; it is used up.
    pub(super) fn redeem(&self, token: &Token, uid: u32) -> Option<NodeId> {
        self.tokens.take(token, uid).ok()
    }

    /// True if a program is about to ask for more of what it asked for.
    pub(super) fn is_one_under_way(&self) -> bool {
        self.comparisons.is_one_under_way()
    }

    /// Appends what another server needs to go on.
    pub(super) fn hand_over(&self, out: &mut WireWriter) {
        self.tokens.hand_over(out);
        out.u64(self.comparisons.last());
    }

    /// Goes on with what another server appended ([`TreeCommands::hand_over`]).
    pub(super) fn take_over(&self, state: &mut WireReader<'_>) -> espalier_fs::Result<()> {
        self.tokens.take_over(state)?;
        self.comparisons.go_on_after(state.u64()?);
        Ok(())
    }

    /// The kernel keeps written data to itself for a while (`-o writeback`).
    pub(super) fn expect_write_back(&mut self) {
        self.kernel_keeps_data = true;
    }

    /// Hands over what tells the kernel of changes.
    pub(super) fn attach(&self, notifier: &Arc<Notifier>) {
        // There is one mount, so it is set once.
        let _ = self.notifier.set(Arc::clone(notifier));
    }

    /// Answers the ioctl `command` with argument `input` on `node`; `room` is how many bytes of
    /// output the caller takes. The result is the length of the reply's body.
    pub(super) fn answer(
        &self,
        node: NodeId,
        header: &Header,
        command: u32,
        input: &[u8],
        room: u32,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let Some(asked) = Command::decode(command, input) else {
            let known = command >> 8 & 0xff == 0xE5 && input.len() == control::size(command);
            return Err(Errno(if known { libc::EINVAL } else { libc::ENOTTY }));
        };
        let caller = caller::of(header);
        let reads = matches!(
            asked,
            Command::Token | Command::Client | Command::Diff { .. } | Command::DiffNext { .. }
        );
        if !reads && node_tag::tag(node) != 0 {
            return Err(Errno(libc::EROFS));
        }
        let answer = self.carry_out(node, &caller, asked);
        // A command that found no room may be carried out again, when there is some.
        if !matches!(answer, Err(Errno(libc::ENOSPC))) {
            for token in asked.tokens().into_iter().flatten() {
                // It may not have been a token of this caller.
                let _ = self.tokens.take(&token, caller.uid);
            }
        }
        let answer = answer?;
        if answer.len() > room as usize {
            return Err(Errno(libc::EINVAL));
        }
        Ok(reply::ioctl(out, 0, &answer))
    }

    /// Carries out a command; the result is its output. The command's tokens stay.
    fn carry_out(&self, node: NodeId, caller: &Caller, asked: Command<'_>) -> Result<Vec<u8>, Errno> {
        let path = || self.shown_path(node);
        let mut answer = Vec::new();
        match asked {
            Command::Token => answer.extend_from_slice(&self.tokens.give(caller.uid, node)?),
            Command::Client => answer = self.lead_client(node, caller)?,
            Command::Clone { token, name: new } => self.clone_tree(node, &token, new, caller)?,
            Command::RemoveTree { name: old, leaves_empty } => {
                self.remove_tree(node, old, leaves_empty, caller)?;
            }
            Command::ChownTree { uid, gid } => {
                or_errno(self.fs.chown_tree(node, OwnerChange { uid, gid }, caller), path)?;
                self.caches.attributes_below_changed(node);
            }
            Command::ChmodTree(
                [keep_directories, add_directories, keep_files, add_files, add_executables],
            ) => {
                let change =
                    ModeChange { keep_directories, add_directories, keep_files, add_files, add_executables };
                or_errno(self.fs.chmod_tree(node, change, caller), path)?;
                self.caches.attributes_below_changed(node);
            }
            Command::Snapshot { name: new, writable, directory } => {
                self.make_snapshot(node, new, writable, directory, caller)?;
            }
            Command::SnapshotDelete { name: old, directory } => {
                self.delete_snapshot(node, old, directory, caller)?;
            }
            Command::Restore { snapshot } => self.restore(node, snapshot, caller)?,
            Command::RenameAll { staging, steps } => {
                let staging = self.tokens.find(&staging, caller.uid)?;
                let steps = self.tokens.find(&steps, caller.uid)?;
                let notifier = self.notifier.get().map(|notifier| &**notifier);
                renames::rename_all(&self.fs, notifier, (node, staging), steps, caller)?;
            }
            Command::Space => {
                if caller.uid != 0 {
                    return Err(Errno(libc::EPERM));
                }
                let (bytes, exclusive) = or_errno(self.fs.space_of_tree(node), path)?;
                answer.extend([bytes, exclusive].iter().flat_map(|n| n.to_ne_bytes()));
            }
            Command::ExclusiveSpace => {
                let exclusive = or_errno(self.fs.exclusive_space_of_tree(node, caller), path)?;
                answer.extend_from_slice(&exclusive.to_ne_bytes());
            }
            Command::SetLimits(limits) => self.set_limits(node, limits, caller)?,
            Command::GetLimits => answer = self.limits(node)?.encode().into(),
            Command::Survey { token } => answer = self.survey(&token, node, caller)?.encode(),
            Command::Quota => answer = self.quota(node, caller)?,
            Command::Diff { token } => {
                let old = self.tokens.find(&token, caller.uid)?;
                let diff = Box::new(self.compare(old, node, caller, FileSystem::diff_trees)?);
                answer.extend_from_slice(&token);
                answer.extend_from_slice(&self.comparisons.begin(caller.uid, diff).to_ne_bytes());
            }
            Command::Changes { token, is_synced } => answer = self.changes(node, token, is_synced, caller)?,
            Command::DiffNext { session } => self.comparisons.next(session, caller.uid, &mut answer)?,
        }
        Ok(answer)
    }

    /// Gives a program what it needs to become a client whose root is directory `node`.
    fn lead_client(&self, node: NodeId, caller: &Caller) -> Result<Vec<u8>, Errno> {
        let socket = match &*self.client_socket.lock() {
            ClientSocket::None => return Err(Errno(libc::EOPNOTSUPP)),
            ClientSocket::Awaited => return Err(Errno(libc::EAGAIN)),
            ClientSocket::At(name) => name.clone(),
        };
        if node_tag::tag(node) != 0 {
            return Err(Errno(libc::EXDEV));
        }
        let token = self.tokens.give(caller.uid, node)?;
        control::client_answer(&token, &socket).ok_or(Errno(libc::EIO))
    }

    /// Clones what a token stands for into directory `node`.
    fn clone_tree(&self, node: NodeId, token: &Token, new: &[u8], caller: &Caller) -> Result<(), Errno> {
        let source = self.tokens.find(token, caller.uid)?;
        if node_tag::tag(source) != 0 {
            return Err(Errno(libc::EXDEV));
        }
        self.may_change(node, caller)?;
        let made = or_errno(self.fs.clone_tree(source, node, new, caller), || self.shown_path(node))?;
        // The kernel asks for the name and takes its own reference.
        self.fs.forget(made.node, 1);
        self.caches.entry_changed(node, new);
        Ok(())
    }

    /// Gives a directory limits, or takes them away.
    fn set_limits(&self, node: NodeId, limits: TreeBytes, caller: &Caller) -> Result<(), Errno> {
        let TreeBytes { exclusive, total } = limits;
        let limits = TreeLimits { exclusive, total };
        let limits = (limits != TreeLimits::default()).then_some(limits);
        let administrates = self.may_administrate(caller).is_ok();
        or_errno(self.fs.set_quota(node, limits, caller, administrates), || self.shown_path(node))
    }

    fn limits(&self, node: NodeId) -> Result<TreeBytes, Errno> {
        let limits = or_errno(self.fs.tree_limits(node), || self.shown_path(node))?.unwrap_or_default();
        Ok(TreeBytes { exclusive: limits.exclusive, total: limits.total })
    }

    /// What a directory holds alone, what it may hold, and what differs from an older one.
    fn survey(&self, token: &Token, node: NodeId, caller: &Caller) -> Result<Surveyed, Errno> {
        let old = self.tokens.find(token, caller.uid)?;
        let path = || self.shown_path(node);
        let differences = self.compare(old, node, caller, FileSystem::diff_trees_again)?;
        let differences = or_errno(handles::some_of(differences), path)?;
        let own = match self.fs.exclusive_space_of_tree(node, caller) {
            Err(error) if error.kind() == FsErrorKind::Permission => None,
            asked => Some(or_errno(asked, path)?),
        };
        let limits = self.limits(node)?;
        let session = differences.map_or(0, |all| self.comparisons.begin(caller.uid, all));
        Ok(Surveyed { session, own, limits })
    }

    /// The limits of a directory and what it holds.
    fn quota(&self, node: NodeId, caller: &Caller) -> Result<Vec<u8>, Errno> {
        let quota = or_errno(self.fs.quota(node, caller), || self.shown_path(node))?;
        let limits = quota.map(|quota| quota.limits).unwrap_or_default();
        let held = TreeBytes {
            exclusive: quota.map(|quota| quota.exclusive),
            total: quota.and_then(|quota| quota.total),
        };
        let limits = TreeBytes { exclusive: limits.exclusive, total: limits.total };
        Ok([limits.encode(), held.encode()].concat())
    }

    /// Removes a tree, but for an empty directory if that is wanted.
    fn remove_tree(
        &self,
        dir: NodeId,
        name: &[u8],
        leaves_empty: bool,
        caller: &Caller,
    ) -> Result<(), Errno> {
        let path = || self.shown_path(dir);
        self.may_change(dir, caller)?;
        if leaves_empty {
            let gone = or_errno(self.fs.empty_tree(dir, name, caller), path)?;
            self.caches.tree_deleted(dir, name, gone);
        } else {
            or_errno(self.fs.remove_tree(dir, name, caller), path)?;
            self.caches.entry_changed(dir, name);
        }
        Ok(())
    }

    /// Makes a snapshot of the whole volume, or of a directory alone.
    fn make_snapshot(
        &self,
        node: NodeId,
        new: &[u8],
        writable: bool,
        directory: bool,
        caller: &Caller,
    ) -> Result<(), Errno> {
        let (path, new) = (|| self.shown_path(node), text(new)?);
        if !directory || node == NodeId::ROOT {
            self.may_administrate(caller)?;
            or_errno(self.fs.snapshot(new, writable), path)?;
            self.caches.entry_changed(SNAPSHOT_DIRECTORY, new.as_bytes());
            return Ok(());
        }
        or_errno(self.fs.snapshot_tree(node, new, writable, caller), path)?;
        self.snapshot_changed(node, or_errno(self.fs.getattr(node), path)?.ino, new);
        Ok(())
    }

    /// Deletes a snapshot of the whole volume, or of a directory alone (any, if it is named with a
    /// number).
    fn delete_snapshot(
        &self,
        node: NodeId,
        old: &[u8],
        directory: bool,
        caller: &Caller,
    ) -> Result<(), Errno> {
        let (path, old) = (|| self.shown_path(node), text(old)?);
        if !directory || (node == NodeId::ROOT && !old.contains('/')) {
            self.may_administrate(caller)?;
            let known = or_errno(self.fs.snapshot_of(NodeId::ROOT, old), path)?;
            or_errno(self.fs.snapshot_delete(old), path)?;
            self.snapshots.close(known.id);
            self.caches.entry_changed(SNAPSHOT_DIRECTORY, old.as_bytes());
            return Ok(());
        }
        let gone = or_errno(self.fs.snapshot_tree_delete(node, old, caller), path)?;
        self.snapshots.close(gone.id);
        match gone.directory {
            Some(number) => self.snapshot_changed(node, number, &gone.name),
            None => self.caches.entry_changed(SNAPSHOT_DIRECTORY, gone.name.as_bytes()),
        }
        Ok(())
    }

    /// Makes a directory what a snapshot holds.
    fn restore(&self, node: NodeId, snapshot: &[u8], caller: &Caller) -> Result<(), Errno> {
        let path = || self.shown_path(node);
        let (parent, own) = or_errno(self.fs.place_of(node), path)?;
        self.may_change(parent, caller)?;
        let made = or_errno(self.fs.restore_tree(parent, &own, text(snapshot)?, caller), path)?;
        // The kernel asks for the name and takes its own reference.
        self.fs.forget(made.node, 1);
        self.caches.entry_changed(parent, &own);
        Ok(())
    }

    /// A snapshot of the directory with this number is there, or is not any more.
    fn snapshot_changed(&self, node: NodeId, number: u64, name: &str) {
        if let Some(directory) = self.snapshots.known_directory(number) {
            self.caches.entry_changed(directory, name.as_bytes());
        }
        let own = self.fs.getattr(node).is_ok_and(|attr| attr.ino == number);
        let left = self.fs.snapshots_of(node).map_or(0, |all| all.len());
        // The first or the last: its directory of snapshots comes or goes.
        if own && left < 2 {
            self.caches.entry_changed(node, snapshots::NAME);
        }
    }

    /// Refuses callers that may not make and remove entries in a directory.
    fn may_change(&self, dir: NodeId, caller: &Caller) -> Result<(), Errno> {
        if caller.uid == 0 {
            return Ok(());
        }
        let attr = or_errno(self.fs.getattr(dir), || self.shown_path(dir))?;
        // An access control list may forbid what the mode allows. It is not evaluated here, so with
        // one only root and the owner may.
        let listed = || self.fs.getxattr(dir, b"system.posix_acl_access").is_ok();
        let class = match () {
            () if attr.uid == caller.uid => 6,
            () if listed() => return Err(Errno(libc::EACCES)),
            () if attr.gid == caller.gid || caller::groups(caller.pid).contains(&attr.gid) => 3,
            () => 0,
        };
        if attr.mode >> class & 3 == 3 { Ok(()) } else { Err(Errno(libc::EACCES)) }
    }

    /// Begins to compare two directories, each in the live tree or in a snapshot.
    fn compare(
        &self,
        old: NodeId,
        new: NodeId,
        caller: &Caller,
        begin: BeginDiff,
    ) -> Result<TreeDiff, Errno> {
        if node_tag::is_snapshot_directory(old) || node_tag::is_snapshot_directory(new) {
            return Err(Errno(libc::EXDEV));
        }
        let find = |node: NodeId| match node_tag::tag(node) {
            0 => Ok((None, node)),
            tag => Ok((Some(self.snapshots.opened(tag)?), node_tag::local(node))),
        };
        let ((before, old), (after, new)) = (find(old)?, find(new)?);
        let before = before.as_ref().map_or(&self.fs, |volume| volume.fs());
        let after = after.as_ref().map_or(&self.fs, |volume| volume.fs());
        or_errno(begin(after, before, old, new, caller), || self.shown_path(new))
    }

    /// What was changed below a directory since an instant, as git asks.
    fn changes(
        &self,
        node: NodeId,
        token: &[u8],
        is_synced: bool,
        caller: &Caller,
    ) -> Result<Vec<u8>, Errno> {
        let answer = |token: &[u8], session, flags| {
            control::changes_argument(token, session, flags).ok_or(Errno(libc::EIO))
        };
        if self.kernel_keeps_data && !is_synced {
            return answer(token, 0, control::CHANGES_UNSYNCED);
        }
        let changed = or_errno(self.fs.changed_paths(node, token, caller), || self.shown_path(node))?;
        let changed = changed.without_git_directory();
        let flags = if changed.everything { control::CHANGES_EVERYTHING } else { 0 };
        let session = match changed.paths.is_empty() {
            true => 0,
            false => self.comparisons.begin(caller.uid, Box::new(ChangedPaths::new(changed.paths))),
        };
        answer(changed.token.as_bytes(), session, flags)
    }

    /// Refuses callers that may not make and delete snapshots of the whole volume: all but root and
    /// the owner of the mount's root.
    fn may_administrate(&self, caller: &Caller) -> Result<(), Errno> {
        let root = or_errno(self.fs.getattr(NodeId::ROOT), || self.shown_path(NodeId::ROOT))?;
        if caller.uid == 0 || caller.uid == root.uid { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }

    fn shown_path(&self, node: NodeId) -> String {
        shown_path(&self.fs, node)
    }
}

/// The name of a snapshot.
fn text(name: &[u8]) -> Result<&str, Errno> {
    std::str::from_utf8(name).map_err(|_| Errno(libc::EINVAL))
}
