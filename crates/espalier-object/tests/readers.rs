//! Readers that follow a writer: new states, those of before, and roots that are no new states.

mod support;

use espalier_object::{
    Access, Bucket, Failure, FailureKind, ObjectDevice, Options, Present, Request, SimulatedBucket, Ticket,
    Trouble, check_objects,
};
use espalier_storage::{AlignedBuf, BLOCK, Device, Environment, ErrorKind, Random, SimulatedEnvironment};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Ready, block, options, read, seeds, tags, write};

#[test]
fn a_reader_follows_and_keeps_what_it_had_for_the_grace_time() {
    let simulated = Arc::new(SimulatedEnvironment::new(4));
    let environment: Arc<dyn Environment> = simulated.clone();
    let bucket = Arc::new(SimulatedBucket::new(4));
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let open = |access| {
        let options = Options { cache_bytes: 0, ..options() };
        ObjectDevice::open(bucket.clone(), &environment, access, options).unwrap()
    };
    let writer = open(Access::Write);
    write(&writer, 0, &[1; 100]);
    writer.sync().unwrap();
    let first = open(Access::ReadOnly);
    assert!(first.newer().unwrap().is_none());
    let pass = |seconds: u64| {
        bucket.advance(seconds * 1000);
        simulated.advance(Duration::from_secs(seconds));
        while writer.step().unwrap() {}
    };
    // A lease that is renewed is no new state.
    let puts = writer.request_counts().puts;
    pass(30);
    assert!(writer.request_counts().puts > puts);
    assert!(first.newer().unwrap().is_none());
    assert!(!first.is_replaced().unwrap());
    write(&writer, 0, &[2; 100]);
    writer.sync().unwrap();
    assert!(first.is_replaced().unwrap());
    let second = first.newer().unwrap().unwrap();
    assert!(!second.is_replaced().unwrap());
    assert_eq!(read(&second, 0, 100), [2; 100]);
    assert!(second.newer().unwrap().is_none());
    assert_eq!(second.write_at(0, &[&AlignedBuf::zeroed(BLOCK)]).unwrap_err().kind, ErrorKind::ReadOnly);
    for _ in 0..19 {
        pass(30);
        assert_eq!(read(&first, 0, 100), [1; 100]);
    }
    for _ in 0..10 {
        pass(60);
    }
    let error = first.read_at(0, &mut AlignedBuf::zeroed(BLOCK)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Gone, "{error}");
    assert!(error.to_string().contains("mount again"), "{error}");
    // It stays so, also when the store is away.
    bucket.set_away(true);
    assert!(first.read_at(0, &mut AlignedBuf::zeroed(BLOCK)).is_err());
    bucket.set_away(false);
    assert_eq!(first.read_at(0, &mut AlignedBuf::zeroed(BLOCK)).unwrap_err().kind, ErrorKind::Gone);
    assert_eq!(read(&second, 0, 100), [2; 100]);
    // Another store in its place is not followed.
    writer.close().unwrap();
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Replace).unwrap();
    assert_eq!(second.newer().unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(second.is_replaced().unwrap_err().kind, ErrorKind::NotFound);
    bucket.remove("root");
    assert_eq!(second.newer().unwrap_err().kind, ErrorKind::NotFound);
}

/// Readers that follow at any time, on a bad network, while compaction moves and deletes. The
/// oracle: each state that a reader opens is the content at some sync, never an older one than
/// before.
#[test]
fn what_readers_find_is_what_some_sync_made_durable() {
    for seed in seeds(&[], 12) {
        println!("ESPALIER_SEED={seed}");
        let mut random = Random::new(seed);
        let simulated = Arc::new(SimulatedEnvironment::new(seed));
        let environment: Arc<dyn Environment> = simulated.clone();
        let bucket = Arc::new(SimulatedBucket::new(seed));
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
        let open = |access| {
            let options = Options { probe: false, ..options() };
            ObjectDevice::open(bucket.clone(), &environment, access, options).unwrap()
        };
        let writer = open(Access::TakeOver);
        bucket.set_trouble(Trouble::all(20));
        let mut model = vec![0u64; 300];
        let mut states = vec![model.clone()];
        let mut readers: Vec<(ObjectDevice, usize)> = (0..3).map(|_| (open(Access::ReadOnly), 0)).collect();
        for tag in 1..300u64 {
            let start = random.below(280);
            let blocks = 1 + random.below(20);
            write(&writer, start, &vec![tag; blocks as usize]);
            model[start as usize..(start + blocks) as usize].fill(tag);
            if random.one_in(3) {
                writer.sync().unwrap();
                states.push(model.clone());
            }
            if random.one_in(5) {
                bucket.advance(20_000);
                simulated.advance(Duration::from_secs(20));
                writer.step().unwrap();
            }
            let chosen = random.index(readers.len());
            let (reader, before) = &mut readers[chosen];
            if let Some(newer) = reader.newer().unwrap() {
                let found = read(&newer, 0, 300);
                let state = states.iter().rposition(|state| *state == found);
                assert!(state.is_some_and(|state| state >= *before), "seed {seed}: no such state");
                (*reader, *before) = (newer, state.unwrap());
            }
        }
    }
}

