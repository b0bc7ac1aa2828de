//! The ioctls that Linux defines for file systems, with their numbers and arguments.
//!
//! FIEMAP, FIBMAP and `FS_IOC_GETFSUUID` are not among them: the kernel answers these by itself.
//! From Linux 5.13 on it also checks that the caller may set flags: it owns the file, and has the
//! capability for those that forbid changes. An argument is in the machine's byte order.

use super::reader::Reader;

/// The number of an ioctl whose argument the header calls a `long`, and which has 4 bytes.
const fn of_long(number: u32) -> u32 {
    number | (size_of::<libc::c_long>() as u32) << 16
}

/// `FS_IOC_GETFLAGS`.
pub const GET_FLAGS: u32 = of_long(0x8000_6601);
/// `FS_IOC_SETFLAGS`.
pub const SET_FLAGS: u32 = of_long(0x4000_6602);
/// `FS_IOC_FSGETXATTR`.
pub const GET_XFLAGS: u32 = 0x801c_581f;
/// `FS_IOC_FSSETXATTR`.
pub const SET_XFLAGS: u32 = 0x401c_5820;
/// `FITRIM`.
pub const TRIM: u32 = 0xc018_5879;

/// `FS_IOC_GETFSLABEL`.
pub const GET_LABEL: u32 = 0x8100_9431;
/// `FS_IOC_SETFSLABEL`.
pub const SET_LABEL: u32 = 0x4100_9432;
/// `FS_IOC_SHUTDOWN`. Its number says that it returns something; what it takes the kernel does not
/// pass on.
pub const SHUTDOWN: u32 = 0x8004_587d;

/// Room for a label in bytes (`FSLABEL_MAX`), with the NUL that ends it.
pub const LABEL_BYTES: usize = 256;
/// Length of `struct fsxattr` in bytes.
const FSXATTR_BYTES: usize = 28;

/// What a caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinuxCommand<'a> {
    /// The flags that `chattr` sets.
    GetFlags,
    /// Sets them.
    SetFlags(u32),
    /// The flags, as XFS numbers them.
    GetXflags,
    /// Sets them; `None` if the caller asks for more than flags.
    SetXflags(Option<u32>),
    /// Tells the device what is free.
    Trim {
        /// Free runs of fewer bytes are left alone.
        least: u64,
    },
    /// The label.
    GetLabel,
    /// Sets it.
    SetLabel(&'a [u8]),
    /// Lets nothing more be read or written.
    ShutDown,
}

impl<'a> LinuxCommand<'a> {
    /// Decodes the argument of an ioctl; `None` if it is none of these, or the argument is not
    /// valid.
    pub fn decode(command: u32, input: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(input, "ioctl");
        Some(match command {
            GET_FLAGS => Self::GetFlags,
            SET_FLAGS => Self::SetFlags(reader.u32().ok()?),
            GET_XFLAGS => Self::GetXflags,
            SET_XFLAGS => {
                let flags = reader.u32().ok()?;
                // The size of extents, their number, the project, the size of extents when they
                // are copied, padding.
                let rest = reader.bytes(FSXATTR_BYTES - 4).ok()?;
                let more = rest[..4].iter().chain(&rest[8..]).any(|byte| *byte != 0);
                Self::SetXflags((!more).then_some(flags))
            }
            TRIM => {
                reader.skip(16).ok()?;
                Self::Trim { least: reader.u64().ok()? }
            }
            GET_LABEL => Self::GetLabel,
            SET_LABEL => {
                let text = reader.bytes(LABEL_BYTES).ok()?;
                Self::SetLabel(&text[..text.iter().position(|byte| *byte == 0)?])
            }
            SHUTDOWN => Self::ShutDown,
            _ => return None,
        })
    }

    /// True if it changes nothing.
    pub fn reads(self) -> bool {
        matches!(self, Self::GetFlags | Self::GetXflags | Self::GetLabel)
    }
}

/// The answer to [`GET_XFLAGS`].
pub fn xflags_answer(flags: u32) -> [u8; FSXATTR_BYTES] {
    let mut out = [0; FSXATTR_BYTES];
    out[..4].copy_from_slice(&flags.to_ne_bytes());
    out
}

/// The answer to [`TRIM`]: a range from its beginning that has as many bytes as were trimmed.
pub fn trim_answer(trimmed: u64, least: u64) -> Vec<u8> {
    [0, trimmed, least].iter().flat_map(|n| n.to_ne_bytes()).collect()
}

/// The argument of [`SET_LABEL`] and the answer to [`GET_LABEL`]; `None` if the label is too long.
pub fn label_bytes(label: &str) -> Option<Vec<u8>> {
    let mut out = label.as_bytes().to_vec();
    (out.len() < LABEL_BYTES).then(|| {
        out.resize(LABEL_BYTES, 0);
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_arguments_are_those_of_linux() {
        let flags = 0x10u32.to_ne_bytes();
        assert_eq!(LinuxCommand::decode(SET_FLAGS, &flags), Some(LinuxCommand::SetFlags(0x10)));
        assert_eq!(LinuxCommand::decode(SET_FLAGS, &flags[..3]), None);
        assert_eq!(LinuxCommand::decode(GET_FLAGS, &[]), Some(LinuxCommand::GetFlags));
        let mut argument = xflags_answer(8);
        assert_eq!(LinuxCommand::decode(SET_XFLAGS, &argument), Some(LinuxCommand::SetXflags(Some(8))));
        argument[8] = 3; // the number of extents, which is not set
        assert_eq!(LinuxCommand::decode(SET_XFLAGS, &argument), Some(LinuxCommand::SetXflags(Some(8))));
        argument[12] = 1; // a project
        assert_eq!(LinuxCommand::decode(SET_XFLAGS, &argument), Some(LinuxCommand::SetXflags(None)));
        assert_eq!(LinuxCommand::decode(SET_XFLAGS, &argument[..27]), None);
        let argument = trim_answer(1 << 20, 4096);
        assert_eq!(LinuxCommand::decode(TRIM, &argument), Some(LinuxCommand::Trim { least: 4096 }));
        assert_eq!(LinuxCommand::decode(0, &argument), None);
        let label = label_bytes("home").unwrap();
        assert_eq!(LinuxCommand::decode(SET_LABEL, &label), Some(LinuxCommand::SetLabel(b"home")));
        assert_eq!(LinuxCommand::decode(SET_LABEL, &[b'x'; LABEL_BYTES]), None);
        assert_eq!(label_bytes(&"x".repeat(LABEL_BYTES)), None);
    }
}
