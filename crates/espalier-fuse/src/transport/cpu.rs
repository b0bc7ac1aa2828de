//! Which CPUs there are, and staying on one.

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};
use std::io;
use std::ops::RangeInclusive;
use std::sync::mpsc::{Sender, channel};

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

/// The CPUs that are on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CpusOn {
    /// Their numbers, in order.
    pub(super) cpus: Vec<usize>,
    /// One of them on which this process may not run, if there is one.
    pub(super) forbidden: Option<usize>,
}

/// A thread that sleeps, by which it is found out on which CPUs threads of this process can be
/// kept. A sleeping thread goes nowhere when that is tried, so it takes a system call for each CPU
/// and nothing else.
pub(super) struct CpuProbe {
    id: Pid,
    /// The thread ends when this is dropped.
    _sleeps: Sender<()>,
}

impl CpuProbe {
    /// Starts the thread.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start() -> io::Result<Self> {
        let ((sleeps, wakes), (say, said)) = (channel(), channel());
        let body = move || {
            let _ = say.send(gettid());
            // An error: the other end is gone.
            let _ = wakes.recv();
        };
        std::thread::Builder::new().name("fuse-probe".into()).spawn(body)?;
        let id = said.recv().map_err(io::Error::other)?;
        Ok(Self { id, _sleeps: sleeps })
    }

    /// Which CPUs are on, of the first `count` and those that the system lists.
    ///
    /// # Errors
    /// The system does not tell.
    pub(super) fn cpus_on(&self, count: usize) -> io::Result<CpusOn> {
        let list = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
        self.cpus_on_by(&list, count)
    }

    /// As [`CpuProbe::cpus_on`], where the system lists these. A container can be shown a shorter
    /// list (by lxcfs), and a cpuset can forbid CPUs that are listed. So a CPU is off if it is not
    /// listed and no thread can be kept there.
    fn cpus_on_by(&self, list: &str, count: usize) -> io::Result<CpusOn> {
        let damaged = || io::Error::other("a list of CPUs without a sense");
        let listed: Vec<_> = ranges(list.trim()).ok_or_else(damaged)?.into_iter().flatten().collect();
        let all = 0..listed.iter().map(|cpu| cpu + 1).fold(count, usize::max);
        let mut on = CpusOn { cpus: Vec::new(), forbidden: None };
        for cpu in all {
            let is_reachable = self.reaches(cpu);
            if is_reachable || listed.contains(&cpu) {
                on.cpus.push(cpu);
                on.forbidden = on.forbidden.or((!is_reachable).then_some(cpu));
            }
        }
        // It is to end wherever there is room.
        note_failure(sched_setaffinity(Some(self.id), &everywhere()).map_err(Into::into));
        Ok(on)
    }

    fn reaches(&self, cpu: usize) -> bool {
        only(cpu).is_some_and(|set| sched_setaffinity(Some(self.id), &set).is_ok())
    }
}

/// The set of one CPU; `None`: there is no such CPU.
fn only(cpu: usize) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    (cpu < CpuSet::MAX_CPU).then(|| set.set(cpu))?;
    Some(set)
}

/// Keeps the calling thread on a CPU.
///
/// # Errors
/// The CPU is off, or forbidden.
pub(super) fn stay_on(cpu: usize) -> io::Result<()> {
    let set = only(cpu).ok_or(io::ErrorKind::InvalidInput)?;
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
    note_failure(stay_on(cpu));
}

/// Lets the calling thread run wherever this process may.
pub(super) fn run_anywhere() {
    stay_in(&everywhere());
}

/// Every CPU that there may ever be: of these the kernel takes those that exist and are allowed.
pub(super) fn everywhere() -> CpuSet {
    let mut set = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    set
}

fn stay_in(set: &CpuSet) {
    note_failure(sched_setaffinity(None, set).map_err(Into::into));
}

fn note_failure(result: io::Result<()>) {
    if let Err(error) = result {
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
    fn a_cpu_is_on_if_it_is_listed_or_can_be_run_on() {
        let probe = CpuProbe::start().unwrap();
        let (before, here) = (allowed(), allowed());
        // A list that is too short, as in some containers.
        let on = probe.cpus_on_by("0\n", possible()).unwrap();
        assert!(here.iter().all(|cpu| on.cpus.contains(cpu)), "{on:?}");
        let far = CpuSet::MAX_CPU - 1;
        let on = probe.cpus_on_by(&format!("{},{far}", here[0]), possible()).unwrap();
        assert!(here.iter().all(|cpu| on.cpus.contains(cpu)), "{on:?}");
        assert_eq!((on.cpus.last(), on.forbidden), (Some(&far), Some(far)), "it is said to be on");
        let on = probe.cpus_on_by(&CpuSet::MAX_CPU.to_string(), possible()).unwrap();
        assert_eq!(on.forbidden, Some(CpuSet::MAX_CPU));
        assert!(probe.cpus_on_by("x", 1).is_err());
        assert_eq!(allowed(), before, "the calling thread stays where it may run");
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
