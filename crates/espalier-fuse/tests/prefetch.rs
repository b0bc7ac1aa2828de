//! Files are given to the kernel before it asks for them: every reader reads what is there, and
//! nothing that is written is lost. These tests need root and FUSE, and fail without.

mod common;

use common::store::{Image, Mounted, run, serve_if_asked};
use common::{cpus, kinds};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

const PAGE: usize = 4096;

/// The files of a directory.
#[derive(Clone, Copy)]
struct Set {
    count: usize,
    /// The shortest one, and how many lengths there are.
    least: usize,
    lengths: usize,
    /// A number for each, which goes through the lengths.
    stride: usize,
}

/// Of up to five pages, the last of them in part: given whole.
const SMALL: Set = Set { count: 200, least: 1, lengths: 5 * PAGE, stride: 7919 };
/// Given in up to four pieces to a reader that reads them to their ends.
const LARGE: Set = Set { count: 30, least: 300 << 10, lengths: 3 << 20, stride: 7919 * 101 };

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

impl Set {
    /// What is in a file.
    fn content(&self, number: usize) -> Vec<u8> {
        let length = self.least + number * self.stride % self.lengths;
        (0..length).map(|at| (number * 31 + at * 7 + at / PAGE) as u8).collect()
    }

    /// An image with files in `directories`, which no program has looked at yet.
    fn image(&self, directories: &[&str]) -> Image {
        let image = Image::new(512 << 20);
        let mounted = image.mount(kinds()[0], "");
        for directory in directories {
            let directory = mounted.path().join(directory);
            fs::create_dir(&directory).unwrap();
            for number in 0..self.count {
                let path = path(&directory, number);
                fs::write(&path, self.content(number)).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
            }
        }
        mounted.end();
        image
    }

    fn read_in_order(&self, directory: &Path) {
        for number in list(directory) {
            assert!(fs::read(path(directory, number)).unwrap() == self.content(number), "file {number}");
        }
    }
}

fn path(directory: &Path, number: usize) -> PathBuf {
    directory.join(format!("{number:04}"))
}

/// The numbers of the files of a directory in the order of its listing, by which the kernel gets to
/// know them.
fn list(directory: &Path) -> Vec<usize> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_str().unwrap().parse().unwrap()).collect()
}

/// Reads the first files of a directory in order, and waits until the kernel has been given more of
/// them.
fn read_until_given(mounted: &Mounted, directory: &Path) {
    let before = mounted.count("notify_store");
    let order = list(directory);
    order[..9].iter().for_each(|number| drop(fs::read(path(directory, *number)).unwrap()));
    while mounted.count("notify_store") == before {
        std::thread::yield_now();
    }
}

/// With one processor there is no other that has time for it.
fn is_done() -> bool {
    cpus() > 1
}

#[test]
fn a_reader_in_order_finds_the_content() {
    let image = SMALL.image(&["a", "b", "c"]);
    for kind in kinds() {
        let mounted = image.mount(kind, "");
        if is_done() {
            read_until_given(&mounted, &mounted.path().join("a"));
        }
        for directory in ["a", "b", "c"] {
            SMALL.read_in_order(&mounted.path().join(directory));
        }
        if is_done() {
            let (given, read) = (mounted.count("notify_store"), mounted.count("read"));
            assert!(read < 3 * SMALL.count as u64 + 20, "{read} READs, {given} files given");
        }
        mounted.end();
    }
}

#[test]
fn a_reader_of_whole_large_files_finds_the_content() {
    let image = LARGE.image(&["a", "b", "c"]);
    for kind in kinds() {
        let mounted = image.mount(kind, "");
        if is_done() {
            read_until_given(&mounted, &mounted.path().join("a"));
        }
        for directory in ["a", "b", "c"] {
            LARGE.read_in_order(&mounted.path().join(directory));
        }
        mounted.end();
    }
}

