//! A session with a server: one socket, one piece of shared memory, one call at a time.

use crate::error::{Error, Result};
use crate::wire::{
    AREA_BYTES, Call, FRAME_MAX_BYTES, Hello, IOC_CLIENT, Malformed, ReplyHead, RequestHead,
    SOCKET_NAME_BYTES, Stat, TOKEN_BYTES, VERSIONS, WelcomeFlags,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, recv, sendmsg, socket_with,
};
use std::fs::File;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// Bytes of each area of the shared memory.
const AREA: u32 = 2 << 20;
/// How long a server that is being replaced is waited for.
pub(crate) const REPLACED_LIMIT: Duration = Duration::from_secs(5);
/// How often it is looked for meanwhile.
pub(crate) const REPLACED_INTERVAL: Duration = Duration::from_millis(5);
/// How often a wait asks whether it is still wanted.
const WANTED_INTERVAL: Duration = Duration::from_millis(200);
/// A socket that refuses so often is one of another network namespace; a server that replaces
/// another one has a socket of another name.
const MAX_REFUSALS: u32 = 20;

const _: () = assert!(AREA >= *AREA_BYTES.start() && AREA <= *AREA_BYTES.end());

/// A session.
pub(crate) struct Session {
    socket: OwnedFd,
    /// The area of requests, and behind it that of replies.
    memory: File,
    /// The pages of the area of replies are there.
    has_pages: bool,
    /// What the server says of the session.
    pub(crate) flags: WelcomeFlags,
    /// The version of the protocol that is spoken.
    version: u16,
    last_id: u32,
    packet: Vec<u8>,
    body: Vec<u8>,
    /// Where the body of the last answer is: in `body`, or at these bytes of `packet`.
    inline: Option<std::ops::Range<usize>>,
}

/// How long a wait lasts at most.
pub(crate) struct Patience<'p> {
    /// `None`: for ever.
    pub(crate) deadline: Option<Instant>,
    /// Asked after each signal, and five times a second; false ends the wait. `None`: nothing ends
    /// it before.
    pub(crate) goes_on: Option<&'p mut dyn FnMut() -> bool>,
}

/// What a server answered.
pub(crate) struct Reply<'s> {
    pub(crate) body: &'s [u8],
    /// There is more of the stream.
    pub(crate) more: bool,
}

/// Where the server of a mount is to be found, and what it takes for a proof.
struct Address {
    token: [u8; TOKEN_BYTES],
    name: Vec<u8>,
}

impl Session {
    /// The most that one part of a read brings, bytes.
    pub(crate) const READ_MAX_BYTES: u64 = crate::wire::longest_read(AREA);
    /// The longest body of a request, bytes.
    pub(crate) const REQUEST_MAX_BYTES: usize = AREA as usize;

