//! Two writers of one store, with two changes of turn, at every pair of their requests.

mod support;

use espalier_object::{
    Access, Bucket, ObjectDevice, Present, Request, SimulatedBucket, Ticket, check_objects,
};
use espalier_storage::{AlignedBuf, BLOCK, Device, Result};
use espalier_sync::{Condvar, Mutex};
use std::sync::Arc;
use support::{Ready, block, eager, environment, read, tags};

const BLOCKS: usize = 8;

/// What the blocks hold.
type Content = Vec<u64>;

/// Says which of two writers makes the next request.
#[derive(Debug)]
struct Turns {
    state: Mutex<Turn>,
    changed: Condvar,
}

#[derive(Debug)]
struct Turn {
    /// How many requests which one makes before the other goes on; the last one goes on to its end.
    plan: Vec<(usize, u64)>,
    ended: [bool; 2],
    made: [u64; 2],
}

impl Turns {
    fn new(plan: &[(usize, u64)]) -> Arc<Self> {
        let plan = plan.iter().rev().copied().collect();
        let state = Mutex::new(Turn { plan, ended: [false; 2], made: [0; 2] });
        Arc::new(Self { state, changed: Condvar::new() })
    }

    /// Makes a request when it is the writer's turn.
    fn take<T>(&self, writer: usize, request: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        loop {
            while state.plan.last().is_some_and(|(whose, left)| *left == 0 || state.ended[*whose]) {
                state.plan.pop();
                self.changed.notify_all();
            }
            match state.plan.last_mut() {
                Some((whose, left)) if *whose == writer => {
                    *left -= 1;
                    let over = *left == 0;
                    state.made[writer] += 1;
                    let outcome = request();
                    if over {
                        self.changed.notify_all();
                    }
                    return outcome;
                }
                Some(_) => self.changed.wait(&mut state),
                None => return request(),
            }
        }
    }

    fn end(&self, writer: usize) {
        self.state.lock().ended[writer] = true;
        self.changed.notify_all();
    }
}

#[derive(Debug)]
struct TurnBucket {
    bucket: Arc<SimulatedBucket>,
    turns: Arc<Turns>,
    writer: usize,
}

impl Bucket for TurnBucket {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        Box::new(Ready(self.turns.take(self.writer, || self.bucket.call(request))))
    }
}

/// What became of a writer.
#[derive(Debug, Default)]
struct Fared {
    /// What it found when it took over.
    found: Content,
    /// The last that it made durable in its block.
    synced: u64,
    /// It was fenced, or found that what it read was deleted meanwhile: there is no grace here.
    failed: bool,
}

/// Ends a writer's turns, also when a check fails.
struct End<'a>(&'a TurnBucket);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.turns.end(self.0.writer);
    }
}

/// Takes the store over, and makes 1, 2 and 3 durable in block `writer`, and garbage for compaction
/// behind it.
fn compete(bucket: &Arc<TurnBucket>) -> Fared {
    let writer = bucket.writer;
    let environment = environment(10 + writer as u64);
    let mut fared = Fared::default();
    let _end = End(bucket);
    let opened = ObjectDevice::open(bucket.clone(), &environment, Access::TakeOver, eager(None));
    fared.failed = opened.as_ref().map_or(true, |device| try_to_win(device, writer, &mut fared).is_err());
    fared
}

/// As [`compete`], until something fails.
fn try_to_win(device: &ObjectDevice, writer: usize, fared: &mut Fared) -> Result<()> {
    let mut found = AlignedBuf::zeroed(BLOCKS * BLOCK);
    device.read_at(0, &mut found)?;
    fared.found = tags(&found);
    for number in 1..=3 {
        for place in [writer, 4 + writer] {
            device.write_at((place * BLOCK) as u64, &[&block(number)])?;
        }
        let synced = device.sync();
        assert_eq!(synced.is_err(), device.failure().is_some(), "writer {writer}: {synced:?}");
        synced?;
        fared.synced = number;
        // One that was fenced may delete what was dead before.
        device.step()?;
    }
    device.close()
}

/// Two writers, with two changes of turn at every pair of their requests.
fn race(first: u64, second: u64) -> [u64; 2] {
    let bucket = Arc::new(SimulatedBucket::new(1));
    let bytes = (BLOCKS * BLOCK) as u64;
    ObjectDevice::create(bucket.clone(), &environment(1), bytes, &eager(None), Present::Refuse).unwrap();
    let turns = Turns::new(&[(0, first), (1, second), (0, u64::MAX), (1, u64::MAX)]);
    let writers =
        [0, 1].map(|writer| Arc::new(TurnBucket { bucket: bucket.clone(), turns: turns.clone(), writer }));
    let fared = std::thread::scope(|scope| {
        let threads = writers.each_ref().map(|bucket| scope.spawn(move || compete(bucket)));
        threads.map(|thread| thread.join().unwrap())
    });
    let what = format!("turns at {first} and {second}: {fared:?}");
    assert!(fared.iter().any(|one| !one.failed), "{what}");
    let reader = ObjectDevice::open(bucket.clone(), &environment(3), Access::ReadOnly, eager(None)).unwrap();
    let content = read(&reader, 0, BLOCKS);
    for writer in 0..2 {
        let synced = fared[writer].synced;
        assert_eq!(content[writer], synced, "{what}: what writer {writer} made durable");
        assert_eq!(content[4 + writer], synced, "{what}: what writer {writer} made durable");
    }
    // What the last one found when it took over is all that the other one has ever made durable.
    for (one, other) in [(0, 1), (1, 0)] {
        if fared[other].failed && !fared[one].failed {
            assert_eq!(fared[one].found[other], fared[other].synced, "{what}");
        }
    }
    let report = check_objects(bucket, &environment(4), &eager(None), true).unwrap();
    assert!(report.is_sound(), "{what}: {report:?}");
    turns.state.lock().made
}

#[test]
fn two_writers_take_turns_at_every_pair_of_requests() {
    let (mut races, mut most) = (0, [1, 1]);
    for first in 0.. {
        if first > most[0] {
            break;
        }
        let mut second = 0;
        while second <= most[1] {
            let made = race(first, second);
            most = [most[0].max(made[0]), most[1].max(made[1])];
            (races, second) = (races + 1, second + 1);
        }
    }
    println!("{races} races of writers with up to {most:?} requests");
    assert!(races > 200, "{races} races");
}
