//! The callers of requests, as one recorder sees them: a table of bounded size.

use std::time::Duration;

/// How long callers are recorded after they were asked for.
pub const WATCHED_FOR: Duration = Duration::from_secs(10);

/// Callers that one recorder knows at a time. Beyond that the one is dropped that has not asked for
/// the longest time.
const MAX_CALLERS: usize = 64;

/// What one process asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallerSnapshot {
    /// The process; 0 is the kernel.
    pub pid: u32,
    /// Its name, as in `ps -o comm`.
    pub name: String,
    /// Requests.
    pub requests: u64,
    /// Bytes of data in requests and answers.
    pub bytes: u64,
    /// How long the server worked for it, in nanoseconds.
    pub work_nanos: u64,
}

impl CallerSnapshot {
    /// Tells processes apart that had the same number one after the other.
    pub(super) fn key(&self) -> u64 {
        self.name.bytes().fold(0, |sum: u64, byte| sum.rotate_left(7) ^ u64::from(byte))
    }

    /// Asks for the name again, which changes when a process begins another program.
    pub(super) fn refresh_name(&mut self) {
        if self.pid != 0
            && let Ok(name) = std::fs::read_to_string(format!("/proc/{}/comm", self.pid))
        {
            name.trim_end().clone_into(&mut self.name);
        }
    }

    /// Adds what another recorder knows of the same process.
    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.bytes += other.bytes;
        self.work_nanos += other.work_nanos;
    }
}

/// See the [module](self). The caller that asked last comes first.
#[derive(Default)]
pub(super) struct CallerTable(Vec<(u32, CallerSnapshot)>);

impl CallerTable {
    /// Counts a request of thread `thread`.
    pub(super) fn count(&mut self, thread: u32, bytes: u64, work: Duration) {
        match self.0.iter().position(|(known, _)| *known == thread) {
            Some(at) => self.0[..=at].rotate_right(1),
            None => self.begin(thread),
        }
        let caller = &mut self.0[0].1;
        caller.requests += 1;
        caller.bytes += bytes;
        caller.work_nanos += work.as_nanos() as u64;
    }

    /// Calls `each` with every caller.
    pub(super) fn each(&self, mut each: impl FnMut(&CallerSnapshot)) {
        self.0.iter().for_each(|(_, caller)| each(caller));
    }

    fn begin(&mut self, thread: u32) {
        self.0.truncate(MAX_CALLERS - 1);
        let (pid, name) = process_of(thread);
        self.0.insert(0, (thread, CallerSnapshot { pid, name, requests: 0, bytes: 0, work_nanos: 0 }));
    }
}

/// The process of a thread, and its name. The thread waits for its answer, so it is there.
fn process_of(thread: u32) -> (u32, String) {
    if thread == 0 {
        return (0, "kernel".into());
    }
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let pid = field("Tgid:").and_then(|id| id.parse().ok()).unwrap_or(thread);
    let own = field("Name:").unwrap_or("?");
    let name = match pid == thread {
        true => own.to_owned(),
        false => std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_else(|_| own.to_owned()),
    };
    (pid, name.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_have_names_and_the_table_is_bounded() {
        let mut table = CallerTable::default();
        // Threads that there are not.
        for thread in 0..200 {
            table.count(1 << 30 | thread, 1, Duration::ZERO);
        }
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        table.count(own, 10, Duration::from_nanos(5));
        table.count(1 << 30, 1, Duration::ZERO);
        table.count(own, 20, Duration::from_nanos(10));
        let mut all = Vec::new();
        table.each(|caller| all.push(caller.clone()));
        assert_eq!(all.len(), MAX_CALLERS);
        let me = &all[0];
        assert_eq!((me.pid, me.requests, me.bytes, me.work_nanos), (std::process::id(), 2, 30, 15));
        let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(me.name, comm.trim_end());
        assert_eq!((all[1].name.as_str(), all[1].requests), ("?", 1));
    }
}
