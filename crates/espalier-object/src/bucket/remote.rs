//! Remote bucket: a prefix of a store that the crate `object_store` reaches.
//!
//! Protocol: each request is one future on the [`EventLoop`], with a time limit. `object_store`
//! repeats nothing: what is repeated, and what a lost reply means, is decided above.
//!
//! A link takes its time for what moves over it at a time, so large puts have turns
//! ([`super::uploads`]). A request's time limit begins when it has its turn. Small puts wait for
//! none: roots, probes, and the segments of a sync that has little to write.
//!
//! Invariant: whatever a server says, a get takes no more memory than was asked for, or than a root
//! may have, and a list no more than [`MAX_LISTED_BYTES`].

#[cfg(all(test, feature = "aws"))]
mod tests;

use super::event_loop::EventLoop;
use super::failures::failure;
use super::services::{self, Versions};
use super::uploads::{Took, Uploads};
use super::{
    Bucket, Condition, Errand, Failure, FailureKind, Location, MAX_WHOLE_BYTES, ObjectFacts, ROOT_NAME,
    Reply, Request, Ticket, Version, directory, too_large,
};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use object_store::path::Path;
use object_store::{
    GetOptions, GetRange, GetResult, GetResultPayload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode,
    PutOptions, PutPayload, UpdateVersion,
};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::Instant;

/// How long a request may take, and how much longer for each MiB that it moves.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);
const TIMEOUT_PER_MIB: Duration = Duration::from_secs(10);

/// How often a thread that waits looks whether the outcome is wanted.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// Puts of more bytes have turns.
const LARGE_PUT_BYTES: u64 = 1 << 20;

/// Gets that are under way at a time; others wait for their turn. Each has a connection of its own.
const PARALLEL_GETS: usize = 64;

/// Most bytes of memory that one list takes: several million objects.
const MAX_LISTED_BYTES: usize = 1 << 30;

/// A prefix of an object store.
pub struct RemoteBucket {
    name: String,
    store: Arc<dyn ObjectStore>,
    prefix: String,
    /// The directory of a local one.
    directory: Option<PathBuf>,
    versions: Versions,
    events: EventLoop,
    gets: Arc<Semaphore>,
    uploads: Arc<Uploads>,
}

impl fmt::Debug for RemoteBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteBucket({})", self.name)
    }
}

impl RemoteBucket {
    /// Reaches the store at a location. With `create`, a local directory that is not there is made.
    ///
    /// # Errors
    /// If the location is not complete, or this program was built without what it needs.
    pub fn open(location: &Location, create: bool) -> Result<Self, Failure> {
        let name = location.to_string();
        match location {
            Location::Directory(path) => {
                if create {
                    std::fs::create_dir_all(path).map_err(|e| {
                        Failure::new(FailureKind::Denied, format!("cannot make {}: {e}", path.display()))
                    })?;
                }
                let store = object_store::local::LocalFileSystem::new_with_prefix(path)
                    .map_err(failure)?
                    .with_fsync(true);
                Self::new(name, Arc::new(store), "", Some(path.clone()))
            }
            Location::S3 { prefix, .. }
            | Location::Google { prefix, .. }
            | Location::Azure { prefix, .. } => Self::of_service(name, services::open(location)?, prefix),
        }
    }

    /// A prefix of the store of a service.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub(super) fn of_service(
        name: String,
        (store, versions): (Arc<dyn ObjectStore>, Versions),
        prefix: &str,
    ) -> Result<Self, Failure> {
        Ok(Self { versions, ..Self::new(name, store, prefix, None)? })
    }

    /// A store in memory, for tests.
    ///
    /// # Errors
    /// If the system has no thread left.
    pub fn in_memory() -> Result<Self, Failure> {
        Self::new("memory://".into(), Arc::new(object_store::memory::InMemory::new()), "", None)
    }

    /// A prefix of any store.
    ///
    /// # Errors
    /// If the system has no thread left.
    fn new(
        name: String,
        store: Arc<dyn ObjectStore>,
        prefix: &str,
        directory: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let events = EventLoop::start()
            .map_err(|e| Failure::new(FailureKind::Unsupported, format!("no thread for requests: {e}")))?;
        let gets = Arc::new(Semaphore::new(PARALLEL_GETS));
        let uploads = Arc::new(Uploads::new());
        let (prefix, versions) = (prefix.to_owned(), Versions::Tags);
        Ok(Self { name, store, prefix, directory, versions, events, gets, uploads })
    }

    fn path(&self, name: &str) -> Path {
        match (self.prefix.is_empty(), name.is_empty()) {
            (true, _) => Path::from(name),
            (false, true) => Path::from(self.prefix.as_str()),
            (false, false) => Path::from(format!("{}/{name}", self.prefix)),
        }
    }
}

