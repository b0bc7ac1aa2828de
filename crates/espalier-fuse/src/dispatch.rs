//! The dispatcher of a mount: decides which component answers a request.
//!
//! Requests go by node and kind to the live file system or an opened snapshot (`volume`), to the
//! directories of snapshots (`snapshots`), to the ioctls on whole trees (`control`) or those of
//! Linux (`linux_commands`), to the states of a store that the mount follows (`states`), or to the
//! description and the commands of the mount (`root_xattrs`).
//! Each component owns its state and knows only what stands below it in `layers.txt`. Errors become
//! numbers in `errno` and nowhere else.
//!
//! There are no open files: OPEN, OPENDIR and FLUSH are answered with ENOSYS, after which the
//! kernel no longer asks, and keeps the pages of files and the listings of directories. Existing
//! files are truncated by SETATTR, and O_APPEND is handled by the kernel, as it is for every local
//! file system.
//!
//! CREATE is answered with ENOSYS too, whereupon the kernel makes files by MKNOD. So every `write`
//! goes through the kernel's pages, unless its caller asked for direct I/O. That a reader of a
//! growing file never sees zeros in place of data depends on it: the kernel puts what is written
//! into the page under the page's lock, has it written by the server, and only then raises the
//! size, which a reader looks at after it has the page. A file that is opened with
//! `FOPEN_DIRECT_IO` has no such order: a reader may fill the page at the end of the file with what
//! the server has before the write, and see the size after it.

mod caller;
mod control;
mod convert;
mod dirty_pages;
mod errno;
mod fullness;
mod linux_commands;
mod listing_style;
mod node_tag;
mod root_xattrs;
mod small_reply;
mod snapshots;
mod states;
mod traced;
mod volume;

use crate::kernel_caches::KernelCaches;
use crate::metrics::{Begun, Metrics, Served, TraceEvent, kind_name};
use crate::notifier::Notifier;
use crate::prefetch::Prefetch;
use crate::protocol::control::Token;
use crate::protocol::flags::opcode;
use crate::protocol::linux_ioctl::LinuxCommand;
use crate::protocol::notify::Notification;
use crate::protocol::{Header, Operation, reply};
use crate::transport::{self, Handler, Outcome, Request};
pub(crate) use control::ClientSocket;
use control::TreeCommands;
use convert::decode;
use errno::Errno;
pub use errno::errno;
use espalier_fs::{FileSystem, NodeId, Notice, Waiter, WireReader, WireWriter};
pub(crate) use fullness::Fullness;
use linux_commands::LinuxCommands;
use root_xattrs::RootXattrs;
pub use root_xattrs::{COMMAND_XATTR, Commands, DESCRIPTION_XATTR, Description, LIST_COMMAND};
use small_reply::SmallReply;
use snapshots::SnapshotTable;
use states::StateTable;
use std::sync::Arc;
use std::time::{Duration, Instant};
use traced::Subject;
use volume::ServedVolume;

/// Whether the caller waits for the answer to the request that the calling thread serves.
#[derive(Debug, Clone, Copy, Default)]
pub struct Requester;

impl Waiter for Requester {
    fn waits(&self) -> bool {
        transport::is_caller_waiting()
    }

    fn stays(&self) -> bool {
        transport::may_commit()
    }
}

/// Serves the requests of a mount.
pub struct Dispatcher {
    live: ServedVolume,
    /// What is shown instead of the live file system, if the mount follows another writer.
    states: Option<StateTable>,
    snapshots: Arc<SnapshotTable>,
    commands: TreeCommands,
    linux_commands: LinuxCommands,
    fullness: Arc<Fullness>,
    root_xattrs: RootXattrs,
    metrics: Arc<Metrics>,
    caches: Arc<KernelCaches>,
}

impl Dispatcher {
    /// Serves `fs`. Without `xattrs` the mount has no extended attributes, which saves the requests
    /// for them. `metrics` has what was counted so far, for the description.
    pub fn new(
        fs: Arc<FileSystem>,
        xattrs: bool,
        description: Option<Description>,
        commands: Option<Commands>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let snapshots = Arc::new(SnapshotTable::new(Arc::clone(&fs), xattrs));
        let caches = Arc::new(KernelCaches::new(Arc::clone(&fs)));
        Self {
            commands: TreeCommands::new(Arc::clone(&fs), Arc::clone(&snapshots), Arc::clone(&caches)),
            linux_commands: LinuxCommands::new(Arc::clone(&fs), Arc::clone(&snapshots)),
            fullness: Arc::new(Fullness::new(Arc::clone(&fs))),
            snapshots,
            states: None,
            live: ServedVolume::live(fs, xattrs),
            root_xattrs: RootXattrs::new(description, commands),
            metrics,
            caches,
        }
    }

