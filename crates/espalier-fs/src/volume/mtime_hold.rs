//! The hold on a time of modification that a caller has set.
//!
//! What a program stores through a shared mapping arrives when the kernel writes the page back, and
//! sets the time of modification then. If a caller has set that time meanwhile (`utimensat`), a
//! page may arrive that was stored before: `cp -p` of a mapped file. So:
//!
//! - A time that a caller sets is *held*. Write-back that arrives while it is held changes the time
//!   of the last change, but not the time of modification.
//! - The first such arrival has the mount make the kernel write back all pages of the file. When
//!   that is done, no page can arrive any more that was stored before the call, and the hold ends.
//! - The hold ends also with everything else that sets the time of modification, and after
//!   [`LONGEST_HOLD`], by when the kernel has written back what was stored before. When the kernel
//!   forgets the file, it has no pages of it, and the node goes with its hold.
//!
//! A store *after* the call counts as one before it if it is the first to arrive within
//! `LONGEST_HOLD`; then the time of the last change alone shows it. To make that improbable, the
//! pages of a small file are written back at once when its time is set ([`PromptFlushes`]). The
//! kernel drops them then, so only a few files a second are treated so: unpacking, copying and
//! synchronizing of trees keep what they have in the kernel's pages, and cost nothing.
//!
//! A kernel that keeps the times by itself (`-o writeback`) sends them when they have changed,
//! before or after the pages. Then write-back does not set the time of modification at all, and the
//! time of the last change is counted up by a nanosecond, so that comparisons of trees find the
//! change.

use crate::model::types::{SetAttr, SetTime};
use espalier_sync::Mutex;
use std::time::Duration;

/// The kernel writes pages back that have been dirty for 30 seconds, and looks every 5 seconds.
pub(crate) const LONGEST_HOLD: Duration = Duration::from_secs(45);

/// A larger file is not flushed at once: reading it again would cost more.
const PROMPT_FLUSH_BYTES: u64 = 1 << 20;

/// So many files are flushed at once in a second.
const PROMPT_FLUSHES_PER_SECOND: u32 = 16;

/// Whether write-back sets the time of modification of a file.
#[derive(Debug, Default)]
pub(crate) struct MtimeHold {
    held: Option<HeldTime>,
    /// Numbers the holds of a node.
    number: u64,
}

#[derive(Debug)]
struct HeldTime {
    since: Duration,
    is_flushing: bool,
}

/// What write-back that arrives does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It sets the times of modification and of the last change.
    Counts,
    /// It sets the time of the last change. With a number, the kernel shall write back all pages.
    Held(Option<u64>),
    /// It counts the time of the last change up.
    TimesAreTheKernels,
}

impl MtimeHold {
    /// A call has set attributes at the monotonic time `now`; the number of the hold that this
    /// begins.
    pub(crate) fn set(&mut self, set: &SetAttr, now: Duration) -> Option<u64> {
        match set.mtime {
            Some(SetTime::At(_)) => {
                self.held = Some(HeldTime { since: now, is_flushing: false });
                self.number += 1;
                return Some(self.number);
            }
            Some(SetTime::Now) => self.held = None,
            None if set.size.is_some() => self.held = None,
            None => {}
        }
        None
    }

    /// The time of modification was set by a change of the data.
    pub(crate) fn end(&mut self) {
        self.held = None;
    }

    /// What write-back does that arrives at the monotonic time `now`.
    pub(crate) fn arrival(&self, now: Duration) -> Arrival {
        match &self.held {
            Some(held) if now.saturating_sub(held.since) <= LONGEST_HOLD => {
                Arrival::Held((!held.is_flushing).then_some(self.number))
            }
            _ => Arrival::Counts,
        }
    }

    /// The hold at the monotonic time `now`: its number, and how long it lasts at most. `None`: no
    /// time is held.
    pub(crate) fn rest(&self, now: Duration) -> Option<(u64, Duration)> {
        let held = self.held.as_ref()?;
        let rest = LONGEST_HOLD.checked_sub(now.saturating_sub(held.since))?;
        Some((self.number, rest))
    }

    /// The hold with this number, which lasts for `rest` at most from the monotonic time `now` on.
    pub(crate) fn resume((number, rest): (u64, Duration), now: Duration) -> Self {
        // A clock that began a moment ago cannot show how old the hold is: then it lasts longer.
        let since = now.saturating_sub(LONGEST_HOLD.saturating_sub(rest));
        Self { held: Some(HeldTime { since, is_flushing: false }), number }
    }

    /// The kernel is being made to write back all pages.
    pub(crate) fn begin_flush(&mut self) {
        if let Some(held) = &mut self.held {
            held.is_flushing = true;
        }
    }

    /// The kernel has written back all pages that it had when this hold was flushed.
    pub(crate) fn end_flush(&mut self, number: u64) {
        if self.number == number {
            self.end();
        }
    }
}

/// Counts the files that are flushed at once when their time is set.
#[derive(Debug, Default)]
pub(crate) struct PromptFlushes(Mutex<Second>);

#[derive(Debug, Default)]
struct Second {
    since: Duration,
    flushes: u32,
}

impl PromptFlushes {
    /// True if a file of `size` bytes shall be flushed at once at the monotonic time `now`.
    pub(crate) fn take(&self, size: u64, now: Duration) -> bool {
        if size == 0 || size > PROMPT_FLUSH_BYTES {
            return false;
        }
        let mut second = self.0.lock();
        if now.saturating_sub(second.since) >= Duration::from_secs(1) {
            *second = Second { since: now, flushes: 0 };
        }
        second.flushes += 1;
        second.flushes <= PROMPT_FLUSHES_PER_SECOND
    }
}

#[cfg(test)]
mod tests;
