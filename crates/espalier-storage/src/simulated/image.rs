//! The content of a device as an immutable value: two levels of shared blocks.

use crate::{BLOCK, Random};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// One block.
pub(super) type Block = [u8; BLOCK];

/// Blocks per chunk, the unit that a change copies (as pointers).
const CHUNK_BLOCKS: usize = 64;

type Chunk = [Option<Arc<Block>>; CHUNK_BLOCKS];

/// What a block holds that was never written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unwritten {
    Zeros,
    Garbage(u64),
}

/// The content of a device at one moment; cheap to copy.
#[derive(Clone)]
pub struct Image {
    len: u64,
    unwritten: Unwritten,
    chunks: Arc<Vec<Option<Arc<Chunk>>>>,
}

impl Image {
    /// `len` bytes, rounded down to whole blocks, that read as zeros.
    pub fn zeros(len: u64) -> Self {
        Self::new(len, Unwritten::Zeros)
    }

    /// `len` bytes, rounded down to whole blocks, that read as something arbitrary.
    pub fn garbage(len: u64, seed: u64) -> Self {
        Self::new(len, Unwritten::Garbage(seed))
    }

    fn new(len: u64, unwritten: Unwritten) -> Self {
        let blocks = len / BLOCK as u64;
        let chunks = vec![None; blocks.div_ceil(CHUNK_BLOCKS as u64) as usize];
        Self { len: blocks * BLOCK as u64, unwritten, chunks: Arc::new(chunks) }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All its bytes, for a file or another device. Blocks never written are left out.
    pub fn blocks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.written(0..self.len).into_iter().map(|number| {
            let block = self.get(number).expect("written blocks are there");
            (number * BLOCK as u64, &block[..])
        })
    }

    fn get(&self, number: u64) -> Option<&Arc<Block>> {
        let chunk = self.chunks[(number / CHUNK_BLOCKS as u64) as usize].as_ref()?;
        chunk[(number % CHUNK_BLOCKS as u64) as usize].as_ref()
    }

    pub(super) fn set(&mut self, number: u64, block: Arc<Block>) {
        let chunks = Arc::make_mut(&mut self.chunks);
        let chunk = chunks[(number / CHUNK_BLOCKS as u64) as usize]
            .get_or_insert_with(|| Arc::new(std::array::from_fn(|_| None)));
        Arc::make_mut(chunk)[(number % CHUNK_BLOCKS as u64) as usize] = Some(block);
    }

    /// Copies one block into `out`.
    pub(super) fn read(&self, number: u64, out: &mut [u8]) {
        match (self.get(number), self.unwritten) {
            (Some(block), _) => out.copy_from_slice(&block[..]),
            (None, Unwritten::Zeros) => out.fill(0),
            (None, Unwritten::Garbage(seed)) => Random::new(seed ^ number.rotate_left(40)).fill(out),
        }
    }

    /// A copy of one block.
    pub(super) fn copy(&self, number: u64) -> Block {
        let mut block = [0; BLOCK];
        self.read(number, &mut block);
        block
    }

    /// What a block may hold after it was discarded.
    pub(super) fn after_discard(&self, number: u64, random: &mut Random) -> Arc<Block> {
        let mut block = [0; BLOCK];
        match random.below(3) {
            0 => self.read(number, &mut block),
            1 => {}
            _ => random.fill(&mut block),
        }
        Arc::new(block)
    }

    pub(super) fn flip(&mut self, offset: u64, mask: u8) {
        let number = offset / BLOCK as u64;
        let mut block = self.copy(number);
        block[(offset % BLOCK as u64) as usize] ^= mask;
        self.set(number, Arc::new(block));
    }

    /// The numbers of the blocks of a byte range that were ever written.
    pub(super) fn written(&self, range: Range<u64>) -> Vec<u64> {
        let blocks = range.start / BLOCK as u64..range.end.min(self.len) / BLOCK as u64;
        blocks.filter(|number| self.get(*number).is_some()).collect()
    }
}

/// Two images are equal if all reads of them are.
impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        let same = |number| match (self.get(number), other.get(number)) {
            (Some(a), Some(b)) if Arc::ptr_eq(a, b) => true,
            (None, None) if self.unwritten == other.unwritten => true,
            _ => self.copy(number) == other.copy(number),
        };
        self.len == other.len && (0..self.len / BLOCK as u64).all(same)
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} of {} blocks written)", self.written(0..self.len).len(), self.len / BLOCK as u64)
    }
}

/// A shared block with the bytes of `chunk`.
pub(super) fn block(chunk: &[u8]) -> Arc<Block> {
    let mut block = [0; BLOCK];
    block.copy_from_slice(chunk);
    Arc::new(block)
}
