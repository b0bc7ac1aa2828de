//! A reader that follows a growing file sees what was written, and zeros only in holes: whatever
//! way it reads, and however the writer grows the file. These tests need root and FUSE, and fail
//! without.
//!
//! Each byte of a file is known from its position. So each reader can check all that it gets, while
//! the writer goes on, and a file may be truncated and grow again. The number of writes is fixed;
//! readers read until the writer is done.

mod common;

use common::kinds;
use common::store::{Image, serve_if_asked};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes of a round, and rounds: before each but the first the file is truncated.
const WRITES: usize = 500;
const ROUNDS: usize = 3;
/// No file gets longer.
const LONGEST: usize = 1 << 20;
/// With holes, so many bytes are data, and then as many times 2 are data, data and a hole.
const ZONE: usize = 3000;
/// Readers look at so many bytes at once.
const WINDOW: usize = 64 << 10;

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

/// How a file grows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Growth {
    Appended,
    WithHoles,
}

impl Growth {
    fn is_hole(self, at: usize) -> bool {
        self == Self::WithHoles && at / ZONE % 4 == 3
    }

    fn byte(self, at: usize) -> u8 {
        if self.is_hole(at) { 0 } else { (at % 251) as u8 + 1 }
    }

    fn check(self, at: usize, bytes: &[u8], who: &str) {
        for (place, &byte) in (at..).zip(bytes) {
            assert_eq!(byte, self.byte(place), "{who} at {place}, {self:?}");
        }
    }

    /// Writes some bytes at the end of a file of `length`; returns the new length.
    fn grow(self, file: &File, length: usize, step: usize) -> usize {
        let at = if self.is_hole(length) { length.next_multiple_of(ZONE) } else { length };
        let bytes = step * 7919 % 700 + 1;
        let data: Vec<u8> =
            (at..at + bytes).take_while(|&at| !self.is_hole(at)).map(|at| self.byte(at)).collect();
        file.write_all_at(&data, at as u64).unwrap();
        at + data.len()
    }
}

/// Reads a file from where it was to its end, again and again, until `done`; `look` gets the offset
/// and returns what it read there.
fn follow(growth: Growth, who: &str, done: &AtomicBool, mut look: impl FnMut(usize) -> Vec<u8>) {
    let mut at = 0;
    loop {
        let is_done = done.load(Ordering::SeqCst);
        let bytes = look(at);
        growth.check(at, &bytes, who);
        at += bytes.len();
        if is_done && bytes.is_empty() {
            return;
        }
    }
}

fn read(path: &Path, growth: Growth, done: &AtomicBool) {
    let mut file = File::open(path).unwrap();
    let mut buffer = vec![0; WINDOW];
    follow(growth, "read", done, |_| {
        let count = file.read(&mut buffer).unwrap();
        buffer[..count].to_vec()
    });
}

/// Reads what it has seen again, with what follows.
fn pread(path: &Path, growth: Growth, done: &AtomicBool) {
    let file = File::open(path).unwrap();
    let mut buffer = vec![0; WINDOW];
    follow(growth, "pread", done, |at| {
        let before = at.saturating_sub(5000);
        let count = file.read_at(&mut buffer, before as u64).unwrap();
        growth.check(before, &buffer[..count], "pread");
        buffer[..count][(at - before).min(count)..].to_vec()
    });
}

fn mapped(path: &Path, growth: Growth, done: &AtomicBool) {
    let file = File::open(path).unwrap();
    // SAFETY: the kernel chooses the place, so nothing of ours lies there.
    let map =
        unsafe { mmap(std::ptr::null_mut(), LONGEST, ProtFlags::READ, MapFlags::SHARED, &file, 0).unwrap() };
    follow(growth, "a mapping", done, |at| {
        // The end as it is for mappings. (`fstat` may tell the next one a moment before it is: the
        // kernel passes on what the server says while it still waits for the writer's reply.)
        let length = (&file).seek(SeekFrom::End(0)).unwrap() as usize;
        let seen = at.saturating_sub(5000)..length.max(at);
        // SAFETY: mapped, and within the file, which does not become shorter meanwhile. Others
        // change it, of which is seen what was before or after.
        let bytes: Vec<_> =
            seen.clone().map(|at| unsafe { map.cast::<u8>().add(at).read_volatile() }).collect();
        growth.check(seen.start, &bytes, "a mapping");
        bytes[at - seen.start..].to_vec()
    });
    // SAFETY: it is not read any more.
    unsafe { munmap(map, LONGEST).unwrap() };
}

