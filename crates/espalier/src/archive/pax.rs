//! Pax headers: records of a name and a value that complete the header behind them.

use anyhow::{Result, bail};
use std::collections::BTreeMap;

/// Values by name.
pub(super) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// A name and its value.
type Record<'a> = (&'a [u8], &'a [u8]);

/// Takes a header apart: records of `LENGTH NAME=VALUE\n`, in order.
///
/// # Errors
/// If it is none.
pub(super) fn parse(mut bytes: &[u8]) -> Result<Vec<Record<'_>>> {
    let mut records = Vec::new();
    while !bytes.is_empty() {
        let Some((record, rest)) = split_record(bytes) else { bail!("a pax header is damaged") };
        records.push(record);
        bytes = rest;
    }
    Ok(records)
}

fn split_record(bytes: &[u8]) -> Option<(Record<'_>, &[u8])> {
    let space = bytes.iter().take(20).position(|byte| *byte == b' ')?;
    let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
    let (record, rest) = bytes.split_at_checked(length)?;
    let record = record.get(space + 1..)?.strip_suffix(b"\n")?;
    let equals = record.iter().position(|byte| *byte == b'=')?;
    Some(((&record[..equals], &record[equals + 1..]), rest))
}

/// Adds a record to a header.
pub(super) fn push(header: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    // The length counts itself.
    let rest = name.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    header.extend_from_slice(length.to_string().as_bytes());
    header.push(b' ');
    header.extend_from_slice(name);
    header.push(b'=');
    header.extend_from_slice(value);
    header.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_hold_any_bytes() {
        let mut header = Vec::new();
        let long = vec![b'\n'; 1000];
        let records: Vec<Record<'_>> = vec![
            (b"path", b"a=b\n\0\xff"),
            (b"empty", b""),
            (b"SCHILY.xattr.user.x", &long),
            (b"1234", b"123"),
        ];
        for (name, value) in &records {
            push(&mut header, name, value);
        }
        assert_eq!(parse(&header).unwrap(), records);
        for length in 1..header.len() {
            // Cut off, it is damaged, but between two records.
            assert!(parse(&header[..length]).map_or(true, |some| some.len() < records.len()));
        }
        for bytes in [&b"5 a=b"[..], b"99 a=b\n", b"x a=b\n", b"2 ", b"4 ab\n", b"-6 a=b\n", b"0 a=b\n"] {
            assert!(parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
