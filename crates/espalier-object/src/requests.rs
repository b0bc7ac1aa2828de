//! Requests: repeats what may succeed the next time, within a budget, and counts.
//!
//! Protocol: a request that failed for a reason that passes is made again after a pause that grows
//! and is random by half. Puts of objects, gets and deletes can be repeated at will. A conditional
//! put of the root is repeated only by [`Requests::replace_root`], which finds out what became of
//! it; the probe repeats others, whose outcome it looks up. A delete can wait: it is repeated for a
//! short time, and not at all if it is refused. A get, head or list has no condition: a server that
//! says one failed is asked again a few times, with the same pauses, and no longer.
//!
//! How long a request is repeated:
//!
//! | | with a budget | without one |
//! |---|---|---|
//! | a put, and what is read to make it | the budget | without end |
//! | the same while a journal has what it is for | without end | without end |
//! | a get | the budget | without end, until the device ends |
//!
//! What a journal has is durable, so no caller's promise depends on when the store has it: a store
//! that is away for long must not end the writer. When the journal fails or the device ends, the
//! puts that wait have the budget from then on.
//!
//! What nothing wants any more is given up, also while an attempt is under way, whose time limit
//! may be minutes: requests of maintenance when the device stops it, uploads when another writer
//! has the store, and gets of a reader when its mount ends. What such a reader begins afterwards,
//! to close, is tried once.
//!
//! Invariant of [`Requests::replace_root`]: each attempt has the condition that a root is there on
//! which the new one builds. That root is known by its nonce, which no other root has, and its
//! version is what was read last with that nonce: a root that is copied in place, restored or kept
//! in another class has another version and is the same state. So a second attempt may have another
//! condition than the first. All attempts have the same bytes: whichever takes effect, and however
//! late, it is this root, once, in place of that one.

#[cfg(test)]
mod tests;

use crate::bucket::{
    Bucket, Condition, Errand, Failure, FailureKind, ObjectFacts, Reply, Request, Ticket, Version,
};
use crate::format::{Malformed, Root};
use bytes::Bytes;
use espalier_storage::Environment;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub(crate) use crate::bucket::ROOT_NAME;

/// Requests of one call that are under way at a time.
pub(crate) const PARALLEL_REQUESTS: usize = 16;

/// The first pause, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a request is repeated while the device is being opened, or ends, if it is without end
/// meanwhile.
const OTHER_BUDGET: Duration = Duration::from_secs(60);
/// How long deletes are repeated since the last one that succeeded.
const DELETE_BUDGET: Duration = Duration::from_secs(10);
/// How often a server may say in one call that the condition of a request failed which has none.
const MAX_CONDITION_REPLIES: u32 = 10;
/// How often something is got whose checksum is wrong.
const MAX_DAMAGED_GETS: usize = 5;
/// How much longer pauses are when the server has too much to do.
const THROTTLED_FACTOR: u32 = 4;
/// How long a pause goes on after what it is for was given up.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

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

/// What all views of one bucket share.
#[derive(Debug, Default)]
struct Shared {
    /// Set once the device is in use: then a refusal may be a credential that is just being
    /// renewed, and is repeated too.
    established: AtomicBool,
    /// Set while a journal has what puts are for: then they have no budget.
    journaled: AtomicBool,
    /// Set when the device is closed or dropped: no delete is repeated from then on.
    ended: AtomicBool,
    /// Set when maintenance ends: what was asked for it is given up.
    stopped: AtomicBool,
    /// Set when another writer has the store: uploads are given up.
    fenced: AtomicBool,
    /// Set when a reader ends: its gets are given up.
    unread: AtomicBool,
    counters: Counters,
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

/// A bucket whose requests are repeated, as callers see it or as maintenance does.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    bucket: Arc<dyn Bucket>,
    environment: Arc<dyn Environment>,
    /// How long a request is repeated; without end, once the device is in use, if there is no
    /// budget.
    budget: Option<Duration>,
    errand: Errand,
    shared: Arc<Shared>,
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
    /// Whether it is a put, or read for one.
    for_put: bool,
    /// Without end, for now, if there is none.
    until: Option<Duration>,
    /// When the first attempt began, which the time does not count: it may take longer.
    began: Option<Duration>,
    pause: Duration,
    /// Replies which say that a condition failed, to a request that has none.
    conditions: u32,
    /// When the log says that it is waited for.
    told_at: Duration,
}

