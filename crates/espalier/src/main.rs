//! The command line of Espalier: mkfs, mount, fsck, info, dump.

fn main() {}
