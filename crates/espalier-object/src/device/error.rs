//! Failures of requests as errors of a device.

use crate::bucket::{Failure, FailureKind};
use espalier_storage::{Error, ErrorKind, Operation};

/// The device's error for a failure.
pub(super) fn of_failure(failure: &Failure, operation: Operation, name: &str) -> Error {
    let (kind, advice) = match failure.kind {
        FailureKind::NotFound => (ErrorKind::Io, "; was the bucket, or an object of the store, deleted?"),
        FailureKind::Denied => (ErrorKind::PermissionDenied, "; check the credentials in the environment"),
        FailureKind::Unsupported => (ErrorKind::Unsupported, ""),
        FailureKind::Condition => (ErrorKind::Io, ""),
        FailureKind::Throttled | FailureKind::Unknown => {
            (ErrorKind::Io, "; check the network and the server")
        }
    };
    Error::new(kind, operation, name, format!("{}{advice}", failure.message))
}