impl Requests {
    pub(crate) fn new(
        bucket: Arc<dyn Bucket>,
        environment: Arc<dyn Environment>,
        budget: Option<Duration>,
    ) -> Self {
        Self { bucket, environment, budget, errand: Errand::Caller, shared: Arc::default() }
    }

    /// The same, for requests that give way to those of callers.
    pub(crate) fn for_maintenance(&self) -> Self {
        Self { errand: Errand::Maintenance, ..self.clone() }
    }

    /// The same, for requests for which callers wait.
    pub(crate) fn for_callers(&self) -> Self {
        Self { errand: Errand::Caller, ..self.clone() }
    }

    pub(crate) fn name(&self) -> &str {
        self.bucket.name()
    }

    /// From now on refusals are repeated too.
    pub(crate) fn establish(&self) {
        self.shared.established.store(true, Ordering::Relaxed);
    }

    /// From now on a journal has what puts are for, or has it no more.
    pub(crate) fn set_journaled(&self, journaled: bool) {
        self.shared.journaled.store(journaled, Ordering::Relaxed);
    }

    /// From now on no delete is repeated, and no get or journaled put without end.
    pub(crate) fn end(&self) {
        self.shared.ended.store(true, Ordering::Relaxed);
    }

    /// From now on what maintenance asks for is given up.
    pub(crate) fn stop_maintenance(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }

    /// From now on uploads are given up: no root will name them.
    pub(crate) fn give_up_uploads(&self) {
        self.shared.fenced.store(true, Ordering::Relaxed);
    }

    /// From now on gets are given up. For readers.
    pub(crate) fn end_reading(&self) {
        self.end();
        self.shared.unread.store(true, Ordering::Relaxed);
    }

    /// True if nothing wants the outcome of a request any more.
    fn is_given_up(&self, request: &Request) -> bool {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let is_upload = matches!(request, Request::Put { condition: Condition::None, .. });
        self.has_stopped()
            || (is_upload && is_set(&self.shared.fenced))
            || (!request.changes() && is_set(&self.shared.unread))
    }

    /// True for the requests of maintenance once that has ended.
    pub(crate) fn has_stopped(&self) -> bool {
        self.errand == Errand::Maintenance && self.shared.stopped.load(Ordering::Relaxed)
    }

