use super::*;
use espalier_storage::Random;
use std::collections::BTreeSet;

const BLOCKS: u64 = 60;

#[test]
fn ranges_are_those_of_a_set_of_blocks() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let (mut reserved, mut set) = (ReservedBlocks::default(), BTreeSet::new());
        for _ in 0..40 {
            let start = random.below(BLOCKS);
            let range = start..start + 1 + random.below(BLOCKS / 4);
            if random.below(2) == 0 {
                reserved.add(range.clone());
                set.extend(range);
            } else {
                let gone = range.clone().filter(|block| set.remove(block)).count() as u64;
                reserved.remove(range, gone);
            }
            let flat: Vec<u64> = reserved.ranges().iter().cloned().flatten().collect();
            assert!(flat.iter().copied().eq(set.iter().copied()), "seed {seed}: {reserved:?}, {set:?}");
            assert_eq!(reserved.blocks(), set.len() as u64, "seed {seed}");
            assert!(reserved.is_exact() && reserved.gaps().iter().all(|gap| gap.start < gap.end));
            if !set.is_empty() {
                assert_eq!(ReservedBlocks::decode(&reserved.encode()).unwrap(), reserved);
            }
            let asked = random.below(BLOCKS)..BLOCKS;
            let overlap: Vec<u64> = reserved.overlap(asked.clone()).into_iter().flatten().collect();
            assert!(overlap.iter().eq(set.range(asked)), "seed {seed}");
        }
    }
}

#[test]
fn blocks_with_data_may_belong_to_the_ranges() {
    let mut reserved = ReservedBlocks { dense: true, ..ReservedBlocks::default() };
    reserved.add(0..10);
    reserved.remove(4..5, 1);
    reserved.join(4..5);
    assert!(reserved.ranges().iter().cloned().flatten().eq(0..10));
    assert_eq!((reserved.blocks(), reserved.is_exact()), (9, false));
    assert_eq!(ReservedBlocks::decode(&reserved.encode()).unwrap(), reserved);
    reserved.remove(0..10, 9);
    assert_eq!((reserved.ranges().len(), reserved.blocks()), (0, 0));
}

#[test]
fn damaged_records_are_refused() {
    let mut reserved = ReservedBlocks::default();
    reserved.add(3..1000);
    reserved.add(2000..2001);
    reserved.begin(2000, 100);
    reserved.set_tail(2000, 500);
    assert_eq!(reserved.bytes(4096), 997 * 4096 + 500 - 100);
    let good = reserved.encode();
    for cut in 0..good.len() {
        if let Ok(other) = ReservedBlocks::decode(&good[..cut]) {
            assert_ne!(other, reserved);
        }
    }
    for bad in [
        &[][..],
        &[11],
        &[10, 0, 1, 0, 0, 1],
        &[11, 4, 1, 0, 0, 1],
        &[11, 2, 1, 1, 9, 0, 0, 1],
        &[11, 0, 2, 0, 0, 1],
        &[11, 0, 0, 0, 0, 1],
        &[11, 0, 1, 0, 0, 0],
        &[11, 0, 1, 1, 7, 5, 0, 1],
        &[11, 0, 1, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 1],
        &[11, 0, 2, 0, 0, 1, 0, 1],
        &[11, 0, 1, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1],
        &[11, 0, 1, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 9],
    ] {
        assert!(ReservedBlocks::decode(bad).is_err(), "{bad:?}");
    }
}
