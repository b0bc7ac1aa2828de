//! Any message from the FUSE device.
#![no_main]

use espalier_fuse::protocol::{Dialect, Operation, decode};

libfuzzer_sys::fuzz_target!(|message: &[u8]| {
    for flags in [0, u64::MAX] {
        if let Ok((_, Operation::BatchForget(list))) = decode(message, &Dialect { minor: 45, flags }) {
            list.iter().for_each(|(node, count)| drop(std::hint::black_box((node, count))));
        }
    }
});
