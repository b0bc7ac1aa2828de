//! Reading ahead in the order of keys.
//!
//! A program that goes through a tree reads its files in the order of their keys, and their data
//! lies wherever it lay when it was written: neighbours on the device are not neighbours in the
//! tree. But the tree knows what comes next. So a row of reads that goes through the parts of an
//! index from entry to entry becomes a *reading*: a background thread walks the index ahead of it
//! and announces where the next values lie ([`Pieces::announce`]), which brings the parts that
//! describe them into the cache as well. What it finds it remembers, so that the reader need not
//! look it up again.
//!
//! Protocol: [`Readings::expected`] hears of every look-up, and [`Readings::notice`] of those
//! besides that have to go to the device; threads (or who has none, in between) call
//! [`Shared::ahead_step`], which walks for a reading that needs it, or reads what is announced.
//!
//! Invariant: what a reading remembers of a key is what the version of the index says in which it
//! was found, as long as nothing is in that version's active memtable, which only grows. Nothing
//! that is remembered keeps blocks or versions from being reused.
//!
//! The rest of a long row of large values is left out: who reads such a file asks for it in large
//! pieces, several at a time, and that alone keeps the device busy. Those who read shorter ones in
//! large pieces need help where one ends and the next begins: each time the kernel's pieces are
//! short again and come one by one.
//!
//! [`Pieces::announce`]: crate::pieces::Pieces::announce

use crate::Result;
use crate::index::Version;
use crate::message::resolve::{Found, InMemory, Spot};
use crate::model::ids::IndexId;
use crate::model::key::{Key, KeyRange};
use crate::model::value::{LargeValue, Value, ValueRef};
use crate::pieces::{LEAST_DIRECT, Pieces, Place, Sums, cost};
use crate::read::cursor::Cursor;
use crate::read::snapshot::{Slice, SnapshotIndex};
use crate::store::Shared;
use bytes::Bytes;
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak, atomic};

/// So many reads in a row, after the first, make a reading; of large ones, for which somebody has
/// begun to read a file as a whole, fewer do.
const HITS: u8 = 2;
const LARGE_HITS: u8 = 1;
/// Reads remembered, and readings at a time.
const RECENT: usize = 16;
const MAX_READINGS: usize = 8;
/// A reading that was not used in so many events, when another begins, has lost its reader: what
/// was announced for it would take the room of what is announced for the other. Of large reads
/// fewer pass in the same time, and theirs is more.
const ABANDONED: u64 = 256;
const LARGE_ABANDONED: u64 = 32;
/// Keys of a window at most.
const MAX_KEYS: usize = 2048;
/// Who passes more than so many values for each that he reads goes through the index in some other
/// way.
const MOST_SKIPPED: usize = 4;
/// Keys that are kept although their turn is over, as far as they take half a window: several reads
/// at a time come in any order, and large ones have many keys; and who reads files for somebody,
/// before he asks for them, is that much before him.
const BEHIND: usize = 64;
const LARGE_BEHIND: usize = 256;
/// After so many short reads a reading is none of large ones any more: what is read far ahead of
/// small files has left the processor's caches when it is wanted.
const SHORT: u8 = 16;
/// Keys behind the reader's place among which a key is looked for before it is searched.
const NEXT: usize = 4;
/// Patches to a value that are remembered with it, and their bytes: as much as the smallest value
/// that lies elsewhere has, or windows would hold more than what is read.
const MOST_PATCHES: usize = 64;
const MOST_PATCHED: usize = 4096;
/// From so many values of this many bytes on, of keys that [follow one another](is_next), the rest
/// of the row is left out.
const LARGE_ROW: usize = 256;
const LARGE: u64 = 64 << 10;

/// The first window of a reading, in bytes of memory, and the longest: enough to keep a device
/// busy; and two who read large files in turn, one of them for the other, use up a shorter one
/// faster than the next can be found.
fn windows(large: bool) -> Range<u64> {
    if large { 2 << 20..16 << 20 } else { 256 << 10..4 << 20 }
}

