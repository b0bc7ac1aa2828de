//! What is said of devices that hold no store, half a store, or a newer one.

use super::*;
use crate::space::superblock::{FORMAT_VERSION, MAGIC, MAX_BLOCKS, SLOT_BLOCKS};
use espalier_storage::MemoryDevice;

fn guarded(device: impl Device + 'static) -> Arc<GuardedDevice> {
    GuardedDevice::new(Arc::new(device), false)
}

fn store() -> Arc<GuardedDevice> {
    new_store(Arc::new(MemoryDevice::new(BYTES))).device.clone()
}

fn block(device: &GuardedDevice, slot: usize) -> AlignedBuf {
    device.read_extent(Extent { start: SLOT_BLOCKS[slot], blocks: 1 }).unwrap()
}

/// Changes a superblock and makes its checksum right again.
fn forge(device: &GuardedDevice, slot: usize, change: impl FnOnce(&mut [u8])) {
    let mut bytes = block(device, slot);
    change(&mut bytes);
    let sum = xxh3_64_with_seed(&bytes[..504], SLOT_BLOCKS[slot]);
    bytes[504..512].copy_from_slice(&sum.to_le_bytes());
    device.write_at(SLOT_BLOCKS[slot] * BLOCK as u64, &[&bytes]).unwrap();
}

fn kind_of(device: &Arc<GuardedDevice>) -> ErrorKind {
    let error = read_superblocks(device).unwrap_err();
    assert!(Space::open(device.clone(), &OPTIONS).is_err());
    error.kind()
}

#[test]
fn every_field_survives() {
    let device = store();
    let root = |block: u64, height: u8| superblock::TableRoot {
        block: block + 300,
        copy: block + 400,
        checksum: block * 7,
        height,
    };
    let mut wanted = Superblock {
        compatible: 1 << 63,
        label: "é".repeat(32),
        created: Duration::from_nanos(12_345_678_901),
        checkpoint_lsn: crate::Lsn(3),
        next_msn: crate::Msn(4),
        next_piece: PieceId(5),
        log_position: *b"0123456789abcdef0123456789abcdef",
        checkpointed: Duration::from_nanos(99),
        clean: false,
        compression: 2,
        roots: Roots { ntt: root(1, 0), space_map: root(2, 8), volumes: root(3, 1), reclaim: root(4, 2) },
        ..first(BYTES)
    };
    for generation in [1000, 1001] {
        wanted.generation = generation;
        wanted.write(&device).unwrap();
        assert_eq!(read_superblocks(&device).unwrap().newest, wanted);
    }
}

#[test]
fn what_is_no_store_is_told_so() {
    assert_eq!(kind_of(&guarded(MemoryDevice::new(0))), ErrorKind::NotAStore);
    assert_eq!(kind_of(&guarded(MemoryDevice::new(4096))), ErrorKind::NotAStore);
    assert_eq!(kind_of(&guarded(MemoryDevice::new(BYTES))), ErrorKind::NotAStore);
    assert_eq!(kind_of(&guarded(SimulatedDevice::with_garbage(BYTES, 1))), ErrorKind::NotAStore);
    assert!(Geometry::new(1 << 19, None).is_err());
}

