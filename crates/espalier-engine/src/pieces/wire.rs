//! Reading and writing of bytes in the encoding of the format: little-endian integers, varints.
//!
//! A varint is LEB128: seven bits a byte, lowest first, the highest bit set in all but the last.
//! Readers never panic and never read behind the end: what is not there is `None`.

/// Takes values from the front of a byte slice.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads `bytes` from the front.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Bytes not read yet.
    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    /// The next `len` bytes.
    pub(crate) fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    /// One byte.
    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array().map(|[b]| b)
    }

    /// Four bytes, little-endian.
    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// Eight bytes, little-endian.
    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A varint of at most 64 bits.
    #[inline]
    pub(crate) fn varint(&mut self) -> Option<u64> {
        let (&first, rest) = self.rest.split_first()?;
        if first < 0x80 {
            self.rest = rest;
            return Some(u64::from(first));
        }
        self.long_varint()
    }

    #[inline(never)]
    fn long_varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for (i, &byte) in self.rest.iter().enumerate().take(10) {
            let low = u64::from(byte & 0x7f);
            if i == 9 && low > 1 {
                return None;
            }
            value |= low << (7 * i);
            if byte < 0x80 {
                self.rest = &self.rest[i + 1..];
                return Some(value);
            }
        }
        None
    }

    /// A varint that must fit 32 bits.
    #[inline]
    pub(crate) fn varint32(&mut self) -> Option<u32> {
        self.varint().and_then(|v| u32::try_from(v).ok())
    }
}

/// Appends a varint.
#[inline]
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Bytes that [`put_varint`] appends.
pub(crate) fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Maps small differences of either sign to small numbers.
pub(crate) fn zigzag(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)) as u64
}

/// Inverts [`zigzag`].
pub(crate) fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_come_back(value: u64, shift in 0u32..64, tail: u8) {
            let value = value >> shift;
            let mut out = Vec::new();
            put_varint(&mut out, value);
            prop_assert_eq!(out.len(), varint_len(value));
            for cut in 0..out.len() {
                prop_assert_eq!(Reader::new(&out[..cut]).varint(), None);
            }
            out.push(tail);
            let mut reader = Reader::new(&out);
            prop_assert_eq!(reader.varint(), Some(value));
            prop_assert_eq!(reader.u8(), Some(tail));
        }

        #[test]
        fn zigzag_comes_back(value: i64) {
            prop_assert_eq!(unzigzag(zigzag(value)), value);
        }
    }

    #[test]
    fn oversized_varints_are_refused() {
        assert_eq!(Reader::new(&[0xff; 9]).varint(), None);
        assert_eq!(Reader::new(&[0xff; 20]).varint(), None);
        let mut max = [0xff; 10];
        max[9] = 1;
        assert_eq!(Reader::new(&max).varint(), Some(u64::MAX));
        max[9] = 2;
        assert_eq!(Reader::new(&max).varint(), None);
    }
}
