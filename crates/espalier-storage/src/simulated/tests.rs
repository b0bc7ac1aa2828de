use super::*;
use crate::{AlignedBuf, Environment};
use std::collections::HashSet;

const DEVICE_BYTES: u64 = 1 << 20;

fn filled(blocks: usize, byte: u8) -> AlignedBuf {
    let mut buffer = AlignedBuf::zeroed(blocks * BLOCK);
    buffer.fill(byte);
    buffer
}

fn write(device: &SimulatedDevice, block: u64, byte: u8) -> Result<()> {
    device.write_at(block * BLOCK as u64, &[&filled(1, byte)])
}

fn sectors(device: &SimulatedDevice, block: u64) -> Vec<u8> {
    let mut buffer = AlignedBuf::zeroed(BLOCK);
    device.read_at(block * BLOCK as u64, &mut buffer).unwrap();
    for sector in buffer.chunks(SECTOR) {
        assert!(sector.iter().all(|b| *b == sector[0]), "a sector is never torn");
    }
    buffer.chunks(SECTOR).map(|sector| sector[0]).collect()
}

fn first(device: &SimulatedDevice, block: u64) -> u8 {
    sectors(device, block)[0]
}

#[test]
fn synced_writes_survive_every_crash() {
    let device = SimulatedDevice::new(DEVICE_BYTES, 1);
    write(&device, 3, 1).unwrap();
    device.sync().unwrap();
    write(&device, 4, 2).unwrap();
    let point = device.crash_point();
    assert_eq!((point.pending(), point.change()), (1, 3));
    for seed in 0..100 {
        let crashed = point.crash(seed);
        assert_eq!(sectors(&crashed, 3), [1; 8]);
        assert_eq!(crashed.crash().image(), crashed.image(), "nothing is pending after a crash");
    }
    assert_eq!(first(&device, 4), 2, "the device itself goes on");
}

#[test]
fn unsynced_writes_survive_in_every_combination() {
    let device = SimulatedDevice::new(DEVICE_BYTES, 2);
    (0..3).for_each(|block| write(&device, block, 1).unwrap());
    let point = device.crash_point();
    let mut whole = HashSet::new();
    let mut torn = HashSet::new();
    for seed in 0..2000 {
        let crashed = point.crash(seed);
        let blocks: Vec<Vec<u8>> = (0..3).map(|block| sectors(&crashed, block)).collect();
        if blocks.iter().all(|b| b.iter().all(|s| *s == b[0])) {
            whole.insert(blocks.iter().map(|b| b[0]).collect::<Vec<u8>>());
        } else {
            torn.insert(blocks);
        }
        assert_eq!(crashed.image(), point.crash(seed).image(), "a seed names one outcome");
    }
    assert_eq!(whole.len(), 8, "{whole:?}");
    assert!(torn.len() > 100, "{}", torn.len());
}

#[test]
fn writes_to_one_place_may_be_reordered() {
    let device = SimulatedDevice::new(DEVICE_BYTES, 3);
    write(&device, 0, 1).unwrap();
    write(&device, 0, 2).unwrap();
    write(&device, 1, 3).unwrap();
    let point = device.crash_point();
    let outcomes: HashSet<(u8, u8)> =
        (0..500).map(|seed| point.crash(seed)).map(|c| (first(&c, 0), first(&c, 1))).collect();
    for outcome in [(0, 0), (1, 0), (2, 0), (0, 3), (1, 3), (2, 3)] {
        assert!(outcomes.contains(&outcome), "{outcome:?} never came");
    }
}

#[test]
fn crash_points_are_recorded_at_every_change() {
    let device = SimulatedDevice::new(DEVICE_BYTES, 4);
    device.record_crash_points(1);
    write(&device, 0, 1).unwrap();
    first(&device, 0);
    device.sync().unwrap();
    device.discard(0, 4096).unwrap();
    let points = device.take_crash_points();
    let shape: Vec<(u64, usize)> = points.iter().map(|p| (p.change(), p.pending())).collect();
    assert_eq!(shape, [(1, 1), (2, 0), (3, 1)]);
    assert!(device.take_crash_points().is_empty());
    assert_eq!(device.counts(), OperationCounts { reads: 1, writes: 1, syncs: 1, discards: 1 });
}

#[test]
fn discards_may_leave_anything() {
    let device = SimulatedDevice::new(DEVICE_BYTES, 5);
    device.write_at(0, &[&filled(64, 7)]).unwrap();
    device.sync().unwrap();
    device.discard(0, 64 * 4096).unwrap();
    let mut buffer = AlignedBuf::zeroed(64 * BLOCK);
    device.read_at(0, &mut buffer).unwrap();
    let kinds: HashSet<bool> = buffer.chunks(BLOCK).map(|b| b.iter().all(|x| *x == 7)).collect();
    assert_eq!(kinds.len(), 2, "some blocks are kept, some are not");
}

#[test]
fn requests_fail_where_they_are_told_to() {
    let device = SimulatedDevice::new(DEVICE_BYTES, 6);
    device.inject(Fault::Fail { operation: Operation::Write, nth: 1 });
    device.inject(Fault::FailFrom { operation: Operation::Read, nth: 2 });
    write(&device, 0, 1).unwrap();
    let error = write(&device, 1, 1).unwrap_err();
    assert_eq!((error.kind, error.operation, error.offset), (ErrorKind::Io, Operation::Write, 4096));
    write(&device, 1, 1).unwrap();
    let mut block = filled(1, 0);
    let outcomes: Vec<bool> = (0..4).map(|_| device.read_at(0, &mut block).is_ok()).collect();
    assert_eq!(outcomes, [true, true, false, false]);
    assert_eq!(device.fault_counts(), FaultCounts { failed: 3, ..FaultCounts::default() });

    device.clear_faults();
    device.inject(Fault::Unreadable(8192..12288));
    device.read_at(4096, &mut block).unwrap();
    device.read_at(8192, &mut block).unwrap_err();
    device.read_at(12288, &mut block).unwrap();
    device.clear_faults();
    device.inject(Fault::FailRandomly { operation: Operation::Sync, one_in: 4 });
    let failed = (0..400).filter(|_| device.sync().is_err()).count();
    assert!((50..150).contains(&failed), "{failed}");
}

