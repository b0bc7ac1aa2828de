//! What files have besides content: extended attributes, access control lists, targets, holes.

use crate::client::{Client, Links, fitting, refused, too_long_alone};
use crate::error::{Error, Result};
use crate::wire::{Aspects, Call, DetailItem, MAX_ITEMS, Malformed, ReadItem, Reader, Stat};
use std::ops::Range;

/// What a file has, as far as it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// The attributes.
    pub stat: Option<Stat>,
    /// Names and values of extended attributes, access control lists among them.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Where a symbolic link leads; empty for any other file.
    pub target: Vec<u8>,
    /// The size of a regular file in bytes, and the ranges of it that are no holes.
    pub extents: (u64, Vec<Range<u64>>),
}

/// How an extended attribute is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SetXattr {
    /// Made or replaced.
    #[default]
    Set,
    /// Only made (`XATTR_CREATE`).
    Create,
    /// Only replaced (`XATTR_REPLACE`).
    Replace,
}

impl From<DetailItem<'_>> for Details {
    fn from(item: DetailItem<'_>) -> Self {
        let xattrs = item.xattrs.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        let extents = (item.extents.0, item.extents.1.iter().collect());
        Self { stat: item.stat, xattrs, target: item.target.to_vec(), extents }
    }
}

impl Client {
    /// What many files have, at choice, in the order in which they were asked for. Each is of an
    /// instant of its own, and has a result of its own: the first error of all that was asked of
    /// it.
    ///
    /// # Errors
    /// As for [`Client::stat_many`]. Of each file: those of `stat`, `getxattr` and `open`; E2BIG
    /// for a file with more extended attributes and holes than an answer has room for.
    pub fn describe_many<P: AsRef<[u8]>>(
        &self,
        paths: &[P],
        asked: Aspects,
        links: Links,
    ) -> Result<Vec<Result<Details>>> {
        let mut results = Vec::with_capacity(paths.len());
        while let Some(left) = paths.get(results.len()..).filter(|left| !left.is_empty()) {
            let count = fitting(left.iter().map(|path| path.as_ref().len() + 4), MAX_ITEMS);
            let paths = left[..count].iter().map(AsRef::as_ref).collect();
            let call = Call::Describe { follow: links == Links::Follow, asked, paths };
            // As many as an answer has room for; the others are asked for again.
            let found = self.ask(&call, |reply| details(reply.body, asked, count));
            results.extend(too_long_alone(found)?);
        }
        Ok(results)
    }

    /// The extended attributes of a file, access control lists among them.
    ///
    /// # Errors
    /// Those of `listxattr` and `getxattr`.
    pub fn xattrs(&self, path: impl AsRef<[u8]>, links: Links) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let asked = Aspects { xattrs: true, ..Aspects::default() };
        let mut all = self.describe_many(&[path.as_ref()], asked, links)?;
        Ok(all.pop().unwrap_or(Err(Malformed("an answer for no file").into()))?.xattrs)
    }

    /// Sets an extended attribute, or an access control list.
    ///
    /// # Errors
    /// Those of `setxattr`; EOPNOTSUPP for attributes of which only the kernel knows the rules
    /// (`security.` other than capabilities).
    pub fn set_xattr(
        &self,
        path: impl AsRef<[u8]>,
        (name, value): (&[u8], &[u8]),
        how: SetXattr,
        links: Links,
    ) -> Result<()> {
        let how = match how {
            SetXattr::Set => 0,
            SetXattr::Create => 1,
            SetXattr::Replace => 2,
        };
        let follow = links == Links::Follow;
        self.change(&Call::SetXattr { path: path.as_ref(), name, value, how, follow })
    }

    /// Removes an extended attribute, or an access control list.
    ///
    /// # Errors
    /// Those of `removexattr`.
    pub fn remove_xattr(&self, path: impl AsRef<[u8]>, name: &[u8], links: Links) -> Result<()> {
        let follow = links == Links::Follow;
        self.change(&Call::RemoveXattr { path: path.as_ref(), name, follow })
    }
}

/// The files of an answer, which are the first ones of those that were asked for.
fn details(body: &[u8], asked: Aspects, count: usize) -> Result<Vec<Result<Details>>> {
    let mut from = Reader::new(body);
    let mut results = Vec::new();
    while !from.is_empty() {
        let ReadItem { index, errno, data } = ReadItem::decode(&mut from)?;
        if index as usize != results.len() || results.len() == count {
            return Err(Malformed("an answer for what was not asked").into());
        }
        results.push(match errno {
            0 => Ok(Details::from(DetailItem::decode(asked, data)?)),
            errno => Err(refused(errno, data)),
        });
    }
    match results.is_empty() {
        true => Err(Error::from(Malformed("an answer with nothing in it"))),
        false => Ok(results),
    }
}
