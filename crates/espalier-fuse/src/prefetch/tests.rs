use super::*;
use std::io::{PipeReader, Read as _, Write as _};
use std::os::fd::OwnedFd;

const CONTENT: u8 = 7;
const FILE_BYTES: usize = 8192;
const READ: Asked = Asked::Read { end: FILE_BYTES as u64 };

/// A prefetcher whose kernel is a pipe.
struct Fixture {
    shared: Arc<Shared>,
    buffer: PageBuffer,
    device: Device,
    pipe: PipeReader,
    /// Another end to put things in.
    writer: std::io::PipeWriter,
}

fn file(node: u64) -> File {
    File { node, size: FILE_BYTES as u64 }
}

fn fixture() -> Fixture {
    let (buffer, gate) = PageBuffer::new(PIECE_BYTES as usize).unwrap();
    let (pipe, writer) = std::io::pipe().unwrap();
    let device = Device::from_descriptor(OwnedFd::from(writer.try_clone().unwrap()));
    let shared = Arc::new(Shared::new(gate, Arc::default()));
    Fixture { shared, buffer, device, pipe, writer }
}

fn content(_: u64, _: u64, out: &mut [u8]) -> Option<usize> {
    out.fill(CONTENT);
    Some(out.len())
}

impl Fixture {
    /// Lists files and reads the first ones, until the one with number 4 is wanted, and no other.
    fn want_one(&self) {
        self.shared.listed((0..6).map(file).collect(), |_| true);
        (0..3).for_each(|node| self.shared.asked(node, READ).unwrap());
        self.shared.asked(5, Asked::Else).unwrap();
    }

    /// Has the kernel wait before the first byte: the pipe is full. The bytes in it.
    fn fill(&mut self) -> usize {
        let capacity = rustix::pipe::fcntl_getpipe_size(&self.pipe).unwrap();
        self.writer.write_all(&vec![1; capacity]).unwrap();
        capacity
    }

    /// Stores what is wanted, with `read`, until it is told to stop, and says what the kernel got:
    /// first what `meanwhile` took from it.
    fn run(
        self,
        read: &Read<'_>,
        meanwhile: impl FnOnce(&Shared, &mut PipeReader) -> Vec<u8> + Send,
    ) -> Vec<u8> {
        let Self { shared, buffer, device, mut pipe, writer } = self;
        let mut got = std::thread::scope(|scope| {
            let (of_thread, pipe) = (Arc::clone(&shared), &mut pipe);
            let other = scope.spawn(move || {
                let got = meanwhile(&of_thread, pipe);
                wait_until(&of_thread, |table| table.sleeping || table.stopped);
                of_thread.table.lock().stopped = true;
                of_thread.changed.notify_all();
                got
            });
            shared.run(buffer, &device, read);
            other.join().unwrap()
        });
        drop((device, writer));
        pipe.read_to_end(&mut got).unwrap();
        got
    }
}

fn wait_until(shared: &Shared, condition: impl Fn(&Table) -> bool) {
    while !condition(&shared.table.lock()) {
        std::thread::yield_now();
    }
}

fn stage(table: &Table) -> Option<Stage> {
    table.flight.as_ref().map(|flight| flight.stage)
}

#[test]
fn a_file_that_is_wanted_is_stored_whole() {
    let fixture = fixture();
    fixture.want_one();
    let stored = Arc::clone(&fixture.shared.stored);
    let got = fixture.run(&content, |_, _| Vec::new());
    let (header, data) = got.split_at(notify::STORE_BYTES);
    assert_eq!(header, notify::store(4, 0, FILE_BYTES as u32));
    assert!(data.len() == FILE_BYTES && data.iter().all(|byte| *byte == CONTENT));
    assert_eq!(stored.load(Ordering::Relaxed), 1);
}

#[test]
fn a_file_that_is_asked_for_while_it_is_read_is_not_stored() {
    for asked in [READ, Asked::Else] {
        let fixture = fixture();
        fixture.want_one();
        let shared = Arc::clone(&fixture.shared);
        let read = move |node, offset, out: &mut [u8]| {
            shared.asked(node, asked).unwrap();
            content(node, offset, out)
        };
        assert_eq!(fixture.run(&read, |_, _| Vec::new()), [0; 0]);
    }
}

