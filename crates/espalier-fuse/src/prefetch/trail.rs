//! Who reads files in the order in which they were listed, and what he will read next.
//!
//! Files of which the kernel was just told by a listing are *untouched*: it has not asked for
//! anything of theirs, so it has none of their pages. Reads of untouched files that follow the
//! order of their listing make a *streak*; while it is long enough, the next files of that listing
//! are *wanted*, and then *given*, of which we are told nothing until something is asked again. Who
//! finds his files' pages there asks for nothing, so the first file of a listing and every
//! [`MARK`]th behind it are left to be asked for: they show where he is.
//!
//! Of *large* files the kernel reads ahead by itself, in pieces large enough, so they are wanted
//! only by who reads such files to their ends: the last [`WHOLE`] for which he has asked. He would
//! have to enter each of their pages into the kernel's lists; that is done for him.
//!
//! Pure: neither clocks nor system calls.

use std::collections::{HashMap, VecDeque};

/// Listings remembered, and files in them of which nothing was asked.
const LISTINGS: usize = 64;
const MOST_WATCHED: usize = 8192;
/// Every so many files one is left to be asked for.
const MARK: usize = 8;
/// Files read in order before more are fetched, and the number beyond which the streak does not
/// matter.
const STREAK: usize = 3;
const LONGEST_STREAK: usize = 64;
/// Files fetched before the reader, at most, and their bytes.
const MOST_AHEAD: usize = 32;
const MOST_BYTES_AHEAD: u64 = 4 << 20;
/// The same for who reads large files.
const MOST_BYTES_OF_LARGE: u64 = 32 << 20;
/// Larger files are large.
const LARGEST_SMALL: u64 = 256 << 10;
/// Those that are longer still are left to the kernel.
const LARGEST: u64 = 8 << 20;
/// So many large files in a row that were read to their ends.
const WHOLE: usize = 2;
/// The longest piece, in bytes.
pub(super) const PIECE: u64 = 1 << 20;

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
        self.size > LARGEST_SMALL
    }
}

/// Bytes of a file that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) file: File,
    /// Where they begin. They reach to the end of the file, or have [`PIECE`].
    pub(super) offset: u64,
}

impl Piece {
    /// How many there are.
    pub(super) fn length(&self) -> usize {
        (self.file.size - self.offset).min(PIECE) as usize
    }
}

#[derive(Debug, Default)]
pub(super) struct Trail {
    /// The oldest first.
    listings: VecDeque<Listing>,
    /// Names listings.
    last: u64,
    /// Files that are untouched or given.
    watched: HashMap<u64, Place>,
    streak: usize,
    /// Large files in a row that were read to their ends, and the one that is being read.
    whole: usize,
    large: Option<Large>,
    /// The listing in which somebody reads.
    current: u64,
}

/// A large file that somebody reads.
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

