//! Scans that read values: they are read ahead of the cursor's caller, side by side, in the order
//! of the device.

use espalier_engine::{
    Batch, Cursor, FormatOptions, IndexId, KeyRange, OpenOptions, Store, SystemEnvironment, Within,
};
use espalier_storage::{
    BLOCK, CountingDevice, Device, Environment, ErrorKind, MemoryDevice, Operation, Random, Result,
    SimulatedEnvironment,
};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

const VALUES: usize = 6000;
const VALUE_BYTES: usize = 4096;
const MEMORY: u64 = 64 << 20;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn simulated() -> Arc<SimulatedEnvironment> {
    Arc::new(SimulatedEnvironment::new(7))
}

fn open(device: Arc<dyn Device>, environment: Arc<dyn Environment>) -> Arc<Store> {
    let options = OpenOptions { memory: MEMORY, ..OpenOptions::default() };
    Store::open(device, environment, options).unwrap()
}

fn key(n: usize) -> Vec<u8> {
    format!("key/{n:06}").into_bytes()
}

fn value(n: usize) -> Vec<u8> {
    let mut bytes = vec![0; VALUE_BYTES];
    Random::new(n as u64).fill(&mut bytes);
    bytes
}

/// A store of values that were written in any order but that of their keys.
fn loaded_at_random() -> (Arc<MemoryDevice>, IndexId) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    Store::format(device.clone(), simulated(), &FormatOptions::default()).unwrap();
    let store = open(device.clone(), simulated());
    let index = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    let mut order: Vec<usize> = (0..VALUES).collect();
    let mut random = Random::new(11);
    for n in (1..VALUES).rev() {
        order.swap(n, random.index(n + 1));
    }
    for numbers in order.chunks(50) {
        let mut batch = Batch::new();
        numbers.iter().for_each(|n| batch.insert(index, &key(*n), value(*n)));
        store.commit(batch).unwrap();
        store.step().unwrap();
    }
    store.close().unwrap();
    (device, index)
}

fn model() -> Model {
    (0..VALUES).map(|n| (key(n), value(n))).collect()
}

fn from(store: &Store, index: IndexId, n: usize) -> Cursor {
    store.cursor(index, KeyRange { start: key(n).as_slice().into(), end: None }).unwrap()
}

/// Yields the value `n` and reads it.
fn read_next(cursor: &mut Cursor, n: usize) {
    let entry = cursor.next().unwrap().unwrap();
    assert_eq!(&*entry.key, &*key(n));
    assert!(cursor.read(&entry.value).unwrap() == value(n), "value {n}");
}

#[test]
fn values_loaded_at_random_are_read_once_in_few_requests() {
    let (memory, index) = loaded_at_random();
    let device = Arc::new(CountingDevice::new(memory));
    let store = open(device.clone(), simulated());
    let before = device.counts();
    let mut cursor = from(&store, index, 0);
    let mut by_reader = 0;
    for n in 0..VALUES {
        let entry = cursor.next().unwrap().unwrap();
        assert_eq!(&*entry.key, &*key(n));
        while store.read_ahead() {}
        let before = device.counts();
        assert!(cursor.read(&entry.value).unwrap() == value(n), "value {n}");
        by_reader += device.counts().since(&before).reads.requests;
    }
    assert!(cursor.next().unwrap().is_none() && cursor.next().unwrap().is_none());
    // Some do not fit into the queue.
    assert!(by_reader < VALUES as u64 / 100, "{by_reader} reads by the reader, for {VALUES} values");
    let reads = device.counts().since(&before).reads;
    assert!(reads.requests < VALUES as u64 / 12, "{} reads", reads.requests);
    let bytes = (VALUES * VALUE_BYTES) as u64;
    assert!(reads.bytes < bytes * 3 / 2, "{} bytes read for {bytes}", reads.bytes);
    store.close().unwrap();
}

#[test]
fn a_reader_alone_reads_neighbours_together() {
    let (memory, index) = loaded_at_random();
    let device = Arc::new(CountingDevice::new(memory));
    let store = open(device.clone(), simulated());
    let before = device.counts();
    let mut cursor = from(&store, index, 0);
    (0..VALUES).for_each(|n| read_next(&mut cursor, n));
    let reads = device.counts().since(&before).reads;
    assert!(reads.requests < VALUES as u64 / 4, "{} reads", reads.requests);
    store.close().unwrap();
}

