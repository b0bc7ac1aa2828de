//! Threads that read files for all clients of a mount.
//!
//! A read of many files is cut into *runs* of files that are beside each other in the order of
//! keys. The thread that serves the client takes one run after the other; threads of this pool
//! help, so that a device has several reads at a time, and cold files do not wait for each other.
//! A thread that begins to help wakes the next one: where nothing has to be waited for, few do.
//!
//! Files that are asked for mostly in the order of keys belong to a walk: the store reads ahead. In
//! any other order they are a choice, and nothing is read ahead. The kernel's pages are not between
//! a client and the store, so small files stay in the cache of the store.
//!
//! What was read is taken as it comes, as long as the answer has room; then all of them stop. When
//! [`Readers::read`] returns, no thread has anything of the read any more.

use crate::failure::Failure;
use espalier_client::wire::{Piece, ReadItem, Writer, longest_read};
use espalier_fs::{At, Caching, PathCaller, ReadRequest, read_order};
use espalier_fuse::ClientAccess;
use espalier_sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// Threads that help, for all clients together.
const MAX_HELPERS: usize = 8;
/// Files of a run.
const RUN_FILES: usize = 16;
/// Buffers that are kept for later answers, and the largest of them, in bytes.
const MAX_SPARE_BUFFERS: usize = MAX_HELPERS + 4;
const SPARE_BUFFER_MAX_BYTES: usize = 2 << 20;

/// The threads; they end when it is dropped.
pub(crate) struct Readers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wanted: Condvar,
    spare: Mutex<Vec<Vec<u8>>>,
}

#[derive(Default)]
struct State {
    /// Reads that can be helped with.
    reads: VecDeque<Arc<Read>>,
    is_stopping: bool,
}

/// A read of many files.
struct Read {
    paths: Vec<u8>,
    /// Of each file: where its path is, and from which byte how many are read.
    pieces: Vec<(Range<usize>, Range<u64>)>,
    order: Vec<usize>,
    caching: Caching,
    /// The place in the order of the next run.
    next: AtomicUsize,
    /// Bytes that the answer has still room for.
    room: AtomicUsize,
    is_full: AtomicBool,
    help: Mutex<Help>,
    helped: Condvar,
}

#[derive(Default)]
struct Help {
    /// For those that begin to help.
    caller: Option<PathCaller>,
    /// How many are helping.
    helpers: usize,
    parts: Vec<Vec<u8>>,
}

impl Readers {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start(access: &Arc<ClientAccess>) -> io::Result<Self> {
        let mut readers = Self { shared: Arc::default(), threads: Vec::new() };
        for _ in 0..MAX_HELPERS {
            let (shared, access) = (Arc::clone(&readers.shared), Arc::clone(access));
            let thread = std::thread::Builder::new().name("client-read".into());
            readers.threads.push(thread.spawn(move || shared.run(&access))?);
        }
        Ok(readers)
    }

    /// Reads as many of `pieces` as an answer of `room` bytes has room for, and at least one of
    /// them. The answer is in several parts.
    pub(crate) fn read(&self, caller: &PathCaller, pieces: &[Piece<'_>], room: usize) -> Vec<Vec<u8>> {
        let read = Read::new(pieces, room);
        if pieces.len() <= RUN_FILES {
            return vec![read.work(caller, self.shared.buffer())];
        }
        read.help.lock().caller = Some(caller.clone());
        let read = Arc::new(read);
        self.shared.state.lock().reads.push_back(Arc::clone(&read));
        // Also if a panic ends this: then no thread begins to help, and those that do have ended.
        let offered = Offered { shared: &self.shared, read: &read };
        self.shared.wanted.notify_one();
        let own = read.work(caller, self.shared.buffer());
        drop(offered);
        let mut parts = std::mem::take(&mut read.help.lock().parts);
        parts.push(own);
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// Takes back the parts of an answer.
    pub(crate) fn reuse(&self, parts: Vec<Vec<u8>>) {
        let mut spare = self.shared.spare.lock();
        let is_kept = |part: &Vec<u8>| (1..=SPARE_BUFFER_MAX_BYTES).contains(&part.capacity());
        spare.extend(parts.into_iter().filter(is_kept));
        spare.truncate(MAX_SPARE_BUFFERS);
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopping = true;
        self.shared.wanted.notify_all();
        for thread in self.threads.drain(..) {
            // A panic there has been reported by the panic itself.
            let _ = thread.join();
        }
    }
}

/// A read that other threads find, until this is dropped; then no thread helps any more.
struct Offered<'r> {
    shared: &'r Shared,
    read: &'r Arc<Read>,
}

impl Drop for Offered<'_> {
    fn drop(&mut self) {
        self.read.is_full.store(true, Ordering::Relaxed);
        self.shared.state.lock().reads.retain(|read| !Arc::ptr_eq(read, self.read));
        let mut help = self.read.help.lock();
        drop(help.caller.take());
        while help.helpers > 0 {
            self.read.helped.wait(&mut help);
        }
    }
}

