//! The allocator against a plain list of booleans, and how free space ages when it is nearly gone.

use super::*;

#[test]
fn free_runs_are_found_in_order() {
    let mut map = Allocator::new(10_000, Vec::new());
    for used in [(0, 7), (70, 1), (71, 120), (4090, 20), (9_999, 1)] {
        assert!(map.take(Extent { start: used.0, blocks: used.1 }));
    }
    let (mut from, mut found) = (0, Vec::new());
    while let Some(run) = map.free_run(from, 2000) {
        found.push((run.start, run.blocks));
        from = run.end();
    }
    let expected = [(7, 63), (191, 2000), (2191, 1899), (4110, 2000), (6110, 2000), (8110, 1889)];
    assert_eq!(found, expected);
}

use espalier_storage::Random;

/// One boolean per block: true is used.
struct Model(Vec<bool>);

impl Model {
    fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs = Vec::new();
        let mut at = 0;
        for group in self.0.chunk_by(|a, b| a == b) {
            if !group[0] {
                runs.push((at, group.len() as u64));
            }
            at += group.len() as u64;
        }
        runs
    }

    fn fill(&mut self, extent: Extent, used: bool) {
        for block in extent.start..extent.end() {
            assert_eq!(self.0[block as usize], !used, "block {block} of {extent}");
            self.0[block as usize] = used;
        }
    }

    fn check(&self, allocator: &Allocator) {
        let runs = self.runs();
        assert_eq!(allocator.free(), runs.iter().map(|(_, n)| n).sum::<u64>());
        assert_eq!(allocator.longest(), runs.iter().map(|(_, n)| *n).max().unwrap_or(0));
        let mut counts = vec![0; allocator.histogram().counts.len()];
        runs.iter().for_each(|(_, n)| counts[n.ilog2() as usize] += 1);
        assert_eq!(allocator.histogram().counts, counts);
    }
}

#[test]
fn agrees_with_a_list_of_booleans() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let blocks = *random.choose(&[1, 63, 64, 65, 700, 4096, 4097, 9000, 20_000]);
        let longest = *random.choose(&[1, 8, 100, 6000]);
        let words: Vec<u64> = (0..random.index(5)).map(|_| random.next_u64() & random.next_u64()).collect();
        let set = |block: u64| words.get((block / 64) as usize).is_some_and(|w| w >> (block % 64) & 1 == 1);
        let mut model = Model((0..blocks).map(set).collect());
        let mut allocator =
            Allocator::new(blocks, words.into_iter().take(blocks.div_ceil(64) as usize).collect());
        let mut held: Vec<Extent> = Vec::new();
        model.check(&allocator);
        for _ in 0..600 {
            if random.one_in(3) && !held.is_empty() {
                let extent = held.swap_remove(random.index(held.len()));
                // Sometimes only a part of what was taken.
                let cut = if random.one_in(4) { random.below(u64::from(extent.blocks)) as u32 } else { 0 };
                if cut > 0 {
                    held.push(Extent { blocks: cut, ..extent });
                }
                let rest = Extent { start: extent.start + u64::from(cut), blocks: extent.blocks - cut };
                assert!(allocator.release(rest), "seed {seed}");
                assert!(!allocator.release(rest), "seed {seed}: released twice");
                model.fill(rest, false);
            } else {
                let want = random.between(1..=longest) as u32;
                let near = random.one_in(2).then(|| random.below(blocks + 10));
                let lowest = |from: u64| {
                    let fits = |(start, n): &(u64, u64)| {
                        let begin = (*start).max(from);
                        (begin + u64::from(want) <= start + n).then_some(begin)
                    };
                    model.runs().iter().find_map(fits)
                };
                let close = near.and_then(|near| {
                    lowest(near).filter(|start| *start - near <= NEAR_REQUEST_LENGTHS * u64::from(want))
                });
                let got = allocator.allocate(want, near);
                assert_eq!(got.is_some(), lowest(0).is_some(), "seed {seed}: {want} blocks");
                if close.is_some() {
                    assert_eq!(
                        got.map(|extent| extent.start),
                        close,
                        "seed {seed}: {want} blocks near {near:?}"
                    );
                }
                if let Some(extent) = got {
                    model.fill(extent, true);
                    held.push(extent);
                }
            }
        }
        model.check(&allocator);
    }
}

#[test]
fn takes_only_what_is_free_and_there() {
    let mut allocator = Allocator::new(100, Vec::new());
    assert!(allocator.take(Extent { start: 10, blocks: 20 }));
    assert!(!allocator.take(Extent { start: 29, blocks: 5 }));
    assert!(!allocator.take(Extent { start: 99, blocks: 2 }));
    assert!(!allocator.take(Extent { start: u64::MAX, blocks: 2 }));
    assert!(!allocator.release(Extent { start: 5, blocks: 10 }));
    assert_eq!(allocator.free(), 80);
    assert_eq!(allocator.allocate(0, None), None);
}

/// Fills 4 GiB to `percent`, replaces its content several times over by extents of mixed sizes, and
/// returns how many requests found no run, by the binary logarithm of their blocks. Each of those
/// is tried again at half its size.
fn age(percent: u64, seed: u64) -> [u64; 9] {
    const BLOCKS: u64 = 1 << 20;
    let mut random = Random::new(seed);
    let mut allocator = Allocator::new(BLOCKS, Vec::new());
    let mut held: Vec<Extent> = Vec::new();
    let mut refused = [0; 9];
    let mut near = None;
    for _ in 0..300_000 {
        while BLOCKS - allocator.free() > BLOCKS * percent / 100 {
            // What was written together tends to be deleted together.
            let at = random.index(held.len());
            for _ in 0..random.between(1..=16).min(held.len() as u64) {
                let extent = held.swap_remove(at.min(held.len() - 1));
                assert!(allocator.release(extent));
            }
        }
        let mut want = match random.below(10) {
            0..5 => random.between(1..=4),
            5..9 => random.between(4..=64),
            _ => random.between(64..=256),
        } as u32;
        let extent = loop {
            match allocator.allocate(want, near) {
                Some(extent) => break extent,
                None => {
                    refused[want.ilog2() as usize] += 1;
                    want /= 2;
                }
            }
        };
        near = random.one_in(8).then(|| extent.end());
        held.push(extent);
    }
    println!("{percent}% full: refused {refused:?}, free runs {:?}", allocator.histogram().counts);
    refused
}

#[test]
fn a_nearly_full_store_keeps_runs() {
    let [at_90, at_95, at_97] = [(90, 1), (95, 2), (97, 3)].map(|(percent, seed)| age(percent, seed));
    assert_eq!(at_90.iter().sum::<u64>(), 0, "at 90% nothing is refused");
    assert_eq!(at_95[..5].iter().sum::<u64>(), 0, "at 95% nothing below 128 KiB is");
    assert_eq!(at_97[..4].iter().sum::<u64>(), 0, "at 97% nothing below 64 KiB is");
}
