//! Faults that wait for their request, and what they make of it.

use crate::{ErrorKind, Operation, Random};
use std::ops::Range;

/// Something that goes wrong. Counting starts when the fault is injected: `nth` 0 is the next
/// request of its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// One request fails. A failed write leaves anything in its range; a failed sync makes an
    /// arbitrary part of the pending writes unable ever to become durable.
    Fail {
        /// The kind of request.
        operation: Operation,
        /// Which of them.
        nth: u64,
    },
    /// All requests of a kind fail from the `nth` on.
    FailFrom {
        /// The kind of request.
        operation: Operation,
        /// The first of them.
        nth: u64,
    },
    /// One in `one_in` requests of a kind fails.
    FailRandomly {
        /// The kind of request.
        operation: Operation,
        /// How seldom.
        one_in: u64,
    },
    /// Every read that touches these bytes fails.
    Unreadable(Range<u64>),
    /// Every read that touches these bytes fails with [`ErrorKind::Gone`], as of a state that was
    /// replaced and of which this was deleted.
    Deleted(Range<u64>),
    /// A write is reported done and never lands.
    Lose {
        /// Which of the writes.
        nth: u64,
    },
    /// A write is reported done and lands elsewhere.
    Misdirect {
        /// Which of the writes.
        nth: u64,
        /// First byte of where; arbitrary if `None`.
        to: Option<u64>,
    },
    /// Writes fail with [`ErrorKind::NoSpace`] once so many more bytes were written, as in a
    /// sparse image on a full file system.
    Full {
        /// The bytes that still fit.
        after: u64,
    },
    /// The `nth` change (write, sync or discard) is the last: a write or discard is cut off, a sync
    /// does nothing, and every request from then on fails.
    PowerOff {
        /// Which of the changes.
        nth: u64,
    },
}

/// How often faults struck.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FaultCounts {
    /// Requests that failed.
    pub failed: u64,
    /// Writes that were lost.
    pub lost: u64,
    /// Writes that landed elsewhere.
    pub misdirected: u64,
}

impl FaultCounts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.failed + self.lost + self.misdirected
    }
}

/// What becomes of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Proceed,
    Fail(ErrorKind, &'static str),
    Lose,
    Misdirect(Option<u64>),
}

/// The faults of a device.
#[derive(Debug, Default)]
pub(super) struct Faults {
    waiting: Vec<Fault>,
    counts: FaultCounts,
    power: Power,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Power {
    #[default]
    On,
    /// The present request is the one that is cut off.
    Failing,
    Off,
}

impl Faults {
    pub(super) fn add(&mut self, fault: Fault) {
        self.waiting.push(fault);
    }

    pub(super) fn clear(&mut self) {
        self.waiting.clear();
        self.power = Power::On;
    }

    pub(super) fn counts(&self) -> FaultCounts {
        self.counts
    }

    pub(super) fn power_is_off(&self) -> bool {
        self.power != Power::On
    }

    /// True if the power was off before the request just judged, so that it did nothing at all.
    pub(super) fn power_was_off(&self) -> bool {
        self.power == Power::Off
    }

    /// Decides about a request on bytes `range`. Every fault counts the request; the first that
    /// strikes decides.
    pub(super) fn judge(&mut self, operation: Operation, range: &Range<u64>, random: &mut Random) -> Verdict {
        if self.power != Power::On {
            self.power = Power::Off;
            return Verdict::Fail(ErrorKind::Io, "the power is off");
        }
        let mut verdict = Verdict::Proceed;
        self.waiting.retain_mut(|fault| {
            let (outcome, stays) = fault.judge(operation, range, random);
            if let Some(outcome) = outcome.filter(|_| verdict == Verdict::Proceed) {
                if matches!(fault, Fault::PowerOff { .. }) {
                    self.power = Power::Failing;
                }
                verdict = outcome;
            }
            stays
        });
        match verdict {
            Verdict::Proceed => {}
            Verdict::Fail(..) => self.counts.failed += 1,
            Verdict::Lose => self.counts.lost += 1,
            Verdict::Misdirect(_) => self.counts.misdirected += 1,
        }
        verdict
    }
}

impl Fault {
    /// What this fault makes of a request, if anything, and if it stays after it.
    fn judge(
        &mut self,
        operation: Operation,
        range: &Range<u64>,
        random: &mut Random,
    ) -> (Option<Verdict>, bool) {
        let io = |message| Some(Verdict::Fail(ErrorKind::Io, message));
        match self {
            Self::Fail { operation: of, nth } if *of == operation => match due(nth) {
                true => (io("an injected error"), false),
                false => (None, true),
            },
            Self::FailFrom { operation: of, nth } if *of == operation => {
                (if due(nth) { io("an injected lasting error") } else { None }, true)
            }
            Self::FailRandomly { operation: of, one_in } if *of == operation => {
                (if random.one_in(*one_in) { io("an injected random error") } else { None }, true)
            }
            Self::Unreadable(bytes) if operation == Operation::Read => {
                let touches = bytes.start < range.end && range.start < bytes.end;
                (if touches { io("an injected unreadable range") } else { None }, true)
            }
            Self::Deleted(bytes) if operation == Operation::Read => {
                let touches = bytes.start < range.end && range.start < bytes.end;
                (touches.then_some(Verdict::Fail(ErrorKind::Gone, "an injected deletion")), true)
            }
            Self::Lose { nth } if operation == Operation::Write => match due(nth) {
                true => (Some(Verdict::Lose), false),
                false => (None, true),
            },
            Self::Misdirect { nth, to } if operation == Operation::Write => match due(nth) {
                true => (Some(Verdict::Misdirect(*to)), false),
                false => (None, true),
            },
            Self::Full { after } if operation == Operation::Write => {
                match after.checked_sub(range.end - range.start) {
                    Some(left) => {
                        *after = left;
                        (None, true)
                    }
                    None => (Some(Verdict::Fail(ErrorKind::NoSpace, "an injected full medium")), true),
                }
            }
            Self::PowerOff { nth } if operation != Operation::Read => match due(nth) {
                true => (io("the power fails"), false),
                false => (None, true),
            },
            _ => (None, true),
        }
    }
}

/// Counts down; true from when nothing is left to count.
fn due(nth: &mut u64) -> bool {
    let due = *nth == 0;
    *nth = nth.saturating_sub(1);
    due
}