/// Who reads in the order of keys.
#[derive(Default)]
pub(crate) struct Readings {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    recent: VecDeque<(IndexId, Spot, u8)>,
    readings: Vec<Reading>,
    /// Counts events; names readings, and orders them by their last use.
    clock: u64,
}

struct Reading {
    name: u64,
    index: IndexId,
    used: u64,
    /// Keys that were walked over, some of which the reader has passed ([`BEHIND`]).
    walked: VecDeque<Walked>,
    /// The version of the index in which their values were found.
    version: Weak<Version>,
    /// The turn of the first of them.
    turn: u64,
    /// How many of them the reader has passed, and the bytes of the others.
    behind: usize,
    ahead: u64,
    /// Where the walk goes on: behind this key.
    from: Key,
    /// It is of somebody who reads in large pieces: so many short ones are left until he does not
    /// any more.
    large: u8,
    /// Bytes of the next window, and of the longest that there is room for.
    window: u64,
    limit: u64,
    /// The row of large values in which the last walk stopped.
    row: LargeRow,
    walk: Walk,
    /// Where the reader is, if he has overtaken the walk: what lies up to there is of no use to
    /// him.
    overtaken: Option<Key>,
    /// Since the last walk: keys with values on the device that were passed, and reads of keys.
    passed: usize,
    reads: usize,
}

/// A key that was walked over.
struct Walked {
    key: Key,
    /// What will be read for it, in bytes of memory; 0 for what is left out.
    bytes: u64,
    value: Option<Remembered>,
}

/// The value of a key as a walk found it.
struct Remembered {
    base: Base,
    /// Newest first.
    patches: Vec<InMemory>,
}

/// A value before its patches.
enum Base {
    Small(Bytes),
    /// Belongs to a part, which the cache may give up.
    Large(Weak<LargeValue>),
}

impl Remembered {
    /// What is known about a key, if it is nothing but a value, and a few patches to that.
    fn of(found: &Found) -> Option<Self> {
        let few = |patches: &[InMemory]| {
            let bytes: usize = patches.iter().map(|(_, bytes)| bytes.len()).sum();
            patches.len() <= MOST_PATCHES && bytes <= MOST_PATCHED
        };
        let (value, patches) = found.patched().filter(|(_, patches)| few(patches))?;
        let base = match value.large() {
            Some(large) => Base::Large(Arc::downgrade(large)),
            None if value.segments().is_empty() => Base::Small(value.in_memory()?),
            None => return None,
        };
        Some(Self { base, patches })
    }

    /// Bytes that it keeps in memory.
    fn memory(&self) -> u64 {
        let base = match &self.base {
            Base::Small(bytes) => bytes.len(),
            Base::Large(_) => 0,
        };
        (base + self.patches.iter().map(|(_, bytes)| bytes.len() + size_of::<InMemory>()).sum::<usize>())
            as u64
    }

    fn found(&self) -> Option<Found> {
        let value = match &self.base {
            Base::Small(bytes) => bytes.clone().into(),
            Base::Large(large) => large.upgrade().map(Value::shared)?,
        };
        Some(Found::known(value, &self.patches))
    }
}

/// A look-up that no reading expected.
pub(crate) struct Unexpected<'a> {
    /// Its last key.
    pub(crate) key: &'a [u8],
    /// Where the first and the last of them were found.
    pub(crate) spots: (Spot, Spot),
    /// What is read for it from the device.
    pub(crate) bytes: usize,
}

