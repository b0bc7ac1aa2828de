//! What the running kernel does and does not do, known by its release number where no bit of the
//! protocol says so.

/// True if the kernel drops its pages of a range that is written by direct I/O after the write as
/// well, so that no page stays that a reader fetched during the write. Linux does since 6.19,
/// 6.18.3 and 6.12.64 (its commit b359af8275a9).
pub(crate) fn drops_pages_after_direct_writes() -> bool {
    is_running(drops)
}

fn drops(release: &str) -> bool {
    match numbers(release) {
        (6, 12, patch) => patch >= 64,
        (6, 18, patch) => patch >= 3,
        (major, minor, _) => (major, minor) >= (6, 19),
    }
}

/// True if the kernel zeroes the last page that a notification stores, from the end of the file on.
/// Earlier kernels leave there what had been in that memory (CVE-2024-44947); distributors may have
/// fixed it under other numbers.
pub(crate) fn clears_stored_tails() -> bool {
    is_running(clears)
}

fn clears(release: &str) -> bool {
    match numbers(release) {
        (5, 4, patch) => patch >= 283,
        (5, 10, patch) => patch >= 225,
        (5, 15, patch) => patch >= 166,
        (6, 1, patch) => patch >= 107,
        (6, 6, patch) => patch >= 48,
        (6, 10, patch) => patch >= 7,
        (major, minor, _) => (major, minor) >= (6, 11),
    }
}

/// True if a page counts as under write-back until the server has answered the WRITE. Linux before
/// 6.16 writes from copies, and calls the page clean while its copy is on its way.
pub(crate) fn waits_for_writes() -> bool {
    is_running(|release| numbers(release) >= (6, 16, 0))
}

/// Whether `is_so` holds for the release of the running kernel.
fn is_running(is_so: impl FnOnce(&str) -> bool) -> bool {
    rustix::system::uname().release().to_str().is_ok_and(is_so)
}

/// The first three numbers of a kernel's release.
fn numbers(release: &str) -> (u32, u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok());
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

#[cfg(test)]
mod tests {
    use super::{clears, drops};

    #[test]
    fn kernels_are_known_that_drop_pages_after_direct_writes() {
        let new =
            ["6.19.0-rc1", "6.19", "7.0.1-generic", "10.1", "6.18.3", "6.18.44-x-y1", "6.12.64+deb13-amd64"];
        for release in new {
            assert!(drops(release), "{release}");
        }
        let old = ["6.18.2", "6.18", "6.12.63", "6.17.13", "6.1.170", "5.15.200", "", "x", "6.x.9"];
        for release in old {
            assert!(!drops(release), "{release}");
        }
    }

    #[test]
    fn kernels_are_known_that_clear_stored_tails() {
        for release in ["6.11", "6.18.44-x-y1", "7.0", "5.4.283", "6.1.107-1-amd64", "6.6.48", "6.10.7"] {
            assert!(clears(release), "{release}");
        }
        for release in
            ["5.4.282", "5.14.0-503.el9", "5.15.0-140-generic", "6.1.106", "6.8.0-60-generic", "6.9.12", ""]
        {
            assert!(!clears(release), "{release}");
        }
    }
}
