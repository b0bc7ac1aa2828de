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

/// The error of a device that stays in one state, for an object which only older states than the
/// newest have, and which the writer has therefore deleted.
pub(super) fn of_deleted(object: &str, name: &str) -> Error {
    let message = format!(
        "the state that is read was replaced longer than the grace time ago, and the writer has deleted {object}, which \
         newer states do not need; mount again, or with -o ro,follow, which shows new states (or run the command again)"
    );
    Error::new(ErrorKind::Gone, Operation::Read, name, message)
}
