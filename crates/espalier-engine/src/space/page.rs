//! Table pages: 4 KiB of bytes, the pointers between them, and their checksums.

use espalier_storage::{AlignedBuf, BLOCK};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The tables, by the number that seeds their checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableId {
    Ntt = 1,
    SpaceMap = 2,
    Volumes = 3,
    Reclaim = 4,
}

impl TableId {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ntt => "node translation table",
            Self::SpaceMap => "space map",
            Self::Volumes => "volume table",
            Self::Reclaim => "reclaim list",
        }
    }
}

/// How pages point to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    /// Every page lies on the device twice, as far as there was room.
    pub(super) copies: bool,
}

impl Shape {
    /// Bytes of a pointer: block, with copies a second block, checksum, room for more.
    fn pointer(self) -> usize {
        if self.copies { 32 } else { 16 }
    }

    /// Pointers of an interior page.
    pub(super) fn fanout(self) -> u64 {
        (BLOCK / self.pointer()) as u64
    }

    /// The binary logarithm of that.
    fn bits(self) -> u32 {
        self.fanout().trailing_zeros()
    }
}

/// Names a page of a table: its level (0 = holds entries) and its number among that level's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct PageKey {
    pub(super) level: u8,
    pub(super) number: u64,
}

impl PageKey {
    pub(super) fn parent(self, shape: Shape) -> Self {
        Self { level: self.level + 1, number: self.number >> shape.bits() }
    }

    /// The page of `level` above (or equal to) it.
    pub(super) fn ancestor(self, level: u8, shape: Shape) -> Self {
        let shift = shape.bits() * u32::from(level - self.level);
        Self { level, number: self.number.checked_shr(shift).unwrap_or(0) }
    }

    /// The child number `slot` of an interior page.
    pub(super) fn child(self, slot: u64, shape: Shape) -> Self {
        Self { level: self.level - 1, number: (self.number << shape.bits()) | slot }
    }

    /// Its place among its parent's pointers.
    pub(super) fn slot(self, shape: Shape) -> u64 {
        self.number % shape.fanout()
    }

    /// True if a table of `height` interior levels has room for it.
    pub(super) fn fits(self, height: u8, shape: Shape) -> bool {
        self.level <= height && self.ancestor(height, shape).number == 0
    }

    /// What the page's checksum is seeded with, so that a page found in another's place is
    /// detected.
    pub(super) fn seed(self, table: u8) -> u64 {
        self.number.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (u64::from(table) << 8 | u64::from(self.level))
    }
}

/// Where a page lies and what it must hash to. Block 0 (a superblock) stands for no page.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pointer {
    pub(super) block: u64,
    /// Where the same page lies once more; 0 if it does not.
    pub(super) copy: u64,
    pub(super) checksum: u64,
}

impl Pointer {
    /// The blocks that the page takes.
    pub(super) fn blocks(self) -> impl Iterator<Item = u64> {
        [self.block, self.copy].into_iter().filter(|block| *block != 0)
    }

    pub(super) fn is_none(self) -> bool {
        self.block == 0
    }
}

/// The bytes of a page, aligned for direct I/O.
#[derive(Debug)]
pub(super) struct Page(AlignedBuf);

impl Page {
    pub(super) fn zeroed() -> Self {
        Self(AlignedBuf::zeroed(BLOCK))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }

    pub(super) fn is_zero(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }

    pub(super) fn checksum(&self, key: PageKey, table: u8) -> u64 {
        xxh3_64_with_seed(&self.0, key.seed(table))
    }

    /// The pointer in place `slot` of an interior page.
    pub(super) fn pointer(&self, slot: u64, shape: Shape) -> Pointer {
        let field = |n: usize| read_u64(&self.0, slot as usize * shape.pointer() + 8 * n);
        match shape.copies {
            true => Pointer { block: field(0), copy: field(1), checksum: field(2) },
            false => Pointer { block: field(0), copy: 0, checksum: field(1) },
        }
    }

    pub(super) fn set_pointer(&mut self, slot: u64, pointer: Pointer, shape: Shape) {
        let at = slot as usize * shape.pointer();
        let fields = match shape.copies {
            true => [pointer.block, pointer.copy, pointer.checksum, 0],
            false => [pointer.block, pointer.checksum, 0, 0],
        };
        for (bytes, field) in self.0[at..at + shape.pointer()].chunks_exact_mut(8).zip(fields) {
            bytes.copy_from_slice(&field.to_le_bytes());
        }
    }
}

impl Clone for Page {
    fn clone(&self) -> Self {
        let mut copy = Self::zeroed();
        copy.0.copy_from_slice(&self.0);
        copy
    }
}

/// The little-endian number at byte `at`.
pub(super) fn read_u64(bytes: &[u8], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

/// The little-endian number at byte `at`.
pub(super) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}
