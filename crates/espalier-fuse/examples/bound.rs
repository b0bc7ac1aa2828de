//! What no file system behind these transports can do without: a server that knows names and
//! attributes in memory only, copies what is written out of the requests, and writes it to a device
//! once, one after the other, in large pieces. It keeps no account of where that lies, no order, no
//! checksums and no log, so it cannot read it from there again. `espalier bench suite
//! --bound PROGRAM` lets it take part.
//!
//! `bound DIR [DEVICE|keep] [-o transport=classic|io_uring]` mounts it on a directory and says
//! `mounted` and over which transport. It says `unmounted` when it was unmounted, and mounts the
//! same again for each line that it reads then. Without a device it forgets what is written, and
//! with `keep` it has that in memory and can be read: what no reader can do without. Without a
//! transport it takes the one that Espalier would take. Run as root.

#[path = "../tests/common/toy.rs"]
#[allow(dead_code, reason = "the tests of transport and mount use more of it")]
mod toy;

use espalier_fuse::transport::{Handler, Kind};
use espalier_fuse::{Mount, MountOptions};
use espalier_storage::{AlignedBuf, BLOCK, Device, FileDevice, OpenMode};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use toy::{Nowhere, Sink, Toy};

/// Bytes of a write to the device.
const PIECE: usize = 1 << 20;
/// Pieces in memory.
const PIECES: usize = 32;
/// Threads that write, as many as a store has workers on a small machine.
const WRITERS: usize = 2;
/// What comes in pieces of so many bytes is copied by several threads at a time.
const LARGE: usize = PIECE / 4;

/// Where data goes: to a device, in the order in which it comes.
struct Stream(Arc<Shared>);

struct Shared {
    device: FileDevice,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    free: Vec<AlignedBuf>,
    /// What is being filled, and how far.
    filling: Option<(AlignedBuf, usize)>,
    full: VecDeque<(AlignedBuf, usize)>,
    writing: usize,
    place: u64,
    failed: bool,
}

impl Stream {
    fn to(device: &Path) -> espalier_storage::Result<Self> {
        let device = FileDevice::open(device, OpenMode::ReadWrite)?;
        let free = (0..PIECES).map(|_| AlignedBuf::zeroed(PIECE)).collect();
        let state = Mutex::new(State { free, ..State::default() });
        let shared = Arc::new(Shared { device, state, changed: Condvar::new() });
        for _ in 0..WRITERS {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || shared.write_full_pieces());
        }
        Ok(Self(shared))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics with the state in hand")
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).expect("no thread panics with the state in hand")
    }

    fn free_piece(&self) -> (MutexGuard<'_, State>, AlignedBuf) {
        let mut state = self.lock();
        loop {
            match state.free.pop() {
                Some(piece) => return (state, piece),
                None => state = self.wait(state),
            }
        }
    }

    fn hand_over(&self, mut state: MutexGuard<'_, State>, piece: (AlignedBuf, usize)) {
        state.full.push_back(piece);
        drop(state);
        self.changed.notify_all();
    }

    fn write_full_pieces(&self) {
        let mut state = self.lock();
        loop {
            let Some((piece, length)) = state.full.pop_front() else {
                state = self.wait(state);
                continue;
            };
            let length = length.next_multiple_of(BLOCK);
            if state.place + PIECE as u64 > self.device.len() {
                state.place = 0;
            }
            let place = state.place;
            state.place += length as u64;
            state.writing += 1;
            drop(state);
            let result = self.device.write_at(place, &[&piece[..length]]);
            state = self.lock();
            state.failed |= result.is_err();
            state.writing -= 1;
            state.free.push(piece);
            self.changed.notify_all();
        }
    }
}

impl Sink for Stream {
    fn write(&self, data: &[u8]) {
        let Self(shared) = self;
        if data.len() >= LARGE {
            for part in data.chunks(PIECE) {
                let (state, mut piece) = shared.free_piece();
                drop(state);
                piece[..part.len()].copy_from_slice(part);
                shared.hand_over(shared.lock(), (piece, part.len()));
            }
            return;
        }
        let mut state = shared.lock();
        let (mut piece, at) = match state.filling.take() {
            Some((piece, at)) if at + data.len() <= PIECE => (piece, at),
            full => {
                state.full.extend(full);
                drop(state);
                shared.changed.notify_all();
                let piece;
                (state, piece) = shared.free_piece();
                (piece, 0)
            }
        };
        piece[at..at + data.len()].copy_from_slice(data);
        // Another thread may have begun one meanwhile.
        let other = state.filling.replace((piece, at + data.len()));
        if let Some(other) = other {
            shared.hand_over(state, other);
        }
    }

    fn sync(&self) -> io::Result<()> {
        let Self(shared) = self;
        let mut state = shared.lock();
        let last = state.filling.take();
        state.full.extend(last);
        shared.changed.notify_all();
        while !state.full.is_empty() || state.writing > 0 {
            state = shared.wait(state);
        }
        let failed = state.failed;
        drop(state);
        match shared.device.sync() {
            Ok(()) if !failed => Ok(()),
            _ => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }
}

/// What is asked for on the command line.
struct Arguments {
    directory: PathBuf,
    /// A device, or `keep`.
    data: Option<PathBuf>,
    transport: Option<Kind>,
}

impl Arguments {
    fn parse(mut words: impl Iterator<Item = OsString>) -> Option<Self> {
        let (mut paths, mut transport) = (Vec::new(), None);
        while let Some(word) = words.next() {
            if word == "-o" {
                transport = Some(match words.next()?.to_str()? {
                    "transport=classic" => Kind::Classic,
                    "transport=io_uring" => Kind::Uring,
                    _ => return None,
                });
            } else {
                paths.push(PathBuf::from(word));
            }
        }
        let mut paths = paths.into_iter();
        let arguments = Self { directory: paths.next()?, data: paths.next(), transport };
        paths.next().is_none().then_some(arguments)
    }
}

fn main() {
    let Some(arguments) = Arguments::parse(std::env::args_os().skip(1)) else {
        eprintln!("usage: bound DIR [DEVICE|keep] [-o transport=classic|io_uring]");
        std::process::exit(2);
    };
    let fail = |error: &dyn std::error::Error| -> ! {
        eprintln!("bound: {error}");
        std::process::exit(1);
    };
    let toy = match arguments.data {
        Some(what) if what == Path::new("keep") => Toy::plain(),
        Some(device) => Toy::into_sink(Stream::to(&device).unwrap_or_else(|error| fail(&error))),
        None => Toy::into_sink(Nowhere),
    };
    let toy = Arc::new(toy);
    let options = MountOptions { transport: arguments.transport, ..MountOptions::default() };
    loop {
        let handler = Arc::clone(&toy) as Arc<dyn Handler>;
        match Mount::start_handler(handler, &arguments.directory, &options) {
            Ok(mount) => {
                println!("mounted over {}", mount.transport());
                mount.wait();
            }
            Err(error) => fail(&error),
        }
        println!("unmounted");
        if std::io::stdin().read_line(&mut String::new()).is_ok_and(|length| length == 0) {
            return;
        }
    }
}
