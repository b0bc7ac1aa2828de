//! Back-pressure: writers wait when too much is in memory or in the log, and are slowed down
//! smoothly before that.
//!
//! Protocol: before a batch is admitted the writer asks whether the log has to be written first
//! ([`BackPressure::must_write_log`]), and then how full memory is ([`BackPressure::look`]), until
//! the answer is [`Verdict::Accept`]. With worker threads the writer waits here, for progress that
//! they make; without, it is told to take a step of background work itself.
//!
//! The log is written in groups of several MiB, and a writer that is faster than the device would
//! wait for one of them now and then. So from half of what may be pending on, each batch waits a
//! little, the longer the more is pending: the writer comes to go on as fast as the log does.
//!
//! Memory is *tight* when memtables, what is unwritten or both together with what the log has not
//! written take their share, and *full* when they take a third more. While it is tight a batch
//! waits for a bounded time ([`MAX_WAIT_WHEN_TIGHT`]), in which the device writes more than the
//! batch adds; so no writer waits for a whole checkpoint. The log, the layers and what waits on
//! edges have no such margin.
//!
//! Writers never wait for what no work can write, such as replaced values that only a snapshot
//! holds, or a flush for which the device has no room.

use super::LOG_WRITE_AHEAD_BYTES;
use crate::device::GuardedDevice;
use crate::index::backlog::FlushBacklog;
use crate::index::memory::UnwrittenMemory;
use crate::index::table::IndexTable;
use crate::log::{Log, LogProgress, LoggedOp};
use crate::model::batch::Batch;
use crate::signal::WorkSignal;
use crate::space::Purpose;
use crate::tree::Trees;
use crate::{Error, ErrorKind, Result};
use espalier_storage::Environment;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A writer that finds a thirty-second part of memory not yet in the log, but at least and at most
/// so much, waits for room there, or makes it. It should not have to wait while the device makes
/// safe what was written: that takes as long as a hundred MiB do on some.
const FORCED_LOG_WRITE_BYTES: (u64, u64) = (16 << 20, 64 << 20);

/// With little memory it is an eighth, but no less than this.
const LEAST_FORCED_LOG_WRITE_BYTES: u64 = 8 << 20;

/// Bytes of batches after which a writer that was not slowed down looks again whether there is
/// room. A writer that clones looks each time: each clone is a layer that has to be absorbed for
/// itself, whatever its batch weighs.
const LOOK_AFTER_BYTES: u64 = 64 << 10;

/// Memtables and clones that may wait for being absorbed, of one index: a look-up passes them all.
pub(crate) const MAX_WAITING_LAYERS: usize = 128;

/// The longest a writer of little is slowed down per commit before it has to wait.
const MAX_WRITER_DELAY: Duration = Duration::from_millis(2);

/// A writer of much is slowed down, before it has to wait, to so many bytes in a second at least.
const SLOWED_BYTES_PER_SECOND: u64 = 10 << 20;

/// How long a batch waits while memory is tight, and is slowed down at most before that.
const MAX_WAIT_WHEN_TIGHT: Duration = Duration::from_millis(40);

/// Memory is full when so much of what makes it tight is taken.
const FULL_FOR_TIGHT: f64 = 4.0 / 3.0;

/// How long a writer waits for progress before it looks again: what is written piece by piece makes
/// room without a notice.
const PROGRESS_WAIT: Duration = Duration::from_millis(10);

/// See the [module](self).
pub(crate) struct BackPressure {
    pub(crate) env: Arc<dyn Environment>,
    pub(crate) device: Arc<GuardedDevice>,
    pub(crate) log: Arc<Log>,
    pub(crate) trees: Arc<Trees>,
    pub(crate) indexes: Arc<IndexTable>,
    pub(crate) memory: Arc<UnwrittenMemory>,
    pub(crate) backlog: Arc<FlushBacklog>,
    pub(crate) signal: Arc<WorkSignal>,
    /// The memory that the store may take, in bytes.
    pub(crate) budget: u64,
    pub(crate) stalls: Stalls,
}

