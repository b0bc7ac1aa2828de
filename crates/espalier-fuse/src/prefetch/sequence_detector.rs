//! Detects readers that read files in the order in which they were listed, and says which files
//! such a reader will read next.
//!
//! A file of which the kernel was just told by a listing is *untouched*: the kernel has made no
//! request for it, so it has none of its pages. Reads of untouched files that follow the order of
//! their listing make a *sequential run*. While the run is long enough, the next files of that
//! listing are *wanted*. A wanted file is *prefetched* next: from then on the server hears nothing
//! of it until the kernel makes a request for it again. A reader that finds the pages of its files
//! causes no requests. So the first file of a listing, and every [`MARK_INTERVAL_FILES`]th after
//! it, are not prefetched: the requests for them show how far the reader is.
//!
//! *Large* files the kernel reads ahead by itself, in long pieces. They are wanted only for a
//! reader that has read the last [`MIN_WHOLE_READS`] such files to their ends. Such a reader would
//! spend time on entering each page into the kernel's lists; the prefetch thread does that instead.
//!
//! Pure: no clock, no system call.

use std::collections::{HashMap, VecDeque};

/// Listings that are remembered, and untouched or prefetched files in them.
const MAX_LISTINGS: usize = 64;
const MAX_WATCHED_FILES: usize = 8192;
/// One of so many files is not prefetched.
const MARK_INTERVAL_FILES: usize = 8;
/// Files read in order before more are prefetched, and the longest run that is told from a shorter
/// one.
const MIN_RUN_FILES: usize = 3;
const MAX_RUN_FILES: usize = 64;
/// Files that are prefetched ahead of the reader, at most, and their bytes.
const MAX_FILES_AHEAD: usize = 32;
const MAX_BYTES_AHEAD: u64 = 4 << 20;
/// The same for a reader of large files.
const MAX_LARGE_FILE_BYTES_AHEAD: u64 = 32 << 20;
/// Files with more bytes are large.
const MAX_SMALL_FILE_BYTES: u64 = 256 << 10;
/// Files with more bytes than this are left to the kernel.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// So many large files in sequence must have been read to their ends.
const MIN_WHOLE_READS: usize = 2;
/// The length of a piece at most, bytes.
pub(super) const MAX_PIECE_BYTES: u64 = 1 << 20;

/// A regular file of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct File {
    /// Its node id, as the kernel knows it.
    pub(crate) node: u64,
    /// Its length in bytes, as the listing said.
    pub(crate) size: u64,
}

impl File {
    fn is_large(&self) -> bool {
        self.size > MAX_SMALL_FILE_BYTES
    }
}

/// A range of a file that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) file: File,
    /// Where the range begins, in bytes. It reaches to the end of the file, or has
    /// [`MAX_PIECE_BYTES`].
    pub(super) offset: u64,
}

impl Piece {
    /// Its length in bytes.
    pub(super) fn length(&self) -> usize {
        (self.file.size - self.offset).min(MAX_PIECE_BYTES) as usize
    }
}

/// What is known of listings and of the reads of their files.
#[derive(Debug, Default)]
pub(super) struct SequenceDetector {
    /// The oldest first.
    listings: VecDeque<Listing>,
    /// The number of the last listing.
    last_listing: u64,
    /// By node id, the files that are untouched or prefetched.
    watched: HashMap<u64, WatchedFile>,
    run_files: usize,
    /// Large files in sequence that were read to their ends, and the one that is being read.
    whole_reads: usize,
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
    /// The file after the last one that was read.
    passed: usize,
    /// Where prefetching continues: a file and an offset in bytes. And the file before which it
    /// stops for now.
    next: usize,
    offset: u64,
    end: usize,
}

/// An untouched or prefetched file: its place in a listing.
#[derive(Debug, Clone, Copy)]
struct WatchedFile {
    listing: u64,
    at: usize,
    prefetched: bool,
}

/// What the kernel had of a file before a request for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileState {
    /// The kernel had none of its pages.
    Untouched,
    /// Some or all of it was prefetched, and the kernel has made no request for it since.
    Prefetched,
    /// Anything else.
    Known,
}

