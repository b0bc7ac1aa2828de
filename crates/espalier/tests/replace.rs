//! A mount whose server is replaced while programs use it.

mod common;

use common::{Place, espalier, make_tree, run};
use rustix::fs::FlockOperation;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const CLASSIC: [&str; 2] = ["-o", "transport=classic"];
const RINGS: [&str; 2] = ["-o", "transport=io_uring"];

/// Replaces the server of a place.
fn replace(place: &Place) -> common::Ran {
    espalier(&["mount".as_ref(), "--replace".as_ref(), place.dir.as_os_str()])
}

/// Replaces it, which must give another process.
#[track_caller]
fn replaced(place: &Place) {
    let before = place.server();
    replace(place).ok();
    assert_ne!(place.server(), before);
    while Path::new(&format!("/proc/{before}")).exists() {
        std::thread::yield_now();
    }
}

/// What is in use while the server is replaced, and must go on.
struct InUse {
    nameless: File,
    made_nameless: File,
    locked: File,
    listed: rustix::fs::Dir,
    seen: Vec<Vec<u8>>,
    removed: File,
    snapshot: File,
    mapped: *mut u8,
    mapped_file: File,
    round: u8,
}

const LISTED_FILES: usize = 3000;
const PAGE: usize = 4096;

impl InUse {
    fn begin(dir: &Path) -> Self {
        let file = |name: &str| {
            let options = fs::OpenOptions::new().read(true).write(true).create(true).to_owned();
            options.open(dir.join(name)).unwrap()
        };
        let nameless = file("nameless");
        nameless.write_all_at(&[0; 300], 0).unwrap();
        fs::remove_file(dir.join("nameless")).unwrap();
        let flags = rustix::fs::OFlags::TMPFILE.bits() as i32;
        let made_nameless =
            fs::OpenOptions::new().read(true).write(true).custom_flags(flags).open(dir).unwrap();
        made_nameless.write_all_at(b"made without a name", 0).unwrap();
        let locked = file("locked");
        rustix::fs::flock(&locked, FlockOperation::LockExclusive).unwrap();
        rustix::fs::fcntl_lock(&locked, FlockOperation::LockExclusive).unwrap();
        let many = dir.join("many");
        fs::create_dir(&many).unwrap();
        for number in 0..LISTED_FILES {
            fs::write(many.join(format!("{number}-{}", "x".repeat(100))), "").unwrap();
        }
        let listed = rustix::fs::Dir::new(File::open(&many).unwrap()).unwrap();
        fs::create_dir(dir.join("removed")).unwrap();
        let removed = File::open(dir.join("removed")).unwrap();
        fs::remove_dir(dir.join("removed")).unwrap();
        fs::write(dir.join("first"), "one").unwrap();
        fs::hard_link(dir.join("first"), dir.join("second")).unwrap();
        espalier(&["snapshot".as_ref(), "create".as_ref(), dir.as_os_str(), "before".as_ref()]).ok();
        let snapshot = File::open(dir.join(".snapshots/before/first")).unwrap();
        fs::write(dir.join("first"), "two").unwrap();
        let mapped_file = file("mapped");
        mapped_file.set_len(8 * PAGE as u64).unwrap();
        let (protection, shared) =
            (rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE, rustix::mm::MapFlags::SHARED);
        // SAFETY: the mapping is new, and nothing else refers to it.
        let mapped = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), 8 * PAGE, protection, shared, &mapped_file, 0).unwrap()
        };
        let (mapped, seen) = (mapped.cast(), Vec::new());
        Self {
            nameless,
            made_nameless,
            locked,
            listed,
            seen,
            removed,
            snapshot,
            mapped,
            mapped_file,
            round: 0,
        }
    }

    /// Uses everything once more.
    fn go_on(&mut self, dir: &Path) {
        self.round += 1;
        let at = usize::from(self.round);
        let mut content = [0; 300];
        self.nameless.read_exact_at(&mut content, 0).unwrap();
        assert!(
            content
                .iter()
                .enumerate()
                .all(|(i, byte)| usize::from(*byte) == if i < at - 1 { i + 1 } else { 0 })
        );
        self.nameless.write_all_at(&[self.round], at as u64 - 1).unwrap();
        let attributes = self.nameless.metadata().unwrap();
        assert_eq!((attributes.nlink(), attributes.len()), (0, 300));

        let other = File::open(dir.join("locked")).unwrap();
        let taken = rustix::fs::flock(&other, FlockOperation::NonBlockingLockShared);
        assert_eq!(taken, Err(rustix::io::Errno::WOULDBLOCK));
        self.locked.write_all_at(&[self.round], 0).unwrap();

        self.list(LISTED_FILES / 20);
        let removed = self.removed.metadata().unwrap();
        assert!(removed.is_dir() && removed.nlink() < 2, "{removed:?}");
        let (mut old, mut new) = (String::new(), String::new());
        (&self.snapshot).seek(SeekFrom::Start(0)).unwrap();
        (&self.snapshot).read_to_string(&mut old).unwrap();
        File::open(dir.join("second")).unwrap().read_to_string(&mut new).unwrap();
        assert_eq!((old.as_str(), new.as_str()), ("one", "two"));
        assert_eq!(fs::read(dir.join(".snapshots/before/second")).unwrap(), b"one");

        // SAFETY: the mapping has so many bytes and lives on; this thread alone uses it.
        unsafe { *self.mapped.add(at * 100) = self.round };
        if self.round.is_multiple_of(2) {
            self.mapped_file.sync_all().unwrap();
        }
        let mut byte = [0];
        self.mapped_file.read_exact_at(&mut byte, at as u64 * 100).unwrap();
        assert_eq!(byte[0], self.round);
    }

    fn list(&mut self, count: usize) {
        for entry in self.listed.by_ref().take(count) {
            self.seen.push(entry.unwrap().file_name().to_bytes().to_vec());
        }
    }

    fn end(mut self, dir: &Path) {
        self.list(usize::MAX);
        let unique: std::collections::BTreeSet<_> = self.seen.iter().collect();
        assert_eq!((self.seen.len(), unique.len()), (LISTED_FILES + 2, LISTED_FILES + 2));
        let path = format!("/proc/self/fd/{}", self.made_nameless.as_raw_fd());
        rustix::fs::linkat(
            rustix::fs::CWD,
            path,
            rustix::fs::CWD,
            dir.join("named"),
            rustix::fs::AtFlags::SYMLINK_FOLLOW,
        )
        .unwrap();
        assert_eq!(fs::read(dir.join("named")).unwrap(), b"made without a name");
        // SAFETY: nothing uses the mapping any more.
        unsafe { rustix::mm::munmap(self.mapped.cast(), 8 * PAGE).unwrap() };
        let mapped = fs::read(dir.join("mapped")).unwrap();
        assert!((1..=self.round).all(|round| mapped[usize::from(round) * 100] == round));
    }
}

