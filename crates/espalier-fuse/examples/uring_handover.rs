//! Can another process go on with a FUSE connection over io_uring? Asks the kernel, step by step,
//! and prints what it does: `cargo run -p espalier-fuse --example uring_handover`, as root, where
//! `/sys/module/fuse/parameters/enable_uring` says `Y`. docs/design/handover.md has the answers.
//!
//! Two servers are children of this process, which holds the descriptor of the connection: `old`
//! and `new`. Each has one ring with an entry in every queue, and answers STATFS and GETATTR of the
//! root. Two clients call statfs(2) from the first CPU.

use espalier_fuse::protocol::{Dialect, Operation, decode, flags, init};
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Numbers of commands for entries of `old` begin here.
const OF_OLD: u64 = 100;
const HEADERS: usize = 4096;
const PAYLOAD: usize = 8192;

/// What the processes tell each other; in shared memory.
#[derive(Default)]
struct Shared {
    /// 1: `old` keeps its next request without an answer.
    keep: AtomicU64,
    /// The commit id of that request, and its queue + 1.
    kept: [AtomicU64; 2],
    /// Requests answered by `old` and by `new`, and calls of the clients that have ended.
    answered: [AtomicU64; 2],
    called: [AtomicU64; 2],
    /// 1: `new` is to answer the request that `old` keeps; 2: it has, 3: the kernel refused.
    adopt: AtomicU64,
}

type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// A server: its ring, and for each queue headers and payload; for `new` also those of `old`, at
/// the same addresses as there.
struct Server {
    ring: Ring,
    buffers: Vec<*mut u8>,
    of_old: Vec<*mut u8>,
    number: usize,
}

fn main() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = std::ffi::CString::new(directory.path().to_str().expect("text")).expect("no zero");
    let device = mount(&path);
    let shared: &'static Shared = shared();
    let queues = std::fs::read_dir("/sys/devices/system/cpu")
        .map(|all| {
            let names = all.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
            names.filter(|name| name.strip_prefix("cpu").is_some_and(|n| n.parse::<u32>().is_ok())).count()
        })
        .expect("the list of CPUs");
    // Before the processes part, so that both have them at the same addresses.
    let buffers = || (0..queues).map(|_| memory(HEADERS + PAYLOAD, libc::MAP_PRIVATE)).collect();
    let buffers: [Vec<*mut u8>; 2] = [buffers(), buffers()];
    let serve = |number: usize| fork(|| run(device, &buffers, number, shared));

    let old = serve(0);
    let clients = [0, 1].map(|number| {
        fork(|| {
            // The connection is to end with its servers.
            // SAFETY: takes a number.
            unsafe { libc::close(device) };
            call(&path, &shared.called[number]);
        })
    });
    let progress = || {
        shared.called.iter().chain(&shared.answered).for_each(|count| count.store(0, SeqCst));
        std::thread::sleep(Duration::from_millis(1500));
        let waits = shared.called.iter().filter(|count| count.load(SeqCst) == 0).count();
        let [old, new] = [0, 1].map(|n| shared.answered[n].load(SeqCst));
        format!("{waits} of 2 clients wait; answered by old {old}, by new {new}")
    };
    println!("1. old alone:                       {}", progress());
    let new = serve(1);
    std::thread::sleep(Duration::from_millis(300));
    println!("2. new registers too:               {}", progress());
    shared.keep.store(1, SeqCst);
    // Requests go to the entry that became free last: those of `new`, until one waits there.
    stop(new, libc::SIGSTOP);
    progress();
    stop(new, libc::SIGCONT);
    let kept = shared.kept[1].load(SeqCst);
    println!("3. old keeps a request (queue {}):   {}", kept as i64 - 1, progress());
    shared.adopt.store(1, SeqCst);
    std::thread::sleep(Duration::from_millis(300));
    let adopted = ["never tried", "not tried", "taken", "refused"][shared.adopt.load(SeqCst) as usize];
    println!("4. new answers in place of old:     {adopted}; {}", progress());
    stop(old, libc::SIGKILL);
    // SAFETY: takes numbers and a null pointer.
    unsafe { libc::waitpid(old, std::ptr::null_mut(), 0) };
    println!("5. old is killed, without requests: {}", progress());
    stop(new, libc::SIGSTOP);
    std::thread::sleep(Duration::from_millis(300));
    stop(new, libc::SIGKILL);
    // SAFETY: as above.
    unsafe { libc::waitpid(new, std::ptr::null_mut(), 0) };
    let new = serve(1);
    std::thread::sleep(Duration::from_millis(300));
    println!("6. new is killed with a request, and another server registers:");
    println!("                                    {}", progress());
    clients.into_iter().for_each(|client| stop(client, libc::SIGKILL));
    stop(new, libc::SIGKILL);
    // SAFETY: the path ends with a zero.
    unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
}

