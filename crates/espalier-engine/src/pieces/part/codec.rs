//! Key-value parts on the device. The byte tables are in docs/format.md, "Pieces".

use super::Part;
use super::entry::Entry;
use crate::model::options::Compression;
use crate::model::piece::PieceHandle;
use crate::model::value::{LARGE_VALUE, LargeValue, MAX_VALUE, VALUE_PAGE, ValueRef};
use crate::pieces::frame::{self, Encoded};
use crate::pieces::wire::{Reader, put_varint};
use crate::{Error, ErrorKind, PieceId, PieceKind, Result};
use bytes::Bytes;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Bytes before the entries.
const PART_HEADER_BYTES: usize = 28;

impl Part {
    /// The part as a piece ready to be written.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if one of its large values is not stored yet, or if it is too
    /// big.
    pub(crate) fn encode(&self, id: PieceId, compression: Compression) -> Result<Encoded> {
        let (table, holds) = self.value_table(id)?;
        let mut body = Vec::with_capacity(PART_HEADER_BYTES + self.body.len() + table.len());
        for number in [
            self.entries,
            self.restarts().len() as u32,
            self.entries_len as u32,
            self.values.len() as u32,
            table.len() as u32,
        ] {
            body.extend_from_slice(&number.to_le_bytes());
        }
        body.extend_from_slice(&self.base_msn.to_le_bytes());
        body.extend_from_slice(&self.body);
        body.extend_from_slice(&table);
        Encoded::new(id, PieceKind::KeyValue, &body, compression, holds)
    }

    /// The table of large values, and handles on the value parts it names.
    fn value_table(&self, id: PieceId) -> Result<(Vec<u8>, Vec<Arc<PieceHandle>>)> {
        if self.values.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let mut handles: Vec<Arc<PieceHandle>> = Vec::new();
        let mut index = HashMap::new();
        let mut rows = Vec::new();
        for value in &self.values {
            let Some(place) = value.place() else {
                let message = format!("a value of {} bytes in part {id} is not stored yet", value.len());
                return Err(Error::new(ErrorKind::InvalidArgument, message));
            };
            let part = *index.entry(place.part.id()).or_insert_with(|| {
                handles.push(place.part.clone());
                handles.len() - 1
            });
            put_varint(&mut rows, part as u64);
            put_varint(&mut rows, u64::from(place.offset));
            put_varint(&mut rows, u64::from(place.len));
            for sum in place.sums.iter() {
                rows.extend_from_slice(&sum.to_le_bytes());
            }
        }
        let mut table = Vec::with_capacity(5 + handles.len() * 8 + rows.len());
        put_varint(&mut table, handles.len() as u64);
        for handle in &handles {
            table.extend_from_slice(&handle.id().0.to_le_bytes());
        }
        table.extend_from_slice(&rows);
        Ok((table, handles))
    }

    /// The part with the stored bytes `stored` (verified, without padding); `handle` gives handles
    /// on the value parts that it names. Checks everything there is to check, so that nothing read
    /// from the part later can go wrong. What is not compressed stays where it is.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if this is not the part `id` or breaks the rules of a part.
    pub(crate) fn decode(
        id: PieceId,
        stored: &Bytes,
        handle: &dyn Fn(PieceId) -> Arc<PieceHandle>,
    ) -> Result<Self> {
        let body = frame::open(id, PieceKind::KeyValue, stored)?;
        let damaged = |what: &str| Error::damaged(format!("key-value part {id}: {what}"));
        let sections = Sections::of(&body).ok_or_else(|| damaged("its lengths contradict each other"))?;
        let Checked { last_key, composed } = check_entries(&sections).map_err(damaged)?;
        let values = read_values(&sections, handle).ok_or_else(|| damaged("its value table is broken"))?;
        if !composed.into_iter().all(|segments| is_value(&values[segments])) {
            return Err(damaged("one of its values is composed wrongly"));
        }
        Ok(Self {
            entries_len: sections.entries.len(),
            entries: sections.count,
            base_msn: sections.base_msn,
            last_key: last_key.into(),
            value_bytes: values.iter().map(|v| v.len() as u64).sum(),
            value_pages: values.iter().map(|v| v.len().div_ceil(crate::VALUE_PAGE)).sum(),
            values,
            body: body.slice(
                PART_HEADER_BYTES..PART_HEADER_BYTES + sections.entries.len() + sections.restarts.len() * 4,
            ),
            filter: OnceLock::new(),
            placed: Default::default(),
        })
    }
}

/// The body of a part taken apart.
struct Sections<'a> {
    count: u32,
    base_msn: u64,
    values: u32,
    entries: &'a [u8],
    restarts: &'a [[u8; 4]],
    table: &'a [u8],
}

