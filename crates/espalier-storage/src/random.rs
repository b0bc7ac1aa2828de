//! A small seeded generator for simulations: fast, portable, the same sequence for ever.

/// A deterministic source of numbers (SplitMix64: Steele, Lea and Flood, "Fast Splittable
/// Pseudorandom Number Generators", OOPSLA 2014). Not for secrets.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence that `seed` names.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// An index below `end`; 0 if `end` is 0.
    pub fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    /// A number in `range`, both ends included.
    pub fn between(&mut self, range: std::ops::RangeInclusive<u64>) -> u64 {
        let (start, end) = range.into_inner();
        start + self.below((end - start).saturating_add(1))
    }

    /// True once in `times` calls on average; never if `times` is 0.
    pub fn one_in(&mut self, times: u64) -> bool {
        times != 0 && self.below(times) == 0
    }

    /// One of `choices`, which must not be empty.
    pub fn choose<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// Fills `buffer` with arbitrary bytes.
    pub fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&self.next_u64().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Brings `items` into an arbitrary order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.index(i + 1));
        }
    }

    /// An independent sequence.
    pub fn split(&mut self) -> Self {
        Self(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_are_fixed_for_ever() {
        // Seeds in regression lists name these sequences.
        let mut random = Random::new(0);
        assert_eq!(random.next_u64(), 0xe220_a839_7b1d_cdaf);
        assert_eq!(random.next_u64(), 0x6e78_9e6a_a1b9_65f4);
    }

    #[test]
    fn numbers_stay_in_range() {
        let mut random = Random::new(7);
        let mut seen = [0u32; 5];
        for _ in 0..10_000 {
            seen[random.index(5)] += 1;
            assert!((3..=4).contains(&random.between(3..=4)));
        }
        assert!(seen.iter().all(|n| (1_500..2_500).contains(n)), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert!(!random.one_in(0));
        assert_eq!(random.between(0..=u64::MAX).leading_zeros() & !63, 0);
    }
}
