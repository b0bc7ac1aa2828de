//! What a file has besides its content, at choice.

use super::answer::Stat;
use super::codec::{Malformed, Reader, Writer};
use super::lists::{RangeList, XattrList};

/// What is asked of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Aspects {
    /// What `stat` says.
    pub attributes: bool,
    /// Extended attributes, access control lists among them.
    pub xattrs: bool,
    /// Where a symbolic link leads; empty for any other file.
    pub target: bool,
    /// Which ranges of a regular file are no holes, which needs the right to read it; none for any
    /// other file.
    pub extents: bool,
}

/// What a file has, as far as it was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DetailItem<'a> {
    /// The attributes.
    pub stat: Option<Stat>,
    /// Extended attributes.
    pub xattrs: XattrList<'a>,
    /// Where a symbolic link leads.
    pub target: &'a [u8],
    /// The size of a regular file in bytes as its ranges were looked up, and those.
    pub extents: (u64, RangeList<'a>),
}

impl Aspects {
    pub(super) fn encode(self, out: &mut Writer) {
        let bits = [self.attributes, self.xattrs, self.target, self.extents];
        out.u8(bits.iter().rev().fold(0, |all, bit| all << 1 | u8::from(*bit)));
    }

    pub(super) fn decode(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let bits = from.u8()?;
        if bits >> 4 != 0 {
            return Err(Malformed("something is asked of files that is not known"));
        }
        let bit = |at: u8| bits >> at & 1 != 0;
        Ok(Self { attributes: bit(0), xattrs: bit(1), target: bit(2), extents: bit(3) })
    }
}

impl<'a> DetailItem<'a> {
    /// Appends what was asked.
    pub fn encode(&self, asked: Aspects, out: &mut Writer) {
        if asked.attributes {
            self.stat.unwrap_or_default().encode(out);
        }
        if asked.xattrs {
            self.xattrs.encode(out);
        }
        if asked.target {
            out.bytes(self.target);
        }
        if asked.extents {
            out.u64(self.extents.0);
            self.extents.1.encode(out);
        }
    }

    /// Takes what was asked.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn decode(asked: Aspects, body: &'a [u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        let mut item = Self::default();
        if asked.attributes {
            item.stat = Some(Stat::decode(&mut from)?);
        }
        if asked.xattrs {
            item.xattrs = XattrList::decode(&mut from)?;
        }
        if asked.target {
            item.target = from.bytes()?;
        }
        if asked.extents {
            item.extents = (from.u64()?, RangeList::decode(&mut from)?);
        }
        from.finish()?;
        Ok(item)
    }
}