/// Mounts, answers INIT, and returns the descriptor.
fn mount(path: &std::ffi::CStr) -> RawFd {
    // SAFETY: all strings end with a zero; the buffer is as long as said.
    unsafe {
        let device = libc::open(c"/dev/fuse".as_ptr(), libc::O_RDWR);
        let options = std::ffi::CString::new(format!("fd={device},rootmode=40000,user_id=0,group_id=0"));
        let options = options.expect("no zero");
        let (source, kind) = (c"uring_handover".as_ptr(), c"fuse".as_ptr());
        let mounted = libc::mount(source, path.as_ptr(), kind, 0, options.as_ptr().cast());
        assert_eq!(mounted, 0, "cannot mount: {}", io::Error::last_os_error());
        let mut message = vec![0u8; 64 << 10];
        let length = libc::read(device, message.as_mut_ptr().cast(), message.len());
        message.truncate(usize::try_from(length).expect("INIT comes"));
        let Ok((header, Operation::Init(request))) = decode(&message, &Dialect::default()) else {
            panic!("the first request is INIT")
        };
        let wanted = init::InitParameters {
            flags: flags::init::OVER_IO_URING | flags::init::INIT_EXT | flags::init::MAX_PAGES,
            max_readahead: 0,
            max_write: PAYLOAD as u32,
            max_background: 16,
        };
        let (dialect, body) = init::negotiate(&request, &wanted).expect("a kernel that is new enough");
        assert!(dialect.has(flags::init::OVER_IO_URING), "the kernel offers no io_uring");
        let reply = [&reply_header(body.len(), 0, header.unique)[..], &body].concat();
        libc::write(device, reply.as_ptr().cast(), reply.len());
        device
    }
}

