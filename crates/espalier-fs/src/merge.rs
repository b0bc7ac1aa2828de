//! The merge functions of the file system. Their ids and meanings are part of the format.

use espalier_engine::MergeFunctions;

/// Shortens a value to at most the length in the argument (u32); a missing value stays missing.
pub(crate) const TRUNCATE: u16 = 1;
/// Zeroes bytes of a value: argument offset (u32) and length (u32). The value keeps its length.
pub(crate) const ZERO: u16 = 2;

/// What a store that holds file systems is opened with.
pub fn merge_functions() -> MergeFunctions {
    MergeFunctions::new().with(TRUNCATE, truncate).with(ZERO, zero)
}

/// The argument of [`ZERO`].
pub(crate) fn zero_argument(offset: u32, length: u32) -> Vec<u8> {
    [offset.to_le_bytes(), length.to_le_bytes()].concat()
}

fn u32_at(argument: &[u8], at: usize) -> Option<usize> {
    let bytes = argument.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_le_bytes(bytes) as usize)
}

fn truncate(old: Option<&[u8]>, argument: &[u8]) -> Option<Vec<u8>> {
    let old = old?;
    let length = u32_at(argument, 0).unwrap_or(usize::MAX);
    Some(old[..old.len().min(length)].to_vec())
}

fn zero(old: Option<&[u8]>, argument: &[u8]) -> Option<Vec<u8>> {
    let mut value = old?.to_vec();
    if let (Some(offset), Some(length)) = (u32_at(argument, 0), u32_at(argument, 4)) {
        let end = offset.saturating_add(length).min(value.len());
        if offset < end {
            value[offset..end].fill(0);
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncation() {
        assert_eq!(truncate(None, &3u32.to_le_bytes()), None);
        assert_eq!(truncate(Some(b"abcdef"), &3u32.to_le_bytes()), Some(b"abc".to_vec()));
        assert_eq!(truncate(Some(b"ab"), &3u32.to_le_bytes()), Some(b"ab".to_vec()));
        assert_eq!(truncate(Some(b"ab"), b""), Some(b"ab".to_vec()));
    }

    #[test]
    fn zeroing() {
        assert_eq!(zero(None, &zero_argument(0, 1)), None);
        assert_eq!(zero(Some(b"abcdef"), &zero_argument(1, 2)), Some(b"a\0\0def".to_vec()));
        assert_eq!(zero(Some(b"abc"), &zero_argument(2, 9)), Some(b"ab\0".to_vec()));
        assert_eq!(zero(Some(b"abc"), &zero_argument(7, u32::MAX)), Some(b"abc".to_vec()));
        assert_eq!(zero(Some(b"abc"), b"x"), Some(b"abc".to_vec()));
    }
}
