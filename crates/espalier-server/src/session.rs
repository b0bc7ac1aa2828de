//! A session: a client's socket, the memory that it shares, its rights, and its stream.
//!
//! A client makes one call at a time, and a *turn* of the session serves one. What a turn may cost
//! is bounded by the areas of the shared memory (a read or a write), by the number of paths of a
//! call, and by [`stream`](crate::stream). Nothing that the client does is waited for: a packet is
//! taken whole or not at all, an answer that the client does not take ends the session, and bodies
//! in the shared memory are copied out once, before they are looked at. Descriptors are closed by
//! the [`closer`](crate::closer). What does not keep to the protocol ends the session, and concerns
//! no other one.

use crate::admission::{Admission, Powers, admit};
use crate::changes::Changer;
use crate::closer::{Closer, Connection, Passed};
use crate::details;
use crate::failure::{Failure, Outcome};
use crate::readers::Readers;
use crate::reads;
use crate::stream::{Stream, add_paths};
use crate::stream_threads::StreamThreads;
use crate::waits::{Waiting, Waits};
use espalier_client::wire::{
    Call, ChangesHead, FRAME_MAX_BYTES, Hello, NewItem, ReplyHead, RequestHead, VERSIONS, WaitHead,
    WelcomeFlags, Writer,
};
use espalier_fs::{ChangedPaths, OwnerChange, PathCaller, Paths};
use espalier_fuse::ClientAccess;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags,
    recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

/// Descriptors that a packet can bring (`SCM_MAX_FD`).
const MAX_PASSED: usize = 253;

/// What every session uses.
pub(crate) struct Served {
    pub(crate) access: Arc<ClientAccess>,
    pub(crate) paths: Arc<Paths>,
    pub(crate) waits: Arc<Waits>,
    pub(crate) readers: Readers,
    pub(crate) streams: StreamThreads,
    pub(crate) closer: Arc<Closer>,
}

/// Memory of a thread that serves sessions.
pub(crate) struct Buffers {
    packet: Vec<u8>,
    body: Vec<u8>,
}

impl Default for Buffers {
    fn default() -> Self {
        Self { packet: vec![0; FRAME_MAX_BYTES + 1], body: Vec::new() }
    }
}

/// A client that is connected.
pub(crate) struct Session {
    connection: Arc<Connection>,
    /// By which the server knows it.
    number: u64,
    /// `None` before it was let in.
    opened: Option<Opened>,
}

struct Opened {
    // Given back before the caller.
    stream: Option<Stream>,
    /// The call that is answered when something changes.
    waiting: Option<Waiting>,
    caller: PathCaller,
    powers: Powers,
    /// The version of the protocol that is spoken.
    version: u16,
    memory: File,
    /// Bytes of the areas of requests and of answers.
    areas: (u32, u32),
    flags: WelcomeFlags,
}

/// Whether a session goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    GoesOn,
    /// It goes on, and the client was let in just now.
    Begun,
    Over,
}

/// A packet of a client.
struct Packet<'c> {
    length: usize,
    passed: Passed<'c>,
}

/// An answer: its body, in parts that follow each other, and whether there is more of the stream.
struct Answer {
    body: Vec<Vec<u8>>,
    more: bool,
}

impl Answer {
    fn whole(body: Vec<u8>) -> Self {
        Self { body: vec![body], more: false }
    }

    fn length(&self) -> usize {
        self.body.iter().map(Vec::len).sum()
    }
}

impl Session {
    pub(crate) fn new(connection: Arc<Connection>, number: u64) -> Self {
        Self { connection, number, opened: None }
    }

    /// Serves one call, if there is one.
    pub(crate) fn turn(&mut self, served: &Served, buffers: &mut Buffers) -> Turn {
        let packet = match self.receive(&served.closer, &mut buffers.packet) {
            Ok(Some(packet)) => packet,
            Ok(None) => return Turn::GoesOn,
            Err(()) => return Turn::Over,
        };
        let Ok((head, inline)) = RequestHead::decode(&buffers.packet[..packet.length]) else {
            return Turn::Over;
        };
        match &mut self.opened {
            None => {
                let Packet { mut passed, .. } = packet;
                let begun = served
                    .access
                    .call(|| Opened::begin(served, &self.connection, (head, inline), &mut passed.descriptors))
                    .unwrap_or_else(|| Err(ended()));
                // Before the client hears of it: with the directory open it could not unmount.
                drop(passed);
                self.welcome(head.id, begun)
            }
            Some(opened) if Call::first_version(head.call) > opened.version => Turn::Over,
            Some(_) => self.serve(served, &head, inline, &mut buffers.body),
        }
    }

