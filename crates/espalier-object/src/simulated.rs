//! Simulated bucket: an object store in memory that behaves as badly as a seed says.
//!
//! Protocol: a request that was submitted is carried out when its ticket is waited for, or at any
//! moment before, in any order. With [`Trouble`], requests fail before or after they took effect,
//! take effect long after their caller gave up, or twice; what is got is damaged or ends early.
//! [`SimulatedBucket::record_points`] keeps the state after its changes; [`BucketPoint::crash`] is
//! the store as another process finds it when the one that made the requests has died there, with
//! its last requests still on their way.
//!
//! Invariants: one seed and one sequence of calls give one outcome; a condition is decided at the
//! moment at which the put takes effect; a version is a digest of the bytes, as ETags are.

use crate::bucket::{Bucket, Condition, Failure, FailureKind, ObjectFacts, Reply, Request, Ticket, Version};
use bytes::Bytes;
use espalier_storage::Random;
use espalier_sync::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// The server's clock at the start, and how far it moves with each request, in milliseconds.
const START_MS: u64 = 1_704_067_200_000;
const TICK_MS: u64 = 5;

/// How often what goes wrong: once in so many requests; never if it is 0.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Trouble {
    /// A request fails and has no effect, now or later.
    pub fail: u64,
    /// A request takes effect and its reply is lost.
    pub lose_reply: u64,
    /// A request seems to fail and takes effect later.
    pub delay: u64,
    /// A request takes effect and later takes effect again.
    pub duplicate: u64,
    /// The server says that it has too much to do.
    pub throttle: u64,
    /// A byte of what is got is wrong.
    pub damage: u64,
    /// What is got ends early.
    pub cut: u64,
    /// A list is an old one.
    pub stale_list: u64,
    /// A put ignores its condition.
    pub ignore_condition: u64,
}

impl Trouble {
    /// Everything that an honest server and a bad network can do.
    pub fn all(one_in: u64) -> Self {
        Self {
            fail: one_in,
            lose_reply: one_in,
            delay: one_in,
            duplicate: one_in,
            throttle: one_in,
            damage: one_in * 4,
            cut: one_in * 4,
            stale_list: 2,
            ignore_condition: 0,
        }
    }
}

#[derive(Debug, Clone)]
struct Stored {
    bytes: Bytes,
    modified: u64,
}

type Objects = BTreeMap<String, Stored>;

#[derive(Debug)]
struct State {
    objects: Objects,
    /// What an old list shows.
    old: Objects,
    /// Requests that were submitted and are not carried out.
    under_way: BTreeMap<u64, Request>,
    /// Outcomes that were not waited for yet.
    outcomes: BTreeMap<u64, Result<Reply, Failure>>,
    /// Requests that may take effect, or take effect again, although no caller waits for them.
    late: Vec<Request>,
    next: u64,
    clock: u64,
    random: Random,
    trouble: Trouble,
    /// No request gets through.
    away: bool,
    changes: u64,
    record_one_in: u64,
    points: Vec<BucketPoint>,
    parallel: Parallel,
}

/// How requests follow each other.
#[derive(Debug, Default)]
struct Parallel {
    /// The longest chain of requests that have ended.
    rounds: u64,
    under_way: usize,
    most_under_way: usize,
}

/// An object store in memory.
#[derive(Debug)]
pub struct SimulatedBucket(Arc<Mutex<State>>);

/// A moment at which the process that makes the requests may die.
#[derive(Debug, Clone)]
pub struct BucketPoint {
    change: u64,
    reach: u64,
    objects: Objects,
    /// Requests that were on their way.
    under_way: Vec<Request>,
    clock: u64,
}

impl BucketPoint {
    /// How many puts and deletes had been carried out.
    pub fn change(&self) -> u64 {
        self.change
    }

    /// How many may have been carried out when another process looks: what began later than so many
    /// changes cannot be there.
    pub fn reach(&self) -> u64 {
        self.reach
    }

