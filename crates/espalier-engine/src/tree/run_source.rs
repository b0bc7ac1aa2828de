//! A run as a sorted stream of messages, in the key space of the reader.

use crate::Result;
use crate::message::Messages;
use crate::message::range_messages::RangeOps;
use crate::model::key::KeyRange;
use crate::model::op::RangeOp;
use crate::model::view::View;
use crate::pieces::PartCursor;
use crate::tree::run::Run;
use crate::tree::source::Source;
use crate::tree::trees::Trees;
use std::sync::Arc;

/// A run seen through `view`, which leads from the run's node to the reader.
pub(crate) struct RunSource {
    trees: Arc<Trees>,
    run: Arc<Run>,
    view: View,
    /// The part it stands in, and the entry behind (ascending) or before (descending) the group.
    part: usize,
    cursor: Option<PartCursor>,
    /// The part's keys in the key space of the reader.
    seen: View,
    key: Vec<u8>,
    messages: Messages,
    valid: bool,
    ascending: bool,
    /// How far the walk is expected to go.
    reach: Reach,
    /// Parts before this one were given to the device readahead.
    expected: usize,
    /// Some range message may cover a key that is asked for.
    has_ranges: bool,
}

/// How far a walk is expected to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Nothing is known: it has begun. Most walks are short.
    Unknown,
    /// It has left one part, and may go on for a while.
    Near,
    /// To the end, or for long.
    Far,
}

impl Reach {
    /// How many parts it gives to the device readahead at a time.
    fn parts(self) -> usize {
        match self {
            Self::Unknown => 0,
            Self::Near => NEAR_PARTS,
            Self::Far => FAR_PARTS,
        }
    }

    /// What is expected when it has gone as far as that.
    pub(crate) fn next(self) -> Self {
        if self == Self::Unknown { Self::Near } else { Self::Far }
    }
}

/// See [`Reach`].
const NEAR_PARTS: usize = 8;
const FAR_PARTS: usize = 64;

impl RunSource {
    /// For a walk over all of the run.
    pub(crate) fn new(trees: Arc<Trees>, run: Arc<Run>, view: View) -> Self {
        Self::reaching(trees, run, view, Reach::Far)
    }

    /// For a walk that is expected to go so far.
    pub(crate) fn reaching(trees: Arc<Trees>, run: Arc<Run>, view: View, reach: Reach) -> Self {
        Self {
            has_ranges: !run.ranges.is_empty(),
            trees,
            run,
            view,
            part: 0,
            cursor: None,
            seen: View::identity(),
            key: Vec::new(),
            messages: Messages::new(),
            valid: false,
            ascending: true,
            reach,
            expected: 0,
        }
    }

    /// Opens part `part`; the cursor stands nowhere yet.
    fn open(&mut self, part: usize) -> Result<()> {
        self.part = part;
        let viewed = &self.run.parts[part];
        self.seen = self.view.compose(&viewed.view);
        self.cursor = Some(viewed.slot.load(&self.trees)?.cursor());
        Ok(())
    }

    /// Says which parts a walk that leaves one will probably read. Once for so many parts, of which
    /// the reader itself reads the next one if no more are expected.
    fn expect_parts(&mut self) {
        let next = self.part + 1;
        if next >= self.expected {
            self.expected = (next + self.reach.parts().max(1)).min(self.run.parts.len());
            let expects = self.reach != Reach::Unknown;
            self.reach = self.reach.next();
            if !expects {
                return;
            }
            let parts = self.run.parts[next..self.expected].iter();
            self.trees.pieces.expect(parts.filter_map(|part| part.slot.place()).map(|part| part.handle.id()));
        }
    }

    /// Takes the group at the cursor, or the first one in the parts behind.
    fn take_ascending(&mut self) -> Result<()> {
        self.ascending = true;
        self.valid = false;
        loop {
            let Some(cursor) = &mut self.cursor else { return Ok(()) };
            if cursor.valid()
                && crate::model::key::before_end(cursor.key(), self.seen.bounds.end.as_deref())
                && begins_with(cursor.key(), &self.seen.from)
            {
                fill_key(&mut self.key, &self.seen, cursor.key());
                self.messages.clear();
                loop {
                    self.messages.push((cursor.msn(), cursor.op()));
                    cursor.next();
                    if !cursor.valid() || !is_same(cursor.key(), &self.seen, &self.key) {
                        break;
                    }
                }
                self.valid = true;
                return Ok(());
            }
            if self.part + 1 >= self.run.parts.len() {
                return Ok(());
            }
            self.expect_parts();
            self.open(self.part + 1)?;
            let start = first_inner(&self.seen);
            if let Some(cursor) = &mut self.cursor {
                cursor.seek(&start);
            }
        }
    }

