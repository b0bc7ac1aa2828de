//! Numbers that both sides go by.

/// The versions of the protocol: the first one ends with call 25.
pub const VERSIONS: std::ops::RangeInclusive<u16> = 1..=2;

/// What every session begins with.
pub const MAGIC: [u8; 8] = *b"ESPALIER";

/// The longest packet, bytes.
pub const FRAME_MAX_BYTES: usize = 64 << 10;

/// The least and the most that each of the two areas of the shared memory may have, bytes.
pub const AREA_BYTES: std::ops::RangeInclusive<u32> = 64 << 10..=2 << 20;

/// How many paths a call takes at most.
pub const MAX_ITEMS: usize = 4096;

/// Bytes of a token that `ESPALIER_IOC_CLIENT` gives out.
pub const TOKEN_BYTES: usize = 16;

/// Bytes of the name of a socket in the answer of `ESPALIER_IOC_CLIENT`.
pub const SOCKET_NAME_BYTES: usize = 64;

/// `ESPALIER_IOC_CLIENT` of `include/espalier.h`.
pub const IOC_CLIENT: u32 = 2 << 30 | ((TOKEN_BYTES + SOCKET_NAME_BYTES) as u32) << 16 | 0xE5 << 8 | 18;
