//! The writer dies at every request of every short history, and all that may become of the request
//! is tried.

mod support;

use espalier_object::{
    Access, Bucket, Failure, FailureKind, ObjectDevice, Options, Present, Request, SimulatedBucket, Ticket,
    check_objects,
};
use espalier_storage::{BLOCK, Device, Result, SimulatedDevice};
use espalier_sync::Mutex;
use std::sync::Arc;
use support::{Ready, block, eager, environment, read, write};

const BLOCKS: usize = 8;

/// What the blocks hold.
type Content = Vec<u64>;

/// A call, of which histories are made.
#[derive(Debug, Clone, Copy)]
enum Call {
    Write { start: u64, blocks: u64 },
    Discard { start: u64, blocks: u64 },
    Sync,
    Step,
}

const CALLS: [Call; 5] = [
    Call::Write { start: 0, blocks: 3 },
    Call::Write { start: 2, blocks: 5 },
    Call::Discard { start: 1, blocks: 3 },
    Call::Sync,
    Call::Step,
];

/// What becomes of the request at which its process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    NeverArrives,
    TakesEffect,
    /// Before this request of the next process.
    ArrivesLater(u64),
}

/// What one process sees of a store. It dies at one of its requests.
#[derive(Debug)]
struct Process {
    bucket: Arc<SimulatedBucket>,
    dies_at: u64,
    fate: Fate,
    /// What a process that died has sent, and before which request it arrives.
    late: Option<(u64, Request)>,
    state: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    requests: u64,
    last: Option<Request>,
}

impl Process {
    fn new(
        bucket: &Arc<SimulatedBucket>,
        dies_at: u64,
        fate: Fate,
        late: Option<(u64, Request)>,
    ) -> Arc<Self> {
        Arc::new(Self { bucket: Arc::clone(bucket), dies_at, fate, late, state: Mutex::default() })
    }

    fn requests(&self) -> u64 {
        self.state.lock().requests
    }
}

impl Bucket for Process {
    fn name(&self) -> &str {
        self.bucket.name()
    }

    fn submit(&self, request: Request) -> Box<dyn Ticket> {
        let mut state = self.state.lock();
        let number = state.requests;
        if number <= self.dies_at {
            state.requests += 1;
        }
        if let Some((at, late)) = self.late.as_ref().filter(|(at, _)| *at == number) {
            drop(self.bucket.call(late.clone()));
            assert_eq!(*at, number);
        }
        if number < self.dies_at {
            return self.bucket.submit(request);
        }
        if number == self.dies_at {
            if self.fate == Fate::TakesEffect {
                drop(self.bucket.call(request.clone()));
            }
            state.last.get_or_insert(request);
        }
        Box::new(Ready(Err(Failure::new(FailureKind::Unsupported, "the process is dead"))))
    }
}

/// What a history left that may be found.
struct Possible {
    states: Vec<Content>,
    /// The first that counts, by the last sync that returned.
    durable: usize,
}

/// Makes calls until one fails, because the process is dead then.
fn carry_out(
    device: &ObjectDevice,
    calls: &[Call],
    with_journal: bool,
    possible: &mut Possible,
) -> Result<()> {
    let mut content = possible.states[0].clone();
    for (tag, call) in (1..).zip(calls) {
        match *call {
            Call::Write { start, blocks } => {
                content[start as usize..(start + blocks) as usize].fill(tag);
                if with_journal {
                    possible.states.push(content.clone());
                }
                let block = block(tag);
                let buffers = vec![&block[..]; blocks as usize];
                device.write_at(start * BLOCK as u64, &buffers)?;
            }
            Call::Discard { start, blocks } => {
                content[start as usize..(start + blocks) as usize].fill(0);
                if with_journal {
                    possible.states.push(content.clone());
                }
                device.discard(start * BLOCK as u64, blocks * BLOCK as u64)?;
            }
            Call::Sync => {
                possible.states.push(content.clone());
                device.sync()?;
                possible.durable = possible.states.len() - 1;
            }
            Call::Step => drop(device.step()?),
        }
    }
    Ok(())
}

struct Death<'a> {
    calls: &'a [Call],
    journal: Option<Arc<SimulatedDevice>>,
    at: u64,
    fate: Fate,
}

