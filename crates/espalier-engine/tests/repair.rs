//! What a repair keeps and what it tells.

use espalier_engine::{Batch, FormatOptions, IndexId, OpenOptions, Store};
use espalier_storage::{AlignedBuf, Device, MemoryDevice, Random, SimulatedEnvironment};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn environment() -> Arc<SimulatedEnvironment> {
    Arc::new(SimulatedEnvironment::new(7))
}

fn options() -> OpenOptions {
    OpenOptions { memory: 16 << 20, ..OpenOptions::default() }
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:06}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    let mut bytes = vec![0; 40 << 10];
    Random::new(n).fill(&mut bytes);
    bytes
}

/// Large values that the log has put together into one part: when one of them is damaged, the others are kept, and
/// what is left is sound, though the part as a whole is not.
#[test]
fn values_beside_a_damaged_one_in_the_log_are_written_again() {
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 * MIB));
    Store::format(device.clone(), environment(), &FormatOptions::default()).unwrap();
    let store = Store::open(device.clone(), environment(), options()).unwrap();
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    let index = IndexId { volume, index: 0 };
    let mut batch = Batch::new();
    (0..60).for_each(|n| batch.insert(index, &key(n), value(n)));
    store.commit(batch).unwrap();
    store.sync_all().unwrap();
    // What is synced behind it says that it was durable.
    let mut batch = Batch::new();
    batch.insert(index, b"last", b"of all".to_vec());
    store.commit(batch).unwrap();
    store.sync_all().unwrap();

    // As a power cut leaves it, but for one bit.
    let mut image = AlignedBuf::zeroed(32 * MIB as usize);
    device.read_at(0, &mut image).unwrap();
    let wanted = &value(3)[10_000..10_064];
    let at = image.windows(64).position(|window| window == wanted).unwrap();
    image[at] ^= 4;
    let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(32 * MIB));
    device.write_at(0, &[&image]).unwrap();
    let rescue = Store::open_damaged(device.clone(), environment(), options(), &mut |_| ()).unwrap();
    assert_eq!(rescue.losses.len(), 1, "{:?}", rescue.losses);
    assert!(rescue.losses[0].range.as_ref().is_some_and(|range| range.contains(&key(3))));
    let check = |store: &Store| {
        for n in 0..60 {
            let right = (n != 3).then(|| value(n));
            assert_eq!(store.get(index, &key(n)).unwrap().map(Vec::from), right, "key {n}");
        }
        assert_eq!(store.get(index, b"last").unwrap().as_deref(), Some(&b"of all"[..]));
    };
    check(&rescue.store);
    rescue.store.close().unwrap();
    drop(rescue);
    let store = Store::open(device.clone(), environment(), options()).unwrap();
    check(&store);
    let report = store.verify(&mut |_| ()).unwrap();
    assert!(report.problems.is_empty(), "{:?}", report.problems);
    // Nor is anything left of the part that is right only value by value.
    let (mut from, mut damaged) = (Some(0), Vec::new());
    while let Some(at) = from {
        let step = store.scrub(at, MIB).unwrap();
        (from, damaged) = (step.next, [damaged, step.damaged].concat());
    }
    assert!(damaged.is_empty(), "{damaged:?}");
    store.close().unwrap();
    drop(store);
    let rescue = Store::open_damaged(device, environment(), options(), &mut |_| ()).unwrap();
    assert!(rescue.losses.is_empty(), "{:?}", rescue.losses);
    check(&rescue.store);
}
