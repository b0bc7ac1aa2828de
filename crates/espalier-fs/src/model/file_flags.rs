//! The flags of a file or directory that `chattr` sets, and what they forbid.

use crate::model::error::{FsErrorKind, Result, fail};

/// Flags of a file or directory, as `chattr` sets them, with the kernel's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileFlags(pub u32);

impl FileFlags {
    /// What is written is durable when the call returns. Of a directory: changes of names in it.
    pub const SYNC: Self = Self(0x8);
    /// Nothing of it changes, for no user.
    pub const IMMUTABLE: Self = Self(0x10);
    /// It only grows.
    pub const APPEND: Self = Self(0x20);
    /// `dump` leaves it out.
    pub const NODUMP: Self = Self(0x40);
    /// Reads change no time.
    pub const NOATIME: Self = Self(0x80);
    /// Of a directory: changes of names in it are durable when the call returns.
    pub const DIRSYNC: Self = Self(0x1_0000);
    /// All flags that there are.
    pub const ALL: Self = Self(0x1_00f8);
    /// Those that forbid changes.
    pub const PROTECTION: Self = Self(0x30);

    /// True if it has one of the other's flags.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// True if changes of the object, or its removal, are forbidden.
    pub fn protect(self) -> bool {
        self.has(Self::PROTECTION)
    }

    /// What an object inherits that is made in a directory with these flags.
    pub(crate) fn inherited(self, is_dir: bool) -> Self {
        let all = Self::SYNC.0 | Self::NODUMP.0 | Self::NOATIME.0;
        Self(self.0 & if is_dir { all | Self::DIRSYNC.0 } else { all })
    }

    /// Refuses what must not be done to an object that is immutable or only grows.
    pub(crate) fn check_unprotected(self) -> Result<()> {
        if self.protect() { fail(FsErrorKind::Permission, "it is immutable, or append-only") } else { Ok(()) }
    }

    /// Refuses what must not be done to an object that is immutable.
    pub(crate) fn check_mutable(self) -> Result<()> {
        if self.has(Self::IMMUTABLE) { fail(FsErrorKind::Permission, "it is immutable") } else { Ok(()) }
    }
}
