//! The ioctls of a mount, as `include/espalier.h` has them: numbers and bytes, for the server and
//! for programs.
//!
//! An argument is a row of fields without gaps in the machine's byte order, as C lays them out.

use super::reader::Reader;

const MAGIC: u32 = 0xE5;
const WRITE: u32 = 1;
const READ: u32 = 2;

/// Length of a token in bytes.
pub const TOKEN_BYTES: usize = 16;
/// Room for a name, bytes.
const NAME_BYTES: usize = 256;
/// Bytes of a step before its path and name.
const STEP_HEAD_BYTES: usize = 21;
/// Bytes of the limits of a tree.
pub const LIMITS_BYTES: usize = 16;
/// Bytes of differences in one answer.
pub const DIFFERENCES_BYTES: usize = 8168;

/// Room for the token of an instant, bytes.
pub const CHANGES_TOKEN_BYTES: usize = 112;

const fn number(direction: u32, command: u32, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | MAGIC << 8 | command
}

/// `ESPALIER_IOC_TOKEN`.
pub const TOKEN: u32 = number(READ, 1, TOKEN_BYTES);
/// `ESPALIER_IOC_CLONE`.
pub const CLONE: u32 = number(WRITE, 2, TOKEN_BYTES + 8 + NAME_BYTES);
/// `ESPALIER_IOC_REMOVE_TREE`.
pub const REMOVE_TREE: u32 = number(WRITE, 3, 8 + NAME_BYTES);
/// `ESPALIER_IOC_CHOWN_TREE`.
pub const CHOWN_TREE: u32 = number(WRITE, 4, 8);
/// `ESPALIER_IOC_CHMOD_TREE`.
pub const CHMOD_TREE: u32 = number(WRITE, 5, 20);
/// `ESPALIER_IOC_SNAPSHOT`.
pub const SNAPSHOT: u32 = number(WRITE, 6, 8 + NAME_BYTES);
/// `ESPALIER_IOC_SNAPSHOT_DELETE`.
pub const SNAPSHOT_DELETE: u32 = number(WRITE, 7, 8 + NAME_BYTES);
/// `ESPALIER_IOC_DIFF`.
pub const DIFF: u32 = number(READ | WRITE, 8, TOKEN_BYTES + 8);
/// `ESPALIER_IOC_DIFF_NEXT`.
pub const DIFF_NEXT: u32 = number(READ | WRITE, 9, 24 + DIFFERENCES_BYTES);

/// `ESPALIER_IOC_SPACE`.
pub const SPACE: u32 = number(READ, 10, 16);

/// `ESPALIER_IOC_RESTORE`.
pub const RESTORE: u32 = number(WRITE, 11, 8 + NAME_BYTES);

/// `ESPALIER_IOC_RENAME_ALL`.
pub const RENAME_ALL: u32 = number(WRITE, 12, 2 * TOKEN_BYTES);

/// `ESPALIER_IOC_EXCLUSIVE_SPACE`.
pub const EXCLUSIVE_SPACE: u32 = number(READ, 13, 8);

/// `ESPALIER_IOC_CHANGES`.
pub const CHANGES: u32 = number(READ | WRITE, 14, CHANGES_TOKEN_BYTES + 16);

/// `ESPALIER_IOC_SET_LIMITS`.
pub const SET_LIMITS: u32 = number(WRITE, 15, LIMITS_BYTES);

/// `ESPALIER_IOC_GET_LIMITS`.
pub const GET_LIMITS: u32 = number(READ, 16, LIMITS_BYTES);

/// `ESPALIER_IOC_QUOTA`.
pub const QUOTA: u32 = number(READ, 17, 2 * LIMITS_BYTES);

/// Room for the name of the socket of clients, bytes.
const SOCKET_NAME_BYTES: usize = 64;

/// `ESPALIER_IOC_CLIENT`.
pub const CLIENT: u32 = number(READ, 18, TOKEN_BYTES + SOCKET_NAME_BYTES);

