//! Reading ahead in the order of keys.
//!
//! A program that goes through a tree reads its files in the order of their keys, and their data lies wherever it lay when
//! it was written: neighbours on the device are not neighbours in the tree. But the tree knows what comes next. So a row of
//! reads that goes through the parts of an index from entry to entry becomes a *reading*: a background thread walks the
//! index ahead of it and announces where the next values lie ([`Pieces::announce`]), which brings the parts that describe
//! them into the cache as well.
//!
//! Protocol: [`Readings::notice`] hears of every look-up that had to go to the device; threads (or who has none, in
//! between) call [`Shared::ahead_step`], which walks for a reading that needs it, or reads what is announced.
//!
//! A row of large values is left out: who reads such a file asks for it in large pieces.
//!
//! [`Pieces::announce`]: crate::pieces::Pieces::announce

use crate::Result;
use crate::cursor::Cursor;
use crate::key::{Key, KeyRange};
use crate::pieces::{LEAST_DIRECT, Pieces, Place, cost};
use crate::resolve::Spot;
use crate::snapshot::SnapshotIndex;
use crate::store::Shared;
use crate::types::IndexId;
use crate::value::ValueRef;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// So many reads in a row, after the first, make a reading.
const HITS: u8 = 2;
/// Reads remembered, and readings at a time.
const RECENT: usize = 16;
const MAX_READINGS: usize = 8;
/// The first window of a reading, and the longest, in bytes of memory.
const FIRST_WINDOW: u64 = 256 << 10;
const MAX_WINDOW: u64 = 4 << 20;
/// Keys of a window at most.
const MAX_KEYS: usize = 2048;
/// Who passes more than so many values for each that he reads goes through the index in some other way.
const MOST_SKIPPED: usize = 4;
/// Keys whose turn is over, but not for long: several reads at a time come in any order.
const BEHIND: usize = 16;
/// From so many values of this many bytes in a row on the rest of the row is left out.
const LARGE_ROW: usize = 4;
const LARGE: u64 = 64 << 10;

/// True if it helps who reads so many bytes at a time from the device that somebody goes ahead: neither nothing, nor so many
/// that the device is busy with them.
pub(crate) fn is_small(bytes: usize) -> bool {
    (1..LEAST_DIRECT).contains(&bytes)
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
    /// Keys that were walked over, from [`BEHIND`] behind the reader on, with what its value takes in memory.
    walked: VecDeque<(Key, u64)>,
    /// The turn of the first of them.
    turn: u64,
    /// How many of them the reader has passed, and the bytes of the others.
    behind: usize,
    ahead: u64,
    /// Where the walk goes on: behind this key.
    from: Key,
    /// Bytes of the next window.
    window: u64,
    walk: Walk,
    /// Since the last walk: keys with values that were passed, and reads.
    passed: usize,
    reads: usize,
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
}

/// What it found.
struct Walked {
    /// Keys, with what their values take in memory.
    keys: Vec<(Key, u64)>,
    places: Vec<Place>,
    /// The walk came to the end of the index.
    ended: bool,
    /// No window should be longer.
    longest: u64,
}

impl Readings {
    /// A look-up of `key`, found at `spot`, needed the device. True if there is something to walk for.
    pub(crate) fn notice(&self, pieces: &Pieces, index: IndexId, key: &[u8], spot: Option<Spot>) -> bool {
        let mut table = self.table.lock();
        table.clock += 1;
        let now = table.clock;
        if let Some(at) = table.readings.iter().position(|r| r.index == index && r.covers(key)) {
            let reading = &mut table.readings[at];
            reading.used = now;
            let (name, before) = (reading.name, reading.turn);
            let step = reading.advance(key);
            let turn = if step == Step::Ends { u64::MAX } else { reading.turn };
            if step == Step::Ends {
                table.readings.swap_remove(at);
            }
            drop(table);
            if turn != before {
                pieces.passed(name, turn);
            }
            return step == Step::Walk;
        }
        let Some(spot) = spot else { return false };
        let mut rows = table.recent.iter().enumerate().filter(|(_, (of, ..))| *of == index);
        let row = rows.find_map(|(at, (_, before, hits))| Some((at, spot.continues(before, *hits)?)));
        if let Some((at, _)) = row {
            table.recent.remove(at);
        }
        let hits = row.map_or(0, |(_, hits)| hits);
        if hits < HITS {
            if table.recent.len() == RECENT {
                table.recent.pop_front();
            }
            table.recent.push_back((index, spot, hits));
            return false;
        }
        let gone = table.make_room();
        table.readings.push(Reading {
            name: now,
            index,
            used: now,
            walked: VecDeque::new(),
            turn: 0,
            behind: 0,
            ahead: 0,
            from: key.into(),
            window: FIRST_WINDOW,
            walk: Walk::Wanted,
            passed: 0,
            reads: 0,
        });
        drop(table);
        if let Some(name) = gone {
            pieces.passed(name, u64::MAX);
        }
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
        })
    }

    /// Ends a walk; what went wrong ends the reading, and whoever reads meets it himself.
    fn give_back(&self, task: &Task, walked: Option<&Walked>) {
        let mut table = self.table.lock();
        let Some(at) = table.readings.iter().position(|reading| reading.name == task.name) else { return };
        match walked {
            Some(walked) => table.readings[at].extend(walked),
            None => drop(table.readings.swap_remove(at)),
        }
    }
}

