//! Key-order readahead: a reader that goes through an index in key order finds values in memory,
//! wherever they lie on the device.

use espalier_engine::{Batch, FormatOptions, IndexId, KeyRange, OpenOptions, Slice, Store};
use espalier_storage::{CountingDevice, Device, MemoryDevice, Random, Result, SimulatedEnvironment};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const FILES: usize = 3000;

type Counted = Arc<CountingDevice<MemoryDevice>>;

fn environment() -> Arc<SimulatedEnvironment> {
    Arc::new(SimulatedEnvironment::new(7))
}

fn open(device: &Counted) -> Arc<Store> {
    open_with(device, 64 << 20)
}

fn open_with(device: &Counted, memory: u64) -> Arc<Store> {
    let options = OpenOptions { memory, ..OpenOptions::default() };
    Store::open(device.clone(), environment(), options).unwrap()
}

fn key(n: usize) -> Vec<u8> {
    format!("directory/{n:06}").into_bytes()
}

fn value(n: usize) -> Vec<u8> {
    let mut bytes = vec![0; 5000 + n * 7919 % 15_000];
    Random::new(n as u64).fill(&mut bytes);
    bytes
}

/// A store of values that were written in any order but that of their keys.
fn shuffled() -> (Counted, IndexId) {
    let device = Arc::new(CountingDevice::new(MemoryDevice::new(256 << 20)));
    Store::format(device.clone(), environment(), &FormatOptions::default()).unwrap();
    let store = open(&device);
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    let index = IndexId { volume, index: 0 };
    let mut order: Vec<usize> = (0..FILES).collect();
    let mut random = Random::new(11);
    for n in (1..FILES).rev() {
        order.swap(n, random.index(n + 1));
    }
    for n in order {
        let mut batch = Batch::new();
        batch.insert(index, &key(n), value(n));
        store.commit(batch).unwrap();
        store.step().unwrap();
    }
    store.close().unwrap();
    (device, index)
}

/// Reads value `n`; returns how many reads of the device it took.
fn read(store: &Store, device: &Counted, index: IndexId, n: usize) -> u64 {
    let before = device.counts();
    let (key, expected) = (key(n), value(n));
    let mut out = vec![0; expected.len()];
    let slice = Slice { key: &key, offset: 0, len: out.len() };
    assert_eq!(store.get_slices(index, &[slice], &mut out).unwrap(), [Some(expected.len())]);
    assert!(out == expected, "value {n}");
    device.counts().since(&before).reads.requests
}

#[test]
fn reads_in_the_order_of_keys_are_expected() {
    let (device, index) = shuffled();
    let store = open(&device);
    let before = device.counts();
    let mut by_reader = 0;
    for n in 0..FILES {
        by_reader += read(&store, &device, index, n);
        // Readahead threads have all the time that they need.
        while store.read_ahead() {}
    }
    assert!(by_reader < 40, "{by_reader} reads by the reader, for {FILES} values");
    let counts = device.counts().since(&before).reads;
    assert!(counts.requests < FILES as u64 / 2, "{} reads", counts.requests);
    let bytes: usize = (0..FILES).map(|n| value(n).len()).sum();
    assert!(counts.bytes < bytes as u64 * 5 / 2, "{} bytes read for {bytes}", counts.bytes);
    store.close().unwrap();
}

