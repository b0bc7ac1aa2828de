//! The server of clients: the socket, the threads, and which session is served next.
//!
//! A session is ready when its client has sent a packet. Threads take the session that has been
//! ready for the longest time, serve one call of it, and put it behind the others (the kernel keeps
//! the row: epoll with one event per arming): so each client waits for one turn of every other one
//! at most. A session that waits for a change is armed too, and looked at again when it is woken.
//! Memory is that of the threads' buffers, at most two areas each, and of four pieces for
//! each walk; connections are limited in all and for each user ([`places`](crate::places)).

use crate::admission::{Peer, check_user};
use crate::closer::{Closer, Connection};
use crate::failure::{Failure, Outcome};
use crate::places::Places;
use crate::readers::Readers;
use crate::session::{Buffers, Served, Session, Turn, refuse};
use crate::stream_threads::StreamThreads;
use crate::timer::Timer;
use crate::waits::Waits;
use espalier_fs::Paths;
use espalier_fuse::ClientAccess;
use espalier_sync::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a connection may be without a session.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// How long no connection is accepted after that has failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The user of descriptors that are no user's.
const NO_USER: u32 = u32::MAX;
/// Threads that serve sessions at most.
const MAX_THREADS: usize = 4;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// What an event is about; sessions have higher numbers.
const STOP: u64 = 0;
const LISTENER: u64 = 1;
const WOKEN: u64 = 2;
const TIME: u64 = 3;

/// Serves the clients of a mount until it is dropped. Then no call is under way any more, and
/// nothing of the file system is in use by a client.
pub struct ClientServer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    served: Served,
    listener: Connection,
    /// What the listener is bound to.
    name: String,
    timer: Timer,
    events: OwnedFd,
    /// Becomes readable when the threads are to stop.
    stop: OwnedFd,
    is_stopping: AtomicBool,
    sessions: Mutex<Sessions>,
}

struct Sessions {
    last: u64,
    all: HashMap<u64, Entry>,
    places: Places,
    /// When connections are accepted again.
    accepts_at: Option<Instant>,
    /// The log says already that none is accepted.
    is_pause_told: bool,
    /// Programs are told that no client is taken.
    is_hidden: bool,
}

struct Entry {
    /// As the session has it: it can be ended while the session is served.
    connection: Arc<Connection>,
    session: Arc<Mutex<Session>>,
}

impl ClientServer {
    /// Begins to serve clients of the mount behind `access`.
    ///
    /// # Errors
    /// No thread or descriptor is left; of the store.
    pub fn start(access: ClientAccess) -> io::Result<Self> {
        Self::start_with_hello_limit(access, HELLO_LIMIT)
    }

    /// Begins to serve clients, each of which has to begin its session within a time.
    ///
    /// # Errors
    /// As for [`Self::start`].
    pub fn start_with_hello_limit(access: ClientAccess, hello_limit: Duration) -> io::Result<Self> {
        let access = Arc::new(access);
        let opened = access.call(|| Paths::new(Arc::clone(access.fs())));
        let paths = opened.ok_or(io::ErrorKind::BrokenPipe)?.map_err(io::Error::other)?;
        let closer = Closer::new(access.identity.device);
        let (listener, name) = listener()?;
        let listener = Connection::new(listener, NO_USER, &closer);
        let (events, stop) =
            (epoll::create(epoll::CreateFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?);
        epoll::add(&events, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        epoll::add(&events, &listener, epoll::EventData::new_u64(LISTENER), once())?;
        let waits = Waits::new()?;
        // Each event has one thread look; what was counted is never taken out.
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&events, waits.event(), epoll::EventData::new_u64(WOKEN), edge)?;
        let timer = Timer::new()?;
        epoll::add(&events, &timer, epoll::EventData::new_u64(TIME), edge)?;
        let places = Places::new(access.identity.owner, hello_limit);
        let sessions = Sessions::new(places);
        let shared = Arc::new(Shared {
            served: Served {
                readers: Readers::start(&access)?,
                access,
                paths,
                waits,
                streams: StreamThreads::default(),
                closer,
            },
            listener,
            name,
            timer,
            events,
            stop,
            is_stopping: AtomicBool::new(false),
            sessions: Mutex::new(sessions),
        });
        let mut server = Self { shared, threads: Vec::new() };
        let count = std::thread::available_parallelism().map_or(1, usize::from).clamp(2, MAX_THREADS);
        for _ in 0..count {
            let shared = Arc::clone(&server.shared);
            let thread = std::thread::Builder::new().name("clients".into()).spawn(move || shared.run())?;
            server.threads.push(thread);
        }
        server.shared.served.access.announce(Some(server.shared.name.clone()));
        Ok(server)
    }
}

impl Drop for ClientServer {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        if let Err(error) = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes()) {
            tracing::error!(%error, "the threads that serve clients do not stop");
            return;
        }
        for thread in self.threads.drain(..) {
            // A panic there has been reported by the panic itself.
            let _ = thread.join();
        }
        for (_, Entry { session, .. }) in self.shared.sessions.lock().all.drain() {
            if let Some(session) = Arc::into_inner(session) {
                session.into_inner().close(&self.shared.served.access);
            }
        }
    }
}

