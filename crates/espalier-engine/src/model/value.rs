//! Values: small ones travel inside messages and parts, large ones by reference.
//!
//! A large value is written to the device once, into a value part, by the first component that has
//! to write it: the log (early binding), the writer of a message part, or the writer of a leaf. All
//! that share the [`LargeValue`] see it become *stored* at that moment, and refer to the same bytes
//! from then on.
//!
//! A value that was overwritten page by page is *composed* of several large values, its *segments*:
//! so the pages that were written stay where they are, and the others too. Each segment but the
//! last has whole pages, so that every page of the value lies in one segment.

use crate::lock_order::{RankedRwLock, rank};
use crate::model::piece::PieceHandle;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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
    Composed(Arc<Composed>),
}

/// Two segments or more, one after the other.
pub(crate) struct Composed {
    len: usize,
    segments: Box<[Arc<LargeValue>]>,
}

impl Value {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Small(bytes) => bytes.len(),
            Repr::Large(large) => large.len(),
            Repr::Composed(composed) => composed.len,
        }
    }

    /// True if it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of a small value, which are in memory.
    pub fn small(&self) -> Option<&[u8]> {
        match &self.0 {
            Repr::Small(bytes) => Some(bytes),
            Repr::Large(_) | Repr::Composed(_) => None,
        }
    }

    /// The bytes, if they are in memory; otherwise only the store can read them.
    pub fn in_memory(&self) -> Option<Bytes> {
        match &self.0 {
            Repr::Small(bytes) => Some(bytes.clone()),
            Repr::Large(large) => large.bytes(),
            Repr::Composed(_) => None,
        }
    }

    pub(crate) fn repr(&self) -> &Repr {
        &self.0
    }

    /// What it takes to refer to the value, if it is stored: an upper bound in bytes that counts
    /// its checksums and a part of its own. `None` if its bytes have to be written. Never grows.
    pub(crate) fn reference_bytes(&self) -> Option<usize> {
        let segments = self.segments();
        (!segments.is_empty() && segments.iter().all(|s| s.is_stored()))
            .then(|| segments.iter().map(|s| 128 + s.len().div_ceil(VALUE_PAGE) * size_of::<u32>()).sum())
    }

    /// A value that lies on the device.
    pub(crate) fn stored(at: ValueRef) -> Self {
        Self(Repr::Large(Arc::new(LargeValue::stored(at))))
    }

    /// A value that shares its bytes and place with others.
    pub(crate) fn shared(large: Arc<LargeValue>) -> Self {
        Self(Repr::Large(large))
    }

    /// The value that `segments` give one after the other. All but the last have whole pages.
    pub(crate) fn composed(segments: Vec<Arc<LargeValue>>) -> Self {
        debug_assert!(segments.iter().rev().skip(1).all(|s| s.len().is_multiple_of(VALUE_PAGE)));
        match &segments[..] {
            [] => Self::from(Bytes::new()),
            [one] if one.len() >= LARGE_VALUE => Self::shared(one.clone()),
            _ => {
                let len = segments.iter().map(|s| s.len()).sum();
                Self(Repr::Composed(Arc::new(Composed { len, segments: segments.into() })))
            }
        }
    }

    /// The large values of which it consists, in order: one, if it is not composed; none, if it is
    /// small.
    pub(crate) fn segments(&self) -> &[Arc<LargeValue>] {
        match &self.0 {
            Repr::Small(_) => &[],
            Repr::Large(large) => std::slice::from_ref(large),
            Repr::Composed(composed) => &composed.segments,
        }
    }

    /// The large value that it is, if it is one and not composed.
    pub(crate) fn large(&self) -> Option<&Arc<LargeValue>> {
        match &self.0 {
            Repr::Large(large) => Some(large),
            Repr::Small(_) | Repr::Composed(_) => None,
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
        if let (Some(a), Some(b)) = (self.in_memory(), other.in_memory()) {
            return a == b;
        }
        let same = |(a, b): (&Arc<LargeValue>, &Arc<LargeValue>)| match (a.place(), b.place()) {
            (Some(a), Some(b)) => a == b,
            _ => Arc::ptr_eq(a, b),
        };
        let (a, b) = (self.segments(), other.segments());
        !a.is_empty() && a.len() == b.len() && a.iter().zip(b).all(same)
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0, self.in_memory()) {
            (Repr::Small(bytes), _) if bytes.len() <= 32 => write!(f, "\"{}\"", bytes.escape_ascii()),
            (Repr::Large(large), None) => write!(f, "{:?}", large.place()),
            (Repr::Composed(composed), _) => {
                write!(f, "{} bytes in {} segments", composed.len, composed.segments.len())
            }
            (_, _) => write!(f, "{} bytes", self.len()),
        }
    }
}

