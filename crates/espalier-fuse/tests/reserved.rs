//! Room that `fallocate` reserves, on mounts that other programs fill. These tests need root and
//! FUSE, and fail without.

mod common;

use common::kinds;
use common::mapping::Mapped;
use common::store::{Image, output, serve_if_asked};
use rustix::fs::{FallocateFlags, fallocate, statvfs};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;
const DISK_BYTES: u64 = 64 * MIB;
const RESERVED_BYTES: u64 = 4 * MIB;

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

/// Runs `body` on a mount of each kind, plain and with write-back; `then` on it mounted again.
fn on_each(body: impl Fn(&Path), then: impl Fn(&Path)) {
    for kind in kinds() {
        for options in ["", "writeback"] {
            eprintln!("{kind:?} {options}");
            let image = Image::new(DISK_BYTES);
            for step in [&body as &dyn Fn(&Path), &then] {
                let mounted = image.mount(kind, options);
                step(mounted.path());
                mounted.end();
            }
        }
    }
}

fn free(root: &Path) -> u64 {
    let told = statvfs(root).unwrap();
    told.f_bavail * told.f_frsize
}

/// Bytes that cannot be compressed.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed + 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Has another program write files until one of each size finds no room.
fn fill_by_another_program(root: &Path) {
    for (size, most) in [("1M", 100), ("64k", 100), ("4k", 1000)] {
        let full = (0..most).any(|number| {
            let target = format!("of={}", root.join(format!("fill-{size}-{number}")).display());
            let size = format!("bs={size}");
            let dd = ["if=/dev/urandom", &target, &size, "count=1", "conv=fsync", "status=none"];
            let run = output(Command::new("dd").args(dd)).unwrap();
            let said = String::from_utf8_lossy(&run.stderr).into_owned();
            assert!(run.status.success() || said.contains("No space left"), "{said}");
            !run.status.success()
        });
        assert!(full, "the disk takes {most} files of {size}");
    }
}

#[test]
fn what_is_reserved_can_be_written_when_another_program_has_filled_the_disk() {
    let content = noise(RESERVED_BYTES as usize, 1);
    on_each(
        |root| {
            let file = File::create(root.join("reserved")).unwrap();
            let before = free(root);
            let too_much = fallocate(&file, FallocateFlags::empty(), 0, before + MIB);
            assert_eq!(too_much, Err(Errno::NOSPC));
            assert_eq!(file.metadata().unwrap().len(), 0);
            fallocate(&file, FallocateFlags::empty(), 0, RESERVED_BYTES).unwrap();
            assert!(before - free(root) >= RESERVED_BYTES, "{before} before, {} after", free(root));
            fill_by_another_program(root);
            // Pieces of odd lengths, from the end to the beginning, and each made durable.
            let mut end = content.len();
            while end > 0 {
                let start = end.saturating_sub(123_457);
                file.write_all_at(&content[start..end], start as u64).unwrap();
                file.sync_data().unwrap();
                end = start;
            }
        },
        |root| {
            assert!(fs::read(root.join("reserved")).unwrap() == content);
        },
    );
}

#[test]
fn a_program_that_fills_the_disk_by_fallocate_reaches_its_end_and_can_write_it_all() {
    on_each(
        |root| {
            let mut files = Vec::new();
            for size in [4 * MIB, MIB, 64 << 10] {
                let most = DISK_BYTES / size;
                for number in 0..=most {
                    assert!(number < most, "{number} files of {size} bytes fit into {DISK_BYTES}");
                    let path = root.join(format!("{size}-{number}"));
                    let length = size.to_string();
                    let run = output(Command::new("fallocate").args(["-l", &length]).arg(&path)).unwrap();
                    if !run.status.success() {
                        let said = String::from_utf8_lossy(&run.stderr).into_owned();
                        assert!(said.contains("No space left"), "{said}");
                        break;
                    }
                    files.push((path, size));
                }
            }
            let reserved: u64 = files.iter().map(|(_, size)| size).sum();
            assert!(reserved > DISK_BYTES / 2, "only {reserved} bytes could be reserved");
            for (path, size) in &files {
                let file = File::options().write(true).open(path).unwrap();
                file.write_all_at(&noise(*size as usize, *size), 0).unwrap();
                file.sync_all().unwrap();
            }
        },
        |root| {
            for entry in fs::read_dir(root).unwrap() {
                let path = entry.unwrap().path();
                let content = fs::read(&path).unwrap();
                // The last file of each size is empty: there was no room for it.
                let expected = noise(content.len(), content.len() as u64);
                assert!(content == expected, "{}", path.display());
                fs::remove_file(path).unwrap();
            }
            assert!(free(root) > DISK_BYTES / 2, "{} bytes free again", free(root));
        },
    );
}

#[test]
fn a_mapping_into_a_hole_is_told_by_msync_that_the_disk_is_full() {
    let content = noise(RESERVED_BYTES as usize, 2);
    let fill =
        |mapped: &Mapped| content.iter().enumerate().for_each(|(at, byte)| mapped.put(at as u64, *byte));
    on_each(
        |root| {
            let new = |name: &str| {
                let path = root.join(name);
                let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
                file.set_len(RESERVED_BYTES).unwrap();
                file
            };
            let (hole, reserved) = (new("hole"), new("reserved"));
            fallocate(&reserved, FallocateFlags::empty(), 0, RESERVED_BYTES).unwrap();
            fill_by_another_program(root);
            let mapped = Mapped::of(&hole, RESERVED_BYTES as usize);
            fill(&mapped);
            assert_eq!(mapped.sync(), Err(Errno::NOSPC));
            let mapped = Mapped::of(&reserved, RESERVED_BYTES as usize);
            fill(&mapped);
            mapped.sync().unwrap();
        },
        |root| {
            let hole = fs::read(root.join("hole")).unwrap();
            assert_eq!(hole.len(), content.len());
            // What there was no room for is a hole as before.
            let pages = hole.chunks(4096).zip(content.chunks(4096));
            assert!(pages.into_iter().all(|(page, stored)| page == stored || page.iter().all(|b| *b == 0)));
            assert!(hole != content);
            assert!(fs::read(root.join("reserved")).unwrap() == content);
        },
    );
}