/// Writes, reads, renames and removes files until it is told to stop; the longest time that one
/// took.
fn work(dir: &Path, stop: &AtomicBool) -> Duration {
    let (mut done, mut longest) = (0, Duration::ZERO);
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let (path, other) = (dir.join(format!("w{done}")), dir.join(format!("x{done}")));
        let content = vec![done as u8; (done as usize * 37) % 9000];
        fs::write(&path, &content).unwrap();
        assert_eq!(fs::read(&path).unwrap(), content);
        fs::rename(&path, &other).unwrap();
        if done % 10 == 0 {
            File::open(&other).unwrap().sync_all().unwrap();
        }
        if let Some(old) = u32::checked_sub(done, 20) {
            assert_eq!(
                fs::read(dir.join(format!("x{old}"))).unwrap(),
                vec![old as u8; (old as usize * 37) % 9000]
            );
            fs::remove_file(dir.join(format!("x{old}"))).unwrap();
        }
        done += 1;
        longest = longest.max(begun.elapsed());
    }
    longest
}

/// Tells programs to stop, also when it is dropped by a panic.
struct Stops<'a>(&'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn programs_go_on(options: &[&str], times: usize) {
    let place = Place::with_image("512M");
    place.mount(options).ok();
    let dir = place.dir.as_path();
    for name in ["a", "b"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    make_tree(&dir.join("tree"), 7, 150);
    let stop = AtomicBool::new(false);
    let mut in_use = InUse::begin(dir);
    let before = fs::metadata(dir.join("second")).unwrap();
    std::thread::scope(|scope| {
        // A failure here ends the programs, too, or it would never be told.
        let _stops = Stops(&stop);
        let workers = ["a", "b"].map(|name| {
            let (path, stop) = (dir.join(name), &stop);
            scope.spawn(move || work(&path, stop))
        });
        let packer = scope.spawn(|| {
            for round in 0.. {
                let script = format!(
                    "mkdir t{round} && tar -cf - tree | tar -xf - -C t{round} && rm -rf t{}",
                    round - 1
                );
                run(Command::new("sh").args(["-ec", &script]).current_dir(dir));
                if stop.load(Ordering::Relaxed) {
                    return round;
                }
            }
            unreachable!()
        });
        for _ in 0..times {
            in_use.go_on(dir);
            replaced(&place);
        }
        in_use.go_on(dir);
        stop.store(true, Ordering::Relaxed);
        let longest = workers.into_iter().map(|worker| worker.join().unwrap()).max().unwrap_or_default();
        println!("{options:?}: the longest pause of a program that works with small files: {longest:?}");
        let last: i32 = packer.join().unwrap();
        common::assert_same_tree(&dir.join("tree"), &dir.join(format!("t{last}/tree")));
    });
    let after = fs::metadata(dir.join("second")).unwrap();
    assert_eq!((before.ino(), before.ctime_nsec()), (after.ino(), after.ctime_nsec()));
    in_use.end(dir);
    place.umount().ok();
    place.fsck().ok();
}

#[test]
fn programs_go_on_while_the_server_is_replaced_ten_times() {
    programs_go_on(&CLASSIC, 10);
}

#[test]
fn the_same_over_io_uring() {
    programs_go_on(&RINGS, 10);
}

#[test]
fn the_same_where_the_kernel_keeps_written_data() {
    programs_go_on(&["-o", "transport=classic,writeback,handles"], 3);
    programs_go_on(&["-o", "transport=io_uring,writeback,handles"], 3);
}

/// The other end of a handover, which goes wrong on purpose.
struct Fake(UnixStream);

impl Fake {
    /// Asks the server of a place to hand its mount over; `None` if it did not connect.
    fn ask(place: &Place, name: &str) -> Self {
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let command = format!("espalier.do.replace.{name}");
        rustix::fs::getxattr(&place.dir, command.as_str(), &mut [0; 4096][..]).unwrap();
        Self(listener.accept().unwrap().0)
    }

