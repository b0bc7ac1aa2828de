//! Journal: what was written, on a local device, until the store has it.
//!
//! Protocol: each write is appended as a *record* before the device takes it; a sync makes the
//! records durable. A root says up to which record its map has them ([`JournalPosition`]). After
//! the death of the writer those behind are read ([`Journal::behind`]) and written again, in order.
//! Block 0 names store and journal. The rest are two halves; records go to one of them from its
//! front on, and to the other one when it is full, if the store has all that is there.
//!
//! Invariants:
//! - records are numbered without a gap. What counts are those from the position on up to the first
//!   that is missing or wrong. Records say up to which number their writer knew them to be durable.
//!   If any record in the file says so of the missing one, the journal is damaged, which is told.
//!   If none does, it is taken for one that was not synced: of the records that the last sync made
//!   durable no later one tells;
//! - a record that cannot be read is an error of the device, and no gap;
//! - a record lies behind the one before, or at the front of the other half; so what an earlier use
//!   of a half left has smaller numbers. What a dead writer left behind a gap has an older epoch
//!   than the position says, or than the record before. Neither says that a record behind the
//!   position is durable;
//! - a half is written to again only when a root that is known to be there has all of its records;
//! - after the first failure nothing is appended any more; the number of what failed is used up, so
//!   that no root has a position before it.

mod record;
mod scan;
#[cfg(test)]
mod tests;

use crate::format::JournalPosition;
use espalier_storage::{AlignedBuf, BLOCK, Device, Error, ErrorKind, Operation, Result};
use espalier_sync::{Mutex, MutexGuard};
pub(crate) use record::{Change, MAX_RECORD_BLOCKS};
use record::{Head, Header, MAX_CHANGES, MAX_COUNTER, data_sum};
pub(crate) use scan::Record;
use scan::{Found, Trace, scan};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The fewest blocks of a journal: 4 MiB.
const MIN_BLOCKS: u64 = 4 * MAX_RECORD_BLOCKS;

/// A journal on a device.
#[derive(Debug)]
pub(crate) struct Journal {
    device: Arc<dyn Device>,
    half_blocks: u64,
    writer: Mutex<Writer>,
    /// The number of the last record that the store has.
    covered: AtomicU64,
}

/// Where records go; its lock is held from appending a record until the device has the write, so
/// that both have one order.
#[derive(Debug)]
pub(crate) struct Writer {
    header: Option<Header>,
    epoch: u32,
    half: usize,
    /// Blocks of the half that are taken.
    taken: u64,
    /// The last number that was used.
    last: u64,
    /// The last number in each half.
    last_in: [u64; 2],
    /// The last number that a sync made durable.
    synced: u64,
    /// Discards that go with the next record: at most [`MAX_CHANGES`] - 1, so that it has room for
    /// a write.
    discards: Vec<Change>,
    /// Why nothing is appended any more.
    broken: Option<String>,
}

/// What a journal has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct JournalUsage {
    /// Records that the store does not have yet.
    pub waiting: u64,
    /// The last record that was appended.
    pub last: u64,
    /// The bytes for records.
    pub bytes: u64,
    /// False since it failed; each sync waits for the store then.
    pub works: bool,
}

/// What became of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appended {
    /// It has this number.
    Done(u64),
    /// There is no room for it before the store has more.
    Full,
    /// It may be there or not, and has this number; nothing more is appended.
    Failed(u64),
}

impl Journal {
    /// Looks at the journal on a device; one that is all zeros is new.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] if it is too small or no journal; what the device says.
    pub(crate) fn open(device: Arc<dyn Device>) -> Result<Self> {
        let blocks = device.len() / BLOCK as u64;
        let refused =
            |what: String| Err(Error::new(ErrorKind::Unsupported, Operation::Open, device.name(), what));
        if blocks < MIN_BLOCKS {
            let least = (MIN_BLOCKS * BLOCK as u64) >> 20;
            return refused(format!(
                "a journal of {} bytes is too small; it needs {least} MiB",
                device.len()
            ));
        }
        let mut block = AlignedBuf::zeroed(BLOCK);
        device.read_at(0, &mut block)?;
        let header = match Header::decode(&block) {
            Ok(header) => header,
            Err(what) => {
                return refused(format!("it is no journal of a store: {what}; it was left as it is"));
            }
        };
        let writer = Writer {
            header,
            epoch: 0,
            half: 0,
            taken: 0,
            last: 0,
            last_in: [0; 2],
            synced: 0,
            discards: Vec::new(),
            broken: None,
        };
        let half_blocks = (blocks - 1) / 2;
        Ok(Self { device, half_blocks, writer: Mutex::new(writer), covered: AtomicU64::new(0) })
    }

    /// What a user calls it.
    pub(crate) fn name(&self) -> &str {
        self.device.name()
    }