    /// Begins a session with the server of the mount in which `directory` lies, which is the root
    /// of all paths.
    ///
    /// # Errors
    /// [`Error::NoServer`].
    pub(crate) fn begin(directory: &File) -> Result<Self> {
        let deadline = Instant::now() + REPLACED_LIMIT;
        let (mut last, mut refusals) = (Vec::new(), 0);
        loop {
            let address = ask_address(directory).map_err(Error::NoServer);
            let begun = address.and_then(|address| {
                refusals = if address.name == last { refusals } else { 0 };
                last.clone_from(&address.name);
                Self::connect(&address, directory)
            });
            match begun {
                Err(Error::NoServer(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    refusals += 1;
                    if refusals == MAX_REFUSALS {
                        return Err(Error::NoServer(error));
                    }
                    std::thread::sleep(REPLACED_INTERVAL);
                }
                // The server is being replaced, or begins.
                Err(Error::NoServer(error))
                    if Instant::now() < deadline
                        && matches!(
                            error.kind(),
                            io::ErrorKind::ConnectionReset | io::ErrorKind::WouldBlock
                        ) =>
                {
                    std::thread::sleep(REPLACED_INTERVAL);
                }
                begun => return begun,
            }
        }
    }

    fn connect(address: &Address, directory: &File) -> Result<Self> {
        let no_server = |error: rustix::io::Errno| Error::NoServer(error.into());
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(no_server)?;
        let name = SocketAddrUnix::new_abstract_name(&address.name).map_err(no_server)?;
        connect(&socket, &name).map_err(no_server)?;
        let memory = shared_memory().map_err(Error::NoServer)?;
        let mut session = Self {
            socket,
            memory,
            has_pages: false,
            flags: WelcomeFlags::default(),
            version: *VERSIONS.start(),
            last_id: 0,
            packet: vec![0; FRAME_MAX_BYTES],
            body: Vec::new(),
            inline: None,
        };
        let umask = current_umask();
        let versions = VERSIONS.into_inner();
        let hello = Hello { versions, areas: (AREA, AREA), token: address.token, umask };
        session.greet(&hello.encode(), directory).map_err(|error| match error {
            Error::Refused { errno, message } => {
                let kind = io::Error::from_raw_os_error(errno).kind();
                Error::NoServer(io::Error::new(kind, message))
            }
            Error::Lost { source, .. } => Error::NoServer(source),
            other => other,
        })?;
        Ok(session)
    }

    fn greet(&mut self, hello: &[u8], directory: &File) -> Result<()> {
        let memory = self.memory.try_clone().map_err(Error::NoServer)?;
        self.send(Hello::NUMBER, hello, &[directory.as_fd(), memory.as_fd()])?;
        let (version, flags) = WelcomeFlags::decode(self.receive()?.body)?;
        if !VERSIONS.contains(&version) {
            return Err(Malformed("the server has chosen a version that was not offered").into());
        }
        (self.flags, self.version) = (flags, version);
        Ok(())
    }

    /// Makes a call and returns the answer.
    ///
    /// # Errors
    /// [`Error::Refused`], [`Error::Lost`], [`Error::TooLong`], [`Error::Malformed`]. After any but
    /// the first and [`Error::TooLong`] the session is over.
    pub(crate) fn call(&mut self, call: &Call<'_>) -> Result<Reply<'_>> {
        // What was not sent was not done.
        self.begin_call(call)?;
        self.receive().map_err(|error| match error {
            Error::Lost { source, .. } => Error::Lost { may_have_changed: !call.is_read(), source },
            other => other,
        })
    }

    /// Sends a call, whose answer [`Session::receive`] waits for.
    ///
    /// # Errors
    /// As for [`Session::call`]; [`Error::NoServer`] if there is no memory for the answer.
    pub(crate) fn begin_call(&mut self, call: &Call<'_>) -> Result<()> {
        if Call::first_version(call.number()) > self.version {
            let message = "the server is older than this call; mount again with the new program";
            return Err(Error::Refused { errno: libc::EOPNOTSUPP, message: message.into() });
        }
        let body = call.encode();
        if body.len() > Self::REQUEST_MAX_BYTES {
            return Err(Error::TooLong);
        }
        if !self.has_pages && may_fill_area(call) {
            let area = u64::from(AREA);
            fallocate(&self.memory, FallocateFlags::empty(), area, area)
                .map_err(|error| Error::NoServer(error.into()))?;
            self.has_pages = true;
        }
        self.send(call.number(), &body, &[])
    }

    /// Makes a call that the server answers when it has something to tell, at the latest when
    /// `patience` ends; `take` gets the bodies of the answer and of all that follows it.
    ///
    /// # Errors
    /// As for [`Session::call`]; of `take`.
    pub(crate) fn wait(
        &mut self,
        call: &Call<'_>,
        patience: &mut Patience<'_>,
        mut take: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        self.begin_call(call)?;
        let mut more_id = None;
        if !self.is_answered(patience)? {
            // It ends the wait. If the answer is on its way, it is asked for what follows.
            let waiting = self.last_id;
            self.send(Call::More.number(), b"", &[])?;
            more_id = Some(std::mem::replace(&mut self.last_id, waiting));
        }
        let mut answer = self.receive();
        loop {
            let ended = match answer {
                Ok(reply) => {
                    let more = reply.more;
                    take(reply.body).map(|()| more)
                }
                Err(error) => Err(error),
            };
            match (ended, more_id.take()) {
                (Ok(more), Some(id)) => {
                    self.last_id = id;
                    answer = self.receive();
                    if !more && matches!(answer, Err(Error::Refused { .. })) {
                        return Ok(());
                    }
                }
                (Err(error @ Error::Refused { .. }), Some(id)) => {
                    self.last_id = id;
                    // That there is no stream is no news.
                    return match self.receive() {
                        Err(Error::Lost { .. } | Error::Malformed(_)) => Err(Error::Lost {
                            may_have_changed: false,
                            source: io::ErrorKind::NotConnected.into(),
                        }),
                        _ => Err(error),
                    };
                }
                (Ok(true), None) => answer = self.call(&Call::More),
                (Ok(false), None) => return Ok(()),
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// True if the server has answered, or is gone; false at the end of `patience`.
    fn is_answered(&self, patience: &mut Patience<'_>) -> Result<bool> {
        loop {
            let left = patience.deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let interval = patience.goes_on.is_some().then_some(WANTED_INTERVAL);
            let time = [left, interval].into_iter().flatten().min();
            let time = time.and_then(|time| Timespec::try_from(time).ok());
            match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], time.as_ref()) {
                Ok(0) if left.is_some_and(|left| left.is_zero()) => return Ok(false),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(error) => return Err(Error::Lost { may_have_changed: false, source: error.into() }),
            }
            if patience.goes_on.as_mut().is_some_and(|goes_on| !goes_on()) {
                return Ok(false);
            }
        }
    }

    fn send(&mut self, call: u16, body: &[u8], descriptors: &[BorrowedFd<'_>]) -> Result<()> {
        let lost = |source| Error::Lost { may_have_changed: false, source };
        self.last_id = self.last_id.wrapping_add(1);
        let in_memory = body.len() > FRAME_MAX_BYTES - RequestHead::BYTES;
        if in_memory {
            self.memory.write_all_at(body, 0).map_err(lost)?;
        }
        let head = RequestHead { id: self.last_id, call, in_memory, length: body.len() as u32 }.encode().0;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(lost(io::Error::other("no room for descriptors")));
        }
        let parts = [IoSlice::new(&head), IoSlice::new(if in_memory { b"" } else { body })];
        // What the call does when the connection is gone must not depend on SIGPIPE.
        let sent = retry(|| sendmsg(&self.socket, &parts, &mut control, SendFlags::NOSIGNAL));
        match sent.map_err(lost)? == head.len() + parts[1].len() {
            true => Ok(()),
            false => Err(lost(io::ErrorKind::WriteZero.into())),
        }
    }

    /// The body of the last answer, which is the caller's then; [`Session::reuse`] takes it back.
    pub(crate) fn take_body(&mut self) -> Vec<u8> {
        match &self.inline {
            Some(place) => self.packet[place.clone()].to_vec(),
            None => std::mem::take(&mut self.body),
        }
    }

    /// Takes a body back, for later answers.
    pub(crate) fn reuse(&mut self, body: Vec<u8>) {
        if body.len() > self.body.len() {
            self.body = body;
        }
    }

    /// The body of the last answer, while it was not taken.
    pub(crate) fn last_body(&self) -> &[u8] {
        match &self.inline {
            Some(place) => &self.packet[place.clone()],
            None => &self.body,
        }
    }

    /// Waits for the answer of the call that was sent last.
    ///
    /// # Errors
    /// As for [`Session::call`].
    pub(crate) fn receive(&mut self) -> Result<Reply<'_>> {
        let lost = |source| Error::Lost { may_have_changed: false, source };
        let (socket, packet) = (&self.socket, &mut self.packet[..]);
        let length = retry(|| recv(socket, &mut *packet, RecvFlags::empty()).map(|(length, _)| length));
        let length = length.map_err(lost)?;
        if length == 0 {
            return Err(lost(io::ErrorKind::ConnectionReset.into()));
        }
        let (head, inline) = ReplyHead::decode(&self.packet[..length])?;
        if head.id != self.last_id {
            return Err(Malformed("an answer to another call").into());
        }
        self.inline = (!head.in_memory).then(|| length - inline.len()..length);
        let body = if head.in_memory {
            if head.length > AREA {
                return Err(Malformed("an answer is longer than its area").into());
            }
            self.body.resize(head.length as usize, 0);
            self.memory.read_exact_at(&mut self.body, AREA.into()).map_err(lost)?;
            &self.body[..]
        } else {
            inline
        };
        match head.errno {
            0 => Ok(Reply { body, more: head.more }),
            errno => Err(Error::Refused {
                errno: errno.cast_signed(),
                message: String::from_utf8_lossy(body).into_owned(),
            }),
        }
    }
}

fn retry<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            result => return Ok(result?),
        }
    }
}