    /// Serves a call of a client that was let in.
    fn serve(&mut self, served: &Served, head: &RequestHead, inline: &[u8], space: &mut Vec<u8>) -> Turn {
        // With a request for more the client ends a wait, and is answered twice.
        let ended_wait = match self.opened.as_mut().map(|opened| opened.end_wait(served, head.call)) {
            Some(Ok(ended)) => ended,
            _ => return Turn::Over,
        };
        if let Some((id, answer)) = ended_wait
            && self.answer(id, &Ok(answer)) == Turn::Over
        {
            return Turn::Over;
        }
        let Some(opened) = &mut self.opened else { return Turn::Over };
        let Ok(body) = opened.body(head, inline, space) else { return Turn::Over };
        let Ok(call) = Call::decode(head.call, body) else { return Turn::Over };
        let (id, number) = (head.id, self.number);
        let answer = match call {
            Call::Wait { path, position } => {
                served.access.call(|| opened.wait(served, (number, id), path, position))
            }
            call => served.access.call(|| opened.serve(served, &call).map(Some)),
        };
        self.answer_if_any(served, id, answer)
    }

    /// Looks again at what the session waits for.
    pub(crate) fn resume(&mut self, served: &Served) -> Turn {
        let Some(opened) = &mut self.opened else { return Turn::GoesOn };
        // It may have been answered meanwhile.
        let Some(id) = opened.waiting.as_ref().map(|waiting| waiting.id) else { return Turn::GoesOn };
        let looked = served.access.call(|| opened.look());
        self.answer_if_any(served, id, looked)
    }

    fn answer_if_any(&self, served: &Served, id: u32, answer: Option<Outcome<Option<Answer>>>) -> Turn {
        let answer = match answer.unwrap_or_else(|| Err(ended())).transpose() {
            None => return Turn::GoesOn,
            Some(answer) => answer,
        };
        let turn = self.answer(id, &answer);
        if let Ok(Answer { body, .. }) = answer {
            served.readers.reuse(body);
        }
        turn
    }

    /// Gives back what the session holds. If the file system is not to be trusted any more it is
    /// left as it is.
    pub(crate) fn close(self, access: &ClientAccess) {
        let mut opened = self.opened;
        if access.call(|| drop(opened.take())).is_none() {
            std::mem::forget(opened);
        }
    }

    fn welcome(&mut self, id: u32, begun: Outcome<Opened>) -> Turn {
        match begun {
            Ok(opened) => {
                let mut out = Writer::default();
                opened.flags.encode(opened.version, &mut out);
                self.opened = Some(opened);
                match self.answer(id, &Ok(Answer::whole(out.0))) {
                    Turn::GoesOn => Turn::Begun,
                    turn => turn,
                }
            }
            Err(failure) => {
                tracing::debug!(%failure, "a client is not let in");
                refuse(&self.connection, id, &failure);
                Turn::Over
            }
        }
    }

