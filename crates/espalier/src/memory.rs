//! When unused memory goes back to the system, and which processes get huge pages.
//!
//! A server at work frees what it will ask for again at once; giving it back in between is a page
//! fault for each page. So free memory is kept for a while, unless the budget comes near: then it
//! goes back every second, and what the process holds is what it uses.

use anyhow::{Context, Result};
use std::ffi::c_long;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Milliseconds until free memory goes back to the system. With the allocator's usual second, a
/// server that unpacked an archive took 8,000 page faults a second.
const PURGE_DELAY_MILLISECONDS: c_long = 10_000;

/// `mi_option_purge_delay`, for which the binding has no name: it precedes this one in versions 2
/// and 3.
const PURGE_DELAY_OPTION: libmimalloc_sys::mi_option_t = libmimalloc_sys::mi_option_use_numa_nodes - 1;

/// How often one looks how much memory there is.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// True if [`refuse_huge_pages`] changed something.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Called before everything else, since the allocator asks for huge pages with its first memory.
/// Three of them are cleared then: half a millisecond, or twenty where the machine has to get the
/// memory from its host, for a command that does next to nothing.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static FIRST: extern "C" fn() = refuse_huge_pages;

extern "C" fn refuse_huge_pages() {
    // SAFETY: these calls take numbers only, and allocate nothing.
    let refused = unsafe {
        libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
    };
    REFUSED.store(refused, Ordering::Relaxed);
}

/// Lets this process, and those it starts, have huge pages again, if they had them when it began:
/// for commands that work long or with much memory.
pub(crate) fn allow_huge_pages() {
    if REFUSED.swap(false, Ordering::Relaxed) {
        // SAFETY: takes numbers only.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 0, 0, 0, 0) };
    }
}

/// Keeps what the process holds to little more than it uses as soon as that comes near `budget`
/// bytes.
///
/// # Errors
/// A thread cannot be started.
pub(crate) fn watch(budget: u64) -> Result<()> {
    // SAFETY: sets a number that the allocator reads atomically; the option exists in both versions
    // there are.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY_OPTION, PURGE_DELAY_MILLISECONDS) };
    let near = budget - budget / 8;
    let body = move || {
        loop {
            std::thread::sleep(CHECK_INTERVAL);
            // What cannot be known is taken for much.
            if resident().is_none_or(|held| held > near) {
                // SAFETY: may be called by any thread at any time.
                unsafe { libmimalloc_sys::mi_collect(true) };
            }
        }
    };
    std::thread::Builder::new().name("memory".into()).spawn(body).context("a thread cannot be started")?;
    Ok(())
}

/// Bytes of memory that the process holds.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim_end().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_refused_first_and_allowed_when_asked_for() {
        // SAFETY: takes numbers only.
        let refused = || unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) };
        if REFUSED.load(Ordering::Relaxed) {
            assert_eq!(refused(), 1);
            allow_huge_pages();
            assert_eq!(refused(), 0);
        } else {
            // The parent of this test refuses them: that is to stay.
            allow_huge_pages();
            assert_eq!(refused(), 1);
        }
    }

    #[test]
    fn a_process_holds_some_memory() {
        assert!(resident().is_some_and(|bytes| bytes > 100 << 10));
    }
}
