//! Do splice and more serving threads pay over `/dev/fuse`? Small servers answer READ and WRITE in
//! different ways, by turns. Printed are medians of calls and bytes in a second, of the processor
//! time of a call (client and server, the kernel included; it means something on a busy machine,
//! too), and of the ratios of both to the first row of the group. docs/performance.md says what
//! came of it.
//!
//! `cargo run --release -p espalier-fuse --example splice [TURNS [MILLISECONDS]]`, as root; 5 turns
//! of 250 ms each take a minute and a half.
//!
//! *memory*: data lies in the server's memory, as with a store that checks and decodes it. *file*:
//! it lies in the page cache of another file, as with a file system that passes files through.

use espalier_fuse::protocol::reply::{self, Attributes};
use espalier_fuse::protocol::{Dialect, Header, Moment, Operation, decode, flags, init};
use espalier_storage::AlignedBuf;
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const KIB: usize = 1 << 10;
/// The largest request: a pipe has 256 buffers at most, without further rights, of which one is for
/// the header, and each other one for a page.
const MAX: usize = 1020 * KIB;
const PIPE: libc::c_int = 1 << 20;
/// Bytes of a WRITE before its data, and of a READ and of an answer before theirs.
const WRITE_FRONT: usize = 80;
const HEADER: usize = 40;
/// Files are so long, and each thread's file behind them is `MAX` longer than `CYCLE`.
const LENGTH: u64 = 1 << 40;
const CYCLE: u64 = 4 << 20;
/// Clients with caches give them back after so many bytes.
const KEPT: u64 = 32 << 20;
const IOC_CLONE: libc::Ioctl = 0x8004_e500_u32 as libc::Ioctl;
const WRITE: u32 = 16;

/// How data moves between the device and where it lies.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// From and to memory: `writev`, `read`.
    Plain,
    /// From and to memory, through a pipe: `vmsplice` and `splice`, `splice` and `read`.
    Splice,
    /// From and to a file: `pread` and `writev`, `read` and `pwrite`.
    File,
    /// From and to a file: `splice` only.
    FileSplice,
}

/// What the clients do.
#[derive(Clone, Copy)]
enum Access {
    Read,
    /// Through the kernel's pages, which are new each time.
    ReadCached,
    Write,
}

/// One server with its clients.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    way: Way,
    threads: usize,
    /// Each thread has a descriptor of its own (`FUSE_DEV_IOC_CLONE`).
    cloned: bool,
}

/// What a row of a table measures.
#[derive(Clone, Copy)]
struct Work {
    access: Access,
    /// Bytes of a call.
    size: usize,
    clients: usize,
}

fn main() {
    // A client would wait for a server that has failed.
    std::panic::set_hook(Box::new(|failure| {
        eprintln!("{failure}; a dead mount may be left");
        std::process::exit(1);
    }));
    let number = |n: usize| std::env::args().nth(n).map(|word| word.parse::<u64>().expect("a number"));
    let turns = number(1).unwrap_or(5) as usize;
    let time = Duration::from_millis(number(2).unwrap_or(250));
    let case = |name, way| Case { name, way, threads: 1, cloned: false };
    let memory = [case("memory", Way::Plain), case("memory, splice", Way::Splice)];
    let file = [case("file", Way::File), case("file, splice", Way::FileSplice)];
    let work = |access, size, clients| Work { access, size, clients };
    println!("load {}", std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim());
    for access in [Access::Read, Access::ReadCached, Access::Write] {
        for size in [128 * KIB, 512 * KIB, MAX] {
            for cases in [&memory, &file] {
                compare(cases, work(access, size, 1), turns, time);
            }
        }
    }
    let threads = [(1, false), (2, false), (2, true), (4, false), (4, true)];
    let names = ["1 thread", "2 threads", "2 cloned", "4 threads", "4 cloned"];
    let threads = std::array::from_fn::<_, 5, _>(|n| {
        let (threads, cloned) = threads[n];
        Case { name: names[n], way: Way::Plain, threads, cloned }
    });
    for size in [4 * KIB, 128 * KIB, MAX] {
        for clients in [1, 4] {
            compare(&threads, work(Access::Read, size, clients), turns, time);
        }
    }
    println!("load {}", std::fs::read_to_string("/proc/loadavg").unwrap_or_default().trim());
}