    /// The kernel's caches, for what changes something without a request of the kernel.
    pub(crate) fn caches(&self) -> &Arc<KernelCaches> {
        &self.caches
    }

    /// The live file system.
    pub(crate) fn fs(&self) -> &Arc<FileSystem> {
        self.live.fs()
    }

    /// See [`ClientAccess::announce`](crate::ClientAccess::announce).
    pub(crate) fn set_client_socket(&self, socket: ClientSocket) {
        self.commands.set_client_socket(socket);
    }

    /// See [`ClientAccess::redeem`](crate::ClientAccess::redeem).
    pub(crate) fn redeem(&self, token: &Token, uid: u32) -> Option<NodeId> {
        self.commands.redeem(token, uid)
    }

    /// The file system was shut down: only errors are answered.
    pub(crate) fn is_shut_down(&self) -> bool {
        self.linux_commands.is_shut_down()
    }

    /// Listings give the attributes of all entries (`-o readdirplus=always`).
    pub(crate) fn list_all_attributes(&mut self) {
        self.live.list_all_attributes();
    }

    /// The kernel keeps written data to itself for a while (`-o writeback`).
    pub(crate) fn expect_write_back(&mut self) {
        self.live.expect_write_back();
        self.commands.expect_write_back();
    }

    /// The mount follows another writer: it shows states of a store, of which the live file system
    /// is the first.
    pub(crate) fn follow(&mut self) {
        let states = StateTable::new(self.live.has_xattrs());
        // The kernel knows nothing yet, and there is no state before.
        let _ = states.show(Arc::clone(self.live.fs()), Instant::now());
        self.states = Some(states);
    }

    /// Shows a newer state ([`StateTable::show`]). Returns what the kernel has to be told of it;
    /// `None` if the mount does not follow, or can show no more states.
    pub(crate) fn show(&self, fs: Arc<FileSystem>, last_current: Instant) -> Option<Vec<Notification>> {
        self.states.as_ref()?.show(fs, last_current)
    }

    /// Closes old states ([`StateTable::close`]); returns how many there still are.
    pub(crate) fn close_states(&self, now: Instant, grace: Duration) -> usize {
        self.states.as_ref().map_or(0, |states| states.close(now, grace))
    }

    /// Hands over what tells the kernel of changes that it did not ask for.
    pub(crate) fn attach(&self, notifier: &Arc<Notifier>) {
        self.pass_on_notices(notifier);
        self.caches.attach(notifier);
        self.live.attach(notifier);
        self.commands.attach(notifier);
        self.linux_commands.attach(notifier);
    }

    /// Has the notifier tell the kernel what the file system says that it should be told.
    fn pass_on_notices(&self, notifier: &Arc<Notifier>) {
        // The file system outlives the mount.
        let (notifier, fs) = (Arc::downgrade(notifier), Arc::downgrade(self.live.fs()));
        self.live.fs().watch_notices(Arc::new(move |notice| {
            let Some(notifier) = notifier.upgrade() else { return };
            match notice {
                Notice::Attributes(node) => notifier.attributes_changed(node.0),
                Notice::OldStores(node, number) => {
                    let fs = fs.clone();
                    notifier.write_back(node.0, move || {
                        fs.upgrade().iter().for_each(|fs| fs.end_mtime_hold(node, number));
                    });
                }
            }
        }));
    }

    /// Why the mount cannot be handed over now, if it cannot.
    pub(crate) fn is_bound(&self) -> Option<&'static str> {
        if self.linux_commands.is_shut_down() {
            return Some("the file system was shut down");
        }
        self.commands.is_one_under_way().then_some("trees are being compared; try again when that has ended")
    }

    /// Appends what another server needs to go on, but for the live file system. No request is
    /// being served.
    pub(crate) fn hand_over(&self, out: &mut WireWriter) -> espalier_fs::Result<()> {
        self.snapshots.hand_over(out)?;
        self.commands.hand_over(out);
        Ok(())
    }

    /// Goes on with what another server appended ([`Dispatcher::hand_over`]).
    pub(crate) fn take_over(&self, state: &mut WireReader<'_>) -> espalier_fs::Result<()> {
        self.snapshots.take_over(state)?;
        self.commands.take_over(state)
    }

    /// Whether the store counts as full.
    pub(crate) fn fullness(&self) -> &Arc<Fullness> {
        &self.fullness
    }

    /// From now on `prefetch` hears of every request on the live file system before it is served.
    pub(crate) fn prefetch(&self, prefetch: Arc<Prefetch>) {
        self.caches.prefetch(Arc::clone(&prefetch));
        self.live.prefetch(prefetch);
    }
}