/// Bytes of an answer about a directory and the one that it came from.
const SURVEY_BYTES: usize = TOKEN_BYTES + 16 + LIMITS_BYTES;

/// `ESPALIER_IOC_SURVEY`.
pub const SURVEY: u32 = number(READ | WRITE, 19, SURVEY_BYTES);

/// Step of [`RENAME_ALL`]: what is staged moves to its place.
pub const ENTER: u8 = 1;
/// Step of [`RENAME_ALL`]: what is at the place moves to the staging directory.
pub const LEAVE: u8 = 2;
/// Step of [`RENAME_ALL`]: the two change places.
pub const EXCHANGE: u8 = 3;
/// Step of [`RENAME_ALL`]: two directories exchange their attributes.
pub const ATTRIBUTES: u8 = 4;

/// Flag of a removal: an empty directory is left.
pub const REMOVE_LEAVING_EMPTY: u32 = 1;
/// Flag of a snapshot that can be changed when it is mounted on its own.
pub const SNAPSHOT_WRITABLE: u32 = 1;
/// Flag: not of the whole volume, but of the directory alone.
pub const SNAPSHOT_DIRECTORY: u32 = 2;

/// Flag of changes: anything may have changed.
pub const CHANGES_EVERYTHING: u32 = 1;
/// Flag of changes: the kernel has data and times that the server has not, until the caller has
/// synchronized the file system. Then the caller asks again.
pub const CHANGES_UNSYNCED: u32 = 2;
/// Flag of the argument of changes: the caller has synchronized the file system.
pub const CHANGES_SYNCED: u32 = 1;

/// A secret that stands for a directory that its owner has opened.
pub type Token = [u8; TOKEN_BYTES];

/// The bytes that an ioctl's argument has.
pub const fn size(command: u32) -> usize {
    (command >> 16 & 0x3fff) as usize
}

/// A command to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command<'a> {
    /// Gives out a token for the directory.
    Token,
    /// Gives out a token for the directory, and says at which socket it is good.
    Client,
    /// Clones the directory of the token.
    Clone {
        /// The source.
        token: Token,
        /// The name of the clone.
        name: &'a [u8],
    },
    /// Removes a directory with all that is below it.
    RemoveTree {
        /// Its name.
        name: &'a [u8],
        /// An empty directory is left in its place.
        leaves_empty: bool,
    },
    /// Gives a tree another owner or group; `None`: it keeps its own.
    ChownTree {
        /// The new owner.
        uid: Option<u32>,
        /// The new group.
        gid: Option<u32>,
    },
    /// Changes the modes of a tree; in the order of the fields in `include/espalier.h`.
    ChmodTree([u32; 5]),
    /// Makes a snapshot.
    Snapshot {
        /// Its name.
        name: &'a [u8],
        /// Whether it can be changed.
        writable: bool,
        /// Of the directory alone, not of the whole volume.
        directory: bool,
    },
    /// Deletes a snapshot.
    SnapshotDelete {
        /// Its name.
        name: &'a [u8],
        /// Of the directory alone.
        directory: bool,
    },
    /// Replaces the directory by its state in a snapshot.
    Restore {
        /// The name of the snapshot.
        snapshot: &'a [u8],
    },
    /// Begins to compare two trees.
    Diff {
        /// The older tree.
        token: Token,
    },
    /// Asks how much space a tree takes.
    Space,
    /// Asks how much of the space of a tree nothing else shares.
    ExclusiveSpace,
    /// Sets the limits of a tree, or takes them away.
    SetLimits(TreeBytes),
    /// Asks for the limits of a tree.
    GetLimits,
    /// Says what a directory holds alone, what it may hold, and what differs from the older
    /// directory of the token.
    Survey {
        /// The older one.
        token: Token,
    },
    /// Asks for the limits of a tree and what it holds.
    Quota,
    /// Makes many renames as one step.
    RenameAll {
        /// Of the staging directory.
        staging: Token,
        /// Of the file with the steps.
        steps: Token,
    },
    /// Asks what was changed since an instant.
    Changes {
        /// Names the instant.
        token: &'a [u8],
        /// The caller has synchronized the file system.
        is_synced: bool,
    },
    /// Continues a comparison, or an answer with changes.
    DiffNext {
        /// The number of the comparison.
        session: u64,
    },
}

