//! Detects readers that read files in the order in which they were listed, and says which files
//! such a reader will read next.
//!
//! Files of which the kernel was just told by a listing are *untouched*: it has not asked for
//! anything of theirs, so it has none of their pages. Reads of untouched files that follow the
//! order of their listing make a *sequential run*; while it is long enough, the next files of that
//! listing are *wanted*, and then *given*: the server hears nothing of them until the kernel asks
//! for something again. A reader that finds the pages of its files there asks for nothing, so the
//! first file of a listing and every [`MARK_INTERVAL_FILES`]th behind it are left to be asked for:
//! they show where the reader is.
//!
//! Of *large* files the kernel reads ahead by itself, in pieces large enough, so they are wanted
//! only for a reader that reads such files to their ends: the last [`WHOLE_FILES`] that it asked
//! for. Such a reader would have to enter each of their pages into the kernel's lists; the prefetch
//! thread does that instead.
//!
//! Pure: neither clocks nor system calls.

use std::collections::{HashMap, VecDeque};

/// Listings remembered, and files in them of which nothing was asked.
const MAX_LISTINGS: usize = 64;
const MAX_WATCHED_FILES: usize = 8192;
/// One of so many files is left to be asked for.
const MARK_INTERVAL_FILES: usize = 8;
/// Files read in order before more are fetched, and the length from which on a run counts no
/// longer.
const MIN_RUN_FILES: usize = 3;
const MAX_RUN_FILES: usize = 64;
/// Files fetched before the reader, at most, and their bytes.
const MAX_FILES_AHEAD: usize = 32;
const MAX_BYTES_AHEAD: u64 = 4 << 20;
/// The same for a reader of large files.
const MAX_LARGE_FILE_BYTES_AHEAD: u64 = 32 << 20;
/// Larger files are large.
const MAX_SMALL_FILE_BYTES: u64 = 256 << 10;
/// Those that are longer still are left to the kernel.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// So many large files in a row that were read to their ends.
const WHOLE_FILES: usize = 2;
/// The longest piece, in bytes.
pub(super) const PIECE_BYTES: u64 = 1 << 20;

/// A regular file that a listing told the kernel of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct File {
    /// Its node, as the kernel knows it.
    pub(crate) node: u64,
    /// Its bytes, as the kernel was told.
    pub(crate) size: u64,
}

impl File {
    fn is_large(&self) -> bool {
        self.size > MAX_SMALL_FILE_BYTES
    }
}

/// Bytes of a file that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) file: File,
    /// Where they begin. They reach to the end of the file, or have [`PIECE_BYTES`].
    pub(super) offset: u64,
}

impl Piece {
    /// How many there are.
    pub(super) fn length(&self) -> usize {
        (self.file.size - self.offset).min(PIECE_BYTES) as usize
    }
}

#[derive(Debug, Default)]
pub(super) struct SequenceDetector {
    /// The oldest first.
    listings: VecDeque<Listing>,
    /// Names listings.
    last: u64,
    /// Files that are untouched or given.
    watched: HashMap<u64, Place>,
    run: usize,
    /// Large files in a row that were read to their ends, and the one that is being read.
    whole: usize,
    large: Option<Large>,
    /// The listing that is being read.
    current: u64,
}

/// A large file that is being read.
#[derive(Debug)]
struct Large {
    file: File,
    ended: bool,
}

#[derive(Debug)]
struct Listing {
    name: u64,
    files: Vec<File>,
    /// Behind the last file that was read.
    passed: usize,
    /// Where fetching goes on: a file, and bytes in it. And where it stops for now.
    next: usize,
    offset: u64,
    end: usize,
}

/// Where a file stands.
#[derive(Debug, Clone, Copy)]
struct Place {
    listing: u64,
    at: usize,
    given: bool,
}

/// What a file was that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Before {
    /// None of its pages was there.
    Untouched,
    /// The kernel was given some or all of it, and has asked for nothing since.
    Given,
    /// Something else, or not known.
    Asked,
}

