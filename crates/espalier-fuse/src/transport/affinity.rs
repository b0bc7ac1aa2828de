//! Background threads keep off CPUs that are full of requests.
//!
//! Where requests come one after the other a CPU has no time for anything else: client and server
//! take turns on it. But as the serving threads are in `SCHED_IDLE` there
//! ([`super::scheduling_class`]), Linux takes the CPU for free and places threads there that wake
//! up. The serving threads then wait until such a thread sleeps again: for milliseconds, if it is a
//! background thread that writes a leaf. So while a CPU is busy, background threads of this process
//! may run on the others only, as long as there are any.
//!
//! Afterwards a thread gets back the affinity that it had before. If another program has set it
//! meanwhile, that affinity counts instead.

use super::config::ThreadLister;
use super::cpu;
use espalier_sync::Mutex;
use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};
use std::collections::HashMap;

/// An affinity that was changed: the one before, and the one that was set.
type Restricted = (CpuSet, CpuSet);

/// The background threads, and their affinity.
#[derive(Debug, Default)]
pub(super) struct BackgroundAffinity {
    /// Lists the threads that did not join by themselves.
    background: Option<ThreadLister>,
    joined: Mutex<Vec<i32>>,
    /// By thread id, the threads that may not run everywhere they might.
    restricted: Mutex<HashMap<i32, Restricted>>,
}

impl BackgroundAffinity {
    /// For the threads that `background` lists, and those that join.
    pub(super) fn new(background: Option<ThreadLister>) -> Self {
        Self { background, ..Self::default() }
    }

    /// The calling thread is a background thread until the result is dropped.
    pub(super) fn join(&self) -> BackgroundMember<'_> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.joined.lock().push(thread);
        BackgroundMember { affinity: self, thread }
    }

    /// From now on background threads keep off the `busy` CPUs, as long as there are others.
    pub(super) fn keep_off(&self, busy: &[usize]) {
        let mut before = std::mem::take(&mut *self.restricted.lock());
        let mut restricted = HashMap::new();
        let online = cpu::online();
        let mut restrict_one = |thread: i32| {
            let Some(pid) = Pid::from_raw(thread) else { return };
            match restrict(pid, before.remove(&thread), busy, online) {
                Ok(Some(affinity)) => drop(restricted.insert(thread, affinity)),
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "a thread cannot keep off a CPU on which many requests come")
                }
            }
        };
        let joined = self.joined.lock();
        joined.iter().for_each(|thread| restrict_one(*thread));
        if let Some(list) = self.background {
            list(&mut restrict_one);
        }
        drop(joined);
        *self.restricted.lock() = restricted;
    }
}

/// Lets `thread` run on all of its CPUs but those that are `busy`. `before` is how its affinity was
/// changed before, `online` the number of CPUs; the result is how it is changed now.
fn restrict(
    thread: Pid,
    before: Option<Restricted>,
    busy: &[usize],
    online: usize,
) -> rustix::io::Result<Option<Restricted>> {
    let now = sched_getaffinity(Some(thread))?;
    let home = before.filter(|(_, set)| *set == now).map_or(now, |(home, _)| home);
    let mut left = home;
    busy.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| left.unset(*cpu));
    if left.count() == 0 {
        left = home;
    }
    if left != now {
        // A thread that might run on every CPU may run on CPUs that come online later, too.
        let everywhere = left == home && home.count() as usize >= online;
        sched_setaffinity(Some(thread), &if everywhere { cpu::everywhere() } else { left })?;
    }
    Ok((left != home).then_some((home, left)))
}

/// A background thread, until this is dropped.
pub(super) struct BackgroundMember<'a> {
    affinity: &'a BackgroundAffinity,
    thread: i32,
}

impl Drop for BackgroundMember<'_> {
    fn drop(&mut self) {
        self.affinity.joined.lock().retain(|thread| *thread != self.thread);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_keeps_off_busy_cpus_and_comes_back() {
        // A thread of its own, since it changes where it may run.
        let body = || {
            let affinity = BackgroundAffinity::new(None);
            let all = cpu::allowed();
            let joined = affinity.join();
            affinity.keep_off(&all[..1]);
            let rest = if all.len() > 1 { &all[1..] } else { &all[..] };
            assert_eq!(cpu::allowed(), rest);
            // With every CPU busy they may run on all.
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
    fn an_affinity_set_from_outside_stays() {
        let body = || {
            let affinity = BackgroundAffinity::new(None);
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