fn reply_header(body: usize, error: i32, unique: u64) -> [u8; 16] {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&(16 + body as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&(-error).to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

fn memory(length: usize, sharing: libc::c_int) -> *mut u8 {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let mapped =
        unsafe { libc::mmap(std::ptr::null_mut(), length, access, sharing | libc::MAP_ANONYMOUS, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped.cast()
}

fn shared() -> &'static Shared {
    // SAFETY: zeros are a valid `Shared`, the memory is large enough and lives on.
    unsafe { &*memory(size_of::<Shared>(), libc::MAP_SHARED).cast() }
}

fn fork(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the process has one thread.
    match unsafe { libc::fork() } {
        0 => {
            body();
            std::process::exit(0)
        }
        child => child,
    }
}

fn stop(process: libc::pid_t, signal: libc::c_int) {
    // SAFETY: takes numbers.
    unsafe { libc::kill(process, signal) };
}

/// A client.
fn call(path: &std::ffi::CStr, called: &AtomicU64) {
    // SAFETY: the set is initialized, the path ends with a zero, and the kernel fills a `statfs`.
    unsafe {
        let mut first: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut first);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const first);
        loop {
            let mut out: libc::statfs = std::mem::zeroed();
            if libc::statfs(path.as_ptr(), &raw mut out) == 0 {
                called.fetch_add(1, SeqCst);
            }
        }
    }
}

fn run(device: RawFd, buffers: &[Vec<*mut u8>; 2], number: usize, shared: &Shared) {
    let ring: Ring = IoUring::builder().build(64).expect("a ring");
    ring.submitter().register_files(&[device]).expect("a file");
    let [of_old, _] = buffers.clone();
    let mut server = Server { ring, buffers: buffers[number].clone(), of_old, number };
    for queue in 0..server.buffers.len() {
        server.register(queue);
    }
    loop {
        if number == 1 && shared.adopt.load(SeqCst) == 1 {
            let [id, queue] = [0, 1].map(|n| shared.kept[n].load(SeqCst));
            if queue > 0 {
                server.answer(queue as usize - 1, id, OF_OLD + queue - 1);
            }
            shared.adopt.store(2, SeqCst);
        }
        server.wait(shared);
    }
}

impl Server {
    fn command(&self, command: u32, queue: usize, commit: u64, data: u64) -> squeue::Entry128 {
        let mut argument = [0; 80];
        argument[8..16].copy_from_slice(&commit.to_ne_bytes());
        argument[16..18].copy_from_slice(&(queue as u16).to_ne_bytes());
        opcode::UringCmd80::new(types::Fixed(0), command).cmd(argument).build().user_data(data)
    }

    fn register(&mut self, queue: usize) {
        let at = self.buffers[queue];
        let vectors = [
            libc::iovec { iov_base: at.cast(), iov_len: 288 },
            // SAFETY: the buffer has so many bytes.
            libc::iovec { iov_base: unsafe { at.add(HEADERS) }.cast(), iov_len: PAYLOAD },
        ];
        let mut command = self.command(REGISTER, queue, 0, queue as u64);
        let start = (&raw mut command).cast::<u8>();
        // SAFETY: the address and the length of an `io_uring_sqe` lie there; what they point at
        // lives until it is submitted.
        unsafe {
            start.add(16).cast::<u64>().write_unaligned(vectors.as_ptr() as u64);
            start.add(24).cast::<u32>().write_unaligned(2);
            self.ring.submission().push(&command).expect("there is room");
        }
        self.ring.submit().expect("submitted");
    }

    /// The buffers of the entry whose commands have this number.
    fn buffer(&self, data: u64) -> *mut u8 {
        let buffers = if data >= OF_OLD { &self.of_old } else { &self.buffers };
        buffers[(data % OF_OLD) as usize]
    }

    /// Answers the request with this commit id, which lies in the entry of `queue` whose commands
    /// have the number `data`.
    fn answer(&mut self, queue: usize, commit: u64, data: u64) {
        // SAFETY: the buffers are the kernel's only between a command and its completion.
        let (headers, payload) = unsafe {
            let at = self.buffer(data);
            (
                std::slice::from_raw_parts_mut(at, HEADERS),
                std::slice::from_raw_parts_mut(at.add(HEADERS), PAYLOAD),
            )
        };
        // Any numbers are an answer to STATFS; a directory is one to GETATTR. What `old` keeps is
        // not known here: it is a STATFS, as nearly all are.
        let opcode = u32::from_ne_bytes(headers[4..8].try_into().expect("four"));
        let body = if opcode == flags::opcode::GETATTR { 104 } else { 80 };
        payload[..body].fill(0);
        if opcode == flags::opcode::GETATTR {
            payload[16..24].copy_from_slice(&1u64.to_ne_bytes());
            payload[76..80].copy_from_slice(&0o40755u32.to_ne_bytes());
            payload[80..84].copy_from_slice(&2u32.to_ne_bytes());
        }
        headers[..16].copy_from_slice(&reply_header(body, 0, commit));
        headers[256..264].fill(0);
        headers[272..276].copy_from_slice(&(body as u32).to_ne_bytes());
        let command = self.command(COMMIT_AND_FETCH, queue, commit, data);
        // SAFETY: the buffers live on.
        unsafe { self.ring.submission().push(&command).expect("there is room") };
    }

    /// Waits a moment for requests, and answers them.
    fn wait(&mut self, shared: &Shared) {
        let moment = types::Timespec::new().nsec(50_000_000);
        let arguments = types::SubmitArgs::new().timespec(&moment);
        // Without a request in time it is an error.
        let _ = self.ring.submitter().submit_with_args(1, &arguments);
        let done: Vec<_> = self.ring.completion().map(|c| (c.result(), c.user_data())).collect();
        for (result, data) in done {
            if result < 0 {
                println!(
                    "   server {}: completion {data} says {}",
                    self.number,
                    io::Error::from_raw_os_error(-result)
                );
                if data >= OF_OLD {
                    shared.adopt.store(3, SeqCst);
                }
                continue;
            }
            let queue = (data % OF_OLD) as usize;
            // SAFETY: after a completion the headers are this process's.
            let commit = unsafe { self.buffer(data).add(264).cast::<u64>().read_unaligned() };
            if self.number == 0 && shared.keep.load(SeqCst) == 1 && shared.kept[1].load(SeqCst) == 0 {
                shared.kept[0].store(commit, SeqCst);
                shared.kept[1].store(queue as u64 + 1, SeqCst);
                continue;
            }
            shared.answered[self.number].fetch_add(1, SeqCst);
            self.answer(queue, commit, data);
        }
    }
}