/// What writers paid for background work that did not keep up.
#[derive(Default)]
pub(crate) struct Stalls {
    /// Nanoseconds.
    pushed: AtomicU64,
    slowed: AtomicU64,
    waited: AtomicU64,
    /// Background work has found no room on the device: writers must not wait for it.
    is_starved: AtomicBool,
    /// Bytes of batches since a writer last found that there is plenty of room.
    unseen_bytes: AtomicU64,
    /// Bytes of batches that have not waited yet for the log to come along.
    unpaced_bytes: AtomicU64,
}

/// Time that calls of [`Store::commit`](crate::Store::commit) spent because too much was in memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct StallTimes {
    /// Writing the log on behalf of all writers.
    pub pushing: Duration,
    /// Slowed down, as a warning.
    pub slowed: Duration,
    /// Waiting for room.
    pub waiting: Duration,
}

/// What a writer does before its batch is admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Goes on.
    Accept,
    /// Takes a step of background work, and goes on.
    StepAndAccept,
    /// Takes a step of background work, and looks again if that helped.
    StepAndLook,
    /// Looks again: it has waited.
    Look,
}

/// How urgent it is to have less in memory or in the log.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Pressure {
    None,
    /// Between 0 and 1.
    Some(f64),
    /// A batch may go on when it has waited for a while.
    Tight,
    Full,
}

impl Pressure {
    /// From what is taken of the shares that may be exceeded for a while, and of those that may
    /// not; 1 is all.
    fn of(memory: f64, others: f64) -> Self {
        match memory.max(others) {
            _ if others >= 1.0 || memory >= FULL_FOR_TIGHT => Self::Full,
            worst if worst >= 1.0 => Self::Tight,
            worst if worst > 0.75 => Self::Some((worst - 0.75) * 4.0),
            _ => Self::None,
        }
    }
}

impl BackPressure {
    /// True if so much is not yet in the log that a writer of `bytes` more must see it written
    /// first.
    ///
    /// # Errors
    /// [`ErrorKind::ReadOnly`].
    pub(crate) fn must_write_log(&self, bytes: usize) -> Result<bool> {
        self.device.writable()?;
        Ok(self.log.pending_bytes() + bytes as u64 > self.forced_write_bytes())
    }

    /// Makes room for a writer of `bytes` in what is not yet in the log; without worker threads by
    /// writing more of it, as no other caller does.
    ///
    /// # Errors
    /// Of the log.
    pub(crate) fn write_log(&self, bytes: usize) -> Result<LogProgress> {
        let most = self.forced_write_bytes();
        match self.env.threads() {
            0 => self.log.push(most - LOG_WRITE_AHEAD_BYTES),
            _ => self.log.make_room(most - LOG_WRITE_AHEAD_BYTES.min(bytes as u64)),
        }
    }

    /// Lets a writer of `bytes` wait a little if more than half of what may wait for the log does:
    /// until other threads have taken some of it, but for a bounded time.
    pub(crate) fn pace(&self, bytes: usize) {
        let (pending, most) = (self.log.pending_bytes(), self.forced_write_bytes());
        if self.env.threads() == 0 || pending <= most / 2 {
            return;
        }
        let unpaced = &self.stalls.unpaced_bytes;
        let together = unpaced.fetch_add(bytes as u64, Ordering::Relaxed).saturating_add(bytes as u64);
        if together < LOOK_AFTER_BYTES {
            return;
        }
        unpaced.store(0, Ordering::Relaxed);
        self.signal.request_work();
        let delay = log_delay(together, pending, most);
        self.timed(&self.stalls.slowed, || self.log.wait_for_room(most / 2, delay));
    }

    fn forced_write_bytes(&self) -> u64 {
        let (least, most) = FORCED_LOG_WRITE_BYTES;
        let least = least.min(self.budget / 8).max(LEAST_FORCED_LOG_WRITE_BYTES);
        (self.budget / 32).clamp(least, most)
    }

