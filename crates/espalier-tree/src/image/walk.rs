//! Streams from an image, such as a walk: a thread of its own goes ahead by a few batches.

use crate::error::{Error, Result};
use espalier_bridge::{change_of, filter_of, stat_of};
use espalier_client::{Change, Entry, Listing};
use espalier_fs::{Filter, Open, PathCaller, WalkEntry};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;

/// Elements of a batch,
const BATCH: usize = 512;
/// and how many batches the thread is ahead.
const BATCHES_AHEAD: usize = 4;
/// How many entries are passed over before a walk looks whether it is still wanted.
const ENTRIES_PER_LOOK: u32 = 256;

type Batch<T> = Result<Vec<T>>;

/// Elements that a thread finds in an image.
pub(crate) struct ImageStream<T> {
    ready: VecDeque<T>,
    /// `None` at the end.
    batches: Option<Receiver<Batch<T>>>,
    /// No more is wanted.
    is_closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Where the thread puts what it finds.
pub(crate) struct Sink<T> {
    batch: RefCell<Vec<T>>,
    /// Something was sent, be it an empty batch.
    has_begun: Cell<bool>,
    sender: SyncSender<Batch<T>>,
    is_closed: Arc<AtomicBool>,
}

impl<T: Send + 'static> ImageStream<T> {
    /// Begins; what is wrong at the beginning is said at once. It waits for no element.
    ///
    /// # Errors
    /// As for `find`.
    pub(crate) fn begin(
        caller: &PathCaller,
        find: impl FnOnce(&PathCaller, &Sink<T>) -> espalier_fs::Result<()> + Send + 'static,
    ) -> Result<Self> {
        let caller = caller.clone();
        let (sender, receiver) = sync_channel(BATCHES_AHEAD);
        let is_closed = Arc::new(AtomicBool::new(false));
        let sink = Sink::new(sender, Arc::clone(&is_closed));
        let body = move || {
            let found = find(&caller, &sink);
            sink.finish(found);
        };
        let thread = std::thread::Builder::new().name("espalier-walk".into()).spawn(body)?;
        let ready = VecDeque::new();
        let mut this = Self { ready, batches: Some(receiver), is_closed, thread: Some(thread) };
        this.fill()?;
        Ok(this)
    }

    /// The next element.
    pub(crate) fn next(&mut self) -> Option<Result<T>> {
        while self.ready.is_empty() && self.batches.is_some() {
            if let Err(error) = self.fill() {
                return Some(Err(error));
            }
        }
        self.ready.pop_front().map(Ok)
    }

    fn fill(&mut self) -> Result<()> {
        let Some(batches) = &self.batches else { return Ok(()) };
        match batches.recv() {
            Ok(Ok(batch)) => self.ready = batch.into(),
            Ok(Err(error)) => {
                self.batches = None;
                return Err(error);
            }
            // The thread sends an error before it ends with one, so this is the end; or it
            // panicked.
            Err(_) => {
                self.batches = None;
                let ended = self.thread.take().map(JoinHandle::join);
                if ended.is_some_and(|ended| ended.is_err()) {
                    return Err(Error::new(libc::EIO, "the walk ended by a fault of the library"));
                }
            }
        }
        Ok(())
    }
}

impl<T> Drop for ImageStream<T> {
    fn drop(&mut self) {
        // The thread finds that no batch is wanted any more.
        self.is_closed.store(true, Ordering::Relaxed);
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl<T> Sink<T> {
    fn new(sender: SyncSender<Batch<T>>, is_closed: Arc<AtomicBool>) -> Self {
        Self { batch: RefCell::default(), has_begun: Cell::new(false), sender, is_closed }
    }

    /// Adds an element; false if no more is wanted.
    fn add(&self, element: T) -> bool {
        let mut batch = self.batch.borrow_mut();
        batch.push(element);
        batch.len() < BATCH || self.sender.send(Ok(std::mem::take(&mut *batch))).is_ok()
    }

    /// True as long as more is wanted. Hands over what was found so far, unless the caller has
    /// enough to go on with: to find the rest of a batch may take long. The first time it tells the
    /// caller that the beginning was good.
    fn goes_on(&self) -> bool {
        if !self.batch.borrow().is_empty() || !self.has_begun.get() {
            self.has_begun.set(true);
            let batch = self.batch.take();
            if let Err(TrySendError::Full(Ok(batch))) = self.sender.try_send(Ok(batch)) {
                self.batch.replace(batch);
            }
        }
        !self.is_closed.load(Ordering::Relaxed)
    }

    /// Hands the rest over, or the error. What is not taken is not wanted.
    fn finish(self, found: espalier_fs::Result<()>) {
        let rest = self.batch.into_inner();
        let _ = match found {
            Ok(()) if rest.is_empty() => Ok(()),
            Ok(()) => self.sender.send(Ok(rest)),
            Err(error) => self.sender.send(Err(error.into())),
        };
    }
}

/// Finds what `listing` lets through.
pub(crate) fn walk(
    caller: &PathCaller,
    (path, listing): (&[u8], &Listing),
    to: &Sink<Entry>,
) -> espalier_fs::Result<()> {
    let filter = filter_of(listing);
    let mut passed = 0u32;
    // The filter is asked here, so that a walk which finds nothing can be ended.
    caller.walk(path, &Filter::default(), &mut |entry: WalkEntry<'_>| {
        let is_wanted = !passed.is_multiple_of(ENTRIES_PER_LOOK) || to.goes_on();
        passed = passed.wrapping_add(1);
        let WalkEntry { path, attr, is_closed } = entry;
        if !is_wanted || !is_closed && !filter.matches(path, &attr) {
            return is_wanted;
        }
        to.add(Entry { path: path.to_vec(), stat: stat_of(&attr), is_closed })
    })
}

/// Finds what differs between two directories.
pub(crate) fn diff(
    caller: &PathCaller,
    (old, new): (&[u8], &[u8]),
    to: &Sink<(Change, Vec<u8>)>,
) -> espalier_fs::Result<()> {
    // On a mount both have to be opened to be compared.
    let open = Open { directory: true, ..Open::read() };
    let (old, new) = (caller.open(old, &open)?, caller.open(new, &open)?);
    caller.diff_while(old.itself(), new.itself(), &|| to.goes_on(), &mut |change, path| {
        to.add((change_of(change), path.to_vec()))
    })
}

#[cfg(test)]
mod tests;