/// A reader without a cache of its own has values kept, whatever the order in which it reads them
/// again; other readers find them too.
#[test]
fn values_that_are_kept_are_read_once() {
    let (device, index) = shuffled();
    let store = open_with(&device, 256 << 20);
    let read_kept = |n: usize, expected: &[u8]| {
        let (key, mut out) = (key(n), vec![0; expected.len()]);
        let slice = Slice { key: &key, offset: 0, len: out.len() };
        assert_eq!(store.get_slices_kept(index, &[slice], &mut out).unwrap(), [Some(expected.len())]);
        assert!(out == expected, "value {n}");
        while store.read_ahead() {}
    };
    let before = device.counts();
    let reads = || device.counts().since(&before).reads.requests;
    (0..FILES).for_each(|n| read_kept(n, &value(n)));
    let cold = reads();
    assert!(cold < FILES as u64 / 2, "{cold} reads: they are read ahead all the same");
    (0..FILES).for_each(|n| read_kept(n, &value(n)));
    (0..FILES).rev().for_each(|n| read_kept(n, &value(n)));
    (0..FILES).for_each(|n| assert_eq!(read(&store, &device, index, n), 0, "value {n}"));
    while store.read_ahead() {}
    assert_eq!(reads(), cold);
    // A part of one, one that was replaced, and one with a patch.
    let (first, mut out) = (key(0), vec![0; 700]);
    store.get_slices(index, &[Slice { key: &first, offset: 4000, len: 700 }], &mut out).unwrap();
    assert!(out == value(0)[4000..4700]);
    let mut batch = Batch::new();
    batch.insert(index, &key(1), value(FILES + 1));
    batch.patch(index, &key(2), 10, vec![9; 16]);
    store.commit(batch).unwrap();
    let mut patched = value(2);
    patched[10..26].fill(9);
    for _ in 0..2 {
        read_kept(1, &value(FILES + 1));
        read_kept(2, &patched);
        store.checkpoint().unwrap();
    }
    store.close().unwrap();
}

/// A device far away: a read of blocks that were not announced waits for an answer.
#[derive(Debug)]
struct Distant {
    inner: Counted,
    announced: Mutex<BTreeSet<u64>>,
    waits: AtomicU64,
}

const DISTANT_BYTES: u64 = 2 << 20;
const PAGE: usize = espalier_storage::BLOCK;

fn blocks(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE as u64..range.end / PAGE as u64
}

