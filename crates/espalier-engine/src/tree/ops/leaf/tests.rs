use crate::model::ids::IndexId;
use crate::{Batch, FormatOptions, OpenOptions, Store};
use espalier_storage::{MemoryDevice, SimulatedEnvironment};
use std::sync::Arc;

#[test]
fn a_leaf_that_refers_to_what_the_log_has_placed_waits_for_the_checkpoint() {
    let (device, env) = (Arc::new(MemoryDevice::new(512 << 20)), Arc::new(SimulatedEnvironment::new(1)));
    Store::format(device.clone(), env.clone(), &FormatOptions::default()).unwrap();
    let store = Store::open(device, env, OpenOptions::default()).unwrap();
    let id = IndexId { volume: store.create_volume("v", 1, 0, &[]).unwrap(), index: 0 };
    let written = || store.statistics().device.bytes_written;
    let absorbed = |first: u8, synced: bool| {
        let mut batch = Batch::new();
        (0..64u8).for_each(|n| batch.insert(id, &[first, n], vec![first ^ n; 32 << 10]));
        store.commit(batch).unwrap();
        if synced {
            store.sync_all().unwrap();
        }
        let before = written();
        store.components.write.pipeline.absorb_now(&[id]).unwrap();
        written() - before
    };
    assert!(absorbed(1, false) >= 2 << 20, "values without a place are written with their leaf");
    assert_eq!(absorbed(2, true), 0);
    store.checkpoint().unwrap();
    for key in [[1, 7], [2, 7]] {
        assert_eq!(store.get(id, &key).unwrap().unwrap(), vec![key[0] ^ 7; 32 << 10]);
    }
    assert!(store.verify(&mut |_| {}).unwrap().problems.is_empty());
}
