//! What the kernel has in dirty pages, and the server has not, is data for every call: for
//! SEEK_DATA, SEEK_HOLE and the number of blocks too. These tests need root and FUSE, and fail
//! without.

mod common;

use common::kinds;
use common::mapping::Mapped;
use common::store::{Image, serve_if_asked};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::slice::from_ref;

/// Bytes of a block of the volume, the unit of holes.
const BLOCK: u64 = 64 << 10;
const OPTIONS: [&str; 2] = ["", "writeback"];

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

fn new(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).unwrap()
}

/// What a copying program takes for data, by a descriptor of its own.
fn extents(path: &Path) -> Vec<Range<u64>> {
    let file = File::open(path).unwrap();
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        match seek(&file, SeekFrom::Data(at)) {
            Ok(start) => {
                let end = seek(&file, SeekFrom::Hole(start)).unwrap();
                // While many others ask, a hole may be called data once, and a hole when it is
                // asked for again.
                assert!(start >= at && end >= start, "{start}..{end} after {at}");
                found.push(start..end);
                at = end;
            }
            Err(error) => {
                assert_eq!(error, Errno::NXIO);
                return found;
            }
        }
    }
}

/// How data gets into a hole.
#[derive(Clone, Copy, Debug)]
enum Store {
    Mapping,
    Write,
}

#[test]
fn what_is_stored_into_a_hole_is_data_at_once() {
    for kind in kinds() {
        for options in OPTIONS {
            let image = Image::new(256 << 20);
            let mounted = image.mount(kind, options);
            for store in [Store::Mapping, Store::Write] {
                let path = mounted.path().join(format!("{store:?}"));
                let (file, length) = (new(&path), 64 * BLOCK);
                file.set_len(length).unwrap();
                let map = Mapped::of(&file, length as usize);
                let put = |at: u64| match store {
                    Store::Mapping => map.put(at, 7),
                    Store::Write => file.write_all_at(&[7], at).unwrap(),
                };
                // A reader holds clean pages of the hole.
                assert_eq!(std::fs::read(&path).unwrap(), vec![0; length as usize]);
                assert_eq!(extents(&path), []);
                let mut expected: Vec<Range<u64>> = Vec::new();
                // The last byte of a block, the first one of the next but one, the last of all.
                for at in [10 * BLOCK - 1, 11 * BLOCK, 20 * BLOCK + 5000, length - 1] {
                    put(at);
                    assert_ne!(file.metadata().unwrap().blocks(), 0, "{store:?}, {options}");
                    expected.push(at / BLOCK * BLOCK..(at / BLOCK + 1) * BLOCK);
                    assert_eq!(extents(&path), expected, "{store:?}, {options}, {kind:?}");
                    let hole = seek(File::open(&path).unwrap(), SeekFrom::Hole(at)).unwrap();
                    assert_eq!(hole, (at / BLOCK + 1) * BLOCK);
                }
                // Again where the page is there already.
                put(11 * BLOCK + 1);
                assert_eq!(extents(&path), expected);
                assert_eq!(seek(&file, SeekFrom::Hole(length)), Err(Errno::NXIO));
                assert_eq!(seek(&file, SeekFrom::Data(length)), Err(Errno::NXIO));
            }
            mounted.end();
        }
    }
}

/// A file of a TiB is not read to find the little that is in it.
#[test]
fn a_huge_sparse_file_keeps_its_holes() {
    const LENGTH: u64 = 1 << 40;
    for kind in kinds() {
        for options in OPTIONS {
            let image = Image::new(256 << 20);
            let mounted = image.mount(kind, options);
            let path = mounted.path().join("f");
            let file = new(&path);
            file.set_len(LENGTH).unwrap();
            file.write_all_at(b"middle", LENGTH / 2).unwrap();
            assert_eq!(extents(&path), from_ref(&(LENGTH / 2..LENGTH / 2 + BLOCK)), "{options}");
            assert_eq!(seek(&file, SeekFrom::Data(LENGTH / 2 + 3)), Ok(LENGTH / 2 + 3));
            assert_eq!(seek(&file, SeekFrom::Hole(7)), Ok(7));
            drop(file);
            mounted.end();
        }
    }
}