impl SequenceDetector {
    /// The kernel is about to be told of these files, which it did not know, in this order.
    pub(super) fn listed(&mut self, files: Vec<File>) {
        if files.len() < 2 {
            return;
        }
        while self.listings.len() >= MAX_LISTINGS
            || (self.watched.len() + files.len() > MAX_WATCHED_FILES && !self.listings.is_empty())
        {
            for file in self.listings.pop_front().into_iter().flat_map(|listing| listing.files) {
                self.watched.remove(&file.node);
            }
        }
        self.last += 1;
        let listing = self.last;
        let place = |(at, file): (usize, &File)| (file.node, Place { listing, at, given: false });
        self.watched.extend(files.iter().take(MAX_WATCHED_FILES).enumerate().map(place));
        self.listings.push_back(Listing { name: listing, files, passed: 0, next: 0, offset: 0, end: 0 });
    }

    /// Files about which it matters that something is asked.
    pub(super) fn watched(&self) -> usize {
        self.watched.len()
    }

    /// Something is asked of a file.
    pub(super) fn touch(&mut self, node: u64) -> Before {
        match self.watched.remove(&node) {
            Some(Place { given: false, .. }) => Before::Untouched,
            Some(Place { given: true, .. }) => Before::Given,
            None => Before::Asked,
        }
    }

    /// A file is read up to byte `end`. True if files are wanted now.
    pub(super) fn read(&mut self, node: u64, end: u64) -> bool {
        let wanted = self.begin(node);
        if let Some(large) = self.large.as_mut().filter(|large| large.file.node == node) {
            large.ended |= end >= large.file.size;
        }
        wanted
    }

    /// The first read of this file, or the first behind what was given of it. True if files are
    /// wanted now.
    fn begin(&mut self, node: u64) -> bool {
        let Some(Place { listing, at, given }) = self.watched.remove(&node) else { return false };
        let Some(listing) = self.listings.iter_mut().find(|known| known.name == listing) else {
            return false;
        };
        let file = listing.files[at];
        if given && !file.is_large() {
            // All of it was there: the kernel has lost it since.
            return false;
        }
        if let Some(large) = self.large.take() {
            self.whole = if large.ended { self.whole + 1 } else { 0 };
        }
        self.large = file.is_large().then_some(Large { file, ended: false });
        let reads_large = self.whole >= WHOLE_FILES;
        let is_wanted = |file: &File| !file.is_large() || (reads_large && file.size <= MAX_FILE_BYTES);
        if at >= listing.passed {
            let untouched = |file: &File| self.watched.get(&file.node).is_some_and(|place| !place.given);
            let is_left = |file: &&File| untouched(file) && is_wanted(file);
            let skipped = listing.files[listing.passed..at].iter().filter(is_left).count();
            if skipped <= 1 {
                self.run = (self.run + at + 1 - listing.passed).min(MAX_RUN_FILES);
            } else {
                self.run /= 2;
            }
            listing.passed = at + 1;
        }
        if self.run < MIN_RUN_FILES {
            return false;
        }
        // The reader will have asked for the very next file before it is there, unless it is a
        // large one: of that the reader finds what is there.
        let next_is_large = listing.files.get(listing.passed).is_some_and(File::is_large);
        listing.go_on_at(listing.passed + usize::from(!next_is_large));
        let ahead = listing.files.iter().skip(listing.passed).take(self.run.min(MAX_FILES_AHEAD));
        let most = if reads_large { MAX_LARGE_FILE_BYTES_AHEAD } else { MAX_BYTES_AHEAD };
        let room = ahead.scan(0, |bytes, file| {
            *bytes += if is_wanted(file) { file.size } else { 0 };
            (*bytes <= most).then_some(())
        });
        listing.end = listing.passed + room.count();
        self.current = listing.name;
        let is_any = listing.files.iter().take(listing.end).skip(listing.next).any(is_wanted);
        if !is_any {
            // They may be later.
            listing.end = listing.next;
        }
        is_any
    }

