//! The request that a worker serves, and the means to reply to it.
//!
//! The invariant: a request is answered once. What is needed to reply lies in the [`ReplySlot`] of
//! the worker that serves the request, and the thread that takes it from there replies. A worker
//! whose request another thread has answered finds the slot empty when it is done.

use crate::protocol::Header;
use crate::protocol::request::{has_caller, interrupt_errno, reports_changes};
use espalier_sync::Mutex;
use std::io;

/// A request that is being served, and its caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InFlight {
    /// The number of the request.
    pub(super) unique: u64,
    /// The thread that waits for the answer; 0 if that is the kernel, or no thread does.
    pub(super) caller: u32,
    /// Whether the kernel must have the true answer once something was changed.
    pub(super) reports_changes: bool,
    /// The answer to a killed caller; only the kernel sees it.
    pub(super) interrupt_errno: i32,
}

impl InFlight {
    /// The request with this header.
    pub(super) fn new(header: &Header) -> Self {
        let Header { unique, opcode, pid, .. } = *header;
        Self {
            unique,
            caller: if has_caller(opcode) { pid } else { 0 },
            reports_changes: reports_changes(opcode),
            interrupt_errno: interrupt_errno(opcode),
        }
    }
}

/// What other threads ask of a [`ReplySlot`], whatever the means to reply are.
pub(super) trait Slot {
    /// The request that is served, if other threads may answer it.
    fn interruptible(&self) -> Option<InFlight>;

    /// True if no request is served.
    fn is_idle(&self) -> bool;

    /// The worker is about to change something for its request: false if the request was answered
    /// already. Otherwise no other thread answers it any more, if the kernel must have the true
    /// answer.
    fn may_commit(&self) -> bool;

    /// False if another thread has answered the request that is served.
    fn is_unanswered(&self) -> bool;
}

/// The request that a worker serves, if any, and the means `R` to reply to it.
#[derive(Debug)]
pub(super) struct ReplySlot<R>(Mutex<SlotState<R>>);

#[derive(Debug)]
enum SlotState<R> {
    /// No request is served.
    Idle,
    /// A request is served, and other threads may answer it.
    Interruptible(InFlight, R),
    /// A request is served, and only its worker may answer it.
    Committed(R),
    /// A request is served that another thread has answered.
    Answered,
}

impl<R> ReplySlot<R> {
    /// No request is served.
    pub(super) fn idle() -> Self {
        Self(Mutex::new(SlotState::Idle))
    }

    /// From now on `request` is served, and other threads may reply to it by `means`.
    pub(super) fn begin(&self, request: InFlight, means: R) {
        *self.0.lock() = SlotState::Interruptible(request, means);
    }

    /// The request is served: the means to reply. `None`: another thread has replied.
    pub(super) fn finish(&self) -> Option<R> {
        match std::mem::replace(&mut *self.0.lock(), SlotState::Idle) {
            SlotState::Interruptible(_, means) | SlotState::Committed(means) => Some(means),
            SlotState::Idle | SlotState::Answered => None,
        }
    }

    /// Takes the means to reply to request `unique` from its worker, unless the request is served
    /// or committed. `prepare` comes first; if it fails nothing is taken.
    pub(super) fn take<T>(
        &self,
        unique: u64,
        prepare: impl FnOnce(&mut R) -> io::Result<T>,
    ) -> io::Result<Option<(R, T)>> {
        let mut state = self.0.lock();
        let prepared = match &mut *state {
            SlotState::Interruptible(request, means) if request.unique == unique => prepare(means)?,
            _ => return Ok(None),
        };
        match std::mem::replace(&mut *state, SlotState::Answered) {
            SlotState::Interruptible(_, means) => Ok(Some((means, prepared))),
            _ => unreachable!("it was interruptible a moment ago, under the same lock"),
        }
    }
}

impl<R> Slot for ReplySlot<R> {
    fn interruptible(&self) -> Option<InFlight> {
        match &*self.0.lock() {
            SlotState::Interruptible(request, _) => Some(*request),
            _ => None,
        }
    }

    fn is_idle(&self) -> bool {
        matches!(*self.0.lock(), SlotState::Idle)
    }

    fn may_commit(&self) -> bool {
        let mut state = self.0.lock();
        *state = match std::mem::replace(&mut *state, SlotState::Idle) {
            SlotState::Interruptible(request, means) if request.reports_changes => {
                SlotState::Committed(means)
            }
            same => same,
        };
        !matches!(*state, SlotState::Answered)
    }

    fn is_unanswered(&self) -> bool {
        !matches!(*self.0.lock(), SlotState::Answered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUEST: InFlight = InFlight { unique: 7, caller: 1, reports_changes: true, interrupt_errno: 4 };

    #[test]
    fn one_of_two_answers() {
        let slot = ReplySlot::idle();
        assert_eq!(slot.finish(), None);
        slot.begin(REQUEST, "answer");
        assert!(!slot.is_idle());
        assert_eq!(slot.take(8, |_| Ok(())).unwrap(), None, "of another request");
        assert!(slot.take(7, |_| Err::<(), _>(io::ErrorKind::OutOfMemory.into())).is_err());
        assert_eq!(slot.interruptible(), Some(REQUEST), "what could not be prepared is not taken");
        assert_eq!(slot.take(7, |_| Ok(1)).unwrap(), Some(("answer", 1)));
        assert!(!slot.is_idle(), "it is served, though answered");
        assert_eq!(slot.finish(), None, "it is answered");
        assert!(slot.is_idle());
        slot.begin(REQUEST, "answer");
        assert_eq!(slot.finish(), Some("answer"));
        assert_eq!(slot.take(7, |_| Ok(())).unwrap(), None, "it is answered");
    }

    #[test]
    fn an_interrupted_request_changes_nothing_and_a_committed_one_is_not_interrupted() {
        let slot = ReplySlot::idle();
        assert!(slot.may_commit(), "no request is served, so none was interrupted");
        slot.begin(REQUEST, "answer");
        assert!(slot.may_commit());
        assert_eq!(slot.interruptible(), None);
        assert_eq!(slot.take(7, |_| Ok(())).unwrap(), None, "it is being done");
        assert!(slot.may_commit(), "all of it");
        assert_eq!(slot.finish(), Some("answer"));

        slot.begin(REQUEST, "answer");
        assert!(slot.take(7, |_| Ok(())).unwrap().is_some());
        assert!(!slot.may_commit() && !slot.is_unanswered());
        assert_eq!(slot.finish(), None);
        assert!(slot.may_commit(), "the next one was not interrupted");

        slot.begin(InFlight { reports_changes: false, ..REQUEST }, "answer");
        assert!(slot.may_commit());
        assert!(slot.take(7, |_| Ok(())).unwrap().is_some(), "the kernel learns of it in another way");
        assert!(!slot.may_commit(), "and nothing more is changed");
    }
}
