//! Frame cache: frames that were got and checked, in memory, and those that are being got.

use crate::fetches::Fetches;
use crate::format::ObjectId;
use bytes::Bytes;
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter};

/// A guess, for sizing the cache's table: bytes of a frame.
const EXPECTED_FRAME_BYTES: u64 = 64 << 10;

/// The part of the memory for frames that were read again. The rest is for those that were read in
/// part just now: the reader comes back for the rest of such a frame soon.
const HOT_PART: f64 = 0.5;

#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<(ObjectId, u32), Bytes> for ByBytes {
    fn weight(&self, _: &(ObjectId, u32), frame: &Bytes) -> u64 {
        frame.len() as u64 + 64
    }
}

/// The blocks of frames, by object and number.
#[derive(Debug)]
pub(crate) struct FrameCache {
    frames: Cache<(ObjectId, u32), Bytes, ByBytes>,
    /// What is not in the cache yet.
    pub(crate) fetches: Fetches,
}

impl FrameCache {
    /// A cache of so many bytes, beside fetches of at most `ahead_bytes`.
    pub(crate) fn new(bytes: u64, ahead_bytes: u64) -> Self {
        let frames = (bytes / EXPECTED_FRAME_BYTES).max(16) as usize;
        let fetches = Fetches::new(ahead_bytes);
        let mut options = OptionsBuilder::new();
        options.estimated_items_capacity(frames).weight_capacity(bytes).hot_allocation(HOT_PART);
        let frames = match options.build() {
            Ok(options) => Cache::with_options(
                options,
                ByBytes,
                DefaultHashBuilder::default(),
                DefaultLifecycle::default(),
            ),
            Err(_) => Cache::with_weighter(frames, bytes, ByBytes),
        };
        Self { frames, fetches }
    }

    pub(crate) fn get(&self, object: ObjectId, frame: u32) -> Option<Bytes> {
        self.frames.get(&(object, frame))
    }

    /// True if a frame is there, which this does not count as a use.
    pub(crate) fn has(&self, object: ObjectId, frame: u32) -> bool {
        self.frames.contains_key(&(object, frame))
    }

    pub(crate) fn insert(&self, object: ObjectId, frame: u32, blocks: Bytes) {
        self.frames.insert((object, frame), blocks);
    }
}
