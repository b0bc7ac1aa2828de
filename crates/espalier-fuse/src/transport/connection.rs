//! A connection to the kernel: the components that its threads use.

use super::device::Device;
use super::guarded_handler::GuardedHandler;
use super::handler::{Outcome, Request};
use super::interrupt::InterruptTable;
use super::pause::PauseGate;
use super::reply_slot::{InFlight, ReplySlot};
use super::thread_group::ThreadGroup;
use crate::metrics::Metrics;
use crate::protocol::Dialect;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A connection after INIT.
pub(super) struct Connection {
    pub(super) device: Device,
    pub(super) dialect: Dialect,
    /// Bytes of payload that a buffer must hold.
    pub(super) payload_bytes: usize,
    pub(super) handler: Arc<GuardedHandler>,
    pub(super) threads: ThreadGroup,
    pub(super) interrupts: InterruptTable,
    pub(super) metrics: Arc<Metrics>,
    /// Of the threads that read requests from the device; answers of rings are held.
    pub(super) pause: PauseGate,
    /// The kernel ended the connection.
    ended: AtomicBool,
}

impl Connection {
    /// The connection of `device`, on which INIT agreed on `dialect`; its readers pass `pause`.
    pub(super) fn new(
        device: Device,
        dialect: Dialect,
        payload_bytes: usize,
        handler: GuardedHandler,
        metrics: Arc<Metrics>,
        pause: PauseGate,
    ) -> Self {
        Self {
            device,
            dialect,
            payload_bytes,
            handler: Arc::new(handler),
            threads: ThreadGroup::default(),
            interrupts: InterruptTable::default(),
            metrics,
            pause,
            ended: AtomicBool::new(false),
        }
    }

    /// Serves a request, whose payload is the first `received` bytes of `buffer`. Meanwhile `slot`
    /// holds the `means` to reply to it. The result is what to reply, and the means; `None` if
    /// another thread has replied.
    pub(super) fn serve<R>(
        &self,
        slot: &ReplySlot<R>,
        means: R,
        request: &Request<'_>,
        buffer: &mut [u8],
        received: usize,
    ) -> Option<(Outcome, R)> {
        slot.begin(InFlight::new(&request.header), means);
        self.interrupts.request_began();
        let outcome = self.handler.handle(request, buffer, received);
        let means = slot.finish();
        if means.is_none() {
            self.handler.unanswered(&request.header, outcome, buffer);
            // After that: a handover waits for it.
            self.interrupts.abandoned_ended();
        }
        means.map(|means| (outcome, means))
    }

    /// The kernel has ended the connection.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.interrupts.stop();
    }

    /// True when the kernel has ended the connection.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}
