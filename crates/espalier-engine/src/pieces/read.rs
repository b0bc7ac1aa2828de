//! Reading and verifying.

use super::cache::Cached;
use super::prefetch_queue::Served;
use super::values::{PageSpan, Verified, page_hash, part_checksum};
use super::{Part, Pieces, frame};
use crate::model::error::Context;
use crate::model::ids::{Location, sums_agree};
use crate::model::value::ValueRef;
use crate::model::value_reader::{ValueReader, Wanted};
use crate::{Error, Extent, PieceId, PieceKind, Result};
use bytes::Bytes;
use espalier_storage::{AlignedBuf, BLOCK};
use std::ops::Range;

/// Reads of at least so many bytes in one piece bypass caches and readahead.
pub(crate) const LEAST_DIRECT_BYTES: usize = 256 << 10;
/// Values that are so close to one another are read together, in bytes: reading what lies between
/// them takes less than another read.
const NEIGHBOUR_GAP_BYTES: u64 = 32 << 10;
/// The most that is read so in one piece, in bytes.
const MAX_NEIGHBOURS_BYTES: u64 = 1 << 20;
/// Runs of fewer blocks than this are not worth a window.
const LEAST_EXPECTED_BLOCKS: u32 = 8;

/// The checksum of the value part `id` with the blocks `content`.
fn checksum_of_values(id: PieceId, content: &[u8]) -> u64 {
    part_checksum(id, content.chunks(BLOCK).map(|page| page_hash(id, page)))
}

impl Pieces {
    /// The decoded part, from the device.
    pub(super) fn read_part(&self, id: PieceId) -> Result<Part> {
        let location = self.locate(id, |kind| kind == PieceKind::KeyValue, "key-value part")?;
        let stored = self.stored(id, &location)?;
        Part::decode(id, &stored, &|id| self.locator.handle(id)).context(|| at(&location))
    }

    /// A node's height and the body of its piece, from the device.
    pub(super) fn read_node(&self, id: PieceId) -> Result<(u8, Bytes)> {
        let location = self.locate(id, |kind| matches!(kind, PieceKind::Node(_)), "node")?;
        let stored = self.stored(id, &location)?;
        let body = frame::open(id, location.kind, &stored).context(|| at(&location))?;
        let PieceKind::Node(height) = location.kind else { return Err(frame::not_a(id, "node")) };
        Ok((height, body))
    }