#[test]
fn a_failed_write_leaves_anything_in_its_range() {
    let outcomes: HashSet<Vec<u8>> = (0..50)
        .map(|seed| {
            let device = SimulatedDevice::new(DEVICE_BYTES, seed);
            device.inject(Fault::Fail { operation: Operation::Write, nth: 0 });
            write(&device, 1, 1).unwrap_err();
            sectors(&device, 1)
        })
        .collect();
    assert!(outcomes.len() > 5, "{outcomes:?}");
}

#[test]
fn after_a_failed_sync_a_good_one_proves_nothing() {
    let lost = (0..50).filter(|seed| {
        let device = SimulatedDevice::new(DEVICE_BYTES, *seed);
        write(&device, 0, 1).unwrap();
        device.inject(Fault::Fail { operation: Operation::Sync, nth: 0 });
        device.sync().unwrap_err();
        device.sync().unwrap();
        assert_eq!(first(&device, 0), 1, "reads go on to see it");
        first(&device.crash(), 0) == 0
    });
    assert!((5..45).contains(&lost.count()));
}

#[test]
fn writes_get_lost_and_go_astray() {
    let device = SimulatedDevice::new(DEVICE_BYTES, 7);
    device.inject(Fault::Lose { nth: 0 });
    write(&device, 0, 1).unwrap();
    device.inject(Fault::Misdirect { nth: 0, to: Some(5 * 4096) });
    write(&device, 1, 2).unwrap();
    device.sync().unwrap();
    let found: Vec<u8> = (0..6).map(|block| first(&device, block)).collect();
    assert_eq!(found, [0, 0, 0, 0, 0, 2]);
    device.inject(Fault::Misdirect { nth: 0, to: None });
    device.write_at(0, &[&filled(256, 3)]).unwrap();
    assert_eq!(first(&device, 0), 3, "a write as long as the device has nowhere else to go");
    assert_eq!((device.fault_counts().lost, device.fault_counts().misdirected), (1, 2));
}

#[test]
fn a_full_medium_takes_no_more() {
    let device = SimulatedDevice::new(DEVICE_BYTES, 8);
    device.inject(Fault::Full { after: 10_000 });
    write(&device, 0, 1).unwrap();
    write(&device, 1, 1).unwrap();
    assert_eq!(write(&device, 2, 1).unwrap_err().kind, ErrorKind::NoSpace);
    device.sync().unwrap();
}

#[test]
fn when_the_power_is_off_nothing_works() {
    let device = SimulatedDevice::new(DEVICE_BYTES, 9);
    device.inject(Fault::PowerOff { nth: 1 });
    write(&device, 0, 1).unwrap();
    first(&device, 0);
    assert!(!device.power_is_off());
    device.sync().unwrap_err();
    assert!(device.power_is_off());
    device.read_at(0, &mut filled(1, 0)).unwrap_err();
    write(&device, 1, 1).unwrap_err();
    device.discard(0, 4096).unwrap_err();
    let outcomes: HashSet<(u8, u8)> =
        (0..100).map(|seed| device.crash_point().crash(seed)).map(|c| (first(&c, 0), first(&c, 1))).collect();
    assert_eq!(outcomes, HashSet::from([(0, 0), (1, 0)]), "only the first write can have landed");
}

#[test]
fn bits_rot_where_something_was_written() {
    let device = SimulatedDevice::new(DEVICE_BYTES, 10);
    assert!(device.rot(0..DEVICE_BYTES, 5).is_empty());
    write(&device, 7, 0).unwrap();
    device.sync().unwrap();
    let offsets = device.rot(0..DEVICE_BYTES, 1);
    assert!(offsets.iter().all(|offset| offset / 4096 == 7));
    let image = device.durable_image();
    let ones: u32 = image.blocks().flat_map(|(_, block)| block.iter().map(|b| b.count_ones())).sum();
    assert_eq!(ones, 1);
    assert_eq!(image, device.image());
}

#[test]
fn unwritten_blocks_may_hold_garbage() {
    let device = SimulatedDevice::with_garbage(DEVICE_BYTES, 11);
    let (mut a, mut b) = (AlignedBuf::zeroed(BLOCK), AlignedBuf::zeroed(BLOCK));
    device.read_at(0, &mut a).unwrap();
    device.read_at(4096, &mut b).unwrap();
    assert_ne!(a[..], b[..]);
    device.crash().read_at(0, &mut b).unwrap();
    assert_eq!(a[..], b[..], "it stays the same");
    let error = device.read_at(DEVICE_BYTES, &mut a).unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutOfRange);
}

#[test]
fn an_environment_repeats_itself() {
    let run = || {
        let environment = SimulatedEnvironment::new(5);
        let before = (environment.now(), environment.monotonic(), environment.random());
        environment.sleep(std::time::Duration::from_secs(3));
        (before, environment.now(), environment.monotonic(), environment.random(), environment.threads())
    };
    let (before, now, monotonic, random, threads) = run();
    assert_eq!(run(), (before, now, monotonic, random, threads));
    assert!(now > before.0 + std::time::Duration::from_secs(3) && monotonic > before.1);
    assert_ne!(random, before.2);
    assert_eq!(threads, 0);
}
