//! Which CPUs there are, and staying on one.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How many CPUs the kernel may ever have; each has a queue of its own.
pub(super) fn possible() -> usize {
    listed("possible")
}

/// How many CPUs there are now.
pub(super) fn online() -> usize {
    listed("online")
}

fn listed(what: &str) -> usize {
    std::fs::read_to_string(format!("/sys/devices/system/cpu/{what}"))
        .ok()
        .and_then(|list| count(list.trim()))
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// The number of CPUs in a list like `0-3,8`.
fn count(list: &str) -> Option<usize> {
    let mut total: usize = 0;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        total = total.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    (1..=1 << 16).contains(&total).then_some(total)
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

/// A reply of so many bytes takes longer than it takes to wake another CPU for it.
pub(super) const BULK_REPLY_BYTES: usize = 256 << 10;
/// So many other replies in sequence, and a thread is back on its CPU.
const OTHERS: u32 = 16;

/// Where the calling thread may run: on one CPU, or, while it replies in bulk, on any. The kernel
/// reads ahead of a reader that reads a file from its beginning to its end; on one CPU the copies
/// for the reader and the copies by the reader would take turns.
#[derive(Debug)]
pub(super) struct Place {
    cpu: usize,
    anywhere: Option<CpuSet>,
    roams: bool,
    others: u32,
}

impl Place {
    /// On `cpu`.
    pub(super) fn on(cpu: usize) -> Self {
        let anywhere = sched_getaffinity(None).ok();
        pin(cpu);
        Self { cpu, anywhere, roams: false, others: 0 }
    }

    /// A reply of `bytes` is made.
    pub(super) fn replied(&mut self, bytes: usize) {
        if bytes >= BULK_REPLY_BYTES {
            self.others = 0;
            if !self.roams
                && let Some(set) = &self.anywhere
            {
                stay_in(set);
                self.roams = true;
            }
        } else if self.roams {
            self.others += 1;
            if self.others == OTHERS {
                pin(self.cpu);
                self.roams = false;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_replies_in_bulk_may_run_anywhere_until_it_is_over() {
        // A thread of its own, since it changes where it may run.
        let body = || {
            let (all, here) = (allowed(), allowed()[0]);
            let mut place = Place::on(here);
            assert_eq!(allowed(), [here]);
            place.replied(BULK_REPLY_BYTES - 1);
            assert_eq!(allowed(), [here]);
            place.replied(BULK_REPLY_BYTES);
            assert_eq!(allowed(), all);
            (1..OTHERS).for_each(|_| place.replied(0));
            place.replied(BULK_REPLY_BYTES);
            (1..OTHERS).for_each(|_| place.replied(0));
            assert_eq!(allowed(), all);
            place.replied(0);
            assert_eq!(allowed(), [here]);
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