/// What a reading remembers of keys that are looked up.
pub(crate) struct Expected {
    /// For each key what there is of it, if that is known.
    pub(crate) keys: Vec<Option<Found>>,
    /// There is something to walk for.
    pub(crate) walk: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Walk {
    /// Not now.
    Rests,
    Wanted,
    /// Somebody is at it.
    Walking,
    /// There is nothing behind.
    Ended,
}

/// What a read of a reading leads to.
#[derive(PartialEq, Eq)]
enum Step {
    Nothing,
    Walk,
    /// It was none: keys are skipped.
    Ends,
}

/// A walk that a thread has taken over.
struct Task {
    name: u64,
    index: IndexId,
    from: Key,
    turn: u64,
    window: u64,
    row: LargeRow,
}

/// What it found.
struct FoundAhead {
    keys: Vec<Walked>,
    version: Weak<Version>,
    places: Vec<Place>,
    /// The walk came to the end of the index.
    ended: bool,
    /// No window should be longer.
    limit: u64,
    row: LargeRow,
}

impl Readings {
    /// These keys of `version` of an index are about to be looked up, for so many bytes. `None` if
    /// no reading comes there.
    pub(crate) fn expected(
        &self,
        pieces: &Pieces,
        index: IndexId,
        version: &Arc<Version>,
        slices: &[Slice<'_>],
        bytes: u64,
    ) -> Option<Expected> {
        let (first, last) = (slices.first()?, slices.last()?);
        let mut table = self.table.lock();
        let at = table.readings.iter().position(|r| r.index == index && r.covers(first.key))?;
        table.clock += 1;
        let now = table.clock;
        let reading = &mut table.readings[at];
        reading.used = now;
        let keys = reading.remembered(version, slices);
        let (name, before) = (reading.name, reading.turn);
        if *last.key > *reading.from {
            reading.overtake(last.key);
        }
        let step = reading.advance(last.key, slices.len(), bytes);
        let turn = if step == Step::Ends { u64::MAX } else { reading.turn };
        if step == Step::Ends {
            table.readings.swap_remove(at);
        }
        drop(table);
        if turn != before {
            pieces.passed(name, turn);
        }
        Some(Expected { keys, walk: step == Step::Walk })
    }

    /// A look-up where no reading comes needs the device. True if there is something to walk for.
    pub(crate) fn notice(&self, pieces: &Pieces, index: IndexId, read: &Unexpected<'_>) -> bool {
        let Unexpected { key, spots: (first, last), .. } = *read;
        let large = read.bytes >= LEAST_DIRECT;
        let mut table = self.table.lock();
        table.clock += 1;
        let now = table.clock;
        let mut rows = table.recent.iter().enumerate().filter(|(_, (of, ..))| *of == index);
        let row = rows.find_map(|(at, (_, before, hits))| Some((at, first.continues(before, *hits)?)));
        if let Some((at, _)) = row {
            table.recent.remove(at);
        }
        let hits = row.map_or(0, |(_, hits)| hits);
        if hits < if large { LARGE_HITS } else { HITS } {
            if table.recent.len() == RECENT {
                table.recent.pop_front();
            }
            table.recent.push_back((index, last, hits));
            return false;
        }
        let gone = table.make_room(index, key);
        table.readings.push(Reading {
            name: now,
            index,
            used: now,
            walked: VecDeque::new(),
            version: Weak::new(),
            turn: 0,
            behind: 0,
            ahead: 0,
            from: key.into(),
            large: if large { SHORT } else { 0 },
            window: windows(large).start,
            limit: u64::MAX,
            row: LargeRow::default(),
            walk: Walk::Wanted,
            overtaken: None,
            passed: 0,
            reads: 0,
        });
        drop(table);
        gone.into_iter().for_each(|name| pieces.passed(name, u64::MAX));
        true
    }

    /// True if a reading wants somebody to walk.
    pub(crate) fn want_a_walk(&self) -> bool {
        self.table.lock().readings.iter().any(|reading| reading.walk == Walk::Wanted)
    }

    fn take(&self) -> Option<Task> {
        let mut table = self.table.lock();
        let reading = table.readings.iter_mut().find(|reading| reading.walk == Walk::Wanted)?;
        reading.walk = Walk::Walking;
        Some(Task {
            name: reading.name,
            index: reading.index,
            from: reading.from.clone(),
            turn: reading.turn + reading.walked.len() as u64,
            window: reading.window,
            row: reading.row,
        })
    }

    /// Ends a walk. What went wrong ends the reading, and whoever reads meets it himself.
    fn give_back(&self, task: &Task, found: Option<FoundAhead>) -> Outcome {
        let mut table = self.table.lock();
        let mut outcome = Outcome::default();
        let Some(at) = table.readings.iter().position(|reading| reading.name == task.name) else {
            return outcome;
        };
        let Some(found) = found else {
            table.readings.swap_remove(at);
            outcome.gone.push(task.name);
            return outcome;
        };
        let starved = found.keys.is_empty() && !found.ended;
        outcome.places = table.readings[at].extend(task.turn, found);
        if starved {
            let now = table.clock;
            let rests = |r: &mut Reading| r.name != task.name && r.used + MAX_READINGS as u64 <= now;
            outcome.gone = table.readings.extract_if(.., rests).map(|reading| reading.name).collect();
        }
        outcome
    }
}

/// What comes of a walk.
#[derive(Default)]
struct Outcome {
    /// To be announced.
    places: Vec<Place>,
    /// Readings that ended: there was no room left, and they had not been used while each of as
    /// many as there can be might have been.
    gone: Vec<u64>,
}

impl Table {
    /// Makes room for one more reading, which begins behind `key`; says which ones had to go. One
    /// whose walk has not begun, or is under way, while its reader is past all that it found, is
    /// most likely that of the same reader.
    fn make_room(&mut self, index: IndexId, key: &[u8]) -> Vec<u64> {
        let now = self.clock;
        let goes = |r: &mut Reading| {
            let is_late = matches!(r.walk, Walk::Wanted | Walk::Walking) && r.behind == r.walked.len();
            let rest = if r.is_large() { LARGE_ABANDONED } else { ABANDONED };
            (is_late && r.index == index && *r.from < *key) || r.used + rest < now
        };
        let mut gone: Vec<u64> = self.readings.extract_if(.., goes).map(|reading| reading.name).collect();
        self.readings.sort_unstable_by_key(|reading| reading.used);
        let over = (self.readings.len() + 1).saturating_sub(MAX_READINGS);
        gone.extend(self.readings.drain(..over).map(|reading| reading.name));
        gone
    }
}

impl Reading {
    fn is_large(&self) -> bool {
        self.large > 0
    }

