//! Background work keeps off CPUs that are full of requests.
//!
//! Where requests come one after the other a CPU has no time for anything else: client and server take turns on it. But as the
//! threads that serve are of the idle class there ([`super::class`]), Linux takes it for free and puts there whoever wakes up, and these wait
//! until he rests again: a worker that writes a leaf, for milliseconds. So while a CPU is crowded, threads of this process
//! that work in the background may run on the others only, as long as there are any.

use super::cpu;
use parking_lot::Mutex;
use rustix::thread::{CpuSet, Pid, sched_setaffinity};

/// The threads that keep apart.
#[derive(Debug, Default)]
pub(super) struct Apart {
    /// Tells others than those that joined.
    background: Option<fn() -> Vec<i32>>,
    joined: Mutex<Vec<i32>>,
    /// Where they may run else.
    allowed: Vec<usize>,
}

impl Apart {
    /// For those whom `background` tells, and those who join; they may run where the calling thread may.
    pub(super) fn new(background: Option<fn() -> Vec<i32>>) -> Self {
        Self { background, joined: Mutex::default(), allowed: cpu::allowed() }
    }

    /// The calling thread is one of them until the result is dropped.
    pub(super) fn join(&self) -> Joined<'_> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        self.joined.lock().push(thread);
        Joined { apart: self, thread }
    }

    /// From now on they keep off the `crowded` CPUs, as long as there are others.
    pub(super) fn keep_off(&self, crowded: &[usize]) {
        if self.allowed.len() < 2 {
            return;
        }
        let set = free(&self.allowed, crowded);
        let joined = self.joined.lock();
        let others = self.background.map(|tell| tell()).unwrap_or_default();
        for thread in joined.iter().chain(&others).filter_map(|thread| Pid::from_raw(*thread)) {
            if let Err(error) = sched_setaffinity(Some(thread), &set) {
                tracing::debug!(%error, "a thread cannot keep off a CPU on which many requests come");
            }
        }
    }
}

/// Those of the `allowed` CPUs that are not `crowded`; all of them if there are none.
fn free(allowed: &[usize], crowded: &[usize]) -> CpuSet {
    let set_of = |cpus: &mut dyn Iterator<Item = &usize>| {
        let mut set = CpuSet::new();
        cpus.filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
        set
    };
    let set = set_of(&mut allowed.iter().filter(|cpu| !crowded.contains(cpu)));
    if set.count() > 0 { set } else { set_of(&mut allowed.iter()) }
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
    fn somewhere_they_may_always_run() {
        let cpus = |set: CpuSet| (0..16).filter(|cpu| set.is_set(*cpu)).collect::<Vec<_>>();
        assert_eq!(cpus(free(&[0, 1, 5], &[])), [0, 1, 5]);
        assert_eq!(cpus(free(&[0, 1, 5], &[1])), [0, 5]);
        assert_eq!(cpus(free(&[0, 1], &[0, 1])), [0, 1]);
        assert_eq!(cpus(free(&[3], &[3, 4])), [3]);
    }

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
}