#[test]
fn a_store_has_at_most_so_many_blocks() {
    let most = MAX_BLOCKS * BLOCK as u64;
    assert!(Geometry::new(most, None).is_ok());
    let refused = Geometry::new(most + BLOCK as u64, None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let device = store();
    let mut forged = read_superblocks(&device).unwrap().newest;
    forged.geometry.blocks = MAX_BLOCKS + 1;
    for _ in 0..2 {
        forged.generation += 1;
        forged.write(&device).unwrap();
    }
    let refused = read_superblocks(&device).unwrap_err();
    assert!(refused.to_string().contains("the geometry makes no sense"), "{refused}");
}

#[test]
fn newer_formats_are_refused_whatever_the_other_slot_says() {
    for slot in 0..2 {
        let device = store();
        forge(&device, slot, |bytes| bytes[8..12].copy_from_slice(&(FORMAT_VERSION + 1).to_le_bytes()));
        assert_eq!(kind_of(&device), ErrorKind::NewerFormat);
        let device = store();
        forge(&device, slot, |bytes| bytes[24] |= 2);
        assert_eq!(kind_of(&device), ErrorKind::NewerFormat);
        let device = store();
        forge(&device, slot, |bytes| bytes[16] = 1);
        assert!(read_superblocks(&device).is_ok(), "compatible features do not matter");
    }
}

#[test]
fn a_truncated_device_is_told_so() {
    let device = store();
    let short = MemoryDevice::new(BYTES - BLOCK as u64);
    for (slot, place) in SLOT_BLOCKS.iter().enumerate() {
        short.write_at(place * BLOCK as u64, &[&block(&device, slot)]).unwrap();
    }
    let error = read_superblocks(&guarded(short)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("truncated"), "{error}");
}

#[test]
fn one_damaged_superblock_is_survived_and_told() {
    for (slot, place) in SLOT_BLOCKS.iter().enumerate() {
        for at in [0, 9, 200, 511] {
            let device = store();
            let roots = read_superblocks(&device).unwrap().newest.roots;
            let mut bytes = block(&device, slot);
            bytes[at] ^= 4;
            device.write_at(place * BLOCK as u64, &[&bytes]).unwrap();
            let opened = Space::open(device, &OPTIONS).unwrap();
            assert_eq!(opened.space.superblock().slot(), 1 - slot);
            assert_eq!(opened.space.superblock().roots, roots, "either slot has the newest checkpoint");
            assert_eq!(opened.damaged.len(), 1, "{:?}", opened.damaged);
            // The next checkpoint repairs it.
            checkpoint(&opened.space).unwrap();
            assert!(read_superblocks(&opened.space.device).unwrap().damaged.is_empty());
        }
    }
}

#[test]
fn two_damaged_superblocks_are_damage() {
    let device = store();
    for (slot, place) in SLOT_BLOCKS.iter().enumerate() {
        let mut bytes = block(&device, slot);
        bytes[100] ^= 1;
        device.write_at(place * BLOCK as u64, &[&bytes]).unwrap();
    }
    assert_eq!(kind_of(&device), ErrorKind::Damaged);
}

fn spare() -> Extent {
    Extent { start: BYTES / BLOCK as u64 - 1, blocks: 1 }
}

fn wipe(device: &GuardedDevice, block: u64) {
    device.write_at(block * BLOCK as u64, &[&AlignedBuf::zeroed(BLOCK)]).unwrap();
}

/// Without both slots a device is no store, or a damaged one, to all but a repair, and that finds
/// the same checkpoint at the end; also in the middle of a device that is longer than the store.
#[test]
fn the_spare_superblock_is_for_repairs() {
    for (longer, wiped) in [(0, true), (0, false), (5 << 20, true)] {
        let device = GuardedDevice::new(Arc::new(MemoryDevice::new(BYTES + longer)), false);
        let space = Space::create(device.clone(), first(BYTES), &VolumeTable::default(), &OPTIONS).unwrap();
        checkpoint(&space).unwrap();
        let newest = read_superblocks(&device).unwrap().newest;
        for place in SLOT_BLOCKS {
            if wiped {
                wipe(&device, place);
            } else {
                let mut bytes = block(&device, usize::from(place != 0));
                bytes[300] ^= 1;
                device.write_at(place * BLOCK as u64, &[&bytes]).unwrap();
            }
        }
        assert_eq!(kind_of(&device), if wiped { ErrorKind::NotAStore } else { ErrorKind::Damaged });
        let found = superblock::search_superblocks(&device).unwrap();
        assert_eq!((found.newest.roots, found.newest.geometry), (newest.roots, newest.geometry));
        assert!(!found.damaged.is_empty());
        wipe(&device, spare().start);
        assert!(superblock::search_superblocks(&device).is_err(), "there is nothing left");
    }
}

/// After a crash the spare place may hold what no slot does, or lag behind: the newest counts, and
/// before anything is written all agree.
#[test]
fn the_newest_superblock_counts_wherever_it_is() {
    for ahead in [true, false] {
        let device = store();
        let opened = Space::open(device.clone(), &OPTIONS).unwrap();
        let place = spare();
        let before = [0, 1].map(|slot| block(&device, slot));
        let old_spare = device.read_extent(place).unwrap();
        let roots = opened.space.write_tables(&VolumeTable::default(), &[PieceId(77)]).unwrap();
        opened.space.commit_superblock(Superblock { roots, ..opened.space.superblock() }).unwrap();
        if ahead {
            for (slot, bytes) in before.iter().enumerate() {
                device.write_at(SLOT_BLOCKS[slot] * BLOCK as u64, &[bytes]).unwrap();
            }
        } else {
            device.write_at(place.byte_offset(), &[&old_spare]).unwrap();
        }
        assert_eq!(read_superblocks(&device).unwrap().newest.roots, roots);
        heal(&device).unwrap();
        for lost in [vec![], vec![0], vec![1], vec![0, 1], vec![place.start]] {
            let all: Vec<(u64, AlignedBuf)> = [SLOT_BLOCKS[0], SLOT_BLOCKS[1], place.start]
                .map(|start| (start, device.read_extent(Extent { start, blocks: 1 }).unwrap()))
                .into();
            // The slot that heals last may still say the older state; the two others say the newer
            // one.
            let slots: Vec<u64> =
                lost.iter().map(|n| if *n < 2 { SLOT_BLOCKS[*n as usize] } else { *n }).collect();
            slots.iter().for_each(|block| wipe(&device, *block));
            let found = superblock::search_superblocks(&device).unwrap();
            assert_eq!(found.newest.roots, roots, "without {slots:?}");
            for (start, bytes) in all {
                device.write_at(start * BLOCK as u64, &[&bytes]).unwrap();
            }
        }
    }
}

#[test]
fn a_superblock_in_the_other_slot_is_damage() {
    let device = store();
    let (a, b) = (block(&device, 0), block(&device, 1));
    device.write_at(0, &[&b]).unwrap();
    device.write_at(SLOT_BLOCKS[1] * BLOCK as u64, &[&a]).unwrap();
    assert_eq!(kind_of(&device), ErrorKind::Damaged);
}

/// Where tree and log part, batches would be carried out twice, or not at all.
#[test]
fn a_superblock_whose_tree_and_log_part_is_damage() {
    let position = |lsn| crate::log::LogPosition { block: 9, lsn, chain: 3, synced: 9 }.encode();
    for (tree, log, right) in [(7, 7, true), (7, 8, false), (8, 7, false)] {
        let (checkpoint_lsn, log_position) = (crate::Lsn(tree), position(crate::Lsn(log)));
        let superblock = Superblock { checkpoint_lsn, log_position, ..first(BYTES) };
        let checked = crate::store::opening::check_log_position(&superblock);
        assert_eq!(
            checked.map_err(|error| error.kind()),
            if right { Ok(()) } else { Err(ErrorKind::Damaged) }
        );
    }
}

/// Arbitrary fields under a right checksum: an error or a store, never a panic or a huge
/// allocation.
#[test]
fn forged_superblocks_do_no_harm() {
    for seed in 0..3000 {
        let device = store();
        let mut random = Random::new(seed);
        let slot = random.index(2);
        forge(&device, slot, |bytes| {
            for _ in 0..random.between(1..=4) {
                let at = random.between(16..=503) as usize;
                bytes[at] = *random.choose(&[0, 1, 7, 8, 9, 128, 255]);
                if random.one_in(4) {
                    bytes[at..(at + 8).min(504)].fill(255);
                }
            }
            bytes[24..32].fill(0);
            bytes[24] = random.below(2) as u8;
        });
        if let Ok(opened) = Space::open(device, &OPTIONS) {
            let _ = problems(&opened.space, &HashMap::new());
            let _ = checkpoint(&opened.space);
        }
    }
}

#[test]
fn a_new_store_hides_an_older_one_and_shows_its_magic() {
    let device = store();
    assert_eq!(block(&device, 0)[..8], MAGIC);
    let old = read_superblocks(&device).unwrap().newest;
    let other = Superblock { uuid: [9; 16], ..first(BYTES) };
    Space::create(device.clone(), other, &VolumeTable::default(), &OPTIONS).unwrap();
    let found = read_superblocks(&device).unwrap();
    assert_ne!(found.newest.uuid, old.uuid);
    assert!(found.damaged.is_empty());
}

#[test]
fn volumes_survive_and_damage_to_them_is_told() {
    let mut table = VolumeTable::default();
    let index = IndexRoot { node: Some(PieceId(9)), height: 3, view: vec![1, 2, 3].into() };
    let entry = VolumeEntry {
        flags: 5,
        name: "main".into(),
        parameters: vec![7; 5000].into(),
        indexes: vec![IndexRoot::default(), index],
    };
    assert_eq!(table.add(entry.clone()).unwrap(), 1);
    assert_eq!(table.add(entry.clone()).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(table.add(VolumeEntry { name: "second".into(), ..VolumeEntry::default() }).unwrap(), 2);
    assert_eq!(table.add(VolumeEntry::default()).unwrap_err().kind(), ErrorKind::InvalidArgument);
    let bytes = table.encode();
    assert_eq!(VolumeTable::decode(&bytes).unwrap(), table);
    for len in 1..bytes.len() {
        assert!(VolumeTable::decode(&bytes[..len]).is_err(), "cut to {len}");
    }
    let mut random = Random::new(1);
    for _ in 0..2000 {
        let mut damaged = bytes.clone();
        damaged[random.index(60)] = random.next_u64() as u8;
        let _ = VolumeTable::decode(&damaged);
    }
    let device = store();
    let opened = Space::open(device.clone(), &OPTIONS).unwrap();
    let roots = opened.space.write_tables(&table, &[]).unwrap();
    opened.space.commit_superblock(Superblock { roots, ..opened.space.superblock() }).unwrap();
    assert_eq!(Space::open(device, &OPTIONS).unwrap().volumes, table);
}

/// A table that could not be written would keep every later checkpoint from being made.
#[test]
fn volumes_never_outgrow_the_volume_table() {
    let mut table = VolumeTable::default();
    let parameters: bytes::Bytes = vec![7; MAX_PARAMETERS].into();
    let entry = |number: u32| VolumeEntry {
        name: number.to_string(),
        parameters: parameters.clone(),
        indexes: vec![IndexRoot::default(); 3],
        ..VolumeEntry::default()
    };
    let refused = (0..2000).find_map(|number| table.add(entry(number)).err()).unwrap();
    assert_eq!(refused.kind(), ErrorKind::InvalidArgument);
    let full = table.encode().len();
    assert!(full <= byte_table::MAX_STRING_BYTES && full + 2 * MAX_PARAMETERS > byte_table::MAX_STRING_BYTES);
    table.add(VolumeEntry { name: "small".into(), ..VolumeEntry::default() }).unwrap();
}
