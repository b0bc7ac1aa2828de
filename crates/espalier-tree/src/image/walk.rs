//! A walk through an image: a thread of its own goes ahead by a few batches.

use crate::error::{Error, Result};
use crate::file::stat_of;
use espalier_client::{Entry, Listing};
use espalier_fs::{FileKind, Filter, PathCaller, WalkEntry};
use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Entries of a batch,
const BATCH: usize = 512;
/// and how many batches the thread is ahead.
const BATCHES_AHEAD: usize = 4;

type Batch = Result<Vec<Entry>>;

/// What lies below a directory of an image, of one instant.
pub(crate) struct ImageWalk {
    ready: VecDeque<Entry>,
    /// `None` at the end.
    batches: Option<Receiver<Batch>>,
    thread: Option<JoinHandle<()>>,
}

impl ImageWalk {
    /// Begins to walk; what is wrong with the path is said at once.
    ///
    /// # Errors
    /// As for [`PathCaller::walk`].
    pub(crate) fn begin(caller: &PathCaller, path: &[u8], listing: &Listing) -> Result<Self> {
        let (caller, path, listing) = (caller.clone(), path.to_vec(), listing.clone());
        let (sender, receiver) = sync_channel(BATCHES_AHEAD);
        let body = move || walk(&caller, &path, &listing, &sender);
        let thread = std::thread::Builder::new().name("espalier-walk".into()).spawn(body)?;
        let mut this = Self { ready: VecDeque::new(), batches: Some(receiver), thread: Some(thread) };
        this.fill()?;
        Ok(this)
    }

    /// The next entry.
    pub(crate) fn next(&mut self) -> Option<Result<Entry>> {
        if self.ready.is_empty()
            && let Err(error) = self.fill()
        {
            return Some(Err(error));
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

impl Drop for ImageWalk {
    fn drop(&mut self) {
        // The thread finds that no batch is wanted any more.
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sends what `listing` lets through; a batch that is not taken ends the walk.
fn walk(caller: &PathCaller, path: &[u8], listing: &Listing, sender: &SyncSender<Batch>) {
    let filter = filter_of(listing);
    let mut batch = Vec::new();
    let walked = caller.walk(path, &filter, &mut |entry: WalkEntry<'_>| {
        let WalkEntry { path, attr, is_closed } = entry;
        batch.push(Entry { path: path.to_vec(), stat: stat_of(&attr), is_closed });
        batch.len() < BATCH || sender.send(Ok(std::mem::take(&mut batch))).is_ok()
    });
    let _ = match walked {
        Ok(()) if batch.is_empty() => Ok(()),
        Ok(()) => sender.send(Ok(batch)),
        Err(error) => sender.send(Err(error.into())),
    };
}

fn filter_of(listing: &Listing) -> Filter {
    const KINDS: [(FileKind, u32); 7] = [
        (FileKind::Regular, libc::S_IFREG),
        (FileKind::Directory, libc::S_IFDIR),
        (FileKind::Symlink, libc::S_IFLNK),
        (FileKind::Fifo, libc::S_IFIFO),
        (FileKind::Socket, libc::S_IFSOCK),
        (FileKind::CharDevice, libc::S_IFCHR),
        (FileKind::BlockDevice, libc::S_IFBLK),
    ];
    let is_wanted = |bits: u32| u32::from(listing.kinds) >> (bits >> 12) & 1 != 0;
    let kinds = KINDS.iter().filter(|(_, bits)| is_wanted(*bits)).map(|(kind, _)| *kind).collect();
    Filter {
        pattern: listing.pattern.clone(),
        kinds: (listing.kinds != 0).then_some(kinds),
        size: listing.size.clone(),
        modified: listing.modified.clone(),
    }
}
