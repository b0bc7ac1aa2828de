//! Requests: repeats what may succeed the next time, within a budget, and counts.
//!
//! Protocol: a request that failed for a reason that passes is made again after a pause that grows
//! and is random by half. Puts of objects, gets and deletes can be repeated at will. A conditional
//! put of the root is repeated only by [`Requests::replace_root`], which finds out what became of
//! it; the probe repeats others, whose outcome it looks up. A delete can wait: it is repeated for a
//! short time, and not at all if it is refused.

use crate::bucket::{Bucket, Condition, Failure, FailureKind, ObjectFacts, Reply, Request, Ticket, Version};
use crate::format::{Malformed, Root};
use bytes::Bytes;
use espalier_storage::Environment;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The object that names everything else.
pub(crate) const ROOT_NAME: &str = "root";

/// Requests of one call that are under way at a time.
pub(crate) const PARALLEL_REQUESTS: usize = 16;

/// The first pause, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a request is repeated while the device is being opened, if it is without end later.
const OPENING_BUDGET: Duration = Duration::from_secs(60);
/// How long deletes are repeated since the last one that succeeded.
const DELETE_BUDGET: Duration = Duration::from_secs(10);
/// How often something is got whose checksum is wrong.
const MAX_DAMAGED_GETS: usize = 5;
/// How much longer pauses are when the server has too much to do.
const THROTTLED_FACTOR: u32 = 4;

/// How many requests there were, with those that were repeated.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct RequestCounts {
    /// Puts.
    pub puts: u64,
    /// Gets, and questions about one object.
    pub gets: u64,
    /// Deletes.
    pub deletes: u64,
    /// Lists.
    pub lists: u64,
    /// Of all these, those that were made because one before had failed.
    pub repeats: u64,
    /// Bytes put.
    pub bytes_put: u64,
    /// Bytes got.
    pub bytes_got: u64,
}

#[derive(Debug, Default)]
struct Counters {
    puts: AtomicU64,
    gets: AtomicU64,
    deletes: AtomicU64,
    lists: AtomicU64,
    repeats: AtomicU64,
    bytes_put: AtomicU64,
    bytes_got: AtomicU64,
}

/// How a conditional put of the root ended.
#[derive(Debug)]
pub(crate) enum Replaced {
    /// It is there, in this version.
    Done(Version),
    /// Another writer was faster: this is the root now.
    Lost(Box<Root>),
}

/// A bucket whose requests are repeated.
#[derive(Debug)]
pub(crate) struct Requests {
    bucket: Arc<dyn Bucket>,
    environment: Arc<dyn Environment>,
    /// How long a request is repeated; without end, once the device is in use, if there is no
    /// budget.
    budget: Option<Duration>,
    /// Set once the device is in use: then a refusal may be a credential that is just being
    /// renewed, and is repeated too.
    established: AtomicBool,
    /// Set when the device is closed or dropped: no delete is repeated from then on.
    ended: AtomicBool,
    counters: Counters,
}

/// Which of some objects were deleted.
#[derive(Debug)]
pub(crate) struct Deletes {
    /// In the order of the objects: true if it is gone. Those at the end may not have been tried.
    pub(crate) done: Vec<bool>,
    /// The first refusal; the other objects were tried all the same.
    pub(crate) refused: Option<Failure>,
    /// What ended the attempt.
    pub(crate) failed: Option<Failure>,
}

/// The time and pauses of one request.
struct Patience {
    until: Option<Duration>,
    pause: Duration,
}

impl Requests {
    pub(crate) fn new(
        bucket: Arc<dyn Bucket>,
        environment: Arc<dyn Environment>,
        budget: Option<Duration>,
    ) -> Self {
        let (established, ended) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { bucket, environment, budget, established, ended, counters: Counters::default() }
    }

    pub(crate) fn name(&self) -> &str {
        self.bucket.name()
    }

