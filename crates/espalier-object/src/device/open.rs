//! Making and opening: the first root, the map of what is there, what a journal has.

use super::claim::{Claimed, Refusal, claim, lease_of, read_root};
use super::error;
use super::inner::Line;
use super::inner::{Chain, Inner, Latched, State};
use super::object_device::ObjectDevice;
use super::options::{Access, Options, Present};
use super::probe::Probe;
use super::tables::Tables;
use crate::bucket::{Bucket, Condition, Failure, Request};
use crate::cache::FrameCache;
use crate::format::{Holder, ObjectId, ObjectKind, Root};
use crate::journal::Journal;
use crate::requests::{PARALLEL_REQUESTS, Replaced, Requests};
use espalier_storage::{BLOCK, Environment, Error, ErrorKind, JoinHandle, Operation, Result};
use espalier_sync::{Condvar, Mutex, RwLock};
use std::sync::{Arc, OnceLock};

/// Bytes of what was written last that are got when a device is opened.
const NEWEST_BYTES: u64 = 1 << 20;

/// Most blocks of a device.
const MAX_BLOCKS: u64 = 1 << 32;

impl ObjectDevice {
    /// Makes an empty device of `bytes`, rounded down to whole blocks.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] if there is one and it is not to be replaced;
    /// [`ErrorKind::Busy`] if it is in use; [`ErrorKind::Unsupported`] if the server does not
    /// honour conditions, or a size or option is out of its bounds; what a request fails with.
    pub fn create(
        bucket: Arc<dyn Bucket>,
        environment: &Arc<dyn Environment>,
        bytes: u64,
        options: &Options,
        present: Present,
    ) -> Result<()> {
        let requests = Requests::new(bucket, Arc::clone(environment), options.budget);
        let name = requests.name().to_owned();
        let failed = |failure: Failure| error::of_failure(&failure, Operation::Open, &name);
        let refused = |kind, what: &str| Err(Error::new(kind, Operation::Open, &name, what));
        let blocks = bytes / BLOCK as u64;
        if blocks == 0 || blocks > MAX_BLOCKS {
            return refused(ErrorKind::Unsupported, "a device has 4 KiB to 16 TiB");
        }
        options.check(&name)?;
        let probe = options.probe.then(|| Probe::begin(&requests, environment));
        let before = requests.read_root();
        let probed = probe.map(|probe| probe.finish(&requests)).transpose().map_err(failed)?;
        let now = probed.as_ref().map(|probed| probed.now);
        if let Some(probed) = probed {
            probed.end(&requests);
        }
        let before = before.map_err(failed)?;
        if let Some((root, facts, _)) = &before {
            if present == Present::Refuse {
                return refused(ErrorKind::AlreadyExists, "a store is there already; it was left as it is");
            }
            if let Some(busy) = lease_of(root, facts, now) {
                return refused(ErrorKind::Busy, &busy);
            }
        }
        let number = || environment.random();
        let (high, low) = (number(), number());
        let uuid = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        let (epoch, previous) = before.as_ref().map_or((0, 0), |(root, ..)| (root.epoch, root.nonce));
        let root = Root {
            uuid,
            blocks,
            epoch: epoch + 1,
            generation: 1,
            nonce: number() | 1 << 63,
            previous,
            session: number() | 1 << 63,
            holder: Holder::default(),
            map: None,
            objects: Vec::new(),
            delta: Vec::new(),
            journal: None,
        };
        let condition = before.map_or(Condition::Absent, |(_, _, version)| Condition::Matches(version));
        match requests.replace_root(&root, &condition).map_err(failed)? {
            Replaced::Done(_) => delete_older(&requests, root.epoch).map_err(failed),
            Replaced::Lost(_) => refused(ErrorKind::Busy, "another program made a store there just now"),
        }
    }

