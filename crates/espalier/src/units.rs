//! Sizes and durations as people write and read them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const UNITS: [(&str, u32); 6] = [("E", 60), ("P", 50), ("T", 40), ("G", 30), ("M", 20), ("K", 10)];

/// A number of bytes: `4096`, `512M`, `1.5G`, `20GiB`; units are powers of 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no size; write a number and K, M, G or T, like 20G");
        let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = unit.to_ascii_uppercase();
        let unit = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
        let shift = match unit {
            "" => 0,
            unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?.1,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let whole: u64 = whole.parse().map_err(|_| wrong())?;
        let mut bytes = whole.checked_mul(1 << shift).ok_or_else(|| format!("'{text}' is too large"))?;
        if !fraction.is_empty() {
            if fraction.len() > 9 || shift == 0 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
                return Err(wrong());
            }
            let scaled: u128 = fraction.parse::<u128>().map_err(|_| wrong())? << shift;
            let extra = (scaled / 10u128.pow(fraction.len() as u32)) as u64;
            bytes = bytes.checked_add(extra).ok_or_else(|| format!("'{text}' is too large"))?;
        }
        Ok(Self(bytes))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, shift) in UNITS {
            if self.0 >> shift == 0 {
                continue;
            }
            let unit = format!("{name}iB");
            return if self.0 & ((1 << shift) - 1) == 0 {
                write!(f, "{} {unit}", self.0 >> shift)
            } else {
                write!(f, "{:.1} {unit}", self.0 as f64 / (1u64 << shift) as f64)
            };
        }
        write!(f, "{} bytes", self.0)
    }
}

const SPANS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];

/// A span of time: `90s`, `30m`, `12h`, `7d`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no time; write a number and s, m, h or d, like 7d");
        let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(split);
        let (_, seconds) = SPANS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let seconds = number.checked_mul(*seconds).ok_or_else(|| format!("'{text}' is too long"))?;
        Ok(Self(Duration::from_secs(seconds)))
    }
}

impl fmt::Display for Span {
    /// In the largest unit of which there are two or more.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (unit, length) = SPANS.iter().find(|(_, length)| seconds >= 2 * length).unwrap_or(&SPANS[3]);
        write!(f, "{}{unit}", seconds / length)
    }
}

/// A short time: `100us`, `10ms`, `1.5s`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(pub(crate) Duration);

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is no time; write a number and us, ms or s, like 10ms");
        let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(split);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let seconds = match unit {
            "us" => number / 1e6,
            "ms" => number / 1e3,
            "s" => number,
            _ => return Err(wrong()),
        };
        Duration::try_from_secs_f64(seconds).map(Self).map_err(|_| wrong())
    }
}

/// Shows a time as `0.42 s` or `3 min 20 s`.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 100.0 {
        format!("{seconds:.2} s")
    } else {
        format!("{} min {} s", time.as_secs() / 60, time.as_secs() % 60)
    }
}

/// Shows seconds since the Unix epoch as `2026-11-22 00:07:30 UTC`.
pub(crate) fn date(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years from March on, so that leap days come last.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC", era * 400 + year + carry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64k", 65536),
            ("20G", 20 << 30),
            ("20GiB", 20 << 30),
            ("20gb", 20 << 30),
            ("1.5M", 3 << 19),
            ("512B", 512),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for text in
            ["", "G", "-1", "1.5", "1x", "1.2.3G", "1 G", "99999999999E", "16E", "1.0000000000G", "15.9Q"]
        {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn spans_are_read_and_shown() {
        for (text, seconds, shown) in [
            ("7d", 604_800, "7d"),
            ("90s", 90, "90s"),
            ("120s", 120, "2m"),
            ("36h", 129_600, "36h"),
            ("0s", 0, "0s"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.0.as_secs(), &*span.to_string()), (seconds, shown), "{text}");
        }
        for text in ["", "7", "d", "1w", "-1d", "1.5h", "99999999999999999999d", "999999999999999999d"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (951_868_800, "2000-03-01 00:00:00 UTC"),
            (1_795_306_050, "2026-11-22 00:07:30 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_fitting_unit() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (20 << 30, "20 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
