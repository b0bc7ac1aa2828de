//! Probe: does the server honour the conditions of puts?
//!
//! Protocol: several puts of one new object are made at a time, of which one may succeed; then
//! several that replace it, of which one may succeed, beside puts that must be refused. Only a
//! success that must not be counts: whatever else fails says nothing. So the probe takes two rounds
//! of requests, beside which its caller may make others: it calls [`Probe::begin`], then
//! [`Probe::finish`], and [`Probed::end`] when it has nothing else to do.
//!
//! The time of an object of the probe is also the time of the server's clock.

use crate::bucket::{Condition, Failure, FailureKind, Reply, Request, Ticket, Version};
use crate::requests::Requests;
use bytes::Bytes;
use espalier_storage::Environment;
use std::sync::Arc;

/// Where the objects of probes are.
pub(super) const FOLDER: &str = "probe";
/// What their names end with.
const KINDS: [&str; 2] = ["contested", "other"];

/// True for the name of an object that a probe makes. Others may lie in a folder of that name.
pub(super) fn is_name(name: &str) -> bool {
    let rest = name.strip_prefix(FOLDER).and_then(|rest| rest.strip_prefix('/'));
    let is_number = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    rest.and_then(|rest| rest.split_once('-'))
        .is_some_and(|(number, what)| is_number(number) && KINDS.contains(&what))
}

/// Puts that race.
const RACERS: u8 = 8;

/// A request that is under way.
type Begun = (Request, Box<dyn Ticket>);

/// A probe whose first round is under way. [`Probe::finish`] deletes its objects.
pub(super) struct Probe {
    /// The object for which puts race.
    contested: String,
    /// An object with other bytes: its version is never that of the first one.
    other: String,
    racers: Vec<Begun>,
    other_put: Begun,
}

/// What a probe found, while its objects are being deleted.
pub(super) struct Probed {
    /// The time of the server's clock, in milliseconds since the Unix epoch.
    pub(super) now: u64,
    deletes: Vec<Begun>,
}

impl Probe {
    /// Begins the first round.
    pub(super) fn begin(requests: &Requests, environment: &Arc<dyn Environment>) -> Self {
        let name = |what: &str| format!("{FOLDER}/{:016x}-{what}", environment.random());
        let (contested, other) = (name(KINDS[0]), name(KINDS[1]));
        let racers = race(requests, &contested, 100, &Condition::Absent);
        let other_put = begin(requests, body(&other, 1, Condition::None));
        Self { contested, other, racers, other_put }
    }

    /// Makes sure that the server honours conditions.
    ///
    /// # Errors
    /// [`FailureKind::Unsupported`] if it does not; what a request fails with.
    pub(super) fn finish(self, requests: &Requests) -> Result<Probed, Failure> {
        let names = [self.contested.clone(), self.other.clone()];
        let outcome = self.conditions(requests);
        let deletes = names.map(|name| begin(requests, Request::Delete { name }));
        let probed = Probed { now: 0, deletes: deletes.into() };
        match outcome {
            Ok(now) => Ok(Probed { now, ..probed }),
            Err(failure) => {
                probed.end(requests);
                Err(failure)
            }
        }
    }

    fn conditions(self, requests: &Requests) -> Result<u64, Failure> {
        let Self { contested, other, racers, other_put: (put_other, ticket) } = self;
        let won = winners(racers)?;
        let other_version = match requests.finish(ticket, &put_other)? {
            Reply::Put(version) => version,
            _ => None,
        };
        let first = match <[Option<Version>; 1]>::try_from(won) {
            Ok([Some(version)]) => version,
            Err(won) if won.len() > 1 => return Err(dishonest("If-None-Match")),
            // No reply says which version is there.
            _ => {
                put(requests, &contested, 1, Condition::Absent)?;
                version(requests, &contested)?.0
            }
        };
        let mut refused = vec![(body(&contested, 2, Condition::Absent), "If-None-Match")];
        refused.extend(other_version.map(|v| (body(&contested, 3, Condition::Matches(v)), "If-Match")));
        let refused: Vec<_> =
            refused.into_iter().map(|(put, header)| (begin(requests, put), header)).collect();
        let racers = race(requests, &contested, 200, &Condition::Matches(first.clone()));
        let (get, got) = begin(requests, Request::Get { name: other, range: None });
        for (begun, header) in refused {
            if !winners(vec![begun])?.is_empty() {
                return Err(dishonest(header));
            }
        }
        match winners(racers)?.len() {
            0 => replaces(requests, &contested, first)?,
            1 => {}
            _ => return Err(dishonest("If-Match")),
        }
        facts(requests.finish(got, &get)?).map(|(_, now)| now)
    }
}

