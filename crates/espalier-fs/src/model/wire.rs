//! The encoding of what one server hands over to another: fixed-width little-endian numbers, and
//! bytes behind their length. Every read is checked against what is left.

use crate::model::error::{FsErrorKind, Result, fail};

/// Appends fields to bytes.
#[derive(Debug, Default)]
pub struct WireWriter(Vec<u8>);

impl WireWriter {
    /// Appends a byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Appends a truth value as one byte.
    pub fn bool(&mut self, value: bool) {
        self.u8(u8::from(value));
    }

    /// Appends a number of 32 bits.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a number of 64 bits.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends the number of elements or bytes that follow.
    pub fn len(&mut self, count: usize) {
        self.u64(count as u64);
    }

    /// Appends bytes behind their length.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.len(bytes.len());
        self.0.extend_from_slice(bytes);
    }

    /// All that was appended.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Takes fields from bytes, in the order in which they were appended.
#[derive(Debug)]
pub struct WireReader<'a>(&'a [u8]);

impl<'a> WireReader<'a> {
    /// Reads `bytes` from the start.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        match self.0.split_at_checked(count) {
            Some((taken, rest)) => {
                self.0 = rest;
                Ok(taken)
            }
            None => fail(FsErrorKind::Io, format!("{count} bytes are wanted, {} are left", self.0.len())),
        }
    }

    /// A byte.
    ///
    /// # Errors
    /// [`FsErrorKind::Io`] if there is none, as for all that follows.
    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    /// A truth value.
    ///
    /// # Errors
    /// As for [`WireReader::u8`]; a byte that is none.
    pub fn bool(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => fail(FsErrorKind::Io, format!("{other} is no truth value")),
        }
    }

    /// A number of 32 bits.
    ///
    /// # Errors
    /// As for [`WireReader::u8`].
    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().unwrap_or_default()))
    }

    /// A number of 64 bits.
    ///
    /// # Errors
    /// As for [`WireReader::u8`].
    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().unwrap_or_default()))
    }

    /// How many elements follow, of at least `least` bytes each.
    ///
    /// # Errors
    /// As for [`WireReader::u8`]; more elements than the rest can hold.
    pub fn len(&mut self, least: usize) -> Result<usize> {
        let count = self.u64()?;
        match usize::try_from(count).ok().filter(|count| *count <= self.0.len() / least.max(1)) {
            Some(count) => Ok(count),
            None => fail(FsErrorKind::Io, format!("{count} elements cannot follow")),
        }
    }

    /// Bytes behind their length.
    ///
    /// # Errors
    /// As for [`WireReader::len`].
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let count = self.len(1)?;
        self.take(count)
    }

    /// Nothing is left.
    ///
    /// # Errors
    /// [`FsErrorKind::Io`] if something is.
    pub fn finish(self) -> Result<()> {
        if self.0.is_empty() {
            Ok(())
        } else {
            fail(FsErrorKind::Io, format!("{} bytes too many", self.0.len()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_come_back_and_cut_ones_are_errors() {
        let mut writer = WireWriter::default();
        writer.u8(7);
        writer.bool(true);
        writer.u32(8);
        writer.u64(9);
        writer.bytes(b"abc");
        let bytes = writer.finish();
        let read = |bytes: &[u8]| -> Result<(u8, bool, u32, u64, Vec<u8>)> {
            let mut reader = WireReader::new(bytes);
            let all = (reader.u8()?, reader.bool()?, reader.u32()?, reader.u64()?, reader.bytes()?.to_vec());
            reader.finish()?;
            Ok(all)
        };
        assert_eq!(read(&bytes).unwrap(), (7, true, 8, 9, b"abc".to_vec()));
        assert!((0..bytes.len()).all(|end| read(&bytes[..end]).is_err()));
        assert!(read(&[&bytes[..], &[0]].concat()).is_err());
        assert!(WireReader::new(&u64::MAX.to_le_bytes()).len(1).is_err(), "nothing is allocated for it");
    }
}
