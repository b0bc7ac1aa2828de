//! Streams: what comes in pieces, as the client asks for more. A session has one at a time.
//!
//! A walk, and a comparison of two trees, has a thread to itself and stays ahead by a few pieces.
//! It sees the trees as they were when it began, so the store keeps that state meanwhile: a client
//! that does not ask for more has its walk ended after [`STALLED_LIMIT`].

use crate::failure::{Failure, Outcome};
use crate::stream_threads::StreamThreads;
use espalier_bridge::{change_of, filter_of, stat_of};
use espalier_client::wire::{DiffItem, FRAME_MAX_BYTES, Listing, WalkItem, Writer};
use espalier_fs::{Filter, Open, PathCaller};
use espalier_fuse::ClientAccess;
use espalier_sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A piece ends with the entry with which it has so many bytes: it fits into a packet.
const PIECE_BYTES: usize = FRAME_MAX_BYTES - (8 << 10);
/// Pieces that a walk is ahead, but for its last one.
const MAX_PIECES: usize = 4;
/// How long a walk waits for its client to ask for more.
const STALLED_LIMIT: Duration = Duration::from_secs(60);
/// How long a turn waits for a walk that finds nothing to give.
const TURN_LIMIT: Duration = Duration::from_millis(20);

/// What a session gives in pieces.
pub(crate) enum Stream {
    Thread(Producer),
    Paths(std::vec::IntoIter<Vec<u8>>),
}

/// The pieces of a walk or a comparison, which a thread makes.
pub(crate) struct Producer {
    pieces: Arc<Pieces>,
}

#[derive(Default)]
struct Pieces {
    state: Mutex<PiecesState>,
    changed: Condvar,
}

#[derive(Default)]
struct PiecesState {
    ready: VecDeque<Vec<u8>>,
    /// How the walk ended.
    end: Option<Outcome<()>>,
    /// The client wants no more.
    is_closed: bool,
}

impl Stream {
    /// The next piece, which has `room` bytes at most, and whether there may be more.
    pub(crate) fn next(&mut self, room: usize) -> Outcome<(Vec<u8>, bool)> {
        match self {
            Self::Thread(producer) => producer.next(room),
            Self::Paths(paths) => {
                let mut out = Writer::default();
                add_paths(paths, &mut out, room)?;
                Ok((out.0, paths.len() > 0))
            }
        }
    }
}

/// Appends as many paths as a piece holds.
pub(crate) fn add_paths(
    paths: &mut std::vec::IntoIter<Vec<u8>>,
    out: &mut Writer,
    room: usize,
) -> Outcome<()> {
    while out.0.len() < PIECE_BYTES.min(room)
        && let Some(path) = paths.as_slice().first()
    {
        if out.0.len() + path.len() + 4 > room {
            return match out.0.is_empty() {
                true => Err(Failure::new(libc::ENAMETOOLONG, "a path is longer than an answer")),
                false => Ok(()),
            };
        }
        out.bytes(path);
        paths.next();
    }
    Ok(())
}

impl Stream {
    /// Begins to walk below `path`.
    ///
    /// # Errors
    /// No thread can be started. What is wrong with the path the first piece says.
    pub(crate) fn walk(
        (threads, access): (&StreamThreads, &Arc<ClientAccess>),
        caller: &PathCaller,
        path: &[u8],
        listing: Listing,
    ) -> Outcome<Self> {
        let path = path.to_vec();
        let work = move |caller: &PathCaller, pieces: &Pieces| walk(caller, &path, &listing, pieces);
        Producer::begin((threads, access), caller, work).map(Self::Thread)
    }

    /// Begins to compare two directories.
    ///
    /// # Errors
    /// As for [`Stream::walk`].
    pub(crate) fn diff(
        (threads, access): (&StreamThreads, &Arc<ClientAccess>),
        caller: &PathCaller,
        old: &[u8],
        new: &[u8],
    ) -> Outcome<Self> {
        let (old, new) = (old.to_vec(), new.to_vec());
        let work = move |caller: &PathCaller, pieces: &Pieces| diff(caller, &old, &new, pieces);
        Producer::begin((threads, access), caller, work).map(Self::Thread)
    }
}

impl Producer {
    fn begin(
        (threads, access): (&StreamThreads, &Arc<ClientAccess>),
        caller: &PathCaller,
        work: impl FnOnce(&PathCaller, &Pieces) -> Outcome<Vec<u8>> + Send + 'static,
    ) -> Outcome<Self> {
        let pieces: Arc<Pieces> = Arc::default();
        let (access, caller) = (Arc::clone(access), caller.clone());
        let of_thread = Ending(Arc::clone(&pieces));
        let body = move || {
            let done = access.call(|| work(&caller, &of_thread.0));
            // They are given back before the end is told: after that nothing is in use.
            drop((caller, access));
            if let Some(end) = done {
                of_thread.0.end(end);
            }
        };
        threads.run(Box::new(body))?;
        Ok(Self { pieces })
    }