/// Runs the cases by turns and prints medians.
fn compare(cases: &[Case], work: Work, turns: usize, time: Duration) {
    let mut measured = vec![Vec::new(); cases.len()];
    for turn in 0..turns {
        for n in 0..cases.len() {
            let n = (n + turn) % cases.len();
            measured[n].push(run(&cases[n], work, time));
        }
    }
    let median = |of: &mut dyn Iterator<Item = f64>| {
        let mut of: Vec<_> = of.collect();
        of.sort_by(f64::total_cmp);
        of[of.len() / 2]
    };
    let access = match work.access {
        Access::Read => "read",
        Access::ReadCached => "read, cached",
        Access::Write => "write",
    };
    println!();
    for (case, own) in cases.iter().zip(&measured) {
        let pairs = || own.iter().zip(&measured[0]);
        let rate = median(&mut own.iter().map(|m| m.rate));
        println!(
            "{access:12} {:5} KiB {} clients  {:14} {rate:9.0}/s {:6.2} GB/s {:8.1} us CPU  by first: rate {:.2}, CPU {:.2}",
            work.size / KIB,
            work.clients,
            case.name,
            rate * work.size as f64 / 1e9,
            median(&mut own.iter().map(|m| m.cpu_micros)),
            median(&mut pairs().map(|(m, first)| m.rate / first.rate)),
            median(&mut pairs().map(|(m, first)| m.cpu_micros / first.cpu_micros)),
        );
    }
}

/// What one turn of a case measured.
#[derive(Clone, Copy)]
struct Measured {
    /// Calls in a second.
    rate: f64,
    /// Processor time of a call, in microseconds.
    cpu_micros: f64,
}

/// Processor time of this process, in seconds.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: there is room for the time.
    let told = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    check(told as isize).expect("every kernel has the clock");
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Mounts, lets clients work for a time, unmounts.
fn run(case: &Case, work: Work, time: Duration) -> Measured {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = CString::new(directory.path().to_str().expect("text")).expect("no zero");
    let (device, dialect) = mount(&path);
    let devices: Vec<_> = (1..case.threads).map(|_| case.cloned.then(|| clone_of(&device))).collect();
    let (stop, calls) = (AtomicBool::new(false), AtomicU64::new(0));
    let (took, worked) = std::thread::scope(|scope| {
        for own in [None].into_iter().chain(devices) {
            let (device, dialect) = (device.as_raw_fd(), &dialect);
            scope.spawn(move || {
                let device = own.as_ref().map_or(device, AsRawFd::as_raw_fd);
                Server::new(case.way, device).serve(dialect);
            });
        }
        set_read_ahead(directory.path());
        let clients: Vec<_> = (0..work.clients)
            .map(|n| {
                let (file, stop, calls) = (directory.path().join(format!("f{n}")), &stop, &calls);
                scope.spawn(move || client(&file, work, stop, calls))
            })
            .collect();
        let (begun, before) = (Instant::now(), cpu_seconds());
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
        let took = begun.elapsed();
        let worked = cpu_seconds() - before;
        clients.into_iter().for_each(|client| client.join().expect("a client that works"));
        // SAFETY: the path ends with a zero.
        let unmounted = unsafe { libc::umount2(path.as_ptr(), 0) };
        check(unmounted as isize).expect("the mount is not in use");
        (took, worked)
    });
    let calls = calls.load(Ordering::Relaxed) as f64;
    Measured { rate: calls / took.as_secs_f64(), cpu_micros: worked * 1e6 / calls }
}

/// The kernel's default is 128 KiB, whatever a call asks for.
fn set_read_ahead(directory: &Path) {
    let number = std::fs::metadata(directory).expect("attributes").dev();
    let path = format!("/sys/class/bdi/{}:{}/read_ahead_kb", libc::major(number), libc::minor(number));
    std::fs::write(path, (MAX / KIB).to_string()).expect("root sets the read-ahead");
}

fn client(path: &Path, work: Work, stop: &AtomicBool, calls: &AtomicU64) {
    let cached = matches!(work.access, Access::ReadCached);
    let direct = if cached { 0 } else { libc::O_DIRECT };
    let file = File::options().read(true).write(true).custom_flags(direct).open(path).expect("a file");
    let mut memory = AlignedBuf::zeroed(work.size);
    let (mut offset, size) = (0, work.size as u64);
    while !stop.load(Ordering::Relaxed) {
        match work.access {
            Access::Write => file.write_all_at(&memory, offset).expect("written"),
            _ => file.read_exact_at(&mut memory, offset).expect("read"),
        }
        offset += size;
        if cached && offset.is_multiple_of(KEPT) {
            // SAFETY: takes numbers.
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        }
        calls.fetch_add(1, Ordering::Relaxed);
    }
}

/// A thread that serves.
struct Server {
    way: Way,
    device: RawFd,
    /// Data to be read, or that was written.
    memory: AlignedBuf,
    message: Vec<u8>,
    file: File,
    pipe: [OwnedFd; 2],
}

