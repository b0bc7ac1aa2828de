//! A session: a client's socket, the memory that it shares, its rights, and its stream.
//!
//! A client makes one call at a time, and a *turn* of the session serves one. What a turn may cost
//! is bounded by the areas of the shared memory (a read or a write), by the number of paths of a
//! call, and by [`stream`](crate::stream). Nothing that the client does is waited for: a packet is
//! taken whole or not at all, an answer that the client does not take ends the session, and bodies
//! in the shared memory are copied out once, before they are looked at. What does not keep to the
//! protocol ends the session, and concerns no other one.

use crate::admission::{Admission, admit};
use crate::changes::Changer;
use crate::failure::{Failure, Outcome};
use crate::readers::Readers;
use crate::reads;
use crate::stream::{Stream, Walk, add_paths};
use espalier_client::wire::{
    Call, ChangesHead, FRAME_MAX_BYTES, Hello, ReplyHead, RequestHead, VERSION, WelcomeFlags, Writer,
};
use espalier_fs::{Caller, Open, OwnerChange, PathCaller, Paths};
use espalier_fuse::ClientAccess;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendFlags,
    recvmsg, sendmsg,
};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// What every session uses.
pub(crate) struct Served {
    pub(crate) access: Arc<ClientAccess>,
    pub(crate) paths: Arc<Paths>,
    pub(crate) readers: Readers,
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
    socket: OwnedFd,
    /// `None` before it was let in.
    opened: Option<Opened>,
}

struct Opened {
    // Given back before the caller.
    stream: Option<Stream>,
    caller: PathCaller,
    memory: File,
    /// Bytes of the areas of requests and of answers.
    areas: (u32, u32),
    flags: WelcomeFlags,
}

/// Whether a session goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    GoesOn,
    Over,
}