impl SequenceDetector {
    /// The kernel is about to be told of these files, which are new to it, in this order.
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
        self.last_listing += 1;
        let listing = self.last_listing;
        let place = |(at, file): (usize, &File)| (file.node, WatchedFile { listing, at, prefetched: false });
        self.watched.extend(files.iter().take(MAX_WATCHED_FILES).enumerate().map(place));
        self.listings.push_back(Listing { name: listing, files, passed: 0, next: 0, offset: 0, end: 0 });
    }

    /// How many files are untouched or prefetched.
    pub(super) fn watched(&self) -> usize {
        self.watched.len()
    }

    /// There is a request for a file: what the kernel had of it before.
    pub(super) fn touch(&mut self, node: u64) -> FileState {
        match self.watched.remove(&node) {
            Some(WatchedFile { prefetched: false, .. }) => FileState::Untouched,
            Some(WatchedFile { prefetched: true, .. }) => FileState::Prefetched,
            None => FileState::Known,
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

    /// The first read of this file, or the first after the part that was prefetched. True if files
    /// are wanted now.
    fn begin(&mut self, node: u64) -> bool {
        let Some(WatchedFile { listing, at, prefetched }) = self.watched.remove(&node) else { return false };
        let Some(listing) = self.listings.iter_mut().find(|known| known.name == listing) else {
            return false;
        };
        let file = listing.files[at];
        if prefetched && !file.is_large() {
            // All of it was prefetched: the kernel has dropped it since.
            return false;
        }
        if let Some(large) = self.large.take() {
            self.whole_reads = if large.ended { self.whole_reads + 1 } else { 0 };
        }
        self.large = file.is_large().then_some(Large { file, ended: false });
        let reads_large = self.whole_reads >= MIN_WHOLE_READS;
        let is_wanted = |file: &File| !file.is_large() || (reads_large && file.size <= MAX_FILE_BYTES);
        if at >= listing.passed {
            let untouched = |file: &File| self.watched.get(&file.node).is_some_and(|place| !place.prefetched);
            let is_left = |file: &&File| untouched(file) && is_wanted(file);
            let skipped = listing.files[listing.passed..at].iter().filter(is_left).count();
            if skipped <= 1 {
                self.run_files = (self.run_files + at + 1 - listing.passed).min(MAX_RUN_FILES);
            } else {
                self.run_files /= 2;
            }
            listing.passed = at + 1;
        }
        if self.run_files < MIN_RUN_FILES {
            return false;
        }
        // The reader will have opened the very next file before it can be prefetched, unless it is
        // a large one, of which the reader finds a part.
        let next_is_large = listing.files.get(listing.passed).is_some_and(File::is_large);
        listing.advance_to(listing.passed + usize::from(!next_is_large));
        let ahead = listing.files.iter().skip(listing.passed).take(self.run_files.min(MAX_FILES_AHEAD));
        let most = if reads_large { MAX_LARGE_FILE_BYTES_AHEAD } else { MAX_BYTES_AHEAD };
        let room = ahead.scan(0, |bytes, file| {
            *bytes += if is_wanted(file) { file.size } else { 0 };
            (*bytes <= most).then_some(())
        });
        listing.end = listing.passed + room.count();
        self.current = listing.name;
        let is_any = listing.files.iter().take(listing.end).skip(listing.next).any(is_wanted);
        if !is_any {
            // They may be wanted later.
            listing.end = listing.next;
        }
        is_any
    }

    /// The next piece that is wanted; its file counts as prefetched from now on.
    pub(super) fn next(&mut self) -> Option<Piece> {
        let reads_large = self.whole_reads >= MIN_WHOLE_READS;
        let listing = self.listings.iter_mut().rev().find(|listing| listing.name == self.current)?;
        listing.advance_to(listing.passed);
        while listing.next < listing.end {
            let (at, file, offset) = (listing.next, listing.files[listing.next], listing.offset);
            let is_wanted = !at.is_multiple_of(MARK_INTERVAL_FILES)
                && (!file.is_large() || (reads_large && file.size <= MAX_FILE_BYTES));
            // A file that was begun is prefetched already. If a later listing names the file again,
            // the kernel may have dropped the inode and learned of it anew.
            let (listed, name) = (self.watched.get_mut(&file.node), listing.name);
            let is_this = |place: &&mut WatchedFile| place.listing == name && place.at == at;
            let place = listed.filter(is_this).filter(|place| place.prefetched == (offset > 0));
            let Some(place) = place.filter(|_| is_wanted) else {
                listing.advance_to(at + 1);
                continue;
            };
            place.prefetched = true;
            listing.offset += MAX_PIECE_BYTES;
            if listing.offset >= file.size {
                listing.advance_to(at + 1);
            }
            return Some(Piece { file, offset });
        }
        None
    }

    /// The rest of `piece`'s file is not wanted any more. The file still counts as prefetched.
    pub(super) fn abandon(&mut self, piece: Piece) {
        for listing in self.listings.iter_mut().filter(|listing| listing.offset > 0) {
            if listing.files[listing.next].node == piece.file.node {
                listing.advance_to(listing.next + 1);
            }
        }
    }
}

impl Listing {
    /// Prefetching continues with the file at `next`, unless it has come farther.
    fn advance_to(&mut self, next: usize) {
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
    fn a_reader_in_order_finds_the_next_files_but_for_marks() {
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
    fn a_run_continues_in_the_next_listing() {
        let mut detector = SequenceDetector::default();
        detector.listed(files(0..4));
        go(&mut detector, 0..4);
        detector.listed(files(10..14));
        assert_eq!(wanted(&mut detector), [0; 0]);
        assert!(detector.read(10, 0));
        assert_eq!(wanted(&mut detector), [12, 13]);
    }

    #[test]
    fn a_reader_without_order_gets_nothing() {
        let mut detector = SequenceDetector::default();
        detector.listed(files(0..100));
        for node in [5, 50, 7, 80, 20, 90] {
            detector.read(node, 0);
            assert_eq!(wanted(&mut detector), [0; 0], "after {node}");
        }
    }

    #[test]
    fn a_file_with_a_request_is_not_wanted() {
        let mut detector = SequenceDetector::default();
        detector.listed(files(0..100));
        go(&mut detector, 0..7);
        assert_eq!(
            [9, 9, 3].map(|node| detector.touch(node)),
            [FileState::Untouched, FileState::Known, FileState::Known]
        );
        assert_eq!(wanted(&mut detector), [10, 11, 12, 13]);
        assert_eq!([10, 10].map(|node| detector.touch(node)), [FileState::Prefetched, FileState::Known]);
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
    fn a_reader_of_whole_large_files_finds_the_next_ones_in_pieces() {
        let mut detector = SequenceDetector::default();
        let size = 2 * MAX_PIECE_BYTES + 5;
        detector.listed(large(0..40, size));
        for node in 0..2 {
            assert!(!detector.read(node, MAX_PIECE_BYTES) && !detector.read(node, size));
        }
        assert!(detector.read(2, MAX_PIECE_BYTES));
        let piece = |node, offset| Piece { file: File { node, size }, offset };
        let pieces: Vec<_> = std::iter::from_fn(|| detector.next()).collect();
        // As many as were read.
        let expected = (3..6)
            .flat_map(|node| [0, MAX_PIECE_BYTES, 2 * MAX_PIECE_BYTES].map(|offset| piece(node, offset)));
        assert_eq!(pieces, expected.collect::<Vec<_>>());
        assert_eq!(
            [0, MAX_PIECE_BYTES, 2 * MAX_PIECE_BYTES].map(|offset| piece(3, offset).length() as u64),
            [MAX_PIECE_BYTES, MAX_PIECE_BYTES, 5]
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
    fn a_reader_that_leaves_large_files_before_their_ends_finds_none() {
        let mut detector = SequenceDetector::default();
        detector.listed(large(0..20, 4 * MAX_PIECE_BYTES));
        (0..10).for_each(|node| assert!(!detector.read(node, MAX_PIECE_BYTES), "{node}"));
        assert_eq!(wanted(&mut detector), [0; 0]);
        // One is not enough.
        detector.read(10, 4 * MAX_PIECE_BYTES);
        assert!(!detector.read(11, 4 * MAX_PIECE_BYTES));
        assert!(detector.read(12, MAX_PIECE_BYTES));
        assert_eq!(detector.next().map(|piece| piece.file.node), Some(13));
        // The reader has left that one.
        detector.read(14, MAX_PIECE_BYTES);
        assert_eq!(wanted(&mut detector), [0; 0]);
    }

    #[test]
    fn a_file_with_a_request_while_it_is_prefetched_is_not_continued() {
        let mut detector = SequenceDetector::default();
        detector.listed(large(0..16, 3 * MAX_PIECE_BYTES));
        for node in 0..3 {
            detector.read(node, 3 * MAX_PIECE_BYTES);
        }
        let first = detector.next().unwrap();
        assert_eq!((first.file.node, first.offset), (3, 0));
        // The reader has caught up: its position is known.
        assert!(detector.read(3, 3 * MAX_PIECE_BYTES));
        assert_eq!(wanted(&mut detector), [4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7]);
        assert_eq!([3, 4].map(|node| detector.touch(node)), [FileState::Known, FileState::Prefetched]);
    }

    #[test]
    fn an_abandoned_file_stays_prefetched_and_is_not_continued() {
        let mut detector = SequenceDetector::default();
        detector.listed(large(0..16, 3 * MAX_PIECE_BYTES));
        for node in 0..3 {
            detector.read(node, 3 * MAX_PIECE_BYTES);
        }
        let (_, second) = (detector.next(), detector.next().unwrap());
        detector.abandon(second);
        assert_eq!(wanted(&mut detector), [4, 4, 4, 5, 5, 5]);
        assert_eq!(detector.touch(3), FileState::Prefetched);
    }

    #[test]
    fn a_file_that_was_listed_again_is_not_continued() {
        let mut detector = SequenceDetector::default();
        let size = 3 * MAX_PIECE_BYTES;
        detector.listed(large(0..10, size));
        detector.listed(large(100..110, size));
        for node in 0..3 {
            detector.read(node, size);
        }
        assert_eq!(detector.next().map(|piece| (piece.file.node, piece.offset)), Some((3, 0)));
        // Elsewhere for a while; the kernel drops the file that was begun, and learns of it
        // again.
        detector.read(100, size);
        detector.listed(large(3..6, size));
        detector.read(3, size);
        detector.read(4, size);
        assert_eq!(detector.touch(3), FileState::Known);
        detector.listed(vec![File { node: 3, size }, File { node: 200, size }]);
        detector.watched.get_mut(&3).unwrap().prefetched = true;
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
        assert_eq!([0, 99_900].map(|node| detector.touch(node)), [FileState::Known, FileState::Untouched]);
        detector.listed(files(1_000_000..1_100_000));
        assert_eq!(detector.watched(), MAX_WATCHED_FILES);
        assert!(!detector.read(1_099_999, 0) && !detector.read(1_000_000, 0));
    }
}
