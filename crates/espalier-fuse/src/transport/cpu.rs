//! Which CPUs there are, and staying on one.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io;
use std::ops::RangeInclusive;

/// How many CPUs the kernel may ever have; each has a queue of its own.
pub(super) fn possible() -> usize {
    listed("possible")
}

/// How many CPUs there are now.
pub(super) fn online() -> usize {
    listed("online")
}

/// Which CPUs there are now, whether this process may run there or not.
///
/// # Errors
/// The system does not tell.
pub(super) fn online_set() -> io::Result<Vec<usize>> {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    let ranges = ranges(list.trim()).ok_or_else(|| io::Error::other("a list of CPUs without a sense"))?;
    Ok(ranges.into_iter().flatten().collect())
}

fn listed(what: &str) -> usize {
    std::fs::read_to_string(format!("/sys/devices/system/cpu/{what}"))
        .ok()
        .and_then(|list| count(list.trim()))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The number of CPUs in a list like `0-3,8`.
fn count(list: &str) -> Option<usize> {
    ranges(list).map(|ranges| ranges.iter().map(|range| range.end() - range.start() + 1).sum())
}

/// The ranges of a list like `0-3,8`.
fn ranges(list: &str) -> Option<Vec<RangeInclusive<usize>>> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = first.parse().ok()?..=last.parse().ok()?;
        (range.start() <= range.end() && *range.end() < 1 << 16).then_some(range)
    };
    list.split(',').map(range).collect()
}

/// True if a thread of this process may be kept on `cpu`. The calling thread stays where it
/// may run.
pub(super) fn is_reachable(cpu: usize) -> bool {
    let Ok(before) = sched_getaffinity(None) else { return false };
    let reached = stay_on(cpu).is_ok();
    stay_in(&before);
    reached
}

/// Keeps the calling thread on a CPU.
///
/// # Errors
/// The CPU is off, or forbidden.
pub(super) fn stay_on(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// The CPUs on which this process may run.
pub(super) fn allowed() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect(),
        Err(_) => vec![0],
    }
}

/// Keeps the calling thread on a CPU. Where that is not possible (the CPU is off, or forbidden),
/// the thread stays free: requests are served, only farther away.
pub(super) fn pin(cpu: usize) {
    if cpu >= CpuSet::MAX_CPU {
        return;
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    stay_in(&set);
}

fn stay_in(set: &CpuSet) {
    if let Err(error) = sched_setaffinity(None, set) {
        tracing::debug!(%error, "a thread could not be kept on its CPU, or let go from there");
    }
}

/// Copying a reply of so many bytes takes longer than waking another CPU for it.
pub(super) const BULK_REPLY_BYTES: usize = 256 << 10;
/// After so many smaller replies in sequence a roaming thread returns to its CPU.
const SMALL_REPLIES_BEFORE_RETURN: u32 = 16;

/// Where the calling thread may run: on one CPU, its own or that of its client, or, while it
/// replies in bulk, on any. For a reader that reads a whole file the kernel reads ahead; on one CPU
/// the copies of the server and those of the reader would take turns.
#[derive(Debug)]
pub(super) struct CpuPlacement {
    /// Where its place is; `None`: anywhere.
    home: Option<usize>,
    /// The CPU on which it is kept now.
    now: Option<usize>,
    allowed_set: Option<CpuSet>,
    small_replies: u32,
}

impl CpuPlacement {
    /// Keeps the calling thread on `cpu`.
    pub(super) fn on(cpu: usize) -> Self {
        let allowed_set = sched_getaffinity(None).ok();
        pin(cpu);
        Self { home: Some(cpu), now: Some(cpu), allowed_set, small_replies: 0 }
    }

    /// Leaves the calling thread where it may run.
    pub(super) fn anywhere() -> Self {
        Self { home: None, now: None, allowed_set: sched_getaffinity(None).ok(), small_replies: 0 }
    }

    /// Keeps the calling thread on the CPU of its client.
    pub(super) fn follow(&mut self, client_cpu: usize) {
        if self.now != Some(client_cpu) {
            self.stay_on(Some(client_cpu));
        }
    }

    /// Puts the calling thread back in its own place.
    pub(super) fn go_home(&mut self) {
        if self.now != self.home {
            self.stay_on(self.home);
        }
    }

    fn stay_on(&mut self, cpu: Option<usize>) {
        match (cpu, &self.allowed_set) {
            (Some(cpu), _) => pin(cpu),
            (None, Some(set)) => stay_in(set),
            (None, None) => return,
        }
        self.now = cpu;
    }

    /// The calling thread has made a reply of `bytes` bytes.
    pub(super) fn replied(&mut self, bytes: usize) {
        if bytes >= BULK_REPLY_BYTES {
            self.small_replies = 0;
            if self.now.is_some() {
                self.stay_on(None);
            }
        } else if self.now.is_none() {
            self.small_replies += 1;
            if self.small_replies == SMALL_REPLIES_BEFORE_RETURN {
                self.go_home();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_replies_in_bulk_may_run_anywhere_until_it_is_over() {
        // A thread of its own, since it changes where it may run.
        let body = || {
            let (all, here) = (allowed(), allowed()[0]);
            let mut placement = CpuPlacement::on(here);
            assert_eq!(allowed(), [here]);
            placement.replied(BULK_REPLY_BYTES - 1);
            assert_eq!(allowed(), [here]);
            placement.replied(BULK_REPLY_BYTES);
            assert_eq!(allowed(), all);
            (1..SMALL_REPLIES_BEFORE_RETURN).for_each(|_| placement.replied(0));
            placement.replied(BULK_REPLY_BYTES);
            (1..SMALL_REPLIES_BEFORE_RETURN).for_each(|_| placement.replied(0));
            assert_eq!(allowed(), all);
            placement.replied(0);
            assert_eq!(allowed(), [here]);
        };
        std::thread::spawn(body).join().unwrap_or_else(|_| unreachable!("it asserts only"));
    }

    #[test]
    fn a_thread_follows_its_client_and_goes_home() {
        let body = || {
            let all = allowed();
            let last = all[all.len() - 1];
            for home in [Some(all[0]), None] {
                let mut placement = home.map_or_else(CpuPlacement::anywhere, CpuPlacement::on);
                let before = allowed();
                placement.follow(last);
                placement.follow(last);
                assert_eq!(allowed(), [last]);
                placement.go_home();
                assert_eq!(allowed(), before);
                placement.follow(last);
                placement.stay_on(None);
                assert_eq!(allowed(), all);
            }
        };
        std::thread::spawn(body).join().unwrap_or_else(|_| unreachable!("it asserts only"));
    }

    #[test]
    fn counts_lists_of_cpus() {
        assert_eq!(super::count("0"), Some(1));
        assert_eq!(super::count("0-1"), Some(2));
        assert_eq!(super::count("0-3,8,10-11"), Some(7));
        for bad in ["", "3-1", "x", "0-", "0-99999999999999999999", "0-18446744073709551615"] {
            assert_eq!(super::count(bad), None, "{bad}");
        }
    }
}
