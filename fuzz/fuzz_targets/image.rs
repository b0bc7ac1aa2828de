//! Superblocks, tables, node headers and parts with any bytes in them.
#![no_main]

use espalier_fuzz::{Image, use_all};
use std::sync::LazyLock;

static IMAGE: LazyLock<Image> = LazyLock::new(|| Image::new(true));

libfuzzer_sys::fuzz_target!(|edits: &[u8]| {
    use_all(&IMAGE.edited(0..u64::MAX, edits));
});