    /// True if it is the one that a root of this store names.
    pub(crate) fn is_of(&self, uuid: &[u8; 16], position: Option<&JournalPosition>) -> bool {
        let header = self.writer.lock().header;
        header.is_some_and(|header| {
            header.uuid == *uuid && position.is_some_and(|position| position.journal == header.id)
        })
    }

    /// How many records it has that its writer did not know to be in the store.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn unknown(&self) -> Result<usize> {
        let Found { records, mut traces } = self.scan(0, &|_| true)?;
        // Behind damage, too, lies what was synced.
        traces.extend(records.iter().map(|record| Trace::of(&record.head)));
        // A writer replays what the one before left, or begins anew.
        let epoch = traces.iter().map(|trace| trace.epoch).max().unwrap_or(0);
        traces.retain(|trace| trace.epoch == epoch);
        let covered = traces.iter().map(|trace| trace.covered).max().unwrap_or(0);
        Ok(traces.iter().filter(|trace| trace.number > covered && !trace.is_empty).count())
    }

    /// Makes it a new journal of a store, without records. Durable when it returns.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn begin(&self, uuid: [u8; 16], id: u64) -> Result<()> {
        let header = Header { uuid, id };
        self.device.write_at(0, &[&header.encode()])?;
        self.device.sync()?;
        self.writer.lock().header = Some(header);
        Ok(())
    }

    /// The records behind the position of a root, in order.
    ///
    /// # Errors
    /// What the device says; [`ErrorKind::Io`] if a record is damaged that was synced, as another
    /// one says, or if no record has the number of the position.
    pub(crate) fn behind(&self, position: &JournalPosition) -> Result<Vec<Record>> {
        if position.record > MAX_COUNTER {
            let message = format!("the root of the store names record {}, which cannot be", position.record);
            return Err(Error::new(ErrorKind::Io, Operation::Read, self.name(), message));
        }
        let may_tell = |trace: &Trace| trace.epoch >= position.epoch && trace.synced > position.record;
        let Found { mut records, traces } = self.scan(position.record, &may_tell)?;
        records.retain(|Record { head, .. }| head.number > position.record && head.epoch >= position.epoch);
        // Of equal numbers the newer epoch counts.
        records.sort_by_key(|record| (record.head.number, std::cmp::Reverse(record.head.epoch)));
        records.dedup_by_key(|record| record.head.number);
        let traces = traces.iter().map(|trace| trace.synced);
        let synced = records.iter().map(|record| record.head.synced).chain(traces).max().unwrap_or(0);
        let (mut next, mut epoch) = (position.record + 1, 0);
        let is_next = |record: &Record| {
            let is_next = record.head.number == next && record.head.epoch >= epoch;
            (next, epoch) = (next + 1, record.head.epoch);
            is_next
        };
        let count = records.iter().map(is_next).take_while(|is_next| *is_next).count();
        records.truncate(count);
        let last = position.record + count as u64;
        if synced > last {
            let message = format!("it is damaged: record {} was synced and cannot be read", last + 1);
            return Err(Error::new(ErrorKind::Io, Operation::Read, self.name(), message));
        }
        Ok(records)
    }

    /// The blocks that a record writes.
    ///
    /// # Errors
    /// What the device says; if they are not what was appended.
    pub(crate) fn blocks(&self, record: &Record) -> Result<AlignedBuf> {
        record.blocks(&*self.device)?.ok_or_else(|| {
            let message = format!("record {} is damaged", record.head.number);
            Error::new(ErrorKind::Io, Operation::Read, self.name(), message)
        })
    }

    /// From now on records of this epoch are appended, with numbers behind `last`, all of which the
    /// store has.
    pub(crate) fn go_on(&self, epoch: u32, last: u64) {
        let mut writer = self.writer.lock();
        (writer.epoch, writer.last, writer.synced) = (epoch, last, last);
        (writer.half, writer.taken, writer.last_in) = (0, 0, [last; 2]);
        self.covered.store(last, Ordering::Release);
    }

    /// The store has all records up to this one.
    pub(crate) fn cover(&self, number: u64) {
        self.covered.fetch_max(number, Ordering::AcqRel);
    }

    /// The last record that the store has.
    pub(crate) fn covered(&self) -> u64 {
        self.covered.load(Ordering::Acquire)
    }

    /// What it has.
    pub(crate) fn usage(&self) -> JournalUsage {
        let writer = self.writer.lock();
        JournalUsage {
            waiting: writer.last.saturating_sub(self.covered()),
            last: writer.last,
            bytes: 2 * self.half_blocks * BLOCK as u64,
            works: writer.broken.is_none(),
        }
    }

    /// The place where records go, for one write.
    pub(crate) fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock()
    }

    /// True if half of a half is taken, so that the store should have it soon.
    pub(crate) fn is_filling(&self, writer: &Writer) -> bool {
        writer.taken > self.half_blocks / 2
    }

    /// Appends a record of the discards that were noted, and of one write.
    pub(crate) fn append(&self, writer: &mut Writer, write: Option<(u64, &[&[u8]])>) -> Appended {
        let blocks = write.map_or(0, |(_, buffers)| buffers.iter().map(|b| b.len()).sum::<usize>() / BLOCK);
        let wanted = 1 + blocks as u64;
        let Some(header) = writer.header.filter(|_| writer.broken.is_none()) else {
            return Appended::Failed(writer.last);
        };
        if writer.last >= MAX_COUNTER {
            let message = "all numbers of records are used up";
            let error = Error::new(ErrorKind::Unsupported, Operation::Write, self.name(), message);
            writer.fail(self.name(), &error);
            return Appended::Failed(writer.last);
        }
        let number = writer.last + 1;
        if writer.taken + wanted > self.half_blocks {
            let other = 1 - writer.half;
            if writer.last_in[other] > self.covered() {
                return Appended::Full;
            }
            (writer.half, writer.taken) = (other, 0);
        }
        let mut changes = std::mem::take(&mut writer.discards);
        // A head has no room for more, and says nothing of what it cuts off.
        assert!(changes.len() + usize::from(write.is_some()) <= MAX_CHANGES, "a record has too many changes");
        // A head that says more is not taken for one.
        assert!(blocks as u64 <= MAX_RECORD_BLOCKS, "a record has too many blocks");
        changes.extend(write.map(|(start, _)| Change { start, blocks: blocks as u32, discard: false }));
        let buffers = write.map_or(&[] as &[&[u8]], |(_, buffers)| buffers);
        let head = Head {
            journal: header.id,
            number,
            epoch: writer.epoch,
            covered: self.covered(),
            synced: writer.synced,
            blocks: blocks as u32,
            data_sum: data_sum(header.id, number, buffers),
            changes,
        };
        let head = head.encode();
        let all: Vec<&[u8]> = std::iter::once(&head[..]).chain(buffers.iter().copied()).collect();
        let block = 1 + writer.half as u64 * self.half_blocks + writer.taken;
        writer.last = number;
        writer.last_in[writer.half] = number;
        writer.taken += wanted;
        // A panic leaves a gap, behind which no record counts: so nothing is appended after it.
        writer.broken = Some("a record was left half written".into());
        let outcome = self.device.write_at(block * BLOCK as u64, &all);
        writer.broken = None;
        match outcome {
            Ok(()) => Appended::Done(number),
            Err(error) => {
                writer.fail(self.name(), &error);
                Appended::Failed(number)
            }
        }
    }

    /// Makes what was appended durable; false if it cannot.
    pub(crate) fn sync(&self) -> bool {
        let last = {
            let writer = self.writer.lock();
            if writer.broken.is_some() {
                return false;
            }
            writer.last
        };
        let outcome = self.device.sync();
        let mut writer = self.writer.lock();
        match outcome {
            Ok(()) => writer.synced = writer.synced.max(last),
            Err(error) => writer.fail(self.name(), &error),
        }
        writer.broken.is_none()
    }

    /// Notes in the journal that the store has all of it. What fails is no harm.
    pub(crate) fn end(&self) {
        let appended = {
            let mut writer = self.writer.lock();
            // The root has the discards that no record has, since it has everything.
            writer.discards.clear();
            self.append(&mut writer, None)
        };
        if !matches!(appended, Appended::Done(_)) || !self.sync() {
            tracing::debug!(journal = self.name(), "it does not say that the store has all of it");
        }
    }

    /// All that both halves have; of the heads behind the records only those that `wanted` accepts.
    /// The store has all up to record number `stored`.
    ///
    /// # Errors
    /// What the device says.
    fn scan(&self, stored: u64, wanted: &dyn Fn(&Trace) -> bool) -> Result<Found> {
        let Some(header) = self.writer.lock().header else { return Ok(Found::default()) };
        scan(&*self.device, header.id, self.half_blocks, stored, wanted)
    }
}

impl Writer {
    /// Notes a discard for the next record; false, and it is not noted, if that has no room for it.
    pub(crate) fn note_discard(&mut self, start: u64, blocks: u32) -> bool {
        if self.broken.is_some() {
            return true;
        }
        // The last place is for a write.
        let has_room = self.discards.len() + 1 < MAX_CHANGES;
        if has_room {
            self.discards.push(Change { start, blocks, discard: true });
        }
        has_room
    }

    /// True if discards were noted that are in no record.
    pub(crate) fn has_discards(&self) -> bool {
        !self.discards.is_empty()
    }

    fn fail(&mut self, name: &str, error: &Error) {
        if self.broken.is_none() {
            tracing::error!(journal = name, %error, "the journal is not used any more; each sync waits for the store");
            self.broken = Some(error.to_string());
        }
    }
}