impl Bucket for RemoteBucket {
    fn name(&self) -> &str {
        &self.name
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        self.begin(request, Errand::Caller)
    }

    fn submit_behind(&self, request: Request) -> Box<dyn Ticket> {
        self.begin(request, Errand::Maintenance)
    }
}

impl RemoteBucket {
    fn begin(&self, request: Request, errand: Errand) -> Box<dyn Ticket> {
        let call = Call {
            store: Arc::clone(&self.store),
            path: self.path(request.name()),
            root: self.path("").as_ref().to_owned(),
            directory: self.directory.clone(),
            versions: self.versions,
            gets: Arc::clone(&self.gets),
            uploads: Arc::clone(&self.uploads),
            errand,
        };
        let (receiver, task) = self.events.begin(call.run(request));
        Box::new(RemoteTicket(receiver, task))
    }
}

struct RemoteTicket(Receiver<Result<Reply, Failure>>, AbortHandle);

impl Ticket for RemoteTicket {
    fn wait(self: Box<Self>) -> Result<Reply, Failure> {
        self.0.recv().unwrap_or_else(|_| Err(no_thread()))
    }

    fn wait_while(self: Box<Self>, is_wanted: &dyn Fn() -> bool) -> Option<Result<Reply, Failure>> {
        while is_wanted() {
            match self.0.recv_timeout(LOOK_PAUSE) {
                Ok(outcome) => return Some(outcome),
                Err(RecvTimeoutError::Disconnected) => return Some(Err(no_thread())),
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        // It shares the link with what is wanted still.
        self.1.abort();
        None
    }
}

fn no_thread() -> Failure {
    Failure::new(FailureKind::Unsupported, "the thread of the object store has ended")
}

/// One request on its way.
struct Call {
    store: Arc<dyn ObjectStore>,
    path: Path,
    /// What all names begin with.
    root: String,
    directory: Option<PathBuf>,
    versions: Versions,
    gets: Arc<Semaphore>,
    uploads: Arc<Uploads>,
    errand: Errand,
}

impl Call {
    async fn run(self, request: Request) -> Result<Reply, Failure> {
        let verb = request.verb();
        let limit = time_limit(&request);
        let path = self.path.clone();
        let (gets, uploads) = (Arc::clone(&self.gets), Arc::clone(&self.uploads));
        // It is never closed, so each get has its turn.
        let _turn = match request {
            Request::Get { .. } => gets.acquire().await.ok(),
            _ => None,
        };
        let upload = match moved_bytes(&request) > LARGE_PUT_BYTES && is_unconditional_put(&request) {
            true => uploads.turn(self.errand).await,
            false => None,
        };
        let began = Instant::now();
        let outcome = tokio::time::timeout(limit, self.carry_out(request)).await;
        if let Some(upload) = upload {
            upload.ended(Took::of(began.elapsed(), limit, outcome.as_ref().map(Result::is_ok)));
        }
        outcome.unwrap_or_else(|_| {
            let message = format!("no reply to {verb} {path} within {} s", limit.as_secs());
            Err(Failure::new(FailureKind::Unknown, message))
        })
    }

    async fn carry_out(self, request: Request) -> Result<Reply, Failure> {
        match request {
            Request::Put { name, body, condition } => self.put(name, body, condition).await,
            Request::Get { range, .. } => self.get(range).await,
            Request::Head { .. } => {
                let meta = self.store.head(&self.path).await.map_err(failure)?;
                Ok(Reply::Facts(self.facts(&meta)))
            }
            Request::Delete { .. } => match self.store.delete(&self.path).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(Reply::Deleted),
                Err(error) => Err(failure(error)),
            },
            Request::List { .. } => {
                let folder = Some(&self.path).filter(|path| !path.as_ref().is_empty());
                let facts = self.store.list(folder).map(|meta| match meta {
                    Ok(meta) => Ok(self.facts(&meta)),
                    Err(error) => Err(failure(error)),
                });
                listed(facts, self.path.as_ref(), MAX_LISTED_BYTES).await.map(Reply::Listed)
            }
        }
    }

    async fn put(self, name: String, body: Vec<Bytes>, condition: Condition) -> Result<Reply, Failure> {
        if let (Some(directory), true) = (self.directory.clone(), condition != Condition::None) {
            let put = move || directory::put_if(&directory, &name, &body, &condition);
            let outcome = tokio::task::spawn_blocking(put).await;
            let version =
                outcome.unwrap_or_else(|e| Err(Failure::new(FailureKind::Unknown, e.to_string())))?;
            return Ok(Reply::Put(Some(version)));
        }
        let mode = match condition {
            Condition::None => PutMode::Overwrite,
            Condition::Absent => PutMode::Create,
            Condition::Matches(Version(version)) => PutMode::Update(match self.versions {
                Versions::Tags => UpdateVersion { e_tag: Some(version), version: None },
                Versions::Generations => UpdateVersion { e_tag: None, version: Some(version) },
            }),
        };
        let options = PutOptions { mode, ..Default::default() };
        let payload: PutPayload = body.into_iter().collect();
        let put = self.store.put_opts(&self.path, payload, options).await.map_err(failure)?;
        Ok(Reply::Put(self.version(put.e_tag, put.version)))
    }

    async fn get(&self, range: Option<std::ops::Range<u64>>) -> Result<Reply, Failure> {
        let whole = range.is_none();
        let most = range.as_ref().map_or(MAX_WHOLE_BYTES, |range| range.end.saturating_sub(range.start));
        let options = GetOptions { range: range.map(GetRange::Bounded), ..Default::default() };
        let got = self.store.get_opts(&self.path, options).await.map_err(failure)?;
        let mut facts = self.facts(&got.meta);
        let bytes = bytes_of(got, &self.path, most).await?;
        if self.directory.is_some() && whole {
            facts.version = Some(directory::version(&bytes));
        }
        Ok(Reply::Got(bytes, facts))
    }

    /// What a condition may name; nothing for a local directory, whose own is of the bytes.
    fn version(&self, tag: Option<String>, generation: Option<String>) -> Option<Version> {
        match self.versions {
            Versions::Tags => tag.filter(|_| self.directory.is_none()).map(Version),
            Versions::Generations => generation.map(Version),
        }
    }

    fn facts(&self, meta: &ObjectMeta) -> ObjectFacts {
        let name = meta.location.as_ref();
        let name = name.strip_prefix(&self.root).unwrap_or(name).trim_start_matches('/');
        ObjectFacts {
            name: name.to_owned(),
            bytes: meta.size,
            version: self.version(meta.e_tag.clone(), meta.version.clone()),
            modified: u64::try_from(meta.last_modified.timestamp_millis()).unwrap_or(0),
        }
    }
}

/// What a list gives.
///
/// # Errors
/// If it fails, or would take more than `most` bytes of memory.
async fn listed(
    facts: impl Stream<Item = Result<ObjectFacts, Failure>>,
    folder: &str,
    most: usize,
) -> Result<Vec<ObjectFacts>, Failure> {
    let mut facts = std::pin::pin!(facts);
    let (mut all, mut used) = (Vec::new(), 0);
    while let Some(next) = facts.next().await.transpose()? {
        let version = next.version.as_ref().map_or(0, |version| version.0.len());
        used += size_of::<ObjectFacts>() + next.name.len() + version;
        if used > most {
            let message = format!(
                "the list of {folder} has more than {} objects, which is more than this program takes into memory \
                 ({} MiB): if other data lies there, give the store a prefix of its own, else delete with the \
                 server's tools what the store does not need",
                all.len(),
                most >> 20
            );
            return Err(Failure::new(FailureKind::Unsupported, message));
        }
        all.push(next);
    }
    Ok(all)
}

/// The bytes of a reply to a get.
///
/// # Errors
/// If it fails, or there are more than `most`.
async fn bytes_of(got: GetResult, path: &Path, most: u64) -> Result<Bytes, Failure> {
    let told = got.range.end.saturating_sub(got.range.start);
    if told > most {
        return Err(too_large(path.as_ref(), told, most));
    }
    if matches!(got.payload, GetResultPayload::File(..)) {
        return got.bytes().await.map_err(failure);
    }
    let mut stream = got.into_stream();
    let mut parts: Vec<Bytes> = Vec::new();
    let mut length = 0;
    while let Some(part) = stream.next().await.transpose().map_err(failure)? {
        length += part.len() as u64;
        if length > most {
            return Err(too_large(path.as_ref(), length, most));
        }
        parts.push(part);
    }
    Ok(if parts.len() == 1 { parts.swap_remove(0) } else { Bytes::from(parts.concat()) })
}

/// True for a put of what has a name of its own.
fn is_unconditional_put(request: &Request) -> bool {
    matches!(request, Request::Put { condition: Condition::None, .. })
}

/// How long a request may take.
fn time_limit(request: &Request) -> Duration {
    let mebibytes = u32::try_from(moved_bytes(request) >> 20).unwrap_or(u32::MAX / 16);
    REQUEST_TIMEOUT + TIMEOUT_PER_MIB * mebibytes
}

/// About how many bytes a request moves.
fn moved_bytes(request: &Request) -> u64 {
    match request {
        Request::Put { body, .. } => body.iter().map(|b| b.len() as u64).sum(),
        Request::Get { range: Some(range), .. } => range.end.saturating_sub(range.start),
        // Lists of many objects come in many parts.
        Request::List { .. } => 256 << 20,
        // It is read while others wait for it, and has some hundred KiB.
        Request::Get { range: None, name } if name == ROOT_NAME => 1 << 20,
        Request::Get { range: None, .. } => 16 << 20,
        _ => 0,
    }
}
