//! Failures: what errors of the crate `object_store` say about what to do.

use super::{Failure, FailureKind};

/// What an error says if the range of a get begins behind the end of the object: a server, and
/// `object_store` itself. A range that is empty can come from damage only, too.
const BEHIND_THE_END: [&str; 3] =
    ["416 Range Not Satisfiable", "Wanted range starting at", "Range started at"];

/// What to do about an error of `object_store`.
pub(super) fn failure(error: object_store::Error) -> Failure {
    use object_store::Error;
    let mut text = causes(&error);
    if text.contains("RequestTimeTooSkewed") {
        text.push_str("; the clock of this machine is too far from the server's: set it");
    }
    let ends_early = BEHIND_THE_END.iter().any(|word| text.contains(word));
    if ends_early {
        text.push_str("; the object is damaged: it ends before the bytes that the store has put there");
    }
    let said = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let kind = match &error {
        // For a conditional put it comes as a condition that does not hold.
        _ if said(&["NoSuchBucket", "ContainerNotFound"]) => FailureKind::NotFound,
        Error::NotFound { .. } => FailureKind::NotFound,
        Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. } => {
            FailureKind::Condition
        }
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => FailureKind::Denied,
        Error::NotImplemented { .. }
        | Error::NotSupported { .. }
        | Error::InvalidPath { .. }
        | Error::UnknownConfigurationKey { .. } => FailureKind::Unsupported,
        // The same range has no other answer the next time.
        _ if ends_early => FailureKind::Unsupported,
        // Some of these come as a bad request.
        _ if said(&["ExpiredToken", "InvalidToken", "RequestTimeTooSkewed"]) => FailureKind::Denied,
        // By their words: a number may be part of anything, such as a port.
        _ if said(&["503 Service Unavailable", "429 Too Many Requests", "SlowDown", "ServerBusy"]) => {
            FailureKind::Throttled
        }
        _ => FailureKind::Unknown,
    };
    Failure::new(kind, text)
}

/// An error with its causes, of which each says what the one above does not.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = next.source();
    }
    text
}
