//! Figures: everything that the server of a mount tells of itself, at one moment.
//!
//! All counters count from the beginning of the server. The JSON form is what the server sends and
//! what `espalier stat --json` prints of it in part.

use espalier_engine::{Statistics, Store};
use espalier_fs::FsStatistics;
use espalier_fuse::metrics::{CallerSnapshot, Histogram, KindSnapshot, Metrics};
use espalier_object::ObjectDevice;
use serde::{Deserialize, Serialize};

/// See the [module](self).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Seconds since the Unix epoch.
    pub(crate) unix_seconds: f64,
    /// Seconds since the server began.
    pub(crate) up_seconds: f64,
    pub(crate) mount: MountFigures,
    /// Requests, by kind.
    pub(crate) kinds: Vec<KindFigures>,
    /// The first kind that is not among them, to be asked for separately.
    pub(crate) next_kind: Option<usize>,
    /// The processes that asked most lately, if they are watched.
    pub(crate) callers: Vec<CallerFigures>,
    /// Requests that the kernel holds: they wait for a server thread or are served. Known to root's
    /// servers.
    pub(crate) kernel_requests: Option<u64>,
    pub(crate) memory: MemoryFigures,
    pub(crate) log: LogFigures,
    pub(crate) checkpoints: CheckpointFigures,
    pub(crate) back_pressure: BackPressureFigures,
    pub(crate) device: DeviceFigures,
    /// Of a store in an object store.
    #[serde(default)]
    pub(crate) objects: Option<ObjectFigures>,
    pub(crate) space: SpaceFigures,
}

/// Some kinds of requests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct KindPage {
    pub(crate) kinds: Vec<KindFigures>,
    pub(crate) next_kind: Option<usize>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct MountFigures {
    pub(crate) directory: String,
    pub(crate) source: String,
    pub(crate) transport: String,
    pub(crate) pid: u32,
}

/// Times as counts in the buckets of [`Histogram`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Times {
    sum_nanos: u64,
    buckets: Vec<(usize, u64)>,
}

/// Requests of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KindFigures {
    pub(crate) kind: String,
    pub(crate) requests: u64,
    pub(crate) errors: u64,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// Of a sample; each time counts for all that it stands for.
    pub(crate) work: Times,
    pub(crate) queue: Times,
}

/// A process that asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CallerFigures {
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) work_nanos: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct MemoryFigures {
    pub(crate) budget_bytes: u64,
    pub(crate) cache_bytes: u64,
    pub(crate) cache_hits: u64,
    pub(crate) cache_misses: u64,
    pub(crate) memtable_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) names_bytes: u64,
    pub(crate) names_hits: u64,
    pub(crate) names_misses: u64,
    /// Files that were stored in the kernel's pages before they were asked for.
    pub(crate) files_prefetched: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct LogFigures {
    pub(crate) capacity_bytes: u64,
    pub(crate) used_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) groups: u64,
    pub(crate) batches: u64,
    pub(crate) syncs: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct CheckpointFigures {
    pub(crate) count: u64,
    /// Batches that the newest checkpoint does not cover.
    pub(crate) batches_behind: u64,
}

/// Seconds of all writers together.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct BackPressureFigures {
    pub(crate) wrote_log_seconds: f64,
    pub(crate) slowed_seconds: f64,
    pub(crate) waited_seconds: f64,
}

/// Requests to the device.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct DeviceFigures {
    pub(crate) read_bytes: u64,
    pub(crate) written_bytes: u64,
    pub(crate) reads: Times,
    pub(crate) writes: Times,
    pub(crate) syncs: Times,
    /// Requests under way now.
    pub(crate) in_flight: u64,
}

/// Requests to an object store, those that were repeated included, and what it stores.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ObjectFigures {
    pub(crate) puts: u64,
    pub(crate) gets: u64,
    pub(crate) deletes: u64,
    pub(crate) lists: u64,
    /// Of all these, those that were made because one before had failed.
    pub(crate) repeats: u64,
    pub(crate) put_bytes: u64,
    pub(crate) got_bytes: u64,
    /// Bytes of blocks that are in use.
    pub(crate) live_bytes: u64,
    /// Bytes of the objects that have some, and of the map.
    pub(crate) stored_bytes: u64,
    /// Bytes of objects that wait for their grace time to pass.
    pub(crate) dead_bytes: u64,
    /// Records of the journal that the store does not have yet.
    pub(crate) journal_records: u64,
}

