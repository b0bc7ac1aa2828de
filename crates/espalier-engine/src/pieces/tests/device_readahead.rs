//! Read-ahead: few large reads for what is sequential, exact ones for the rest, and never a wrong
//! byte.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

type Files = (Vec<Vec<u8>>, Vec<Arc<LargeValue>>, Vec<Arc<PieceHandle>>);

/// Small files: many values, written in order.
fn files(world: &World, count: usize) -> Files {
    let mut random = Random::new(9);
    let bytes: Vec<Vec<u8>> = (0..count)
        .map(|i| {
            let length = if i % 7 == 0 { 8192 } else { 4096 + random.index(9000) };
            let mut bytes = vec![0; length];
            random.fill(&mut bytes);
            bytes
        })
        .collect();
    let values: Vec<_> = bytes.iter().map(|b| Arc::new(LargeValue::in_memory(b.clone().into()))).collect();
    let handles = world.pieces.writer.write_values(&values, None).unwrap();
    for value in &values {
        value.forget_bytes();
    }
    (bytes, values, handles)
}

fn scan(pieces: &Pieces, bytes: &[Vec<u8>], values: &[Arc<LargeValue>]) {
    for (value, bytes) in values.iter().zip(bytes) {
        assert_eq!(bytes_of(pieces, value).unwrap(), *bytes);
    }
}

#[test]
fn a_scan_over_small_values_takes_few_reads() {
    let world = World::new(8192);
    let (bytes, values, _handles) = files(&world, 1500);
    let total: usize = bytes.iter().map(Vec::len).sum();
    let pieces = world.reopened();
    let ((), reads, read_bytes) = world.reads(|| scan(&pieces, &bytes, &values));
    assert!(reads < 60, "{reads} reads");
    assert!(read_bytes < total as u64 * 3 / 2, "{read_bytes} bytes read for {total}");
}

/// What tells that reads follow one another counted beyond its range where there is no memory to
/// read ahead (found by the simulation of power cuts among threads).
#[test]
fn a_long_scan_without_memory_to_read_ahead_ends() {
    let world = World::new(8192);
    let (bytes, values, _handles) = files(&world, 600);
    let pieces = world.reopened();
    pieces.set_capacity(0);
    scan(&pieces, &bytes, &values);
}

#[test]
fn a_background_thread_reads_before_it_is_needed() {
    let world = World::new(8192);
    let (bytes, values, _handles) = files(&world, 1500);
    let pieces = world.reopened();
    let woken = Arc::new(AtomicUsize::new(0));
    let wake = woken.clone();
    pieces.read_ahead.set_wake(move || wake.store(1, Ordering::Relaxed));
    let mut by_readers = 0;
    for (value, bytes) in values.iter().zip(&bytes) {
        let read = || bytes_of(&pieces, value).unwrap();
        let (got, reads, _) = world.reads(read);
        assert_eq!(got, *bytes);
        by_readers += reads;
        if woken.swap(0, Ordering::Relaxed) > 0 {
            while pieces.read_ahead.step() {}
        }
    }
    assert!(by_readers < 20, "{by_readers} reads by readers themselves");
    assert!(!pieces.read_ahead.step());
}

#[test]
fn random_reads_are_exact() {
    let world = World::new(16384);
    let bytes = vec![7; 1 << 20];
    let values: Vec<_> = (0..32).map(|_| Arc::new(LargeValue::in_memory(bytes.clone().into()))).collect();
    let _handles = world.pieces.writer.write_values(&values, None).unwrap();
    let pieces = world.reopened();
    let mut random = Random::new(5);
    let ((), reads, read_bytes) = world.reads(|| {
        for _ in 0..500 {
            let place = values[random.index(32)].place().unwrap();
            let mut out = AlignedBuf::zeroed(4096);
            pieces.read_value(&place, random.index(256) * 4096, &mut out).unwrap();
        }
        // The same page again and again is no stream either.
        for _ in 0..50 {
            pieces.read_value(&values[3].place().unwrap(), 4096, &mut [0; 4096]).unwrap();
        }
    });
    assert_eq!((reads, read_bytes), (550, 550 * 4096));
}

