//! What ioctls do: whole trees, snapshots.
//!
//! The kernel has checked that the caller may read what the ioctl is on. That it may make or remove
//! entries in a directory is checked here; what is below is the file system's business. What the
//! kernel has cached is taken from it when the change is done and all locks are released, and
//! before the caller has its answer: what is cheap at once (a name is asked for again; a few nodes
//! are forgotten one by one, or the epoch of all names counts up), what takes time for each file
//! afterwards.

use super::errno::{Errno, of};
use super::{Dispatcher, attributes, caller, snapshots};
use crate::protocol::control::{Command, DIFFERENCES_BYTES, TOKEN_BYTES, Token};
use crate::protocol::notify::Notification;
use crate::protocol::request::Header;
use crate::protocol::{control, reply};
use espalier_fs::{Caller, Change, ModeChange, NodeId, OwnerChange, TreeDiff};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};

/// Tokens that are kept; the oldest go.
const MAX_TOKENS: usize = 4096;

/// The longest path that a comparison tells: what system calls take.
const LONGEST_PATH: usize = 4096;

/// Of as many nodes the kernel is told one by one that their attributes changed.
const TOLD_SINGLY: usize = 2048;

/// Comparisons under way at a time; the oldest goes.
const MAX_SESSIONS: usize = 64;

/// Comparisons under way, by number, with the user that began them.
#[derive(Default)]
pub(super) struct Sessions(Mutex<Comparing>);

#[derive(Default)]
struct Comparing {
    last: u64,
    all: HashMap<u64, (u32, TreeDiff)>,
}

impl Sessions {
    fn begin(&self, uid: u32, diff: TreeDiff) -> u64 {
        let Comparing { last, all } = &mut *self.0.lock();
        if all.len() >= MAX_SESSIONS
            && let Some(oldest) = all.keys().min().copied()
        {
            all.remove(&oldest);
        }
        *last += 1;
        all.insert(*last, (uid, diff));
        *last
    }
}

/// Tokens that were given out and not used.
#[derive(Default)]
pub(super) struct Tokens(Mutex<VecDeque<(Token, u32, NodeId)>>);

impl Tokens {
    fn give(&self, uid: u32, node: NodeId) -> Result<Token, Errno> {
        let mut token = [0; TOKEN_BYTES];
        let length = rustix::rand::getrandom(&mut token[..], rustix::rand::GetRandomFlags::empty());
        if length != Ok(TOKEN_BYTES) {
            return Err(Errno(libc::EIO));
        }
        let mut tokens = self.0.lock();
        if tokens.len() >= MAX_TOKENS {
            tokens.pop_front();
        }
        tokens.push_back((token, uid, node));
        Ok(token)
    }

    /// What a token stands for; it is used up.
    fn take(&self, token: &Token, uid: u32) -> Result<NodeId, Errno> {
        let mut tokens = self.0.lock();
        let found = tokens.iter().position(|(known, of, _)| known == token && *of == uid);
        found.and_then(|at| tokens.remove(at)).map(|(_, _, node)| node).ok_or(Errno(libc::ESTALE))
    }
}

impl Dispatcher {
    /// Answers an ioctl.
    pub(super) fn control(
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
        let reads = matches!(asked, Command::Token | Command::Diff { .. } | Command::DiffNext { .. });
        if !reads && snapshots::tag(node) != 0 {
            return Err(Errno(libc::EROFS));
        }
        let answer = self.carry_out(node, &caller, asked)?;
        if answer.len() > room as usize {
            return Err(Errno(libc::EINVAL));
        }
        Ok(reply::ioctl(out, 0, &answer))
    }

