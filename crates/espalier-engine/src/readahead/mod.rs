//! Key-order readahead: prefetches values for readers that go through an index in key order.
//!
//! An application that walks a directory tree reads its files in the order of their keys, but their
//! data lies where it was written: neighbours in the tree are not neighbours on the device. The
//! tree knows which values come next. So look-ups that follow one another through the parts of an
//! index start a *sequential scan*: a background thread walks the index ahead of the reader and
//! enters the places of the next values into the [prefetch queue]. The walk
//! brings the parts that describe the values into the cache as well, and the scan remembers what it
//! found, so that the reader need not descend the tree for these keys.
//!
//! Protocol: [`Readahead::read_slices`] serves a look-up. It tells the scan that covers the keys,
//! or, if there is none and the look-up needs the device, the sequence detector. Background threads
//! (or the caller of the store, between other calls, if there are none) call [`Readahead::step`],
//! which walks for one scan or reads one extent of the prefetch queue.
//!
//! Invariants:
//! - what a scan remembers of a key is what the version of the index says in which the walk found
//!   it; it is used only while that version is current and its active memtable is empty;
//! - what a scan remembers keeps neither blocks nor versions from being reused;
//! - no lock of this module is held while the index is walked or the device is read.
//!
//! [prefetch queue]: crate::pieces::Pieces::read_ahead

mod remembered;
mod scan;
mod scan_table;
mod walk;
mod walked_keys;
mod window;

use crate::Result;
use crate::model::ids::IndexId;
use crate::model::value_reader::Retention;
use crate::read::context::ReadContext;
use crate::read::snapshot_index::{Slice, SnapshotIndex};
use crate::signal::WorkSignal;
use crate::space::Space;
use scan_table::{ExpectedRead, ScanTable, UnexpectedRead};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// See the [module](self).
pub(crate) struct Readahead {
    context: Arc<ReadContext>,
    space: Arc<Space>,
    signal: Arc<WorkSignal>,
    scans: ScanTable,
    /// The tables of the space are to be prefetched: all reads need them.
    wants_space_tables: AtomicBool,
}

impl Readahead {
    /// Readahead for the indexes of `context`; it wakes readahead threads through `signal`.
    pub(crate) fn new(context: Arc<ReadContext>, space: Arc<Space>, signal: Arc<WorkSignal>) -> Self {
        let (scans, wants_space_tables) = (ScanTable::default(), AtomicBool::new(false));
        Self { context, space, signal, scans, wants_space_tables }
    }

    /// Fills `out` from one value after the other, as [`Store::get_slices`], of the `newest` state
    /// of an index. What is kept in memory is taken from there, and is no reason to read ahead.
    ///
    /// # Errors
    /// As for [`Store::get_slices`].
    ///
    /// [`Store::get_slices`]: crate::Store::get_slices
    pub(crate) fn read_slices(
        &self,
        index: IndexId,
        newest: &SnapshotIndex,
        slices: &[Slice<'_>],
        retention: Retention,
        out: &mut [u8],
    ) -> Result<Vec<Option<usize>>> {
        let pieces = &self.context.trees.pieces;
        let expected = self.scans.expected(pieces, index, newest.version(), slices, out.len() as u64);
        if expected.as_ref().is_some_and(|expected| expected.wants_walk) {
            self.signal.wake_readahead();
        }
        let was_expected = expected.is_some();
        let mut found = newest.find_slices(slices, expected.map(ExpectedRead::into_keys), out)?;
        newest.reader().take_kept(&mut found.left.wanted, out);
        let bytes: usize = found.left.wanted.iter().map(|wanted| wanted.out.len()).sum();
        if let (Some(last), Some(positions)) = (slices.last(), found.positions)
            && !was_expected
            && bytes > 0
            && self.scans.notice(pieces, index, &UnexpectedRead { key: last.key, positions, bytes })
        {
            self.signal.wake_readahead();
        }
        found.left.finish(newest.reader(), retention, out)?;
        Ok(found.lengths)
    }

    /// Many reads will follow, by several readers: has background threads provide memory to read
    /// into, and prefetch the tables of the space. Takes effect once.
    pub(crate) fn expect_reads(&self) {
        if self.context.trees.pieces.read_ahead.expect_reads() {
            self.wants_space_tables.store(true, Ordering::Release);
            self.signal.wake_readahead();
        }
    }

    /// Calls `wake` whenever an extent enters the prefetch queue.
    pub(crate) fn wake_on_prefetch(&self, wake: impl Fn() + Send + Sync + 'static) {
        self.context.trees.pieces.read_ahead.set_wake(wake);
    }

    /// Does one step of readahead; false if there is none to do.
    pub(crate) fn step(&self) -> bool {
        let pieces = &self.context.trees.pieces;
        if self.wants_space_tables.swap(false, Ordering::AcqRel) {
            // Other readahead threads provide memory meanwhile.
            self.signal.wake_readahead();
            self.space.tables.prefetch_locations();
            return true;
        }
        let Some(task) = self.scans.take_walk() else { return pieces.read_ahead.step() };
        if self.has_work() {
            // A walk may take long.
            self.signal.wake_readahead();
        }
        let result = walk::walk(&self.context, &task);
        let outcome = self.scans.finish_walk(&task, result.ok());
        outcome.ended.into_iter().for_each(|scan| pieces.read_ahead.passed(scan, u64::MAX));
        pieces.read_ahead.prefetch(task.scan, outcome.places);
        if self.has_work() {
            self.signal.wake_readahead();
        }
        true
    }

    /// True if [`Self::step`] has something to do.
    pub(crate) fn has_work(&self) -> bool {
        self.scans.wants_walk()
            || self.context.trees.pieces.read_ahead.has_work()
            || self.wants_space_tables.load(Ordering::Acquire)
    }
}
