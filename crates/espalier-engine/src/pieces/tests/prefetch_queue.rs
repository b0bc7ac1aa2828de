//! What is announced is read once, in the order of the device, and is never believed.

use super::*;
use crate::pieces::values::Verified;
use crate::pieces::{PrefetchPlace, Sums};

/// A world with values of these lengths, and where each lies.
fn world(lengths: &[usize]) -> (World, Vec<Arc<LargeValue>>, Vec<PrefetchPlace>) {
    let world = World::new(8192);
    let values: Vec<_> = lengths
        .iter()
        .enumerate()
        .map(|(i, len)| {
            let mut bytes = vec![0; *len];
            Random::new(i as u64).fill(&mut bytes);
            Arc::new(LargeValue::in_memory(bytes.into()))
        })
        .collect();
    let handles = world.pieces.writer.write_values(&values, None).unwrap();
    let place = |(turn, value): (usize, &Arc<LargeValue>)| {
        let place = value.place().unwrap();
        PrefetchPlace {
            range: world.pieces.range_of(&place).unwrap(),
            turn: turn as u64,
            sums: Sums::of(&place),
        }
    };
    let places = values.iter().enumerate().map(place).collect();
    // The parts live as long as a handle on them does.
    std::mem::forget(handles);
    (world, values, places)
}

#[test]
fn neighbours_are_read_together_and_found() {
    let (world, values, mut places) = world(&[8192; 64]);
    let pieces = world.reopened();
    // PrefetchQueue in any order.
    places.reverse();
    pieces.read_ahead.prefetch(1, places);
    let ((), reads, bytes) = world.reads(|| while pieces.read_ahead.step() {});
    assert_eq!((reads, bytes), (1, 64 * 8192));
    for value in &values {
        let (read, reads, _) = world.reads(|| bytes_of(&pieces, value).unwrap());
        assert_eq!((&read[..], reads), (&value.bytes().unwrap()[..], 0));
    }
    assert_eq!(pieces.stats().read_ahead, 512 << 10);
    pieces.read_ahead.passed(2, u64::MAX);
    pieces.read_ahead.passed(1, 63);
    assert_eq!(pieces.stats().read_ahead, 512 << 10);
    pieces.read_ahead.passed(1, 64);
    assert_eq!(pieces.stats().read_ahead, 0);
}

#[test]
fn a_reader_who_is_first_reads_for_all() {
    let (world, values, places) = world(&[8192; 16]);
    let pieces = world.reopened();
    pieces.read_ahead.prefetch(1, places);
    let (read, reads, bytes) = world.reads(|| bytes_of(&pieces, &values[7]).unwrap());
    assert_eq!((&read[..], reads, bytes), (&values[7].bytes().unwrap()[..], 1, 16 * 8192));
    assert!(pieces.read_ahead.has_work(), "a turn in the queue is left");
    assert!(!pieces.read_ahead.step(), "and there is nothing to do");
    let (_, reads, _) = world.reads(|| bytes_of(&pieces, &values[12]).unwrap());
    assert_eq!(reads, 0);
}

#[test]
fn what_was_read_too_early_is_read_again() {
    let (world, values, places) = world(&[8192; 16]);
    let pieces = world.reopened();
    let at = places[5].range.start;
    let mut page = AlignedBuf::zeroed(4096);
    world.device.read_at(at, &mut page).unwrap();
    world.corrupt(at + 100);
    pieces.read_ahead.prefetch(1, places);
    while pieces.read_ahead.step() {}
    assert_eq!(bytes_of(&pieces, &values[4]).unwrap(), values[4].bytes().unwrap());
    // Rewritten behind its back, as blocks are that became free and are used again.
    world.device.write_at(at, &[&page]).unwrap();
    assert_eq!(bytes_of(&pieces, &values[5]).unwrap(), values[5].bytes().unwrap());
    // Damage itself is an error.
    world.corrupt(at + 100);
    assert_eq!(bytes_of(&pieces, &values[5]).unwrap_err().kind(), ErrorKind::Damaged);
}

/// Whether what is announced of `value` was verified; `None` if it is not announced.
fn is_sound(world: &World, pieces: &Pieces, value: &LargeValue) -> Option<bool> {
    let place = value.place().unwrap();
    let range = pieces.range_of(&place).unwrap();
    let of = Verified::of(&place, world.extent(place.part.id()));
    pieces.read_ahead.queue.read(&range, &of).map(|served| served.sound)
}