    /// The next piece that is wanted, whose file counts as given from now on.
    pub(super) fn next(&mut self) -> Option<Piece> {
        let reads_large = self.whole >= WHOLE_FILES;
        let listing = self.listings.iter_mut().rev().find(|listing| listing.name == self.current)?;
        listing.go_on_at(listing.passed);
        while listing.next < listing.end {
            let (at, file, offset) = (listing.next, listing.files[listing.next], listing.offset);
            let is_wanted = !at.is_multiple_of(MARK_INTERVAL_FILES)
                && (!file.is_large() || (reads_large && file.size <= MAX_FILE_BYTES));
            // What was begun is given already; and by another listing the kernel may have learned
            // anew of a file that it had given up.
            let (listed, name) = (self.watched.get_mut(&file.node), listing.name);
            let is_this = |place: &&mut Place| place.listing == name && place.at == at;
            let place = listed.filter(is_this).filter(|place| place.given == (offset > 0));
            let Some(place) = place.filter(|_| is_wanted) else {
                listing.go_on_at(at + 1);
                continue;
            };
            place.given = true;
            listing.offset += PIECE_BYTES;
            if listing.offset >= file.size {
                listing.go_on_at(at + 1);
            }
            return Some(Piece { file, offset });
        }
        None
    }

    /// The rest of `piece`'s file is not wanted any more; what has been given of it stays given.
    pub(super) fn give_up(&mut self, piece: Piece) {
        for listing in self.listings.iter_mut().filter(|listing| listing.offset > 0) {
            if listing.files[listing.next].node == piece.file.node {
                listing.go_on_at(listing.next + 1);
            }
        }
    }
}