    /// True if a row of keys that begins with `key` begins where the walk was, or goes on where it
    /// will.
    fn covers(&self, key: &[u8]) -> bool {
        let first = self.walked.front().map_or(&self.from, |walked| &walked.key);
        **first <= *key && (*key <= *self.from || is_next(&self.from, key))
    }

    /// The reader has read up to `key`, beyond all that was walked over: the walk goes on where he
    /// is.
    fn overtake(&mut self, key: &[u8]) {
        match self.walk {
            Walk::Walking if self.overtaken.as_ref().is_some_and(|at| **at >= *key) => {}
            Walk::Walking => self.overtaken = Some(key.into()),
            Walk::Rests | Walk::Wanted => {
                self.from = key.into();
                self.walk = Walk::Wanted;
            }
            Walk::Ended => {}
        }
    }

    /// For each of the keys what `version` has of it, if that is known.
    fn remembered(&self, version: &Arc<Version>, slices: &[Slice<'_>]) -> Vec<Option<Found>> {
        if self.version.as_ptr() != Arc::as_ptr(version) || !version.active.is_empty() {
            return slices.iter().map(|_| None).collect();
        }
        let mut near = self.behind;
        let look = |slice: &Slice<'_>| {
            let at = self.position(slice.key, near)?;
            near = at + 1;
            self.walked[at].value.as_ref()?.found()
        };
        slices.iter().map(look).collect()
    }

    /// The place of `key` among those that were walked over, most likely at `near` or a little
    /// behind.
    fn position(&self, key: &[u8], near: usize) -> Option<usize> {
        for (at, walked) in self.walked.iter().enumerate().skip(near).take(NEXT) {
            match (*walked.key).cmp(key) {
                Ordering::Less => {}
                Ordering::Equal => return Some(at),
                Ordering::Greater => break,
            }
        }
        self.walked.binary_search_by(|walked| (*walked.key).cmp(key)).ok()
    }

