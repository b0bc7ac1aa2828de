//! Processor time: what of it goes to the client, to the server of objects, and to all else.
//!
//! The client is this process, with the proxy; all else is the contender's server, the kernel's
//! threads and programs that were started. On a machine with few processors, which all of them
//! share, the work for a MiB bounds the rate.

use anyhow::{Context, Result};
use std::path::Path;

/// The unit of times in `/proc`, which is part of the kernel's interface.
const TICKS_PER_SECOND: f64 = 100.0;

/// Seconds of processor time, since the processes and the machine were started.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ProcessorTime {
    /// Of this process.
    pub(super) client: f64,
    /// Of the server of objects.
    pub(super) server: f64,
    /// Of everything, on all processors.
    pub(super) all: f64,
}

impl ProcessorTime {
    /// Up to now; `server` is the number of the server's process.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub(super) fn now(server: u32) -> Result<Self> {
        let read = |path: &str| std::fs::read_to_string(Path::new(path)).context(path.to_owned());
        let client = of_process(&read("/proc/self/stat")?)? as f64 / TICKS_PER_SECOND;
        let server = of_process(&read(&format!("/proc/{server}/stat"))?)? as f64 / TICKS_PER_SECOND;
        Ok(Self { client, server, all: of_machine(&read("/proc/stat")?)? as f64 / TICKS_PER_SECOND })
    }

    /// What came after `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            client: self.client - before.client,
            server: self.server - before.server,
            all: self.all - before.all,
        }
    }
}

/// Ticks of a process, for itself and in the kernel. Its name stands in parentheses before the
/// numbers, and may have any characters.
fn of_process(stat: &str) -> Result<u64> {
    let numbers = stat.rsplit_once(')').context("a process without a name")?.1;
    let mut words = numbers.split_whitespace().skip(11);
    let mut next = || words.next().context("a process without times")?.parse::<u64>().context("a time");
    Ok(next()? + next()?)
}

/// Ticks in which processors were not idle and did not wait for devices.
fn of_machine(stat: &str) -> Result<u64> {
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).context("no line of times")?;
    let times: Vec<u64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    // Idle and waiting are the fourth and the fifth; guests count among users already.
    Ok(times.iter().take(8).sum::<u64>() - times.iter().skip(3).take(2).sum::<u64>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let stat = "12 (a) b) R 1 2 3 4 5 6 7 8 9 10 40 2 99 99 20 0";
        assert_eq!(of_process(stat).unwrap(), 42);
        assert!(of_process("12 (short) R 1").is_err());
        assert_eq!(of_machine("cpu  1 2 3 400 50 6 7 8 1 1\ncpu0 9 9\n").unwrap(), 27);
        assert!(of_machine("intr 5").is_err());
        let now = ProcessorTime::now(std::process::id()).unwrap();
        assert!(now.all >= 0.0 && (now.client - now.server).abs() < 1.0);
    }
}