fn sendfile(path: &Path, growth: Growth, done: &AtomicBool) {
    let file = File::open(path).unwrap();
    let sink = File::from(rustix::fs::memfd_create("sink", MemfdFlags::empty()).unwrap());
    follow(growth, "sendfile", done, |at| {
        (&sink).seek(SeekFrom::Start(0)).unwrap();
        let count = rustix::fs::sendfile(&sink, &file, Some(&mut (at as u64)), WINDOW).unwrap();
        let mut bytes = vec![0; count];
        sink.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    });
}

/// Opens the file for each look.
fn reopened(path: &Path, growth: Growth, done: &AtomicBool) {
    follow(growth, "a second open", done, |at| {
        let mut file = File::open(path).unwrap();
        file.seek(SeekFrom::Start(at as u64)).unwrap();
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    });
}

/// Readers end also if the writer panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

type Reader = fn(&Path, Growth, &AtomicBool);

fn grow_before(reader: Reader, path: &Path, growth: Growth) {
    // As a shell's `>` or `>>` makes a new file.
    let append = if growth == Growth::Appended { libc::O_APPEND } else { 0 };
    let mut new = File::options();
    let writer = new.write(true).create_new(true).custom_flags(append).open(path).unwrap();
    let mut length = 0;
    for round in 0..ROUNDS {
        length = length * 2 / 3;
        writer.set_len(length as u64).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _end = End(&done);
            scope.spawn(|| reader(path, growth, &done));
            for step in 0..WRITES {
                length = growth.grow(&writer, length, round * WRITES + step);
            }
        });
    }
    assert!(length <= LONGEST);
    let whole = fs::read(path).unwrap();
    assert_eq!(whole.len(), length);
    growth.check(0, &whole, "afterwards");
}

fn followers_see_what_was_written(options: &str) {
    let readers: [(&str, Reader); 5] =
        [("read", read), ("pread", pread), ("mmap", mapped), ("sendfile", sendfile), ("open", reopened)];
    for kind in kinds() {
        let image = Image::new(256 << 20);
        let mounted = image.mount(kind, options);
        for (name, reader) in readers {
            for growth in [Growth::Appended, Growth::WithHoles] {
                grow_before(reader, &mounted.path().join(format!("{name}-{growth:?}")), growth);
            }
        }
        mounted.end();
    }
}

#[test]
fn followers_of_a_new_file_see_what_was_written() {
    followers_see_what_was_written("");
}

#[test]
fn followers_see_what_was_written_without_prefetch() {
    followers_see_what_was_written("noprefetch");
}

#[test]
fn followers_see_what_was_written_back() {
    followers_see_what_was_written("writeback");
}

/// Files that the kernel may be given before they are read grow meanwhile: what is given ends where
/// the file did when it was listed.
#[test]
fn followers_of_files_that_are_given_see_what_was_appended() {
    const FILES: usize = 400;
    let growth = Growth::Appended;
    let image = Image::new(256 << 20);
    let mounted = image.mount(kinds()[0], "");
    for number in 0..FILES {
        let content: Vec<u8> = (0..number * 7919 % 20_000 + 1).map(|at| growth.byte(at)).collect();
        fs::write(mounted.path().join(format!("{number:04}")), content).unwrap();
    }
    mounted.end();
    for kind in kinds() {
        let mounted = image.mount(kind, "");
        let names: Vec<_> =
            fs::read_dir(mounted.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(names.len(), FILES);
        std::thread::scope(|scope| {
            // Starts where files are about to be given, and is passed by the reader.
            scope.spawn(|| {
                for path in names.iter().skip(5) {
                    let file = File::options().append(true).open(path).unwrap();
                    let mut length = file.metadata().unwrap().len() as usize;
                    for step in 0..3 {
                        length = growth.grow(&file, length, step);
                    }
                }
            });
            for path in &names {
                growth.check(0, &fs::read(path).unwrap(), "a reader of all");
            }
        });
        for path in &names {
            growth.check(0, &fs::read(path).unwrap(), "afterwards");
        }
        mounted.end();
    }
}