    /// How many requests were on their way that may change something.
    pub fn pending(&self) -> usize {
        self.under_way.len()
    }

    /// The store as another process finds it; different seeds differ in what became of the requests
    /// that were on their way. Some are on their way still.
    #[must_use]
    pub fn crash(&self, seed: u64) -> SimulatedBucket {
        let mut random = Random::new(seed);
        let mut under_way = self.under_way.clone();
        random.shuffle(&mut under_way);
        let mut state = State::new(self.objects.clone(), self.clock, random.split());
        for request in under_way {
            match random.below(4) {
                0 => {}
                1 => state.late.push(request),
                _ => drop(state.take_effect(&request)),
            }
        }
        state.changes = 0;
        SimulatedBucket(Arc::new(Mutex::new(state)))
    }
}

impl SimulatedBucket {
    /// An empty one.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(State::new(Objects::new(), START_MS, Random::new(seed)))))
    }

    /// From now on this goes wrong.
    pub fn set_trouble(&self, trouble: Trouble) {
        self.0.lock().trouble = trouble;
    }

    /// From now on no request gets through, or all do again.
    pub fn set_away(&self, away: bool) {
        self.0.lock().away = away;
    }

    /// Moves the server's clock.
    pub fn advance(&self, milliseconds: u64) {
        self.0.lock().clock += milliseconds;
    }

    /// Puts and deletes that were carried out.
    pub fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// From now on keeps the state after one in `one_in` changes (1: after each), or none (0), and
    /// also while puts of the root and deletes are on their way.
    pub fn record_points(&self, one_in: u64) {
        self.0.lock().record_one_in = one_in;
    }

    /// What was kept since the last call, oldest first.
    pub fn take_points(&self) -> Vec<BucketPoint> {
        std::mem::take(&mut self.0.lock().points)
    }

    /// The state of this moment.
    pub fn point(&self) -> BucketPoint {
        self.0.lock().point()
    }

    /// The longest chain of requests so far of which each began when the one before had been waited
    /// for: how many times the delay of a request its callers have waited, if they do nothing else.
    pub fn rounds(&self) -> u64 {
        self.0.lock().parallel.rounds
    }

    /// The most requests that were under way at a time since the last call.
    pub fn take_most_under_way(&self) -> usize {
        let parallel = &mut self.0.lock().parallel;
        std::mem::replace(&mut parallel.most_under_way, parallel.under_way)
    }

    /// Names and lengths of all objects.
    pub fn objects(&self) -> Vec<(String, u64)> {
        let state = self.0.lock();
        state.objects.iter().map(|(name, stored)| (name.clone(), stored.bytes.len() as u64)).collect()
    }

    /// Deletes an object, as an accident would.
    pub fn remove(&self, name: &str) {
        self.0.lock().objects.remove(name);
    }

    /// Cuts an object, as an accident would.
    pub fn cut(&self, name: &str, bytes: usize) {
        if let Some(stored) = self.0.lock().objects.get_mut(name) {
            stored.bytes.truncate(bytes);
        }
    }

    /// Flips the bits of `mask` in byte `at` of an object; false if it has no such byte.
    pub fn flip(&self, name: &str, at: usize, mask: u8) -> bool {
        let mut state = self.0.lock();
        let Some(stored) = state.objects.get_mut(name).filter(|stored| at < stored.bytes.len()) else {
            return false;
        };
        let mut bytes = stored.bytes.to_vec();
        bytes[at] ^= mask;
        stored.bytes = bytes.into();
        true
    }
}