/// One event, and then none until it is armed again.
fn once() -> epoll::EventFlags {
    epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT
}

/// A socket that listens at a name that nothing else has, and the name.
fn listener() -> io::Result<(OwnedFd, String)> {
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty())?;
    let name = format!("espalier-client-{:032x}", u128::from_ne_bytes(random));
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    listen(&socket, BACKLOG)?;
    Ok((socket, name))
}

impl Shared {
    fn run(&self) {
        let mut buffers = Buffers::default();
        let mut events = Vec::with_capacity(1);
        while !self.is_stopping.load(Ordering::Acquire) {
            events.clear();
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "clients are not served any more");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    STOP => return,
                    LISTENER => self.accept(),
                    WOKEN => self.wake(),
                    TIME => self.look_at_time(),
                    number => self.serve(number, &mut buffers),
                }
            }
        }
    }

    /// Serves a turn of a session.
    fn serve(&self, number: u64, buffers: &mut Buffers) {
        let Some((connection, session)) = self.session(number) else { return };
        // Of a user whose descriptors do not close nothing more is taken.
        let turn = match self.served.closer.is_behind_of(connection.uid()) {
            true => Turn::Over,
            false => session.lock().turn(&self.served, buffers),
        };
        if turn == Turn::Begun {
            self.sessions.lock().places.begin(number);
        }
        let armed = || epoll::modify(&self.events, &connection, epoll::EventData::new_u64(number), once());
        if turn == Turn::Over || armed().is_err() {
            // Released with the last reference, which another thread may have.
            let mut sessions = self.sessions.lock();
            sessions.places.leave(number);
            let entry = sessions.all.remove(&number);
            drop(sessions);
            drop(entry);
        }
        drop(connection);
        self.release(session);
    }

    /// Looks again at sessions that wait for a change.
    fn wake(&self) {
        for number in self.served.waits.take() {
            let Some((connection, session)) = self.session(number) else { continue };
            if session.lock().resume(&self.served) == Turn::Over {
                // That makes an event, with which it ends.
                connection.end();
            }
            drop(connection);
            self.release(session);
        }
    }

    fn session(&self, number: u64) -> Option<(Arc<Connection>, Arc<Mutex<Session>>)> {
        let sessions = self.sessions.lock();
        let Entry { connection, session } = sessions.all.get(&number)?;
        Some((Arc::clone(connection), Arc::clone(session)))
    }

    /// Gives back a reference on a session; the last one closes it.
    fn release(&self, session: Arc<Mutex<Session>>) {
        if let Some(session) = Arc::into_inner(session) {
            session.into_inner().close(&self.served.access);
        }
    }

    /// Takes a connection.
    fn accept(&self) {
        if self.served.closer.is_full() {
            // Clients would wait for an answer; so they are sent to the mount.
            self.sessions.lock().is_hidden = true;
            self.served.access.announce(None);
            return self.pause("what clients passed does not close");
        }
        match accept_with(&self.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => {
                self.add(socket);
                self.sessions.lock().is_pause_told = false;
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            // As a rule there is no descriptor left, and the connection stays to be accepted.
            Err(error) => return self.pause(error),
        }
        self.listen();
    }

    fn listen(&self) {
        let event = epoll::EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.events, &self.listener, event, once()) {
            tracing::error!(%error, "no further client is accepted");
        }
    }

    /// Accepts no connection for a while.
    fn pause(&self, why: impl std::fmt::Display) {
        let mut sessions = self.sessions.lock();
        if !std::mem::replace(&mut sessions.is_pause_told, true) {
            tracing::warn!(error = %why, "clients cannot be accepted now");
        }
        sessions.accepts_at = Some(Instant::now() + ACCEPT_PAUSE);
        self.set_timer(&sessions);
    }

    /// Does what is due.
    fn look_at_time(&self) {
        let now = Instant::now();
        let mut sessions = self.sessions.lock();
        let overdue = sessions.places.overdue(now);
        overdue.iter().for_each(|number| sessions.end(*number));
        let accepts = sessions.accepts_at.is_some_and(|at| at <= now);
        if accepts {
            sessions.accepts_at = self.served.closer.is_full().then(|| now + ACCEPT_PAUSE);
        }
        let accepts = accepts && sessions.accepts_at.is_none();
        let is_found_again = accepts && std::mem::take(&mut sessions.is_hidden);
        self.set_timer(&sessions);
        drop(sessions);
        if is_found_again {
            self.served.access.announce(Some(self.name.clone()));
        }
        if accepts {
            self.listen();
        }
    }

    fn set_timer(&self, sessions: &Sessions) {
        self.timer.set(sessions.places.next_end().into_iter().chain(sessions.accepts_at).min());
    }

    fn add(&self, socket: OwnedFd) {
        let uid = Peer::of(&socket).map_or(NO_USER, |peer| peer.uid);
        let connection = Arc::new(Connection::new(socket, uid, &self.served.closer));
        if let Err(failure) = self.check(uid).and_then(|()| self.begin(&connection)) {
            // The first request of a session has this number.
            refuse(&connection, 1, &failure);
        }
    }

    /// Refuses a user that the mount does not let in, or whose descriptors do not close.
    fn check(&self, uid: u32) -> Outcome<()> {
        check_user(uid, &self.served.access.identity)?;
        match self.served.closer.is_behind_of(uid) {
            true => Err(Failure::new(libc::EMFILE, "what the user has passed before does not close")),
            false => Ok(()),
        }
    }

    /// Gives a connection a place.
    fn begin(&self, connection: &Arc<Connection>) -> Outcome<()> {
        let mut sessions = self.sessions.lock();
        sessions.last += 1;
        let number = TIME + sessions.last;
        let Some(ended) = sessions.places.take(number, connection.uid(), Instant::now()) else {
            return Err(Failure::new(libc::EMFILE, "the server has too many clients"));
        };
        if let Some(ended) = ended {
            sessions.end(ended);
        }
        let session = Arc::new(Mutex::new(Session::new(Arc::clone(connection), number)));
        match epoll::add(&self.events, connection, epoll::EventData::new_u64(number), once()) {
            Ok(()) => {
                let entry = Entry { connection: Arc::clone(connection), session };
                sessions.all.insert(number, entry);
                self.set_timer(&sessions);
                Ok(())
            }
            Err(error) => {
                tracing::warn!(%error, "a client cannot be served");
                sessions.places.leave(number);
                Err(io::Error::from(error).into())
            }
        }
    }
}

impl Sessions {
    fn new(places: Places) -> Self {
        let all = HashMap::new();
        Self { last: 0, all, places, accepts_at: None, is_pause_told: false, is_hidden: false }
    }

    /// Ends a session. That makes an event, with which it goes.
    fn end(&self, number: u64) {
        if let Some(entry) = self.all.get(&number) {
            entry.connection.end();
        }
    }
}
