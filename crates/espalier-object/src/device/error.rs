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

/// The error of a device that stays in one state, for an object of that state which is gone: not
/// damage, but what a reader meets that is slower than the grace time.
pub(super) fn of_old_state(failure: &Failure, name: &str) -> Error {
    let message = format!(
        "{}; the writer deletes what only a state has that was replaced longer than the grace time ago, and this device \
         shows one state: open the store again (if that fails too, the bucket or an object was deleted otherwise)",
        failure.message
    );
    Error::new(ErrorKind::Io, Operation::Read, name, message)
}