/// A packet of a client.
struct Packet {
    length: usize,
    descriptors: Vec<OwnedFd>,
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
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket, opened: None }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Serves one call, if there is one.
    pub(crate) fn turn(&mut self, served: &Served, buffers: &mut Buffers) -> Turn {
        let packet = match self.receive(&mut buffers.packet) {
            Ok(Some(packet)) => packet,
            Ok(None) => return Turn::GoesOn,
            Err(()) => return Turn::Over,
        };
        let Ok((head, inline)) = RequestHead::decode(&buffers.packet[..packet.length]) else {
            return Turn::Over;
        };
        match &mut self.opened {
            None => {
                let begun = served
                    .access
                    .call(|| Opened::begin(served, &self.socket, (head, inline), packet.descriptors))
                    .unwrap_or_else(|| Err(ended()));
                self.welcome(head.id, begun)
            }
            // Descriptors come with the first call only.
            Some(_) if !packet.descriptors.is_empty() => Turn::Over,
            Some(opened) => {
                let Ok(body) = opened.body(&head, inline, &mut buffers.body) else { return Turn::Over };
                let Ok(call) = Call::decode(head.call, body) else { return Turn::Over };
                let answer =
                    served.access.call(|| opened.serve(served, &call)).unwrap_or_else(|| Err(ended()));
                let turn = self.answer(head.id, &answer);
                if let Ok(Answer { body, .. }) = answer {
                    served.readers.reuse(body);
                }
                turn
            }
        }
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
                opened.flags.encode(VERSION, &mut out);
                self.opened = Some(opened);
                self.answer(id, &Ok(Answer::whole(out.0)))
            }
            Err(failure) => {
                tracing::debug!(%failure, "a client is not let in");
                refuse(&self.socket, id, &failure);
                Turn::Over
            }
        }
    }

    /// The next packet, if there is one; an error if the client is gone, or sent what no packet is.
    fn receive(&self, buffer: &mut [u8]) -> Result<Option<Packet>, ()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = match recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
            Ok(received) => received,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            Err(_) => return Err(()),
        };
        let descriptors = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
                _ => None,
            })
            .flatten()
            .collect();
        let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
        match received.bytes {
            0 => Err(()),
            length if is_cut || length > FRAME_MAX_BYTES => Err(()),
            length => Ok(Some(Packet { length, descriptors })),
        }
    }

    fn answer(&self, id: u32, answer: &Outcome<Answer>) -> Turn {
        let answer = match answer {
            Ok(answer) => answer,
            Err(failure) if failure.errno == libc::EPROTO => return Turn::Over,
            Err(failure) => {
                return if refuse(&self.socket, id, failure) { Turn::GoesOn } else { Turn::Over };
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
        match send(&self.socket, &head, &parts) {
            true => Turn::GoesOn,
            false => Turn::Over,
        }
    }
}

fn ended() -> Failure {
    Failure::new(libc::EIO, "the file system has ended")
}

/// Sends an error; false if the client does not take it.
pub(crate) fn refuse(socket: &OwnedFd, id: u32, failure: &Failure) -> bool {
    let body = failure.shown();
    let errno = failure.errno.cast_unsigned();
    let head = ReplyHead { id, errno, in_memory: false, more: false, length: body.len() as u32 };
    send(socket, &head, &[body])
}

fn send(socket: &OwnedFd, head: &ReplyHead, body: &[&[u8]]) -> bool {
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
        socket: &OwnedFd,
        (head, body): (RequestHead, &[u8]),
        descriptors: Vec<OwnedFd>,
    ) -> Outcome<Self> {
        if head.call != Hello::NUMBER || head.in_memory {
            return Err(Failure::new(libc::EPROTO, "a session begins with another call"));
        }
        let hello = Hello::decode(body)?;
        if !(hello.versions.0..=hello.versions.1).contains(&VERSION) {
            let message = format!("the server speaks version {VERSION} of the protocol only");
            return Err(Failure::new(libc::EPROTONOSUPPORT, message));
        }
        let Ok([directory, memory]) = <[OwnedFd; 2]>::try_from(descriptors) else {
            return Err(Failure::new(libc::EPROTO, "a directory and memory have to be passed"));
        };
        check_memory(&memory, hello.areas)?;
        let access = &served.access;
        let Admission { credentials, node, is_read_only, policy } =
            admit(access, socket, &hello, &directory)?;
        let caller = served.paths.caller_in(credentials, node)?.with_umask(hello.umask).with_policy(policy);
        let flags = WelcomeFlags { read_only: is_read_only, write_back: access.identity.is_write_back };
        Ok(Self { stream: None, caller, memory: memory.into(), areas: hello.areas, flags })
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
                let walk = Walk::begin(&served.access, &self.caller, path, listing.clone())?;
                self.stream = Some(Stream::Walk(walk));
                self.more()
            }
            Call::More => self.more(),
            Call::End => {
                self.stream = None;
                whole(Vec::new())
            }
            Call::Changes { path, position } => self.changes(served, path, position),
            Call::Sync => {
                served.access.fs().syncfs()?;
                whole(Vec::new())
            }
            _ if self.flags.read_only => {
                Err(Failure::new(libc::EROFS, "the mount is read-only where the client sees it"))
            }
            call => {
                let changer = Changer { access: &served.access, caller: &self.caller };
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
    fn changes(&mut self, served: &Served, path: &[u8], position: &[u8]) -> Outcome<Answer> {
        if self.flags.write_back {
            let message = "with -o writeback the kernel has changes that the server does not know";
            return Err(Failure::new(libc::EOPNOTSUPP, message));
        }
        let directory = self.caller.open(path, &Open { directory: true, ..Open::default() })?;
        let refuse = || Failure::new(libc::EROFS, "a snapshot does not change");
        let node = directory.node().ok_or_else(refuse)?;
        let (uid, gid) = (self.caller.credentials().uid, self.caller.credentials().gid);
        let caller = Caller { uid, gid, ..Caller::default() };
        let changed = served.access.fs().changed_paths(node, position, &caller)?;
        let mut out = Writer::default();
        ChangesHead { position: changed.token.as_bytes(), everything: changed.everything }.encode(&mut out);
        let mut paths = changed.paths.into_iter();
        add_paths(&mut paths, &mut out, self.room())?;
        let more = paths.len() > 0;
        self.stream = more.then_some(Stream::Paths(paths));
        Ok(Answer { body: vec![out.0], more })
    }
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
        Call::WriteMany { how, ref files } => return changer.write_many(files, how),
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
