//! The life of pieces, checkpoints, and what a crash between any two device writes leaves.

use super::*;
use crate::PieceKind;
use espalier_storage::MemoryDevice;
use std::collections::HashMap;
use std::time::Duration;

const OPTIONS: SpaceOptions = SpaceOptions { table_cache: 1 << 16, discard: true };

fn first(bytes: u64) -> Superblock {
    let geometry = Geometry::new(bytes, None).unwrap();
    Superblock::initial(geometry, [7; 16], "test", Duration::from_secs(5))
}

#[test]
fn a_new_store_opens_empty() {
    let device = GuardedDevice::new(Arc::new(MemoryDevice::new(2 << 20)), false);
    let space = Space::create(device.clone(), first(2 << 20), &VolumeTable::default(), &OPTIONS).unwrap();
    assert!(space.check(&HashMap::new(), &[], &mut |_| ()).is_empty());
    let free = space.free_blocks();
    drop(space);
    let opened = Space::open(device, &OPTIONS).unwrap();
    assert_eq!(opened.space.free_blocks(), free);
    assert_eq!(opened.volumes, VolumeTable::default());
    assert!(opened.other_damaged.is_none());
    assert_eq!(opened.space.check(&HashMap::new(), &[], &mut |_| ()), Vec::<String>::new());
}
