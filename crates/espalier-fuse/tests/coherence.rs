//! Readers, mappings and writers of a file see the same, whether writes go through the kernel's
//! pages or around them (direct I/O). These tests need root and FUSE, and fail without.

mod common;

use common::kinds;
use common::store::{Image, run, serve_if_asked};
use espalier_fuse::transport::Kind;
use io_uring::{IoUring, opcode, types};
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGE: usize = 4096;
const PAGES: usize = 8;

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

/// A mapping of the first [`PAGES`] pages of a file.
struct Mapped(*mut std::ffi::c_void);

// SAFETY: it is only read, by volatile reads.
unsafe impl Sync for Mapped {}

impl Mapped {
    fn of(file: &File) -> Self {
        let length = PAGES * PAGE;
        // SAFETY: the kernel chooses the place, so nothing of ours lies there.
        let at = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        Self(at.unwrap())
    }

    /// The number at the beginning of a page.
    fn number(&self, page: usize) -> u64 {
        assert!(page < PAGES);
        // SAFETY: the page is mapped, and the number at its beginning is aligned as the page is.
        // Others change it while it is read, of which it is seen before or after.
        unsafe { self.0.byte_add(page * PAGE).cast::<u64>().read_volatile() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: it is not read any more.
        unsafe { munmap(self.0, PAGES * PAGE) }.unwrap();
    }
}

/// Some of the numbers that grow: where they are written, and what.
struct Piece {
    page: usize,
    data: Vec<u8>,
}

/// How a file is written: through the kernel's pages, or around them.
const WAYS: [i32; 2] = [0, libc::O_DIRECT];

/// The writer, whose file is open with `flags`, writes numbers that grow by `write_all`, each page
/// by one piece at most. Others read and map the file meanwhile, so that the kernel fetches pages
/// while they are being written: no reader sees less than what had been written before it looked.
fn no_reader_sees_less(kind: Kind, flags: i32, mut write_all: impl FnMut(&File, &[Piece])) {
    let image = Image::new(64 << 20);
    let mounted = image.mount(kind, "");
    let path = mounted.path().join("f");
    let mut new = File::options();
    let writer = new.write(true).create_new(true).custom_flags(flags).open(&path).unwrap();
    writer.write_all_at(&[0; PAGES * PAGE], 0).unwrap();
    let written: [AtomicU64; PAGES] = Default::default();
    let done = AtomicBool::new(false);
    let reader = File::open(&path).unwrap();
    let mapped = Mapped::of(&reader);
    let read = |page: usize| {
        let mut number = [0; 8];
        reader.read_exact_at(&mut number, (page * PAGE) as u64).unwrap();
        u64::from_ne_bytes(number)
    };
    let look_mapped = |page: usize| mapped.number(page);
    let ways: [&(dyn Fn(usize) -> u64 + Sync); 2] = [&read, &look_mapped];
    std::thread::scope(|scope| {
        for look in ways {
            let (written, done) = (&written, &done);
            scope.spawn(move || {
                for page in (0..PAGES).cycle() {
                    let least = written[page].load(Ordering::SeqCst);
                    let seen = look(page);
                    assert!(seen >= least, "page {page}: {seen} after {least} had been written");
                    if done.load(Ordering::SeqCst) {
                        return;
                    }
                }
            });
        }
        // Readers end also if the writer panics.
        let _end = End(&done);
        let mut next = 0x2545_F491_4F6C_DD1Du64;
        for number in (1..10_000u64).step_by(3) {
            let mut pieces: Vec<Piece> = Vec::new();
            for number in number..number + 3 {
                next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let page = (next >> 33) as usize % PAGES;
                // Also what ends within a page, and what reaches into the next one.
                let length = [8, 100, PAGE, PAGE + 8][(next >> 60) as usize % 4].min((PAGES - page) * PAGE);
                let touched = |piece: &Piece| piece.page..piece.page + piece.data.len().div_ceil(PAGE);
                let mut data = vec![0; length];
                for at in (0..length).step_by(PAGE) {
                    data[at..at + 8].copy_from_slice(&number.to_ne_bytes());
                }
                let piece = Piece { page, data };
                let meets = |other: &Piece| touched(other).any(|page| touched(&piece).contains(&page));
                if !pieces.iter().any(meets) {
                    pieces.push(piece);
                }
            }
            write_all(&writer, &pieces);
            for Piece { page, data } in &pieces {
                for at in (0..data.len()).step_by(PAGE) {
                    let number = data[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
                    written[page + at / PAGE].store(number, Ordering::SeqCst);
                }
            }
        }
    });
    for (page, number) in written.iter().enumerate() {
        let number = number.load(Ordering::SeqCst);
        assert_eq!((read(page), mapped.number(page)), (number, number));
    }
    drop((mapped, reader, writer));
    mounted.end();
}

/// Says so when it goes.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn kinds_and_ways() -> impl Iterator<Item = (Kind, i32)> {
    kinds().into_iter().flat_map(|kind| WAYS.map(|way| (kind, way)))
}

#[test]
fn no_reader_sees_the_state_before_a_write_that_returned() {
    for (kind, flags) in kinds_and_ways() {
        no_reader_sees_less(kind, flags, |file, pieces| {
            for Piece { page, data } in pieces {
                file.write_all_at(data, (page * PAGE) as u64).unwrap();
            }
        });
    }
}

/// The same of a writer that lets the kernel write, and hears when it has.
#[test]
fn no_reader_sees_the_state_before_asynchronous_writes_that_completed() {
    for (kind, flags) in kinds_and_ways() {
        let mut ring = IoUring::new(8).unwrap();
        no_reader_sees_less(kind, flags, |file, pieces| {
            for (at, Piece { page, data }) in pieces.iter().enumerate() {
                let length = data.len() as u32;
                let write = opcode::Write::new(types::Fd(file.as_raw_fd()), data.as_ptr(), length)
                    .offset((page * PAGE) as u64)
                    .build()
                    .user_data(at as u64);
                // SAFETY: the data lives until all have been written, which is waited for below.
                unsafe { ring.submission().push(&write) }.unwrap();
            }
            ring.submit_and_wait(pieces.len()).unwrap();
            for completion in ring.completion() {
                let length = pieces[completion.user_data() as usize].data.len();
                assert_eq!(completion.result(), length as i32);
            }
        });
    }
}

/// What was read before stays right where it was not written, and a file that grows ends where it
/// says.
#[test]
fn a_file_that_was_read_is_seen_to_grow_and_shrink() {
    for (kind, flags) in kinds_and_ways() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "");
        let path = mounted.path().join("f");
        let mut new = File::options();
        let writer = new.write(true).create_new(true).custom_flags(flags).open(&path).unwrap();
        let mut expected = Vec::new();
        for step in 0..40usize {
            let (at, length) = (step * 3011 % 9000, step * 1733 % 7000 + 1);
            let data: Vec<u8> = (0..length).map(|n| (n * 7 + step) as u8).collect();
            writer.write_all_at(&data, at as u64).unwrap();
            expected.resize(expected.len().max(at + length), 0);
            expected[at..at + length].copy_from_slice(&data);
            if step % 7 == 6 {
                let size = expected.len() - step * 111 % 3000;
                writer.set_len(size as u64).unwrap();
                expected.truncate(size);
            }
            assert!(fs::read(&path).unwrap() == expected, "step {step}");
            assert_eq!(fs::metadata(&path).unwrap().len(), expected.len() as u64);
        }
        drop(writer);
        mounted.end();
        let mounted = image.mount(kind, "");
        assert!(fs::read(mounted.path().join("f")).unwrap() == expected);
        mounted.end();
    }
}

