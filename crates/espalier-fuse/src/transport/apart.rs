//! Background work keeps off CPUs that are full of requests.
//!
//! Where requests come one after the other a CPU has no time for anything else: client and server
//! take turns on it. But as the threads that serve are of the idle class there ([`super::class`]),
//! Linux takes it for free and puts there whoever wakes up, and these wait until he rests again: a
//! worker that writes a leaf, for milliseconds. So while a CPU is crowded, threads of this process
//! that work in the background may run on the others only, as long as there are any.
//!
//! Where a thread may run besides is for others to say: what it had before is given back, and a
//! thread that somebody else has put elsewhere meanwhile begins anew from there.

use super::{Threads, cpu};
use parking_lot::Mutex;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::collections::HashMap;

/// The threads that keep apart.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// Tells others than those that joined.
    background: Option<Threads>,
    joined: Mutex<Vec<i32>>,
    /// Those that were sent away: where they might run before, and where since.
    away: Mutex<HashMap<i32, (CpuSet, CpuSet)>>,
}

impl Apart {
    /// For those whom `background` tells, and those who join.
    pub(super) fn new(background: Option<Threads>) -> Self {
        Self { background, ..Self::default() }
    }

    /// The calling thread is one of them until the result is dropped.
    pub(super) fn join(&self) -> Joined<'_> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.joined.lock().push(thread);
        Joined { apart: self, thread }
    }

    /// From now on they keep off the `crowded` CPUs, as long as there are others.
    pub(super) fn keep_off(&self, crowded: &[usize]) {
        let mut before = std::mem::take(&mut *self.away.lock());
        let mut away = HashMap::new();
        let online = cpu::online();
        let mut send = |thread: i32| {
            let Some(pid) = Pid::from_raw(thread) else { return };
            match send_away(pid, before.remove(&thread), crowded, online) {
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
/// those that are `crowded`; where it may run without that, and where now, if that is not the same.
fn send_away(
    thread: Pid,
    sent: Option<(CpuSet, CpuSet)>,
    crowded: &[usize],
    online: usize,
) -> rustix::io::Result<Option<(CpuSet, CpuSet)>> {
    let now = sched_getaffinity(Some(thread))?;
    let home = sent.filter(|(_, sent)| *sent == now).map_or(now, |(home, _)| home);
    let mut left = home;
    crowded.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| left.unset(*cpu));
    if left.count() == 0 {
        left = home;
    }
    if left != now {
        // Who might run everywhere may run on what comes later, too.
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

/// A thread's place among those that keep apart.
pub(super) struct Joined<'a> {
    apart: &'a Apart,
    thread: i32,
}

impl Drop for Joined<'_> {
    fn drop(&mut self) {
        self.apart.joined.lock().retain(|thread| *thread != self.thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_joined_keeps_off_and_comes_back() {
        // A thread of its own, since it changes where it may run.
        let body = || {
            let apart = Apart::new(None);
            let all = cpu::allowed();
            let joined = apart.join();
            apart.keep_off(&all[..1]);
            let rest = if all.len() > 1 { &all[1..] } else { &all[..] };
            assert_eq!(cpu::allowed(), rest);
            // Somewhere they may always run.
            apart.keep_off(&all);
            assert_eq!(cpu::allowed(), all);
            apart.keep_off(&all[..1]);
            apart.keep_off(&[]);
            assert_eq!(cpu::allowed(), all);
            drop(joined);
            apart.keep_off(&all[..1]);
            assert_eq!(cpu::allowed(), all);
        };
        std::thread::spawn(body).join().unwrap_or_else(|_| unreachable!("it asserts only"));
    }

    #[test]
    fn who_was_put_elsewhere_stays_there() {
        let body = || {
            let apart = Apart::new(None);
            let all = cpu::allowed();
            if all.len() < 2 {
                return;
            }
            let _joined = apart.join();
            apart.keep_off(&all[..1]);
            cpu::pin(all[0]);
            apart.keep_off(&all[1..]);
            assert_eq!(cpu::allowed(), all[..1]);
            apart.keep_off(&[]);
            assert_eq!(cpu::allowed(), all[..1]);
        };
        std::thread::spawn(body).join().unwrap_or_else(|_| unreachable!("it asserts only"));
    }
}