    /// The next packet, if there is one; an error if the client is gone, or sent what no packet is.
    fn receive<'c>(&self, closer: &'c Closer, buffer: &mut [u8]) -> Result<Option<Packet<'c>>, ()> {
        let received = match self.connection.brings_descriptors() {
            // They come with the first call only. Otherwise they stay in the connection, which
            // takes one place in the line of those to be closed.
            Ok(true) if self.opened.is_some() => return Err(()),
            Ok(true) => {
                let _alone = closer.receive_alone();
                if closer.is_behind(self.connection.uid()) {
                    return Err(());
                }
                match self.receive_all(closer, buffer) {
                    // What it brought is in the line before the next thread receives.
                    Ok(packet) if packet.length == 0 => {
                        drop(packet);
                        return Err(());
                    }
                    received => received,
                }
            }
            Ok(false) => self.receive_all(closer, buffer),
            Err(error) => Err(error),
        };
        match received {
            Ok(Packet { length: 0, .. }) => Err(()),
            Ok(packet) => Ok(Some(packet)),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(None),
            Err(_) => Err(()),
        }
    }

    /// The next packet with all that was passed; of no length if it is none.
    fn receive_all<'c>(&self, closer: &'c Closer, buffer: &mut [u8]) -> rustix::io::Result<Packet<'c>> {
        // Descriptors without room would be closed by the kernel, on this thread.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_PASSED))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.connection, &mut [IoSliceMut::new(buffer)], &mut control, flags)?;
        let mut passed = Passed { descriptors: Vec::new(), closer, uid: self.connection.uid() };
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                passed.descriptors.extend(descriptors);
            }
        }
        let most = if self.opened.is_none() { 2 } else { 0 };
        let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        let is_none = is_cut || received.bytes > FRAME_MAX_BYTES || passed.descriptors.len() > most;
        Ok(Packet { length: if is_none { 0 } else { received.bytes }, passed })
    }

    fn answer(&self, id: u32, answer: &Outcome<Answer>) -> Turn {
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) if failure.errno == libc::EPROTO => return Turn::Over,
            Err(failure) => {
                return if refuse(&self.connection, id, failure) { Turn::GoesOn } else { Turn::Over };
            }
        };
        let length = answer.length();
        let in_memory = length > FRAME_MAX_BYTES - ReplyHead::BYTES;
        let mut parts: Vec<&[u8]> = answer.body.iter().map(Vec::as_slice).collect();
        if in_memory {
            let place = self.opened.as_ref().map(|opened| (&opened.memory, opened.areas));
            let Some((memory, (requests, answers))) = place else { return Turn::Over };
            if length > answers as usize {
                return Turn::Over;
            }
            let mut at = u64::from(requests);
            for part in parts.drain(..) {
                if memory.write_all_at(part, at).is_err() {
                    return Turn::Over;
                }
                at += part.len() as u64;
            }
        }
        let head = ReplyHead { id, errno: 0, in_memory, more: answer.more, length: length as u32 };
        match send(&self.connection, &head, &parts) {
            true => Turn::GoesOn,
            false => Turn::Over,
        }
    }
}

fn ended() -> Failure {
    Failure::new(libc::EIO, "the file system has ended")
}

/// Sends an error; false if the client does not take it.
pub(crate) fn refuse(socket: &impl AsFd, id: u32, failure: &Failure) -> bool {
    let body = failure.shown();
    let errno = failure.errno.cast_unsigned();
    let head = ReplyHead { id, errno, in_memory: false, more: false, length: body.len() as u32 };
    send(socket, &head, &[body])
}

fn send(socket: &impl AsFd, head: &ReplyHead, body: &[&[u8]]) -> bool {
    let head = head.encode().0;
    let parts: Vec<IoSlice<'_>> =
        std::iter::once(&head[..]).chain(body.iter().copied()).map(IoSlice::new).collect();
    let length = parts.iter().map(|part| part.len()).sum::<usize>();
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), flags) {
            Err(rustix::io::Errno::INTR) => {}
            sent => return sent == Ok(length),
        }
    }
}

impl Opened {
    /// Lets a client in.
    fn begin(
        served: &Served,
        connection: &Connection,
        (head, body): (RequestHead, &[u8]),
        passed: &mut Vec<OwnedFd>,
    ) -> Outcome<Self> {
        if head.call != Hello::NUMBER || head.in_memory {
            return Err(Failure::new(libc::EPROTO, "a session begins with another call"));
        }
        let hello = Hello::decode(body)?;
        let (oldest, newest) = VERSIONS.into_inner();
        let version = newest.min(hello.versions.1);
        if version < oldest.max(hello.versions.0) {
            let message = format!("the server speaks versions {oldest} to {newest} of the protocol");
            return Err(Failure::new(libc::EPROTONOSUPPORT, message));
        }
        let wrong = || Failure::new(libc::EPROTO, "a directory and memory have to be passed");
        let [directory, memory] = &passed[..] else { return Err(wrong()) };
        check_memory(memory, hello.areas)?;
        let access = &served.access;
        let Admission { credentials, node, is_read_only, policy, powers } =
            admit(access, connection, &hello, directory)?;
        let caller = served.paths.caller_in(credentials, node)?.with_umask(hello.umask).with_policy(policy);
        let flags = WelcomeFlags { read_only: is_read_only, write_back: access.identity.is_write_back };
        let (memory, areas) = (passed.pop().ok_or_else(wrong)?.into(), hello.areas);
        Ok(Self { stream: None, waiting: None, caller, powers, version, memory, areas, flags })
    }

