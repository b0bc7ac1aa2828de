//! What docs/durability.md promises of calls on a mount, held against a server that is killed.

mod common;

use common::{Loop, Place, espalier};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// A mount that makes nothing durable unasked.
fn mounted() -> Place {
    let place = Place::with_image("128M");
    place.mount(&["-o", "commit=0"]).ok();
    place
}

/// Kills the server, checks the image, and mounts it again.
#[track_caller]
fn crash(place: &Place) {
    place.kill_server();
    place.fsck().ok();
    place.mount(&["-o", "commit=0"]).ok();
}

fn sync_directory(path: &Path) {
    File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn fsync_and_fdatasync_make_a_file_durable_and_what_came_before() {
    for data_only in [false, true] {
        let place = mounted();
        fs::create_dir(place.dir.join("dir")).unwrap();
        fs::write(place.dir.join("dir/earlier"), "earlier").unwrap();
        let file = File::create(place.dir.join("dir/file")).unwrap();
        file.write_all_at(&[7; 100_000], 0).unwrap();
        if data_only {
            file.sync_data().unwrap()
        } else {
            file.sync_all().unwrap()
        }
        file.write_all_at(&[8; 100_000], 0).unwrap();
        drop(file);
        crash(&place);
        assert_eq!(fs::read(place.dir.join("dir/earlier")).unwrap(), b"earlier");
        let found = fs::read(place.dir.join("dir/file")).unwrap();
        // What came after may be there, call by call: each byte is of one or the other, the length
        // is right.
        assert_eq!(found.len(), 100_000);
        assert!(found.iter().all(|b| matches!(b, 7 | 8)));
    }
}

#[test]
fn o_sync_and_o_dsync_make_each_write_durable() {
    for flag in [libc::O_SYNC, libc::O_DSYNC] {
        let place = mounted();
        let path = place.dir.join("file");
        let mut file = OpenOptions::new().create(true).append(true).custom_flags(flag).open(&path).unwrap();
        for n in 0..20u8 {
            file.write_all(&[n; 1000]).unwrap();
        }
        drop(file);
        crash(&place);
        let expected: Vec<u8> = (0..20).flat_map(|n| [n; 1000]).collect();
        assert_eq!(fs::read(&path).unwrap(), expected);
    }
}

#[test]
fn fsync_of_a_directory_makes_everything_durable() {
    let place = mounted();
    fs::create_dir_all(place.dir.join("a/b")).unwrap();
    fs::create_dir(place.dir.join("c")).unwrap();
    fs::write(place.dir.join("a/b/file"), "text").unwrap();
    fs::rename(place.dir.join("a/b"), place.dir.join("c/b")).unwrap();
    fs::hard_link(place.dir.join("c/b/file"), place.dir.join("link")).unwrap();
    // Any directory will do.
    sync_directory(&place.dir.join("a"));
    crash(&place);
    assert_eq!(fs::read(place.dir.join("c/b/file")).unwrap(), b"text");
    assert_eq!(fs::read(place.dir.join("link")).unwrap(), b"text");
    assert!(!place.dir.join("a/b").exists());
}

/// What the kernel passes on where a block device is mounted; `sync` does the same for every mount.
#[test]
fn syncfs_on_a_block_device_makes_everything_durable() {
    let place = Place::with_image("128M");
    let device = Loop::on(&place.image);
    let mount = || device.mount(&place.dir, &["-o", "commit=0"]).ok();
    mount();
    fs::create_dir(place.dir.join("dir")).unwrap();
    fs::write(place.dir.join("dir/file"), vec![5; 100_000]).unwrap();
    rustix::fs::syncfs(File::open(place.dir.join("dir/file")).unwrap()).unwrap();
    fs::write(place.dir.join("later"), "may be lost").unwrap();
    place.kill_server();
    espalier(&["fsck".as_ref(), device.0.as_os_str()]).ok();
    mount();
    let found = fs::read(place.dir.join("dir/file"));
    place.umount().ok();
    assert_eq!(found.unwrap(), vec![5; 100_000]);
}

#[test]
fn a_file_replaced_by_rename_is_the_old_or_the_new_one() {
    // Without any sync at all: order is kept.
    let place = mounted();
    fs::write(place.dir.join("file"), vec![1; 50_000]).unwrap();
    sync_directory(&place.dir);
    for n in 2..40u8 {
        fs::write(place.dir.join("new"), vec![n; 50_000]).unwrap();
        fs::rename(place.dir.join("new"), place.dir.join("file")).unwrap();
    }
    crash(&place);
    let found = fs::read(place.dir.join("file")).unwrap();
    assert!(found.len() == 50_000 && found.iter().all(|b| *b == found[0]), "a mixture, or cut off");
    // With a sync of the new file before and of the directory behind it is the new one.
    let mut new = File::create(place.dir.join("new")).unwrap();
    new.write_all(&[99; 50_000]).unwrap();
    new.sync_all().unwrap();
    drop(new);
    fs::rename(place.dir.join("new"), place.dir.join("file")).unwrap();
    sync_directory(&place.dir);
    crash(&place);
    assert_eq!(fs::read(place.dir.join("file")).unwrap(), [99; 50_000]);
}

#[test]
fn unsynced_work_becomes_durable_by_itself() {
    let place = Place::with_image("128M");
    place.mount(&["-o", "commit=1"]).ok();
    fs::write(place.dir.join("file"), "durable in a moment").unwrap();
    loop {
        let text = espalier(&["info".as_ref(), "--json".as_ref(), place.dir.as_os_str()]).ok();
        let info: serde_json::Value = serde_json::from_str(&text).unwrap();
        let batch = |name: &str| info["checkpoint"][name].as_u64().unwrap();
        if batch("durable_batch") == batch("last_batch") {
            // By the log, as the option says, and not because a checkpoint came by, once in a
            // minute.
            assert!(batch("batch") < batch("last_batch"));
            break;
        }
    }
    crash(&place);
    assert_eq!(fs::read(place.dir.join("file")).unwrap(), b"durable in a moment");
}

#[test]
fn what_is_found_after_a_kill_is_a_prefix() {
    let place = mounted();
    // Each file is made only when the one before is complete. Of those behind the last sync, some
    // may be there.
    const SYNCED: u32 = 100;
    for n in 0..300u32 {
        fs::write(place.dir.join(format!("{n:04}")), n.to_le_bytes().repeat(1000)).unwrap();
        if n + 1 == SYNCED {
            sync_directory(&place.dir);
        }
    }
    crash(&place);
    let mut names: Vec<String> =
        fs::read_dir(&place.dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.len() >= SYNCED as usize, "{} files", names.len());
    for (n, name) in names.iter().enumerate() {
        assert_eq!(*name, format!("{n:04}"), "a file is missing in between");
        let found = fs::read(place.dir.join(name)).unwrap();
        if n + 1 < names.len() {
            assert_eq!(
                found,
                (n as u32).to_le_bytes().repeat(1000),
                "{name} is not complete, and others follow"
            );
        }
    }
}
