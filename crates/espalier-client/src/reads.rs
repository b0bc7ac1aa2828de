//! Reading many files.
//!
//! A client that reads much has two calls under way, each with a session of its own: while it hands
//! out what one of them brought, the server reads for the other one. The parts are shared out in
//! the order of their paths, so that each call has neighbours.

use crate::client::{Client, fitting, refused};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::wire::{Call, MAX_ITEMS, Malformed, Piece, ReadItem, Reader};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Fewer parts are read with one call.
const LEAST_PARTS_OF_TWO_CALLS: usize = 64;
/// Parts of each call if there are two, at most.
const MAX_PARTS_OF_A_CALL: usize = 256;
/// So many parts must have been read before a session is begun for the second call: to begin one
/// takes as long as to read some hundred small files.
const PARTS_BEFORE_SECOND_SESSION: usize = 1024;

/// What gets the place of a part among the others, and what was read; false ends the reading.
type Each<'e> = &'e mut dyn FnMut(usize, Result<&[u8]>) -> bool;

/// Parts that are read together: what is left of them.
struct Reading<'p> {
    /// By the places that the caller knows.
    left: Vec<(usize, Piece<'p>)>,
    /// What was read of parts that have more.
    begun: HashMap<usize, Vec<u8>>,
}

/// What an answer has of one part.
struct Part {
    /// The place that the caller knows.
    place: usize,
    /// 0, or an error.
    errno: u32,
    /// Where its data, or a message, is in the body.
    data: Range<usize>,
    /// There is more of it, which is read with the next call.
    has_more: bool,
}

/// A call that is under way.
struct Lane<'p> {
    session: Session,
    reading: Reading<'p>,
}

