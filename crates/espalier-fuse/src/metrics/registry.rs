//! Registry of all that is counted of one mount: the cells of its workers, and its traces.

use super::callers::{CallerSnapshot, WATCHED_FOR};
use super::cells::{Cells, KindSnapshot};
use super::clock::{Clock, Stamp};
use super::kinds::KINDS;
use super::trace::Tracer;
use espalier_sync::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Everything that is counted and measured of one mount.
pub struct Metrics {
    clock: Clock,
    begun_unix: Duration,
    recorders: Mutex<Recorders>,
    /// Nanoseconds after `begun` until when callers are recorded.
    watched_until: AtomicU64,
    stored: Arc<AtomicU64>,
    tracer: Tracer,
}

#[derive(Default)]
struct Recorders {
    all: Vec<Arc<Cells>>,
    /// Those whose worker is gone; another takes them over with their counts.
    free: Vec<Arc<Cells>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let begun_unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            clock: Clock::begin(),
            begun_unix,
            recorders: Mutex::default(),
            watched_until: AtomicU64::new(0),
            stored: Arc::default(),
            tracer: Tracer::default(),
        }
    }
}

impl std::fmt::Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// The cells of one more worker.
    pub(super) fn take_cells(&self) -> Arc<Cells> {
        let mut recorders = self.recorders.lock();
        recorders.free.pop().unwrap_or_else(|| {
            let cells = Arc::new(Cells::default());
            recorders.all.push(Arc::clone(&cells));
            cells
        })
    }

    /// The worker of these cells is gone.
    pub(super) fn give_back(&self, cells: Arc<Cells>) {
        self.recorders.lock().free.push(cells);
    }

    /// The count of files that were stored in the kernel's pages without a request.
    pub(crate) fn stored(&self) -> &Arc<AtomicU64> {
        &self.stored
    }

    /// The traces of single requests.
    pub fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// The clock of all times.
    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// How long this has counted.
    pub fn age(&self) -> Duration {
        self.clock.since_begun(self.clock.now())
    }

    /// A moment since the Unix epoch.
    pub(crate) fn unix(&self, at: Stamp) -> Duration {
        self.begun_unix + self.clock.since_begun(at)
    }

    /// Files that were stored in the kernel's pages without a request.
    pub fn files_stored(&self) -> u64 {
        self.stored.load(Ordering::Relaxed)
    }

    /// The kinds of requests that came up, in the protocol's order.
    pub fn snapshot(&self) -> Vec<KindSnapshot> {
        let cells = self.recorders.lock().all.clone();
        let kinds = (0..KINDS).filter_map(|kind| {
            let mut found = cells.iter().filter_map(|cells| cells.kind(kind));
            let mut sum = found.next()?.snapshot(kind);
            found.for_each(|cells| cells.add_to(&mut sum));
            (sum.requests > 0).then_some(sum)
        });
        kinds.collect()
    }

    /// The callers since this was called for the first time, or again after more than
    /// [`WATCHED_FOR`]: those that asked most, at most `most` of them. From now on callers are
    /// recorded for that long.
    pub fn callers(&self, most: usize) -> Vec<CallerSnapshot> {
        let until = self.age() + WATCHED_FOR;
        self.watched_until.store(until.as_nanos() as u64, Ordering::Relaxed);
        let cells = self.recorders.lock().all.clone();
        let mut sums: HashMap<(u32, u64), CallerSnapshot> = HashMap::new();
        for cells in &cells {
            cells.callers.lock().each(|caller| {
                let key = (caller.pid, caller.key());
                match sums.get_mut(&key) {
                    Some(sum) => sum.add(caller),
                    None => drop(sums.insert(key, caller.clone())),
                }
            });
        }
        let mut callers: Vec<_> = sums.into_values().collect();
        callers.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.pid.cmp(&b.pid)));
        callers.truncate(most);
        callers.iter_mut().for_each(CallerSnapshot::refresh_name);
        callers
    }

    /// True if callers may have to be recorded.
    pub(super) fn is_watched(&self) -> bool {
        self.watched_until.load(Ordering::Relaxed) > 0
    }

    /// True if callers are to be recorded at `now`.
    pub(super) fn is_watched_at(&self, now: Stamp) -> bool {
        let until = self.watched_until.load(Ordering::Relaxed);
        let is_watched = until > 0 && self.clock.since_begun(now).as_nanos() as u64 <= until;
        if until > 0 && !is_watched {
            // No request looks at the clock for this any more, unless callers were just asked for.
            let _ = self.watched_until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
        is_watched
    }

    /// The kinds of requests that came up, in the protocol's order: the kernel's name in lower
    /// case, and the number. Last, as `notify_store`, prefetched files.
    pub fn each(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let kinds = self.snapshot().into_iter().map(|kind| (kind.kind, kind.requests));
        kinds.chain([("notify_store", self.files_stored())]).filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
impl Metrics {
    /// How many workers there were at a time.
    pub(super) fn workers(&self) -> usize {
        self.recorders.lock().all.len()
    }
}