impl<'a> Sections<'a> {
    fn of(body: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(body);
        let count = reader.u32()?;
        let restarts = reader.u32()? as usize;
        let entries = reader.u32()? as usize;
        let values = reader.u32()?;
        let table = reader.u32()? as usize;
        let base_msn = reader.u64()?;
        let entries = reader.bytes(entries)?;
        let restarts = reader.bytes(restarts.checked_mul(4)?)?.as_chunks().0;
        let table = reader.bytes(table)?;
        // Each entry takes at least four bytes, each row of the table seven: so the counts are
        // bounded by what is there.
        let plausible =
            count > 0 && count as usize <= entries.len() / 4 && values as usize <= table.len() / 7;
        (reader.remaining() == 0 && plausible).then_some(Self {
            count,
            base_msn,
            values,
            entries,
            restarts,
            table,
        })
    }
}

/// What the entries of a part are found to be.
struct Checked {
    last_key: Vec<u8>,
    /// The rows of the value table that are one value together.
    composed: Vec<Range<usize>>,
}

/// True if `segments` can be the segments of one value.
fn is_value(segments: &[Arc<LargeValue>]) -> bool {
    let Some((_, whole)) = segments.split_last() else { return false };
    !whole.is_empty()
        && whole.iter().all(|s| s.len().is_multiple_of(VALUE_PAGE))
        && segments.iter().map(|s| s.len()).sum::<usize>() <= MAX_VALUE
}

/// Walks over all entries once; returns what it found, or what is wrong.
fn check_entries(sections: &Sections<'_>) -> std::result::Result<Checked, &'static str> {
    let entries = sections.entries;
    let mut restarts = sections.restarts.iter().map(|r| u32::from_le_bytes(*r) as usize).peekable();
    if restarts.peek() != Some(&0) {
        return Err("its first entry is no restart");
    }
    let (mut at, mut key, mut msn) = (0, Vec::new(), 0);
    let mut composed = Vec::new();
    for number in 0..sections.count {
        let entry = Entry::parse(entries, at).ok_or("one of its entries is broken")?;
        let restart = restarts.next_if_eq(&at).is_some();
        let entry_msn = sections.base_msn.wrapping_add(entry.msn);
        if entry.shared > key.len() || restart && entry.shared != 0 {
            return Err("one of its keys shares more than there is");
        }
        let suffix = entry.key_suffix(entries);
        // Elsewhere than at restarts the sharing is maximal, so the first byte decides.
        let before: &[u8] = if restart { &key } else { key[entry.shared..].get(..1).unwrap_or_default() };
        let now = if restart { suffix } else { suffix.get(..1).unwrap_or_default() };
        let equal = before == now && (restart || now.is_empty());
        let ordered = before < now || equal && entry_msn <= msn;
        if number > 0 && !ordered {
            return Err("its entries are out of order");
        }
        if entry.large().end > sections.values as usize
            || entry.inline_value().is_some_and(|len| len >= LARGE_VALUE)
        {
            return Err("one of its values cannot be there");
        }
        if entry.is_composed() {
            composed.push(entry.large());
        }
        key.truncate(entry.shared);
        key.extend_from_slice(suffix);
        (at, msn) = (entry.next, entry_msn);
    }
    if at != entries.len() {
        return Err("there are bytes behind its last entry");
    }
    if restarts.next().is_some() {
        return Err("one of its restarts is at no entry");
    }
    Ok(Checked { last_key: key, composed })
}

/// Reads the table of large values.
fn read_values(
    sections: &Sections<'_>,
    handle: &dyn Fn(PieceId) -> Arc<PieceHandle>,
) -> Option<Box<[Arc<LargeValue>]>> {
    let mut reader = Reader::new(sections.table);
    if sections.values == 0 {
        return (reader.remaining() == 0).then(Box::default);
    }
    let parts = usize::try_from(reader.varint()?).ok()?;
    if parts > reader.remaining() / 8 {
        return None;
    }
    let mut handles = Vec::with_capacity(parts);
    for _ in 0..parts {
        handles.push(handle(PieceId(reader.u64()?)));
    }
    // Each row has at least one sum and three other bytes.
    let mut values = Vec::with_capacity((sections.values as usize).min(reader.remaining() / 7));
    for _ in 0..sections.values {
        let part = handles.get(usize::try_from(reader.varint()?).ok()?)?.clone();
        let (offset, len) = (reader.varint32()?, reader.varint32()?);
        offset.checked_add(len).filter(|_| len > 0)?;
        let sums = reader.bytes((len as usize).div_ceil(VALUE_PAGE).checked_mul(4)?)?;
        let sums = sums.as_chunks().0.iter().map(|s| u32::from_le_bytes(*s)).collect();
        values.push(Arc::new(LargeValue::stored(ValueRef { part, offset, len, sums })));
    }
    (reader.remaining() == 0).then(|| values.into())
}
