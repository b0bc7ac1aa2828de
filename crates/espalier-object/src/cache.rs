//! Frame cache: frames that were got and checked, in memory.

use crate::format::ObjectId;
use bytes::Bytes;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

/// A guess, for sizing the cache's table: bytes of a frame.
const EXPECTED_FRAME_BYTES: u64 = 64 << 10;

#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<(ObjectId, u32), Bytes> for ByBytes {
    fn weight(&self, _: &(ObjectId, u32), frame: &Bytes) -> u64 {
        frame.len() as u64 + 64
    }
}

/// The blocks of frames, by object and number.
#[derive(Debug)]
pub(crate) struct FrameCache(Cache<(ObjectId, u32), Bytes, ByBytes>);

impl FrameCache {
    /// A cache of so many bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let frames = (bytes / EXPECTED_FRAME_BYTES).max(16) as usize;
        Self(Cache::with_weighter(frames, bytes, ByBytes))
    }

    pub(crate) fn get(&self, object: ObjectId, frame: u32) -> Option<Bytes> {
        self.0.get(&(object, frame))
    }

    pub(crate) fn insert(&self, object: ObjectId, frame: u32, blocks: Bytes) {
        self.0.insert((object, frame), blocks);
    }
}