impl<'a> Command<'a> {
    /// Decodes the argument of an ioctl; `None` if there is no such ioctl, or the argument is not
    /// valid.
    pub fn decode(command: u32, input: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(input, "ioctl");
        Some(match command {
            TOKEN => Self::Token,
            CLIENT => Self::Client,
            SPACE => Self::Space,
            EXCLUSIVE_SPACE => Self::ExclusiveSpace,
            GET_LIMITS => Self::GetLimits,
            QUOTA => Self::Quota,
            SET_LIMITS => {
                Self::SetLimits(TreeBytes::decode(reader.bytes(LIMITS_BYTES).ok()?.try_into().ok()?))
            }
            CLONE => {
                let token = reader.bytes(TOKEN_BYTES).ok()?.try_into().ok()?;
                let (flags, name) = take_name(&mut reader)?;
                (flags == 0).then_some(Self::Clone { token, name })?
            }
            REMOVE_TREE | SNAPSHOT_DELETE | RESTORE => {
                let (flags, name) = take_name(&mut reader)?;
                match (flags, command) {
                    (0 | REMOVE_LEAVING_EMPTY, REMOVE_TREE) => {
                        Self::RemoveTree { name, leaves_empty: flags != 0 }
                    }
                    (0, RESTORE) => Self::Restore { snapshot: name },
                    (0 | SNAPSHOT_DIRECTORY, SNAPSHOT_DELETE) => {
                        Self::SnapshotDelete { name, directory: flags != 0 }
                    }
                    _ => return None,
                }
            }
            CHOWN_TREE => {
                let mut id = || reader.u32().ok().map(|id| (id != u32::MAX).then_some(id));
                Self::ChownTree { uid: id()?, gid: id()? }
            }
            CHMOD_TREE => {
                let mut bits = [0; 5];
                for field in &mut bits {
                    *field = reader.u32().ok()?;
                }
                Self::ChmodTree(bits)
            }
            SNAPSHOT => {
                let (flags, name) = take_name(&mut reader)?;
                let known = flags & !(SNAPSHOT_WRITABLE | SNAPSHOT_DIRECTORY) == 0;
                let (writable, directory) = (flags & SNAPSHOT_WRITABLE != 0, flags & SNAPSHOT_DIRECTORY != 0);
                known.then_some(Self::Snapshot { name, writable, directory })?
            }
            DIFF => Self::Diff { token: reader.bytes(TOKEN_BYTES).ok()?.try_into().ok()? },
            SURVEY => Self::Survey { token: reader.bytes(TOKEN_BYTES).ok()?.try_into().ok()? },
            RENAME_ALL => Self::RenameAll {
                staging: reader.bytes(TOKEN_BYTES).ok()?.try_into().ok()?,
                steps: reader.bytes(TOKEN_BYTES).ok()?.try_into().ok()?,
            },
            CHANGES => {
                let token = reader.bytes(CHANGES_TOKEN_BYTES).ok()?;
                let (session, flags, length) =
                    (reader.u64().ok()?, reader.u32().ok()?, reader.u32().ok()? as usize);
                let known = session == 0 && flags & !CHANGES_SYNCED == 0;
                let token = token.get(..length).filter(|_| known)?;
                Self::Changes { token, is_synced: flags & CHANGES_SYNCED != 0 }
            }
            DIFF_NEXT => Self::DiffNext { session: reader.u64().ok()? },
            _ => return None,
        })
    }

    /// The tokens that it uses up.
    pub fn tokens(&self) -> [Option<Token>; 2] {
        match *self {
            Self::Clone { token, .. } | Self::Diff { token } | Self::Survey { token } => [Some(token), None],
            Self::RenameAll { staging, steps } => [Some(staging), Some(steps)],
            _ => [None, None],
        }
    }
}

