//! Streams: what comes in pieces, as the client asks for more. A session has one at a time.
//!
//! A walk, and a comparison of two trees, runs in a thread of its own and stays ahead by a few
//! pieces. It sees the trees as they were when it began, so the store keeps that state meanwhile: a
//! client that does not ask for more has its walk ended after [`STALLED_LIMIT`].

use crate::attributes::{kind_bits, stat_of};
use crate::failure::{Failure, Outcome};
use espalier_client::wire::{Change, DiffItem, FRAME_MAX_BYTES, Listing, WalkItem, Writer};
use espalier_fs::{FileKind, Filter, Open, PathCaller};
use espalier_fuse::ClientAccess;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A piece ends with the entry with which it has so many bytes: it fits into a packet.
const PIECE_BYTES: usize = FRAME_MAX_BYTES - (8 << 10);
/// Pieces that a walk is ahead.
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

/// The pieces of a walk or a comparison, and the thread that makes them.
pub(crate) struct Producer {
    pieces: Arc<Pieces>,
    thread: Option<JoinHandle<()>>,
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
        access: &Arc<ClientAccess>,
        caller: &PathCaller,
        path: &[u8],
        listing: Listing,
    ) -> Outcome<Self> {
        let path = path.to_vec();
        let work = move |caller: &PathCaller, pieces: &Pieces| walk(caller, &path, &listing, pieces);
        Producer::begin(access, caller, work).map(Self::Thread)
    }

    /// Begins to compare two directories.
    ///
    /// # Errors
    /// As for [`Stream::walk`].
    pub(crate) fn diff(
        access: &Arc<ClientAccess>,
        caller: &PathCaller,
        old: &[u8],
        new: &[u8],
    ) -> Outcome<Self> {
        let (old, new) = (old.to_vec(), new.to_vec());
        let work = move |caller: &PathCaller, pieces: &Pieces| diff(caller, &old, &new, pieces);
        Producer::begin(access, caller, work).map(Self::Thread)
    }
}

impl Producer {
    fn begin(
        access: &Arc<ClientAccess>,
        caller: &PathCaller,
        work: impl FnOnce(&PathCaller, &Pieces) -> Outcome<()> + Send + 'static,
    ) -> Outcome<Self> {
        let pieces: Arc<Pieces> = Arc::default();
        let (access, caller) = (Arc::clone(access), caller.clone());
        let of_thread = Arc::clone(&pieces);
        let body = move || {
            let done = access.call(|| work(&caller, &of_thread));
            // It is given back before the end is told: after that nothing is in use.
            drop(caller);
            let end = done.unwrap_or_else(|| Err(Failure::new(libc::EIO, "the file system has ended")));
            of_thread.state.lock().end = Some(end);
            of_thread.changed.notify_all();
        };
        let thread = std::thread::Builder::new().name("client-stream".into()).spawn(body)?;
        Ok(Self { pieces, thread: Some(thread) })
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
        self.pieces.state.lock().is_closed = true;
        self.pieces.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic there has been reported by the panic itself.
            let _ = thread.join();
        }
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
        Self { pieces, out: Writer::default(), ended: Ok(()) }
    }

    /// Hands over the piece if it is full; false if the client wants no more.
    fn goes_on(&mut self) -> bool {
        if self.out.0.len() < PIECE_BYTES {
            return true;
        }
        match self.pieces.push(std::mem::take(&mut self.out.0)) {
            Ok(goes_on) => goes_on,
            Err(error) => {
                self.ended = Err(error);
                false
            }
        }
    }

    /// Hands over the rest.
    fn finish(self) -> Outcome<()> {
        self.ended?;
        if !self.out.0.is_empty() {
            self.pieces.push(self.out.0)?;
        }
        Ok(())
    }
}

/// How many entries are passed over before a walk looks whether it is still wanted.
const ENTRIES_PER_LOOK: u32 = 256;

fn walk(caller: &PathCaller, path: &[u8], listing: &Listing, pieces: &Pieces) -> Outcome<()> {
    let filter = Filter {
        pattern: listing.pattern.clone(),
        kinds: None,
        size: listing.size.clone(),
        modified: listing.modified.clone(),
    };
    let is_wanted = |kind: FileKind| listing.kinds == 0 || listing.kinds >> (kind_bits(kind) >> 12) & 1 != 0;
    let (mut cutter, mut passed) = (Cutter::new(pieces), 0u32);
    // The filter is asked here, so that a walk which gives nothing can be ended.
    caller.walk(path, &Filter::default(), &mut |entry| {
        passed = passed.wrapping_add(1);
        if passed.is_multiple_of(ENTRIES_PER_LOOK) && pieces.is_closed() {
            return false;
        }
        let is_given = is_wanted(entry.attr.kind) && filter.matches(entry.path, &entry.attr);
        if !entry.is_closed && !is_given {
            return true;
        }
        WalkItem { path: entry.path, stat: stat_of(&entry.attr), is_closed: entry.is_closed }
            .encode(&mut cutter.out);
        cutter.goes_on()
    })?;
    cutter.finish()
}

fn diff(caller: &PathCaller, old: &[u8], new: &[u8], pieces: &Pieces) -> Outcome<()> {
    // On the mount both have to be opened to be compared.
    let open = Open { directory: true, ..Open::read() };
    let (old, new) = (caller.open(old, &open)?, caller.open(new, &open)?);
    let mut cutter = Cutter::new(pieces);
    caller.diff_while(old.itself(), new.itself(), &|| !pieces.is_closed(), &mut |change, path| {
        let change = match change {
            espalier_fs::Change::Added => Change::Added,
            espalier_fs::Change::Removed => Change::Removed,
            espalier_fs::Change::Changed => Change::Changed,
        };
        DiffItem { change, path }.encode(&mut cutter.out);
        cutter.goes_on()
    })?;
    cutter.finish()
}
