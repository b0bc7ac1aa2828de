//! What a request is about, without decoding it whole: for whoever has to clean up behind one.

use super::Header;
use super::flags::opcode::*;

/// The longest names that [`names`] looks for, with their terminators, bytes.
pub const NAMES_BYTES: usize = 2 * 256;

/// The nodes that a request with this header and argument names, 0 for none.
pub fn nodes(header: &Header, argument: &[u8]) -> [u64; 2] {
    let at = match header.opcode {
        RENAME | RENAME2 | LINK => 0,
        COPY_FILE_RANGE | COPY_FILE_RANGE_64 => 16,
        _ => return [header.node, 0],
    };
    let second = argument.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |n| u64::from_ne_bytes(*n));
    [header.node, second]
}

/// Whether a request of this kind changes anything that the kernel may keep and is not told otherwise.
pub fn changes(opcode: u32) -> bool {
    matches!(
        opcode,
        SETATTR
            | SYMLINK
            | MKNOD
            | MKDIR
            | UNLINK
            | RMDIR
            | RENAME
            | RENAME2
            | LINK
            | WRITE
            | SETXATTR
            | REMOVEXATTR
            | FALLOCATE
            | COPY_FILE_RANGE
            | COPY_FILE_RANGE_64
    )
}

/// The names, with their directories, that mean something else after a request of this kind on `nodes`; `payload` is
/// its beginning.
pub fn names(opcode: u32, nodes: [u64; 2], payload: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let directories: &[usize] = match opcode {
        SYMLINK | MKNOD | MKDIR | UNLINK | RMDIR | LINK => &[0],
        RENAME | RENAME2 => &[0, 1],
        _ => &[],
    };
    // What is behind the last terminator is no name, or was cut.
    let names = payload.split_inclusive(|&byte| byte == 0).filter_map(|name| name.strip_suffix(&[0]));
    directories.iter().map(move |&which| nodes[which]).zip(names)
}
