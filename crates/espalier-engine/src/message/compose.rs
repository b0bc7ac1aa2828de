//! Composition: a value and patches to it as one value, page by page, without reading whole pages.
//!
//! A page that a patch covers is taken from the patch, and a page that no patch touches from the
//! old value, both where they lie. Only a page that is covered in part is read and becomes new
//! bytes. So a value that is overwritten in whole pages is never read or written again: it becomes
//! a *composed* value.

use crate::model::value::{LARGE_VALUE, LargeValue, MAX_VALUE, VALUE_PAGE, Value, ValueRef};
use crate::model::value_reader::{ValueReader, read_slice};
use crate::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that replace those of a value from an offset on.
pub(crate) type Patch = (u32, Value);

/// What `patches` (oldest first) make of `base`; without one, they begin with an empty value.
///
/// # Errors
/// Of `reader`; [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if the outcome would be too long.
pub(crate) fn patched(base: Option<&Value>, patches: &[Patch], reader: &dyn ValueReader) -> Result<Value> {
    let end = |patch: &Patch| patch.0 as usize + patch.1.len();
    let len = patches.iter().map(end).chain(base.map(Value::len)).max().unwrap_or(0);
    if len > MAX_VALUE {
        return Err(Error::damaged(format!("patches make a value of {len} bytes, which is too long")));
    }
    let stored = |value: &Value| value.segments().iter().any(|s| s.is_stored());
    if len < LARGE_VALUE || !patches.iter().map(|p| &p.1).chain(base).any(stored) {
        return in_one_buffer(base, patches, len, reader);
    }
    let mut pages = Pages { len, pages: vec![Page::Zero; len.div_ceil(VALUE_PAGE)], sources: Vec::new() };
    if let Some(base) = base {
        pages.place_value(base);
    }
    for (offset, bytes) in patches {
        pages.patch(*offset as usize, bytes, reader)?;
    }
    pages.compose(reader)
}

/// The same, if it takes no reading.
pub(crate) fn patched_unread(base: Option<&Value>, patches: &[Patch]) -> Option<Value> {
    patched(base, patches, &Unread).ok()
}

/// Refuses to read.
struct Unread;

impl ValueReader for Unread {
    fn read_value(&self, _: &ValueRef, _: usize, _: &mut [u8]) -> Result<()> {
        Err(Error::damaged("a value is not in memory"))
    }
}

fn in_one_buffer(
    base: Option<&Value>,
    patches: &[Patch],
    len: usize,
    reader: &dyn ValueReader,
) -> Result<Value> {
    let mut bytes = vec![0; len];
    if let Some(base) = base {
        read_slice(base, reader, 0, &mut bytes)?;
    }
    for (offset, patch) in patches {
        let at = *offset as usize;
        read_slice(patch, reader, 0, &mut bytes[at..at + patch.len()])?;
    }
    Ok(Value::from(bytes))
}

/// A value in the making.
struct Pages {
    len: usize,
    pages: Vec<Page>,
    /// What pages are taken from.
    sources: Vec<Arc<LargeValue>>,
}

/// Where a page of it is.
#[derive(Clone)]
enum Page {
    Zero,
    /// A page of a source, by their numbers.
    Of(usize, usize),
    /// New bytes.
    Own(Box<[u8]>),
}

impl Pages {
    /// The bytes of page `page`.
    fn range(&self, page: usize) -> Range<usize> {
        page * VALUE_PAGE..((page + 1) * VALUE_PAGE).min(self.len)
    }

    fn source(&mut self, value: &Arc<LargeValue>) -> usize {
        self.sources.push(value.clone());
        self.sources.len() - 1
    }

    /// Begins with `value`.
    fn place_value(&mut self, value: &Value) {
        let small;
        let segments = match value.segments() {
            [] => {
                small = [Arc::new(LargeValue::in_memory(value.in_memory().unwrap_or_default()))];
                &small
            }
            segments => segments,
        };
        let mut page = 0;
        for segment in segments {
            let source = self.source(segment);
            for n in 0..segment.len().div_ceil(VALUE_PAGE) {
                self.pages[page] = Page::Of(source, n);
                page += 1;
            }
        }
    }