/// Where the space of the device goes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct SpaceFigures {
    pub(crate) total_bytes: u64,
    pub(crate) free_bytes: u64,
    /// Superblocks and log.
    pub(crate) fixed_bytes: u64,
    /// Of what is free: for accepted changes that are not written yet.
    pub(crate) reserved_bytes: u64,
    /// Of what is free: for files that were promised room.
    pub(crate) kept_bytes: u64,
    /// Removed, but a checkpoint or a reader still needs it.
    pub(crate) deferred_bytes: u64,
    /// Removed, in the middle of what is in use.
    pub(crate) dead_value_bytes: u64,
    pub(crate) longest_free_bytes: u64,
}

impl From<&Histogram> for Times {
    fn from(histogram: &Histogram) -> Self {
        Self { sum_nanos: histogram.sum_nanos(), buckets: histogram.sparse().collect() }
    }
}

impl Times {
    pub(crate) fn histogram(&self) -> Histogram {
        Histogram::from_sparse(self.buckets.iter().copied(), self.sum_nanos)
    }
}

impl From<&ObjectDevice> for ObjectFigures {
    fn from(device: &ObjectDevice) -> Self {
        let (requests, usage) = (device.request_counts(), device.usage());
        Self {
            puts: requests.puts,
            gets: requests.gets,
            deletes: requests.deletes,
            lists: requests.lists,
            repeats: requests.repeats,
            put_bytes: requests.bytes_put,
            got_bytes: requests.bytes_got,
            live_bytes: usage.live_bytes,
            stored_bytes: usage.segment_bytes + usage.map_bytes,
            dead_bytes: usage.dead_bytes,
            journal_records: device.journal_usage().map_or(0, |journal| journal.waiting),
        }
    }
}

impl From<&KindSnapshot> for KindFigures {
    fn from(of: &KindSnapshot) -> Self {
        Self {
            kind: of.kind.into(),
            requests: of.requests,
            errors: of.errors,
            bytes_in: of.bytes_in,
            bytes_out: of.bytes_out,
            work: (&of.work).into(),
            queue: (&of.queue).into(),
        }
    }
}

impl From<CallerSnapshot> for CallerFigures {
    fn from(of: CallerSnapshot) -> Self {
        let CallerSnapshot { pid, name, requests, bytes, work_nanos } = of;
        Self { pid, name, requests, bytes, work_nanos }
    }
}

impl Figures {
    /// What `store`, the file system and the requests came to, without kinds and callers.
    pub(super) fn of(
        mount: MountFigures,
        metrics: &Metrics,
        store: &Store,
        fs: &FsStatistics,
        device: DeviceFigures,
        kernel_requests: Option<u64>,
    ) -> Self {
        let figures = store.statistics();
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        Self {
            unix_seconds: now.unwrap_or_default().as_secs_f64(),
            up_seconds: metrics.age().as_secs_f64(),
            mount,
            kinds: Vec::new(),
            next_kind: None,
            callers: Vec::new(),
            kernel_requests,
            memory: MemoryFigures {
                budget_bytes: figures.memory_budget,
                cache_bytes: figures.cache_bytes,
                cache_hits: figures.cache_hits,
                cache_misses: figures.cache_misses,
                memtable_bytes: figures.memtable_bytes,
                dirty_bytes: figures.dirty_bytes,
                names_bytes: fs.name_bytes,
                names_hits: fs.lookup_hits,
                names_misses: fs.lookup_misses,
                files_prefetched: metrics.files_stored(),
            },
            log: LogFigures {
                capacity_bytes: figures.log_capacity,
                used_bytes: figures.log_used,
                written_bytes: figures.log.bytes,
                groups: figures.log.groups,
                batches: figures.log.batches,
                syncs: figures.log.syncs,
            },
            checkpoints: CheckpointFigures {
                count: figures.checkpoints,
                batches_behind: figures.last_lsn.saturating_sub(figures.checkpoint_lsn),
            },
            back_pressure: BackPressureFigures {
                wrote_log_seconds: figures.stalls.pushing.as_secs_f64(),
                slowed_seconds: figures.stalls.slowed.as_secs_f64(),
                waited_seconds: figures.stalls.waiting.as_secs_f64(),
            },
            device,
            objects: None,
            space: space(&figures),
        }
    }
}

fn space(figures: &Statistics) -> SpaceFigures {
    let space = &figures.space;
    SpaceFigures {
        total_bytes: space.total,
        free_bytes: space.free.min(space.total),
        fixed_bytes: space.fixed,
        reserved_bytes: space.reserved,
        kept_bytes: space.kept,
        deferred_bytes: space.deferred,
        dead_value_bytes: space.dead_values,
        longest_free_bytes: space.longest_run,
    }
}