    /// From now on refusals are repeated too.
    pub(crate) fn establish(&self) {
        self.established.store(true, Ordering::Relaxed);
    }

    /// From now on no delete is repeated.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> RequestCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RequestCounts {
            puts: get(&self.counters.puts),
            gets: get(&self.counters.gets),
            deletes: get(&self.counters.deletes),
            lists: get(&self.counters.lists),
            repeats: get(&self.counters.repeats),
            bytes_put: get(&self.counters.bytes_put),
            bytes_got: get(&self.counters.bytes_got),
        }
    }

    /// Begins a request, which [`Requests::finish`] ends.
    pub(crate) fn begin(&self, request: &Request) -> Box<dyn Ticket> {
        self.count(request);
        self.bucket.submit(request.clone())
    }

    /// Waits for a request that was begun, and repeats it while that may help.
    ///
    /// # Errors
    /// The last failure.
    pub(crate) fn finish(&self, ticket: Box<dyn Ticket>, request: &Request) -> Result<Reply, Failure> {
        self.finish_within(self.patience(), ticket, request)
    }

    fn finish_within(
        &self,
        mut patience: Patience,
        ticket: Box<dyn Ticket>,
        request: &Request,
    ) -> Result<Reply, Failure> {
        let mut outcome = ticket.wait();
        loop {
            match outcome.and_then(|reply| whole(request, reply)) {
                Err(failure) if self.passes(request, &failure) => {
                    self.rest(&mut patience, request, failure)?;
                    self.counters.repeats.fetch_add(1, Ordering::Relaxed);
                    outcome = self.begin(request).wait();
                }
                Ok(Reply::Got(bytes, facts)) => {
                    self.counters.bytes_got.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    return Ok(Reply::Got(bytes, facts));
                }
                Err(failure) if failure.kind == FailureKind::NotFound => {
                    return Err(Failure { missing: Some(request.name().to_owned()), ..failure });
                }
                other => return other,
            }
        }
    }

    /// Makes a request.
    ///
    /// # Errors
    /// As for [`Requests::finish`].
    pub(crate) fn call(&self, request: &Request) -> Result<Reply, Failure> {
        self.finish(self.begin(request), request)
    }

    /// Makes requests side by side, `width` at a time; the replies are in their order.
    ///
    /// # Errors
    /// The first failure; all have ended then.
    pub(crate) fn call_all(&self, requests: &[Request], width: usize) -> Result<Vec<Reply>, Failure> {
        let mut replies = Vec::with_capacity(requests.len());
        let mut under_way = std::collections::VecDeque::new();
        let mut next = requests.iter();
        loop {
            while under_way.len() < width.max(1)
                && let Some(request) = next.next()
            {
                under_way.push_back((self.begin(request), request));
            }
            let Some((ticket, request)) = under_way.pop_front() else { break };
            replies.push(self.finish(ticket, request));
        }
        replies.into_iter().collect()
    }

    /// Deletes objects, side by side. Refusals, as by a policy that allows none, are no reason to
    /// wait, or to leave the others; after any other failure nothing more is begun.
    pub(crate) fn delete_all(&self, names: &[String]) -> Deletes {
        let mut deletes = Deletes { done: vec![false; names.len()], refused: None, failed: None };
        let mut under_way = std::collections::VecDeque::new();
        let mut next = names.iter().enumerate();
        let mut until = self.delete_patience().until;
        loop {
            while under_way.len() < PARALLEL_REQUESTS
                && deletes.failed.is_none()
                && !self.ended.load(Ordering::Relaxed)
                && let Some((at, name)) = next.next()
            {
                let delete = Request::Delete { name: name.clone() };
                under_way.push_back((at, self.begin(&delete), delete));
            }
            let Some((at, ticket, delete)) = under_way.pop_front() else { return deletes };
            match self.finish_within(Patience { until, pause: FIRST_PAUSE }, ticket, &delete) {
                Ok(_) => {
                    deletes.done[at] = true;
                    until = self.delete_patience().until;
                }
                Err(failure) if failure.kind == FailureKind::Denied => {
                    deletes.refused.get_or_insert(failure);
                }
                Err(failure) => drop(deletes.failed.get_or_insert(failure)),
            }
        }
    }

    /// What `open` makes of the bytes that a get gave. Bytes that it does not accept may have been
    /// damaged on their way, so they are got again, a few times.
    ///
    /// # Errors
    /// As for [`Requests::finish`]; if the bytes stay damaged.
    pub(crate) fn checked<T>(
        &self,
        request: &Request,
        reply: Reply,
        open: impl Fn(&Bytes) -> Result<T, Malformed>,
    ) -> Result<T, Failure> {
        let mut bytes = got(reply)?.0;
        for _ in 1..MAX_DAMAGED_GETS {
            if let Ok(opened) = open(&bytes) {
                return Ok(opened);
            }
            self.counters.repeats.fetch_add(1, Ordering::Relaxed);
            bytes = got(self.call(request)?)?.0;
        }
        open(&bytes).map_err(|what| {
            let message = format!("{} of {} is damaged: {what}", request.name(), self.name());
            Failure::new(FailureKind::Unsupported, message)
        })
    }

    /// Reads the root; `None` if there is none.
    ///
    /// # Errors
    /// As for [`Requests::finish`]; if it is no root that this program knows.
    pub(crate) fn read_root(&self) -> Result<Option<(Root, ObjectFacts, Version)>, Failure> {
        let request = Request::Get { name: ROOT_NAME.into(), range: None };
        let unsupported = |what: String| Failure::new(FailureKind::Unsupported, what);
        let mut attempts = 1;
        // Another writer may replace it between two gets: version and bytes are those of one.
        loop {
            let (bytes, facts) = match self.call(&request).and_then(got) {
                Ok(got) => got,
                Err(failure) if failure.kind == FailureKind::NotFound => return Ok(None),
                Err(failure) => return Err(failure),
            };
            match Root::decode(&bytes) {
                Ok(root) => {
                    let version = facts.version.clone();
                    let none = || unsupported("the server tells no versions of objects (ETag)".into());
                    return Ok(Some((root, facts, version.ok_or_else(none)?)));
                }
                Err(_) if attempts < MAX_DAMAGED_GETS => attempts += 1,
                Err(what) => {
                    return Err(unsupported(format!("the root of {} is unusable: {what}", self.name())));
                }
            }
        }
    }

    /// Replaces the root by `root`, if it is the one whose nonce is `root.previous`; `condition`
    /// says the same to the server.
    ///
    /// # Errors
    /// If it is not known whether the root was replaced, or a request fails for good.
    pub(crate) fn replace_root(&self, root: &Root, condition: &Condition) -> Result<Replaced, Failure> {
        let body = vec![Bytes::from(root.encode())];
        let put = Request::Put { name: ROOT_NAME.into(), body, condition: condition.clone() };
        let mut patience = self.patience();
        loop {
            let failure = match self.begin(&put).wait() {
                Ok(Reply::Put(Some(version))) => return Ok(Replaced::Done(version)),
                // The server has not told the version: it is read.
                Ok(_) => Failure::new(FailureKind::Unknown, "the put of the root has no version"),
                Err(failure) => failure,
            };
            let decided = failure.kind == FailureKind::Condition || failure.kind == FailureKind::Unknown;
            if !decided && !self.passes(&put, &failure) {
                return Err(failure);
            }
            // Whatever the reply was, the root itself says what happened.
            match self.read_root() {
                Ok(Some((found, _, version))) if found.nonce == root.nonce => {
                    return Ok(Replaced::Done(version));
                }
                Ok(Some((found, ..))) if *condition == Condition::Absent || found.nonce != root.previous => {
                    return Ok(Replaced::Lost(Box::new(found)));
                }
                Ok(Some(_)) => {}
                Ok(None) if *condition == Condition::Absent => {}
                Ok(None) => {
                    return Err(Failure::new(
                        FailureKind::NotFound,
                        "the root is gone: the store was deleted",
                    ));
                }
                Err(failure) => return Err(failure),
            }
            self.rest(&mut patience, &put, failure)?;
            self.counters.repeats.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn patience(&self) -> Patience {
        // A store that is not there yet, or has another name, is not waited for without end.
        let opening = (!self.established.load(Ordering::Relaxed)).then_some(OPENING_BUDGET);
        let budget = self.budget.or(opening);
        let until = budget.map(|budget| self.environment.monotonic() + budget);
        Patience { until, pause: FIRST_PAUSE }
    }

    /// The patience for deletes, which begins anew with each one that succeeds.
    fn delete_patience(&self) -> Patience {
        let budget = self.budget.map_or(DELETE_BUDGET, |budget| budget.min(DELETE_BUDGET));
        Patience { until: Some(self.environment.monotonic() + budget), pause: FIRST_PAUSE }
    }

    /// True if a request that failed is made again, as long as there is time.
    fn passes(&self, request: &Request, failure: &Failure) -> bool {
        if let Request::Delete { .. } = request {
            return failure.is_passing() && !self.ended.load(Ordering::Relaxed);
        }
        let refused = failure.kind == FailureKind::Denied && self.established.load(Ordering::Relaxed);
        failure.is_passing() || refused
    }

    /// Pauses before the next attempt.
    ///
    /// # Errors
    /// The failure, if there is no time for another attempt.
    fn rest(&self, patience: &mut Patience, request: &Request, failure: Failure) -> Result<(), Failure> {
        let half = patience.pause / 2;
        let random = Duration::from_nanos(self.environment.random() % (half.as_nanos().max(1) as u64));
        let mut pause = half + random;
        if failure.kind == FailureKind::Throttled {
            pause *= THROTTLED_FACTOR;
        }
        if patience.until.is_some_and(|until| self.environment.monotonic() + pause > until) {
            return Err(failure);
        }
        tracing::debug!(verb = request.verb(), name = request.name(), %failure, "again");
        self.environment.sleep(pause);
        patience.pause = (patience.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    fn count(&self, request: &Request) {
        let counter = match request {
            Request::Put { body, .. } => {
                let bytes = body.iter().map(|b| b.len() as u64).sum();
                self.counters.bytes_put.fetch_add(bytes, Ordering::Relaxed);
                &self.counters.puts
            }
            Request::Get { .. } | Request::Head { .. } => &self.counters.gets,
            Request::Delete { .. } => &self.counters.deletes,
            Request::List { .. } => &self.counters.lists,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A reply, unless it is to a get and ends early.
///
/// # Errors
/// [`FailureKind::Unknown`] if it has not as many bytes as the object has in the range.
fn whole(request: &Request, reply: Reply) -> Result<Reply, Failure> {
    let (Request::Get { name, range }, Reply::Got(bytes, facts)) = (request, &reply) else {
        return Ok(reply);
    };
    let range = range.clone().unwrap_or(0..facts.bytes);
    let wanted = range.end.min(facts.bytes).saturating_sub(range.start);
    if bytes.len() as u64 == wanted {
        return Ok(reply);
    }
    let message = format!("the reply to a get of {name} has {} of {wanted} bytes", bytes.len());
    Err(Failure::new(FailureKind::Unknown, message))
}

/// The bytes of a reply to a get.
///
/// # Errors
/// If it is another reply.
pub(crate) fn got(reply: Reply) -> Result<(Bytes, ObjectFacts), Failure> {
    match reply {
        Reply::Got(bytes, facts) => Ok((bytes, facts)),
        other => Err(Failure::new(FailureKind::Unsupported, format!("a get was answered with {other:?}"))),
    }
}