#[test]
fn what_is_written_synchronously_survives_the_server() {
    for kind in kinds() {
        for flags in [libc::O_DSYNC, libc::O_SYNC] {
            let image = Image::new(64 << 20);
            let mounted = image.mount(kind, "");
            let mut new = File::options();
            let file = new.write(true).create_new(true).custom_flags(flags).open(mounted.path().join("f"));
            let file = file.unwrap();
            file.write_all_at(&[7; 100_000], 0).unwrap();
            mounted.kill(|_| drop(file));
            let mounted = image.mount(kind, "");
            assert!(fs::read(mounted.path().join("f")).unwrap() == [7; 100_000]);
            mounted.end();
        }
    }
}

const CAPABILITY: &str = "security.capability";

/// CAP_NET_RAW, permitted, in the second version of the format.
fn capability() -> Vec<u8> {
    [0x0200_0000u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn writing_takes_capabilities_and_from_ordinary_users_set_id_bits() {
    for kind in kinds() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "");
        let path = mounted.path().join("f");
        let file = File::options().write(true).create_new(true).mode(0o755).open(&path).unwrap();
        file.write_all_at(b"program", 0).unwrap();
        fsetxattr(&file, CAPABILITY, &capability(), XattrFlags::empty()).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o6755)).unwrap();
        file.write_all_at(b"P", 0).unwrap();
        let left = fgetxattr(&file, CAPABILITY, &mut [0; 64]);
        assert_eq!(left, Err(rustix::io::Errno::NODATA), "capabilities go with a write by root, too");
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o6755, "set-id bits do not");
        drop(file);
        fs::set_permissions(mounted.path(), fs::Permissions::from_mode(0o777)).unwrap();
        // A shell that makes the file, and writes to it again when it has got the bits.
        let script = "exec 3> own; echo a >&3; chmod 6755 own; echo b >&3";
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", script]);
        assert!(run(command.current_dir(mounted.path())));
        let own = mounted.path().join("own");
        assert_eq!(fs::read(&own).unwrap(), b"a\nb\n");
        assert_eq!(fs::metadata(&own).unwrap().mode() & 0o7777, 0o755);
        mounted.end();
    }
}