impl Client {
    /// Reads parts of many files, in the order in which it is fastest, until `each` returns false.
    /// It gets the place of a part among the others, and what was read; a file that ends sooner
    /// gives less.
    ///
    /// # Errors
    /// As for [`Client::stat_many`]. Of each part for itself: the errors of `open` and `read`.
    pub fn read_many(&self, pieces: &[Piece<'_>], each: Each<'_>) -> Result<()> {
        let all = || pieces.iter().copied().enumerate();
        let read_before = self.parts_read.fetch_add(pieces.len(), Ordering::Relaxed);
        if pieces.len() >= LEAST_PARTS_OF_TWO_CALLS
            && let Some(sessions) = self.two_sessions(read_before >= PARTS_BEFORE_SECOND_SESSION)?
        {
            let mut parts: Vec<_> = all().collect();
            parts.sort_by_key(|(_, piece)| piece.path);
            return self.read_by_two(sessions, &parts, each);
        }
        let mut left: Vec<_> = all().collect();
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

    /// Two idle sessions; the second one is begun if `begins` and there is none. `None` if one has
    /// to be enough.
    fn two_sessions(&self, begins: bool) -> Result<Option<[Session; 2]>> {
        let first = self.session()?;
        let second = match self.idle.take() {
            None if begins => Session::begin(&self.directory).ok(),
            idle => idle,
        };
        let Some(second) = second else {
            self.idle.give(first);
            return Ok(None);
        };
        Ok(Some([first, second]))
    }

    /// Reads with one call after the other. False if `each` wants no more.
    fn read_by_one(&self, reading: &mut Reading<'_>, each: Each<'_>) -> Result<bool> {
        while !reading.left.is_empty() {
            let (body, items) = self.again(|session| {
                let items = read_items(session.call(&reading.call())?.body)?;
                Ok((session.take_body(), items))
            })?;
            let parts = reading.take(items)?;
            let goes_on = reading.hand_out(&body, parts, each);
            self.idle.reuse(body);
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads with two calls at a time. `parts` are in an order in which neighbours are together.
    fn read_by_two(
        &self,
        sessions: [Session; 2],
        parts: &[(usize, Piece<'_>)],
        each: Each<'_>,
    ) -> Result<()> {
        let share = parts.len().div_ceil(2).min(MAX_PARTS_OF_A_CALL);
        let mut rest = parts;
        let mut next = || {
            let (now, later) = rest.split_at(share.min(rest.len()));
            rest = later;
            (!now.is_empty()).then(|| Reading::of(now.to_vec()))
        };
        let mut lanes = VecDeque::with_capacity(2);
        for session in sessions {
            match next() {
                Some(reading) => lanes.push_back(self.begin_lane(session, reading)),
                None => self.idle.give(session),
            }
        }
        while let Some((lane, begun)) = lanes.pop_front() {
            let Lane { mut session, mut reading } = lane;
            let came = begun.and_then(|()| {
                let items = read_items(session.receive()?.body)?;
                Ok((session.take_body(), items))
            });
            match came {
                Ok((body, items)) => {
                    let parts = reading.take(items)?;
                    // The server goes on meanwhile, with what is left or with the next parts.
                    let later = match reading.left.is_empty() {
                        true => next(),
                        false => Some(Reading::of(std::mem::take(&mut reading.left))),
                    };
                    let mut lane = match later {
                        Some(later) => Some(self.begin_lane(session, later)),
                        None => {
                            self.idle.give(session);
                            None
                        }
                    };
                    if !reading.hand_out(&body, parts, each) {
                        return Ok(());
                    }
                    if let Some((lane, _)) = &mut lane {
                        // What was begun is continued by what was left.
                        lane.reading.begun.extend(reading.begun);
                        lane.session.reuse(body);
                    }
                    lanes.extend(lane);
                }
                Err(error) => {
                    self.idle.give_after(session, Some(&error));
                    let (goes_on, others) = self.read_again(reading, error, each)?;
                    if !goes_on {
                        return Ok(());
                    }
                    if let Some(reading) = others.or_else(&mut next) {
                        lanes.push_back(self.begin_lane(self.session()?, reading));
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads with a new session what could not be read because of `error`: nothing was changed.
    /// Returns whether `each` wants more, and what did not fit into one call.
    fn read_again<'p>(
        &self,
        mut reading: Reading<'p>,
        error: Error,
        each: Each<'_>,
    ) -> Result<(bool, Option<Reading<'p>>)> {
        if !matches!(error, Error::Lost { .. } | Error::TooLong) {
            return Err(error);
        }
        let lengths = reading.left.iter().map(|(_, piece)| piece.path.len() + 20);
        let others = reading.left.split_off(fitting(lengths, MAX_ITEMS));
        let goes_on = self.read_by_one(&mut reading, each)?;
        Ok((goes_on, (!others.is_empty()).then(|| Reading::of(others))))
    }

    /// Asks for parts; what is wrong is said when the answer is waited for.
    fn begin_lane<'p>(&self, mut session: Session, reading: Reading<'p>) -> (Lane<'p>, Result<()>) {
        let begun = session.begin_call(&reading.call());
        (Lane { session, reading }, begun)
    }
}

impl<'p> Reading<'p> {
    fn of(left: Vec<(usize, Piece<'p>)>) -> Self {
        Self { left, begun: HashMap::new() }
    }

    fn call(&self) -> Call<'p> {
        Call::Read { pieces: self.left.iter().map(|(_, piece)| *piece).collect() }
    }

    /// Takes what an answer has off what is left.
    fn take(&mut self, items: Vec<(usize, u32, Range<usize>)>) -> Result<Vec<Part>> {
        let mut is_done = vec![false; self.left.len()];
        let mut has_answer = vec![false; self.left.len()];
        let mut parts = Vec::with_capacity(items.len());
        for (index, errno, data) in items {
            match has_answer.get_mut(index) {
                None => return Err(Malformed("an answer for what was not asked").into()),
                Some(true) => return Err(Malformed("two answers for one part").into()),
                Some(new) => *new = true,
            }
            let (place, piece) = &mut self.left[index];
            let asked = piece.length.min(Session::READ_MAX_BYTES);
            let has_more = errno == 0 && data.len() as u64 == asked && asked < piece.length;
            if has_more {
                piece.offset = piece.offset.saturating_add(asked);
                piece.length -= asked;
            }
            is_done[index] = !has_more;
            parts.push(Part { place: *place, errno, data, has_more });
        }
        let mut is_done = is_done.into_iter();
        self.left.retain(|_| !is_done.next().unwrap_or_default());
        Ok(parts)
    }

    /// Gives the parts that are whole to `each`; false if it wants no more.
    fn hand_out(&mut self, body: &[u8], parts: Vec<Part>, each: Each<'_>) -> bool {
        for Part { place, errno, data, has_more } in parts {
            let data = &body[data];
            if has_more {
                self.begun.entry(place).or_default().extend_from_slice(data);
                continue;
            }
            let goes_on = match (errno, self.begun.remove(&place)) {
                (0, Some(mut all)) => {
                    all.extend_from_slice(data);
                    each(place, Ok(&all))
                }
                (0, None) => each(place, Ok(data)),
                (errno, _) => each(place, Err(refused(errno, data))),
            };
            if !goes_on {
                return false;
            }
        }
        true
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
