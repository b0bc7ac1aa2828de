//! Background work keeps off CPUs that are full of requests.
//!
//! Where requests come one after the other a CPU has no time for anything else: client and server
//! take turns on it. But as the threads that serve are of the idle class there
//! ([`super::scheduling_class`]), Linux counts it as free and places threads there that wake up,
//! and the serving threads wait until such a thread rests again: a background thread that writes a
//! leaf, for milliseconds. So while a CPU is busy, background threads of this process may run on
//! the others only, as long as there are any.
//!
//! Where a thread may run otherwise is not decided here: it gets back the affinity that it had
//! before, and a thread whose affinity another program has set meanwhile begins anew from that.

use super::{Threads, cpu};
use parking_lot::Mutex;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::collections::HashMap;

/// The threads that keep off busy CPUs.
#[derive(Debug, Default)]
pub(super) struct Affinity {
    /// Lists further threads than those that joined.
    background: Option<Threads>,
    joined: Mutex<Vec<i32>>,
    /// Those that were sent away: where they might run before, and where since.
    away: Mutex<HashMap<i32, (CpuSet, CpuSet)>>,
}

impl Affinity {
    /// For the threads that `background` lists, and those that join.
    pub(super) fn new(background: Option<Threads>) -> Self {
        Self { background, ..Self::default() }
    }

    /// The calling thread is one of them until the result is dropped.
    pub(super) fn join(&self) -> Joined<'_> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.joined.lock().push(thread);
        Joined { affinity: self, thread }
    }

    /// From now on they keep off the `busy` CPUs, as long as there are others.
    pub(super) fn keep_off(&self, busy: &[usize]) {
        let mut before = std::mem::take(&mut *self.away.lock());
        let mut away = HashMap::new();
        let online = cpu::online();
        let mut send = |thread: i32| {
            let Some(pid) = Pid::from_raw(thread) else { return };
            match send_away(pid, before.remove(&thread), busy, online) {
                Ok(Some(sent)) => drop(away.insert(thread, sent)),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "a thread cannot keep off a CPU on which many requests come")
                }
            }
        };
        let joined = self.joined.lock();
        joined.iter().for_each(|thread| send(*thread));
        if let Some(tell) = self.background {
            tell(&mut send);
        }
        drop(joined);
        *self.away.lock() = away;
    }
}

/// Lets `thread`, of which `sent` says where it was sent before, run on all of `online` CPUs but
/// those that are `busy`; where it may run without that, and where now, if that is not the same.
fn send_away(
    thread: Pid,
    sent: Option<(CpuSet, CpuSet)>,
    busy: &[usize],
    online: usize,
) -> rustix::io::Result<Option<(CpuSet, CpuSet)>> {
    let now = sched_getaffinity(Some(thread))?;
    let home = sent.filter(|(_, sent)| *sent == now).map_or(now, |(home, _)| home);
    let mut left = home;
    busy.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| left.unset(*cpu));
    if left.count() == 0 {
        left = home;
    }
    if left != now {
        // A thread that might run everywhere may run on CPUs that come later, too.
        let everywhere = left == home && home.count() as usize >= online;
        sched_setaffinity(Some(thread), &if everywhere { all() } else { left })?;
    }
    Ok((left != home).then_some((home, left)))
}

/// Every CPU that there may ever be: the kernel takes those that it has, and that others allow.
fn all() -> CpuSet {
    let mut set = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| set.set(cpu));
    set
}

/// A thread's membership of those that keep off busy CPUs.
pub(super) struct Joined<'a> {
    affinity: &'a Affinity,
    thread: i32,
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        self.affinity.joined.lock().retain(|thread| *thread != self.thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_joined_keeps_off_and_comes_back() {
        // A thread of its own, since it changes where it may run.
        let body = || {
            let affinity = Affinity::new(None);
            let all = cpu::allowed();
            let joined = affinity.join();
            affinity.keep_off(&all[..1]);
            let rest = if all.len() > 1 { &all[1..] } else { &all[..] };
            assert_eq!(cpu::allowed(), rest);
            // Somewhere they may always run.
            affinity.keep_off(&all);
            assert_eq!(cpu::allowed(), all);
            affinity.keep_off(&all[..1]);
            affinity.keep_off(&[]);
            assert_eq!(cpu::allowed(), all);
            drop(joined);
            affinity.keep_off(&all[..1]);
            assert_eq!(cpu::allowed(), all);
        };
        std::thread::spawn(body).join().unwrap_or_else(|_| unreachable!("it asserts only"));
    }

    #[test]
    fn who_was_put_elsewhere_stays_there() {
        let body = || {
            let affinity = Affinity::new(None);
            let all = cpu::allowed();
            if all.len() < 2 {
                return;
            }
            let _joined = affinity.join();
            affinity.keep_off(&all[..1]);
            cpu::pin(all[0]);
            affinity.keep_off(&all[1..]);
            assert_eq!(cpu::allowed(), all[..1]);
            affinity.keep_off(&[]);
            assert_eq!(cpu::allowed(), all[..1]);
        };
        std::thread::spawn(body).join().unwrap_or_else(|_| unreachable!("it asserts only"));
    }
}
