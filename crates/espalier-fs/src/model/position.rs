//! Positions in listings (`telldir`): the kind of an entry and a hash of its name, so that a
//! position says for ever behind which entry it leads.
//!
//! 32-bit programs without large file support take positions below 2^31 only. So a listing gives
//! *short* positions where the hashes of all names fit: one of three slices of 28 bits of the hash,
//! by which no two names of the directory are alike. The position says which slice. Directories
//! with more than [`SHORT_MAX_ENTRIES`] entries, and those where no slice serves, get *long*
//! positions of 62 bits. What a position is, short or long, can be seen from it; a listing goes on
//! with positions of the sort with which it began.

use crate::model::types::FileKind;

/// The positions behind `.` and `..`.
pub(crate) const DOT: u64 = 1;
pub(crate) const DOTDOT: u64 = 2;
/// Directories with more entries have long positions.
pub(crate) const SHORT_MAX_ENTRIES: u64 = 16 << 10;

/// Bits of a hash in a short position; those above say which slice of the hash, from 1 on.
const SLICE_BITS: u32 = 28;
const SLICES: u32 = 3;
/// The bit that tells directories from other entries, and one that is set in all long positions.
const SHORT_DIRECTORY: u64 = 1 << 30;
const LONG_DIRECTORY: u64 = 1 << 62;
const LONG: u64 = 1 << 61;

/// The sort of the positions in a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Positions {
    /// With this slice of the hash.
    Short(u32),
    Long,
}

/// The hash of a name.
pub(crate) fn hash_of(name: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(name)
}

impl Positions {
    /// The sort that serves a directory whose names have these hashes.
    pub(crate) fn for_names(hashes: &[u64]) -> Self {
        let mut slices = Vec::with_capacity(hashes.len());
        let serves = |slice: &u32| {
            slices.clear();
            slices.extend(hashes.iter().map(|hash| slice_of(*hash, *slice)));
            slices.sort_unstable();
            slices.windows(2).all(|pair| pair[0] != pair[1])
        };
        (1..=SLICES).find(serves).map_or(Self::Long, Self::Short)
    }

    /// The sort of a position behind an entry.
    pub(crate) fn of(position: u64) -> Self {
        let slice = (position & !SHORT_DIRECTORY) >> SLICE_BITS;
        if position <= u64::from(u32::MAX) { Self::Short(slice as u32) } else { Self::Long }
    }

    /// The position behind an entry whose name has the hash `hash`.
    pub(crate) fn position(self, hash: u64, kind: FileKind) -> u64 {
        let is_directory = kind == FileKind::Directory;
        match self {
            Self::Short(slice) => {
                let directory = if is_directory { SHORT_DIRECTORY } else { 0 };
                directory | u64::from(slice) << SLICE_BITS | u64::from(slice_of(hash, slice))
            }
            Self::Long => (if is_directory { LONG_DIRECTORY } else { 0 }) | LONG | hash & (LONG - 1),
        }
    }
}

/// True for the position of a directory.
pub(crate) fn is_directory(position: u64) -> bool {
    let bit = if Positions::of(position) == Positions::Long { LONG_DIRECTORY } else { SHORT_DIRECTORY };
    position & bit != 0
}

/// True if two positions lead behind the same name: its kind may have changed since.
pub(crate) fn is_same_name(one: u64, other: u64) -> bool {
    let bit = if Positions::of(one) == Positions::Long { LONG_DIRECTORY } else { SHORT_DIRECTORY };
    one & !bit == other & !bit
}

fn slice_of(hash: u64, slice: u32) -> u32 {
    (hash.rotate_right(21 * slice) & ((1 << SLICE_BITS) - 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_say_what_they_are() {
        for hash in [0, 1, 0x1234_5678_9abc_def0, u64::MAX] {
            for sort in [Positions::Short(1), Positions::Short(2), Positions::Short(3), Positions::Long] {
                let (file, directory) =
                    (sort.position(hash, FileKind::Regular), sort.position(hash, FileKind::Directory));
                assert!(file > DOTDOT && directory < 1 << 63);
                assert_eq!((Positions::of(file), Positions::of(directory)), (sort, sort));
                assert!(is_directory(directory) && !is_directory(file) && is_same_name(file, directory));
                assert_eq!(directory < 1 << 31, sort != Positions::Long);
            }
        }
    }

    #[test]
    fn a_slice_is_chosen_that_tells_all_names_apart() {
        let first = slice_of(5, 1);
        let alike = (6..).map(|n: u64| n.rotate_left(40) | 5).find(|n| slice_of(*n, 1) == first);
        assert_eq!(Positions::for_names(&[5, 77 << 30]), Positions::Short(1));
        assert_eq!(Positions::for_names(&[5, alike.unwrap()]), Positions::Short(2));
        assert_eq!(Positions::for_names(&[5, 5]), Positions::Long);
        assert_eq!(Positions::for_names(&[]), Positions::Short(1));
    }
}