impl Table {
    /// Makes room for one more reading; says which one had to go.
    fn make_room(&mut self) -> Option<u64> {
        if self.readings.len() < MAX_READINGS {
            return None;
        }
        let oldest = self.readings.iter().enumerate().min_by_key(|(_, reading)| reading.used);
        oldest.map(|(at, _)| at).map(|at| self.readings.swap_remove(at).name)
    }
}

impl Reading {
    /// True if `key` lies where the walk was or will go on.
    fn covers(&self, key: &[u8]) -> bool {
        let first = self.walked.front().map_or(&self.from, |(key, _)| key);
        **first <= *key && *key <= *self.from
    }

    /// The reader is at `key`.
    fn advance(&mut self, key: &[u8]) -> Step {
        self.reads += 1;
        while let Some((_, bytes)) = self.walked.get(self.behind).filter(|(walked, _)| **walked < *key) {
            self.ahead -= bytes;
            self.passed += usize::from(*bytes > 0);
            self.behind += 1;
        }
        if self.passed > self.reads * MOST_SKIPPED {
            return Step::Ends;
        }
        while self.behind > BEHIND {
            self.walked.pop_front();
            self.behind -= 1;
            self.turn += 1;
        }
        if self.walk == Walk::Rests && self.ahead < self.window / 2 {
            self.walk = Walk::Wanted;
        }
        if self.walk == Walk::Wanted { Step::Walk } else { Step::Nothing }
    }

    /// Takes over what a walk found.
    fn extend(&mut self, walked: &Walked) {
        if let Some((last, _)) = walked.keys.last() {
            self.from = last.clone();
        }
        self.ahead += walked.keys.iter().map(|(_, bytes)| bytes).sum::<u64>();
        self.walked.extend(walked.keys.iter().cloned());
        self.window = (self.window * 2).min(walked.longest);
        (self.passed, self.reads) = (0, 0);
        self.walk = if walked.ended { Walk::Ended } else { Walk::Rests };
    }
}

impl Shared {
    /// A look-up of `key`, found at `spot`, is about to read from the device.
    pub(crate) fn notice_reading(&self, index: IndexId, key: &[u8], spot: Option<Spot>) {
        if self.readings.notice(&self.trees.pieces, index, key, spot) {
            self.signal.read_ahead();
        }
    }

    /// Does one piece of reading ahead; false if there is none.
    pub(crate) fn ahead_step(self: &Arc<Self>) -> bool {
        let Some(task) = self.readings.take() else { return self.trees.pieces.read_ahead_step() };
        let walked = self.walk(&task).ok();
        self.readings.give_back(&task, walked.as_ref());
        if let Some(walked) = walked {
            self.trees.pieces.announce(task.name, walked.places);
            self.signal.read_ahead();
        }
        true
    }

    /// True if [`Self::ahead_step`] has something to do.
    pub(crate) fn has_ahead(&self) -> bool {
        self.readings.want_a_walk() || self.trees.pieces.has_read_ahead()
    }

    /// Collects what comes behind the place where a reading's last walk ended.
    fn walk(self: &Arc<Self>, task: &Task) -> Result<Walked> {
        let pieces = &self.trees.pieces;
        let (room, limit) = pieces.room_to_announce();
        let window = task.window.min(room);
        // A version by itself holds up nothing but what it shares with no newer one.
        let index = SnapshotIndex::newest(self.clone(), self.version(task.index)?);
        let behind = [&*task.from, &[0]].concat();
        let mut cursor = Cursor::new(index, KeyRange { start: behind.into(), end: None });
        let longest = MAX_WINDOW.min(limit / 2);
        let mut walked = Walked { keys: Vec::new(), places: Vec::new(), ended: false, longest };
        let mut row = LargeRow::default();
        let mut total = 0;
        while walked.keys.len() < MAX_KEYS {
            let Some((key, places)) = cursor.next_places()? else {
                walked.ended = true;
                break;
            };
            let turn = task.turn + walked.keys.len() as u64;
            let ranges: Vec<_> = places.iter().filter_map(|place| row.judge(pieces, place)).collect();
            let bytes: u64 = ranges.iter().map(cost).sum();
            if total + bytes > window {
                break;
            }
            total += bytes;
            walked.places.extend(ranges.into_iter().map(|range| Place { range, turn }));
            walked.keys.push((key, bytes));
        }
        Ok(walked)
    }
}

/// Large values in a row.
#[derive(Default)]
struct LargeRow {
    length: usize,
}

impl LargeRow {
    /// Where `place` lies, unless it goes on with a row that is long enough to be left to its reader.
    fn judge(&mut self, pieces: &Pieces, place: &ValueRef) -> Option<Range<u64>> {
        let range = pieces.range_of(place)?;
        self.length = if range.end - range.start >= LARGE { self.length + 1 } else { 0 };
        (self.length <= LARGE_ROW).then_some(range)
    }
}