/// True if the server may write more of the answer than a page or two to the area of replies: then
/// the pages are made before, so that they count for this process. Other answers are in the packet,
/// except where one path alone is longer.
fn may_fill_area(call: &Call<'_>) -> bool {
    match call {
        Call::Read { .. } | Call::Describe { .. } => true,
        Call::Stat { paths, .. } => paths.len() * (Stat::BYTES + 4) > FRAME_MAX_BYTES - ReplyHead::BYTES,
        _ => false,
    }
}

/// Memory for both areas, which keeps its size. Pages are made when they are needed: most sessions
/// need none.
fn shared_memory() -> io::Result<File> {
    let memory = memfd_create("espalier-client", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&memory, 2 * u64::from(AREA))?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(File::from(memory))
}

/// Asks the kernel for the server of the mount in which a directory lies.
fn ask_address(directory: &File) -> io::Result<Address> {
    let mut answer = [0u8; TOKEN_BYTES + SOCKET_NAME_BYTES];
    // SAFETY: the number says how many bytes the kernel writes, and the array has so many.
    let asked = unsafe { libc::ioctl(directory.as_raw_fd(), IOC_CLIENT as libc::Ioctl, answer.as_mut_ptr()) };
    if asked == -1 {
        return Err(io::Error::last_os_error());
    }
    let (token, name) = answer.split_at(TOKEN_BYTES);
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let mut address = Address { token: [0; TOKEN_BYTES], name: name[..end].to_vec() };
    address.token.copy_from_slice(token);
    Ok(address)
}

/// The umask of the process. It cannot be asked for without setting it, but in `/proc`.
pub fn current_umask() -> u32 {
    const USUAL: u32 = 0o022;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    line.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(USUAL)
}
