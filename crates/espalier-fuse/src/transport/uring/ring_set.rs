//! All rings of a connection: has their answers held, and says what another server needs to go on.

use super::filler::Filler;
use super::hold::{HeldAnswer, Hold};
use super::queue::Queue;
use crate::transport::arena::Arena;
use crate::transport::config::{HandedEntry, HandedRings};
use crate::transport::cpu::CpuProbe;
use crate::transport::interrupt::InterruptTable;
use crate::transport::pause::requests_take_long;
use espalier_sync::Mutex;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// All rings of a connection.
pub(in crate::transport) struct RingSet {
    arena: Arc<Arena>,
    hold: Arc<Hold>,
    queues: Vec<Arc<Queue>>,
    /// The queue of each entry.
    cpus: Vec<usize>,
    /// Whose requests are held.
    filler: Mutex<Option<Filler>>,
}

impl RingSet {
    pub(super) fn new(arena: Arc<Arena>, hold: Arc<Hold>, queues: Vec<Arc<Queue>>, cpus: Vec<usize>) -> Self {
        Self { arena, hold, queues, cpus, filler: Mutex::new(None) }
    }

    pub(super) fn queues(&self) -> &[Arc<Queue>] {
        &self.queues
    }

    /// Has every entry hold an answer, with requests of `filler`: when this returns no request is
    /// served, and none can come. Queues of CPUs that are off get no requests.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if that takes longer than `limit`, and others; nothing is held
    /// then.
    pub(in crate::transport) fn close(
        &self,
        mut filler: Filler,
        interrupts: &InterruptTable,
        limit: Duration,
    ) -> io::Result<()> {
        let probe = CpuProbe::start()?;
        let on = probe.cpus_on(self.queues.len())?;
        if let Some(cpu) = on.forbidden {
            let message = format!("requests may wait on CPU {cpu}, which this server may not use");
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        // Requests wait from here on.
        let deadline = Instant::now() + limit;
        self.hold.begin(&on.cpus);
        let closed = filler.fill(&self.hold.missing()).and_then(|()| {
            // It ends when its requests are answered, so it is kept until then.
            *self.filler.lock() = Some(filler);
            if !self.hold.close(deadline, || interrupts.is_idle()) {
                return Err(self.lateness(interrupts));
            }
            if let Some(cpu) = self.hold.unexpected() {
                let message = format!("CPU {cpu} has clients, and this server may not use it");
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
            if probe.cpus_on(self.queues.len())? != on {
                let message = "CPUs were turned on or off meanwhile";
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
            Ok(())
        });
        closed.inspect_err(|_| self.open())
    }

    /// Why not all is held.
    fn lateness(&self, interrupts: &InterruptTable) -> io::Error {
        match self.hold.missing().first() {
            Some((cpu, count)) if interrupts.is_idle() => {
                let message = format!("{count} entries of the ring of CPU {cpu} got no request");
                io::Error::new(io::ErrorKind::TimedOut, message)
            }
            _ => requests_take_long(),
        }
    }

    /// Has all that is held committed, and goes on.
    pub(in crate::transport) fn open(&self) {
        self.hold.open();
        // Only now: dropping it waits for nothing, but its requests have to be answered.
        drop(self.filler.lock().take());
    }

    /// What another server needs, while all is closed.
    ///
    /// # Errors
    /// No memory is left.
    pub(in crate::transport) fn hand_over(&self) -> io::Result<HandedRings> {
        let entry = |cpu: &usize| HandedEntry { cpu: *cpu, commit_id: None };
        let mut entries: Vec<_> = self.cpus.iter().map(entry).collect();
        self.hold.with_held(|held| {
            for HeldAnswer { slot, commit_id, payload, .. } in held {
                entries[*slot].commit_id = Some(*commit_id);
                payload.as_ref().map_or(Ok(()), |payload| self.arena.put(*slot, payload))?;
            }
            Ok::<(), io::Error>(())
        })?;
        Ok(HandedRings { base: self.arena.base(), entries })
    }

    /// The memory of the entries, and what is at its end when the requests that are held for no
    /// caller are answered.
    ///
    /// # Errors
    /// No descriptor is left, or nothing is held.
    pub(in crate::transport) fn descriptors(&self) -> io::Result<[OwnedFd; 2]> {
        let filler = self.filler.lock();
        let lives = filler.as_ref().map(Filler::lives).ok_or(io::ErrorKind::NotFound)?;
        let copy = |descriptor: BorrowedFd<'_>| descriptor.try_clone_to_owned();
        Ok([copy(self.arena.memory())?, copy(lives)?])
    }
}
