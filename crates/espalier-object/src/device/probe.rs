//! Probe: does the server honour the conditions of puts?
//!
//! Protocol: an object of a random name is put; then puts are made that must be refused, and
//! several at a time of which one may succeed. Only a success that must not be counts: whatever
//! else fails says nothing.
//!
//! The object's time is also the time of the server's clock.

use crate::bucket::{Condition, Failure, FailureKind, Reply, Request, Version};
use crate::requests::Requests;
use bytes::Bytes;
use espalier_storage::Environment;
use std::sync::Arc;

/// Puts that race.
const RACERS: u8 = 8;

/// Makes sure that the server honours conditions; returns the time of its clock.
///
/// # Errors
/// [`FailureKind::Unsupported`] if it does not; what a request fails with.
pub(super) fn probe(requests: &Requests, environment: &Arc<dyn Environment>) -> Result<u64, Failure> {
    let name = |what: &str| format!("probe/{:016x}-{what}", environment.random());
    let (one, race) = (name("one"), name("race"));
    let outcome = conditions(requests, &one).and_then(|now| races(requests, &race).map(|()| now));
    let deletes = [one, race].map(|name| Request::Delete { name });
    // What is left behind does no harm, and the outcome counts.
    if let Err(failure) = requests.call_all(&deletes, deletes.len()) {
        tracing::debug!(%failure, "an object of the probe is left behind");
    }
    outcome
}

fn conditions(requests: &Requests, name: &str) -> Result<u64, Failure> {
    put(requests, name, 1, Condition::Absent)?;
    let (first, now) = version(requests, name)?;
    if put(requests, name, 2, Condition::Absent)? {
        return Err(dishonest("If-None-Match"));
    }
    put(requests, name, 3, Condition::Matches(first.clone()))?;
    let (second, _) = version(requests, name)?;
    if second == first {
        let message = "the server refuses a put whose condition holds (If-Match)";
        return Err(Failure::new(FailureKind::Unsupported, message));
    }
    if put(requests, name, 4, Condition::Matches(first))? {
        return Err(dishonest("If-Match"));
    }
    Ok(now)
}

fn races(requests: &Requests, name: &str) -> Result<(), Failure> {
    race(requests, name, 100, &Condition::Absent, "If-None-Match")?;
    put(requests, name, 1, Condition::Absent)?;
    let (version, _) = version(requests, name)?;
    race(requests, name, 200, &Condition::Matches(version), "If-Match")
}

/// Begins several puts under one condition: at most one may succeed. Their bytes, from number
/// `first` on, are not those of any version that the condition may name.
fn race(
    requests: &Requests,
    name: &str,
    first: u8,
    condition: &Condition,
    header: &str,
) -> Result<(), Failure> {
    let puts = (first..first + RACERS).map(|number| body(name, number, condition.clone()));
    let tickets: Vec<_> = puts.map(|put| requests.begin(&put)).collect();
    let won = tickets.into_iter().filter_map(|ticket| ticket.wait().ok()).count();
    if won > 1 { Err(dishonest(header)) } else { Ok(()) }
}

fn body(name: &str, number: u8, condition: Condition) -> Request {
    let body = vec![Bytes::from(format!("a probe of conditional puts: {number}"))];
    Request::Put { name: name.to_owned(), body, condition }
}

/// True if the put took effect, false if its condition did not hold.
fn put(requests: &Requests, name: &str, number: u8, condition: Condition) -> Result<bool, Failure> {
    match requests.call(&body(name, number, condition)) {
        Ok(_) => Ok(true),
        Err(failure) if failure.kind == FailureKind::Condition => Ok(false),
        Err(failure) if failure.kind == FailureKind::Unsupported => {
            let message = format!("the server has no conditional puts: {failure}");
            Err(Failure::new(FailureKind::Unsupported, message))
        }
        Err(failure) => Err(failure),
    }
}

fn version(requests: &Requests, name: &str) -> Result<(Version, u64), Failure> {
    let reply = requests.call(&Request::Get { name: name.to_owned(), range: None })?;
    let Reply::Got(_, facts) = reply else {
        return Err(Failure::new(FailureKind::Unsupported, "a get was answered with another reply"));
    };
    match facts.version {
        Some(version) => Ok((version, facts.modified)),
        None => Err(Failure::new(FailureKind::Unsupported, "the server tells no versions of objects (ETag)")),
    }
}

fn dishonest(header: &str) -> Failure {
    let message = format!(
        "the server does not honour the condition of a put ({header}), so two writers could destroy the store; use a \
         server that does"
    );
    Failure::new(FailureKind::Unsupported, message)
}