#[test]
fn a_file_that_is_shorter_by_now_is_not_stored() {
    let fixture = fixture();
    fixture.want_one();
    let read = |_, _, out: &mut [u8]| Some(out.len() - 1);
    assert_eq!(fixture.run(&read, |_, _| Vec::new()), [0; 0]);
}

#[test]
fn who_asks_for_what_is_being_stored_does_not_wait_and_nothing_more_is_copied() {
    let mut fixture = fixture();
    fixture.want_one();
    let capacity = fixture.fill();
    let got = fixture.run(&content, |shared, pipe| {
        wait_until(shared, |table| stage(table) == Some(Stage::Storing));
        shared.asked(4, READ).unwrap();
        assert_eq!(stage(&shared.table.lock()), Some(Stage::Closed));
        // Once more is as good.
        shared.asked(4, Asked::Else).unwrap();
        let mut got = vec![0; capacity];
        pipe.read_exact(&mut got).unwrap();
        got
    });
    assert!(!got.contains(&CONTENT), "it went on after it was revoked");
}

#[test]
fn the_gate_opens_again_for_the_next_file() {
    let mut fixture = fixture();
    fixture.want_one();
    let capacity = fixture.fill();
    let got = fixture.run(&content, |shared, pipe| {
        wait_until(shared, |table| stage(table) == Some(Stage::Storing));
        shared.asked(4, READ).unwrap();
        pipe.read_exact(&mut vec![0; capacity]).unwrap();
        wait_until(shared, |table| table.sleeping);
        shared.listed((10..16).map(file).collect(), |_| true);
        shared.asked(10, READ).unwrap();
        Vec::new()
    });
    assert!(got.ends_with(&[CONTENT; FILE_BYTES]));
}

#[test]
fn a_write_that_nobody_asked_for_ends_it() {
    let fixture = fixture();
    fixture.shared.listed((0..9).map(file).collect(), |_| true);
    (0..3).for_each(|node| fixture.shared.asked(node, READ).unwrap());
    // One that was asked for before is none.
    fixture.shared.asked(7, Asked::Else).unwrap();
    fixture.shared.asked(7, Asked::Write).unwrap();
    assert!(!fixture.shared.table.lock().stopped);
    fixture.shared.asked(8, Asked::Write).unwrap();
    let shared = Arc::clone(&fixture.shared);
    assert_eq!(fixture.run(&content, |_, _| Vec::new()), [0; 0]);
    assert!(!shared.watching.load(Ordering::Relaxed));
    shared.listed((20..30).map(file).collect(), |_| true);
    assert_eq!(shared.table.lock().detector.watched(), 0);
}

#[test]
fn a_write_that_may_have_been_overwritten_fails() {
    let fixture = fixture();
    fixture.want_one();
    let shared = Arc::clone(&fixture.shared);
    fixture.run(&content, |shared, _| {
        wait_until(shared, |table| table.sleeping);
        assert!(shared.asked(4, Asked::Write).is_err());
        assert!(shared.table.lock().stopped);
        Vec::new()
    });
    // It brings what is in the pages: now that it was said, that is what is meant.
    shared.asked(4, Asked::Write).unwrap();
}

#[test]
fn who_asks_before_he_writes_what_was_given_may() {
    let fixture = fixture();
    fixture.want_one();
    fixture.run(&content, |shared, _| {
        wait_until(shared, |table| table.sleeping);
        shared.asked(4, Asked::Else).unwrap();
        shared.asked(4, Asked::Write).unwrap();
        assert!(!shared.table.lock().stopped);
        Vec::new()
    });
}

#[test]
fn what_others_knew_before_is_not_stored() {
    let fixture = fixture();
    let shared = &fixture.shared;
    shared.listed((0..9).map(file).collect(), |node| {
        assert!(
            shared.watching.load(Ordering::Relaxed),
            "a lookup and read of a file now would not be noticed"
        );
        ![4, 5].contains(&node)
    });
    (0..3).for_each(|node| shared.asked(node, READ).unwrap());
    assert_eq!(fixture.run(&content, |_, _| Vec::new()), [0; 0]);
}

