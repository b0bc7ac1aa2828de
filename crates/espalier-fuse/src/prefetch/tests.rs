use super::*;
use std::io::{PipeReader, Read as _, Write as _};
use std::os::fd::OwnedFd;

const CONTENT: u8 = 7;
const FILE_BYTES: usize = 8192;
const READ: Access = Access::Read { end: FILE_BYTES as u64 };

/// A prefetcher whose kernel is a pipe.
struct Fixture {
    shared: Arc<PrefetchState>,
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
    let (buffer, gate) = PageBuffer::new(MAX_PIECE_BYTES as usize).unwrap();
    let (pipe, writer) = std::io::pipe().unwrap();
    let device = Device::from_descriptor(OwnedFd::from(writer.try_clone().unwrap()));
    let shared = Arc::new(PrefetchState::new(gate, Arc::default()));
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
        (0..3).for_each(|node| self.shared.on_access(node, READ).unwrap());
        self.shared.on_access(5, Access::Other).unwrap();
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
        meanwhile: impl FnOnce(&PrefetchState, &mut PipeReader) -> Vec<u8> + Send,
    ) -> Vec<u8> {
        let Self { shared, buffer, device, mut pipe, writer } = self;
        let mut got = std::thread::scope(|scope| {
            let (thread_state, pipe) = (Arc::clone(&shared), &mut pipe);
            let other = scope.spawn(move || {
                let got = meanwhile(&thread_state, pipe);
                wait_until(&thread_state, |table| table.sleeping || table.stopped);
                thread_state.table.lock().stopped = true;
                thread_state.changed.notify_all();
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

fn wait_until(shared: &PrefetchState, condition: impl Fn(&Table) -> bool) {
    while !condition(&shared.table.lock()) {
        std::thread::yield_now();
    }
}

fn stage(table: &Table) -> Option<Stage> {
    table.active.as_ref().map(|active| active.stage)
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
fn a_file_with_a_request_while_it_is_read_is_not_stored() {
    for asked in [READ, Access::Other] {
        let fixture = fixture();
        fixture.want_one();
        let shared = Arc::clone(&fixture.shared);
        let read = move |node, offset, out: &mut [u8]| {
            shared.on_access(node, asked).unwrap();
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
fn a_request_for_a_file_that_is_being_stored_does_not_wait_and_stops_the_copying() {
    let mut fixture = fixture();
    fixture.want_one();
    let capacity = fixture.fill();
    let got = fixture.run(&content, |shared, pipe| {
        wait_until(shared, |table| stage(table) == Some(Stage::Storing));
        shared.on_access(4, READ).unwrap();
        assert_eq!(stage(&shared.table.lock()), Some(Stage::Closed));
        // Once more is as good.
        shared.on_access(4, Access::Other).unwrap();
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
        shared.on_access(4, READ).unwrap();
        pipe.read_exact(&mut vec![0; capacity]).unwrap();
        wait_until(shared, |table| table.sleeping);
        shared.listed((10..16).map(file).collect(), |_| true);
        shared.on_access(10, READ).unwrap();
        Vec::new()
    });
    assert!(got.ends_with(&[CONTENT; FILE_BYTES]));
}

#[test]
fn a_write_without_a_request_before_it_ends_prefetching() {
    let fixture = fixture();
    fixture.shared.listed((0..9).map(file).collect(), |_| true);
    (0..3).for_each(|node| fixture.shared.on_access(node, READ).unwrap());
    // One that was asked for before is none.
    fixture.shared.on_access(7, Access::Other).unwrap();
    fixture.shared.on_access(7, Access::Write).unwrap();
    assert!(!fixture.shared.table.lock().stopped);
    fixture.shared.on_access(8, Access::Write).unwrap();
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
        assert!(shared.on_access(4, Access::Write).is_err());
        assert!(shared.table.lock().stopped);
        Vec::new()
    });
    // It brings what is in the pages: now that it was said, that is what is meant.
    shared.on_access(4, Access::Write).unwrap();
}

#[test]
fn a_write_to_a_prefetched_file_after_a_request_succeeds() {
    let fixture = fixture();
    fixture.want_one();
    fixture.run(&content, |shared, _| {
        wait_until(shared, |table| table.sleeping);
        shared.on_access(4, Access::Other).unwrap();
        shared.on_access(4, Access::Write).unwrap();
        assert!(!shared.table.lock().stopped);
        Vec::new()
    });
}

#[test]
fn a_file_that_was_listed_before_is_not_stored() {
    let fixture = fixture();
    let shared = &fixture.shared;
    shared.listed((0..9).map(file).collect(), |node| {
        assert!(
            shared.watching.load(Ordering::Relaxed),
            "a lookup and read of a file now would not be noticed"
        );
        ![4, 5].contains(&node)
    });
    (0..3).for_each(|node| shared.on_access(node, READ).unwrap());
    assert_eq!(fixture.run(&content, |_, _| Vec::new()), [0; 0]);
}

#[test]
fn a_change_of_the_length_waits_for_the_end_of_the_store() {
    let mut fixture = fixture();
    fixture.want_one();
    let capacity = fixture.fill();
    fixture.run(&content, |shared, pipe| {
        wait_until(shared, |table| stage(table) == Some(Stage::Storing));
        std::thread::scope(|scope| {
            let resizes = scope.spawn(|| {
                shared.on_access(4, Access::Resize).unwrap();
                assert_eq!(stage(&shared.table.lock()), None, "the file may still become longer");
            });
            wait_until(shared, |table| stage(table) == Some(Stage::Closed));
            pipe.read_exact(&mut vec![0; capacity]).unwrap();
            resizes.join().unwrap();
        });
        Vec::new()
    });
}

const LARGE_FILE_BYTES: u64 = 2 * MAX_PIECE_BYTES + 5;

/// Lists large files and reads the first ones to their ends, until the one with number 3 is wanted,
/// and no other.
fn want_a_large_one(shared: &PrefetchState) {
    shared.listed((0..5).map(|node| File { node, size: LARGE_FILE_BYTES }).collect(), |_| true);
    (0..3).for_each(|node| shared.on_access(node, Access::Read { end: LARGE_FILE_BYTES }).unwrap());
    shared.on_access(4, Access::Other).unwrap();
}

/// A piece as the kernel gets it.
fn taken(pipe: &mut PipeReader, offset: u64, length: u64) {
    let mut got = vec![0; notify::STORE_BYTES + length as usize];
    pipe.read_exact(&mut got).unwrap();
    let (header, data) = got.split_at(notify::STORE_BYTES);
    assert_eq!(header, notify::store(3, offset, length as u32));
    assert!(data.iter().all(|byte| *byte == (offset / MAX_PIECE_BYTES) as u8));
}

/// Fills each piece with its number.
fn numbered(_: u64, offset: u64, out: &mut [u8]) -> Option<usize> {
    out.fill((offset / MAX_PIECE_BYTES) as u8);
    Some(out.len())
}

#[test]
fn a_large_file_is_stored_piece_by_piece() {
    let fixture = fixture();
    want_a_large_one(&fixture.shared);
    let stored = Arc::clone(&fixture.shared.stored);
    let rest = fixture.run(&numbered, |_, pipe| {
        taken(pipe, 0, MAX_PIECE_BYTES);
        taken(pipe, MAX_PIECE_BYTES, MAX_PIECE_BYTES);
        taken(pipe, 2 * MAX_PIECE_BYTES, 5);
        Vec::new()
    });
    assert_eq!((rest.len(), stored.load(Ordering::Relaxed)), (0, 1));
}

#[test]
fn a_large_file_with_a_request_is_not_continued() {
    for asked in [READ, Access::Other] {
        let fixture = fixture();
        want_a_large_one(&fixture.shared);
        let shared = Arc::clone(&fixture.shared);
        let read = move |node, offset, out: &mut [u8]| {
            if offset == MAX_PIECE_BYTES {
                shared.on_access(node, asked).unwrap();
            }
            numbered(node, offset, out)
        };
        let rest = fixture.run(&read, |_, pipe| {
            taken(pipe, 0, MAX_PIECE_BYTES);
            Vec::new()
        });
        assert_eq!(rest.len(), 0, "{rest:?}");
    }
}

#[test]
fn a_large_file_that_was_shortened_while_it_was_stored_is_not_continued() {
    let fixture = fixture();
    want_a_large_one(&fixture.shared);
    let read = |node, offset, out: &mut [u8]| if offset == 0 { numbered(node, offset, out) } else { Some(0) };
    let rest = fixture.run(&read, |shared, pipe| {
        taken(pipe, 0, MAX_PIECE_BYTES);
        wait_until(shared, |table| table.sleeping);
        // A write now without a request before it may have lost what it wrote into the first piece.
        assert!(shared.on_access(3, Access::Write).is_err());
        Vec::new()
    });
    assert_eq!(rest.len(), 0, "{rest:?}");
}

#[test]
fn a_file_that_is_listed_while_it_is_stored_is_not_stored_again() {
    let mut fixture = fixture();
    fixture.want_one();
    let capacity = fixture.fill();
    let got = fixture.run(&content, |shared, pipe| {
        wait_until(shared, |table| stage(table) == Some(Stage::Storing));
        shared.listed((3..6).map(file).collect(), |_| true);
        assert_eq!(shared.table.lock().detector.touch(4), sequence_detector::FileState::Known);
        pipe.read_exact(&mut vec![0; capacity]).unwrap();
        Vec::new()
    });
    assert_eq!(got.len(), notify::STORE_BYTES + FILE_BYTES);
}