    /// Puts `bytes` at `offset`.
    fn patch(&mut self, offset: usize, bytes: &Value, reader: &dyn ValueReader) -> Result<()> {
        let end = offset + bytes.len();
        let aligned = bytes.large().filter(|_| offset.is_multiple_of(VALUE_PAGE)).cloned();
        let source = aligned.map(|large| self.source(&large));
        for page in offset / VALUE_PAGE..end.div_ceil(VALUE_PAGE) {
            let range = self.range(page);
            let covered = offset <= range.start && range.end <= end;
            if let Some(source) = source.filter(|_| covered) {
                self.pages[page] = Page::Of(source, page - offset / VALUE_PAGE);
                continue;
            }
            let mut own = match covered {
                true => vec![0; range.len()].into(),
                false => self.own_page(page, reader)?,
            };
            let (from, to) = (offset.max(range.start), end.min(range.end));
            read_slice(bytes, reader, from - offset, &mut own[from - range.start..to - range.start])?;
            self.pages[page] = Page::Own(own);
        }
        Ok(())
    }

    /// The bytes of a page as they are so far.
    fn own_page(&mut self, page: usize, reader: &dyn ValueReader) -> Result<Box<[u8]>> {
        let mut own = vec![0; self.range(page).len()].into_boxed_slice();
        match std::mem::replace(&mut self.pages[page], Page::Zero) {
            Page::Zero => {}
            Page::Own(bytes) => own = bytes,
            Page::Of(source, n) => {
                let value = Value::shared(self.sources[source].clone());
                read_slice(&value, reader, n * VALUE_PAGE, &mut own)?;
            }
        }
        Ok(own)
    }

    /// The value.
    fn compose(mut self, reader: &dyn ValueReader) -> Result<Value> {
        // The last page of something shorter has to be filled up.
        for page in 0..self.pages.len() {
            if let Page::Of(source, n) = self.pages[page]
                && self.sources[source].len() < n * VALUE_PAGE + self.range(page).len()
            {
                self.pages[page] = Page::Own(self.own_page(page, reader)?);
            }
        }
        let mut segments: Vec<Arc<LargeValue>> = Vec::new();
        let mut page = 0;
        while page < self.pages.len() {
            let first = page;
            page += 1;
            while page < self.pages.len() && self.continues(page) {
                page += 1;
            }
            let next = self.segment(first..page);
            let both = segments.last().and_then(|last| adjacent(last, &next));
            match both {
                Some(both) => {
                    segments.pop();
                    segments.push(both);
                }
                None => segments.push(next),
            }
        }
        Ok(Value::composed(segments))
    }

    /// True if a page belongs to one segment with the page before.
    fn continues(&self, page: usize) -> bool {
        match (&self.pages[page - 1], &self.pages[page]) {
            (Page::Of(a, m), Page::Of(b, n)) => a == b && m + 1 == *n,
            (Page::Own(_) | Page::Zero, Page::Own(_) | Page::Zero) => true,
            _ => false,
        }
    }

    fn segment(&self, pages: Range<usize>) -> Arc<LargeValue> {
        let len = (pages.end * VALUE_PAGE).min(self.len) - pages.start * VALUE_PAGE;
        if let Page::Of(source, n) = self.pages[pages.start] {
            let source = &self.sources[source];
            let start = n * VALUE_PAGE;
            return match start == 0 && len == source.len() {
                true => source.clone(),
                false => Arc::new(source.cut(start..start + len)),
            };
        }
        let mut bytes = vec![0; len];
        for (page, out) in self.pages[pages].iter().zip(bytes.chunks_mut(VALUE_PAGE)) {
            if let Page::Own(own) = page {
                out.copy_from_slice(own);
            }
        }
        Arc::new(LargeValue::in_memory(bytes.into()))
    }
}

/// Two segments as one, if they lie one behind the other.
fn adjacent(left: &LargeValue, right: &LargeValue) -> Option<Arc<LargeValue>> {
    let (a, b) = (left.place()?, right.place()?);
    let follows = a.part.id() == b.part.id()
        && a.offset.checked_add(a.len) == Some(b.offset)
        && left.len().is_multiple_of(VALUE_PAGE);
    follows.then(|| {
        let sums = a.sums.iter().chain(b.sums.iter()).copied().collect();
        Arc::new(LargeValue::stored(ValueRef { part: a.part, offset: a.offset, len: a.len + b.len, sums }))
    })
}

/// `old` with `patch` at `offset`, extended with zeros where needed.
pub(crate) fn patched_buffer(mut old: Vec<u8>, offset: u32, patch: &[u8]) -> Vec<u8> {
    let offset = offset as usize;
    if old.len() < offset {
        old.resize(offset, 0);
    }
    let (over, behind) = patch.split_at(patch.len().min(old.len() - offset));
    old[offset..offset + over.len()].copy_from_slice(over);
    old.extend_from_slice(behind);
    old
}

#[cfg(test)]
mod tests;