#[test]
fn a_reader_that_leaves_large_files_before_their_ends_gets_no_prefetch() {
    let image = LARGE.image(&["a"]);
    for kind in kinds() {
        let mounted = image.mount(kind, "");
        let directory = mounted.path().join("a");
        for number in list(&directory) {
            let mut first = [0; PAGE];
            File::open(path(&directory, number)).unwrap().read_exact(&mut first).unwrap();
            assert!(LARGE.content(number).starts_with(&first), "file {number}");
        }
        assert_eq!(mounted.count("notify_store"), 0);
        mounted.end();
    }
}

#[test]
fn nothing_is_given_where_the_kernel_would_not_ask() {
    let image = SMALL.image(&["a"]);
    for kind in kinds() {
        for option in ["noxattr", "writeback", "noprefetch", "threads=1"] {
            let mounted = image.mount(kind, option);
            SMALL.read_in_order(&mounted.path().join("a"));
            if option != "noxattr" {
                assert_eq!(mounted.count("notify_store"), 0, "{option}");
            }
            mounted.end();
        }
    }
}

/// What the whole of it relies on: that every kind of write asks first. If one
/// did not, nothing more would be given.
#[test]
fn this_kernel_asks_before_it_writes() {
    let image = SMALL.image(&["a", "b"]);
    for kind in kinds() {
        let mounted = image.mount(kind, "");
        let directory = mounted.path().join("a");
        let order = list(&directory);
        let open = |at: usize, flags: i32| {
            let mut options = File::options();
            options.read(true).write(true).custom_flags(flags).open(path(&directory, order[at])).unwrap()
        };
        open(0, 0).write_all_at(b"write", 3).unwrap();
        open(1, libc::O_APPEND).write_all_at(b"append", 0).unwrap();
        open(2, libc::O_SYNC).write_all_at(b"synchronous", 0).unwrap();
        let aligned = Mapped::anonymous();
        open(3, libc::O_DIRECT).write_all_at(aligned.bytes(), 0).unwrap();
        assert!(open(4, 0).set_len(1).is_ok());
        let from = fs::read(path(&directory, order[5])).unwrap();
        let (source, target) = (File::open(path(&directory, order[5])).unwrap(), open(6, 0));
        std::io::copy(&mut &source, &mut &target).unwrap();
        drop((source, target));
        assert!(fs::read(path(&directory, order[6])).unwrap().starts_with(&from));
        // An ordinary user.
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo more >> \"$0\""]).arg(path(&directory, order[7])).uid(65534).gid(65534);
        assert!(run(&mut shell));
        if is_done() {
            read_until_given(&mounted, &mounted.path().join("b"));
        }
        mounted.end();
    }
}

/// A mapping, of a file or of nothing.
struct Mapped(*mut std::ffi::c_void, usize);

impl Mapped {
    fn of(file: &File, length: usize) -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the place, so nothing of ours lies there.
        let at = unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, 0) };
        Self(at.unwrap(), length)
    }

    fn anonymous() -> Self {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as above.
        let at = unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), PAGE, access, MapFlags::PRIVATE) };
        Self(at.unwrap(), PAGE)
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, and not changed while it is borrowed.
        unsafe { std::slice::from_raw_parts(self.0.cast(), self.1) }
    }

    fn put(&self, at: usize, byte: u8) {
        assert!(at < self.1);
        // SAFETY: mapped, and within the file; others read it meanwhile, through other means.
        unsafe { self.0.byte_add(at).cast::<u8>().write_volatile(byte) }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it is not in use any more.
        unsafe { munmap(self.0, self.1) }.unwrap();
    }
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Changes a file in one of many ways, in the kernel's eyes and in `content`.
fn change(path: &Path, content: &mut Vec<u8>, other: (&Path, &[u8]), random: &mut Random) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let at = random.below(content.len());
    match random.below(7) {
        0 => {
            file.write_all_at(&[0xAB; 100], at as u64).unwrap();
            content.resize(content.len().max(at + 100), 0);
            content[at..at + 100].fill(0xAB);
        }
        1 => {
            let mapped = Mapped::of(&file, content.len());
            mapped.put(at, 0xCD);
            content[at] = 0xCD;
        }
        2 => {
            // Every page, as fast as it goes.
            let mapped = Mapped::of(&file, content.len());
            for at in (0..content.len()).step_by(PAGE).rev() {
                mapped.put(at, 0xEF);
                content[at] = 0xEF;
            }
        }
        3 => {
            file.set_len(at as u64 + 1).unwrap();
            content.truncate(at + 1);
            file.set_len(at as u64 + PAGE as u64).unwrap();
            content.resize(at + PAGE, 0);
        }
        4 => {
            let (mode, length) =
                (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, PAGE as libc::off_t);
            // SAFETY: a system call on a descriptor that is open.
            let done = unsafe { libc::fallocate(file.as_raw_fd(), mode, at as libc::off_t, length) };
            assert_eq!(done, 0);
            let end = content.len().min(at + PAGE);
            content[at..end].fill(0);
        }
        5 => {
            let source = File::open(other.0).unwrap();
            let copied = rustix::fs::copy_file_range(&source, None, &file, None, other.1.len()).unwrap();
            assert_eq!(copied, other.1.len());
            content.resize(content.len().max(copied), 0);
            content[..copied].copy_from_slice(other.1);
        }
        _ => {
            let direct =
                File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
            let aligned = Mapped::anonymous();
            direct.write_all_at(aligned.bytes(), 0).unwrap();
            content.resize(content.len().max(PAGE), 0);
            content[..PAGE].fill(0);
        }
    }
}