    /// Counts the time that `work` takes as spent for the log.
    pub(crate) fn time_log_write<T>(&self, work: impl FnOnce() -> T) -> T {
        self.timed(&self.stalls.pushed, work)
    }

    /// Looks whether there is room for `batch` in memory, and waits if there is none, or little.
    /// `begun` is when the caller first asked for this batch.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] if the device has no room for what is in memory.
    pub(crate) fn look(&self, batch: &Batch, purpose: Purpose, begun: Duration) -> Result<Verdict> {
        let threads = self.env.threads() > 0;
        let clones = batch.ops.iter().any(|op| matches!(op, LoggedOp::Clone { .. }));
        // Looking takes locks, and what a few small batches add does not count. Without threads
        // every batch does its share of the work.
        if threads && !clones && self.is_early(batch.bytes as u64) {
            return Ok(Verdict::Accept);
        }
        let epoch = self.signal.epoch();
        match self.pressure() {
            Pressure::None => {
                self.stalls.unseen_bytes.store(0, Ordering::Relaxed);
                Ok(Verdict::Accept)
            }
            Pressure::Some(fraction) => {
                self.signal.request_work();
                if !threads {
                    return Ok(Verdict::StepAndAccept);
                }
                let delay = max_delay(batch.bytes as u64).mul_f64(fraction * fraction);
                self.timed(&self.stalls.slowed, || self.env.sleep(delay));
                Ok(Verdict::Accept)
            }
            // What frees space in the end must get in, for nothing else helps.
            Pressure::Tight | Pressure::Full if self.stalls.is_starved.load(Ordering::Acquire) => {
                if purpose == Purpose::Essential {
                    return Ok(Verdict::Accept);
                }
                let message = "the device has no room to write what is in memory; delete something";
                Err(Error::new(ErrorKind::NoSpace, message))
            }
            pressure => {
                self.signal.request_work();
                if !threads {
                    return Ok(Verdict::StepAndLook);
                }
                let waited = self.env.monotonic().saturating_sub(begun);
                if pressure == Pressure::Tight && waited >= MAX_WAIT_WHEN_TIGHT {
                    return Ok(Verdict::Accept);
                }
                self.timed(&self.stalls.waited, || self.signal.wait_for_progress(epoch, PROGRESS_WAIT));
                Ok(Verdict::Look)
            }
        }
    }

    /// Counts `bytes`; true if not yet enough came since there was plenty of room.
    fn is_early(&self, bytes: u64) -> bool {
        let enough = LOOK_AFTER_BYTES.min(self.budget / 1024);
        self.stalls.unseen_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes < enough
    }

    /// Background work has found no room on the device, or has found some again.
    pub(crate) fn set_starved(&self, is_starved: bool) {
        self.stalls.is_starved.store(is_starved, Ordering::Release);
    }

    /// What writers have spent so far.
    pub(crate) fn stall_times(&self) -> StallTimes {
        let time = |nanoseconds: &AtomicU64| Duration::from_nanos(nanoseconds.load(Ordering::Relaxed));
        let Stalls { pushed, slowed, waited, .. } = &self.stalls;
        StallTimes { pushing: time(pushed), slowed: time(slowed), waiting: time(waited) }
    }

    /// Gives the cache what memtables and unwritten nodes do not take.
    pub(crate) fn share_memory(&self) {
        self.pressure();
    }

    /// Adds the time that `work` takes to `sum`, in nanoseconds.
    fn timed<T>(&self, sum: &AtomicU64, work: impl FnOnce() -> T) -> T {
        let start = self.env.monotonic();
        let done = work();
        let took = self.env.monotonic().saturating_sub(start);
        sum.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        done
    }

    /// What memtables, unwritten nodes and the log do not take is for the cache. A sixteenth is for
    /// the tables of space and requests under way, a quarter for what an allocator adds.
    fn set_cache_capacity(&self, unwritten: u64) {
        let clean = (self.budget / 16 * 11).saturating_sub(unwritten).max(self.budget / 8);
        self.trees.pieces.set_capacity(clean);
    }

