//! Replay of a log with any bytes in it.
#![no_main]

use espalier_fuzz::{Image, use_all};
use std::sync::LazyLock;

static IMAGE: LazyLock<Image> = LazyLock::new(|| Image::new(false));

/// Blocks of the log region.
const LOG_BLOCKS: std::ops::Range<u64> = 32..32 + 256;

libfuzzer_sys::fuzz_target!(|edits: &[u8]| {
    use_all(&IMAGE.edited(LOG_BLOCKS, edits));
});