/// One goes through the files in order, so that more and more of them are given to the kernel;
/// others change them just before and while the reader comes by, in all ways, and see what they
/// have done, then and later.
fn changes(set: Set, rounds: u64) {
    let seed = std::env::var("ESPALIER_SEED").map_or(1, |seed| seed.parse().unwrap());
    let rounds = std::env::var("ESPALIER_ROUNDS").map_or(rounds, |rounds| rounds.parse().unwrap());
    let (same, mut given) = (set.content(0), 0);
    for round in 0..rounds {
        let image = set.image(&["a", "other"]);
        let mut contents: Vec<_> = (0..set.count).map(|number| set.content(number)).collect();
        let kinds = kinds();
        let mounted = image.mount(kinds[round as usize % kinds.len()], "");
        let directory = mounted.path().join("a");
        let other = path(&mounted.path().join("other"), 0);
        let order = list(&directory);
        let mut random = Random(seed + round);
        println!("seed {} (ESPALIER_SEED, ESPALIER_ROUNDS=1)", seed + round);
        let (done, at) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
        std::thread::scope(|scope| {
            let (done, at, order, directory) = (&done, &at, &order, &directory);
            scope.spawn(move || {
                for (place, number) in order.iter().enumerate() {
                    at.store(place, Ordering::SeqCst);
                    let mut read = Vec::new();
                    File::open(path(directory, *number)).unwrap().read_to_end(&mut read).unwrap();
                }
                done.store(true, Ordering::SeqCst);
            });
            while !done.load(Ordering::SeqCst) {
                // Mostly before the reader, where files are being given.
                let ahead = at.load(Ordering::SeqCst) + random.below(12);
                let number = order[ahead.min(set.count - 1)];
                let (file, content) = (path(directory, number), &mut contents[number]);
                change(&file, content, (&other, &same), &mut random);
                assert!(fs::read(&file).unwrap() == *content, "file {number}");
            }
        });
        for (number, content) in contents.iter().enumerate() {
            assert!(fs::read(path(&directory, number)).unwrap() == *content, "file {number}, later");
        }
        given += mounted.count("notify_store");
        mounted.end();
        let mounted = image.mount(kinds[0], "");
        let directory = mounted.path().join("a");
        for number in list(&directory) {
            let read = fs::read(path(&directory, number)).unwrap();
            assert!(read == contents[number], "file {number}, mounted again");
        }
        mounted.end();
    }
    println!("{given} files given");
    assert!(given > 0 || !is_done(), "no file was given while others were changed");
}

#[test]
fn changes_of_files_that_are_being_prefetched_are_kept() {
    changes(SMALL, 12);
}

#[test]
fn changes_of_large_files_that_are_being_prefetched_are_kept() {
    changes(LARGE, 8);
}
