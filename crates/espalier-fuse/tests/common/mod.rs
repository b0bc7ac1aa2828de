//! What the tests on real mounts share.

#![allow(dead_code, reason = "every test binary uses its own part")]

pub(crate) mod toy;

use espalier_fuse::transport::Kind;

/// Switches FUSE over io_uring on where the kernel has it; false where it does not.
pub(crate) fn enable_uring() -> bool {
    std::fs::write("/sys/module/fuse/parameters/enable_uring", "Y").is_ok()
}

/// The transports that this kernel has.
pub(crate) fn kinds() -> Vec<Kind> {
    if enable_uring() {
        vec![Kind::Uring, Kind::Classic]
    } else {
        eprintln!("this kernel has no FUSE over io_uring: only the classic device is tested");
        vec![Kind::Classic]
    }
}