#[test]
fn who_changes_the_length_waits_until_it_is_over() {
    let mut fixture = fixture();
    fixture.want_one();
    let capacity = fixture.fill();
    fixture.run(&content, |shared, pipe| {
        wait_until(shared, |table| stage(table) == Some(Stage::Storing));
        std::thread::scope(|scope| {
            let resizes = scope.spawn(|| {
                shared.asked(4, Asked::Resize).unwrap();
                assert_eq!(stage(&shared.table.lock()), None, "the file may still become longer");
            });
            wait_until(shared, |table| stage(table) == Some(Stage::Closed));
            pipe.read_exact(&mut vec![0; capacity]).unwrap();
            resizes.join().unwrap();
        });
        Vec::new()
    });
}

const LARGE_FILE_BYTES: u64 = 2 * PIECE_BYTES + 5;

/// Lists large files and reads the first ones to their ends, until the one with number 3 is wanted,
/// and no other.
fn want_a_large_one(shared: &Shared) {
    shared.listed((0..5).map(|node| File { node, size: LARGE_FILE_BYTES }).collect(), |_| true);
    (0..3).for_each(|node| shared.asked(node, Asked::Read { end: LARGE_FILE_BYTES }).unwrap());
    shared.asked(4, Asked::Else).unwrap();
}

/// A piece as the kernel gets it.
fn taken(pipe: &mut PipeReader, offset: u64, length: u64) {
    let mut got = vec![0; notify::STORE_BYTES + length as usize];
    pipe.read_exact(&mut got).unwrap();
    let (header, data) = got.split_at(notify::STORE_BYTES);
    assert_eq!(header, notify::store(3, offset, length as u32));
    assert!(data.iter().all(|byte| *byte == (offset / PIECE_BYTES) as u8));
}

/// Fills each piece with its number.
fn numbered(_: u64, offset: u64, out: &mut [u8]) -> Option<usize> {
    out.fill((offset / PIECE_BYTES) as u8);
    Some(out.len())
}

#[test]
fn a_large_file_is_stored_piece_by_piece() {
    let fixture = fixture();
    want_a_large_one(&fixture.shared);
    let stored = Arc::clone(&fixture.shared.stored);
    let rest = fixture.run(&numbered, |_, pipe| {
        taken(pipe, 0, PIECE_BYTES);
        taken(pipe, PIECE_BYTES, PIECE_BYTES);
        taken(pipe, 2 * PIECE_BYTES, 5);
        Vec::new()
    });
    assert_eq!((rest.len(), stored.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn a_large_file_that_is_asked_for_is_not_gone_on_with() {
    for asked in [READ, Asked::Else] {
        let fixture = fixture();
        want_a_large_one(&fixture.shared);
        let shared = Arc::clone(&fixture.shared);
        let read = move |node, offset, out: &mut [u8]| {
            if offset == PIECE_BYTES {
                shared.asked(node, asked).unwrap();
            }
            numbered(node, offset, out)
        };
        let rest = fixture.run(&read, |_, pipe| {
            taken(pipe, 0, PIECE_BYTES);
            Vec::new()
        });
        assert_eq!(rest.len(), 0, "{rest:?}");
    }
}

#[test]
fn a_large_file_that_was_shortened_while_it_was_stored_is_not_gone_on_with() {
    let fixture = fixture();
    want_a_large_one(&fixture.shared);
    let read = |node, offset, out: &mut [u8]| if offset == 0 { numbered(node, offset, out) } else { Some(0) };
    let rest = fixture.run(&read, |shared, pipe| {
        taken(pipe, 0, PIECE_BYTES);
        wait_until(shared, |table| table.sleeping);
        // A write now without a request before it may have lost what it wrote into the first piece.
        assert!(shared.asked(3, Asked::Write).is_err());
        Vec::new()
    });
    assert_eq!(rest.len(), 0, "{rest:?}");
}

#[test]
fn what_is_listed_while_it_is_stored_is_not_given_again() {
    let mut fixture = fixture();
    fixture.want_one();
    let capacity = fixture.fill();
    let got = fixture.run(&content, |shared, pipe| {
        wait_until(shared, |table| stage(table) == Some(Stage::Storing));
        shared.listed((3..6).map(file).collect(), |_| true);
        assert_eq!(shared.table.lock().detector.touch(4), sequence_detector::Before::Asked);
        pipe.read_exact(&mut vec![0; capacity]).unwrap();
        Vec::new()
    });
    assert_eq!(got.len(), notify::STORE_BYTES + FILE_BYTES);
}
