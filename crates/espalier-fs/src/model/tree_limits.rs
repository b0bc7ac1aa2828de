//! Limits on the space of a tree, as a directory's record holds them.

/// Limits on what a directory may hold with everything below. At least one is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TreeLimits {
    /// Of what nothing outside holds, in bytes.
    pub exclusive: Option<u64>,
    /// Of all that it refers to, in bytes.
    pub total: Option<u64>,
}

/// A limited tree and what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeQuota {
    /// Its limits.
    pub limits: TreeLimits,
    /// Bytes that nothing outside holds.
    pub exclusive: u64,
    /// Bytes that it refers to; `None` unless they are limited.
    pub total: Option<u64>,
}

/// What a record says of limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum LimitsField {
    /// There are none.
    #[default]
    Absent,
    Limits(TreeLimits),
    /// They cannot be understood, or belong to something that is no directory. They count as none,
    /// and are gone when the record is next written.
    Malformed,
}

const FIELD_BYTES: usize = 16;

impl LimitsField {
    /// The limits, if there are some.
    pub(crate) fn get(self) -> Option<TreeLimits> {
        if let Self::Limits(limits) = self { Some(limits) } else { None }
    }

    /// What a record says with these limits.
    pub(crate) fn of(limits: Option<TreeLimits>) -> Self {
        match limits {
            Some(limits) if limits != TreeLimits::default() => Self::Limits(limits),
            _ => Self::Absent,
        }
    }

    /// The field of a record; `None` if it has none.
    pub(crate) fn encode(self) -> Option<[u8; FIELD_BYTES]> {
        let TreeLimits { exclusive, total } = self.get()?;
        let mut field = [0; FIELD_BYTES];
        field[..8].copy_from_slice(&exclusive.unwrap_or(u64::MAX).to_le_bytes());
        field[8..].copy_from_slice(&total.unwrap_or(u64::MAX).to_le_bytes());
        Some(field)
    }

    pub(crate) fn decode(field: &[u8], is_dir: bool) -> Self {
        let Ok(field) = <[u8; FIELD_BYTES]>::try_from(field) else { return Self::Malformed };
        let number = |at: usize| {
            let bytes = field[at..at + 8].try_into().unwrap_or([u8::MAX; 8]);
            Some(u64::from_le_bytes(bytes)).filter(|n| *n != u64::MAX)
        };
        match Self::of(Some(TreeLimits { exclusive: number(0), total: number(8) })) {
            limits @ Self::Limits(_) if is_dir => limits,
            _ => Self::Malformed,
        }
    }
}
