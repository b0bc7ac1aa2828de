//! The errors of mounting.

use std::io;
use std::path::PathBuf;

/// Why there is no mount. Texts say what to do.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the fields are what the texts name")]
pub enum MountError {
    /// The mount point is not there, or cannot be looked at.
    #[error("cannot mount on {}: {source}; the mount point must be a directory that exists", point.display())]
    Point { point: PathBuf, source: io::Error },
    /// The mount point has content.
    #[error("{} is not empty; choose another directory, or mount with -o nonempty to hide its content", point.display())]
    NotEmpty { point: PathBuf },
    /// The kernel has no FUSE, or this process may not use it.
    #[error("cannot open /dev/fuse: {source}; is the kernel module `fuse` loaded?")]
    NoFuse { source: io::Error },
    /// The kernel refused.
    #[error("cannot mount on {}: {source}", point.display())]
    Refused { point: PathBuf, source: io::Error },
    /// The helper for ordinary users cannot be run.
    #[error(
        "cannot run fusermount3: {source}; only root mounts without it (Debian: install the package fuse3)"
    )]
    NoHelper { source: io::Error },
    /// The helper for ordinary users refused.
    #[error("fusermount3 cannot mount on {}: {said}", point.display())]
    Helper { point: PathBuf, said: String },
    /// It is mounted, but cannot be served; it was unmounted again.
    #[error("the mount on {} cannot be served: {source}", point.display())]
    Serve { point: PathBuf, source: io::Error },
}
