//! Values: small ones travel inside messages and parts, large ones by reference.
//!
//! A large value is written to the device once, into a value part, by whoever comes first: the log
//! (early binding), a message part, or a leaf. Everybody who holds the same [`LargeValue`] sees it
//! become *stored* at that moment, and refers to the same bytes from then on.

use crate::piece::PieceHandle;
use bytes::Bytes;
use parking_lot::RwLock;
use std::fmt;
use std::sync::Arc;

/// Values of at least this many bytes are large: kept in value parts, not in key-value parts.
pub const LARGE_VALUE: usize = 4096;

/// The longest value, in bytes.
pub const MAX_VALUE: usize = 1 << 20;

/// Bytes per checksum inside a value part: the smallest read that can be verified.
pub const VALUE_PAGE: usize = 4096;

/// A value, cheap to clone. Its bytes may lie on the device only.
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
pub(crate) enum Repr {
    Small(Bytes),
    Large(Arc<LargeValue>),
}

impl Value {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Small(bytes) => bytes.len(),
            Repr::Large(large) => large.len(),
        }
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if they are in memory; otherwise only the store can read them.
    pub fn in_memory(&self) -> Option<Bytes> {
        match &self.0 {
            Repr::Small(bytes) => Some(bytes.clone()),
            Repr::Large(large) => large.bytes(),
        }
    }

    pub(crate) fn repr(&self) -> &Repr {
        &self.0
    }

    /// What it takes to refer to the value, if it is stored: an upper bound in bytes that counts its
    /// checksums and a part of its own. `None` if its bytes have to be written. Never grows.
    pub(crate) fn reference_bytes(&self) -> Option<usize> {
        let large = self.large()?;
        large.place().map(|_| 128 + large.len().div_ceil(VALUE_PAGE) * size_of::<u32>())
    }

    /// A value that lies on the device.
    pub(crate) fn stored(at: ValueRef) -> Self {
        Self(Repr::Large(Arc::new(LargeValue::stored(at))))
    }

    /// A value that shares its bytes and place with others.
    pub(crate) fn shared(large: Arc<LargeValue>) -> Self {
        Self(Repr::Large(large))
    }

    /// The large value behind it, if it is one.
    pub(crate) fn large(&self) -> Option<&Arc<LargeValue>> {
        match &self.0 {
            Repr::Small(_) => None,
            Repr::Large(large) => Some(large),
        }
    }
}

impl From<Bytes> for Value {
    fn from(bytes: Bytes) -> Self {
        if bytes.len() < LARGE_VALUE {
            Self(Repr::Small(bytes))
        } else {
            Self(Repr::Large(Arc::new(LargeValue::in_memory(bytes))))
        }
    }
}

impl From<Vec<u8>> for Value {
    fn from(bytes: Vec<u8>) -> Self {
        Bytes::from(bytes).into()
    }
}

impl From<&[u8]> for Value {
    fn from(bytes: &[u8]) -> Self {
        Bytes::copy_from_slice(bytes).into()
    }
}

/// Equal if the bytes are known to be: both in memory and the same, or both at the same place.
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self.in_memory(), other.in_memory()) {
            (Some(a), Some(b)) => a == b,
            _ => match (self.large().and_then(|l| l.place()), other.large().and_then(|l| l.place())) {
                (Some(a), Some(b)) => a == b,
                _ => false,
            },
        }
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0, self.in_memory()) {
            (Repr::Small(bytes), _) if bytes.len() <= 32 => write!(f, "\"{}\"", bytes.escape_ascii()),
            (Repr::Large(large), None) => write!(f, "{:?}", large.place()),
            (_, _) => write!(f, "{} bytes", self.len()),
        }
    }
}

/// A value of at least [`LARGE_VALUE`] bytes: in memory, on the device, or both.
pub(crate) struct LargeValue {
    len: usize,
    state: RwLock<LargeState>,
}

struct LargeState {
    /// Present until the value is stored and somebody needs the memory.
    bytes: Option<Bytes>,
    /// Where it is stored; set once.
    place: Option<ValueRef>,
}

impl LargeValue {
    pub(crate) fn in_memory(bytes: Bytes) -> Self {
        Self { len: bytes.len(), state: RwLock::new(LargeState { bytes: Some(bytes), place: None }) }
    }

    pub(crate) fn stored(place: ValueRef) -> Self {
        Self { len: place.len as usize, state: RwLock::new(LargeState { bytes: None, place: Some(place) }) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bytes(&self) -> Option<Bytes> {
        self.state.read().bytes.clone()
    }

    pub(crate) fn place(&self) -> Option<ValueRef> {
        self.state.read().place.clone()
    }

    /// Records that the bytes now lie at `place`. The first caller wins: the place never changes.
    pub(crate) fn set_place(&self, place: ValueRef) {
        let mut state = self.state.write();
        debug_assert_eq!(place.len as usize, self.len);
        if state.place.is_none() {
            state.place = Some(place);
        }
    }

    /// Gives up the memory of a stored value; returns how many bytes that freed.
    pub(crate) fn forget_bytes(&self) -> usize {
        let mut state = self.state.write();
        if state.place.is_some() && state.bytes.take().is_some() { self.len } else { 0 }
    }
}

/// Where a large value lies: a byte range of a value part, with a checksum for each of its pages.
#[derive(Clone)]
pub(crate) struct ValueRef {
    /// The value part.
    pub(crate) part: Arc<PieceHandle>,
    /// First byte in the part. Values whose length is a multiple of [`VALUE_PAGE`] are aligned to it.
    pub(crate) offset: u32,
    /// Length in bytes.
    pub(crate) len: u32,
    /// For each [`VALUE_PAGE`] bytes of the value (the last may be shorter): the low half of their
    /// XXH3 hash, seeded with the part's id.
    pub(crate) sums: Arc<[u32]>,
}

impl PartialEq for ValueRef {
    fn eq(&self, other: &Self) -> bool {
        (self.part.id(), self.offset, self.len) == (other.part.id(), other.offset, other.len)
    }
}

impl fmt::Debug for ValueRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes in {} at {}", self.len, self.part.id(), self.offset)
    }
}