    /// The body of a request, copied if it lies in the shared memory.
    fn body<'b>(&self, head: &RequestHead, inline: &'b [u8], space: &'b mut Vec<u8>) -> Result<&'b [u8], ()> {
        if !head.in_memory {
            return Ok(inline);
        }
        if head.length > self.areas.0 {
            return Err(());
        }
        space.resize(head.length as usize, 0);
        self.memory.read_exact_at(space, 0).map_err(drop)?;
        Ok(space)
    }

    /// Bytes that an answer may have.
    fn room(&self) -> usize {
        self.areas.1 as usize
    }

    fn serve(&mut self, served: &Served, call: &Call<'_>) -> Outcome<Answer> {
        let whole = |body| Ok(Answer::whole(body));
        match call {
            Call::Stat { follow, paths } => whole(reads::stat(&self.caller, *follow, paths, self.room())?),
            Call::Read { pieces } => {
                Ok(Answer { body: served.readers.read(&self.caller, pieces, self.room()), more: false })
            }
            Call::ReadLink { path } => whole(reads::read_link(&self.caller, path)?),
            Call::Walk { path, listing } => {
                self.stream = None;
                let threads = (&served.streams, &served.access);
                self.stream = Some(Stream::walk(threads, &self.caller, path, listing.clone())?);
                self.more()
            }
            Call::Diff { old, new } => {
                self.stream = None;
                let threads = (&served.streams, &served.access);
                self.stream = Some(Stream::diff(threads, &self.caller, old, new)?);
                self.more()
            }
            Call::Describe { follow, asked, paths } => {
                let by = (&self.caller, self.powers);
                let limits = (self.room(), Instant::now() + details::TURN);
                whole(details::describe(by, (*asked, *follow), paths, limits))
            }
            Call::More => self.more(),
            Call::End => {
                self.stream = None;
                whole(Vec::new())
            }
            Call::Changes { path, position } => self.changes(path, position),
            Call::Sync => {
                served.access.fs().syncfs()?;
                whole(Vec::new())
            }
            _ if self.flags.read_only => {
                Err(Failure::new(libc::EROFS, "the mount is read-only where the client sees it"))
            }
            call => {
                let changer = Changer { access: &served.access, caller: &self.caller, powers: self.powers };
                whole(change(&changer, call)?)
            }
        }
    }

    /// The next piece of the stream.
    fn more(&mut self) -> Outcome<Answer> {
        let room = self.room();
        let stream = self.stream.as_mut().ok_or_else(|| Failure::new(libc::EBADF, "no stream is open"))?;
        let piece = stream.next(room);
        if !matches!(piece, Ok((_, true))) {
            self.stream = None;
        }
        piece.map(|(body, more)| Answer { body: vec![body], more })
    }

    /// What was changed below a directory.
    fn changes(&mut self, path: &[u8], position: &[u8]) -> Outcome<Answer> {
        self.check_watchable()?;
        let changed = self.caller.changed_paths(path, position)?;
        let mut out = Writer::default();
        changes_head(&changed).encode(&mut out);
        self.tell_paths(changed.paths, out)
    }

    /// Waits for a change below a directory; answers if there is one already.
    fn wait(
        &mut self,
        served: &Served,
        (number, id): (u64, u32),
        path: &[u8],
        position: &[u8],
    ) -> Outcome<Option<Answer>> {
        let (path, waiter) = (path.to_vec(), served.waits.waiter(number));
        let (exact, position) = (position.to_vec(), position.to_vec());
        self.waiting = Some(Waiting { id, path, position, exact, waiter });
        self.look()
    }

    /// Answers a wait if something was changed.
    fn look(&mut self) -> Outcome<Option<Answer>> {
        let Some(mut waiting) = self.waiting.take() else { return Ok(None) };
        self.check_watchable()?;
        let (path, exact) = (&waiting.path[..], &waiting.exact);
        let changed = self.caller.changed_paths_or_wait(path, exact, &waiting.waiter)?;
        if !changed.everything && changed.paths.is_empty() {
            (waiting.position, waiting.exact) = (changed.token.into_bytes(), changed.exact.into_bytes());
            self.waiting = Some(waiting);
            return Ok(None);
        }
        let mut out = Writer::default();
        WaitHead { exact: changed.exact.as_bytes(), changes: changes_head(&changed) }.encode(&mut out);
        self.tell_paths(changed.paths, out).map(Some)
    }