    /// Carries out a command; the result is its output.
    fn carry_out(&self, node: NodeId, caller: &Caller, asked: Command<'_>) -> Result<Vec<u8>, Errno> {
        let name = || self.name(node);
        let mut answer = Vec::new();
        match asked {
            Command::Token => answer.extend_from_slice(&self.tokens.give(caller.uid, node)?),
            Command::Clone { token, name: new } => {
                let source = self.tokens.take(&token, caller.uid)?;
                if snapshots::tag(source) != 0 {
                    return Err(Errno(libc::EXDEV));
                }
                self.may_change(node, caller)?;
                let made = of(self.fs.clone_tree(source, node, new, caller), name)?;
                // The kernel asks for the name and takes its own reference.
                self.fs.forget(made.node, 1);
                self.tell_entry(node, new);
            }
            Command::RemoveTree { name: old } => {
                self.may_change(node, caller)?;
                of(self.fs.remove_tree(node, old, caller), name)?;
                self.tell_entry(node, old);
            }
            Command::ChownTree { uid, gid } => {
                of(self.fs.chown_tree(node, OwnerChange { uid, gid }, caller), name)?;
                self.tell_attributes(node);
            }
            Command::ChmodTree(
                [keep_directories, add_directories, keep_files, add_files, add_executables],
            ) => {
                let change =
                    ModeChange { keep_directories, add_directories, keep_files, add_files, add_executables };
                of(self.fs.chmod_tree(node, change, caller), name)?;
                self.tell_attributes(node);
            }
            Command::Snapshot { name: new, writable, directory } => {
                self.make_snapshot(node, new, writable, directory, caller)?;
            }
            Command::SnapshotDelete { name: old, directory } => {
                self.delete_snapshot(node, old, directory, caller)?;
            }
            Command::Restore { snapshot } => self.restore(node, snapshot, caller)?,
            Command::Space => {
                if caller.uid != 0 {
                    return Err(Errno(libc::EPERM));
                }
                let (bytes, exclusive) = of(self.fs.space_of_tree(node), name)?;
                answer.extend([bytes, exclusive].iter().flat_map(|n| n.to_ne_bytes()));
            }
            Command::Diff { token } => {
                let old = self.tokens.take(&token, caller.uid)?;
                let diff = self.compare(old, node, caller)?;
                answer.extend_from_slice(&token);
                answer.extend_from_slice(&self.sessions.begin(caller.uid, diff).to_ne_bytes());
            }
            Command::DiffNext { session } => self.differences(session, caller.uid, &mut answer)?,
        }
        Ok(answer)
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
        let (name, new) = (|| self.name(node), text(new)?);
        if !directory || node == NodeId::ROOT {
            self.may_administrate(caller)?;
            of(self.fs.snapshot(new, writable), name)?;
            self.tell_entry(snapshots::DIRECTORY, new.as_bytes());
            return Ok(());
        }
        of(self.fs.snapshot_tree(node, new, writable, caller), name)?;
        self.tell_snapshot(node, of(self.fs.getattr(node), name)?.ino, new);
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
        let (name, old) = (|| self.name(node), text(old)?);
        if !directory || (node == NodeId::ROOT && !old.contains('/')) {
            self.may_administrate(caller)?;
            let known = of(self.fs.snapshot_of(NodeId::ROOT, old), name)?;
            of(self.fs.snapshot_delete(old), name)?;
            self.snapshots.close(known.id);
            self.tell_entry(snapshots::DIRECTORY, old.as_bytes());
            return Ok(());
        }
        let gone = of(self.fs.snapshot_tree_delete(node, old, caller), name)?;
        self.snapshots.close(gone.id);
        match gone.directory {
            Some(number) => self.tell_snapshot(node, number, &gone.name),
            None => self.tell_entry(snapshots::DIRECTORY, gone.name.as_bytes()),
        }
        Ok(())
    }

    /// Makes a directory what a snapshot holds.
    fn restore(&self, node: NodeId, snapshot: &[u8], caller: &Caller) -> Result<(), Errno> {
        let name = || self.name(node);
        let (parent, own) = of(self.fs.place_of(node), name)?;
        self.may_change(parent, caller)?;
        let made = of(self.fs.restore_tree(parent, &own, text(snapshot)?, caller), name)?;
        // The kernel asks for the name and takes its own reference.
        self.fs.forget(made.node, 1);
        self.tell_entry(parent, &own);
        Ok(())
    }

    /// A snapshot of the directory with this number is there, or is not any more.
    fn tell_snapshot(&self, node: NodeId, number: u64, name: &str) {
        if let Some(directory) = self.snapshots.known_directory(number) {
            self.tell_entry(directory, name.as_bytes());
        }
        let own = self.fs.getattr(node).is_ok_and(|attr| attr.ino == number);
        let left = self.fs.snapshots_of(node).map_or(0, |all| all.len());
        // The first or the last: its directory of snapshots comes or goes.
        if own && left < 2 {
            self.tell_entry(node, snapshots::NAME);
        }
    }

