//! Measuring: how long operations took, and what the process read, wrote and used meanwhile.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::{Duration, Instant};

/// What one workload took one contender.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Figures {
    pub(crate) contender: String,
    pub(crate) workload: String,
    pub(crate) value_bytes: usize,
    /// Values that were loaded into the store.
    pub(crate) values: u64,
    /// Keys that were written, read or deleted.
    pub(crate) operations: u64,
    /// From the first operation until all is durable.
    pub(crate) seconds: f64,
    /// That closing the store took after that.
    pub(crate) close_seconds: f64,
    /// Milliseconds of half of the calls, 99 of 100, and all; a call is a batch, a read or a scan.
    pub(crate) p50_ms: f64,
    pub(crate) p99_ms: f64,
    pub(crate) worst_ms: f64,
    /// Bytes from and to the device, closing included.
    pub(crate) bytes_read: u64,
    pub(crate) bytes_written: u64,
    /// Processor time of all threads in user mode and in the kernel, closing included.
    pub(crate) cpu_seconds: f64,
    /// The most that was resident, in bytes, with what is mapped of files.
    pub(crate) peak_resident: u64,
}

impl Figures {
    /// Operations in a second.
    pub(crate) fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }

    /// `amount` for each operation.
    pub(crate) fn each(&self, amount: f64) -> f64 {
        amount / self.operations.max(1) as f64
    }
}

/// Measures from now on.
pub(crate) struct Meter {
    begun: Instant,
    usage: Usage,
    calls: Vec<u32>,
    operations: u64,
    done: Option<Duration>,
}

impl Meter {
    /// Begins.
    ///
    /// # Errors
    /// Of reading `/proc`.
    pub(crate) fn start() -> Result<Self> {
        let usage = Usage::now()?;
        Ok(Self { begun: Instant::now(), usage, calls: Vec::new(), operations: 0, done: None })
    }

    /// Times a call that does so many `operations`.
    ///
    /// # Errors
    /// Of the call.
    pub(crate) fn call<T>(&mut self, operations: u64, call: impl FnOnce() -> Result<T>) -> Result<T> {
        let begun = Instant::now();
        let value = call()?;
        self.calls.push(u32::try_from(begun.elapsed().as_nanos() / 100).unwrap_or(u32::MAX));
        self.operations += operations;
        Ok(value)
    }

    /// More operations than the call was known to do.
    pub(crate) fn add(&mut self, operations: u64) {
        self.operations += operations;
    }

    /// All is durable: what follows is closing.
    pub(crate) fn done(&mut self) {
        self.done = Some(self.begun.elapsed());
    }

    /// The figures; the store is closed.
    ///
    /// # Errors
    /// Of reading `/proc`.
    pub(crate) fn finish(mut self, contender: &str, workload: &str) -> Result<Figures> {
        let all = self.begun.elapsed();
        let done = self.done.unwrap_or(all);
        let usage = Usage::now()?;
        self.calls.sort_unstable();
        let at = |part: f64| {
            let place = (self.calls.len().saturating_sub(1) as f64 * part) as usize;
            self.calls.get(place).map_or(0.0, |&time| f64::from(time) / 1e4)
        };
        Ok(Figures {
            contender: contender.into(),
            workload: workload.into(),
            value_bytes: 0,
            values: 0,
            operations: self.operations,
            seconds: done.as_secs_f64(),
            close_seconds: (all - done).as_secs_f64(),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            worst_ms: at(1.0),
            bytes_read: usage.bytes_read - self.usage.bytes_read,
            bytes_written: usage.bytes_written - self.usage.bytes_written,
            cpu_seconds: (usage.cpu - self.usage.cpu).as_secs_f64(),
            peak_resident: proc_field("/proc/self/status", "VmHWM:")? << 10,
        })
    }
}

struct Usage {
    bytes_read: u64,
    bytes_written: u64,
    cpu: Duration,
}

impl Usage {
    fn now() -> Result<Self> {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the structure is the caller's, and all zeroes are one.
        let usage = unsafe {
            libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
            usage.assume_init()
        };
        let time = |t: libc::timeval| {
            Duration::from_secs(t.tv_sec.unsigned_abs()) + Duration::from_micros(t.tv_usec.unsigned_abs())
        };
        Ok(Self {
            bytes_read: proc_field("/proc/self/io", "read_bytes:")?,
            bytes_written: proc_field("/proc/self/io", "write_bytes:")?,
            cpu: time(usage.ru_utime) + time(usage.ru_stime),
        })
    }
}

fn proc_field(path: &str, name: &str) -> Result<u64> {
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).context("no such line")?;
    Ok(line.split_whitespace().next().context("no number")?.parse()?)
}

/// Drops what the kernel has cached of all files below `folder`.
///
/// # Errors
/// Of opening them.
pub(crate) fn drop_caches(folder: &Path) -> Result<()> {
    use std::os::fd::AsRawFd;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            drop_caches(&entry.path())?;
        } else if entry.file_type()?.is_file() {
            let file = std::fs::File::open(entry.path())?;
            file.sync_data()?;
            // SAFETY: the descriptor is open; the call is advice.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
    }
    Ok(())
}