impl Bucket for SimulatedBucket {
    fn name(&self) -> &str {
        "simulated bucket"
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        let mut state = self.0.lock();
        let id = state.next;
        state.next += 1;
        let decides = match &request {
            Request::Put { condition, .. } => *condition != Condition::None,
            Request::Delete { .. } => true,
            _ => false,
        };
        state.under_way.insert(id, request);
        let round = state.parallel.begin();
        let one_in = state.record_one_in;
        if decides && state.random.one_in(one_in) {
            let point = BucketPoint { reach: state.changes + 1, ..state.point() };
            state.points.push(point);
        }
        // Any of those that are under way may be carried out at any time.
        while state.random.one_in(3) && !state.under_way.is_empty() {
            let ids: Vec<u64> = state.under_way.keys().copied().collect();
            let chosen = *state.random.choose(&ids);
            state.carry_out(chosen);
        }
        Box::new(SimulatedTicket { state: Arc::clone(&self.0), id, round })
    }
}

struct SimulatedTicket {
    state: Arc<Mutex<State>>,
    id: u64,
    /// Its place in the longest chain of requests that it ends.
    round: u64,
}

impl Ticket for SimulatedTicket {
    fn wait(self: Box<Self>) -> Result<Reply, Failure> {
        let mut state = self.state.lock();
        state.carry_out(self.id);
        state.parallel.rounds = state.parallel.rounds.max(self.round);
        let gone = || Err(Failure::new(FailureKind::Unknown, "the simulation lost a request"));
        state.outcomes.remove(&self.id).unwrap_or_else(gone)
    }
}

impl Drop for SimulatedTicket {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.parallel.under_way -= 1;
        state.outcomes.remove(&self.id);
        // Nothing comes of a get whose caller is gone; a change may still take effect.
        if state.under_way.get(&self.id).is_some_and(|request| !request.changes()) {
            state.under_way.remove(&self.id);
        }
    }
}

impl Parallel {
    /// A request begins; returns its round.
    fn begin(&mut self) -> u64 {
        self.under_way += 1;
        self.most_under_way = self.most_under_way.max(self.under_way);
        self.rounds + 1
    }
}

impl State {
    fn new(objects: Objects, clock: u64, random: Random) -> Self {
        Self {
            old: objects.clone(),
            objects,
            under_way: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            late: Vec::new(),
            next: 0,
            clock,
            random,
            trouble: Trouble::default(),
            away: false,
            changes: 0,
            record_one_in: 0,
            points: Vec::new(),
            parallel: Parallel::default(),
        }
    }

    fn point(&self) -> BucketPoint {
        let under_way = self.under_way.values().chain(&self.late).filter(|request| request.changes());
        BucketPoint {
            change: self.changes,
            reach: self.changes,
            objects: self.objects.clone(),
            under_way: under_way.cloned().collect(),
            clock: self.clock,
        }
    }

    /// Carries out a request that is under way, if it still is.
    fn carry_out(&mut self, id: u64) {
        while self.random.one_in(6) && !self.late.is_empty() {
            let which = self.random.index(self.late.len());
            let request = self.late.swap_remove(which);
            // Nothing waits for it.
            let _ = self.take_effect(&request);
        }
        if let Some(request) = self.under_way.remove(&id) {
            let outcome = self.decide(&request);
            self.outcomes.insert(id, outcome);
        }
    }

    /// What the caller gets, and whether the request takes effect.
    fn decide(&mut self, request: &Request) -> Result<Reply, Failure> {
        let lost = |what: &str| Err(Failure::new(FailureKind::Unknown, format!("simulated: {what}")));
        let trouble = self.trouble;
        if self.away || self.random.one_in(trouble.fail) {
            return lost("the request did not arrive");
        }
        if self.random.one_in(trouble.throttle) {
            return Err(Failure::new(FailureKind::Throttled, "simulated: 503 SlowDown"));
        }
        if request.changes() && self.random.one_in(trouble.delay) {
            self.late.push(request.clone());
            return lost("no reply, and it is still on its way");
        }
        let outcome = self.take_effect(request);
        if request.changes() && self.random.one_in(trouble.duplicate) {
            self.late.push(request.clone());
        }
        if self.random.one_in(trouble.lose_reply) {
            return lost("the reply was lost");
        }
        match outcome {
            Ok(Reply::Got(bytes, facts)) if !bytes.is_empty() && self.random.one_in(trouble.damage) => {
                let mut bytes = bytes.to_vec();
                let at = self.random.index(bytes.len());
                bytes[at] ^= 1 << self.random.below(8);
                Ok(Reply::Got(bytes.into(), facts))
            }
            Ok(Reply::Got(bytes, facts)) if self.random.one_in(trouble.cut) => {
                let length = self.random.index(bytes.len());
                Ok(Reply::Got(bytes.slice(..length), facts))
            }
            outcome => outcome,
        }
    }