    fn next(&mut self, room: usize) -> Outcome<(Vec<u8>, bool)> {
        let deadline = Instant::now() + TURN_LIMIT;
        let mut state = self.pieces.state.lock();
        while state.ready.is_empty() && state.end.is_none() {
            if self.pieces.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        if let Some(piece) = state.ready.pop_front() {
            self.pieces.changed.notify_all();
            return match piece.len() <= room {
                true => Ok((piece, state.end != Some(Ok(())) || !state.ready.is_empty())),
                false => Err(Failure::new(libc::ENAMETOOLONG, "a path is longer than an answer")),
            };
        }
        match state.end.clone() {
            None => Ok((Vec::new(), true)),
            Some(end) => end.map(|()| (Vec::new(), false)),
        }
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        let mut state = self.pieces.state.lock();
        state.is_closed = true;
        self.pieces.changed.notify_all();
        while state.end.is_none() {
            self.pieces.changed.wait(&mut state);
        }
    }
}

/// Tells the end of a stream when it is dropped, however that comes.
struct Ending(Arc<Pieces>);

impl Drop for Ending {
    fn drop(&mut self) {
        let ended = || Err(Failure::new(libc::EIO, "the file system has ended"));
        self.0.state.lock().end.get_or_insert_with(ended);
        self.0.changed.notify_all();
    }
}

impl Pieces {
    /// Adds a piece when there is room; false if no more is wanted.
    fn push(&self, piece: Vec<u8>) -> Outcome<bool> {
        let deadline = Instant::now() + STALLED_LIMIT;
        let mut state = self.state.lock();
        while state.ready.len() >= MAX_PIECES && !state.is_closed {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return Err(Failure::new(libc::ETIMEDOUT, "the walk was left alone for too long"));
            }
        }
        if !state.is_closed {
            state.ready.push_back(piece);
            self.changed.notify_all();
        }
        Ok(!state.is_closed)
    }

    /// Ends the stream, with its last piece: a client that has it need not ask for more.
    fn end(&self, end: Outcome<Vec<u8>>) {
        let mut state = self.state.lock();
        state.end = Some(end.map(|piece| {
            if !piece.is_empty() {
                state.ready.push_back(piece);
            }
        }));
    }

    fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }
}

/// Cuts the items of a stream into pieces.
struct Cutter<'p> {
    pieces: &'p Pieces,
    /// The piece that is being filled.
    out: Writer,
    ended: Outcome<()>,
}

impl<'p> Cutter<'p> {
    fn new(pieces: &'p Pieces) -> Self {
        Self { pieces, out: Self::piece(), ended: Ok(()) }
    }

    /// An empty piece, with room for all that it will hold unless one path is very long.
    fn piece() -> Writer {
        Writer(Vec::with_capacity(FRAME_MAX_BYTES))
    }

    /// Hands over the piece if it is full; false if the client wants no more.
    fn goes_on(&mut self) -> bool {
        if self.out.0.len() < PIECE_BYTES {
            return true;
        }
        match self.pieces.push(std::mem::replace(&mut self.out, Self::piece()).0) {
            Ok(goes_on) => goes_on,
            Err(error) => {
                self.ended = Err(error);
                false
            }
        }
    }

    /// The rest.
    fn finish(self) -> Outcome<Vec<u8>> {
        self.ended?;
        Ok(self.out.0)
    }
}

/// How many entries are passed over before a walk looks whether it is still wanted.
const ENTRIES_PER_LOOK: u32 = 256;

fn walk(caller: &PathCaller, path: &[u8], listing: &Listing, pieces: &Pieces) -> Outcome<Vec<u8>> {
    let filter = filter_of(listing);
    let (mut cutter, mut passed) = (Cutter::new(pieces), 0u32);
    // The filter is asked here, so that a walk which gives nothing can be ended.
    caller.walk(path, &Filter::default(), &mut |entry| {
        passed = passed.wrapping_add(1);
        if passed.is_multiple_of(ENTRIES_PER_LOOK) && pieces.is_closed() {
            return false;
        }
        if !entry.is_closed && !filter.matches(entry.path, &entry.attr) {
            return true;
        }
        WalkItem { path: entry.path, stat: stat_of(&entry.attr), is_closed: entry.is_closed }
            .encode(&mut cutter.out);
        cutter.goes_on()
    })?;
    cutter.finish()
}

fn diff(caller: &PathCaller, old: &[u8], new: &[u8], pieces: &Pieces) -> Outcome<Vec<u8>> {
    // On the mount both have to be opened to be compared.
    let open = Open { directory: true, ..Open::read() };
    let (old, new) = (caller.open(old, &open)?, caller.open(new, &open)?);
    let mut cutter = Cutter::new(pieces);
    caller.diff_while(old.itself(), new.itself(), &|| !pieces.is_closed(), &mut |change, path| {
        DiffItem { change: change_of(change), path }.encode(&mut cutter.out);
        cutter.goes_on()
    })?;
    cutter.finish()
}