impl Server {
    fn new(way: Way, device: RawFd) -> Self {
        let mut pipe = [0; 2];
        // SAFETY: there is room for two numbers, and a descriptor that is new belongs to no other.
        let (pipe, file) = unsafe {
            check(libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC) as isize).expect("a pipe");
            check(libc::fcntl(pipe[1], libc::F_SETPIPE_SZ, PIPE) as isize).expect("a pipe as large");
            let file = check(libc::memfd_create(c"splice".as_ptr(), libc::MFD_CLOEXEC) as isize);
            let file = File::from_raw_fd(file.expect("a file in memory") as RawFd);
            (pipe.map(|end| OwnedFd::from_raw_fd(end)), file)
        };
        file.write_all_at(&vec![7; CYCLE as usize + MAX], 0).expect("memory");
        Self { way, device, memory: AlignedBuf::zeroed(MAX), message: vec![0; MAX + 4096], file, pipe }
    }

    /// Serves until the connection ends.
    fn serve(&mut self, dialect: &Dialect) {
        loop {
            let spliced = matches!(self.way, Way::Splice | Way::FileSplice);
            let received = if spliced { self.receive_spliced() } else { self.receive() };
            let length = match received {
                Ok(0) => continue,
                Ok(length) => length,
                Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => continue,
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return,
                Err(error) => panic!("a request is not there: {error}"),
            };
            let message = std::mem::take(&mut self.message);
            if let Ok((header, operation)) = decode(&message[..length], dialect) {
                self.answer(&header, &operation);
            }
            self.message = message;
        }
    }

    fn receive(&mut self) -> io::Result<usize> {
        read(self.device, &mut self.message)
    }

    /// As [`Server::receive`]; a WRITE is served (0).
    fn receive_spliced(&mut self) -> io::Result<usize> {
        let [end, start] = self.pipe.each_ref().map(AsRawFd::as_raw_fd);
        let length = splice(self.device, None, start, self.message.len())?;
        read_exact(end, &mut self.message[..HEADER])?;
        let header = Header::decode(&self.message[..HEADER]).expect("a header");
        if header.opcode != WRITE {
            read_exact(end, &mut self.message[HEADER..length])?;
            return Ok(length);
        }
        read_exact(end, &mut self.message[HEADER..WRITE_FRONT])?;
        let offset = u64::from_ne_bytes(self.message[48..56].try_into().expect("eight bytes"));
        let data = length - WRITE_FRONT;
        if self.way == Way::FileSplice {
            let (mut place, mut rest) = ((offset % CYCLE) as i64, data);
            while rest > 0 {
                // The file has its own offset: the kernel moves the one that is given.
                rest -= splice_to(end, self.file.as_raw_fd(), &mut place, rest)?;
            }
        } else {
            read_exact(end, &mut self.memory[..data])?;
        }
        self.written(header.unique, data)?;
        Ok(0)
    }

    fn written(&self, unique: u64, length: usize) -> io::Result<()> {
        let mut body = [0; 8];
        let body_length = reply::written(&mut body, length as u32);
        self.reply(unique, 0, &body[..body_length])
    }

    fn answer(&mut self, header: &Header, operation: &Operation<'_>) {
        let (unique, mut body) = (header.unique, [0; 256]);
        let done = match operation {
            Operation::Forget { .. } | Operation::BatchForget(_) => Ok(()),
            Operation::Lookup { name } if name.len() == 2 && name[0] == b'f' => {
                let node = 2 + u64::from(name[1] - b'0');
                let length = reply::entry(&mut body, node, &attributes(node));
                self.reply(unique, 0, &body[..length])
            }
            Operation::GetAttributes => {
                let length = reply::attribute_reply(&mut body, &attributes(header.node));
                self.reply(unique, 0, &body[..length])
            }
            Operation::Read { offset, size, .. } => self.read(unique, *offset, *size as usize),
            Operation::Write { offset, data, .. } => {
                if self.way == Way::File {
                    self.file.write_all_at(data, offset % CYCLE).expect("memory");
                }
                self.written(unique, data.len())
            }
            _ => self.reply(unique, libc::ENOSYS, &[]),
        };
        // A caller that took its request back gets no answer.
        done.unwrap_or_else(|error| assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "{error}"));
    }

    fn reply(&self, unique: u64, errno: i32, body: &[u8]) -> io::Result<()> {
        let header = reply::header(body.len(), errno, unique);
        let parts = [&header[..], body].map(vector);
        // SAFETY: the kernel reads the parts, which live for the length of the call.
        check(unsafe { libc::writev(self.device, parts.as_ptr(), 2) }).map(drop)
    }

    fn read(&mut self, unique: u64, offset: u64, size: usize) -> io::Result<()> {
        let [end, start] = self.pipe.each_ref().map(AsRawFd::as_raw_fd);
        let (header, place) = (reply::header(size, 0, unique), offset % CYCLE);
        match self.way {
            Way::Plain => return self.reply(unique, 0, &self.memory[..size]),
            Way::File => {
                self.file.read_exact_at(&mut self.memory[..size], place)?;
                return self.reply(unique, 0, &self.memory[..size]);
            }
            Way::Splice => {
                let parts = [&header[..], &self.memory[..size]].map(vector);
                // SAFETY: the parts live until the device has taken them, below.
                let given = check(unsafe { libc::vmsplice(start, parts.as_ptr(), 2, 0) })?;
                assert_eq!(given, header.len() + size, "the pipe has room");
            }
            Way::FileSplice => {
                // SAFETY: the kernel reads the header.
                check(unsafe { libc::write(start, header.as_ptr().cast(), header.len()) })?;
                let (mut place, mut rest) = (place as i64, size);
                while rest > 0 {
                    rest -= splice(self.file.as_raw_fd(), Some(&mut place), start, rest)?;
                }
            }
        }
        splice(end, None, self.device, header.len() + size).map(drop)
    }
}