/// A value of at least [`LARGE_VALUE`] bytes, or a segment: in memory, on the device, or both.
pub(crate) struct LargeValue {
    len: usize,
    state: RankedRwLock<LargeState, { rank::LARGE_VALUE }>,
}

struct LargeState {
    /// Present until the value is stored and its memory is needed.
    bytes: Option<Bytes>,
    /// Where it is stored; set once.
    place: Option<ValueRef>,
    /// Counts the bytes while they are in memory.
    charged: Option<Arc<AtomicUsize>>,
}

impl LargeValue {
    pub(crate) fn in_memory(bytes: Bytes) -> Self {
        Self {
            len: bytes.len(),
            state: RankedRwLock::new(LargeState { bytes: Some(bytes), place: None, charged: None }),
        }
    }

    pub(crate) fn stored(place: ValueRef) -> Self {
        let len = place.len as usize;
        Self { len, state: RankedRwLock::new(LargeState { bytes: None, place: Some(place), charged: None }) }
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

    /// True if it has a place.
    pub(crate) fn is_stored(&self) -> bool {
        self.state.read().place.is_some()
    }

    /// Records that the bytes now lie at `place`. The first caller wins: the place never changes.
    pub(crate) fn set_place(&self, place: ValueRef) {
        let mut state = self.state.write();
        debug_assert_eq!(place.len as usize, self.len);
        if state.place.is_none() {
            state.place = Some(place);
        }
    }

    /// Adds the bytes to `total` for as long as they are in memory.
    pub(crate) fn charge(&self, total: &Arc<AtomicUsize>) {
        let mut state = self.state.write();
        if state.bytes.is_some() && state.charged.is_none() {
            total.fetch_add(self.len, Relaxed);
            state.charged = Some(total.clone());
        }
    }

    /// Gives up the memory of a stored value.
    pub(crate) fn forget_bytes(&self) {
        let mut state = self.state.write();
        if state.place.is_none() {
            return;
        }
        let bytes = state.bytes.take();
        let charged = state.charged.take();
        drop(state);
        drop(bytes);
        if let Some(total) = charged {
            total.fetch_sub(self.len, Relaxed);
        }
    }

    /// The bytes `range` of it as a value of their own, where they lie now. The range begins at a
    /// page.
    pub(crate) fn cut(&self, range: Range<usize>) -> Self {
        debug_assert!(
            range.start.is_multiple_of(VALUE_PAGE) && range.start < range.end && range.end <= self.len
        );
        let state = self.state.read();
        if let Some(place) = &state.place {
            let pages = range.start / VALUE_PAGE..range.end.div_ceil(VALUE_PAGE);
            return Self::stored(ValueRef {
                part: place.part.clone(),
                offset: place.offset + range.start as u32,
                len: range.len() as u32,
                sums: place.sums.get(pages).unwrap_or_default().into(),
            });
        }
        Self::in_memory(state.bytes.as_ref().map(|bytes| bytes.slice(range)).unwrap_or_default())
    }
}

impl Drop for LargeValue {
    fn drop(&mut self) {
        if let Some(total) = self.state.get_mut().charged.take() {
            total.fetch_sub(self.len, Relaxed);
        }
    }
}

/// Where a large value lies: a byte range of a value part, with a checksum for each of its pages.
#[derive(Clone)]
pub(crate) struct ValueRef {
    /// The value part.
    pub(crate) part: Arc<PieceHandle>,
    /// First byte in the part. Values whose length is a multiple of [`VALUE_PAGE`] are aligned to
    /// it.
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