/// Bytes that a tree holds alone, and all that it refers to; `None` where there is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeBytes {
    /// What nothing outside refers to.
    pub exclusive: Option<u64>,
    /// All.
    pub total: Option<u64>,
}

impl TreeBytes {
    /// As it lies in the argument of an ioctl.
    pub fn encode(self) -> [u8; LIMITS_BYTES] {
        let mut out = [0; LIMITS_BYTES];
        out[..8].copy_from_slice(&self.exclusive.unwrap_or(u64::MAX).to_ne_bytes());
        out[8..].copy_from_slice(&self.total.unwrap_or(u64::MAX).to_ne_bytes());
        out
    }

    /// From the argument of an ioctl.
    pub fn decode(bytes: [u8; LIMITS_BYTES]) -> Self {
        let [exclusive, total] = [0, 8].map(|at| {
            let bytes = bytes[at..at + 8].try_into().unwrap_or([u8::MAX; 8]);
            Some(u64::from_ne_bytes(bytes)).filter(|n| *n != u64::MAX)
        });
        Self { exclusive, total }
    }
}

/// What [`SURVEY`] tells of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Surveyed {
    /// For [`DIFF_NEXT`]; 0 if nothing differs.
    pub session: u64,
    /// Bytes that it holds alone; `None` if the caller may not know.
    pub own: Option<u64>,
    /// What it may hold.
    pub limits: TreeBytes,
}

impl Surveyed {
    /// As an answer.
    pub fn encode(&self) -> Vec<u8> {
        let own = self.own.unwrap_or(u64::MAX);
        [&[0; TOKEN_BYTES][..], &self.session.to_ne_bytes(), &own.to_ne_bytes(), &self.limits.encode()]
            .concat()
    }

    /// From an answer; `None` if it is cut off.
    pub fn decode(answer: &[u8]) -> Option<Self> {
        let (session, rest) = answer.get(TOKEN_BYTES..)?.split_first_chunk()?;
        let (own, limits) = rest.split_first_chunk()?;
        Some(Self {
            session: u64::from_ne_bytes(*session),
            own: Some(u64::from_ne_bytes(*own)).filter(|own| *own != u64::MAX),
            limits: TreeBytes::decode(limits.try_into().ok()?),
        })
    }
}

fn take_name<'a>(reader: &mut Reader<'a>) -> Option<(u32, &'a [u8])> {
    let (flags, length) = (reader.u32().ok()?, reader.u32().ok()? as usize);
    let name = reader.bytes(NAME_BYTES).ok()?;
    name.get(..length).filter(|name| !name.is_empty()).map(|name| (flags, name))
}

/// The argument of an ioctl that takes flags and a name; `None` if the name is too long.
pub fn name_argument(flags: u32, name: &[u8]) -> Option<Vec<u8>> {
    let mut out = [flags.to_ne_bytes(), (name.len() as u32).to_ne_bytes()].concat();
    out.extend_from_slice(name);
    let total = 8 + NAME_BYTES;
    (out.len() < total).then(|| {
        out.resize(total, 0);
        out
    })
}

/// The argument of [`CLONE`]; `None` if the name is too long.
pub fn clone_argument(token: &Token, name: &[u8]) -> Option<Vec<u8>> {
    name_argument(0, name).map(|rest| [&token[..], &rest].concat())
}

/// The answer of [`CLIENT`]: a token, and the name of an abstract socket, filled up with NULs.
/// `None` if the name is too long.
pub fn client_answer(token: &Token, socket: &str) -> Option<Vec<u8>> {
    let mut out = token.to_vec();
    out.extend_from_slice(socket.as_bytes());
    let is_short = socket.len() < SOCKET_NAME_BYTES;
    out.resize(size(CLIENT), 0);
    is_short.then_some(out)
}