/// A program loses the rights that it may not keep when it is written, and not those that it gets
/// afterwards: also if the kernel writes later.
#[test]
fn what_is_written_back_takes_no_capabilities() {
    for kind in kinds() {
        for options in ["writeback", ""] {
            let image = Image::new(64 << 20);
            let mounted = image.mount(kind, options);
            let path = mounted.path().join("f");
            let mut new = File::options();
            let file = new.read(true).write(true).create_new(true).mode(0o755).open(&path).unwrap();
            file.set_len(PAGE as u64).unwrap();
            // SAFETY: the kernel chooses the place, so nothing of ours lies there.
            let mapped = unsafe {
                let access = ProtFlags::READ | ProtFlags::WRITE;
                mmap(std::ptr::null_mut(), PAGE, access, MapFlags::SHARED, &file, 0).unwrap()
            };
            file.write_all_at(b"program", 0).unwrap();
            // SAFETY: the page is mapped, and no other code looks at it.
            unsafe { mapped.cast::<u8>().add(100).write_volatile(7) };
            fsetxattr(&file, CAPABILITY, &capability(), XattrFlags::empty()).unwrap();
            // SAFETY: it is not looked at any more.
            unsafe { munmap(mapped, PAGE) }.unwrap();
            drop(file);
            let file = File::open(&path).unwrap();
            file.sync_all().unwrap();
            let mut left = [0; 64];
            let length = fgetxattr(&file, CAPABILITY, &mut left).unwrap();
            assert_eq!(left[..length], capability());
            assert!(fs::read(&path).unwrap()[..101].ends_with(&[0, 7]));
            drop(file);
            mounted.end();
        }
    }
}

/// A write through a mapping is reported as failed for lack of space at the latest by close.
#[test]
fn closing_a_file_reports_what_became_of_its_mapping() {
    const LENGTH: usize = 8 << 20;
    for kind in kinds() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "");
        let mut new = File::options();
        let file = new.read(true).write(true).create_new(true).open(mounted.path().join("f")).unwrap();
        file.set_len(LENGTH as u64).unwrap();
        let mut filler = File::create(mounted.path().join("filler")).unwrap();
        // What does not fit any more in large pieces may in small ones.
        for length in [1 << 20, 1 << 16, 1 << 12] {
            while filler.write_all(&vec![7; length]).is_ok() {}
        }
        // SAFETY: the kernel chooses the place, so nothing of ours lies there; no other code looks
        // at the page, and none does after it is gone.
        unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let mapped = mmap(std::ptr::null_mut(), LENGTH, access, MapFlags::SHARED, &file, 0).unwrap();
            (0..LENGTH).step_by(8).for_each(|at| mapped.cast::<u8>().add(at).write_volatile(at as u8 | 1));
            munmap(mapped, LENGTH).unwrap();
        }
        // SAFETY: it is not in use any more.
        let closed = unsafe { libc::close(file.into_raw_fd()) };
        let error = std::io::Error::last_os_error();
        assert_eq!((closed, error.raw_os_error()), (-1, Some(libc::ENOSPC)));
        drop(filler);
        mounted.end();
    }
}

/// A name that the kernel does not know of appears while a program is about to make it.
#[test]
fn a_file_that_is_made_meanwhile_is_opened() {
    for kind in kinds() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "");
        let path = mounted.path().join("f");
        let opened = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..1500 {
                        // Without O_EXCL no call may report that it exists, though all make and
                        // remove it.
                        let file = File::options().write(true).create(true).truncate(false).open(&path);
                        file.unwrap().write_all_at(b"x", 0).unwrap();
                        opened.fetch_add(1, Ordering::Relaxed);
                        let _ = fs::remove_file(&path);
                    }
                });
            }
        });
        assert_eq!(opened.into_inner(), 4500);
        mounted.end();
    }
}

/// What is written need not lie in the writer's own memory: it may come from another file, or be
/// mapped from the file itself, whose pages the kernel has to fetch while it writes.
#[test]
fn what_comes_from_files_and_mappings_arrives() {
    for kind in kinds() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "");
        let expected: Vec<u8> = (0..PAGES * PAGE).map(|n| (n / 3) as u8).collect();
        let mut source = tempfile::tempfile().unwrap();
        source.write_all(&expected).unwrap();
        let new = |name: &str| File::create(mounted.path().join(name)).unwrap();
        let (sent, mut offset) = (new("sent"), 0);
        while offset < expected.len() as u64 {
            assert_ne!(rustix::fs::sendfile(&sent, &source, Some(&mut offset), 10_000).unwrap(), 0);
        }
        assert!(fs::read(mounted.path().join("sent")).unwrap() == expected);
        let own = new("own");
        own.write_all_at(&expected, 0).unwrap();
        let reader = File::open(mounted.path().join("own")).unwrap();
        let mapped = Mapped::of(&reader);
        // SAFETY: the file has these pages, they are mapped, and not changed while the
        // kernel reads them.
        let seen = unsafe { std::slice::from_raw_parts(mapped.0.cast::<u8>(), expected.len()) };
        own.write_all_at(seen, expected.len() as u64).unwrap();
        assert!(fs::read(mounted.path().join("own")).unwrap() == [&expected[..], &expected].concat());
        drop((mapped, reader, own, sent));
        mounted.end();
    }
}
