//! Reading many files, with one call after the other.
//!
//! Two calls under way, each with half of the parts and a session of its own, were tried: shuffled
//! reads took 1.4 times as long cold and 1.8 times warm, and reads in order the same, because the
//! server reads with several threads as it is, and they find fewer neighbours in a shorter call.

use crate::beneath::read_whole;
use crate::client::{Client, fitting, refused};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::wire::{Call, MAX_ITEMS, Malformed, Piece, ReadItem, Reader};
use std::ops::Range;

/// What gets the place of a part among the others, and what was read; false ends the reading.
type Each<'e> = &'e mut dyn FnMut(usize, Result<&[u8]>) -> bool;

/// Parts that are read together: what is left of them, by the places that the caller knows.
struct Reading<'p> {
    left: Vec<(usize, Piece<'p>)>,
}

/// What an answer has of one part.
struct Part<'p> {
    /// The place that the caller knows.
    place: usize,
    piece: Piece<'p>,
    /// 0, or an error.
    errno: u32,
    /// Where its data, or a message, is in the body.
    data: Range<usize>,
    /// There is more of it than an answer holds.
    has_more: bool,
}

impl Client {
    /// Reads parts of many files, in the order in which it is fastest, until `each` returns false.
    /// It gets the place of a part among the others, and what was read; a file that ends sooner
    /// gives less. What does not fit into an answer is read through the mount, so that all of it is
    /// of one file.
    ///
    /// # Errors
    /// As for [`Client::stat_many`]. Of each part for itself: the errors of `open` and `read`.
    pub fn read_many(&self, pieces: &[Piece<'_>], each: Each<'_>) -> Result<()> {
        let mut left: Vec<_> = pieces.iter().copied().enumerate().collect();
        while !left.is_empty() {
            let lengths = left.iter().map(|(_, piece)| piece.path.len() + 20);
            let later = left.split_off(fitting(lengths, MAX_ITEMS));
            if !self.read_by_one(&mut Reading::of(left), each)? {
                return Ok(());
            }
            left = later;
        }
        Ok(())
    }

    /// The whole content of a file.
    ///
    /// # Errors
    /// As for [`Client::read_many`].
    pub fn read(&self, path: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let mut found = Err(Malformed("an answer for no file").into());
        let piece = Piece { path: path.as_ref(), offset: 0, length: u64::MAX };
        self.read_many(&[piece], &mut |_, data| {
            found = data.map(<[u8]>::to_vec);
            true
        })?;
        found
    }

    /// Reads with one call after the other. False if `each` wants no more.
    fn read_by_one(&self, reading: &mut Reading<'_>, each: Each<'_>) -> Result<bool> {
        while !reading.left.is_empty() {
            let answer = self.again(|session| {
                let items = read_items(session.call(&reading.call())?.body)?;
                Ok((session.take_body(), items))
            });
            if let Err(Error::TooLong) = &answer {
                // It is the only one: what does not fit into a call is asked for alone.
                return Ok(reading.left.drain(..).all(|(place, _)| each(place, Err(Error::TooLong))));
            }
            let (body, items) = answer?;
            let parts = reading.take(items)?;
            let goes_on = self.hand_out(&body, parts, each);
            self.idle.reuse(body);
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Gives parts to `each`; false if it wants no more.
    fn hand_out(&self, body: &[u8], parts: Vec<Part<'_>>, each: Each<'_>) -> bool {
        for Part { place, piece, errno, data, has_more } in parts {
            let data = &body[data];
            let goes_on = match errno {
                0 if has_more => match read_whole(&self.directory, &piece) {
                    Ok(all) => each(place, Ok(&all)),
                    Err(error) => each(place, Err(error)),
                },
                0 => each(place, Ok(data)),
                errno => each(place, Err(refused(errno, data))),
            };
            if !goes_on {
                return false;
            }
        }
        true
    }
}

impl<'p> Reading<'p> {
    fn of(left: Vec<(usize, Piece<'p>)>) -> Self {
        Self { left }
    }

    fn call(&self) -> Call<'p> {
        Call::Read { pieces: self.left.iter().map(|(_, piece)| *piece).collect() }
    }

    /// Takes what an answer has off what is left.
    fn take(&mut self, items: Vec<(usize, u32, Range<usize>)>) -> Result<Vec<Part<'p>>> {
        let mut has_answer = vec![false; self.left.len()];
        let mut parts = Vec::with_capacity(items.len());
        for (index, errno, data) in items {
            match has_answer.get_mut(index) {
                None => return Err(Malformed("an answer for what was not asked").into()),
                Some(true) => return Err(Malformed("two answers for one part").into()),
                Some(new) => *new = true,
            }
            let (place, piece) = self.left[index];
            let asked = piece.length.min(Session::READ_MAX_BYTES);
            let has_more = errno == 0 && data.len() as u64 == asked && asked < piece.length;
            parts.push(Part { place, piece, errno, data, has_more });
        }
        let mut is_done = has_answer.into_iter();
        self.left.retain(|_| !is_done.next().unwrap_or_default());
        Ok(parts)
    }
}

/// What was read: places in the call, errors, and where the data is in the body. An answer has
/// something of one part at least.
fn read_items(body: &[u8]) -> Result<Vec<(usize, u32, Range<usize>)>> {
    let mut from = Reader::new(body);
    let mut items = Vec::new();
    while !from.is_empty() {
        let ReadItem { index, errno, data } = ReadItem::decode(&mut from)?;
        let end = body.len() - from.left();
        items.push((index as usize, errno, end - data.len()..end));
    }
    if items.is_empty() {
        return Err(Malformed("an answer with nothing in it").into());
    }
    Ok(items)
}