    /// The checksum of all that the device has of a value part, if that is not what was written.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn torn_checksum(&self, id: PieceId) -> Result<Option<u64>> {
        let location = self.locate(id, |kind| kind == PieceKind::Values, "value part")?;
        let found = checksum_of_values(id, &self.content(id, &location)?);
        Ok((!sums_agree(found, location.checksum)).then_some(found))
    }

    /// Reads all of a piece from the device and verifies it, past all caches.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if it is not what was written; what the
    /// device says.
    pub(crate) fn check(&self, id: PieceId) -> Result<()> {
        let location = self.locator.locate(id)?;
        let device = self.content(id, &location)?;
        let stored = &device[..location.len as usize];
        let sound = match location.kind {
            PieceKind::Values => sums_agree(checksum_of_values(id, &device), location.checksum),
            _ => sums_agree(frame::checksum(id, stored), location.checksum),
        };
        if !sound {
            return Err(mismatch(id, &location));
        }
        match location.kind {
            PieceKind::Values => Ok(()),
            PieceKind::KeyValue => {
                let stored = Bytes::copy_from_slice(stored);
                Part::decode(id, &stored, &crate::model::piece::PieceHandle::counted).map(drop)
            }
            kind @ PieceKind::Node(_) => frame::open(id, kind, &Bytes::copy_from_slice(stored)).map(drop),
        }
        .context(|| at(&location))
    }

    /// Expects that these pieces will be read, in this order: where they lie together they are read
    /// together. A hint; a reader meets errors again.
    pub(crate) fn expect(&self, ids: impl Iterator<Item = PieceId>) {
        let mut run: Option<Extent> = None;
        let missing = ids.filter(|id| !self.cache.contains(*id));
        let places = missing.filter_map(|id| self.locator.locate(id).ok());
        let wants_announcements = self.device.wants_announcements();
        let mut announced = Vec::new();
        for location in places.filter(|location| !location.scattered) {
            let next = location.extent;
            if wants_announcements {
                announced.push(next.byte_offset()..next.byte_offset() + next.byte_len() as u64);
            }
            match &mut run {
                Some(run) if run.end() == next.start => run.blocks = run.blocks.saturating_add(next.blocks),
                _ => self.expect_extent(run.replace(next)),
            }
        }
        self.expect_extent(run);
        self.device.announce(&announced);
    }

    fn expect_extent(&self, run: Option<Extent>) {
        // Little is read by its reader just as fast.
        if let Some(run) = run.filter(|run| run.blocks >= LEAST_EXPECTED_BLOCKS) {
            let start = run.byte_offset();
            self.read_ahead.device.expect(start..start + run.byte_len() as u64);
        }
    }

    /// All of a stored value. It stays in memory, as long as there is room, unless it is long.
    ///
    /// # Errors
    /// As for [`Self::read_value`].
    pub(crate) fn value(&self, place: &ValueRef) -> Result<Bytes> {
        let read = || {
            let mut bytes = vec![0; place.len as usize];
            self.read_value(place, 0, &mut bytes)?;
            Ok(Bytes::from(bytes))
        };
        if place.len as usize >= LEAST_DIRECT_BYTES {
            return read();
        }
        match self.cache.value_or_load((place.part.id(), place.offset), read)? {
            Cached::Value(bytes) if bytes.len() == place.len as usize => Ok(bytes),
            // A reference to a part of a value that is kept, or to more than that.
            _ => read(),
        }
    }

    /// True if all of a stored value is in memory.
    pub(crate) fn is_kept(&self, place: &ValueRef) -> bool {
        self.cache.has_value(place.part.id(), place.offset)
    }

    /// Fills `out` with the bytes of a stored value from `offset` on. Reads and verifies the pages
    /// needed and no others.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument) for bytes that the value
    /// does not have, [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) for a page that is not what
    /// was written, naming part and bytes; what the device says.
    pub(crate) fn read_value(&self, place: &ValueRef, offset: usize, out: &mut [u8]) -> Result<()> {
        let length = place.len as usize;
        if offset.checked_add(out.len()).is_none_or(|end| end > length) {
            let message = format!("bytes {offset}.. of {} are not in a value of {length}", out.len());
            return Err(Error::new(crate::ErrorKind::InvalidArgument, message));
        }
        if out.is_empty() {
            return Ok(());
        }
        let span = PageSpan::of(place, offset, out.len());
        let location = self.value_part(place, &span)?;
        let wanted = offset - span.bytes.start;
        let skip = place.offset as usize + span.bytes.start - span.device.start;
        let content = skip..skip + span.bytes.len();
        if location.scattered {
            let layout = self.locator.extent_list(place.part.id(), &location)?;
            let mut buffer = AlignedBuf::zeroed(span.device.len());
            layout.read(&self.device, span.device.start as u64, &mut buffer)?;
            self.verify(place, &span, &buffer[content.clone()])?;
            out.copy_from_slice(&buffer[content][wanted..wanted + out.len()]);
            return Ok(());
        }
        let start = location.extent.byte_offset();
        let range = start + span.device.start as u64..start + span.device.end as u64;
        // What was read ahead is only a hint: if it does not verify, the device decides.
        let ahead = self.read_ahead.queue.read(&range, &Verified::of(place, location.extent)).or_else(|| {
            let bytes = join(&self.read_ahead.device.read(&range)?);
            Some(Served { bytes, sound: false })
        });
        if let Some(Served { bytes, sound }) = ahead {
            if sound || span.first_damaged(place, &bytes[content.clone()]).is_none() {
                out.copy_from_slice(&bytes[content][wanted..wanted + out.len()]);
                return Ok(());
            }
            self.read_ahead.invalidate(&range);
        }
        let whole_pages = content.start == 0 && wanted == 0 && out.len() == span.device.len();
        if whole_pages && (out.as_ptr() as usize).is_multiple_of(BLOCK) {
            self.device.read_at(range.start, out)?;
            return self.verify(place, &span, out);
        }
        let mut lent = self.read_ahead.buffers.lend(span.device.len());
        let buffer = lent.as_mut();
        self.device.read_at(range.start, buffer)?;
        self.verify(place, &span, &buffer[content.clone()])?;
        out.copy_from_slice(&buffer[content][wanted..wanted + out.len()]);
        Ok(())
    }

    /// Fills the ranges of `out` that `wanted` names. What lies together on the device, and goes
    /// together in `out`, is read in one piece and straight to its place, past the streams, if it
    /// is long: then the device is busy enough. What is announced of it is taken from there.
    ///
    /// # Errors
    /// As for [`Self::read_value`].
    pub(crate) fn read_values(&self, wanted: &[Wanted], out: &mut [u8]) -> Result<()> {
        if let [one] = wanted {
            return self.read_value(&one.place, one.offset, &mut out[one.out.clone()]);
        }
        self.announce(wanted)?;
        let mut rest = wanted;
        while !rest.is_empty() {
            let (run, behind) = rest.split_at(self.together(rest, out)?.max(1));
            rest = behind;
            // Some of it may be read ahead already.
            let mut announced = Vec::with_capacity(run.len());
            for one in run {
                announced.push(self.is_being_read_ahead(one)?);
            }
            let long = run[run.len() - 1].out.end - run[0].out.start >= LEAST_DIRECT_BYTES;
            let mut run = run;
            for alike in announced.chunk_by(|a, b| a == b) {
                let (part, others) = run.split_at(alike.len());
                run = others;
                let bytes = part[0].out.start..part[part.len() - 1].out.end;
                if !alike[0] && part.len() > 1 && long {
                    self.read_together(part, &mut out[bytes])?;
                    continue;
                }
                for one in part {
                    self.read_value(&one.place, one.offset, &mut out[one.out.clone()])?;
                }
            }
        }
        Ok(())
    }

    /// Has the device begin with all that a reader waits for, where that makes it faster.
    fn announce(&self, wanted: &[Wanted]) -> Result<()> {
        if !self.device.wants_announcements() {
            return Ok(());
        }
        let mut ranges: Vec<Range<u64>> = Vec::with_capacity(wanted.len());
        for one in wanted {
            let span = PageSpan::of(&one.place, one.offset, one.out.len());
            let location = self.value_part(&one.place, &span)?;
            let start = location.extent.byte_offset();
            let range = start + span.device.start as u64..start + span.device.end as u64;
            if !location.scattered && !self.read_ahead.queue.covers(&range) {
                ranges.push(range);
            }
        }
        self.device.announce(&ranges);
        Ok(())
    }

    /// True if what is wanted is being read ahead.
    fn is_being_read_ahead(&self, wanted: &Wanted) -> Result<bool> {
        let place = self.whole_pages(wanted)?;
        Ok(place.is_some_and(|(start, bytes)| self.read_ahead.queue.covers(&(start..start + bytes))))
    }

    /// How many of `wanted` are whole pages that follow one another on the device as they do in
    /// `out`.
    fn together(&self, wanted: &[Wanted], out: &[u8]) -> Result<usize> {
        let mut next: Option<(usize, u64)> = None;
        for (n, one) in wanted.iter().enumerate() {
            let Some((place, bytes)) = self.whole_pages(one)? else { return Ok(n) };
            let aligned = (out[one.out.start..].as_ptr() as usize).is_multiple_of(BLOCK);
            if next.is_some_and(|next| next != (one.out.start, place)) || !aligned {
                return Ok(n);
            }
            next = Some((one.out.end, place + bytes));
        }
        Ok(wanted.len())
    }

    /// Where on the device the bytes lie that are wanted, and how many there are, if they are whole
    /// pages of it.
    fn whole_pages(&self, wanted: &Wanted) -> Result<Option<(u64, u64)>> {
        let Wanted { place, offset, out } = wanted;
        let span = PageSpan::of(place, *offset, out.len());
        let location = self.value_part(place, &span)?;
        let whole = place.offset as usize + offset == span.device.start && out.len() == span.device.len();
        let start = location.extent.byte_offset() + span.device.start as u64;
        Ok((whole && !location.scattered).then_some((start, out.len() as u64)))
    }

    /// Reads what [`Self::together`] found, all that `out` takes.
    fn read_together(&self, wanted: &[Wanted], out: &mut [u8]) -> Result<()> {
        let Some(first) = wanted.first() else { return Ok(()) };
        if let Some((start, _)) = self.whole_pages(first)? {
            self.device.read_at(start, out)?;
        }
        for one in wanted {
            let span = PageSpan::of(&one.place, one.offset, one.out.len());
            let bytes = one.out.start - first.out.start..one.out.end - first.out.start;
            self.verify(&one.place, &span, &out[bytes])?;
        }
        Ok(())
    }

    /// All of the values at `places`, in this order. Those that lie close together on the device
    /// are read in one piece, with what is between them, and nothing is read ahead: for a caller
    /// that knows all that it will read.
    ///
    /// # Errors
    /// As for [`Self::read_value`].
    pub(crate) fn read_neighbours(&self, places: &[ValueRef]) -> Result<Vec<Bytes>> {
        let mut found: Vec<(Range<u64>, usize)> = Vec::with_capacity(places.len());
        let mut read = vec![Bytes::new(); places.len()];
        for (n, place) in places.iter().enumerate() {
            match self.range_of(place) {
                Some(range) => found.push((range, n)),
                None => read[n] = self.read_whole(place)?,
            }
        }
        found.sort_unstable_by_key(|(range, _)| range.start);
        if found.len() > 1 {
            self.device.announce(&found.iter().map(|(range, _)| range.clone()).collect::<Vec<_>>());
        }
        let close = |one: &Range<u64>, next: &Range<u64>| next.start <= one.end + NEIGHBOUR_GAP_BYTES;
        let mut rest = &found[..];
        while let Some(((first, _), others)) = rest.split_first() {
            let (start, mut end, mut count) = (first.start, first.end, 1);
            for (range, _) in others {
                if !close(&(start..end), range) || range.end.max(end) - start > MAX_NEIGHBOURS_BYTES {
                    break;
                }
                (end, count) = (range.end.max(end), count + 1);
            }
            let (run, behind) = rest.split_at(count);
            self.read_run(start..end, run, places, &mut read)?;
            rest = behind;
        }
        Ok(read)
    }

    /// Reads `range` of the device, in which the values of `run` lie.
    fn read_run(
        &self,
        range: Range<u64>,
        run: &[(Range<u64>, usize)],
        places: &[ValueRef],
        read: &mut [Bytes],
    ) -> Result<()> {
        let mut lent = self.read_ahead.buffers.lend((range.end - range.start) as usize);
        let buffer = lent.as_mut();
        self.device.read_at(range.start, buffer)?;
        for (at, n) in run {
            let place = &places[*n];
            let length = place.len as usize;
            let skip = (at.start - range.start) as usize + place.offset as usize % BLOCK;
            let content = &buffer[skip..skip + length];
            self.verify(place, &PageSpan::of(place, 0, length), content)?;
            read[*n] = Bytes::copy_from_slice(content);
        }
        Ok(())
    }

    fn read_whole(&self, place: &ValueRef) -> Result<Bytes> {
        let mut bytes = vec![0; place.len as usize];
        self.read_value(place, 0, &mut bytes)?;
        Ok(bytes.into())
    }

    /// Where on the device all of a value lies, in whole blocks; `None` if it is scattered, or
    /// nowhere to be found.
    pub(crate) fn range_of(&self, place: &ValueRef) -> Option<Range<u64>> {
        let span = PageSpan::of(place, 0, place.len as usize);
        let location = self.value_part(place, &span).ok().filter(|location| !location.scattered)?;
        let start = location.extent.byte_offset();
        Some(start + span.device.start as u64..start + span.device.end as u64)
    }

    /// Where the value part lies that holds the pages of `span`.
    fn value_part(&self, place: &ValueRef, span: &PageSpan) -> Result<Location> {
        let location = self.locate(place.part.id(), |kind| kind == PieceKind::Values, "value part")?;
        if span.device.end > (location.len as usize).next_multiple_of(BLOCK) {
            let message =
                format!("{place:?} are behind the end of the part, which has {} bytes", location.len);
            return Err(Error::damaged(message));
        }
        Ok(location)
    }

    /// All blocks of a piece, from the device.
    fn content(&self, id: PieceId, location: &Location) -> Result<AlignedBuf> {
        if !location.scattered {
            return self.device.read_extent(used(location));
        }
        let mut buffer = AlignedBuf::zeroed((location.len as usize).next_multiple_of(BLOCK));
        self.locator.extent_list(id, location)?.read(&self.device, 0, &mut buffer)?;
        Ok(buffer)
    }

    fn verify(&self, place: &ValueRef, span: &PageSpan, content: &[u8]) -> Result<()> {
        let Some(page) = span.first_damaged(place, content) else { return Ok(()) };
        let start = place.offset as usize + page * crate::VALUE_PAGE;
        let end = (start + crate::VALUE_PAGE).min((place.offset + place.len) as usize);
        Err(Error::damaged(format!(
            "bytes {start}..{end} of value part {} on {} are not what was written; restore them from a copy",
            place.part.id(),
            self.device.name(),
        )))
    }

    fn locate(&self, id: PieceId, right: impl FnOnce(PieceKind) -> bool, what: &str) -> Result<Location> {
        let location = self.locator.locate(id)?;
        if right(location.kind) { Ok(location) } else { Err(frame::not_a(id, what)) }
    }

    /// The stored bytes of a framed piece, verified.
    fn stored(&self, id: PieceId, location: &Location) -> Result<Bytes> {
        let extent = used(location);
        let range = extent.byte_offset()..extent.byte_offset() + extent.byte_len() as u64;
        let length = location.len as usize;
        let ahead = if location.scattered { None } else { self.read_ahead.device.read(&range) };
        if let Some(chunks) = ahead {
            // A copy, lest a small part keep a window of a MiB alive.
            let ahead = Bytes::copy_from_slice(&join(&chunks)[..length]);
            if sums_agree(frame::checksum(id, &ahead), location.checksum) {
                return Ok(ahead);
            }
            self.read_ahead.device.invalidate(&range);
        }
        let buffer = self.content(id, location)?;
        if !sums_agree(frame::checksum(id, &buffer[..length]), location.checksum) {
            return Err(mismatch(id, location));
        }
        Ok(Bytes::from_owner(buffer).slice(..length))
    }
}