    /// The kind of the next message, which must come.
    fn next(&mut self) -> u8 {
        let mut front = [0; 8];
        self.0.read_exact(&mut front).unwrap();
        let length = u32::from_le_bytes(front[4..].try_into().unwrap());
        self.0.read_exact(&mut vec![0; length as usize]).unwrap();
        front[0]
    }

    fn send(&mut self, kind: u8, bytes: &[u8]) {
        self.0
            .write_all(&[&[kind, 0, 0, 0], &(bytes.len() as u32).to_le_bytes()[..], bytes].concat())
            .unwrap();
    }
}

/// Kinds of messages; see `mount/channel.rs`.
const OFFER: u8 = 1;
const ACCEPT: u8 = 2;
const STATE: u8 = 3;
const READY: u8 = 4;
const GO: u8 = 5;
const FAILED: u8 = 7;

#[test]
fn a_handover_that_fails_leaves_the_server_as_it_was() {
    [CLASSIC, RINGS].iter().for_each(fails_at_each_message);
}

fn fails_at_each_message(transport: &[&str; 2]) {
    let place = Place::with_image("256M");
    place.mount(transport).ok();
    let server = place.server();
    let mut in_use = InUse::begin(&place.dir);
    // How far the other server comes, and what it says then, before it ends.
    let steps: [(&[u8], Option<u8>); 7] = [
        (&[], None),
        (&[OFFER], None),
        (&[OFFER], Some(FAILED)),
        (&[OFFER, STATE], None),
        (&[OFFER, STATE], Some(FAILED)),
        (&[OFFER, STATE], Some(GO)),
        (&[OFFER, STATE, GO], None),
    ];
    for (number, (heard, said)) in steps.into_iter().enumerate() {
        let mut fake =
            Fake::ask(&place, &format!("espalier-test-{}-{number}-{}", std::process::id(), transport[1]));
        for kind in heard {
            assert_eq!(fake.next(), *kind);
            match *kind {
                OFFER if heard.len() > 1 => fake.send(ACCEPT, b""),
                STATE if heard.len() > 2 => fake.send(READY, b""),
                _ => {}
            }
        }
        if let Some(said) = said {
            fake.send(said, b"this one is not able to");
        }
        drop(fake);
        in_use.go_on(&place.dir);
        fs::write(place.dir.join(format!("f{number}")), [number as u8]).unwrap();
        assert_eq!(place.server(), server, "step {number}");
    }
    replaced(&place);
    in_use.go_on(&place.dir);
    in_use.end(&place.dir);
    for number in 0..7 {
        assert_eq!(fs::read(place.dir.join(format!("f{number}"))).unwrap(), [number as u8]);
    }
    place.umount().ok();
    place.fsck().ok();
}

#[test]
fn what_cannot_be_replaced_says_why() {
    let place = Place::mounted("64M");
    espalier(&["mount", "--replace", "/proc"].map(OsStr::new)).refused(1, &["no Espalier file system"]);
    let with_options =
        ["mount".as_ref(), "--replace".as_ref(), "-o".as_ref(), "ro".as_ref(), place.dir.as_os_str()];
    espalier(&with_options).refused(1, &["no options"]);
    place.umount().ok();
}

#[test]
fn metrics_stay_where_they_were() {
    ["classic", "io_uring"].iter().for_each(|transport| metrics_stay(transport));
}

fn metrics_stay(transport: &str) {
    let place = Place::with_image("64M");
    let socket = place.path("metrics");
    place.mount(&["-o", &format!("transport={transport},metrics=unix:{}", socket.display())]).ok();
    let ask = || {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(ask().starts_with("HTTP/1.1 200"));
    replaced(&place);
    replaced(&place);
    assert!(ask().starts_with("HTTP/1.1 200"));
    place.umount().ok();
    assert!(!socket.exists());
}

#[test]
fn limits_and_the_level_of_the_log_stay() {
    let place = Place::with_image("64M");
    let script = "ulimit -n 3210; echo 321 >/proc/self/oom_score_adj; exec \"$0\" -v mount \"$1\" \"$2\"";
    let program = env!("CARGO_BIN_EXE_espalier");
    run(Command::new("sh").args(["-ec", script, program]).args([&place.image, &place.dir]));
    // Twice: the second server hands on what it was given.
    replaced(&place);
    replaced(&place);
    let of_server = |file: &str| fs::read_to_string(format!("/proc/{}/{file}", place.server())).unwrap();
    assert_eq!(of_server("oom_score_adj"), "321\n");
    let limits = of_server("limits");
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().nth(3), Some("3210"), "{files}");
    let info = espalier(&["info".as_ref(), "--json".as_ref(), place.dir.as_os_str()]).ok();
    assert!(info.contains("loglevel=info"), "{info}");
    place.umount().ok();
}

/// A server that runs as a service of systemd.
fn service(place: &Place, told: &Path, transport: &[&str; 2]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.args(["mount", "--foreground"]).args(transport).arg(&place.image).arg(&place.dir);
    command.env("NOTIFY_SOCKET", told).env_remove("WATCHDOG_PID").env_remove("WATCHDOG_USEC");
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

#[test]
fn systemd_hears_which_process_the_service_is() {
    [CLASSIC, RINGS].iter().for_each(hears_of_the_new_process);
}

fn hears_of_the_new_process(transport: &[&str; 2]) {
    let place = Place::with_image("64M");
    let path = place.path("notify");
    let told = UnixDatagram::bind(&path).unwrap();
    told.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let hears = |what: &str| {
        let mut message = [0; 1024];
        loop {
            let length = told.recv(&mut message).expect("the server tells something");
            if String::from_utf8_lossy(&message[..length]).contains(what) {
                return;
            }
        }
    };
    let mut first = service(&place, &path, transport);
    hears("READY=1");
    replace(&place).ok();
    hears(&format!("MAINPID={}", place.server()));
    assert!(first.wait().unwrap().success());
    fs::write(place.dir.join("f"), "x").unwrap();
    place.umount().ok();
    hears("STOPPING=1");
    place.fsck().ok();
}

#[test]
fn an_ordinary_user_replaces_the_server_of_an_own_mount_only() {
    let place = Place::new();
    fs::write(&place.image, "").unwrap();
    let opened = common::open_way_to(&place);
    run(Command::new("chown").arg("nobody").args([&place.image, &place.dir]));
    let program = place.path("espalier");
    fs::copy(env!("CARGO_BIN_EXE_espalier"), &program).unwrap();
    let as_user = |words: &[&OsStr]| -> common::Ran {
        let user = ["-u", "nobody", "--"];
        let out = Command::new("runuser").args(user).arg(&program).args(words).stdin(Stdio::null()).output();
        out.unwrap().into()
    };
    let [mount, option, classic, rings] =
        ["mount", "-o", "transport=classic", "transport=io_uring"].map(OsStr::new);
    as_user(&["mkfs".as_ref(), "--size".as_ref(), "64M".as_ref(), place.image.as_ref()]).ok();
    let auto = OsStr::new("transport=classic,auto_unmount");
    // A mount by root turns the kernel's switch on.
    let other = Place::mounted("64M");
    other.umount().ok();
    as_user(&[mount, option, rings, place.image.as_ref(), place.dir.as_ref()]).ok();
    // The kernel lets in neither this process nor what would fill the rings of its server.
    let mut other_group = Command::new("setpriv");
    other_group.args(["--reuid", "nobody", "--regid", "daemon", "--clear-groups"]).arg(&program);
    let refused = other_group.args(["mount", "--replace"]).arg(&place.dir).output().unwrap();
    common::Ran::from(refused).refused(1, &["of the group that mounted it"]);
    as_user(&[OsStr::new("umount"), place.dir.as_ref()]).ok();
    for options in [classic, auto, rings] {
        as_user(&[mount, option, options, place.image.as_ref(), place.dir.as_ref()]).ok();
        let writes = |text: &str| {
            let script = format!("echo {text} > '{0}/f' && cat '{0}/f'", place.dir.display());
            run(Command::new("runuser").args(["-u", "nobody", "--", "sh", "-c", &script]))
        };
        assert_eq!(writes("before"), "before\n");
        as_user(&[mount, OsStr::new("--replace"), place.dir.as_ref()]).ok();
        assert_eq!(writes("after"), "after\n");
        as_user(&[OsStr::new("umount"), place.dir.as_ref()]).ok();
        as_user(&[OsStr::new("fsck"), place.image.as_ref()]).ok();
    }
    place.mount(&["-o", "transport=classic,allow_other"]).ok();
    let server = place.server();
    as_user(&[mount, OsStr::new("--replace"), place.dir.as_ref()]).refused(1, &["only root"]);
    assert_eq!(place.server(), server);
    place.umount().ok();
    common::close_way(opened);
}

#[test]
fn a_mount_for_reading_only_goes_on() {
    ["ro,transport=classic", "ro,transport=io_uring"].iter().for_each(|options| read_only(options));
}

fn read_only(options: &str) {
    let place = Place::mounted("64M");
    fs::write(place.dir.join("f"), "text").unwrap();
    place.umount().ok();
    place.mount(&["-o", options]).ok();
    let mut open = File::open(place.dir.join("f")).unwrap();
    replaced(&place);
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "text");
    drop(open);
    assert!(fs::write(place.dir.join("g"), "x").is_err());
    place.umount().ok();
    place.fsck().ok();
}