impl Probed {
    /// Waits until the objects of the probe are deleted.
    pub(super) fn end(self, requests: &Requests) {
        for (request, ticket) in self.deletes {
            // What is left behind does no harm.
            if let Err(failure) = requests.finish(ticket, &request) {
                tracing::debug!(%failure, "an object of the probe is left behind");
            }
        }
    }
}

fn begin(requests: &Requests, request: Request) -> Begun {
    let ticket = requests.begin(&request);
    (request, ticket)
}

/// Begins several puts under one condition. Their bytes, from number `first` on, are not those of
/// any version that the condition may name.
fn race(requests: &Requests, name: &str, first: u8, condition: &Condition) -> Vec<Begun> {
    let puts = (first..first + RACERS).map(|number| body(name, number, condition.clone()));
    puts.map(|put| begin(requests, put)).collect()
}

/// The versions that successful puts told.
///
/// # Errors
/// If the server has no conditional puts.
fn winners(begun: Vec<Begun>) -> Result<Vec<Option<Version>>, Failure> {
    let outcomes: Vec<_> = begun.into_iter().map(|(_, ticket)| ticket.wait()).collect();
    let mut won = Vec::new();
    for outcome in outcomes {
        match outcome {
            Ok(Reply::Put(version)) => won.push(version),
            Ok(_) => won.push(None),
            Err(failure) if failure.kind == FailureKind::Unsupported => return Err(unable(&failure)),
            Err(_) => {}
        }
    }
    Ok(won)
}

/// Makes sure that a put whose condition holds takes effect, after a race that no put is known to
/// have won.
fn replaces(requests: &Requests, name: &str, first: Version) -> Result<(), Failure> {
    put(requests, name, 4, Condition::Matches(first.clone()))?;
    if version(requests, name)?.0 == first {
        let message = "the server refuses a put whose condition holds (If-Match)";
        return Err(Failure::new(FailureKind::Unsupported, message));
    }
    Ok(())
}

fn body(name: &str, number: u8, condition: Condition) -> Request {
    let body = vec![Bytes::from(format!("a probe of conditional puts: {number}"))];
    Request::Put { name: name.to_owned(), body, condition }
}

/// Puts, whether or not the condition holds.
fn put(requests: &Requests, name: &str, number: u8, condition: Condition) -> Result<(), Failure> {
    match requests.call(&body(name, number, condition)) {
        Ok(_) => Ok(()),
        Err(failure) if failure.kind == FailureKind::Condition => Ok(()),
        Err(failure) if failure.kind == FailureKind::Unsupported => Err(unable(&failure)),
        Err(failure) => Err(failure),
    }
}

fn version(requests: &Requests, name: &str) -> Result<(Version, u64), Failure> {
    facts(requests.call(&Request::Get { name: name.to_owned(), range: None })?)
}

/// Version and time of what was got.
fn facts(reply: Reply) -> Result<(Version, u64), Failure> {
    let Reply::Got(_, facts) = reply else {
        return Err(Failure::new(FailureKind::Unsupported, "a get was answered with another reply"));
    };
    match facts.version {
        Some(version) => Ok((version, facts.modified)),
        None => Err(Failure::new(FailureKind::Unsupported, "the server tells no versions of objects (ETag)")),
    }
}

fn unable(failure: &Failure) -> Failure {
    Failure::new(FailureKind::Unsupported, format!("the server has no conditional puts: {failure}"))
}

fn dishonest(header: &str) -> Failure {
    let message = format!(
        "the server does not honour the condition of a put ({header}), so two writers could destroy the store; use a \
         server that does"
    );
    Failure::new(FailureKind::Unsupported, message)
}
