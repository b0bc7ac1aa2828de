//! Limits of the system on a server.

use rustix::process::{Resource, getrlimit, setrlimit};

/// More than any server opens. Programs that it starts may look at each number up to their limit.
const MAX_OPEN_FILES: u64 = 1 << 20;

/// Lets this process have as many files open as it may (the hard limit). The soft limit is often
/// 1024, for programs that use `select(2)`; a mount over io_uring has a ring, which is an open
/// file, for each of its serving threads: 8 to 16 on each CPU.
pub(super) fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.unwrap_or(u64::MAX).min(MAX_OPEN_FILES);
    // Without a number there is no limit.
    if limit.current.is_some_and(|current| current < most) {
        limit.current = Some(most);
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "the limit on open files stays");
        }
    }
}
