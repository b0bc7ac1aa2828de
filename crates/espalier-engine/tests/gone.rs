//! A state that was replaced, and of which a part was deleted in order, as a slow reader of an
//! object store meets it: that is no damage, and no check takes it for some.

use espalier_engine::{Batch, ErrorKind, FormatOptions, IndexId, OpenOptions, Store};
use espalier_storage::{Fault, Random, SimulatedDevice, SimulatedEnvironment};
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const VALUES: u64 = 1200;

fn environment() -> Arc<SimulatedEnvironment> {
    Arc::new(SimulatedEnvironment::new(7))
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:06}").into_bytes()
}

/// A store of 48 MiB, and its device.
fn filled() -> (Arc<SimulatedDevice>, IndexId) {
    let device = Arc::new(SimulatedDevice::new(128 * MIB, 7));
    Store::format(device.clone(), environment(), &FormatOptions::default()).unwrap();
    let store = Store::open(device.clone(), environment(), OpenOptions::default()).unwrap();
    let volume = store.create_volume("v", 1, 0, &[]).unwrap();
    let index = IndexId { volume, index: 0 };
    for n in 0..VALUES {
        let mut value = vec![0; 40 << 10];
        Random::new(n).fill(&mut value);
        let mut batch = Batch::new();
        batch.insert(index, &key(n), value);
        store.commit(batch).unwrap();
    }
    store.close().unwrap();
    (device, index)
}

/// From now on nothing that begins at or after byte `from` is there.
fn delete(device: &SimulatedDevice, from: u64) {
    device.clear_faults();
    device.inject(Fault::Deleted(from..u64::MAX));
}

/// With so little memory that most is read from the device.
fn open(device: &Arc<SimulatedDevice>) -> espalier_engine::Result<Arc<Store>> {
    let options = OpenOptions { memory: 8 << 20, read_only: true, ..OpenOptions::default() };
    Store::open(device.clone(), environment(), options)
}

#[test]
fn a_verification_of_a_state_that_is_gone_ends_with_that() {
    let (device, index) = filled();
    let store = open(&device).unwrap();
    assert!(store.verify(&mut |_| ()).unwrap().problems.is_empty());
    delete(&device, 24 * MIB);
    let before = device.fault_counts().failed;
    let error = store.verify(&mut |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
    // It ends at once.
    let failed = device.fault_counts().failed - before;
    assert!(failed < 10, "{failed} reads failed");
    assert_eq!(store.still_there().unwrap_err().kind(), ErrorKind::Gone);
    assert_eq!(store.scrub(0, MIB).unwrap_err().kind(), ErrorKind::Gone);
    // What is there can be read; what is not says so.
    let kinds = (0..VALUES).map(|n| store.get(index, &key(n)).map_err(|error| error.kind()));
    let kinds: Vec<_> = kinds.map(|outcome| outcome.map(drop)).collect();
    assert!(kinds.contains(&Ok(())) && kinds.contains(&Err(ErrorKind::Gone)));
    assert!(kinds.iter().all(|kind| matches!(kind, Ok(()) | Err(ErrorKind::Gone))), "{kinds:?}");
}

#[test]
fn a_scrub_ends_where_the_state_is_gone() {
    let (device, _) = filled();
    let store = open(&device).unwrap();
    delete(&device, 24 * MIB);
    let mut from = 0;
    let error = loop {
        match store.scrub(from, MIB) {
            Ok(step) => {
                assert!(step.damaged.is_empty(), "{:?}", step.damaged);
                from = step.next.expect("not all of it is there");
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind(), ErrorKind::Gone, "{error}");
}

/// Without a question for it, that looks like damage: no superblock, no tables, no trees.
#[test]
fn what_is_gone_is_neither_opened_nor_repaired() {
    let (device, _) = filled();
    for from in [0, MIB, 16 * MIB, 40 * MIB] {
        delete(&device, from);
        let rescue = Store::open_damaged(device.clone(), environment(), OpenOptions::default(), &mut |_| ());
        assert_eq!(rescue.map(drop).unwrap_err().kind(), ErrorKind::Gone, "from {from}");
    }
    delete(&device, 0);
    assert_eq!(open(&device).map(drop).unwrap_err().kind(), ErrorKind::Gone);
}