    /// Memtables may take a quarter of the budget, unwritten nodes three eighths, both together
    /// with what the log has not written a half; all that a third more for a while, and
    /// the log nearly all of itself; and flushing must keep up.
    fn pressure(&self) -> Pressure {
        let (mut tables, mut layers) = (0, 0);
        for index in self.indexes.read().values() {
            let version = index.version();
            tables += version.memtable_bytes();
            layers = layers.max(version.sealed.len());
        }
        let unwritten = self.memory.bytes();
        let log = self.log.used_bytes() as f64 / self.log.capacity() as f64;
        let quarter = (self.budget / 4).max(1) as f64;
        let together = tables as u64 + unwritten + self.log.held_bytes();
        self.set_cache_capacity(together + self.memory.pinned_bytes());
        let memory = (tables as f64 / quarter).max(unwritten as f64 / (1.5 * quarter));
        let memory = memory.max(together as f64 / (2.0 * quarter));
        let others = (layers as f64 / MAX_WAITING_LAYERS as f64).max(log / 0.9).max(self.backlog.fullness());
        Pressure::of(memory, others)
    }
}

/// How long `bytes` bytes wait where so many are pending for the log, of so many that may be; zero
/// where that is less than half.
fn log_delay(bytes: u64, pending: u64, most: u64) -> Duration {
    let fraction = (pending as f64 / most.max(1) as f64).min(1.0) * 2.0 - 1.0;
    if fraction <= 0.0 {
        return Duration::ZERO;
    }
    let share = Duration::from_micros(bytes.saturating_mul(1_000_000) / SLOWED_BYTES_PER_SECOND);
    share.min(MAX_WAIT_WHEN_TIGHT).mul_f64(fraction * fraction)
}

/// The longest that a batch of so many bytes is slowed down before it has to wait.
fn max_delay(bytes: u64) -> Duration {
    let share = Duration::from_micros(bytes.saturating_mul(1_000_000) / SLOWED_BYTES_PER_SECOND);
    share.clamp(MAX_WRITER_DELAY, MAX_WAIT_WHEN_TIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_may_be_exceeded_for_a_while_and_nothing_else() {
        assert_eq!(Pressure::of(0.75, 0.75), Pressure::None);
        assert_eq!(Pressure::of(0.875, 0.0), Pressure::Some(0.5));
        assert_eq!(Pressure::of(0.0, 0.875), Pressure::Some(0.5));
        assert_eq!(Pressure::of(1.0, 0.99), Pressure::Tight);
        assert_eq!(Pressure::of(1.3, 0.0), Pressure::Tight);
        assert_eq!(Pressure::of(1.34, 0.0), Pressure::Full);
        assert_eq!(Pressure::of(0.0, 1.0), Pressure::Full);
    }

    #[test]
    fn what_waits_for_the_log_slows_a_writer_down_the_more_there_is() {
        let (second, most) = (SLOWED_BYTES_PER_SECOND, 16 << 20);
        assert_eq!(log_delay(second, 8 << 20, most), Duration::ZERO);
        assert_eq!(log_delay(second / 64, 12 << 20, most), Duration::from_nanos(3_906_250));
        assert_eq!(log_delay(second / 64, 16 << 20, most), Duration::from_micros(15_625));
        assert_eq!(log_delay(u64::MAX, u64::MAX, most), MAX_WAIT_WHEN_TIGHT);
        assert_eq!(log_delay(second, 1, 0), MAX_WAIT_WHEN_TIGHT);
    }

    #[test]
    fn delays_grow_with_the_bytes_up_to_a_bound() {
        assert_eq!(max_delay(0), MAX_WRITER_DELAY);
        assert_eq!(max_delay(SLOWED_BYTES_PER_SECOND / 64), Duration::from_micros(15_625));
        assert_eq!(max_delay(u64::MAX), MAX_WAIT_WHEN_TIGHT);
    }
}