    /// Ends a wait, if there is one, because of call `number`; returns its answer, that there is
    /// nothing. An error if the call may not be made meanwhile.
    fn end_wait(&mut self, served: &Served, number: u16) -> Result<Option<(u32, Answer)>, ()> {
        if self.waiting.is_none() {
            return Ok(None);
        }
        if number != Call::More.number() {
            return Err(());
        }
        let ended = served.access.call(|| {
            self.waiting.take().map(|Waiting { id, position, exact, .. }| {
                let mut out = Writer::default();
                let changes = ChangesHead { position: &position, everything: false };
                WaitHead { exact: &exact, changes }.encode(&mut out);
                (id, Answer::whole(out.0))
            })
        });
        ended.ok_or(())
    }

    /// Refuses to tell of changes that the server does not know.
    fn check_watchable(&self) -> Outcome<()> {
        if self.flags.write_back {
            let message = "with -o writeback the kernel has changes that the server does not know";
            return Err(Failure::new(libc::EOPNOTSUPP, message));
        }
        Ok(())
    }

    /// Appends paths to an answer, as many as it has room for; the others become the stream.
    fn tell_paths(&mut self, paths: Vec<Vec<u8>>, mut out: Writer) -> Outcome<Answer> {
        let mut paths = paths.into_iter();
        add_paths(&mut paths, &mut out, self.room())?;
        let more = paths.len() > 0;
        self.stream = more.then_some(Stream::Paths(paths));
        Ok(Answer { body: vec![out.0], more })
    }
}

fn changes_head(changed: &ChangedPaths) -> ChangesHead<'_> {
    ChangesHead { position: changed.token.as_bytes(), everything: changed.everything }
}

/// Refuses memory that could change its size, or make the server wait.
fn check_memory(memory: &OwnedFd, areas: (u32, u32)) -> Outcome<()> {
    let wrong = || Failure::new(libc::EINVAL, "the shared memory is no sealed memfd, or too small");
    // Only memory of the kernel has seals, so no file system is asked for anything.
    let seals = fcntl_get_seals(memory).map_err(|_| wrong())?;
    let size = fstat(memory).map_err(|_| wrong())?.st_size;
    let is_large = u64::from(areas.0) + u64::from(areas.1) <= size.cast_unsigned();
    let is_kept = seals.contains(SealFlags::SHRINK | SealFlags::GROW) && !seals.contains(SealFlags::WRITE);
    if is_large && is_kept { Ok(()) } else { Err(wrong()) }
}

/// Makes a change; returns the body of the answer.
fn change(changer: &Changer<'_>, call: &Call<'_>) -> Outcome<Vec<u8>> {
    let owner = |uid: u32, gid: u32| {
        let given = |id: u32| (id != u32::MAX).then_some(id);
        OwnerChange { uid: given(uid), gid: given(gid) }
    };
    match *call {
        Call::WriteMany { how, ref files } => {
            let files: Vec<NewItem<'_>> = files.iter().map(|file| NewItem::plain(*file)).collect();
            return changer.write_many(&files, how);
        }
        Call::MakeMany { how, ref files } => return changer.write_many(files, how),
        Call::SetXattr { path, name, value, how, follow } => {
            changer.set_xattr((path, follow), name, value, how)
        }
        Call::RemoveXattr { path, name, follow } => changer.remove_xattr(path, name, follow),
        Call::WriteAt { path, create, truncate, offset, data } => {
            changer.write_at(path, (create, truncate), offset, data)
        }
        Call::MakeDirectory { path, mode, parents } => changer.make_directory(path, mode, parents),
        Call::Symlink { target, path } => changer.symlink(target, path),
        Call::Link { old, new } => changer.link(old, new),
        Call::Unlink { path } => changer.unlink(path),
        Call::RemoveDirectory { path } => changer.remove_directory(path),
        Call::Rename { old, new, how } => changer.rename(old, new, how),
        Call::SetMode { path, mode } => changer.set_mode(path, mode),
        Call::SetOwner { path, uid, gid, follow } => changer.set_owner(path, owner(uid, gid), follow),
        Call::SetTimes { path, atime, mtime, follow } => changer.set_times(path, (atime, mtime), follow),
        Call::Truncate { path, size } => changer.truncate(path, size),
        Call::RemoveTree { path } => changer.remove_tree(path),
        Call::CloneTree { old, new } => changer.clone_tree(old, new),
        Call::OwnTree { path, uid, gid } => changer.own_tree(path, owner(uid, gid)),
        Call::ModeTree { path, bits } => changer.mode_tree(path, bits),
        _ => Err(Failure::new(libc::ENOSYS, "there is no such change")),
    }
    .map(|()| Vec::new())
}