fn attributes(node: u64) -> Attributes {
    let zero = Moment { seconds: 0, nanoseconds: 0 };
    Attributes {
        ino: node,
        size: if node == 1 { 0 } else { LENGTH },
        blocks: 0,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: zero,
        generation: 0,
        mode: if node == 1 { libc::S_IFDIR | 0o755 } else { libc::S_IFREG | 0o644 },
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        block_size: 4096,
        follow: false,
    }
}

/// Mounts and answers INIT.
fn mount(path: &CStr) -> (OwnedFd, Dialect) {
    // SAFETY: all strings end with a zero, and a descriptor that is new belongs to no other.
    let device = unsafe {
        let device = libc::open(c"/dev/fuse".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        check(device as isize).expect("/dev/fuse");
        let options = CString::new(format!("fd={device},rootmode=40000,user_id=0,group_id=0"));
        let options = options.expect("no zero");
        let (source, kind) = (c"splice".as_ptr(), c"fuse".as_ptr());
        let mounted = libc::mount(source, path.as_ptr(), kind, 0, options.as_ptr().cast());
        check(mounted as isize).expect("root mounts");
        OwnedFd::from_raw_fd(device)
    };
    let mut message = vec![0; MAX + 4096];
    let length = read(device.as_raw_fd(), &mut message).expect("INIT comes");
    let Ok((header, Operation::Init(request))) = decode(&message[..length], &Dialect::default()) else {
        panic!("the first request is INIT")
    };
    let bits = flags::init::MAX_PAGES | flags::init::BIG_WRITES | flags::init::ASYNC_READ;
    let wanted = init::InitParameters {
        flags: bits | flags::init::INIT_EXT | flags::init::NO_OPEN_SUPPORT,
        max_readahead: MAX as u32,
        max_write: MAX as u32,
        max_background: 64,
    };
    let (dialect, body) = init::negotiate(&request, &wanted).expect("a kernel that is new enough");
    let answer = [&reply::header(body.len(), 0, header.unique)[..], &body].concat();
    // SAFETY: the kernel reads the answer.
    check(unsafe { libc::write(device.as_raw_fd(), answer.as_ptr().cast(), answer.len()) })
        .expect("answered");
    (device, dialect)
}

/// Another descriptor of the connection, with a queue of its own.
fn clone_of(device: &OwnedFd) -> OwnedFd {
    let mut source = device.as_raw_fd() as u32;
    // SAFETY: the string ends with a zero, the ioctl reads a number, and the descriptor is new.
    unsafe {
        let clone = libc::open(c"/dev/fuse".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        check(clone as isize).expect("/dev/fuse");
        check(libc::ioctl(clone, IOC_CLONE, &raw mut source) as isize).expect("a clone");
        OwnedFd::from_raw_fd(clone)
    }
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn vector(part: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() }
}

fn read(from: RawFd, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: there is so much room.
    check(unsafe { libc::read(from, into.as_mut_ptr().cast(), into.len()) })
}

fn read_exact(from: RawFd, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        let length = read(from, into)?;
        into = &mut into[length..];
    }
    Ok(())
}

/// Moves bytes, from an offset if there is one, which is moved along.
fn splice(from: RawFd, offset: Option<&mut i64>, to: RawFd, length: usize) -> io::Result<usize> {
    let offset = offset.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let nowhere = std::ptr::null_mut();
    // SAFETY: the offset is null or lives for the length of the call.
    check(unsafe { libc::splice(from, offset, to, nowhere, length, libc::SPLICE_F_MOVE) })
}

fn splice_to(from: RawFd, to: RawFd, offset: &mut i64, length: usize) -> io::Result<usize> {
    // SAFETY: the offset lives for the length of the call.
    check(unsafe { libc::splice(from, std::ptr::null_mut(), to, offset, length, libc::SPLICE_F_MOVE) })
}