    /// Refuses callers that may not make and remove entries in a directory.
    fn may_change(&self, dir: NodeId, caller: &Caller) -> Result<(), Errno> {
        if caller.uid == 0 {
            return Ok(());
        }
        let attr = attributes(&of(self.fs.getattr(dir), || self.name(dir))?);
        // A list may forbid what the mode allows; callers other than the owner are not told what it
        // says.
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
    fn compare(&self, old: NodeId, new: NodeId, caller: &Caller) -> Result<TreeDiff, Errno> {
        if snapshots::is_directory(old) || snapshots::is_directory(new) {
            return Err(Errno(libc::EXDEV));
        }
        let find = |node: NodeId| match snapshots::tag(node) {
            0 => Ok((None, node)),
            tag => Ok((Some(self.snapshots.of(tag)?), NodeId(node.0 & !tag))),
        };
        let ((before, old), (after, new)) = (find(old)?, find(new)?);
        let before = before.as_ref().map_or(&self.fs, |inner| &inner.fs);
        let after = after.as_ref().map_or(&self.fs, |inner| &inner.fs);
        of(after.diff_trees(before, old, new, caller), || self.name(new))
    }

    /// As many differences as there is room for in one answer.
    fn differences(&self, session: u64, uid: u32, answer: &mut Vec<u8>) -> Result<(), Errno> {
        let mut sessions = self.sessions.0.lock();
        let (_, diff) =
            sessions.all.get_mut(&session).filter(|(by, _)| *by == uid).ok_or(Errno(libc::ESTALE))?;
        let mut data = Vec::new();
        // A path has less than 64 KiB for the kernel's users, and no room here if it has more than
        // 8 KiB.
        while data.len() + LONGEST_PATH + 3 <= DIFFERENCES_BYTES {
            let Some((change, path)) = of(diff.next(), String::new)? else { break };
            if path.len() > LONGEST_PATH {
                return Err(Errno(libc::ENAMETOOLONG));
            }
            data.push(match change {
                Change::Added => b'+',
                Change::Removed => b'-',
                _ => b'~',
            });
            data.extend_from_slice(&(path.len() as u16).to_ne_bytes());
            data.extend_from_slice(&path);
        }
        answer.extend_from_slice(&session.to_ne_bytes());
        answer.extend_from_slice(&diff.nodes().to_ne_bytes());
        answer.extend_from_slice(&(data.len() as u32).to_ne_bytes());
        answer.extend_from_slice(&[0; 4]);
        if data.is_empty() {
            sessions.all.remove(&session);
        }
        data.resize(DIFFERENCES_BYTES, 0);
        answer.extend_from_slice(&data);
        Ok(())
    }

    /// Refuses callers that may not make and delete snapshots: all but root and the owner of the
    /// mount's root.
    fn may_administrate(&self, caller: &Caller) -> Result<(), Errno> {
        let root = of(self.fs.getattr(NodeId::ROOT), || self.name(NodeId::ROOT))?;
        if caller.uid == 0 || caller.uid == root.uid { Ok(()) } else { Err(Errno(libc::EPERM)) }
    }

    /// A name means something else now.
    fn tell_entry(&self, dir: NodeId, name: &[u8]) {
        let Some(notifier) = self.notifier.get() else { return };
        let entry = |expire| Notification::Entry { parent: dir.0, name: name.to_vec(), expire };
        notifier.notify_and_wait([entry(true), Notification::Inode { node: dir.0, data: None }]);
        // Takes the time of what the kernel knows below the name.
        notifier.notify([entry(false)]);
    }

    /// The attributes of everything below a node changed.
    fn tell_attributes(&self, node: NodeId) {
        let Some(notifier) = self.notifier.get() else { return };
        let inode = |node: NodeId| Notification::Inode { node: node.0, data: None };
        // One by one if there are few. Otherwise the kernel asks for every name of the mount again,
        // as it does if an answer with what was true before may still be on its way to it: then it
        // does not know yet of what it is told.
        let few = self.fs.nodes_below(node, TOLD_SINGLY).ok().flatten();
        if !few.is_some_and(|nodes| notifier.notify_known(nodes.into_iter().map(inode).collect())) {
            notifier.notify_and_wait([Notification::Epoch, inode(node)]);
        }
        let fs = self.fs.clone();
        notifier.notify_later(move || fs.changed_nodes().into_iter().map(inode).collect());
    }
}

/// The name of a snapshot.
fn text(name: &[u8]) -> Result<&str, Errno> {
    std::str::from_utf8(name).map_err(|_| Errno(libc::EINVAL))
}
