//! Files that are made only to be written are written around the kernel's pages: everybody sees what was written all the same.
//! These tests need root and FUSE, and fail without.

mod common;

use common::kinds;
use common::store::{Image, run, serve_if_asked};
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{self, File};
use std::io::Write;
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
        // SAFETY: the page is mapped, and the number at its beginning is aligned as the page is. Others
        // change it while it is read, of which it is seen before or after.
        unsafe { self.0.byte_add(page * PAGE).cast::<u64>().read_volatile() }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: nobody reads it any more.
        unsafe { munmap(self.0, PAGES * PAGE) }.unwrap();
    }
}

/// One writes numbers that grow, others read and map the file meanwhile, so that the kernel fetches pages while they are
/// being written around: nobody sees less than what had been written when he looked.
#[test]
fn nobody_sees_what_was_there_before_a_write_that_is_done() {
    for kind in kinds() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "");
        let path = mounted.path().join("f");
        let writer = File::options().write(true).create_new(true).open(&path).unwrap();
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
            let mut next = 0x2545_F491_4F6C_DD1Du64;
            for number in 1..10_000u64 {
                next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let page = (next >> 33) as usize % PAGES;
                // Also what ends within a page, and what reaches into the next one.
                let length = [8, 100, PAGE, PAGE + 8][(next >> 60) as usize % 4].min((PAGES - page) * PAGE);
                let mut data = vec![0; length];
                for at in (0..length).step_by(PAGE) {
                    data[at..at + 8].copy_from_slice(&number.to_ne_bytes());
                }
                let result = writer.write_all_at(&data, (page * PAGE) as u64);
                if let Err(error) = result {
                    done.store(true, Ordering::SeqCst);
                    panic!("write {number}: {error}");
                }
                (page..page + length.div_ceil(PAGE)).for_each(|p| written[p].store(number, Ordering::SeqCst));
            }
            done.store(true, Ordering::SeqCst);
        });
        for (page, number) in written.iter().enumerate() {
            let number = number.load(Ordering::SeqCst);
            assert_eq!((read(page), mapped.number(page)), (number, number));
        }
        drop((mapped, reader, writer));
        mounted.end();
    }
}

/// What was read before stays right where it was not written, and a file that grows around its pages ends where it says.
#[test]
fn who_has_read_sees_a_file_grow_and_shrink() {
    for kind in kinds() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "");
        let path = mounted.path().join("f");
        let writer = File::create(&path).unwrap();
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

#[test]
fn writing_takes_capabilities_and_from_ordinary_users_set_id_bits() {
    const CAPABILITY: &str = "security.capability";
    for kind in kinds() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "");
        let path = mounted.path().join("f");
        let file = File::options().write(true).create_new(true).mode(0o755).open(&path).unwrap();
        file.write_all_at(b"program", 0).unwrap();
        // CAP_NET_RAW, permitted, in the second version of the format.
        let value: Vec<u8> =
            [0x0200_0000u32, 1 << 13, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
        fsetxattr(&file, CAPABILITY, &value, XattrFlags::empty()).unwrap();
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

/// A name that the kernel does not know of appears while somebody is about to make it.
#[test]
fn who_makes_what_is_made_meanwhile_opens_it() {
    for kind in kinds() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "");
        let path = mounted.path().join("f");
        let opened = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..1500 {
                        // Without O_EXCL nobody may hear that it exists, though all make and remove it.
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

/// What is written need not lie in the writer's own memory: it may come from another file, or be mapped from the file itself, whose
/// pages the kernel has to fetch while it writes around them.
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
        // SAFETY: the file has these pages, they are mapped, and nobody changes them while the kernel reads them.
        let seen = unsafe { std::slice::from_raw_parts(mapped.0.cast::<u8>(), expected.len()) };
        own.write_all_at(seen, expected.len() as u64).unwrap();
        assert!(fs::read(mounted.path().join("own")).unwrap() == [&expected[..], &expected].concat());
        drop((mapped, reader, own, sent));
        mounted.end();
    }
}
