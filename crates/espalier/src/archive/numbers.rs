//! Numbers in headers: octal digits, or the bytes of the number itself if it does not fit.

use anyhow::{Context, Result, bail};

/// The number in a field; an empty one is 0.
///
/// # Errors
/// If it is none.
pub(super) fn parse(field: &[u8]) -> Result<i64> {
    if let Some(first) = field.first()
        && first & 0x80 != 0
    {
        return parse_bytes(field);
    }
    let text = std::str::from_utf8(field).ok().map(|text| text.trim_matches(['\0', ' ']));
    match text {
        Some("") => Ok(0),
        Some(text) => {
            let digits = Some(text).filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
            let number = digits.and_then(|digits| i64::from_str_radix(digits, 8).ok());
            number.with_context(|| format!("'{text}' is no octal number"))
        }
        None => bail!("a field of a header holds no number"),
    }
}

/// A number in two's complement, the highest byte first, but for the highest bit.
fn parse_bytes(field: &[u8]) -> Result<i64> {
    let is_negative = field[0] & 0x40 != 0;
    let mut number: i128 = if is_negative { -1 } else { 0 };
    for (at, byte) in field.iter().enumerate() {
        let byte = if at == 0 { byte & 0x7f | if is_negative { 0x80 } else { 0 } } else { *byte };
        number = number << 8 | i128::from(byte);
        if i64::try_from(number).is_err() {
            bail!("a number of a header is too large");
        }
    }
    Ok(number as i64)
}

/// A time of pax headers, seconds with a fraction, in nanoseconds. What is beyond the years 1677 to
/// 2262 becomes the nearest time.
///
/// # Errors
/// If it is none.
pub(super) fn parse_time(text: &[u8]) -> Result<i64> {
    let wrong = || format!("'{}' is no time", String::from_utf8_lossy(text));
    let text = std::str::from_utf8(text).ok().with_context(wrong)?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let is_negative = whole.starts_with('-');
    let seconds: i64 = whole.parse().ok().with_context(wrong)?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        bail!(wrong());
    }
    let nine: String = fraction.chars().chain("000000000".chars()).take(9).collect();
    let fraction: i64 = nine.parse().ok().with_context(wrong)?;
    // Digits beyond the ninth make a time before the epoch the nanosecond below.
    let fraction = if is_negative { -fraction } else { fraction };
    Ok(seconds.saturating_mul(super::NANOSECONDS).saturating_add(fraction))
}

/// A time as pax headers have it.
pub(super) fn time_text(time: i64) -> String {
    let (seconds, rest) = (time / super::NANOSECONDS, time % super::NANOSECONDS);
    let sign = if time < 0 { "-" } else { "" };
    match rest {
        0 => format!("{seconds}"),
        _ => {
            let text = format!("{sign}{}.{:09}", seconds.unsigned_abs(), rest.unsigned_abs());
            text.trim_end_matches('0').to_owned()
        }
    }
}

/// Puts a number into a field as octal digits; `None` if it has no room for it.
pub(super) fn put(field: &mut [u8], number: u64) -> Option<()> {
    let digits = format!("{number:0width$o}", width = field.len() - 1);
    if digits.len() >= field.len() {
        return None;
    }
    field[..digits.len()].copy_from_slice(digits.as_bytes());
    field[digits.len()] = 0;
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_octal_or_bytes() {
        for (field, number) in [
            (&b"0000644\0"[..], 0o644),
            (b"    12 \0", 0o12),
            (b"\0\0\0\0", 0),
            (b"\x80\0\0\0\0\0\0\x01\0\0\0\0", 1 << 32),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe", -2),
        ] {
            assert_eq!(parse(field).unwrap(), number, "{field:?}");
        }
        for field in [&b"9\0"[..], b"-1", b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"1\xc3("] {
            assert!(parse(field).is_err(), "{field:?}");
        }
        let mut field = [0xff; 8];
        put(&mut field, 0o644).unwrap();
        assert_eq!(&field, b"0000644\0");
        assert_eq!(put(&mut field, 1 << 21), None);
    }

    #[test]
    fn times_are_read_as_they_are_written() {
        for time in [0, 1, -1, 999_999_999, 1_000_000_000, -1_500_000_000, i64::MAX, i64::MIN + 1] {
            assert_eq!(parse_time(time_text(time).as_bytes()).unwrap(), time, "{}", time_text(time));
        }
        assert_eq!(parse_time(b"1.5").unwrap(), 1_500_000_000);
        assert_eq!(parse_time(b"-0.25").unwrap(), -250_000_000);
        assert_eq!(parse_time(b"99999999999999").unwrap(), i64::MAX);
        for text in [&b""[..], b"x", b"1.x", b"1.5.5", b"\xff"] {
            assert!(parse_time(text).is_err(), "{text:?}");
        }
    }
}