#[test]
fn parts_in_a_row_are_read_together() {
    let world = World::new(16384);
    let group = parts(&world, 300);
    let ids: Vec<PieceId> = group.iter().map(Encoded::id).collect();
    let _handles = world.pieces.writer.write_group(group, None).unwrap();
    let pieces = world.reopened();
    let read = |ids: &[PieceId]| {
        for id in ids {
            pieces.part(*id).unwrap();
        }
    };
    let ((), reads, _) = world.reads(|| read(&ids));
    assert!(reads < 15, "{reads} reads");
    let pieces = world.reopened();
    let ((), reads, _) = world.reads(|| {
        pieces.expect(ids[100..140].iter().copied());
        ids[100..140].iter().for_each(|id| drop(pieces.part(*id).unwrap()));
    });
    assert!(reads <= 2, "{reads} reads");
}

#[test]
fn what_was_read_ahead_and_then_overwritten_is_not_believed() {
    let world = World::new(8192);
    let (bytes, values, _handles) = files(&world, 200);
    let pieces = world.reopened();
    scan(&pieces, &bytes[..100], &values[..100]);
    assert!(pieces.stats().read_ahead > 0);
    // Behind its back, as after a race with a writer: what follows moves elsewhere.
    for value in &values[100..] {
        let place = value.place().unwrap();
        let extent = world.extent(place.part.id());
        let at = extent.byte_offset() + u64::from(place.offset);
        world.corrupt(at);
    }
    for (value, bytes) in values[100..].iter().zip(&bytes[100..]) {
        // Either the window's copy, which verifies, or an error from the device; never other bytes.
        if let Ok(got) = bytes_of(&pieces, value) {
            assert_eq!(got, *bytes);
        }
    }
    // And the other way round: the window is stale, the device is right.
    let pieces = world.reopened();
    for value in &values[100..] {
        let _ = bytes_of(&pieces, value);
    }
    for value in &values[100..] {
        let place = value.place().unwrap();
        world.corrupt(world.extent(place.part.id()).byte_offset() + u64::from(place.offset));
    }
    scan(&pieces, &bytes, &values);
}

#[test]
fn readers_in_parallel_get_the_right_bytes() {
    let world = World::new(8192);
    let (bytes, values, _handles) = files(&world, 1000);
    let pieces = world.reopened();
    pieces.set_capacity(4 << 20);
    std::thread::scope(|scope| {
        for thread in 0..6usize {
            let (pieces, bytes, values) = (&pieces, &bytes, &values);
            scope.spawn(move || match thread {
                // Two share one scan, one goes backward, two jump, one helps in the background.
                0 | 1 => (thread..1000).step_by(2).for_each(|i| scan(pieces, &bytes[i..=i], &values[i..=i])),
                2 => (0..1000).rev().for_each(|i| scan(pieces, &bytes[i..=i], &values[i..=i])),
                5 => {
                    for _ in 0..2000 {
                        pieces.read_ahead.step();
                    }
                }
                _ => {
                    let mut random = Random::new(thread as u64);
                    for _ in 0..500 {
                        let i = random.index(1000);
                        scan(pieces, &bytes[i..=i], &values[i..=i]);
                    }
                }
            });
        }
    });
    assert!(pieces.stats().read_ahead <= 4 << 17);
}

#[test]
fn the_end_of_the_device_ends_the_window() {
    let world = World::new(64);
    let group = parts(&world, 12);
    let ids: Vec<PieceId> = group.iter().map(Encoded::id).collect();
    let _handles = world.pieces.writer.write_group(group, Some(4)).unwrap();
    let pieces = world.reopened();
    for id in &ids {
        pieces.part(*id).unwrap();
    }
    while pieces.read_ahead.step() {}
}