/// Readers that stay in one state while the writer compacts and deletes. The oracle: what a reader
/// gets is what its state had; errors come only when the grace time is nearly over.
#[test]
fn slow_readers_get_what_their_state_had_or_an_error() {
    let (mut gone, mut old) = (0, 0);
    for seed in seeds(&[], 12) {
        println!("ESPALIER_SEED={seed}");
        let mut random = Random::new(seed);
        let simulated = Arc::new(SimulatedEnvironment::new(seed));
        let environment: Arc<dyn Environment> = simulated.clone();
        let bucket = Arc::new(SimulatedBucket::new(seed));
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
        let open = |access| {
            let options =
                Options { probe: false, cache_bytes: 0, segment_blocks: 8, budget: None, ..options() };
            ObjectDevice::open(bucket.clone(), &environment, access, options).unwrap()
        };
        let writer = open(Access::TakeOver);
        bucket.set_trouble(Trouble { damage: 0, cut: 0, ..Trouble::all(20) });
        let (mut model, mut seconds) = (vec![0u64; 100], 0);
        let mut readers: Vec<(ObjectDevice, Vec<u64>, u64)> = Vec::new();
        for tag in 1..400u64 {
            let start = random.below(90);
            write(&writer, start, &[tag; 10]);
            model[start as usize..start as usize + 10].fill(tag);
            if random.one_in(3) {
                writer.sync().unwrap();
                if readers.len() < 5 || random.one_in(6) {
                    readers.truncate(4);
                    readers.insert(0, (open(Access::ReadOnly), model.clone(), seconds));
                }
            }
            if random.one_in(8) {
                seconds += 100;
                bucket.advance(100_000);
                simulated.advance(Duration::from_secs(100));
                while writer.step().unwrap() {}
            }
            let Some((reader, state, since)) = readers.get(random.index(5)) else { continue };
            let (first, blocks) = (random.index(95), 1 + random.index(5));
            let mut bytes = AlignedBuf::zeroed(blocks * BLOCK);
            let age = seconds - since;
            match reader.read_at((first * BLOCK) as u64, &mut bytes) {
                Ok(()) => {
                    assert_eq!(tags(&bytes), state[first..first + blocks], "seed {seed}, {age} s");
                    old += u64::from(age >= 300);
                }
                Err(error) => {
                    assert!(age >= 500, "seed {seed}, {age} s: {error}");
                    assert_eq!(error.kind, ErrorKind::Gone, "{error}");
                    gone += 1;
                }
            }
        }
    }
    assert!(gone > 20 && old > 20, "{gone} reads found nothing, {old} reads of old states were right");
}

/// The oracle: an error says that the writer deleted something only if the newest state does not
/// need it.
#[test]
fn what_the_newest_state_needs_and_has_not_is_damage() {
    let environment = support::environment(6);
    let bucket = Arc::new(SimulatedBucket::new(6));
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let open = |access| {
        let options = Options { cache_bytes: 0, ahead_bytes: 0, ..options() };
        ObjectDevice::open(bucket.clone(), &environment, access, options).unwrap()
    };
    let writer = open(Access::Write);
    write(&writer, 0, &[1; 10]);
    writer.sync().unwrap();
    let reader = open(Access::ReadOnly);
    let data = bucket.objects().into_iter().find(|(name, _)| name.starts_with("data/")).unwrap().0;
    bucket.remove(&data);
    let read_one = || reader.read_at(0, &mut AlignedBuf::zeroed(BLOCK)).unwrap_err();
    // No newer state.
    assert_eq!(read_one().kind, ErrorKind::Io);
    // A newer state, which needs the object too.
    write(&writer, 100, &[2]);
    writer.sync().unwrap();
    assert!(reader.is_replaced().unwrap());
    assert_eq!(read_one().kind, ErrorKind::Io);
    let report = check_objects(bucket.clone(), &environment, &options(), false).unwrap();
    assert_eq!(report.missing, [data.as_str()]);
    // A newer state, which does not.
    write(&writer, 0, &[3; 10]);
    writer.sync().unwrap();
    let error = read_one();
    assert_eq!(error.kind, ErrorKind::Gone);
    assert!(error.to_string().contains(&data), "{error}");
}

/// A proxy that answers gets of objects that are gone as if they had a condition.
#[derive(Debug)]
struct Proxy(Arc<SimulatedBucket>);