    /// The reader is at `key`, the last of so many that he asks for, and of so many bytes.
    fn advance(&mut self, key: &[u8], keys: usize, bytes: u64) -> Step {
        self.reads += keys;
        self.large = if bytes >= LEAST_DIRECT as u64 { SHORT } else { self.large.saturating_sub(1) };
        self.window = self.window.min(windows(self.is_large()).end);
        while let Some(walked) = self.walked.get(self.behind).filter(|walked| *walked.key < *key) {
            self.ahead -= walked.bytes;
            self.passed += usize::from(walked.bytes > 0);
            self.behind += 1;
        }
        if self.passed > self.reads * MOST_SKIPPED {
            return Step::Ends;
        }
        // Many at a time, as whatever is announced is gone through then; but not so many that they
        // take the room of others.
        let over = self.behind - self.kept();
        let held = || self.walked.range(..over).map(|walked| walked.bytes).sum::<u64>();
        if over > BEHIND || (over > 0 && held() > self.window / 8) {
            self.walked.drain(..over);
            self.behind -= over;
            self.turn += over as u64;
        }
        let keys = self.walked.len() - self.behind;
        let least = (self.window / 2).max(bytes.saturating_mul(2)).min(self.limit);
        if self.walk == Walk::Rests && self.ahead < least && keys < MAX_KEYS / 2 {
            self.walk = Walk::Wanted;
        }
        if self.walk == Walk::Wanted { Step::Walk } else { Step::Nothing }
    }

    /// How many of the keys are kept that the reader has passed.
    fn kept(&self) -> usize {
        let (most, room) = (if self.is_large() { LARGE_BEHIND } else { BEHIND }, self.window / 2);
        let mut bytes = 0;
        let behind = self.walked.range(..self.behind).rev().take(most);
        let fits = |walked: &&Walked| {
            bytes += walked.bytes;
            bytes <= room
        };
        behind.take_while(fits).count()
    }

