//! Which CPUs there are, and staying on one.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// How many CPUs the kernel may ever have; each has a queue of its own.
pub(super) fn possible() -> usize {
    std::fs::read_to_string("/sys/devices/system/cpu/possible")
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

/// Keeps the calling thread on a CPU. Where that is not possible (the CPU is off, or forbidden), the thread
/// stays free: requests are served, only farther away.
pub(super) fn pin(cpu: usize) {
    if cpu >= CpuSet::MAX_CPU {
        return;
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    if let Err(error) = sched_setaffinity(None, &set) {
        tracing::debug!(cpu, %error, "a thread could not be kept on its CPU");
    }
}

#[cfg(test)]
mod tests {
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
