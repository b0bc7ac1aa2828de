use super::*;
use espalier_storage::{AlignedBuf, BLOCK};

/// What is announced is got before it is read, as on the device below.
#[test]
fn announcements_reach_the_object_device() {
    const BLOCKS: usize = 64;
    let device = SimulatedJournaledDevice::blank(1 << 26, 1).unwrap();
    assert_eq!(device.read_ahead_bytes(), device.device.read_ahead_bytes());
    device.write_at(0, &[&AlignedBuf::zeroed(BLOCKS * BLOCK)]).unwrap();
    device.sync().unwrap();
    // The store has it: nothing is in memory any more.
    device.device.step().unwrap();
    device.world.bucket.take_most_under_way();
    device.announce(std::slice::from_ref(&(0..(BLOCKS * BLOCK) as u64)));
    assert!(device.world.bucket.take_most_under_way() > 0);
}
