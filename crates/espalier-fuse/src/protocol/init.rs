//! INIT: what the kernel offers, what the server takes of it, and what that means for later
//! messages.

use super::flags::init as bit;
use super::reader::Reader;
use super::reply::Writer;
use super::{DecodeError, flags};

/// The major version of the protocol.
pub const MAJOR: u32 = 7;

/// The oldest minor version that is understood: Linux 5.4 and later.
pub const OLDEST_MINOR: u32 = 31;

/// The newest minor version that is understood: Linux 6.18.
pub const NEWEST_MINOR: u32 = 45;

/// Length of the reply to INIT, bytes.
pub const REPLY_BYTES: usize = 64;

/// What the kernel offers at INIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitRequest {
    /// Major protocol version.
    pub major: u32,
    /// Minor protocol version.
    pub minor: u32,
    /// The longest read-ahead that the kernel would do, bytes.
    pub max_readahead: u32,
    /// Offered bits of [`flags::init`].
    pub flags: u64,
}

impl InitRequest {
    /// Decodes the argument of INIT, which grew with the versions.
    pub(super) fn decode(argument: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(argument, "INIT argument");
        let (major, minor) = (reader.u32()?, reader.u32()?);
        if major != MAJOR {
            // A newer major says nothing more; it asks again after it was told ours.
            return Ok(Self { major, minor, max_readahead: 0, flags: 0 });
        }
        let max_readahead = reader.u32()?;
        let mut flags = u64::from(reader.u32()?);
        if flags & bit::INIT_EXT != 0 {
            flags |= u64::from(reader.u32()?) << 32;
        }
        Ok(Self { major, minor, max_readahead, flags })
    }
}

/// What INIT agreed on; later messages depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dialect {
    /// Minor version, the smaller of both sides'.
    pub minor: u32,
    /// Granted bits of [`flags::init`].
    pub flags: u64,
}

impl Dialect {
    /// True if all of `bits` were granted.
    pub fn has(&self, bits: u64) -> bool {
        self.flags & bits == bits
    }

    /// Length of the fixed argument of an operation, bytes; 0 for operations without one, and for
    /// unknown ones.
    pub fn argument_bytes(&self, opcode: u32) -> usize {
        use flags::opcode::*;
        match opcode {
            FORGET | MKDIR | RENAME | LINK | OPEN | OPENDIR | GETXATTR | LISTXATTR | ACCESS | INTERRUPT
            | BATCH_FORGET | SYNCFS => 8,
            GETATTR | MKNOD | FSYNC | FSYNCDIR | CREATE | TMPFILE | RENAME2 => 16,
            SETXATTR if self.has(bit::SETXATTR_EXT) => 16,
            SETXATTR => 8,
            RELEASE | RELEASEDIR | FLUSH | LSEEK | STATX => 24,
            IOCTL | FALLOCATE => 32,
            READ | READDIR | READDIRPLUS | WRITE => 40,
            COPY_FILE_RANGE | COPY_FILE_RANGE_64 => 56,
            SETATTR => 88,
            _ => 0,
        }
    }
}

/// What the server asks of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitParameters {
    /// Wanted bits of [`flags::init`]; what the kernel did not offer is left out.
    pub flags: u64,
    /// The longest read-ahead, bytes.
    pub max_readahead: u32,
    /// The longest WRITE, bytes; also bounds READ through the number of pages.
    pub max_write: u32,
    /// Background requests (read-ahead, asynchronous direct I/O, write-back) in flight at most.
    pub max_background: u16,
}

/// Answers INIT: what was agreed, and the body of the reply.
///
/// # Errors
/// The kernel's version, if it is too old.
pub fn negotiate(
    request: &InitRequest,
    init_parameters: &InitParameters,
) -> Result<(Dialect, [u8; REPLY_BYTES]), (u32, u32)> {
    if request.major < MAJOR || (request.major == MAJOR && request.minor < OLDEST_MINOR) {
        return Err((request.major, request.minor));
    }
    let dialect =
        Dialect { minor: request.minor.min(NEWEST_MINOR), flags: init_parameters.flags & request.flags };
    let mut body = [0; REPLY_BYTES];
    let mut writer = Writer::new(&mut body);
    writer.u32(MAJOR);
    writer.u32(dialect.minor);
    writer.u32(init_parameters.max_readahead);
    writer.u32(dialect.flags as u32);
    writer.u16(init_parameters.max_background);
    writer.u16(init_parameters.max_background / 4 * 3);
    writer.u32(init_parameters.max_write);
    // Granularity of times, nanoseconds.
    writer.u32(1);
    writer.u16((init_parameters.max_write / 4096).min(u32::from(u16::MAX)) as u16);
    // Map alignment: no DAX.
    writer.u16(0);
    writer.u32((dialect.flags >> 32) as u32);
    Ok((dialect, body))
}
