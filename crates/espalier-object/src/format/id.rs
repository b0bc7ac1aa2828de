//! Ids of objects, and their names.

use super::wire::Malformed;
use std::fmt;

/// What an object holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ObjectKind {
    /// Blocks.
    Data,
    /// Pages of the map, directory, object table.
    Map,
}

impl ObjectKind {
    /// What its names begin with.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Map => "map",
        }
    }

    pub(super) fn code(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Map => 2,
        }
    }

    pub(super) fn of_code(code: u8) -> Result<Self, Malformed> {
        match code {
            1 => Ok(Self::Data),
            2 => Ok(Self::Map),
            _ => Err(Malformed::new(format!("kind {code} of an object is unknown"))),
        }
    }
}

/// An object: its epoch in the upper half, its number among those of the epoch in the lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectId(pub(crate) u64);

impl ObjectId {
    /// Number `number` of an epoch.
    pub(crate) fn new(epoch: u32, number: u32) -> Self {
        Self(u64::from(epoch) << 32 | u64::from(number))
    }

    /// The epoch of its writer.
    pub(crate) fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The object's name; `nonce` is that of the session that put it.
    pub(crate) fn name(self, kind: ObjectKind, nonce: u64) -> String {
        let folder = kind.folder();
        format!("{folder}/{:08x}-{:08x}-{nonce:016x}", self.epoch(), self.0 as u32)
    }

    /// The object that a name is of, with its nonce.
    pub(crate) fn of_name(name: &str) -> Option<(Self, ObjectKind, u64)> {
        let (folder, rest) = name.split_once('/')?;
        let kind = [ObjectKind::Data, ObjectKind::Map].into_iter().find(|kind| kind.folder() == folder)?;
        let mut parts = rest.split('-');
        let mut number = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            u64::from_str_radix(part, 16).ok()
        };
        let (epoch, number, nonce) = (number(8)?, number(8)?, number(16)?);
        let id = Self(epoch << 32 | number);
        (parts.next().is_none() && id.name(kind, nonce) == name).then_some((id, kind, nonce))
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.epoch(), self.0 as u32)
    }
}
