//! What a thread of a queue does: it serves what its entry is given, one request after the other.

use super::entry::{Entry, KernelSide};
use super::queue::{Queue, Registration};
use crate::metrics::Recorder;
use crate::transport::connection::Connection;
use crate::transport::cpu::CpuPlacement;
use crate::transport::device;
use crate::transport::handler::Outcome;
use crate::transport::reply_slot::{InFlight, ReplySlot, Slot};
use crate::transport::ring::Ring;
use crate::transport::worker::{CurrentWorker, Worker};
use std::io;
use std::sync::Arc;

/// How a thread begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// Its entry is registered.
    Registered,
    /// There is an answer in its entry.
    Answered,
}

/// Serves what `entry` is given until the end, or until another thread has the entry, which is
/// registered.
pub(super) fn serve(
    connection: &Arc<Connection>,
    mut entry: Entry,
    mut placement: CpuPlacement,
    start: Start,
    registration: Registration,
) {
    let queue = entry.queue();
    let worker = Arc::new(UringWorker {
        connection: Arc::clone(connection),
        queue: Arc::clone(&queue),
        slot: ReplySlot::idle(),
    });
    connection.interrupts.register(&worker);
    let _current = CurrentWorker::enter(&worker);
    let member = queue.activity.join();
    let recorder = Recorder::new(&connection.metrics);
    let mut is_answered = start == Start::Answered;
    loop {
        if is_answered {
            queue.hold.pass(|| entry.held());
            if let Err(error) = entry.commit() {
                return tracing::error!(cpu = queue.cpu, %error, "a reply could not be sent");
            }
        }
        let wait = recorder.wait();
        match entry.wait() {
            Ok(()) => {}
            Err(error) => {
                if device::is_end(&error) {
                    registration.leave();
                } else {
                    tracing::error!(cpu = queue.cpu, %error, "a thread can no longer serve the mount");
                }
                return;
            }
        }
        let arrival = wait.arrived();
        queue.hold.wait_while_closed();
        if member.count_request(entry.client()) {
            queue.monitor.wake();
        }
        let served = entry.serve(connection, &worker.slot, &recorder, arrival);
        let Some((unique, outcome)) = served else { return registration.leave() };
        if let Outcome::Reply(bytes) = outcome {
            placement.replied(bytes);
        }
        entry.answer(unique, outcome);
        is_answered = true;
    }
}

/// The worker of a queue: the request that its thread serves.
struct UringWorker {
    connection: Arc<Connection>,
    queue: Arc<Queue>,
    slot: ReplySlot<KernelSide>,
}

impl Worker for UringWorker {
    fn slot(&self) -> &dyn Slot {
        &self.slot
    }

    fn threads(&self) -> usize {
        self.queue.registered()
    }

    fn interrupt(self: Arc<Self>, request: InFlight) -> io::Result<()> {
        let connection = Arc::clone(&self.connection);
        // A ring belongs to the thread that made it: there must be one before anything is taken.
        let spawned = connection.threads.spawn(format!("fuse-{}", self.queue.cpu), {
            let connection = Arc::clone(&connection);
            move || {
                let placement = CpuPlacement::on(self.queue.cpu);
                let entry = self.take_over(request);
                drop(self);
                match entry {
                    Ok(Some(entry)) => {
                        let registration = Registration::of_other_thread(&entry.queue());
                        serve(&connection, entry, placement, Start::Answered, registration);
                    }
                    Ok(None) => {}
                    Err(error) => {
                        tracing::warn!(%error, "a program that was killed has to wait for a while");
                        connection.interrupts.interrupt_failed(request.unique);
                    }
                }
            }
        });
        spawned.inspect_err(|_| connection.interrupts.abandoned_ended())
    }
}

impl UringWorker {
    /// Takes the entry from the thread that serves a request, and answers the request with an
    /// error, which is to be committed. `None`: the request is served or committed already. Fails
    /// if nothing has happened.
    fn take_over(&self, request: InFlight) -> io::Result<Option<Entry>> {
        let ring = Ring::new()?;
        ring.register(self.connection.device.raw())?;
        let taken = self.slot.take(request.unique, KernelSide::renew_payload)?;
        let Some((side, view)) = taken else {
            self.connection.interrupts.abandoned_ended();
            return Ok(None);
        };
        let mut entry = Entry::new(ring, side, view, &self.queue);
        entry.answer(request.unique, Outcome::Error(request.interrupt_errno));
        Ok(Some(entry))
    }
}
