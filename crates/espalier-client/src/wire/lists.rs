//! Lists inside of messages: extended attributes, and ranges of bytes. They are checked when they
//! are decoded, and read where they lie.

use super::codec::{Malformed, Reader, Writer};
use std::ops::Range;

/// Extended attributes: names and values, as they lie in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct XattrList<'a>(&'a [u8]);

/// Extended attributes that are put together for a message, access control lists among them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Xattrs(Writer);

/// Ranges of bytes of a file, in order, as they lie in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RangeList<'a>(&'a [u8]);

impl Xattrs {
    /// Adds an attribute with its whole name (`user.comment`).
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.0.bytes(name);
        self.0.bytes(value);
    }

    /// The attributes as a message has them.
    pub fn list(&self) -> XattrList<'_> {
        XattrList(&self.0.0)
    }
}

impl<'a> XattrList<'a> {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes that they take in a message.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut left = Reader::new(self.0);
        std::iter::from_fn(move || Some((left.bytes().ok()?, left.bytes().ok()?)))
    }

    /// Appends them.
    pub fn encode(&self, out: &mut Writer) {
        out.bytes(self.0);
    }

    /// Takes them.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let bytes = from.bytes()?;
        let mut left = Reader::new(bytes);
        while !left.is_empty() {
            left.bytes()?;
            left.bytes()?;
        }
        Ok(Self(bytes))
    }
}

impl<'a> RangeList<'a> {
    /// The ranges that [`RangeList::put_together`] has put together.
    pub fn of(encoded: &'a [u8]) -> Self {
        Self(encoded)
    }

    /// Ranges as a message has them.
    pub fn put_together(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<u8> {
        let mut out = Writer::default();
        for range in ranges {
            out.u64(range.start);
            out.u64(range.end);
        }
        out.0
    }

    /// The ranges; none of them is empty, and none begins before the one in front of it ends.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + use<'a> {
        let mut left = Reader::new(self.0);
        std::iter::from_fn(move || Some(left.u64().ok()?..left.u64().ok()?))
    }

    /// How many bytes lie in them.
    pub fn total(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// Bytes that they take in a message.
    pub fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Appends them.
    pub fn encode(&self, out: &mut Writer) {
        out.bytes(self.0);
    }

    /// Takes them.
    ///
    /// # Errors
    /// [`Malformed`]; ranges that are empty, or not in order.
    pub fn decode(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let bytes = from.bytes()?;
        let (mut left, mut last) = (Reader::new(bytes), 0);
        while !left.is_empty() {
            let range = left.u64()?..left.u64()?;
            if range.start < last || range.is_empty() {
                return Err(Malformed("ranges are not in order"));
            }
            last = range.end;
        }
        Ok(Self(bytes))
    }
}
