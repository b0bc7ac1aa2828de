//! Writing with a journal: a write is in the journal before it is here, a sync is the journal's,
//! and what a writer left in it that died is written again before anything else.
//!
//! Protocol: the journal's lock is held from appending a record until its changes are in the
//! overlay, so both have one order, and a frozen overlay has all records up to `State::journaled`.
//! Where the journal has no room, or failed, the store is made to have everything instead. While it
//! works, publishing waits for a store that is away without end ([`crate::requests`]), and so do
//! writers for whose records there is no room: none of them fails for that.

use super::error;
use super::inner::Inner;
use super::publish::Scope;
use crate::bucket::{Failure, FailureKind};
use crate::journal::{Appended, Change, Journal, MAX_RECORD_BLOCKS};
use espalier_storage::{BLOCK, Operation, Result};

/// Most blocks of one discard in a record.
const MAX_DISCARD_BLOCKS: u64 = 1 << 31;

impl Inner {
    /// Writes buffers one after the other, from block `start` on.
    ///
    /// # Errors
    /// If there is no room in the journal and the store cannot be made to have what is there.
    pub(super) fn write_journaled(&self, journal: &Journal, start: u64, buffers: &[&[u8]]) -> Result<()> {
        let mut at = start;
        let part_bytes = MAX_RECORD_BLOCKS as usize * BLOCK;
        // Small buffers that follow each other make one record.
        let mut parts: Vec<&[u8]> = Vec::new();
        let mut pending = 0;
        let chunks = buffers.iter().flat_map(|buffer| buffer.chunks(part_bytes));
        for chunk in chunks {
            if pending + chunk.len() > part_bytes {
                self.write_record(journal, at, &parts)?;
                at += (pending / BLOCK) as u64;
                (pending, parts) = (0, Vec::new());
            }
            parts.push(chunk);
            pending += chunk.len();
        }
        if parts.is_empty() { Ok(()) } else { self.write_record(journal, at, &parts) }
    }

    fn write_record(&self, journal: &Journal, start: u64, buffers: &[&[u8]]) -> Result<()> {
        loop {
            let mut writer = journal.writer();
            let number = match journal.append(&mut writer, Some((start, buffers))) {
                Appended::Done(number) => number,
                Appended::Failed(number) => {
                    self.requests.set_journaled(false);
                    number
                }
                Appended::Full => {
                    drop(writer);
                    self.publish(Scope::Sync)?;
                    continue;
                }
            };
            let mut at = start;
            for buffer in buffers {
                self.state.write().write_all(self, at, buffer);
                at += (buffer.len() / BLOCK) as u64;
            }
            self.state.write().journaled = number;
            if journal.is_filling(&writer) {
                self.end.notify_all();
            }
            return Ok(());
        }
    }

    /// Discards blocks.
    ///
    /// # Errors
    /// As for [`Inner::write_journaled`].
    pub(super) fn discard_journaled(&self, journal: &Journal, mut start: u64, mut blocks: u64) -> Result<()> {
        while blocks > 0 {
            let part = blocks.min(MAX_DISCARD_BLOCKS);
            let is_noted = {
                let mut writer = journal.writer();
                let is_noted = writer.note_discard(start, part as u32);
                if is_noted {
                    self.state.write().discard(start, part);
                }
                is_noted
            };
            if is_noted {
                (start, blocks) = (start + part, blocks - part);
            } else {
                self.append_discards(journal)?;
            }
        }
        Ok(())
    }

    /// Makes a record of the discards that were noted, if any were.
    fn append_discards(&self, journal: &Journal) -> Result<()> {
        loop {
            let mut writer = journal.writer();
            if !writer.has_discards() {
                return Ok(());
            }
            match journal.append(&mut writer, None) {
                appended @ (Appended::Done(number) | Appended::Failed(number)) => {
                    if matches!(appended, Appended::Failed(_)) {
                        self.requests.set_journaled(false);
                    }
                    self.state.write().journaled = number;
                    return Ok(());
                }
                Appended::Full => drop(writer),
            }
            self.publish(Scope::Sync)?;
        }
    }

    /// Makes every write that returned durable: in the journal, or if that cannot, in the store.
    ///
    /// # Errors
    /// If the device takes no writes any more.
    pub(super) fn sync_journal(&self, journal: &Journal) -> Result<()> {
        self.writable(Operation::Sync)?;
        self.append_discards(journal)?;
        if journal.sync() {
            // A writer that was fenced meanwhile does not acknowledge what the store will not have.
            return self.writable(Operation::Sync);
        }
        // The store alone has it: callers learn in time if it is away.
        self.requests.set_journaled(false);
        self.publish(Scope::Sync)
    }

    /// True if the journal has records that the store does not have.
    pub(super) fn is_journal_ahead(&self) -> bool {
        let ahead = |journal: &Journal| self.state.read().journaled > journal.covered();
        self.journal.as_ref().is_some_and(ahead)
    }

    /// Writes again what a writer that died left in the journal, and makes the store have it.
    ///
    /// # Errors
    /// If the journal cannot be read or is damaged; as for publishing.
    pub(super) fn replay_journal(&self) -> Result<()> {
        let (Some(journal), Some(position)) = (&self.journal, self.line.lock().root.journal) else {
            return Ok(());
        };
        let records = journal.behind(&position)?;
        let mut last = position.record;
        for record in &records {
            let data = journal.blocks(record)?;
            let mut rest: &[u8] = &data;
            for change in record.changes() {
                self.check_inside(change)?;
                if change.discard {
                    self.state.write().discard(change.start, u64::from(change.blocks));
                } else {
                    let (blocks, behind) = rest.split_at((change.blocks as usize * BLOCK).min(rest.len()));
                    self.state.write().write_all(self, change.start, blocks);
                    rest = behind;
                }
            }
            last = record.number();
            self.make_room()?;
        }
        self.state.write().journaled = last;
        if !records.is_empty() {
            tracing::info!(device = self.name, journal = journal.name(), records = records.len(), "replayed");
            self.publish(Scope::Sync)?;
        }
        journal.go_on(self.epoch, last);
        Ok(())
    }

    fn check_inside(&self, change: &Change) -> Result<()> {
        if change.start + u64::from(change.blocks) <= self.blocks {
            return Ok(());
        }
        let failure = Failure::new(FailureKind::Unsupported, "the journal changes blocks behind the end");
        Err(error::of_failure(&failure, Operation::Write, &self.name))
    }
}