#[test]
fn short_scans_read_little_that_is_not_asked_for() {
    const SCANS: usize = 30;
    const KEYS: usize = 100;
    let (memory, index) = loaded_at_random();
    let device = Arc::new(CountingDevice::new(memory));
    let store = open(device.clone(), simulated());
    // Nodes and parts.
    (0..VALUES).for_each(|n| assert!(store.contains(index, &key(n)).unwrap()));
    let before = device.counts();
    for scan in 0..SCANS {
        let first = scan * (VALUES - KEYS) / SCANS;
        let mut cursor = from(&store, index, first);
        for n in first..first + KEYS {
            read_next(&mut cursor, n);
            while store.read_ahead() {}
        }
    }
    let (read, asked) = (device.counts().since(&before).reads.bytes, (SCANS * KEYS * VALUE_BYTES) as u64);
    assert!(read < asked * 9 / 4, "{read} bytes read for {asked}");
    store.close().unwrap();
}

#[test]
fn values_that_are_passed_over_are_not_read() {
    let (memory, index) = loaded_at_random();
    let device = Arc::new(CountingDevice::new(memory));
    let store = open(device.clone(), simulated());
    let before = device.counts();
    let mut cursor = from(&store, index, 0);
    for n in 0..VALUES {
        let entry = cursor.next().unwrap().unwrap();
        if n % 50 == 0 {
            assert!(cursor.read(&entry.value).unwrap() == value(n), "value {n}");
        }
        while store.read_ahead() {}
    }
    let read = device.counts().since(&before).reads.bytes;
    let all = (VALUES * VALUE_BYTES) as u64;
    assert!(read < all / 8, "{read} bytes read, all have {all}");
    store.close().unwrap();
}

#[test]
fn cursors_that_are_dropped_leave_room_for_others() {
    let (memory, index) = loaded_at_random();
    let device = Arc::new(CountingDevice::new(memory));
    let store = open(device.clone(), simulated());
    for first in (0..VALUES - 100).step_by(40) {
        let mut cursor = from(&store, index, first);
        (first..first + 40).for_each(|n| read_next(&mut cursor, n));
        while store.read_ahead() {}
    }
    // As many at a time as there can be: some find no room, and read for themselves.
    let mut cursors: Vec<_> = (0..200).map(|n| from(&store, index, n * 20)).collect();
    for step in 0..20 {
        for (n, cursor) in cursors.iter_mut().enumerate() {
            read_next(cursor, n * 20 + step);
        }
        assert!(store.statistics().cache_bytes < MEMORY);
    }
    drop(cursors);
    let mut cursor = from(&store, index, 0);
    let mut by_reader = 0;
    for n in 0..1000 {
        let entry = cursor.next().unwrap().unwrap();
        while store.read_ahead() {}
        let before = device.counts();
        assert!(cursor.read(&entry.value).unwrap() == value(n), "value {n}");
        by_reader += device.counts().since(&before).reads.requests;
    }
    assert!(by_reader < 10, "{by_reader} reads by the reader");
    store.close().unwrap();
}

/// Whatever a caller does between reads, and whatever is written meanwhile, the cursor yields what
/// there was when it was made.
#[test]
fn any_walk_yields_what_the_cursor_saw() {
    let (memory, index) = loaded_at_random();
    let mut random = Random::new(5);
    for turn in 0..12 {
        let store = open(memory.clone(), simulated());
        // Each turn begins with what the one before has left.
        let mut all = from(&store, index, 0);
        let mut seen = Model::new();
        while let Some(entry) = all.next().unwrap() {
            seen.insert(entry.key.to_vec(), all.read(&entry.value).unwrap().to_vec());
        }
        assert!(turn > 0 || seen == model());
        let keys: Vec<_> = seen.keys().collect();
        let mut cursor = from(&store, index, 0);
        // The caller stands before this key.
        let mut at = 0;
        for _ in 0..1500 {
            let found = match random.index(40) {
                0 => {
                    at = random.index(keys.len());
                    cursor.seek(keys[at]);
                    continue;
                }
                1 => {
                    let n = random.index(VALUES);
                    let mut batch = Batch::new();
                    match random.index(3) {
                        0 => batch.delete(index, &key(n)),
                        1 => batch.insert(index, &key(n), value(n + VALUES)),
                        _ => batch.patch(index, &key(n), 16, vec![3; 64]),
                    }
                    store.commit(batch).unwrap();
                    continue;
                }
                2 => {
                    while store.step().unwrap() {}
                    continue;
                }
                3 => {
                    while store.read_ahead() {}
                    continue;
                }
                4 | 5 if at > 0 => {
                    at -= 1;
                    let found = cursor.prev().unwrap();
                    assert_eq!(found.as_ref().map(|entry| &*entry.key), Some(&**keys[at]));
                    found
                }
                6..=8 => {
                    at += 1;
                    match cursor.next_within(10).unwrap() {
                        Within::Entry(entry) => Some(entry),
                        Within::End => None,
                        Within::GaveUp => panic!("nothing is deleted in what the cursor sees"),
                    }
                }
                _ => {
                    at += 1;
                    cursor.next().unwrap()
                }
            };
            let Some(entry) = found else {
                assert_eq!(at, keys.len() + 1);
                at -= 1;
                continue;
            };
            let expected = &seen[&entry.key.to_vec()];
            assert!(cursor.read(&entry.value).unwrap() == expected[..], "{:?}", entry.key);
        }
        store.close().unwrap();
    }
}