impl Trail {
    /// The kernel is about to be told of these files, which it did not know, in this order.
    pub(super) fn listed(&mut self, files: Vec<File>) {
        if files.len() < 2 {
            return;
        }
        while self.listings.len() >= LISTINGS
            || (self.watched.len() + files.len() > MOST_WATCHED && !self.listings.is_empty())
        {
            for file in self.listings.pop_front().into_iter().flat_map(|listing| listing.files) {
                self.watched.remove(&file.node);
            }
        }
        self.last += 1;
        let listing = self.last;
        let place = |(at, file): (usize, &File)| (file.node, Place { listing, at, given: false });
        self.watched.extend(files.iter().take(MOST_WATCHED).enumerate().map(place));
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

    /// Somebody reads a file up to byte `end`. True if files are wanted now.
    pub(super) fn read(&mut self, node: u64, end: u64) -> bool {
        let wanted = self.begin(node);
        if let Some(large) = self.large.as_mut().filter(|large| large.file.node == node) {
            large.ended |= end >= large.file.size;
        }
        wanted
    }

    /// He has not asked for anything of this file, or what he was given of it is not all. True if
    /// files are wanted now.
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
        let reads_large = self.whole >= WHOLE;
        let is_wanted = |file: &File| !file.is_large() || (reads_large && file.size <= LARGEST);
        if at >= listing.passed {
            let untouched = |file: &File| self.watched.get(&file.node).is_some_and(|place| !place.given);
            let is_left = |file: &&File| untouched(file) && is_wanted(file);
            let skipped = listing.files[listing.passed..at].iter().filter(is_left).count();
            if skipped <= 1 {
                self.streak = (self.streak + at + 1 - listing.passed).min(LONGEST_STREAK);
            } else {
                self.streak /= 2;
            }
            listing.passed = at + 1;
        }
        if self.streak < STREAK {
            return false;
        }
        // The very next one he will have asked for before it is there, if it is no large one: of
        // that he finds what is.
        let next_is_large = listing.files.get(listing.passed).is_some_and(File::is_large);
        listing.go_on_at(listing.passed + usize::from(!next_is_large));
        let ahead = listing.files.iter().skip(listing.passed).take(self.streak.min(MOST_AHEAD));
        let most = if reads_large { MOST_BYTES_OF_LARGE } else { MOST_BYTES_AHEAD };
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
        let reads_large = self.whole >= WHOLE;
        let listing = self.listings.iter_mut().rev().find(|listing| listing.name == self.current)?;
        listing.go_on_at(listing.passed);
        while listing.next < listing.end {
            let (at, file, offset) = (listing.next, listing.files[listing.next], listing.offset);
            let is_wanted =
                !at.is_multiple_of(MARK) && (!file.is_large() || (reads_large && file.size <= LARGEST));
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
            listing.offset += PIECE;
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

    fn wanted(trail: &mut Trail) -> Vec<u64> {
        std::iter::from_fn(|| trail.next()).map(|piece| piece.file.node).collect()
    }

    /// Somebody reads these.
    fn go(trail: &mut Trail, nodes: std::ops::Range<u64>) {
        for node in nodes {
            trail.read(node, 0);
        }
    }

    #[test]
    fn who_reads_in_order_finds_the_next_files_but_for_marks() {
        let mut trail = Trail::default();
        trail.listed(files(100..200));
        assert!(!trail.read(100, 0) && !trail.read(101, 0));
        assert!(trail.read(102, 0));
        // As far as he has come, and not the very next one.
        assert_eq!(wanted(&mut trail), [104, 105]);
        assert!(trail.read(103, 0));
        assert_eq!(wanted(&mut trail), [106, 107]);
        // He finds those, and asks for the mark: so he read them all.
        assert!(trail.read(108, 0));
        assert_eq!(wanted(&mut trail), [110, 111, 112, 113, 114, 115, 117]);
        assert!(trail.read(109, 0));
        assert_eq!(wanted(&mut trail), [118, 119]);
    }

    #[test]
    fn a_streak_goes_on_in_the_next_listing() {
        let mut trail = Trail::default();
        trail.listed(files(0..4));
        go(&mut trail, 0..4);
        trail.listed(files(10..14));
        assert_eq!(wanted(&mut trail), [0; 0]);
        assert!(trail.read(10, 0));
        assert_eq!(wanted(&mut trail), [12, 13]);
    }

    #[test]
    fn who_reads_here_and_there_gets_nothing() {
        let mut trail = Trail::default();
        trail.listed(files(0..100));
        for node in [5, 50, 7, 80, 20, 90] {
            trail.read(node, 0);
            assert_eq!(wanted(&mut trail), [0; 0], "after {node}");
        }
    }

    #[test]
    fn what_was_asked_for_is_not_wanted() {
        let mut trail = Trail::default();
        trail.listed(files(0..100));
        go(&mut trail, 0..7);
        assert_eq!(
            [9, 9, 3].map(|node| trail.touch(node)),
            [Before::Untouched, Before::Asked, Before::Asked]
        );
        assert_eq!(wanted(&mut trail), [10, 11, 12, 13]);
        assert_eq!([10, 10].map(|node| trail.touch(node)), [Before::Given, Before::Asked]);
        assert!(trail.read(7, 0));
        assert_eq!(wanted(&mut trail), [14, 15]);
    }

    #[test]
    fn large_files_are_left_to_the_kernel_and_bytes_are_limited() {
        let mut trail = Trail::default();
        let mut all = files(0..64);
        all[5].size = LARGEST_SMALL + 1;
        all[6..].iter_mut().for_each(|file| file.size = LARGEST_SMALL);
        trail.listed(all);
        go(&mut trail, 0..5);
        assert_eq!(wanted(&mut trail), [6, 7, 9]);
        go(&mut trail, 5..33);
        let ahead = 33 + MOST_BYTES_AHEAD / LARGEST_SMALL;
        assert_eq!(wanted(&mut trail), (34..ahead).filter(|node| node % 8 != 0).collect::<Vec<_>>());
    }

    fn large(nodes: std::ops::Range<u64>, size: u64) -> Vec<File> {
        nodes.map(|node| File { node, size }).collect()
    }

    #[test]
    fn who_reads_large_files_to_their_ends_finds_the_next_ones_in_pieces() {
        let mut trail = Trail::default();
        let size = 2 * PIECE + 5;
        trail.listed(large(0..40, size));
        for node in 0..2 {
            assert!(!trail.read(node, PIECE) && !trail.read(node, size));
        }
        assert!(trail.read(2, PIECE));
        let piece = |node, offset| Piece { file: File { node, size }, offset };
        let pieces: Vec<_> = std::iter::from_fn(|| trail.next()).collect();
        // As far as he has come.
        let expected = (3..6).flat_map(|node| [0, PIECE, 2 * PIECE].map(|offset| piece(node, offset)));
        assert_eq!(pieces, expected.collect::<Vec<_>>());
        assert_eq!([0, PIECE, 2 * PIECE].map(|offset| piece(3, offset).length() as u64), [PIECE, PIECE, 5]);
        // He has read those, and asks for the one behind them: and on it goes, but not for ever.
        assert!(!trail.read(2, size) && trail.read(6, size));
        let nodes = [7, 9, 10, 11, 12, 13].iter().flat_map(|node| [*node; 3]);
        assert_eq!(wanted(&mut trail), nodes.collect::<Vec<_>>());
        assert!(trail.read(14, size));
        let mut nodes = wanted(&mut trail);
        nodes.dedup();
        assert!(nodes.len() as u64 * size <= MOST_BYTES_OF_LARGE && nodes.ends_with(&[29]), "{nodes:?}");
    }

    #[test]
    fn who_leaves_large_files_before_their_ends_finds_none() {
        let mut trail = Trail::default();
        trail.listed(large(0..20, 4 * PIECE));
        (0..10).for_each(|node| assert!(!trail.read(node, PIECE), "{node}"));
        assert_eq!(wanted(&mut trail), [0; 0]);
        // One is not enough.
        trail.read(10, 4 * PIECE);
        assert!(!trail.read(11, 4 * PIECE));
        assert!(trail.read(12, PIECE));
        assert_eq!(trail.next().map(|piece| piece.file.node), Some(13));
        // He has left that one.
        trail.read(14, PIECE);
        assert_eq!(wanted(&mut trail), [0; 0]);
    }

    #[test]
    fn what_is_asked_for_while_it_is_given_is_not_gone_on_with() {
        let mut trail = Trail::default();
        trail.listed(large(0..16, 3 * PIECE));
        for node in 0..3 {
            trail.read(node, 3 * PIECE);
        }
        let first = trail.next().unwrap();
        assert_eq!((first.file.node, first.offset), (3, 0));
        // He has caught up: his place is known.
        assert!(trail.read(3, 3 * PIECE));
        assert_eq!(wanted(&mut trail), [4, 4, 4, 5, 5, 5, 6, 6, 6, 7, 7, 7]);
        assert_eq!([3, 4].map(|node| trail.touch(node)), [Before::Asked, Before::Given]);
    }

    #[test]
    fn what_is_given_up_stays_given_and_is_not_gone_on_with() {
        let mut trail = Trail::default();
        trail.listed(large(0..16, 3 * PIECE));
        for node in 0..3 {
            trail.read(node, 3 * PIECE);
        }
        let (_, second) = (trail.next(), trail.next().unwrap());
        trail.give_up(second);
        assert_eq!(wanted(&mut trail), [4, 4, 4, 5, 5, 5]);
        assert_eq!(trail.touch(3), Before::Given);
    }

    #[test]
    fn what_was_listed_again_is_not_gone_on_with() {
        let mut trail = Trail::default();
        let size = 3 * PIECE;
        trail.listed(large(0..10, size));
        trail.listed(large(100..110, size));
        for node in 0..3 {
            trail.read(node, size);
        }
        assert_eq!(trail.next().map(|piece| (piece.file.node, piece.offset)), Some((3, 0)));
        // Elsewhere for a while; the kernel gives up the file that was begun, and learns of it
        // again.
        trail.read(100, size);
        trail.listed(large(3..6, size));
        trail.read(3, size);
        trail.read(4, size);
        assert_eq!(trail.touch(3), Before::Asked);
        trail.listed(vec![File { node: 3, size }, File { node: 200, size }]);
        trail.watched.get_mut(&3).unwrap().given = true;
        // Back where he was: its second piece would be stored in what may have been written since.
        trail.read(1, size);
        trail.current = 1;
        trail.listings[0].end = 10;
        assert!(wanted(&mut trail).iter().all(|node| *node != 3));
    }

    #[test]
    fn the_longest_files_are_left_to_the_kernel() {
        let mut trail = Trail::default();
        let mut all = large(0..16, LARGEST);
        all[4].size = LARGEST + 1;
        trail.listed(all);
        for node in 0..3 {
            trail.read(node, LARGEST);
        }
        let mut nodes = wanted(&mut trail);
        nodes.dedup();
        assert_eq!(nodes, [3, 5]);
    }

    #[test]
    fn listings_are_forgotten() {
        let mut trail = Trail::default();
        for listing in 0..1000 {
            trail.listed(files(listing * 100..listing * 100 + 50));
            assert!(trail.watched() <= MOST_WATCHED && trail.listings.len() <= LISTINGS);
        }
        assert_eq!([0, 99_900].map(|node| trail.touch(node)), [Before::Asked, Before::Untouched]);
        trail.listed(files(1_000_000..1_100_000));
        assert_eq!(trail.watched(), MOST_WATCHED);
        assert!(!trail.read(1_099_999, 0) && !trail.read(1_000_000, 0));
    }
}