/// The bytes of adjacent chunks as one.
fn join(chunks: &[Bytes]) -> Bytes {
    match chunks {
        [one] => one.clone(),
        many => many.concat().into(),
    }
}

/// The blocks of a piece that hold its bytes.
fn used(location: &Location) -> Extent {
    Extent { start: location.extent.start, blocks: (location.len as usize).div_ceil(BLOCK) as u32 }
}

fn at(location: &Location) -> String {
    format!("reading {}", location.extent)
}

fn mismatch(id: PieceId, location: &Location) -> Error {
    let Location { extent, kind, .. } = location;
    Error::damaged(format!(
        "{extent} do not hold what was written there as piece {id} ({kind:?}); restore it from a copy, or repair"
    ))
}

impl ValueReader for Pieces {
    fn read_value(&self, at: &ValueRef, offset: usize, out: &mut [u8]) -> Result<()> {
        self.read_value(at, offset, out)
    }

    fn read_values(&self, wanted: &[Wanted], out: &mut [u8]) -> Result<()> {
        self.read_values(wanted, out)
    }

    fn take_kept(&self, wanted: &mut Vec<Wanted>, out: &mut [u8]) {
        wanted.retain(|Wanted { place, offset, out: range }| {
            let kept = self.cache.value(place.part.id(), place.offset);
            // A reference to a part of a value that is kept, or to more than that, is read.
            let Some(kept) = kept.filter(|kept| kept.len() == place.len as usize) else { return true };
            let Some(bytes) = kept.get(*offset..*offset + range.len()) else { return true };
            out[range.clone()].copy_from_slice(bytes);
            false
        });
    }

    fn keep(&self, wanted: &[Wanted], out: &[u8]) {
        for Wanted { place, out: range, .. } in wanted {
            if range.len() == place.len as usize && range.len() < LEAST_DIRECT_BYTES {
                let bytes = Bytes::copy_from_slice(&out[range.clone()]);
                self.cache.keep_value(place.part.id(), place.offset, bytes);
            }
        }
    }

    fn read_whole(&self, at: &ValueRef) -> Result<Bytes> {
        self.value(at)
    }
}