/// Reads by other threads than the one that made it wait until `WANTED` are under way; or all reads
/// by that thread fail.
#[derive(Debug)]
struct Gate {
    inner: Arc<MemoryDevice>,
    owner: ThreadId,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_shut: bool,
    fails: bool,
    under_way: usize,
    most: usize,
}

const WANTED: usize = 4;

impl Gate {
    fn new(inner: Arc<MemoryDevice>) -> Arc<Self> {
        let owner = std::thread::current().id();
        Arc::new(Self { inner, owner, state: Mutex::default(), changed: Condvar::new() })
    }
}

impl Device for Gate {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut state = self.state.lock().unwrap();
        let is_owner = std::thread::current().id() == self.owner;
        if is_owner && state.fails {
            return Err(espalier_storage::Error::new(ErrorKind::Io, Operation::Read, "gate", "it fails"));
        }
        if !is_owner && state.is_shut {
            state.under_way += 1;
            state.most = state.most.max(state.under_way);
            if state.most >= WANTED {
                state.is_shut = false;
                self.changed.notify_all();
            }
            // Not for ever, so that a test that fails ends.
            let limit = Duration::from_secs(30);
            state = self.changed.wait_timeout_while(state, limit, |state| state.is_shut).unwrap().0;
            state.is_shut = false;
            state.under_way -= 1;
            self.changed.notify_all();
        }
        drop(state);
        self.inner.read_at(offset, buffer)
    }
    fn write_at(&self, offset: u64, buffers: &[&[u8]]) -> Result<()> {
        self.inner.write_at(offset, buffers)
    }
    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
    fn discard(&self, offset: u64, length: u64) -> Result<()> {
        self.inner.discard(offset, length)
    }
}

#[test]
fn reads_are_under_way_side_by_side() {
    let (memory, index) = loaded_at_random();
    let gate = Gate::new(memory);
    let store = open(gate.clone(), Arc::new(SystemEnvironment::new(1)));
    // All nodes, so that the caller waits for none whose read is held up.
    let mut keys = from(&store, index, 0);
    while keys.next().unwrap().is_some() {}
    drop(keys);
    let mut cursor = from(&store, index, 0);
    for n in 0..VALUES {
        if n == 2 {
            gate.state.lock().unwrap().is_shut = true;
        }
        read_next(&mut cursor, n);
    }
    let most = gate.state.lock().unwrap().most;
    assert!(most >= WANTED, "{most} reads under way at a time");
    drop(cursor);
    store.close().unwrap();
}

/// What the walk meets ahead of the caller is the caller's only when it gets there.
#[test]
fn an_error_ahead_keeps_nothing_before_it_from_the_caller() {
    let (memory, index) = loaded_at_random();
    let gate = Gate::new(memory);
    let store = open(gate.clone(), simulated());
    let mut cursor = from(&store, index, 0);
    let (mut n, mut errors, mut ahead_of_error) = (0, 0, 0);
    while n < VALUES {
        gate.state.lock().unwrap().fails = n % 100 >= 50;
        match cursor.next() {
            Ok(entry) => {
                let entry = entry.unwrap();
                assert_eq!(&*entry.key, &*key(n));
                ahead_of_error += usize::from(n % 100 >= 50);
                gate.state.lock().unwrap().fails = false;
                assert!(cursor.read(&entry.value).unwrap() == value(n), "value {n}");
                n += 1;
            }
            Err(_) => {
                errors += 1;
                gate.state.lock().unwrap().fails = false;
                read_next(&mut cursor, n);
                n += 1;
            }
        }
    }
    assert!(cursor.next().unwrap().is_none());
    assert!(errors > 0 && ahead_of_error > VALUES / 4, "{errors} errors, {ahead_of_error} keys before them");
    store.close().unwrap();
}

const _: () = assert!(VALUE_BYTES == BLOCK);