impl Handler for Dispatcher {
    fn handle(&self, request: &Request<'_>, buffer: &mut [u8], received: usize) -> Outcome {
        let tracer = self.metrics.tracer();
        let subject = if tracer.is_on() { self.subject(request, buffer, received) } else { None };
        let (recorder, arrival) = (request.recorder, &request.arrival);
        let begun = recorder.begin(&request.header, arrival, subject.is_some());
        let outcome = self.serve(request, buffer, received);
        let served = Served {
            errno: if let Outcome::Error(errno) = outcome { errno } else { 0 },
            bytes_in: received as u64,
            bytes_out: if let Outcome::Reply(length) = outcome { length as u64 } else { 0 },
        };
        let work = recorder.served(&request.header, arrival, begun, &served);
        if let Some(subject) = subject
            && let (Some(begun), Some(work)) = (begun, work)
        {
            self.trace(request, &subject, &served, begun, work);
        }
        outcome
    }

    fn unanswered(&self, header: &Header, reply: &[u8]) {
        reply::references(header.opcode, reply).for_each(|node| self.forget(NodeId(node), 1));
    }
}

impl Dispatcher {
    fn serve(&self, request: &Request<'_>, buffer: &mut [u8], received: usize) -> Outcome {
        if matches!(request.header.opcode, opcode::FORGET | opcode::BATCH_FORGET) {
            return self.answer_forget(request, buffer, received);
        }
        if self.linux_commands.is_shut_down() && !outlives_shutdown(&request.header) {
            return Outcome::Error(libc::EIO);
        }
        let mut answer = self.answer(request, buffer, received);
        // A refusal leaves the buffer, and with it the request's data, as it was.
        if matches!(answer, Err(Errno(libc::ENOSPC))) && self.live.fs().release_unlinked() {
            answer = self.answer(request, buffer, received);
        }
        if matches!(answer, Err(Errno(libc::ENOSPC))) {
            self.fullness.refused();
        }
        match answer {
            Ok(length) => Outcome::Reply(length),
            Err(Errno(errno)) => Outcome::Error(errno),
        }
    }

    /// What a request is about, for a trace; `None` for what is not traced.
    fn subject(&self, request: &Request<'_>, buffer: &[u8], received: usize) -> Option<Subject> {
        let operation = decode(request, buffer.get(..received)?).ok()?;
        Subject::of(NodeId(request.header.node), &operation)
    }

    /// Gives a request that had `begun` and took `work` to the traces that want it.
    fn trace(&self, request: &Request<'_>, subject: &Subject, served: &Served, begun: Begun, work: Duration) {
        let (header, arrival) = (&request.header, &request.arrival);
        let total = work + arrival.queue.unwrap_or_default();
        self.metrics.tracer().add(header.pid, total, || TraceEvent {
            begun: self.metrics.unix(begun.at),
            kind: kind_name(header.opcode),
            thread: header.pid,
            path: subject.path(self.live.fs(), &self.snapshots),
            queue: arrival.queue,
            work,
            bytes: served.bytes_in + served.bytes_out,
            errno: served.errno,
        });
    }

    /// Answers a request that has an answer; the result is the length of its body in bytes. Kind
    /// and node decide which component does, so that most requests are decoded once, by that
    /// component.
    fn answer(&self, request: &Request<'_>, out: &mut [u8], received: usize) -> Result<usize, Errno> {
        let node = NodeId(request.header.node);
        let payload = out.get(..received).ok_or(Errno(libc::EIO))?;
        match request.header.opcode {
            opcode::GETXATTR if node == NodeId::ROOT && self.live.has_xattrs() => {
                let Operation::GetXattr { name, size } = decode(request, payload)? else {
                    return Err(Errno(libc::EIO));
                };
                match self.root_xattrs.find(name) {
                    Some(asked) => self.root_xattrs.answer(&asked, &request.header, size, &self.metrics, out),
                    None => self.answer_on(node, request, out, received),
                }
            }
            _ => self.answer_on(node, request, out, received),
        }
    }