impl Listing {
    /// Fetching goes on with the file at `next`, unless it has come farther.
    fn go_on_at(&mut self, next: usize) {
        if self.next < next {
            (self.next, self.offset) = (next, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(nodes: std::ops::Range<u64>) -> Vec<File> {
        nodes.map(|node| File { node, size: 4096 }).collect()
    }

    fn wanted(detector: &mut SequenceDetector) -> Vec<u64> {
        std::iter::from_fn(|| detector.next()).map(|piece| piece.file.node).collect()
    }

    /// These are read, one after the other.
    fn go(detector: &mut SequenceDetector, nodes: std::ops::Range<u64>) {
        for node in nodes {
            detector.read(node, 0);
        }
    }

    #[test]
    fn who_reads_in_order_finds_the_next_files_but_for_marks() {
        let mut detector = SequenceDetector::default();
        detector.listed(files(100..200));
        assert!(!detector.read(100, 0) && !detector.read(101, 0));
        assert!(detector.read(102, 0));
        // As many as were read, and not the very next one.
        assert_eq!(wanted(&mut detector), [104, 105]);
        assert!(detector.read(103, 0));
        assert_eq!(wanted(&mut detector), [106, 107]);
        // The reader finds those and asks for the mark: so it read them all.
        assert!(detector.read(108, 0));
        assert_eq!(wanted(&mut detector), [110, 111, 112, 113, 114, 115, 117]);
        assert!(detector.read(109, 0));
        assert_eq!(wanted(&mut detector), [118, 119]);
    }

    #[test]
    fn a_streak_goes_on_in_the_next_listing() {
        let mut detector = SequenceDetector::default();
        detector.listed(files(0..4));
        go(&mut detector, 0..4);
        detector.listed(files(10..14));
        assert_eq!(wanted(&mut detector), [0; 0]);
        assert!(detector.read(10, 0));
        assert_eq!(wanted(&mut detector), [12, 13]);
    }

    #[test]
    fn who_reads_here_and_there_gets_nothing() {
        let mut detector = SequenceDetector::default();
        detector.listed(files(0..100));
        for node in [5, 50, 7, 80, 20, 90] {
            detector.read(node, 0);
            assert_eq!(wanted(&mut detector), [0; 0], "after {node}");
        }
    }

    #[test]
    fn what_was_asked_for_is_not_wanted() {
        let mut detector = SequenceDetector::default();
        detector.listed(files(0..100));
        go(&mut detector, 0..7);
        assert_eq!(
            [9, 9, 3].map(|node| detector.touch(node)),
            [Before::Untouched, Before::Asked, Before::Asked]
        );
        assert_eq!(wanted(&mut detector), [10, 11, 12, 13]);
        assert_eq!([10, 10].map(|node| detector.touch(node)), [Before::Given, Before::Asked]);
        assert!(detector.read(7, 0));
        assert_eq!(wanted(&mut detector), [14, 15]);
    }

    #[test]
    fn large_files_are_left_to_the_kernel_and_bytes_are_limited() {
        let mut detector = SequenceDetector::default();
        let mut all = files(0..64);
        all[5].size = MAX_SMALL_FILE_BYTES + 1;
        all[6..].iter_mut().for_each(|file| file.size = MAX_SMALL_FILE_BYTES);
        detector.listed(all);
        go(&mut detector, 0..5);
        assert_eq!(wanted(&mut detector), [6, 7, 9]);
        go(&mut detector, 5..33);
        let ahead = 33 + MAX_BYTES_AHEAD / MAX_SMALL_FILE_BYTES;
        assert_eq!(wanted(&mut detector), (34..ahead).filter(|node| node % 8 != 0).collect::<Vec<_>>());
    }

    fn large(nodes: std::ops::Range<u64>, size: u64) -> Vec<File> {
        nodes.map(|node| File { node, size }).collect()
    }

    #[test]
    fn who_reads_large_files_to_their_ends_finds_the_next_ones_in_pieces() {
        let mut detector = SequenceDetector::default();
        let size = 2 * PIECE_BYTES + 5;
        detector.listed(large(0..40, size));
        for node in 0..2 {
            assert!(!detector.read(node, PIECE_BYTES) && !detector.read(node, size));
        }
        assert!(detector.read(2, PIECE_BYTES));
        let piece = |node, offset| Piece { file: File { node, size }, offset };
        let pieces: Vec<_> = std::iter::from_fn(|| detector.next()).collect();
        // As many as were read.
        let expected =
            (3..6).flat_map(|node| [0, PIECE_BYTES, 2 * PIECE_BYTES].map(|offset| piece(node, offset)));
        assert_eq!(pieces, expected.collect::<Vec<_>>());
        assert_eq!(
            [0, PIECE_BYTES, 2 * PIECE_BYTES].map(|offset| piece(3, offset).length() as u64),
            [PIECE_BYTES, PIECE_BYTES, 5]
        );
        // The reader has read those and asks for the one behind them, and so on, within the limit.
        assert!(!detector.read(2, size) && detector.read(6, size));
        let nodes = [7, 9, 10, 11, 12, 13].iter().flat_map(|node| [*node; 3]);
        assert_eq!(wanted(&mut detector), nodes.collect::<Vec<_>>());
        assert!(detector.read(14, size));
        let mut nodes = wanted(&mut detector);
        nodes.dedup();
        assert!(
            nodes.len() as u64 * size <= MAX_LARGE_FILE_BYTES_AHEAD && nodes.ends_with(&[29]),
            "{nodes:?}"
        );
    }

    #[test]
    fn who_leaves_large_files_before_their_ends_finds_none() {
        let mut detector = SequenceDetector::default();
        detector.listed(large(0..20, 4 * PIECE_BYTES));
        (0..10).for_each(|node| assert!(!detector.read(node, PIECE_BYTES), "{node}"));
        assert_eq!(wanted(&mut detector), [0; 0]);
        // One is not enough.
        detector.read(10, 4 * PIECE_BYTES);
        assert!(!detector.read(11, 4 * PIECE_BYTES));
        assert!(detector.read(12, PIECE_BYTES));
        assert_eq!(detector.next().map(|piece| piece.file.node), Some(13));
        // The reader has left that one.
        detector.read(14, PIECE_BYTES);
        assert_eq!(wanted(&mut detector), [0; 0]);
    }

    #[test]
    fn what_is_asked_for_while_it_is_given_is_not_gone_on_with() {
        let mut detector = SequenceDetector::default();
        detector.listed(large(0..16, 3 * PIECE_BYTES));
        for node in 0..3 {
            detector.read(node, 3 * PIECE_BYTES);
        }
        let first = detector.next().unwrap();
        assert_eq!((first.file.node, first.offset), (3, 0));
        // The reader has caught up: its position is known.
        assert!(detector.read(3, 3 * PIECE_BYTES));
        assert_eq!(wanted(&mut detector), [4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7]);
        assert_eq!([3, 4].map(|node| detector.touch(node)), [Before::Asked, Before::Given]);
    }

    #[test]
    fn what_is_given_up_stays_given_and_is_not_gone_on_with() {
        let mut detector = SequenceDetector::default();
        detector.listed(large(0..16, 3 * PIECE_BYTES));
        for node in 0..3 {
            detector.read(node, 3 * PIECE_BYTES);
        }
        let (_, second) = (detector.next(), detector.next().unwrap());
        detector.give_up(second);
        assert_eq!(wanted(&mut detector), [4, 4, 4, 5, 5, 5]);
        assert_eq!(detector.touch(3), Before::Given);
    }

    #[test]
    fn what_was_listed_again_is_not_gone_on_with() {
        let mut detector = SequenceDetector::default();
        let size = 3 * PIECE_BYTES;
        detector.listed(large(0..10, size));
        detector.listed(large(100..110, size));
        for node in 0..3 {
            detector.read(node, size);
        }
        assert_eq!(detector.next().map(|piece| (piece.file.node, piece.offset)), Some((3, 0)));
        // Elsewhere for a while; the kernel gives up the file that was begun, and learns of it
        // again.
        detector.read(100, size);
        detector.listed(large(3..6, size));
        detector.read(3, size);
        detector.read(4, size);
        assert_eq!(detector.touch(3), Before::Asked);
        detector.listed(vec![File { node: 3, size }, File { node: 200, size }]);
        detector.watched.get_mut(&3).unwrap().given = true;
        // Back at the first place: its second piece would be stored in what may have been written
        // since.
        detector.read(1, size);
        detector.current = 1;
        detector.listings[0].end = 10;
        assert!(wanted(&mut detector).iter().all(|node| *node != 3));
    }

    #[test]
    fn the_longest_files_are_left_to_the_kernel() {
        let mut detector = SequenceDetector::default();
        let mut all = large(0..16, MAX_FILE_BYTES);
        all[4].size = MAX_FILE_BYTES + 1;
        detector.listed(all);
        for node in 0..3 {
            detector.read(node, MAX_FILE_BYTES);
        }
        let mut nodes = wanted(&mut detector);
        nodes.dedup();
        assert_eq!(nodes, [3, 5]);
    }

    #[test]
    fn listings_are_forgotten() {
        let mut detector = SequenceDetector::default();
        for listing in 0..1000 {
            detector.listed(files(listing * 100..listing * 100 + 50));
            assert!(detector.watched() <= MAX_WATCHED_FILES && detector.listings.len() <= MAX_LISTINGS);
        }
        assert_eq!([0, 99_900].map(|node| detector.touch(node)), [Before::Asked, Before::Untouched]);
        detector.listed(files(1_000_000..1_100_000));
        assert_eq!(detector.watched(), MAX_WATCHED_FILES);
        assert!(!detector.read(1_099_999, 0) && !detector.read(1_000_000, 0));
    }
}
