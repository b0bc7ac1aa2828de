//! Renewals of the lease that fail, or of which nothing is known: the writer goes on when the store
//! is there again, and on what its renewal has put if that took effect.

mod support;

use espalier_object::{
    Access, Bucket, Failure, FailureKind, ObjectDevice, Options, Present, Request, SimulatedBucket, Ticket,
    check_objects,
};
use espalier_storage::{Device, Environment, SimulatedEnvironment};
use espalier_sync::Mutex;
use std::sync::Arc;
use std::time::Duration;
use support::{Outage, Ready, environment, options, read, write};

/// A store whose replies are lost while the writer renews.
#[derive(Debug)]
struct Lossy {
    bucket: Arc<SimulatedBucket>,
    state: Mutex<Losses>,
}

#[derive(Debug, Default)]
struct Losses {
    is_losing: bool,
    /// Whether a put of the root takes effect before its reply is lost.
    takes_effect: bool,
    /// Puts of the root that did not, in their order.
    late: Vec<Request>,
    /// The number of the request before which these arrive, counted since no reply is lost.
    arrives_at: Option<u64>,
    requests: u64,
}

impl Bucket for Lossy {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        let mut state = self.state.lock();
        if state.is_losing {
            let is_root = request.name() == "root" && request.changes();
            match is_root && state.takes_effect {
                true => drop(self.bucket.call(request)),
                false if is_root => state.late.push(request),
                false => {}
            }
            return Box::new(Ready(Err(Failure::new(FailureKind::Unknown, "the reply was lost"))));
        }
        if state.arrives_at == Some(state.requests) {
            state.late.drain(..).for_each(|late| drop(self.bucket.call(late)));
        }
        state.requests += 1;
        self.bucket.submit(request)
    }
}

/// A writer with a renewal of which nothing is known.
struct Case {
    store: Arc<Lossy>,
    clock: Arc<SimulatedEnvironment>,
    environment: Arc<dyn Environment>,
    options: Options,
    device: ObjectDevice,
}

impl Case {
    fn new(takes_effect: bool, arrives_at: Option<u64>) -> Self {
        let bucket = Arc::new(SimulatedBucket::new(1));
        let clock = Arc::new(SimulatedEnvironment::new(1));
        let environment: Arc<dyn Environment> = clock.clone();
        let options = Options { probe: false, grace: Duration::ZERO, cache_bytes: 0, ..options() };
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
        let store = Arc::new(Lossy { bucket, state: Mutex::default() });
        let device = ObjectDevice::open(store.clone(), &environment, Access::Write, options.clone()).unwrap();
        write(&device, 0, &[1, 1]);
        device.sync().unwrap();
        let case = Self { store, clock, environment, options, device };
        case.lose_a_renewal(takes_effect);
        {
            let state = &mut *case.store.state.lock();
            (state.requests, state.arrives_at) = (0, arrives_at);
        }
        case
    }

    fn lose_a_renewal(&self, takes_effect: bool) {
        self.clock.advance(Duration::from_secs(30));
        {
            let state = &mut *self.store.state.lock();
            (state.is_losing, state.takes_effect) = (true, takes_effect);
        }
        assert!(self.device.step().is_err());
        self.store.state.lock().is_losing = false;
        assert_eq!(self.device.failure(), None);
    }

    /// The device works, and another process finds what it has synced.
    fn works(&self, what: &str) {
        for tag in 2..5 {
            write(&self.device, 0, &[tag]);
            self.device.sync().unwrap_or_else(|error| panic!("{what}: {error}"));
            self.clock.advance(Duration::from_secs(30));
            while self.device.step().unwrap_or_else(|error| panic!("{what}: {error}")) {}
            let reader = self.open(Access::ReadOnly);
            assert_eq!(read(&reader, 0, 2), [tag, 1], "{what}");
        }
        self.device.close().unwrap();
        let report =
            check_objects(self.store.bucket.clone(), &self.environment, &self.options, true).unwrap();
        assert!(report.is_sound() && report.orphans.is_empty(), "{what}: {report:?}");
    }

    fn open(&self, access: Access) -> ObjectDevice {
        let bucket = self.store.bucket.clone();
        ObjectDevice::open(bucket, &environment(9), access, self.options.clone()).unwrap()
    }
}

#[test]
fn a_sync_goes_on_from_whatever_became_of_a_renewal() {
    Case::new(true, None).works("it took effect");
    Case::new(false, None).works("it never arrives");
    for at in 0.. {
        let case = Case::new(false, Some(at));
        case.works(&format!("it arrives before request {at}"));
        if case.store.state.lock().requests <= at {
            assert!(at > 5, "{at}");
            break;
        }
    }
}

/// Another writer takes over while nothing is known of a renewal, before and after that arrives.
#[test]
fn an_unknown_renewal_hides_no_other_writer() {
    for (takes_effect, arrives_at) in [(true, None), (false, None), (false, Some(0)), (false, Some(1))] {
        let case = Case::new(takes_effect, arrives_at);
        let other = case.open(Access::TakeOver);
        write(&other, 1, &[7]);
        other.sync().unwrap();
        write(&case.device, 0, &[2]);
        assert!(case.device.sync().is_err());
        assert!(case.device.is_fenced(), "{:?}", case.device.failure());
        assert_eq!(read(&case.open(Access::ReadOnly), 0, 2), [1, 7]);
        other.sync().unwrap();
    }
}

/// An idle writer, while its store is away, or refuses its credentials, for longer than any budget.
#[test]
fn an_idle_writer_outlives_a_store_that_is_away() {
    for kind in [FailureKind::Unknown, FailureKind::Denied, FailureKind::Throttled] {
        let bucket = Arc::new(SimulatedBucket::new(2));
        let clock = Arc::new(SimulatedEnvironment::new(2));
        let environment: Arc<dyn Environment> = clock.clone();
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
        let store = Outage::new(bucket, clock.clone());
        let device = ObjectDevice::open(store.clone(), &environment, Access::Write, options()).unwrap();
        write(&device, 0, &[1]);
        device.sync().unwrap();
        store.begin(600, kind);
        let mut failed = 0;
        while store.lasts() {
            clock.advance(Duration::from_secs(10));
            failed += u32::from(device.step().is_err());
        }
        assert!(failed > 0, "the renewals have to fail");
        assert_eq!(device.failure(), None);
        device.step().unwrap();
        write(&device, 0, &[2]);
        device.sync().unwrap();
        // A sync that fails is another thing: what it was to make durable may be lost.
        store.begin(600, kind);
        write(&device, 0, &[3]);
        assert!(device.sync().is_err() && device.failure().is_some());
    }
}
