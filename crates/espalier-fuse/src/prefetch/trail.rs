//! Who reads files in the order in which they were listed, and what he will read next.
//!
//! Files of which the kernel was just told by a listing are *untouched*: it has not asked for anything of theirs, so it has none of
//! their pages. Reads of untouched files that follow the order of their listing make a *streak*; while it is long enough, the
//! next files of that listing are *wanted*, and then *given*, of which we are told nothing until something is asked again. Who finds
//! his files' pages there asks for nothing, so the first file of a listing and every [`MARK`]th behind it are left to be asked for: they
//! show where he is.
//!
//! Pure: neither clocks nor system calls.

use std::collections::{HashMap, VecDeque};

/// Listings remembered, and files in them of which nothing was asked.
const LISTINGS: usize = 64;
const MOST_WATCHED: usize = 8192;
/// Every so many files one is left to be asked for.
const MARK: usize = 8;
/// Files read in order before more are fetched, and the number beyond which the streak does not matter.
const STREAK: usize = 3;
const LONGEST_STREAK: usize = 64;
/// Files fetched before the reader, at most, and their bytes.
const MOST_AHEAD: usize = 32;
const MOST_BYTES_AHEAD: u64 = 4 << 20;
/// Of larger files the kernel reads ahead by itself, in pieces large enough.
pub(super) const LARGEST: u64 = 256 << 10;

/// A regular file that a listing told the kernel of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct File {
    /// Its node, as the kernel knows it.
    pub(crate) node: u64,
    /// Its bytes, as the kernel was told.
    pub(crate) size: u64,
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
    /// The listing in which somebody reads.
    current: u64,
}

#[derive(Debug)]
struct Listing {
    name: u64,
    files: Vec<File>,
    /// Behind the last file that was read.
    passed: usize,
    /// Where fetching goes on, and where it stops for now.
    next: usize,
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
    /// The kernel was given all of it, and has asked for nothing since.
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
        self.listings.push_back(Listing { name: listing, files, passed: 0, next: 0, end: 0 });
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

    /// Somebody reads a file. True if files are wanted now.
    pub(super) fn read(&mut self, node: u64) -> bool {
        let Some(Place { listing, at, given: false }) = self.watched.remove(&node) else { return false };
        let Some(listing) = self.listings.iter_mut().find(|known| known.name == listing) else {
            return false;
        };
        if at >= listing.passed {
            let untouched = |file: &File| self.watched.get(&file.node).is_some_and(|place| !place.given);
            let is_left = |file: &&File| untouched(file) && file.size <= LARGEST;
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
        // The very next one he will have asked for before it is there.
        listing.next = listing.next.max(listing.passed + 1);
        let ahead = listing.files.iter().skip(listing.passed).take(self.streak.min(MOST_AHEAD));
        let room = ahead.scan(0, |bytes, file| {
            *bytes += if file.size <= LARGEST { file.size } else { 0 };
            (*bytes <= MOST_BYTES_AHEAD).then_some(())
        });
        listing.end = listing.passed + room.count();
        self.current = listing.name;
        listing.next < listing.end
    }

    /// The next file that is wanted, which counts as given from now on.
    pub(super) fn next(&mut self) -> Option<File> {
        let listing = self.listings.iter_mut().rev().find(|listing| listing.name == self.current)?;
        listing.next = listing.next.max(listing.passed);
        while listing.next < listing.end {
            let (at, file) = (listing.next, listing.files[listing.next]);
            listing.next += 1;
            if !at.is_multiple_of(MARK)
                && file.size <= LARGEST
                && let Some(place) = self.watched.get_mut(&file.node).filter(|place| !place.given)
            {
                place.given = true;
                return Some(file);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(nodes: std::ops::Range<u64>) -> Vec<File> {
        nodes.map(|node| File { node, size: 4096 }).collect()
    }

    fn wanted(trail: &mut Trail) -> Vec<u64> {
        std::iter::from_fn(|| trail.next()).map(|file| file.node).collect()
    }

    /// Somebody reads these.
    fn go(trail: &mut Trail, nodes: std::ops::Range<u64>) {
        for node in nodes {
            trail.read(node);
        }
    }

    #[test]
    fn who_reads_in_order_finds_the_next_files_but_for_marks() {
        let mut trail = Trail::default();
        trail.listed(files(100..200));
        assert!(!trail.read(100) && !trail.read(101));
        assert!(trail.read(102));
        // As far as he has come, and not the very next one.
        assert_eq!(wanted(&mut trail), [104, 105]);
        assert!(trail.read(103));
        assert_eq!(wanted(&mut trail), [106, 107]);
        // He finds those, and asks for the mark: so he read them all.
        assert!(trail.read(108));
        assert_eq!(wanted(&mut trail), [110, 111, 112, 113, 114, 115, 117]);
        assert!(trail.read(109));
        assert_eq!(wanted(&mut trail), [118, 119]);
    }

    #[test]
    fn a_streak_goes_on_in_the_next_listing() {
        let mut trail = Trail::default();
        trail.listed(files(0..4));
        go(&mut trail, 0..4);
        trail.listed(files(10..14));
        assert_eq!(wanted(&mut trail), [0; 0]);
        assert!(trail.read(10));
        assert_eq!(wanted(&mut trail), [12, 13]);
    }

    #[test]
    fn who_reads_here_and_there_gets_nothing() {
        let mut trail = Trail::default();
        trail.listed(files(0..100));
        for node in [5, 50, 7, 80, 20, 90] {
            trail.read(node);
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
        assert!(trail.read(7));
        assert_eq!(wanted(&mut trail), [14, 15]);
    }

    #[test]
    fn large_files_are_left_to_the_kernel_and_bytes_are_limited() {
        let mut trail = Trail::default();
        let mut all = files(0..64);
        all[5].size = LARGEST + 1;
        all[6..].iter_mut().for_each(|file| file.size = LARGEST);
        trail.listed(all);
        go(&mut trail, 0..5);
        assert_eq!(wanted(&mut trail), [6, 7, 9]);
        go(&mut trail, 5..33);
        let ahead = 33 + MOST_BYTES_AHEAD / LARGEST;
        assert_eq!(wanted(&mut trail), (34..ahead).filter(|node| node % 8 != 0).collect::<Vec<_>>());
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
        assert!(!trail.read(1_099_999) && !trail.read(1_000_000));
    }
}
