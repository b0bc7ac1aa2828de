//! Power cuts of a run: the device keeps what was synced, and of the rest any part.
//!
//! Syncs beside commands bring their steps to the device one after the other, so that cuts find
//! states in the midst of commands.

use crate::machine::Machine;
use crate::run::{Choice, Run};
use std::fs::File;
use std::sync::atomic::{AtomicBool, Ordering};

/// A run with power cuts.
pub(crate) struct Cutting {
    machine: Machine,
    pub(crate) run: Run,
    /// How many states of the history had been passed at the end of each step.
    ends: Vec<usize>,
}

impl Cutting {
    pub(crate) fn new(seed: u64, user: Option<u32>) -> Self {
        let mut machine = Machine::start(seed);
        let run = Run::new(machine.mount.path(), seed, user);
        machine.mark();
        Self { machine, run, ends: vec![1] }
    }

    /// One choice; every fifth is followed by a cut.
    pub(crate) fn step(&mut self, step: usize) {
        let choice = self.run.choose();
        match choice {
            Choice::Disturb => self.sync(),
            choice if self.run.random.below(2) == 0 => self.carry_out_with_syncs(&choice),
            choice => self.run.carry_out(&choice),
        }
        self.ends.push(self.run.history.len());
        match self.run.random.below(10) {
            0..=1 => self.cut(step),
            2 => self.sync(),
            _ => {}
        }
        self.run.compare(step);
    }

    /// Checks what is stored.
    pub(crate) fn end(self, step: usize) {
        self.run.compare(step);
        self.machine.end();
    }

    fn sync(&mut self) {
        self.run.sync();
        self.machine.mark();
        self.ends = vec![1];
    }

    fn carry_out_with_syncs(&mut self, choice: &Choice) {
        let (is_done, root) = (AtomicBool::new(false), File::open(self.machine.mount.path()).unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    root.sync_all().unwrap();
                }
            });
            // The other thread ends however this one does.
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.run.carry_out(choice)));
            is_done.store(true, Ordering::Relaxed);
            if let Err(panic) = done {
                std::panic::resume_unwind(panic);
            }
        });
    }

    fn cut(&mut self, step: usize) {
        let (which, seed) = (self.run.random.next(), self.run.random.next());
        let moments = self.machine.cut(which, seed);
        let allowed = std::mem::take(&mut self.run.history);
        let which = self.run.recover(&allowed, &format!("step {step}, a cut at one of {moments} moments"));
        self.run.counts.halfway += usize::from(!self.ends.contains(&(which + 1)));
        self.ends = vec![1];
    }
}
