//! The server of clients: the socket, the threads, and which session is served next.
//!
//! A session is ready when its client has sent a packet. Threads take the session that has been
//! ready for the longest time, serve one call of it, and put it behind the others (the kernel keeps
//! the row: epoll with one event per arming): so each client waits for one turn of every other one
//! at most. A session that waits for a change is armed too, and looked at again when it is woken.
//! Memory is that of the threads' buffers, at most two areas each, and of four pieces for
//! each walk; sessions are limited in all and for each user.

use crate::admission::Peer;
use crate::failure::Failure;
use crate::readers::Readers;
use crate::session::{Buffers, Served, Session, Turn, refuse};
use crate::stream_threads::StreamThreads;
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

/// Sessions at a time,
const MAX_SESSIONS: usize = 128;
/// and of one user other than root.
const MAX_SESSIONS_OF_USER: usize = 64;
/// Threads that serve sessions at most.
const MAX_THREADS: usize = 4;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// What an event is about; sessions have higher numbers.
const STOP: u64 = 0;
const LISTENER: u64 = 1;
const WOKEN: u64 = 2;

/// Serves the clients of a mount until it is dropped. Then no call is under way any more, and
/// nothing of the file system is in use by a client.
pub struct ClientServer {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    served: Served,
    listener: OwnedFd,
    events: OwnedFd,
    /// Becomes readable when the threads are to stop.
    stop: OwnedFd,
    is_stopping: AtomicBool,
    sessions: Mutex<Sessions>,
}

#[derive(Default)]
struct Sessions {
    last: u64,
    /// Each with its user.
    all: HashMap<u64, (u32, Arc<Mutex<Session>>)>,
}

impl ClientServer {
    /// Begins to serve clients of the mount behind `access`.
    ///
    /// # Errors
    /// No thread or descriptor is left; of the store.
    pub fn start(access: ClientAccess) -> io::Result<Self> {
        let access = Arc::new(access);
        let opened = access.call(|| Paths::new(Arc::clone(access.fs())));
        let paths = opened.ok_or(io::ErrorKind::BrokenPipe)?.map_err(io::Error::other)?;
        let (listener, name) = listener()?;
        let (events, stop) =
            (epoll::create(epoll::CreateFlags::CLOEXEC)?, eventfd(0, EventfdFlags::CLOEXEC)?);
        epoll::add(&events, &stop, epoll::EventData::new_u64(STOP), epoll::EventFlags::IN)?;
        epoll::add(&events, &listener, epoll::EventData::new_u64(LISTENER), once())?;
        let waits = Waits::new()?;
        // Each event has one thread look; what was counted is never taken out.
        let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&events, waits.event(), epoll::EventData::new_u64(WOKEN), edge)?;
        let shared = Arc::new(Shared {
            served: Served {
                readers: Readers::start(&access)?,
                access,
                paths,
                waits,
                streams: StreamThreads::default(),
            },
            listener,
            events,
            stop,
            is_stopping: AtomicBool::new(false),
            sessions: Mutex::default(),
        });
        let mut server = Self { shared, threads: Vec::new() };
        let count = std::thread::available_parallelism().map_or(1, usize::from).clamp(2, MAX_THREADS);
        for _ in 0..count {
            let shared = Arc::clone(&server.shared);
            let thread = std::thread::Builder::new().name("clients".into()).spawn(move || shared.run())?;
            server.threads.push(thread);
        }
        server.shared.served.access.announce(Some(name));
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
        for (_, (_, session)) in self.shared.sessions.lock().all.drain() {
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
                    number => self.serve(number, &mut buffers),
                }
            }
        }
    }

    /// Serves a turn of a session.
    fn serve(&self, number: u64, buffers: &mut Buffers) {
        let Some(session) = self.session(number) else { return };
        let turn = session.lock().turn(&self.served, buffers);
        let armed = || {
            let session = session.lock();
            epoll::modify(&self.events, session.socket(), epoll::EventData::new_u64(number), once())
        };
        if turn == Turn::Over || armed().is_err() {
            // Released with the last reference, which another thread may have.
            drop(self.sessions.lock().all.remove(&number));
        }
        self.release(session);
    }

    /// Looks again at sessions that wait for a change.
    fn wake(&self) {
        for number in self.served.waits.take() {
            let Some(session) = self.session(number) else { continue };
            {
                let mut session = session.lock();
                if session.resume(&self.served) == Turn::Over {
                    // That makes an event, with which it ends.
                    let _ = rustix::net::shutdown(session.socket(), rustix::net::Shutdown::Both);
                }
            }
            self.release(session);
        }
    }

    fn session(&self, number: u64) -> Option<Arc<Mutex<Session>>> {
        self.sessions.lock().all.get(&number).map(|(_, session)| Arc::clone(session))
    }

    /// Gives back a reference on a session; the last one closes it.
    fn release(&self, session: Arc<Mutex<Session>>) {
        if let Some(session) = Arc::into_inner(session) {
            session.into_inner().close(&self.served.access);
        }
    }

    /// Takes a connection.
    fn accept(&self) {
        match accept_with(&self.listener, SocketFlags::CLOEXEC) {
            Ok(socket) => self.add(socket),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
            Err(error) => tracing::warn!(%error, "a client cannot be accepted"),
        }
        let event = epoll::EventData::new_u64(LISTENER);
        if let Err(error) = epoll::modify(&self.events, &self.listener, event, once()) {
            tracing::error!(%error, "no further client is accepted");
        }
    }

    fn add(&self, socket: OwnedFd) {
        let Ok(Peer { uid, .. }) = Peer::of(&socket) else { return };
        let mut sessions = self.sessions.lock();
        let own = sessions.all.values().filter(|(user, _)| *user == uid).count();
        if sessions.all.len() >= MAX_SESSIONS || uid != 0 && own >= MAX_SESSIONS_OF_USER {
            // The first request of a session has this number.
            refuse(&socket, 1, &Failure::new(libc::EMFILE, "the server has too many clients"));
            return;
        }
        sessions.last += 1;
        let number = WOKEN + sessions.last;
        let session = Arc::new(Mutex::new(Session::new(socket, number)));
        let added = {
            let session = session.lock();
            epoll::add(&self.events, session.socket(), epoll::EventData::new_u64(number), once())
        };
        match added {
            Ok(()) => drop(sessions.all.insert(number, (uid, session))),
            Err(error) => tracing::warn!(%error, "a client cannot be served"),
        }
    }
}
