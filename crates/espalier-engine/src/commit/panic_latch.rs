//! Panic latch: a panic in the middle of a change makes the store read-only.

use crate::Error;
use crate::device::GuardedDevice;
use crate::signal::WorkSignal;

/// Makes the store read-only if `work` panics: writers must get an error then, and not wait for
/// progress that never comes.
pub(crate) fn latch_on_panic<T>(device: &GuardedDevice, signal: &WorkSignal, work: impl FnOnce() -> T) -> T {
    struct Latch<'a>(&'a GuardedDevice, &'a WorkSignal);
    impl Drop for Latch<'_> {
        fn drop(&mut self) {
            let what =
                "work on the store panicked: this is a bug, of a merge function perhaps; please report it";
            self.0.latch(Error::damaged(what));
            self.1.note_progress();
        }
    }
    let latch = Latch(device, signal);
    let done = work();
    std::mem::forget(latch);
    done
}
