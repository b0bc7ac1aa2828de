//! Fields of messages: fixed-width little-endian numbers, and bytes behind their length.

/// A message that is none: it is cut off, too long, or says what cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a malformed message: {0}")]
pub struct Malformed(pub &'static str);

/// Appends fields to bytes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Writer(pub Vec<u8>);

impl Writer {
    /// Appends a byte.
    pub fn u8(&mut self, value: u8) {
        self.0.push(value);
    }

    /// Appends a number of 16 bits.
    pub fn u16(&mut self, value: u16) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a number of 32 bits.
    pub fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a number of 64 bits.
    pub fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a signed number of 64 bits.
    pub fn i64(&mut self, value: i64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends bytes behind their length (32 bits).
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.u32(bytes.len() as u32);
        self.0.extend_from_slice(bytes);
    }
}

/// Takes fields from bytes in the order in which they were appended.
#[derive(Debug)]
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Reads `bytes` from the start.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The next `N` bytes.
    ///
    /// # Errors
    /// [`Malformed`] if there are not so many, as for all that follows.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed("it is cut off"))?;
        self.0 = rest;
        Ok(*taken)
    }

    /// A byte.
    ///
    /// # Errors
    /// As for [`Reader::array`].
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    /// A truth value, as one byte.
    ///
    /// # Errors
    /// As for [`Reader::array`]; another byte than 0 and 1.
    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a truth value is neither 0 nor 1")),
        }
    }

    /// A number of 16 bits.
    ///
    /// # Errors
    /// As for [`Reader::array`].
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    /// A number of 32 bits.
    ///
    /// # Errors
    /// As for [`Reader::array`].
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of 64 bits.
    ///
    /// # Errors
    /// As for [`Reader::array`].
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// A signed number of 64 bits.
    ///
    /// # Errors
    /// As for [`Reader::array`].
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        self.array().map(i64::from_le_bytes)
    }

    /// Bytes behind their length.
    ///
    /// # Errors
    /// As for [`Reader::array`].
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()? as usize;
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed("bytes are cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    /// How many elements follow.
    ///
    /// # Errors
    /// As for [`Reader::array`]; more elements than `most`, or than the rest can hold if each has
    /// `least` bytes.
    pub fn count(&mut self, most: usize, least: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        match count <= most && count <= self.0.len() / least.max(1) {
            true => Ok(count),
            false => Err(Malformed("it says that more elements follow than can")),
        }
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.0.len()
    }

    /// True if nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing is left.
    ///
    /// # Errors
    /// [`Malformed`] if something is.
    pub fn finish(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed("something follows its end")) }
    }
}