/// The argument of [`CHANGES`], and its answer: token, session, flags. `None` if the token is too
/// long.
pub fn changes_argument(token: &[u8], session: u64, flags: u32) -> Option<Vec<u8>> {
    if token.len() > CHANGES_TOKEN_BYTES {
        return None;
    }
    let mut out = token.to_vec();
    out.resize(CHANGES_TOKEN_BYTES, 0);
    out.extend_from_slice(&session.to_ne_bytes());
    out.extend_from_slice(&flags.to_ne_bytes());
    out.extend_from_slice(&(token.len() as u32).to_ne_bytes());
    Some(out)
}

/// The answer of [`CHANGES`]: token, session, flags; `None` if it is cut off.
pub fn changes_answer(answer: &[u8]) -> Option<(&[u8], u64, u32)> {
    let (token, rest) = answer.split_at_checked(CHANGES_TOKEN_BYTES)?;
    let (session, rest) = rest.split_first_chunk()?;
    let (flags, rest) = rest.split_first_chunk()?;
    let length = u32::from_ne_bytes(rest.try_into().ok()?) as usize;
    Some((token.get(..length)?, u64::from_ne_bytes(*session), u32::from_ne_bytes(*flags)))
}

/// One step of [`RENAME_ALL`], as it lies in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RawStep<'a> {
    /// [`ENTER`], [`LEAVE`], [`EXCHANGE`] or [`ATTRIBUTES`].
    pub action: u8,
    /// The path below the directory that the ioctl is on.
    pub place: &'a [u8],
    /// The name in the staging directory.
    pub staged: &'a [u8],
    /// What must be at the place: number, and time of change in nanoseconds since the Unix epoch.
    pub expected: (u64, i64),
}

impl<'a> RawStep<'a> {
    /// Appends it to the text of a file; `None` if a path or name is too long.
    pub fn push_to(&self, out: &mut Vec<u8>) -> Option<()> {
        let lengths = [u16::try_from(self.place.len()).ok()?, u16::try_from(self.staged.len()).ok()?];
        out.push(self.action);
        out.extend(self.expected.0.to_ne_bytes());
        out.extend(self.expected.1.to_ne_bytes());
        out.extend(lengths.iter().flat_map(|length| length.to_ne_bytes()));
        out.extend_from_slice(self.place);
        out.extend_from_slice(self.staged);
        Some(())
    }

