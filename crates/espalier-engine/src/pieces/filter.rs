//! Filters: a filter in the node header rules out most parts that do not hold a key, at ten bits
//! per key [Bloom 1970; double hashing after Kirsch and Mitzenmacher 2006].
//!
//! Filters lie in node headers, so their bits are part of the format and must mean the same for
//! ever. That is why this is no general-purpose crate: those promise no stable layout.
//!
//! Invariant: a key that was added is never denied, whatever machine wrote the filter.

use crate::{Error, Result};
use xxhash_rust::xxh3::xxh3_64;

/// Bits spent per key.
const BITS_PER_KEY: usize = 10;

/// Bits set and tested per key: `BITS_PER_KEY * ln 2`, which makes about 0.9% false positives.
const PROBES_PER_KEY: u8 = 7;

/// The longest filter that is made or accepted, in bytes.
pub(crate) const MAX_FILTER_BYTES: usize = 1 << 20;

/// The set of keys of a part, approximately. Cloning copies its bits.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Filter {
    probes: u8,
    bits: Box<[u8]>,
}

impl Filter {
    /// What a filter knows about a key.
    pub(crate) fn hash(key: &[u8]) -> u64 {
        xxh3_64(key)
    }

    /// The filter of the keys with these hashes.
    pub(crate) fn build(hashes: &[u64]) -> Self {
        let bytes = (hashes.len() * BITS_PER_KEY).div_ceil(8).clamp(8, MAX_FILTER_BYTES);
        let mut filter = Self { probes: PROBES_PER_KEY, bits: vec![0; bytes].into() };
        for &hash in hashes {
            for bit in filter.positions(hash) {
                filter.bits[bit / 8] |= 1 << (bit % 8);
            }
        }
        filter
    }

    /// Bit `i` of a key is the top of `low + i * high` (32 bits, wrapping) scaled to the filter's
    /// length.
    fn positions(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let length = self.bits.len() as u64 * 8;
        let (low, high) = (hash as u32, (hash >> 32) as u32 | 1);
        (0..u32::from(self.probes))
            .map(move |i| ((u64::from(low.wrapping_add(high.wrapping_mul(i))) * length) >> 32) as usize)
    }

    /// False if the part certainly has no entry for `key`.
    pub(crate) fn may_contain(&self, key: &[u8]) -> bool {
        self.may_contain_hash(Self::hash(key))
    }

    /// As [`Self::may_contain`], for a key with the [`Self::hash`] `hash`.
    pub(crate) fn may_contain_hash(&self, hash: u64) -> bool {
        self.positions(hash).all(|bit| self.bits[bit / 8] & (1 << (bit % 8)) != 0)
    }

    /// Bytes of its encoding, and about those in memory.
    pub(crate) fn encoded_len(&self) -> usize {
        1 + self.bits.len()
    }

    /// Its encoding: one byte for the bits per key, then the bits, lowest first.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.encoded_len());
        out.push(self.probes);
        out.extend_from_slice(&self.bits);
        out
    }

    /// The filter that [`Self::to_bytes`] gave.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if no filter has this encoding.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self> {
        match bytes.split_first() {
            Some((&probes @ 1..=32, bits)) if !bits.is_empty() && bits.len() <= MAX_FILTER_BYTES => {
                Ok(Self { probes, bits: bits.into() })
            }
            _ => Err(Error::damaged(format!("{} bytes are no filter", bytes.len()))),
        }
    }
}

impl std::fmt::Debug for Filter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Filter({} bytes)", self.bits.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(range: std::ops::Range<u32>) -> Vec<u64> {
        range.map(|i| Filter::hash(format!("some/path/{i}").as_bytes())).collect()
    }

    #[test]
    fn false_positives_are_few_and_false_negatives_none() {
        for count in [0, 1, 5, 100, 1000, 20_000] {
            let present = hashes(0..count);
            let filter = Filter::from_bytes(&Filter::build(&present).to_bytes()).unwrap();
            assert!(present.iter().all(|h| filter.may_contain_hash(*h)));
            let wrong = hashes(1_000_000..1_020_000).iter().filter(|h| filter.may_contain_hash(**h)).count();
            assert!(wrong < 20_000 * 13 / 1000, "{wrong} of 20000 with {count} keys");
        }
    }

    /// The bits are format: this must never change.
    #[test]
    fn the_layout_is_stable() {
        let filter = Filter::build(&[0x0123_4567_89ab_cdef, Filter::hash(b"espalier")]);
        let text: String = filter.to_bytes().iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(text, STABLE);
        assert!(filter.may_contain(b"espalier") && !filter.may_contain(b"trellis"));
    }
    const STABLE: &str = "07800080019c00c000";

    #[test]
    fn nonsense_is_refused() {
        for bytes in [&[][..], &[7], &[0, 1], &[33, 1], &vec![7; MAX_FILTER_BYTES + 2]] {
            assert!(Filter::from_bytes(bytes).is_err());
        }
    }
}