    /// Takes over what a walk from `turn` on found; returns what to announce of it.
    fn extend(&mut self, turn: u64, found: FoundAhead) -> Vec<Place> {
        if let Some(last) = found.keys.last() {
            self.from = last.key.clone();
        }
        if !Weak::ptr_eq(&self.version, &found.version) {
            self.walked.iter_mut().for_each(|walked| walked.value = None);
            self.version = found.version;
        }
        self.ahead += found.keys.iter().map(|walked| walked.bytes).sum::<u64>();
        self.limit = found.limit;
        let longest = windows(self.is_large());
        let starved = found.keys.is_empty() && !found.ended;
        // Where there is no room, what is kept behind the reader takes less, too.
        self.window = if starved { (self.window / 2).max(longest.start) } else { self.window * 2 };
        self.window = self.window.min(longest.end).min(found.limit);
        self.row = found.row;
        (self.passed, self.reads) = (0, 0);
        self.walk = if found.ended { Walk::Ended } else { Walk::Rests };
        let mut places = found.places;
        if let Some(reader) = self.overtaken.take() {
            let late = found.keys.partition_point(|walked| walked.key <= reader);
            places.retain(|place| place.turn >= turn + late as u64);
            // He has read these himself.
            self.reads = late;
            if self.from <= reader && !found.ended {
                self.from = reader;
                self.walk = Walk::Wanted;
            }
        }
        self.walked.extend(found.keys);
        places
    }
}

impl Shared {
    /// What is remembered of keys that are about to be looked up, for so many bytes, in the newest
    /// state of an index, for each the value if it is known; `None` if nobody expected that they
    /// would be.
    pub(crate) fn expected(
        &self,
        index: IndexId,
        version: &Arc<Version>,
        slices: &[Slice<'_>],
        bytes: u64,
    ) -> Option<Vec<Option<Found>>> {
        let pieces = &self.trees.pieces;
        let Expected { keys, walk } = self.readings.expected(pieces, index, version, slices, bytes)?;
        if walk {
            self.signal.wake_readahead();
        }
        Some(keys)
    }

    /// A look-up that was not expected is about to read from the device.
    pub(crate) fn notice_reading(&self, index: IndexId, read: &Unexpected<'_>) {
        if self.readings.notice(&self.trees.pieces, index, read) {
            self.signal.wake_readahead();
        }
    }

    /// Does one piece of reading ahead; false if there is none.
    pub(crate) fn ahead_step(self: &Arc<Self>) -> bool {
        if self.cold.swap(false, atomic::Ordering::AcqRel) {
            // Others provide memory meanwhile.
            self.signal.wake_readahead();
            self.space.prefetch_places();
            return true;
        }
        let Some(task) = self.readings.take() else { return self.trees.pieces.read_ahead_step() };
        let Outcome { places, gone } = self.readings.give_back(&task, self.walk(&task).ok());
        gone.into_iter().for_each(|name| self.trees.pieces.passed(name, u64::MAX));
        self.trees.pieces.announce(task.name, places);
        if self.has_ahead() {
            self.signal.wake_readahead();
        }
        true
    }

    /// True if [`Self::ahead_step`] has something to do.
    pub(crate) fn has_ahead(&self) -> bool {
        self.readings.want_a_walk()
            || self.trees.pieces.has_read_ahead()
            || self.cold.load(atomic::Ordering::Acquire)
    }

    /// Collects what comes behind the place where a reading's last walk ended.
    fn walk(self: &Arc<Self>, task: &Task) -> Result<FoundAhead> {
        let pieces = &self.trees.pieces;
        let (room, most) = pieces.room_to_announce();
        let limit = most / 2;
        let window = task.window.min(room).min(limit);
        // A version by itself holds up nothing but what it shares with no newer one.
        let version = self.read.version(task.index)?;
        let (of, index) = (Arc::downgrade(&version), SnapshotIndex::newest(self.read.clone(), version));
        let behind = [&*task.from, &[0]].concat();
        let mut cursor = Cursor::new(index, KeyRange { start: behind.into(), end: None });
        let row = task.row;
        let mut found =
            FoundAhead { keys: Vec::new(), version: of, places: Vec::new(), ended: false, limit, row };
        let mut total = 0;
        while found.keys.len() < MAX_KEYS {
            let next = cursor.next_with(|messages| {
                let places: Vec<_> = messages.places().collect();
                (places, Remembered::of(&messages))
            })?;
            let Some((key, (places, value))) = next else {
                found.ended = true;
                break;
            };
            let turn = task.turn + found.keys.len() as u64;
            let last = found.keys.last().map_or(&task.from, |walked| &walked.key);
            let mut row = found.row;
            let places = places.iter().filter_map(|place| {
                let range = row.judge(pieces, last, &key, place)?;
                Some(Place { range, turn, sums: Sums::of(place) })
            });
            let before = found.places.len();
            found.places.extend(places);
            let bytes: u64 = found.places[before..].iter().map(|place| cost(&place.range)).sum();
            total += bytes + value.as_ref().map_or(0, Remembered::memory);
            if total > window {
                found.places.truncate(before);
                break;
            }
            found.row = row;
            found.keys.push(Walked { key, bytes, value });
        }
        Ok(found)
    }
}

/// True if two keys differ in nothing but a number at their end, by one: the pieces of one thing,
/// such as the blocks of a file.
fn is_next(before: &[u8], key: &[u8]) -> bool {
    let (Some((a, before)), Some((b, key))) = (before.split_last_chunk(), key.split_last_chunk()) else {
        return false;
    };
    a == b && u64::from_be_bytes(*before).checked_add(1) == Some(u64::from_be_bytes(*key))
}

/// Large values of such keys in a row.
#[derive(Clone, Copy, Default)]
struct LargeRow {
    length: usize,
}

impl LargeRow {
    /// Where `place` lies, of a key that follows `before`; nothing if it goes on with a row that is
    /// long enough to be left to its reader.
    fn judge(&mut self, pieces: &Pieces, before: &[u8], key: &[u8], place: &ValueRef) -> Option<Range<u64>> {
        let range = pieces.range_of(place)?;
        let length = if is_next(before, key) { self.length + 1 } else { 1 };
        self.length = if range.end - range.start >= LARGE { length } else { 0 };
        (self.length <= LARGE_ROW).then_some(range)
    }
}
