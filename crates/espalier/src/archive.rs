//! Tar archives: a reader that gives items, and a sink that writes them.
//!
//! Read are ustar, GNU and pax archives: long names, sizes and times beyond the old fields, holes
//! (GNU's old form and 0.0, 0.1 and 1.0 of pax), extended attributes (`SCHILY.xattr`), access
//! control lists (`SCHILY.acl`), numbers of owners. Written is pax, with holes in form 1.0, as GNU
//! tar and libarchive read it. Archives compressed with zstd are recognized.
//!
//! This is not left to a library because the one that there is (`tar`) takes values of pax records
//! apart at line ends, which extended attributes may hold, and does not know the holes of pax.
//!
//! Nothing is believed of an archive: each length is checked before it is used, headers that
//! describe other headers are bounded, and no memory is set aside for what is only announced.

mod acl_text;
mod numbers;
mod pax;
mod reader;
mod sparse;
mod writer;

pub(crate) use reader::give;
pub(crate) use writer::ArchiveSink;

/// The unit of an archive, in bytes.
const BLOCK_BYTES: usize = 512;
/// Headers that describe other headers have no more bytes than this.
const MAX_EXTENSION_BYTES: u64 = 8 << 20;
/// What headers tell of members to come takes no more memory than this.
const MAX_WAITING_BYTES: usize = 16 << 20;
/// A file has no more pieces between holes than this.
const MAX_PIECES: usize = 1 << 20;
const NANOSECONDS: i64 = 1_000_000_000;