impl Device for Distant {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<()> {
        let mut announced = self.announced.lock().unwrap();
        let wanted = blocks(&(offset..offset + buffer.len() as u64));
        if !wanted.into_iter().all(|block| announced.remove(&block)) {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.read_at(offset, buffer)
    }
    fn announce(&self, ranges: &[Range<u64>]) {
        assert!(ranges.iter().all(|range| (range.start | range.end).is_multiple_of(PAGE as u64)));
        self.announced.lock().unwrap().extend(ranges.iter().flat_map(blocks));
    }
    fn read_ahead_bytes(&self) -> u64 {
        DISTANT_BYTES
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
fn a_device_far_away_is_told_of_a_scan_before_it_reads() {
    let (device, index) = shuffled();
    let distant =
        Arc::new(Distant { inner: device.clone(), announced: Mutex::default(), waits: AtomicU64::new(0) });
    let options = OpenOptions { memory: 64 << 20, ..OpenOptions::default() };
    let store = Store::open(distant.clone(), environment(), options).unwrap();
    let before = device.counts();
    let mut most = 0;
    for n in 0..FILES {
        read(&store, &device, index, n);
        while store.read_ahead() {}
        most = most.max(distant.announced.lock().unwrap().len() * PAGE);
    }
    let waits = distant.waits.load(Ordering::Relaxed);
    let reads = device.counts().since(&before).reads.requests;
    assert!(waits * 4 < reads, "{waits} of {reads} reads were not announced");
    // What is announced is read then.
    let left = distant.announced.lock().unwrap().len() * PAGE;
    assert!(most < 3 * DISTANT_BYTES as usize, "{most} bytes were announced at a time");
    assert!(left < 1 << 20, "{left} bytes were announced in vain");
    store.close().unwrap();
}

#[test]
fn reads_in_no_order_read_what_they_need() {
    let (device, index) = shuffled();
    let store = open(&device);
    // The nodes and parts that say where things lie.
    assert!((0..FILES).all(|n| store.contains(index, &key(n)).unwrap()));
    while store.read_ahead() {}
    let before = device.counts();
    let mut random = Random::new(3);
    let mut pages = 0;
    for _ in 0..1000 {
        let n = random.index(FILES);
        read(&store, &device, index, n);
        while store.read_ahead() {}
        pages += value(n).len().div_ceil(4096) + 1;
    }
    let bytes = device.counts().since(&before).reads.bytes;
    assert!(bytes <= pages as u64 * 4096 * 6 / 5, "{bytes} bytes read for {pages} pages");
    store.close().unwrap();
}

#[test]
fn a_reader_that_stops_costs_one_window() {
    let (device, index) = shuffled();
    let store = open(&device);
    assert!((0..FILES).all(|n| store.contains(index, &key(n)).unwrap()));
    while store.read_ahead() {}
    for n in 1000..1010 {
        read(&store, &device, index, n);
    }
    let before = device.counts();
    while store.read_ahead() {}
    let bytes = device.counts().since(&before).reads.bytes;
    assert!((100 << 10..1 << 20).contains(&bytes), "{bytes} bytes read ahead");
    // What is overwritten meanwhile is found as it is now.
    for n in 1010..1040 {
        let mut batch = Batch::new();
        batch.insert(index, &key(n), value(n + 1));
        store.commit(batch).unwrap();
    }
    store.checkpoint().unwrap();
    for n in 1010..1040 {
        assert_eq!(store.get(index, &key(n)).unwrap().as_deref(), Some(&value(n + 1)[..]));
    }
    for n in 1040..1100 {
        read(&store, &device, index, n);
    }
    store.close().unwrap();
}

#[test]
fn an_abandoned_scan_leaves_room_for_others() {
    let (device, index) = shuffled();
    let store = open(&device);
    for (nth, start) in (0..FILES - 400).step_by(430).enumerate() {
        let mut by_reader = 0;
        for n in start..start + 270 {
            by_reader += read(&store, &device, index, n);
            while store.read_ahead() {}
        }
        // What was prefetched for the first readers stays; later ones have room all the same.
        let most = if nth < 4 { 60 } else { 12 };
        assert!(by_reader < most, "{by_reader} reads by reader {nth}, for 270 values");
    }
    store.close().unwrap();
}

#[test]
fn an_expected_read_descends_no_tree() {
    let (device, index) = shuffled();
    let store = open(&device);
    for n in 0..100 {
        read(&store, &device, index, n);
        while store.read_ahead() {}
    }
    let mut by_reader = 0;
    for n in 100..2000 {
        let before = looked(&store);
        read(&store, &device, index, n);
        by_reader += looked(&store) - before;
        while store.read_ahead() {}
    }
    assert!(by_reader < 100, "{by_reader} pieces of the tree looked at for 1900 values");
    store.close().unwrap();
}

/// Pieces of the tree that were looked at.
fn looked(store: &Store) -> u64 {
    let statistics = store.statistics();
    statistics.cache_hits + statistics.cache_misses
}

/// Values with a few patches cost no more to read.
#[test]
fn an_expected_read_looks_up_no_patches() {
    let (device, index) = shuffled();
    let store = open(&device);
    let patches = [(10, [1; 16]), (4090, [2; 16]), (20, [3; 16])];
    for (at, bytes) in patches {
        let mut batch = Batch::new();
        (0..FILES).for_each(|n| batch.patch(index, &key(n), at, bytes.to_vec()));
        store.commit(batch).unwrap();
    }
    store.close().unwrap();
    let store = open(&device);
    let mut by_reader = 0;
    for n in 0..2000 {
        let before = looked(&store);
        let (key, mut expected) = (key(n), value(n));
        for (at, bytes) in patches {
            expected[at as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        let mut out = vec![0; expected.len()];
        let slice = Slice { key: &key, offset: 0, len: out.len() };
        store.get_slices(index, &[slice], &mut out).unwrap();
        assert!(out == expected, "value {n}");
        if n >= 100 {
            by_reader += looked(&store) - before;
        }
        while store.read_ahead() {}
    }
    assert!(by_reader < 100, "{by_reader} pieces of the tree looked at for 1900 values");
    store.close().unwrap();
}

/// Whatever happens to keys between the walk and the read, the reader sees the newest state.
#[test]
fn what_changes_while_it_is_expected_is_found_as_it_is() {
    let (device, index) = shuffled();
    let store = open(&device);
    let mut model: Vec<Option<Vec<u8>>> = (0..FILES).map(|n| Some(value(n))).collect();
    let mut random = Random::new(17);
    for n in 0..FILES - 40 {
        let key_here = key(n);
        let mut out = vec![0; 32 << 10];
        let slice = Slice { key: &key_here, offset: 0, len: out.len() };
        let length = store.get_slices(index, &[slice], &mut out).unwrap()[0];
        assert_eq!(length, model[n].as_ref().map(Vec::len), "value {n}");
        let (got, rest) = out.split_at(length.unwrap_or(0));
        assert!(got == model[n].as_deref().unwrap_or_default() && rest.iter().all(|b| *b == 0), "value {n}");
        while store.read_ahead() {}
        let near = n + random.index(40);
        let mut batch = Batch::new();
        match random.index(120) {
            0 => {
                batch.delete(index, &key(near));
                model[near] = None;
            }
            1 => {
                // Small, then it is part of what describes it.
                batch.insert(index, &key(near), vec![9; 700]);
                model[near] = Some(vec![9; 700]);
            }
            2 => {
                batch.patch(index, &key(near), 4096, vec![5; 4096]);
                let value = model[near].get_or_insert_default();
                value.resize(value.len().max(8192), 0);
                value[4096..8192].fill(5);
            }
            3 => {
                batch.delete_range(index, KeyRange::new(key(near), key(near + 3)));
                model[near..near + 3].fill(None);
            }
            10..=12 => {
                let at = random.index(4096);
                batch.patch(index, &key(near), at as u32, vec![6; 16]);
                let value = model[near].get_or_insert_default();
                value.resize(value.len().max(at + 16), 0);
                value[at..at + 16].fill(6);
            }
            4 => store.checkpoint().unwrap(),
            5..=9 => while store.step().unwrap() {},
            _ => {}
        }
        store.commit(batch).unwrap();
    }
    store.close().unwrap();
}

/// Blocks of a file, and how many of them a kernel's reads of one from its beginning have.
const BLOCK: usize = 64 << 10;
const PIECES: [usize; 5] = [4, 8, 16, 16, 4];
/// Enough for some files to be read ahead.
const MEMORY: u64 = 256 << 20;

fn block_key(file: usize, block: usize) -> Vec<u8> {
    [format!("files/{file:03}/").as_bytes(), &(block as u64).to_be_bytes()].concat()
}

/// Files of so many blocks each, in an order on the device that is not that of their keys.
fn files(sizes: &[usize]) -> (Counted, IndexId) {
    let device = Arc::new(CountingDevice::new(MemoryDevice::new(256 << 20)));
    Store::format(device.clone(), environment(), &FormatOptions::default()).unwrap();
    let store = open(&device);
    let index = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    let mut random = Random::new(23);
    for n in (1..order.len()).rev() {
        order.swap(n, random.index(n + 1));
    }
    for file in order {
        for first in (0..sizes[file]).step_by(16) {
            let mut batch = Batch::new();
            for block in first..sizes[file].min(first + 16) {
                batch.insert(index, &block_key(file, block), block_of(file, block));
            }
            store.commit(batch).unwrap();
            while store.step().unwrap() {}
        }
    }
    store.close().unwrap();
    (device, index)
}

fn block_of(file: usize, block: usize) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    Random::new((file << 20 | block) as u64).fill(&mut bytes);
    bytes
}

/// Reads blocks of a file with one call; returns how many reads of the device that took.
fn read_blocks(
    store: &Store,
    device: &Counted,
    index: IndexId,
    file: usize,
    blocks: std::ops::Range<usize>,
) -> u64 {
    let before = device.counts();
    let keys: Vec<_> = blocks.clone().map(|block| block_key(file, block)).collect();
    let slices: Vec<_> = keys.iter().map(|key| Slice { key, offset: 0, len: BLOCK }).collect();
    let mut out = espalier_storage::AlignedBuf::zeroed(BLOCK * blocks.len());
    store.get_slices(index, &slices, &mut out).unwrap();
    for (got, block) in out.chunks(BLOCK).zip(blocks) {
        assert!(got == block_of(file, block), "block {block} of file {file}");
    }
    device.counts().since(&before).reads.requests
}

/// The ranges of blocks in which a file of 48 blocks is read.
fn pieces() -> impl Iterator<Item = std::ops::Range<usize>> {
    PIECES.iter().scan(0, |at, blocks| {
        let first = *at;
        *at += blocks;
        Some(first..*at)
    })
}

#[test]
fn files_that_are_read_in_large_pieces_are_expected() {
    let (device, index) = files(&[48; 12]);
    let store = open_with(&device, MEMORY);
    let before = device.counts();
    for piece in pieces() {
        read_blocks(&store, &device, index, 0, piece);
        while store.read_ahead() {}
    }
    let mut by_reader = 0;
    for file in 1..12 {
        for piece in pieces() {
            by_reader += read_blocks(&store, &device, index, file, piece);
            while store.read_ahead() {}
        }
    }
    assert!(by_reader <= 2, "{by_reader} reads by the reader, for 11 files");
    let (read, all) = (device.counts().since(&before).reads.bytes, 12 * 48 * BLOCK as u64);
    assert!(read < all * 5 / 4, "{read} bytes read for {all}");
    store.close().unwrap();
}

/// A kernel that reads ahead has several requests under way, and a later one may be served first.
#[test]
fn large_pieces_may_be_asked_for_in_any_order() {
    let (device, index) = files(&[48; 12]);
    let store = open_with(&device, MEMORY);
    let before = device.counts();
    let mut by_reader = 0;
    for file in 0..12 {
        let mut pieces: Vec<_> = pieces().collect();
        pieces.swap(2, 3);
        for piece in pieces {
            let reads = read_blocks(&store, &device, index, file, piece);
            // The reads of the first file start no scan, so those of the second do.
            by_reader += if file > 1 { reads } else { 0 };
            while store.read_ahead() {}
        }
    }
    assert!(by_reader <= 2, "{by_reader} reads by the reader, for 10 files");
    let (read, all) = (device.counts().since(&before).reads.bytes, 12 * 48 * BLOCK as u64);
    assert!(read < all * 4 / 3, "{read} bytes read for {all}");
    store.close().unwrap();
}

#[test]
fn most_of_a_large_file_is_left_to_its_reader() {
    let (device, index) = files(&[1024, 1024]);
    let store = open_with(&device, MEMORY);
    let before = device.counts();
    let mut by_reader = 0;
    for file in 0..2 {
        for first in (0..1024).step_by(16) {
            let reads = read_blocks(&store, &device, index, file, first..first + 16);
            // The beginning of the second file is prefetched, as for smaller files.
            assert!(file == 0 || first >= 256 || reads == 0, "{reads} reads for block {first}");
            by_reader += reads;
            while store.read_ahead() {}
        }
    }
    // One or two for each MiB, as a piece may begin in one value part and end in the next.
    assert!((80..200).contains(&by_reader), "{by_reader} reads by the reader");
    let (read, all) = (device.counts().since(&before).reads.bytes, 2 * 1024 * BLOCK as u64);
    assert!(read < all * 5 / 4, "{read} bytes read for {all}");
    store.close().unwrap();
}

/// A walk that is too slow is of no use, but it does not read behind the reader either, and catches
/// up.
#[test]
fn a_reader_that_overtakes_the_walk_is_not_followed() {
    let (device, index) = files(&[48; 12]);
    let store = open_with(&device, MEMORY);
    let before = device.counts();
    let mut by_reader = 0;
    for file in 0..12 {
        for (nth, piece) in pieces().enumerate() {
            let reads = read_blocks(&store, &device, index, file, piece);
            by_reader += if file > 4 { reads } else { 0 };
            // No thread has time during the first four files, then for one step; from then on
            // readahead keeps up.
            match (file, nth) {
                (..4, _) => {}
                (4, _) => drop(store.read_ahead()),
                _ => while store.read_ahead() {},
            }
        }
    }
    assert!(by_reader <= 8, "{by_reader} reads by the reader, for the last seven files");
    let (read, all) = (device.counts().since(&before).reads.bytes, 12 * 48 * BLOCK as u64);
    assert!(read < all * 5 / 4, "{read} bytes read for {all}");
    store.close().unwrap();
}

#[test]
fn what_was_passed_leaves_room_where_there_is_little() {
    let (device, index) = files(&[48; 12]);
    // Room for 28 blocks.
    let store = open_with(&device, 64 << 20);
    let (mut by_reader, mut all) = (0, 0);
    for file in 0..12 {
        for first in (0..48).step_by(4) {
            by_reader += read_blocks(&store, &device, index, file, first..first + 4);
            all += 1;
            while store.read_ahead() {}
        }
    }
    assert!(by_reader < all / 4, "{by_reader} reads by the reader, for {all}");
    store.close().unwrap();
}

#[test]
fn an_abandoned_scan_of_large_files_leaves_room_for_others() {
    let (device, index) = files(&[48; 24]);
    let store = open_with(&device, MEMORY);
    for start in [0, 8, 16] {
        let mut by_reader = 0;
        for file in start..start + 6 {
            for piece in pieces() {
                let reads = read_blocks(&store, &device, index, file, piece);
                by_reader += if file > start + 2 { reads } else { 0 };
                while store.read_ahead() {}
            }
        }
        assert!(
            by_reader <= 4,
            "{by_reader} reads by the reader, for the last three of files from {start} on"
        );
    }
    store.close().unwrap();
}

#[test]
fn small_files_behind_large_ones_get_the_window_of_small_files() {
    let sizes: Vec<usize> = [48; 8].into_iter().chain([1; 500]).collect();
    let (device, index) = files(&sizes);
    let store = open_with(&device, 512 << 20);
    for file in 0..8 {
        for piece in pieces() {
            read_blocks(&store, &device, index, file, piece);
            while store.read_ahead() {}
        }
    }
    for file in 8..300 {
        read_blocks(&store, &device, index, file, 0..1);
        while store.read_ahead() {}
    }
    let is_there = |file: &usize| read_blocks(&store, &device, index, *file, 0..1) == 0;
    let ahead = (300..sizes.len()).take_while(is_there).count();
    // A window of 4 MiB, and no more; what is kept behind large reads would take its room.
    assert!((40..=80).contains(&ahead), "{ahead} blocks of 64 KiB are there");
    store.close().unwrap();
}

/// A store of small values in the order of their keys, in leaves of many parts; nothing is cached.
fn ordered() -> (Counted, Arc<Store>, IndexId) {
    let device = Arc::new(CountingDevice::new(MemoryDevice::new(256 << 20)));
    Store::format(device.clone(), environment(), &FormatOptions::default()).unwrap();
    let store = open(&device);
    let index = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    for n in 0..SMALL_VALUES {
        let mut batch = Batch::new();
        batch.insert(index, &key(n), vec![n as u8; 100]);
        store.commit(batch).unwrap();
    }
    store.close().unwrap();
    drop(store);
    let store = open(&device);
    (device, store, index)
}

const SMALL_VALUES: usize = 100_000;

#[test]
fn a_short_scan_reads_little_more_than_it_returns() {
    const SCANS: usize = 40;
    let (device, store, index) = ordered();
    // The headers on the way.
    store.get(index, &key(0)).unwrap();
    let before = device.counts();
    for n in 0..SCANS {
        let range = KeyRange { start: key(n * SMALL_VALUES / SCANS).as_slice().into(), end: None };
        let mut cursor = store.cursor(index, range).unwrap();
        for _ in 0..100 {
            cursor.next().unwrap().unwrap();
        }
        while store.read_ahead() {}
    }
    let read = device.counts().since(&before).reads.bytes / SCANS as u64;
    assert!(read < 64 << 10, "{read} bytes for a hundred values of 100");
}

#[test]
fn a_long_scan_reads_in_large_requests() {
    let (device, store, index) = ordered();
    let before = device.counts();
    let mut cursor = store.cursor(index, KeyRange::all()).unwrap();
    let mut count = 0;
    while cursor.next().unwrap().is_some() {
        count += 1;
        while store.read_ahead() {}
    }
    assert_eq!(count, SMALL_VALUES);
    let reads = device.counts().since(&before).reads;
    assert!(reads.requests < 80, "{} requests for {} bytes", reads.requests, reads.bytes);
}

/// Look-ups far from each other, on a device far away: how often a reader waits for it.
fn waits_for(device: &Counted, index: IndexId, is_expected: bool) -> u64 {
    const KEYS: usize = 60;
    let distant =
        Arc::new(Distant { inner: device.clone(), announced: Mutex::default(), waits: AtomicU64::new(0) });
    let options = OpenOptions { memory: 64 << 20, ..OpenOptions::default() };
    let store = Store::open(distant.clone(), environment(), options).unwrap();
    let keys: Vec<Vec<u8>> = (0..KEYS).map(|n| key(n * SMALL_VALUES / KEYS)).collect();
    let before = distant.waits.load(Ordering::Relaxed);
    if is_expected {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        store.expect_keys(index, &keys);
    }
    for (n, key) in keys.iter().enumerate() {
        let expected = [(n * SMALL_VALUES / KEYS) as u8; 100];
        assert_eq!(store.get(index, key).unwrap().as_deref(), Some(&expected[..]));
    }
    let left = distant.announced.lock().unwrap().len();
    assert!(left < 4, "{left} blocks were announced in vain");
    let waits = distant.waits.load(Ordering::Relaxed) - before;
    store.close().unwrap();
    waits
}

#[test]
fn expected_keys_are_read_side_by_side() {
    let (device, store, index) = ordered();
    store.close().unwrap();
    drop(store);
    let (one_by_one, together) = (waits_for(&device, index, false), waits_for(&device, index, true));
    assert!(one_by_one > 20, "{one_by_one} waits one after the other");
    // Where pieces lie is said by tables, which are read one after the other.
    assert!(together * 6 < one_by_one, "{together} waits where {one_by_one} were");
}

/// Bytes that a scan over all takes, and how many keys it finds.
fn scan(device: &Counted, store: &Store, index: IndexId) -> (u64, usize) {
    let before = device.counts();
    let mut cursor = store.cursor(index, KeyRange::all()).unwrap();
    let mut count = 0;
    while cursor.next().unwrap().is_some() {
        count += 1;
        while store.read_ahead() {}
    }
    (device.counts().since(&before).reads.bytes, count)
}

#[test]
fn a_scan_passes_deleted_ranges_unread() {
    let (device, store, index) = ordered();
    let (all, count) = scan(&device, &store, index);
    assert_eq!(count, SMALL_VALUES);
    // More ranges than are carried out at once: they wait above the leaves as messages.
    let mut batch = Batch::new();
    let range = |from: usize, to: usize| KeyRange {
        start: key(from).as_slice().into(),
        end: Some(key(to).as_slice().into()),
    };
    let (from, to) = (SMALL_VALUES / 10, SMALL_VALUES / 10 * 9);
    batch.delete_range(index, range(from, to));
    for n in 0..100 {
        batch.delete_range(index, range(n * 10, n * 10 + 1));
    }
    store.commit(batch).unwrap();
    store.close().unwrap();
    drop(store);
    let store = open(&device);
    let (left, count) = scan(&device, &store, index);
    assert_eq!(count, SMALL_VALUES / 5 - 100);
    assert!(left < all / 2, "{left} bytes instead of {all}");
}
