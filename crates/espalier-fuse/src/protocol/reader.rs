//! A cursor over bytes that cannot be trusted.

use super::DecodeError;

/// Takes values from the front of a slice; an error instead of reading past its end.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Reader<'a> {
    /// A reader of `bytes`, which errors call `what`.
    pub(super) fn new(bytes: &'a [u8], what: &'static str) -> Self {
        Self { rest: bytes, what }
    }

    /// The next `length` bytes.
    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        match self.rest.split_at_checked(length) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(DecodeError::Short { what: self.what, missing: length - self.rest.len() }),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let bytes = self.bytes(N)?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        Ok(array)
    }

    /// The next two bytes as a number.
    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_ne_bytes(self.array()?))
    }

    /// The next four bytes as a number.
    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_ne_bytes(self.array()?))
    }

    /// The next eight bytes as a number.
    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_ne_bytes(self.array()?))
    }

    /// Passes over `length` bytes.
    pub(super) fn skip(&mut self, length: usize) -> Result<(), DecodeError> {
        self.bytes(length).map(|_| ())
    }

    /// The bytes up to the next NUL, which is consumed. Never empty.
    pub(super) fn name(&mut self) -> Result<&'a [u8], DecodeError> {
        match self.string()? {
            [] => Err(DecodeError::Name),
            name => Ok(name),
        }
    }

    /// As [`Reader::name`], but an empty string is allowed.
    pub(super) fn string(&mut self) -> Result<&'a [u8], DecodeError> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(DecodeError::Name)?;
        let string = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(string)
    }
}