    fn take_effect(&mut self, request: &Request) -> Result<Reply, Failure> {
        self.clock += TICK_MS;
        let outcome = match request {
            Request::Put { name, body, condition } => self.put(name, body, condition),
            Request::Get { name, range } => {
                let stored = self.stored(name)?;
                let facts = facts(name, stored);
                let all = stored.bytes.len();
                let inside = |range: &Range<u64>| range.start as usize..all.min(range.end as usize);
                let bounds = range.as_ref().map_or(0..all, inside);
                if range.is_some() && bounds.is_empty() {
                    let what =
                        format!("simulated: 416 Range Not Satisfiable: {name} is damaged, it ends at {all}");
                    return Err(Failure::new(FailureKind::Unsupported, what));
                }
                Ok(Reply::Got(stored.bytes.slice(bounds), facts))
            }
            Request::Head { name } => Ok(Reply::Facts(facts(name, self.stored(name)?))),
            Request::Delete { name } => {
                self.objects.remove(name);
                Ok(Reply::Deleted)
            }
            Request::List { folder } => {
                let objects =
                    if self.random.one_in(self.trouble.stale_list) { &self.old } else { &self.objects };
                let inside = |name: &str| {
                    folder.is_empty()
                        || name.strip_prefix(folder.as_str()).is_some_and(|rest| rest.starts_with('/'))
                };
                let listed = objects.iter().filter(|(name, _)| inside(name));
                Ok(Reply::Listed(listed.map(|(name, stored)| facts(name, stored)).collect()))
            }
        };
        if request.changes() {
            self.changes += 1;
            if self.random.one_in(self.record_one_in) {
                let point = self.point();
                self.points.push(point);
            }
            if self.random.one_in(20) {
                self.old = self.objects.clone();
            }
        }
        outcome
    }

    fn put(&mut self, name: &str, body: &[Bytes], condition: &Condition) -> Result<Reply, Failure> {
        let present = self.objects.get(name).map(|stored| version(&stored.bytes));
        let holds = match condition {
            Condition::None => true,
            Condition::Absent => present.is_none(),
            Condition::Matches(version) => present.as_ref() == Some(version),
        };
        if !holds && !self.random.one_in(self.trouble.ignore_condition) {
            return Err(Failure::new(FailureKind::Condition, "simulated: 412 Precondition Failed"));
        }
        let bytes = Bytes::from(body.concat());
        let version = version(&bytes);
        self.objects.insert(name.to_owned(), Stored { bytes, modified: self.clock });
        Ok(Reply::Put(Some(version)))
    }

    fn stored(&self, name: &str) -> Result<&Stored, Failure> {
        let missing = || Failure::new(FailureKind::NotFound, format!("simulated: there is no {name}"));
        self.objects.get(name).ok_or_else(missing)
    }
}

fn version(bytes: &[u8]) -> Version {
    Version(format!("{:032x}", xxhash_rust::xxh3::xxh3_128(bytes)))
}

fn facts(name: &str, stored: &Stored) -> ObjectFacts {
    ObjectFacts {
        name: name.to_owned(),
        bytes: stored.bytes.len() as u64,
        version: Some(version(&stored.bytes)),
        modified: stored.modified,
    }
}