#[test]
fn what_is_sound_is_verified_once_and_nothing_else_is_believed() {
    // Values of whole pages and others; each announced, but for one.
    let (world, values, mut places) = world(&[8192, 5000, 8192, 70_000, 8192]);
    let damaged = world.extent(values[2].place().unwrap().part.id()).byte_offset()
        + u64::from(values[2].place().unwrap().offset);
    world.corrupt(damaged + 5000);
    let pieces = world.reopened();
    let left_out = places.remove(1);
    pieces.read_ahead.prefetch(1, places);
    while pieces.read_ahead.step() {}
    let is_sound = |value: &Arc<LargeValue>| is_sound(&world, &pieces, value);
    let sound: Vec<_> = values.iter().map(is_sound).collect();
    assert_eq!(sound, [Some(true), Some(false), Some(false), Some(true), Some(true)]);
    for (n, value) in values.iter().enumerate() {
        match bytes_of(&pieces, value) {
            Ok(bytes) => assert_eq!((bytes, n == 2), (value.bytes().unwrap().to_vec(), false)),
            Err(error) => assert_eq!((error.kind(), n), (ErrorKind::Damaged, 2)),
        }
    }
    // A reader that reads before the background does verifies for itself.
    let pieces = world.reopened();
    pieces.read_ahead.prefetch(1, vec![left_out]);
    assert_eq!(self::is_sound(&world, &pieces, &values[1]), Some(false));
}

#[test]
fn what_is_sound_says_nothing_of_what_is_longer() {
    let (world, values, places) = world(&[65_536, 8192]);
    let pieces = world.reopened();
    let cut = Arc::new(values[0].cut(0..8192));
    let whole = PrefetchPlace { sums: Sums::of(&cut.place().unwrap()), ..places[0].clone() };
    pieces.read_ahead.prefetch(1, vec![whole, places[1].clone()]);
    while pieces.read_ahead.step() {}
    let sound: Vec<_> = [&cut, &values[0], &values[1]].map(|v| is_sound(&world, &pieces, v)).into();
    assert_eq!(sound, [Some(true), Some(false), Some(true)]);
}

#[test]
fn no_more_is_announced_than_there_is_room_for() {
    let (world, values, places) = world(&[40_000; 400]);
    let pieces = world.reopened();
    pieces.set_capacity(32 << 20);
    let (room, limit) = pieces.read_ahead.prefetch_room();
    assert_eq!((room, limit), (2 << 20, 2 << 20));
    pieces.read_ahead.prefetch(1, places.clone());
    assert!(pieces.read_ahead.prefetch_room().0 < 1 << 20);
    assert!(pieces.stats().read_ahead <= limit);
    while pieces.read_ahead.step() {}
    for value in &values {
        assert_eq!(bytes_of(&pieces, value).unwrap(), value.bytes().unwrap());
    }
    pieces.set_capacity(0);
    assert_eq!(pieces.stats().read_ahead, 0);
    // What lies behind the device's end, or is too long for one extent, is not queued.
    let beyond = world.device.len() - 4096..world.device.len() + 4096;
    pieces.set_capacity(64 << 20);
    let place = |(turn, range)| PrefetchPlace { range, turn, sums: places[0].sums.clone() };
    pieces.read_ahead.prefetch(1, [(0, beyond), (1, 0..1 << 20)].map(place).into());
    assert!(!pieces.read_ahead.step());
}

#[test]
fn what_is_not_announced_of_a_long_read_is_read_in_one_piece() {
    let (world, values, mut places) = world(&[65_536; 24]);
    let pieces = world.reopened();
    // The first ones and some in the middle.
    places.drain(14..);
    places.drain(4..12);
    pieces.read_ahead.prefetch(1, places);
    while pieces.read_ahead.step() {}
    let wanted: Vec<_> = (0..24)
        .map(|n| Wanted { place: values[n].place().unwrap(), offset: 0, out: n << 16..(n + 1) << 16 })
        .collect();
    let mut out = AlignedBuf::zeroed(24 << 16);
    let (_, reads, bytes) = world.reads(|| pieces.read_values(&wanted, &mut out).unwrap());
    assert_eq!((reads, bytes), (2, 18 << 16));
    for (got, value) in out.chunks(65_536).zip(&values) {
        assert!(got == &value.bytes().unwrap()[..]);
    }
}