impl Shared {
    fn run(&self, access: &ClientAccess) {
        loop {
            let read = {
                let mut state = self.state.lock();
                loop {
                    if state.is_stopping {
                        return;
                    }
                    match state.reads.pop_front() {
                        Some(read) if read.is_done() => {}
                        Some(read) => {
                            // Behind the others: each is helped in turn.
                            state.reads.push_back(Arc::clone(&read));
                            break read;
                        }
                        None => self.wanted.wait(&mut state),
                    }
                }
            };
            self.wanted.notify_one();
            // A panic there shuts the file system down, and ends no thread.
            let _ = access.call(|| read.help(self));
        }
    }

    fn buffer(&self) -> Vec<u8> {
        let mut buffer = self.spare.lock().pop().unwrap_or_default();
        buffer.clear();
        buffer
    }
}

impl Read {
    fn new(pieces: &[Piece<'_>], room: usize) -> Self {
        let longest = longest_read(room as u32);
        let mut paths = Vec::with_capacity(pieces.iter().map(|piece| piece.path.len()).sum());
        let mut owned = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let from = paths.len();
            paths.extend_from_slice(piece.path);
            let end = piece.offset.saturating_add(piece.length.min(longest));
            owned.push((from..paths.len(), piece.offset..end));
        }
        let mut read = Self {
            paths,
            pieces: owned,
            order: Vec::new(),
            caching: Caching::ReadAhead,
            next: AtomicUsize::new(0),
            room: AtomicUsize::new(room),
            is_full: AtomicBool::new(false),
            help: Mutex::default(),
            helped: Condvar::new(),
        };
        read.order = read_order(&read.requests());
        if !is_walk(&read.order) {
            read.caching = Caching::Keep;
        }
        read
    }

    fn requests(&self) -> Vec<ReadRequest<'_>> {
        let request = |(path, range): &(Range<usize>, Range<u64>)| ReadRequest {
            at: At::from(&self.paths[path.clone()]),
            range: Some(range.clone()),
        };
        self.pieces.iter().map(request).collect()
    }

    /// True if nothing is left that another thread could do.
    fn is_done(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.order.len() || self.is_full.load(Ordering::Relaxed)
    }

    /// Reads one run after the other. What does not fit is asked for again, and is in the cache
    /// then.
    fn work(&self, caller: &PathCaller, buffer: Vec<u8>) -> Vec<u8> {
        let requests = self.requests();
        let mut out = Writer(buffer);
        while !self.is_done() {
            let from = self.next.fetch_add(RUN_FILES, Ordering::Relaxed).min(self.order.len());
            let run = &self.order[from..(from + RUN_FILES).min(self.order.len())];
            caller.read_in_order(&requests, run, self.caching, &mut |index, data| {
                let failure = data.as_ref().err().map(|error| Failure::from(error.clone()));
                let (errno, data) = match (&failure, data) {
                    (Some(failure), _) => (failure.errno.cast_unsigned(), failure.shown()),
                    (None, data) => (0, data.unwrap_or_default()),
                };
                if !self.takes(ReadItem::HEAD_BYTES + data.len()) {
                    return false;
                }
                ReadItem { index: index as u32, errno, data }.encode(&mut out);
                true
            });
        }
        out.0
    }

    /// True if the answer has room for so many bytes more, which it has then.
    fn takes(&self, bytes: usize) -> bool {
        let less = |room: usize| room.checked_sub(bytes);
        let taken = self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if !taken {
            self.is_full.store(true, Ordering::Relaxed);
        }
        taken
    }

    /// Works as long as there is something to do.
    fn help(&self, shared: &Shared) {
        let caller = {
            let mut help = self.help.lock();
            let Some(caller) = help.caller.clone() else { return };
            help.helpers += 1;
            caller
        };
        let helping = Helping(self);
        let part = self.work(&caller, shared.buffer());
        drop(caller);
        self.help.lock().parts.push(part);
        drop(helping);
    }
}

/// True if three of four files were asked for after the one that is before them in the order of
/// keys; chance gives half of them.
fn is_walk(order: &[usize]) -> bool {
    let ascending = order.windows(2).filter(|pair| pair[0] < pair[1]).count();
    ascending * 4 >= order.len().saturating_sub(1) * 3
}

/// A thread that helps, until it is dropped.
struct Helping<'r>(&'r Read);

impl Drop for Helping<'_> {
    fn drop(&mut self) {
        self.0.help.lock().helpers -= 1;
        self.0.helped.notify_all();
    }
}

#[cfg(test)]
mod tests;
