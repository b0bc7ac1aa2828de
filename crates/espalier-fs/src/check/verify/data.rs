//! The data of files: blocks within their sizes, large extended attributes, data without a file.

use crate::check::data_walk::{DataWalk, OrphanRecords, xattr_fault};
use crate::check::paths::path_of;
use crate::check::report::Findings;
use crate::model::layout::{self, Parsed};
use crate::model::record::{Inode, XattrValue};
use crate::model::types::FileKind;

pub(crate) struct DataCheck {
    pub(crate) walk: DataWalk,
    pub(crate) orphans: OrphanRecords,
    pub(crate) block_size: u64,
}

impl DataCheck {
    /// Goes to the next key of the data index.
    pub(crate) fn advance(&mut self, found: &mut Findings<'_>) {
        let last = self.walk.next.take().map(|entry| entry.key).unwrap_or_default();
        match self.walk.cursor.next() {
            Ok(next) => self.walk.next = next,
            Err(error) => {
                found.problem(path_of(&last), format!("data behind this cannot be read: {error}"));
            }
        }
        found.count_key();
    }

    /// Passes over data before that of `base` (to the end if `None`): it must be an orphan's.
    pub(crate) fn skip_to(&mut self, base: Option<&[u8]>, found: &mut Findings<'_>) {
        while let Some(entry) = &self.walk.next {
            match layout::parse(&entry.key).filter(|p| !p.rest.is_empty()) {
                Some(parsed) if base.is_some_and(|base| parsed.base >= base) => return,
                Some(parsed) if self.orphans.own(&parsed) => {}
                Some(_) => found.problem(path_of(&entry.key), "data of a file that does not exist"),
                None => found.problem(path_of(&entry.key), "the key of data cannot be understood"),
            }
            self.advance(found);
        }
    }

    /// Checks the data of one file or directory.
    pub(crate) fn file_data(&mut self, parsed: &Parsed<'_>, inode: &Inode, found: &mut Findings<'_>) {
        self.skip_to(Some(parsed.base), found);
        let (mut blocks, mut large) = (0, 0);
        while let Some((entry, rest)) = self.walk.next_of(parsed.base) {
            let len = entry.value.len() as u64;
            let fault = match layout::block_number(rest) {
                Some(number) => {
                    blocks += 1;
                    found.report.blocks += 1;
                    found.report.bytes += len;
                    self.block_fault(inode, number, len)
                }
                None => {
                    large += 1;
                    xattr_fault(inode, rest, len)
                }
            };
            if let Some(fault) = fault {
                found.problem(parsed.path(), fault);
            }
            self.advance(found);
        }
        let expected = inode.size.div_ceil(self.block_size);
        if inode.kind == FileKind::Regular && !inode.sparse && blocks < expected {
            let message = format!("{blocks} of {expected} blocks are there, and the file is not sparse");
            found.problem(parsed.path(), message);
        }
        let values = inode.xattrs.iter().flat_map(|x| x.values());
        let listed = values.filter(|v| matches!(v, XattrValue::Large(_))).count();
        if large < listed {
            let message = format!("{} values of extended attributes are missing", listed - large);
            found.problem(parsed.path(), message);
        }
    }

    fn block_fault(&self, inode: &Inode, number: u64, len: u64) -> Option<String> {
        if inode.kind != FileKind::Regular {
            return Some(format!("block {number} of something that is no regular file"));
        }
        let most = inode.size.saturating_sub(number.saturating_mul(self.block_size)).min(self.block_size);
        (len > most).then(|| format!("block {number} has {len} bytes, where the file has {most}"))
    }
}
