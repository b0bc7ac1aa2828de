use super::*;
use espalier_storage::SimulatedEnvironment;
use espalier_sync::Mutex;
use std::sync::Weak;

/// A store that is away, and calls something before one of its requests.
struct Away {
    clock: Arc<SimulatedEnvironment>,
    asked: AtomicU64,
    requests: Mutex<Weak<Requests>>,
    event: (u64, fn(&Requests)),
    at: Mutex<Option<Duration>>,
}

impl std::fmt::Debug for Away {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Away")
    }
}

struct NoReply;

impl Ticket for NoReply {
    fn wait(self: Box<Self>) -> Result<Reply, Failure> {
        Err(Failure::new(FailureKind::Unknown, "away"))
    }
}

impl Bucket for Away {
    fn name(&self) -> &str {
        "away"
    }

    fn submit(&self, _: Request) -> Box<dyn Ticket> {
        let (number, event) = self.event;
        if self.asked.fetch_add(1, Ordering::Relaxed) == number {
            *self.at.lock() = Some(self.clock.monotonic());
            event(&self.requests.lock().upgrade().unwrap());
        }
        Box::new(NoReply)
    }
}

/// How long a request is repeated after an event, which comes after some hours if the request waits
/// so long; `None` if it ends before.
fn waits_after(
    event: fn(&Requests),
    budget: Option<Duration>,
    journaled: bool,
    request: &Request,
) -> Option<Duration> {
    let clock = Arc::new(SimulatedEnvironment::new(1));
    let away = Arc::new(Away {
        clock: clock.clone(),
        asked: AtomicU64::new(0),
        requests: Mutex::default(),
        event: (5000, event),
        at: Mutex::default(),
    });
    let requests = Arc::new(Requests::new(away.clone(), clock.clone(), budget));
    requests.establish();
    requests.set_journaled(journaled);
    *away.requests.lock() = Arc::downgrade(&requests);
    assert!(requests.call(request).is_err());
    let at = *away.at.lock();
    Some(clock.monotonic() - at?)
}

#[test]
fn what_waits_without_end_ends_in_time_when_it_may_wait_no_more() {
    let put = Request::Put { name: "data/1".into(), body: Vec::new(), condition: Condition::None };
    let get = Request::Get { name: "data/1".into(), range: None };
    let budget = Some(Duration::from_secs(40));
    let is_about = |time: Option<Duration>, seconds: u64| {
        time.is_some_and(|time| time.as_secs() <= seconds && time.as_secs() + 6 >= seconds)
    };
    // A journal: its end, or its failure, gives the put a budget.
    assert!(is_about(waits_after(Requests::end, budget, true, &put), 40));
    assert!(is_about(waits_after(|requests| requests.set_journaled(false), budget, true, &put), 40));
    assert_eq!(waits_after(Requests::end, budget, true, &get), None);
    assert_eq!(waits_after(Requests::end, budget, false, &put), None);
    // Without a budget a get ends with the device.
    assert!(is_about(waits_after(Requests::end, None, false, &get), 60));
}

/// A server that says of every request that its condition failed.
#[derive(Debug, Default)]
struct Odd(AtomicU64);

struct Refused;

impl Ticket for Refused {
    fn wait(self: Box<Self>) -> Result<Reply, Failure> {
        Err(Failure::new(FailureKind::Condition, "412 Precondition Failed"))
    }
}

impl Bucket for Odd {
    fn name(&self) -> &str {
        "odd"
    }

    fn submit(&self, _: Request) -> Box<dyn Ticket> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::new(Refused)
    }
}

#[test]
fn a_condition_that_no_request_had_is_tried_again_with_pauses_and_has_an_end() {
    let clock = Arc::new(SimulatedEnvironment::new(1));
    let server = Arc::new(Odd::default());
    for budget in [None, Some(Duration::from_secs(60))] {
        let requests = Requests::new(server.clone(), clock.clone(), budget);
        requests.establish();
        requests.set_journaled(true);
        let get = Request::Get { name: "data/1".into(), range: None };
        let (asked, began) = (server.0.load(Ordering::Relaxed), clock.monotonic());
        let failure = requests.call(&get).unwrap_err();
        assert_eq!(server.0.load(Ordering::Relaxed) - asked, u64::from(MAX_CONDITION_REPLIES));
        let waited = clock.monotonic() - began;
        assert!(waited > Duration::from_secs(5) && waited < Duration::from_secs(60), "{waited:?}");
        assert!(failure.message.contains("data/1") && failure.message.contains("a proxy"), "{failure}");
        assert_eq!(failure.missing.as_deref(), Some("data/1"));
        // One that a put had is decided by its caller, at once.
        let asked = server.0.load(Ordering::Relaxed);
        let put = Request::Put { name: "probe/1".into(), body: Vec::new(), condition: Condition::Absent };
        assert!(requests.call(&put).is_err());
        assert_eq!(server.0.load(Ordering::Relaxed) - asked, 1);
    }
}

/// A forged root may be the last one that can be read.
#[test]
fn no_root_is_put_that_no_reader_would_take() {
    use crate::{Access, ObjectDevice, Options, Present, SimulatedBucket};
    let environment: Arc<dyn Environment> = Arc::new(SimulatedEnvironment::new(1));
    let forges: [fn(&mut Root); 2] = [|root| root.epoch = u32::MAX - 1, |root| root.generation = 1 << 62];
    for forge in forges {
        let bucket = Arc::new(SimulatedBucket::new(1));
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &Options::default(), Present::Refuse)
            .unwrap();
        let requests = Requests::new(bucket.clone(), Arc::clone(&environment), None);
        let (root, _, version) = requests.read_root().unwrap().unwrap();
        let mut forged = Root { previous: root.nonce, nonce: root.nonce ^ 1, ..root };
        forge(&mut forged);
        let is_put = requests.replace_root(&forged, &Condition::Matches(version)).unwrap();
        assert!(matches!(is_put, Replaced::Done(_)));
        let open = |access| ObjectDevice::open(bucket.clone(), &environment, access, Options::default());
        for access in [Access::Write, Access::TakeOver] {
            let error = open(access).unwrap_err();
            assert!(error.to_string().contains("counts to its last"), "{error}");
        }
        let (left, ..) = requests.read_root().unwrap().unwrap();
        assert_eq!((left.epoch, left.generation), (forged.epoch, forged.generation));
        open(Access::ReadOnly).unwrap();
    }
}