impl Death<'_> {
    /// Lets a process die, and another one find what is there. Returns how many requests each made,
    /// and if the one at which the first died may have changed something.
    fn run(&self) -> (u64, u64, bool) {
        let what = format!("{:?}, death at request {}, {:?}", self.calls, self.at, self.fate);
        let bucket = Arc::new(SimulatedBucket::new(self.at));
        let bytes = (BLOCKS * BLOCK) as u64;
        let options = eager(self.journal.as_ref());
        ObjectDevice::create(bucket.clone(), &environment(1), bytes, &options, Present::Refuse).unwrap();
        let mut possible = Possible { states: vec![vec![0; BLOCKS]], durable: 0 };
        let first = Process::new(&bucket, self.at, self.fate, None);
        let opened = ObjectDevice::open(first.clone(), &environment(2), Access::Write, options.clone());
        if let Ok(device) = &opened {
            let outcome = carry_out(device, self.calls, self.journal.is_some(), &mut possible);
            assert!(outcome.is_ok() || first.requests() > self.at, "{what}: {outcome:?}");
        }
        drop(opened);
        let last = first.state.lock().last.take().filter(Request::changes);
        let changes = last.is_some();
        let late = match self.fate {
            Fate::ArrivesLater(at) => last.map(|request| (at, request)),
            _ => None,
        };
        let second = Process::new(&bucket, u64::MAX, Fate::NeverArrives, late);
        self.check(&second, &options, &possible, &what);
        (first.requests(), second.requests(), changes)
    }

    fn check(&self, process: &Arc<Process>, options: &Options, possible: &Possible, what: &str) {
        let open =
            |seed, access| ObjectDevice::open(process.clone(), &environment(seed), access, options.clone());
        let device = open(3, Access::TakeOver).unwrap_or_else(|error| panic!("{what}: {error}"));
        let mut content = read(&device, 0, BLOCKS);
        assert!(possible.states[possible.durable..].contains(&content), "{what}: {content:?}");
        write(&device, 3, &[99]);
        content[3] = 99;
        device.sync().unwrap();
        while device.step().unwrap() {}
        assert_eq!(read(&device, 0, BLOCKS), content, "{what}");
        device.close().unwrap();
        let device = open(4, Access::Write).unwrap();
        assert_eq!(read(&device, 0, BLOCKS), content, "{what}: opened again");
        device.close().unwrap();
        let report = check_objects(process.bucket.clone(), &environment(5), &eager(None), true).unwrap();
        assert!(report.is_sound(), "{what}: {report:?}");
    }
}

/// All histories of `length` calls, with a sync behind each.
fn histories(length: u32) -> impl Iterator<Item = Vec<Call>> {
    (0..CALLS.len().pow(length)).map(move |mut number| {
        let mut calls: Vec<Call> = Vec::new();
        for _ in 0..length {
            calls.push(CALLS[number % CALLS.len()]);
            number /= CALLS.len();
        }
        calls.push(Call::Sync);
        calls
    })
}

/// Lets the writer of a history die at each request, with each fate; returns how many deaths.
fn all_deaths(calls: &[Call], with_journal: bool) -> u64 {
    let mut deaths = 0;
    let run = |at, fate| {
        let journal = with_journal.then(|| Arc::new(SimulatedDevice::new(4 << 20, at)));
        Death { calls, journal, at, fate }.run()
    };
    for at in 0.. {
        let (made, of_second, changes) = run(at, Fate::NeverArrives);
        deaths += 1;
        if changes {
            run(at, Fate::TakesEffect);
            for later in 0..of_second {
                run(at, Fate::ArrivesLater(later));
            }
            deaths += 1 + of_second;
        }
        if made <= at {
            break;
        }
    }
    deaths
}

#[test]
fn a_writer_dies_at_every_request_of_every_short_history() {
    let deaths: u64 = histories(3).map(|calls| all_deaths(&calls, false)).sum();
    println!("{deaths} deaths");
    assert!(deaths > 5000, "{deaths} deaths");
}

#[test]
fn a_writer_with_a_journal_dies_at_every_request_of_every_short_history() {
    let deaths: u64 = histories(3).map(|calls| all_deaths(&calls, true)).sum();
    println!("{deaths} deaths");
    assert!(deaths > 1000, "{deaths} deaths");
}