    pub(crate) fn counts(&self) -> RequestCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RequestCounts {
            puts: get(&self.shared.counters.puts),
            gets: get(&self.shared.counters.gets),
            deletes: get(&self.shared.counters.deletes),
            lists: get(&self.shared.counters.lists),
            repeats: get(&self.shared.counters.repeats),
            bytes_put: get(&self.shared.counters.bytes_put),
            bytes_got: get(&self.shared.counters.bytes_got),
        }
    }

    /// Begins a request, which [`Requests::finish`] ends.
    pub(crate) fn begin(&self, request: &Request) -> Box<dyn Ticket> {
        self.count(request);
        match self.errand {
            Errand::Caller => self.bucket.submit(request.clone()),
            Errand::Maintenance => self.bucket.submit_behind(request.clone()),
        }
    }

    /// Waits for the reply to one attempt, unless it is given up.
    ///
    /// # Errors
    /// Why it failed.
    pub(crate) fn wait(&self, ticket: Box<dyn Ticket>, request: &Request) -> Result<Reply, Failure> {
        // What a reader begins after its end is tried once.
        if self.errand == Errand::Caller && !request.changes() && self.is_given_up(request) {
            return ticket.wait();
        }
        ticket.wait_while(&|| !self.is_given_up(request)).unwrap_or_else(|| {
            let (verb, name) = (request.verb(), request.name());
            let message = format!("{verb} of {name} was given up, since nothing wants it any more");
            Err(Failure::new(FailureKind::Unknown, message))
        })
    }

    /// Waits for a request that was begun, and repeats it while that may help.
    ///
    /// # Errors
    /// The last failure.
    pub(crate) fn finish(&self, ticket: Box<dyn Ticket>, request: &Request) -> Result<Reply, Failure> {
        let for_put = matches!(request, Request::Put { .. });
        self.finish_within(self.patience(for_put), ticket, request)
    }

    fn finish_within(
        &self,
        mut patience: Patience,
        ticket: Box<dyn Ticket>,
        request: &Request,
    ) -> Result<Reply, Failure> {
        let mut outcome = self.wait(ticket, request);
        loop {
            match outcome.and_then(|reply| whole(request, reply)) {
                Err(failure) if self.is_repeated(&mut patience, request, &failure) => {
                    self.rest(&mut patience, request, failure)?;
                    self.shared.counters.repeats.fetch_add(1, Ordering::Relaxed);
                    outcome = self.wait(self.begin(request), request);
                }
                Ok(Reply::Got(bytes, facts)) => {
                    self.shared.counters.bytes_got.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    return Ok(Reply::Got(bytes, facts));
                }
                Err(failure) if failure.kind == FailureKind::NotFound => {
                    return Err(Failure { missing: Some(request.name().to_owned()), ..failure });
                }
                Err(failure) if is_odd(request, &failure) => return Err(odd(request, failure)),
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
        let mut until = self.delete_end();
        loop {
            while under_way.len() < PARALLEL_REQUESTS
                && deletes.failed.is_none()
                && !self.shared.ended.load(Ordering::Relaxed)
                && let Some((at, name)) = next.next()
            {
                let delete = Request::Delete { name: name.clone() };
                under_way.push_back((at, self.begin(&delete), delete));
            }
            let Some((at, ticket, delete)) = under_way.pop_front() else { return deletes };
            match self.finish_within(Patience { until, ..self.patience(false) }, ticket, &delete) {
                Ok(_) => {
                    deletes.done[at] = true;
                    until = self.delete_end();
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
            self.shared.counters.repeats.fetch_add(1, Ordering::Relaxed);
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
        self.read_root_for(false)
    }

    /// The same, as long as a put is repeated if it is read `for_put`.
    ///
    /// # Errors
    /// As for [`Requests::read_root`].
    pub(crate) fn read_root_for(
        &self,
        for_put: bool,
    ) -> Result<Option<(Root, ObjectFacts, Version)>, Failure> {
        let request = Request::Get { name: ROOT_NAME.into(), range: None };
        let unsupported = |what: String| Failure::new(FailureKind::Unsupported, what);
        let mut attempts = 1;
        // Another writer may replace it between two gets: version and bytes are those of one.
        loop {
            let reply = self.finish_within(self.patience(for_put), self.begin(&request), &request);
            let (bytes, facts) = match reply.and_then(got) {
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
    /// says the same to the server, as far as is known: if that root has another version by now,
    /// the next attempt names that.
    ///
    /// # Errors
    /// If it is not known whether the root was replaced, or a request fails for good; if no reader
    /// would take the new root.
    pub(crate) fn replace_root(&self, root: &Root, condition: &Condition) -> Result<Replaced, Failure> {
        if !root.is_readable() {
            let message = "the root counts to its last epoch or generation, as no writer makes it; save what \
                           can be read, remove all objects and make the store anew";
            return Err(Failure::new(FailureKind::Unsupported, message));
        }
        let body = vec![Bytes::from(root.encode())];
        let put = |condition| Request::Put { name: ROOT_NAME.into(), body: body.clone(), condition };
        let is_first = *condition == Condition::Absent;
        let mut put_now = put(condition.clone());
        let mut patience = self.patience(true);
        loop {
            let failure = match self.wait(self.begin(&put_now), &put_now) {
                Ok(Reply::Put(Some(version))) => return Ok(Replaced::Done(version)),
                // The server has not told the version: it is read.
                Ok(_) => Failure::new(FailureKind::Unknown, "the put of the root has no version"),
                Err(failure) => failure,
            };
            if self.is_given_up(&put_now) {
                return Err(failure);
            }
            let decided = failure.kind == FailureKind::Condition || failure.kind == FailureKind::Unknown;
            if !decided && !self.passes(&put_now, &failure) {
                return Err(failure);
            }
            // Whatever the reply was, the root itself says what happened.
            match self.read_root_for(true) {
                Ok(Some((found, _, version))) if found.nonce == root.nonce => {
                    return Ok(Replaced::Done(version));
                }
                Ok(Some((found, ..))) if is_first || found.nonce != root.previous => {
                    return Ok(Replaced::Lost(Box::new(found)));
                }
                Ok(Some((.., version))) => put_now = put(Condition::Matches(version)),
                Ok(None) if is_first => {}
                Ok(None) => return Err(Self::root_is_gone()),
                Err(failure) => return Err(failure),
            }
            self.rest(&mut patience, &put_now, failure)?;
            self.shared.counters.repeats.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What a writer fails with that finds no root.
    pub(crate) fn root_is_gone() -> Failure {
        Failure::new(FailureKind::NotFound, "the root is gone: the store was deleted")
    }

    fn patience(&self, for_put: bool) -> Patience {
        let now = self.environment.monotonic();
        let until = self.budget_now(for_put).map(|budget| now + budget);
        let began = Some(now);
        let told_at = now + OTHER_BUDGET;
        Patience { for_put, until, began, pause: FIRST_PAUSE, conditions: 0, told_at }
    }

    /// How long a request is repeated from now on; without end if there is no budget.
    fn budget_now(&self, for_put: bool) -> Option<Duration> {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        // A store that is not there yet, or has another name, is not waited for without end.
        let is_other = !is_set(&self.shared.established) || (!for_put && is_set(&self.shared.ended));
        let budget = self.budget.or(is_other.then_some(OTHER_BUDGET));
        let waits = for_put && is_set(&self.shared.journaled) && !is_set(&self.shared.ended);
        budget.filter(|_| !waits)
    }

    /// True if puts are repeated without end.
    pub(crate) fn puts_wait(&self) -> bool {
        self.budget_now(true).is_none()
    }

    /// The end of the patience for deletes, which begins anew with each one that succeeds.
    fn delete_end(&self) -> Option<Duration> {
        let budget = self.budget.map_or(DELETE_BUDGET, |budget| budget.min(DELETE_BUDGET));
        Some(self.environment.monotonic() + budget)
    }

    /// True if a request that failed is made again, as long as its patience lasts.
    fn is_repeated(&self, patience: &mut Patience, request: &Request, failure: &Failure) -> bool {
        if is_odd(request, failure) {
            patience.conditions += 1;
            return patience.conditions < MAX_CONDITION_REPLIES;
        }
        self.passes(request, failure)
    }

    /// True if a request that failed is made again, as long as there is time.
    fn passes(&self, request: &Request, failure: &Failure) -> bool {
        if self.is_given_up(request) {
            return false;
        }
        if let Request::Delete { .. } = request {
            return failure.is_passing() && !self.shared.ended.load(Ordering::Relaxed);
        }
        let refused = failure.kind == FailureKind::Denied && self.shared.established.load(Ordering::Relaxed);
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
        if let (Some(began), Some(until)) = (patience.began.take(), &mut patience.until) {
            *until += self.environment.monotonic().saturating_sub(began);
        }
        // It began when it could wait without end: may it still?
        if patience.until.is_none() {
            patience.until = self.patience(patience.for_put).until;
        }
        if patience.until.is_some_and(|until| self.environment.monotonic() + pause > until) {
            return Err(failure);
        }
        if self.environment.monotonic() >= patience.told_at {
            patience.told_at = Duration::MAX;
            let (device, verb) = (self.name(), request.verb());
            tracing::warn!(device, verb, %failure, "the object store is away; it is waited for");
        }
        tracing::debug!(verb = request.verb(), name = request.name(), %failure, "again");
        while !pause.is_zero() {
            if self.is_given_up(request) {
                return Err(failure);
            }
            let step = pause.min(LOOK_PAUSE);
            self.environment.sleep(step);
            pause -= step;
        }
        patience.pause = (patience.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    fn count(&self, request: &Request) {
        let counter = match request {
            Request::Put { body, .. } => {
                let bytes = body.iter().map(|b| b.len() as u64).sum();
                self.shared.counters.bytes_put.fetch_add(bytes, Ordering::Relaxed);
                &self.shared.counters.puts
            }
            Request::Get { .. } | Request::Head { .. } => &self.shared.counters.gets,
            Request::Delete { .. } => &self.shared.counters.deletes,
            Request::List { .. } => &self.shared.counters.lists,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// True if a server says that the condition of a request failed which has none.
fn is_odd(request: &Request, failure: &Failure) -> bool {
    failure.kind == FailureKind::Condition && !request.changes()
}

/// The failure of a request which has no condition, and of which the server says that it failed.
/// The object may be one that is not there any more.
fn odd(request: &Request, failure: Failure) -> Failure {
    let (verb, name) = (request.verb(), request.name());
    let message = format!(
        "the server says {MAX_CONDITION_REPLIES} times that a condition of a {verb} of {name} failed, which has none: \
         check the server, and what lies between, such as a proxy: {failure}"
    );
    Failure { message, missing: Some(name.to_owned()), ..failure }
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