    /// Takes one from the front of the text of a file; `None` if that is none.
    pub fn take_from(text: &mut &'a [u8]) -> Option<Self> {
        let (head, rest) = text.split_first_chunk::<STEP_HEAD_BYTES>()?;
        let field = |at: usize| head[at..at + 8].try_into().ok();
        let length = |at: usize| head[at..at + 2].try_into().ok().map(|l| usize::from(u16::from_ne_bytes(l)));
        let (place, rest) = rest.split_at_checked(length(17)?)?;
        let (staged, rest) = rest.split_at_checked(length(19)?)?;
        let expected = (u64::from_ne_bytes(field(1)?), i64::from_ne_bytes(field(9)?));
        *text = rest;
        Some(Self { action: head[0], place, staged, expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        // As the C compiler computes them from include/espalier.h.
        let numbers = [
            TOKEN,
            CLONE,
            REMOVE_TREE,
            CHOWN_TREE,
            CHMOD_TREE,
            SNAPSHOT,
            SNAPSHOT_DELETE,
            DIFF,
            DIFF_NEXT,
            RESTORE,
            RENAME_ALL,
            CHANGES,
            SET_LIMITS,
            GET_LIMITS,
            QUOTA,
        ];
        let expected = [
            0x8010_e501,
            0x4118_e502,
            0x4108_e503,
            0x4008_e504,
            0x4014_e505,
            0x4108_e506,
            0x4108_e507,
            0xc018_e508,
            0xe000_e509,
            0x4108_e50b,
            0x4020_e50c,
            0xc080_e50e,
            0x4010_e50f,
            0x8010_e510,
            0x8020_e511,
        ];
        assert_eq!(numbers, expected);
    }

    #[test]
    fn arguments_come_back() {
        let token = [7; TOKEN_BYTES];
        let argument = clone_argument(&token, b"name").unwrap();
        assert_eq!(argument.len(), size(CLONE));
        assert_eq!(Command::decode(CLONE, &argument), Some(Command::Clone { token, name: b"name" }));
        let argument = name_argument(1, b"n").unwrap();
        assert_eq!(
            Command::decode(SNAPSHOT, &argument),
            Some(Command::Snapshot { name: b"n", writable: true, directory: false })
        );
        let removal = Some(Command::RemoveTree { name: b"n", leaves_empty: true });
        assert_eq!(Command::decode(REMOVE_TREE, &argument), removal);
        assert_eq!(Command::decode(REMOVE_TREE, &name_argument(2, b"n").unwrap()), None);
        assert_eq!(name_argument(0, &[b'n'; 256]), None);
        assert_eq!(Command::decode(REMOVE_TREE, &name_argument(0, b"").unwrap()), None);
        let owner = [5u32.to_ne_bytes(), u32::MAX.to_ne_bytes()].concat();
        assert_eq!(Command::decode(CHOWN_TREE, &owner), Some(Command::ChownTree { uid: Some(5), gid: None }));
    }

    #[test]
    fn instants_come_back() {
        let argument = changes_argument(b"token", 0, CHANGES_SYNCED).unwrap();
        assert_eq!(argument.len(), size(CHANGES));
        let asked = Command::Changes { token: b"token", is_synced: true };
        assert_eq!(Command::decode(CHANGES, &argument), Some(asked));
        assert_eq!(Command::decode(CHANGES, &changes_argument(b"token", 1, 0).unwrap()), None);
        assert_eq!(Command::decode(CHANGES, &changes_argument(b"token", 0, 2).unwrap()), None);
        assert_eq!(changes_argument(&[b't'; 113], 0, 0), None);
        let answer = changes_argument(b"next", 7, CHANGES_EVERYTHING).unwrap();
        assert_eq!(changes_answer(&answer), Some((&b"next"[..], 7, CHANGES_EVERYTHING)));
        assert_eq!(changes_answer(&answer[..127]), None);
    }

    #[test]
    fn limits_come_back() {
        for limits in [
            TreeBytes::default(),
            TreeBytes { exclusive: Some(0), total: None },
            TreeBytes { exclusive: Some(5), total: Some(u64::MAX - 1) },
        ] {
            assert_eq!(TreeBytes::decode(limits.encode()), limits);
            assert_eq!(Command::decode(SET_LIMITS, &limits.encode()), Some(Command::SetLimits(limits)));
        }
    }

    #[test]
    fn steps_come_back_and_cut_off_ones_do_not() {
        let steps = [
            RawStep { action: ENTER, place: b"a/b", staged: b"0", expected: (0, 0) },
            RawStep { action: EXCHANGE, place: b"", staged: b"", expected: (u64::MAX, i64::MIN) },
        ];
        let mut text = Vec::new();
        steps.iter().for_each(|step| step.push_to(&mut text).unwrap());
        let mut rest = &text[..];
        assert_eq!(steps.map(Some), [0, 1].map(|_| RawStep::take_from(&mut rest)));
        assert!(rest.is_empty());
        for length in 0..STEP_HEAD_BYTES + 4 {
            assert_eq!(RawStep::take_from(&mut &text[..length]), None, "{length}");
        }
        let long = RawStep { place: &[b'a'; 70_000], ..steps[0] };
        assert_eq!(long.push_to(&mut Vec::new()), None);
    }

    #[test]
    fn noise_gives_nothing_or_something() {
        let mut bytes = vec![0xffu8; 300];
        for command in [
            CLONE,
            REMOVE_TREE,
            CHOWN_TREE,
            CHMOD_TREE,
            SNAPSHOT,
            DIFF,
            DIFF_NEXT,
            RENAME_ALL,
            CHANGES,
            0,
            u32::MAX,
        ] {
            for length in [0, 3, 8, 20, 264, 280, 300] {
                let _ = Command::decode(command, &bytes[..length]);
                bytes[length.min(299)] ^= 0x5a;
            }
        }
    }
}