impl Bucket for Proxy {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        match self.0.call(request) {
            Err(failure) if failure.kind == FailureKind::NotFound => {
                Box::new(Ready(Err(Failure::new(FailureKind::Condition, "412 Precondition Failed"))))
            }
            outcome => Box::new(Ready(outcome)),
        }
    }
}

#[test]
fn a_condition_that_a_get_never_had_hides_no_deleted_state() {
    for budget in [Some(Duration::from_secs(60)), None] {
        let environment = support::environment(9);
        let bucket = Arc::new(SimulatedBucket::new(9));
        ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
        let options = Options { budget, cache_bytes: 0, ahead_bytes: 0, ..options() };
        let writer =
            ObjectDevice::open(bucket.clone(), &environment, Access::Write, options.clone()).unwrap();
        write(&writer, 0, &[1; 10]);
        writer.sync().unwrap();
        let proxy = Arc::new(Proxy(bucket.clone()));
        let reader = ObjectDevice::open(proxy, &environment, Access::ReadOnly, options).unwrap();
        let data = bucket.objects().into_iter().find(|(name, _)| name.starts_with("data/")).unwrap().0;
        bucket.remove(&data);
        let read_one = || reader.read_at(0, &mut AlignedBuf::zeroed(BLOCK)).unwrap_err();
        let error = read_one();
        assert!(error.kind == ErrorKind::Io && error.to_string().contains("412"), "{error}");
        write(&writer, 0, &[2; 10]);
        writer.sync().unwrap();
        let error = read_one();
        assert!(error.kind == ErrorKind::Gone && error.to_string().contains(&data), "{error}");
    }
}

/// A reader that misses many objects reads the newest state once.
#[test]
fn what_newer_states_do_not_need_is_found_out_once() {
    let environment = support::environment(8);
    let bucket = Arc::new(SimulatedBucket::new(8));
    let options = Options { cache_bytes: 0, ahead_bytes: 0, ..options() };
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options, Present::Refuse).unwrap();
    let open = |access| ObjectDevice::open(bucket.clone(), &environment, access, options.clone()).unwrap();
    let writer = open(Access::Write);
    write(&writer, 0, &[1; 640]);
    writer.sync().unwrap();
    let reader = open(Access::ReadOnly);
    let old: Vec<String> = bucket.objects().into_iter().map(|(name, _)| name).collect();
    write(&writer, 0, &[2; 640]);
    writer.sync().unwrap();
    old.iter().filter(|name| name.starts_with("data/")).for_each(|name| bucket.remove(name));
    let before = reader.request_counts().gets;
    for block in (0..640).step_by(32) {
        let error = reader.read_at(block * BLOCK as u64, &mut AlignedBuf::zeroed(BLOCK)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Gone, "{error}");
    }
    let gets = reader.request_counts().gets - before;
    // A read looks its block up a few times.
    assert!(gets < 20 * 5 + 10, "{gets} gets");
}

/// A bucket where something happens when the first object with blocks is asked for.
struct Meanwhile(Arc<SimulatedBucket>, Mutex<Option<Box<dyn FnOnce() + Send>>>);

impl fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Meanwhile")
    }
}

impl Bucket for Meanwhile {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        if request.name().starts_with("data/") {
            self.1.lock().unwrap().take().into_iter().for_each(|happens| happens());
        }
        self.0.submit(request)
    }
}

#[test]
fn a_check_that_is_slower_than_the_grace_time_says_so() {
    let simulated = Arc::new(SimulatedEnvironment::new(7));
    let environment: Arc<dyn Environment> = simulated.clone();
    let bucket = Arc::new(SimulatedBucket::new(7));
    ObjectDevice::create(bucket.clone(), &environment, 1 << 30, &options(), Present::Refuse).unwrap();
    let writer = ObjectDevice::open(bucket.clone(), &environment, Access::Write, options()).unwrap();
    for tag in 0..40 {
        writer.write_at(tag * BLOCK as u64, &[&block(tag)]).unwrap();
        writer.sync().unwrap();
    }
    let server = bucket.clone();
    let deletes = move || {
        write(&writer, 0, &[9; 100]);
        writer.sync().unwrap();
        for _ in 0..20 {
            server.advance(60_000);
            simulated.advance(Duration::from_secs(60));
            while writer.step().unwrap() {}
        }
        writer.close().unwrap();
    };
    let watched = Arc::new(Meanwhile(bucket.clone(), Mutex::new(Some(Box::new(deletes)))));
    let options = Options { ahead_bytes: 0, ..options() };
    let error = check_objects(watched, &environment, &options, false).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Gone, "{error}");
    let report = check_objects(bucket, &environment, &options, true).unwrap();
    assert!(report.is_sound(), "{report:?}");
}