/// What `write` has put behind the end that the server knows of is data, and the file ends where
/// the kernel says.
#[test]
fn what_is_behind_the_end_that_the_server_knows_is_data() {
    for kind in kinds() {
        for options in OPTIONS {
            let image = Image::new(256 << 20);
            let mounted = image.mount(kind, options);
            let path = mounted.path().join("f");
            let file = new(&path);
            assert_eq!(seek(&file, SeekFrom::Data(0)), Err(Errno::NXIO));
            file.write_all_at(&[7; 100_000], 0).unwrap();
            assert_ne!(std::fs::metadata(&path).unwrap().blocks(), 0, "tar takes 0 for a hole");
            assert_eq!(seek(&file, SeekFrom::Hole(0)), Ok(100_000));
            file.write_all_at(&[7; 1000], 100_000).unwrap();
            assert_eq!(seek(&file, SeekFrom::Data(100_500)), Ok(100_500));
            assert_eq!(extents(&path), from_ref(&(0..101_000)));
            file.write_all_at(&[7; 1000], 10 * BLOCK).unwrap();
            assert_eq!(extents(&path), [0..2 * BLOCK, 10 * BLOCK..10 * BLOCK + 1000]);
            assert_eq!(seek(&file, SeekFrom::Data(10 * BLOCK + 1000)), Err(Errno::NXIO));
            drop(file);
            mounted.end();
        }
    }
}

#[test]
fn blocks_are_right_after_a_sync_while_the_file_is_open() {
    for kind in kinds() {
        for options in OPTIONS {
            let image = Image::new(256 << 20);
            let mounted = image.mount(kind, options);
            let file = new(&mounted.path().join("f"));
            for megabytes in 1..4u64 {
                file.write_all_at(&[7; 1 << 20], (megabytes - 1) << 20).unwrap();
                assert_ne!(file.metadata().unwrap().blocks(), 0);
                file.sync_all().unwrap();
                assert_eq!(file.metadata().unwrap().blocks(), megabytes << 11, "{options}");
            }
            drop(file);
            mounted.end();
        }
    }
}

/// More programs than may wait for the kernel at once ask about files with dirty pages: all are
/// answered, and no call reports data as a hole.
#[test]
fn many_callers_that_seek_at_once_miss_nothing() {
    const LENGTH: u64 = 8 * BLOCK;
    for kind in kinds() {
        for options in ["", "writeback", "threads=1", "threads=1,writeback"] {
            let image = Image::new(256 << 20);
            let mounted = image.mount(kind, options);
            std::thread::scope(|scope| {
                for thread in 0..24u64 {
                    let path = mounted.path().join(format!("{thread}"));
                    scope.spawn(move || {
                        let file = new(&path);
                        file.set_len(LENGTH).unwrap();
                        let map = Mapped::of(&file, LENGTH as usize);
                        for step in 0..100u64 {
                            let at = (step * 7919 + thread * 104_729) % LENGTH;
                            match step % 3 {
                                0 => file.write_all_at(&[7], at).unwrap(),
                                1 => map.put(at, 7),
                                _ => {
                                    // SAFETY: a system call on the file alone.
                                    let punched = unsafe {
                                        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                                        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
                                        libc::fallocate(fd, mode, 0, LENGTH as i64)
                                    };
                                    assert_eq!(punched, 0);
                                    continue;
                                }
                            }
                            let is_data = extents(&path).iter().any(|extent| extent.contains(&at));
                            assert!(is_data, "{at} in step {step}, {options}");
                        }
                    });
                }
            });
            mounted.end();
        }
    }
}