    /// Opens the device of a bucket.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is none; [`ErrorKind::Busy`] if another writer has the
    /// lease, or died with a journal that is not this one, or the journal has what belongs to
    /// another line of roots; [`ErrorKind::Unsupported`] if the server does not honour conditions,
    /// the journal is none, or an option is out of its bounds; what a request or the journal fails
    /// with.
    pub fn open(
        bucket: Arc<dyn Bucket>,
        environment: &Arc<dyn Environment>,
        access: Access,
        options: Options,
    ) -> Result<Self> {
        let requests = Requests::new(bucket, Arc::clone(environment), options.budget);
        let name = requests.name().to_owned();
        let failed = |failure: Failure| error::of_failure(&failure, Operation::Open, &name);
        options.check(&name)?;
        let journal = match (&options.journal, access) {
            (None, _) => None,
            (Some(_), Access::ReadOnly) => {
                let message = "a journal is for writing; open without one for reading";
                return Err(Error::new(ErrorKind::Unsupported, Operation::Open, &name, message));
            }
            (Some(device), _) => Some(Journal::open(Arc::clone(device))?),
        };
        let claimed = match access {
            Access::ReadOnly => {
                let put_at = environment.monotonic();
                let found = read_root(&requests);
                found.map(|(root, _, version)| Claimed {
                    line: Line::new(root, version, put_at),
                    tables: None,
                })
            }
            _ => claim(&requests, environment, access, &options, journal.as_ref()),
        };
        let Claimed { line, tables } = claimed.map_err(|refusal| match refusal {
            Refusal::Failed(failure) => failed(failure),
            Refusal::Device(error) => error,
            Refusal::None => {
                let message = "there is no store; make one with espalier mkfs";
                Error::new(ErrorKind::NotFound, Operation::Open, &name, message)
            }
            Refusal::Busy(why) => Error::new(ErrorKind::Busy, Operation::Open, &name, why),
        })?;
        requests.establish();
        let shared =
            (Arc::new(requests), Arc::new(FrameCache::new(options.cache_bytes, options.ahead_bytes)));
        let inner = Arc::new(Inner::new(shared, environment, options, line, journal));
        let device = Self { inner: Arc::clone(&inner), threads: Mutex::default() };
        let start = |thread: std::io::Result<Option<JoinHandle>>| -> Result<()> {
            let thread = thread.map_err(|e| Error::system(Operation::Open, inner.name.clone(), e))?;
            device.threads.lock().extend(thread);
            Ok(())
        };
        let for_writing = !matches!(access, Access::ReadOnly);
        if for_writing {
            // What follows may take longer than the lease.
            start(Inner::start_renewals(&inner))?;
        }
        inner.load_state(tables).map_err(failed)?;
        inner.announce_newest(NEWEST_BYTES);
        if !for_writing {
            let _ = inner.latch.set(Latched::Closed("it is open for reading only"));
        }
        inner.replay_journal()?;
        // From here on a store that is away ends no writer with a journal.
        inner.requests.set_journaled(inner.journal.is_some());
        if for_writing {
            start(Inner::start_maintenance(&inner))?;
        }
        Ok(device)
    }
}

/// Deletes what a device had that was replaced. Only objects of older epochs: the new one is empty.
fn delete_older(requests: &Requests, epoch: u32) -> std::result::Result<(), Failure> {
    for kind in [ObjectKind::Data, ObjectKind::Map] {
        let listed = requests.call(&Request::List { folder: kind.folder().into() })?;
        let crate::bucket::Reply::Listed(listed) = listed else { continue };
        let older = listed
            .into_iter()
            .filter(|facts| ObjectId::of_name(&facts.name).is_some_and(|(id, ..)| id.epoch() < epoch));
        let deletes: Vec<Request> = older.map(|facts| Request::Delete { name: facts.name }).collect();
        requests.call_all(&deletes, PARALLEL_REQUESTS)?;
    }
    Ok(())
}

impl Inner {
    pub(super) fn new(
        (requests, cache): (Arc<Requests>, Arc<FrameCache>),
        environment: &Arc<dyn Environment>,
        options: Options,
        line: Line,
        journal: Option<Journal>,
    ) -> Self {
        let root = &line.root;
        let chain = Chain { map: root.map, objects: root.objects.clone(), delta: Default::default() };
        Self {
            name: requests.name().to_owned(),
            blocks: root.blocks,
            session: root.session,
            epoch: root.epoch,
            environment: Arc::clone(environment),
            cache,
            journal,
            behind: requests.for_maintenance(),
            requests,
            options,
            chain: Mutex::new(chain),
            line: Mutex::new(line),
            state: RwLock::default(),
            latch: OnceLock::new(),
            deleted: Mutex::default(),
            unmovable: Mutex::default(),
            deletes_from: Mutex::default(),
            ended: Mutex::new(false),
            end: Condvar::new(),
        }
    }

    /// Gets the map that the root names, if a claim has not got it already, and lets it have the
    /// delta.
    ///
    /// # Errors
    /// If it cannot be got, or is damaged.
    pub(super) fn load_state(&self, tables: Option<Tables>) -> std::result::Result<(), Failure> {
        let mut chain = self.chain.lock();
        let root = self.line.lock().root.clone();
        let Tables { map, objects } = match tables {
            Some(tables) => tables,
            None => {
                let mut tables = Tables::get(&self.requests, &root)?;
                let pages = tables.begin_pages(&self.requests, &root);
                // A page that cannot be read concerns those that need it.
                if let Ok(pages) = pages.and_then(|pages| pages.finish(&self.requests)) {
                    tables.load(pages);
                }
                tables
            }
        };
        *self.state.write() = State { map, objects, ..State::default() };
        let ranges: Vec<_> = root.delta.iter().map(|run| run.start..run.end()).collect();
        self.load_pages(&ranges)?;
        let state = &mut *self.state.write();
        for run in &root.delta {
            let before = state.map.apply(run);
            state.objects.moved(&before, run);
            chain.delta.replace(*run);
        }
        Ok(())
    }
}