    /// Answers a request on a node other than for what only the mount's root has.
    fn answer_on(
        &self,
        node: NodeId,
        request: &Request<'_>,
        out: &mut [u8],
        received: usize,
    ) -> Result<usize, Errno> {
        let payload = out.get(..received).ok_or(Errno(libc::EIO))?;
        if let Some(states) = &self.states {
            return match request.header.opcode {
                // Commands are for what can be changed.
                opcode::IOCTL => Err(Errno(libc::ENOTTY)),
                _ => states.of(node)?.answer(request, out, received),
            };
        }
        match request.header.opcode {
            // Tokens and comparisons are of the whole mount.
            opcode::IOCTL => self.answer_ioctl(request, out, received),
            _ if node_tag::is_snapshot_directory(node) => self.snapshots.answer(request, out, received),
            _ if node_tag::tag(node) != 0 => {
                self.snapshots.opened(node_tag::tag(node))?.answer(request, out, received)
            }
            opcode::LOOKUP if payload.starts_with(snapshots::NAME) => match decode(request, payload)? {
                Operation::Lookup { name } if name == snapshots::NAME => {
                    Ok(self.look_snapshots_up(node)?.put(out))
                }
                _ => self.live.answer(request, out, received),
            },
            _ => self.live.answer(request, out, received),
        }
    }

    /// The entry [`snapshots::NAME`] of a directory of the live file system.
    fn look_snapshots_up(&self, node: NodeId) -> Result<SmallReply, Errno> {
        if node == NodeId::ROOT {
            return self.snapshots.root_entry();
        }
        match self.live.lookup(node, snapshots::NAME)? {
            SmallReply::NoEntry => Ok(self.snapshots.entry_in(node)?.unwrap_or(SmallReply::NoEntry)),
            entry => Ok(self.live.as_known(entry)),
        }
    }

    fn answer_ioctl(&self, request: &Request<'_>, out: &mut [u8], received: usize) -> Result<usize, Errno> {
        let node = NodeId(request.header.node);
        // The answer overwrites the request.
        let payload = out.get(..received).ok_or(Errno(libc::EIO))?.to_vec();
        let operation = decode(request, &payload)?;
        self.live.announce(node, &operation)?;
        let Operation::Ioctl { command, input, output_size, .. } = operation else {
            return Err(Errno(libc::EIO));
        };
        let Some(asked) = LinuxCommand::decode(command, input) else {
            return self.commands.answer(node, &request.header, command, input, output_size, out);
        };
        let write_pages = || self.live.write_pages(node);
        let answer = self.linux_commands.carry_out(node, &request.header, asked, write_pages)?;
        match answer.len() <= output_size as usize {
            true => Ok(reply::ioctl(out, 0, &answer)),
            false => Err(Errno(libc::EINVAL)),
        }
    }

    /// Serves FORGET and BATCH_FORGET, which have no answer.
    fn answer_forget(&self, request: &Request<'_>, buffer: &[u8], received: usize) -> Outcome {
        let payload = buffer.get(..received).ok_or(Errno(libc::EIO));
        match payload.and_then(|payload| decode(request, payload)) {
            Ok(Operation::Forget { count }) => self.forget(NodeId(request.header.node), count),
            Ok(Operation::BatchForget(list)) => {
                list.iter().for_each(|(node, count)| self.forget(NodeId(node), count));
            }
            Ok(_) => {}
            Err(Errno(errno)) => return Outcome::Error(errno),
        }
        Outcome::Silent
    }

    /// Takes back `count` references to a node of the live file system or of a snapshot.
    fn forget(&self, node: NodeId, count: u64) {
        if let Some(states) = &self.states {
            return states.forget(node, count);
        }
        match node_tag::tag(node) {
            0 => self.live.fs().forget(node, count),
            _ => self.snapshots.forget(node, count),
        }
    }
}

/// True for requests that are served when the file system was shut down: the end of the mount, and
/// its description, from which commands learn of the server.
fn outlives_shutdown(header: &Header) -> bool {
    header.opcode == opcode::DESTROY
        || (header.opcode == opcode::GETXATTR && NodeId(header.node) == NodeId::ROOT)
}

#[cfg(test)]
mod tests;