    /// Takes the group that ends at the cursor, or the last one in the parts before.
    fn take_descending(&mut self) -> Result<()> {
        self.ascending = false;
        self.valid = false;
        loop {
            let Some(cursor) = &mut self.cursor else { return Ok(()) };
            if cursor.valid()
                && *self.seen.bounds.start <= *cursor.key()
                && begins_with(cursor.key(), &self.seen.from)
            {
                fill_key(&mut self.key, &self.seen, cursor.key());
                self.messages.clear();
                loop {
                    self.messages.push((cursor.msn(), cursor.op()));
                    cursor.prev();
                    if !cursor.valid() || !is_same(cursor.key(), &self.seen, &self.key) {
                        break;
                    }
                }
                self.messages.reverse();
                self.valid = true;
                return Ok(());
            }
            if self.part == 0 {
                return Ok(());
            }
            self.open(self.part - 1)?;
            let end = end_inner(&self.seen);
            if let Some(cursor) = &mut self.cursor {
                match end {
                    Some(end) => cursor.seek_before(&end),
                    None => cursor.last(),
                }
            }
        }
    }
}

/// True if `key` begins with `prefix`, which mostly is empty.
fn begins_with(key: &[u8], prefix: &[u8]) -> bool {
    prefix.is_empty() || key.starts_with(prefix)
}

/// True if `inner`, a key of a part, appears as `outer`, which is one that does. For each entry of
/// a walk: it compares bytes only where the lengths agree.
fn is_same(inner: &[u8], seen: &View, outer: &[u8]) -> bool {
    inner.len() + seen.to.len() == outer.len() + seen.from.len()
        && inner.get(seen.from.len()..) == outer.get(seen.to.len()..)
        && begins_with(inner, &seen.from)
}

/// `key` of a part in the key space of the reader.
fn fill_key(out: &mut Vec<u8>, seen: &View, key: &[u8]) {
    out.clear();
    out.extend_from_slice(&seen.to);
    out.extend_from_slice(&key[seen.from.len()..]);
}

/// The smallest key of a part that can be visible.
fn first_inner(seen: &View) -> crate::Key {
    seen.bounds.start.clone().max(seen.from.clone())
}

/// The key behind the largest one that can be visible.
fn end_inner(seen: &View) -> Option<crate::Key> {
    seen.bounds.intersect(&KeyRange::prefix(&seen.from)).end
}

impl Source for RunSource {
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.valid = false;
        self.cursor = None;
        self.ascending = true;
        let inner = self.view.range_inward(&KeyRange { start: key.into(), end: None });
        if inner.is_empty() || self.run.parts.is_empty() {
            return Ok(());
        }
        let part = self.run.parts.partition_point(|p| *p.first <= *inner.start).saturating_sub(1);
        self.open(part)?;
        let start = self.seen.range_inward(&KeyRange { start: key.into(), end: None });
        if let Some(cursor) = &mut self.cursor {
            if start.is_empty() {
                // All of this part lies before `key`.
                cursor.last();
                cursor.next();
            } else {
                cursor.seek(&start.start);
            }
        }
        self.take_ascending()
    }

    fn seek_before(&mut self, key: Option<&[u8]>) -> Result<()> {
        self.valid = false;
        self.cursor = None;
        self.ascending = false;
        let outer = KeyRange { start: crate::Key::default(), end: key.map(Into::into) };
        let inner = self.view.range_inward(&outer);
        if inner.is_empty() || self.run.parts.is_empty() {
            return Ok(());
        }
        let behind = inner
            .end
            .as_ref()
            .map_or(self.run.parts.len(), |end| self.run.parts.partition_point(|p| p.first < *end));
        let Some(part) = behind.checked_sub(1) else { return Ok(()) };
        self.open(part)?;
        let shown = self.seen.range_inward(&outer);
        if let Some(cursor) = &mut self.cursor {
            match &shown.end {
                _ if shown.is_empty() => {
                    cursor.first();
                    cursor.prev();
                }
                Some(end) => cursor.seek_before(end),
                None => cursor.last(),
            }
        }
        self.take_descending()
    }

    fn key(&self) -> Option<&[u8]> {
        self.valid.then_some(&*self.key)
    }

    fn messages(&self) -> &Messages {
        &self.messages
    }

    fn next(&mut self) -> Result<()> {
        if self.valid && !self.ascending {
            let key = self.key.clone();
            self.seek(&key)?;
        }
        if self.valid { self.take_ascending() } else { Ok(()) }
    }

    fn prev(&mut self) -> Result<()> {
        if self.valid && self.ascending {
            let behind = [&*self.key, &[0]].concat();
            self.seek_before(Some(&behind))?;
        }
        if self.valid { self.take_descending() } else { Ok(()) }
    }

    fn ranges(&self, key: &[u8]) -> RangeOps {
        match self.view.inward(key) {
            Some(inner) => self.run.ranges.covering(&inner).to_vec(),
            None => RangeOps::new(),
        }
    }

    fn has_ranges(&self) -> bool {
        self.has_ranges
    }

    fn deleted_around(&self, key: &[u8]) -> Option<KeyRange> {
        let (range, ops) = self.run.ranges.fragment_at(&self.view.inward(key)?)?;
        ops.iter().any(|(_, op)| *op == RangeOp::Delete).then(|| self.view.range_to_outer(&range))
    }

    fn narrow(&mut self, range: &KeyRange) {
        self.has_ranges = self.has_ranges && self.run.ranges.touches(&self.view.range_inward(range));
    }
}
