//! `espalier resize` and `espalier trim`, mounted and not, and `-o discard`.

mod common;

use common::{Loop, Place, Random, espalier, run};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// The bytes of the file system as df shows them: all, and those that may be used.
fn sizes(dir: &Path) -> (u64, u64) {
    let found = rustix::fs::statvfs(dir).unwrap();
    (found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
}

fn bytes_of(number: u64) -> Vec<u8> {
    Random(number + 1).bytes(MIB as usize)
}

/// Files of a mebibyte, from number `from` on, until there is no room; returns the number of the
/// next one.
fn fill(dir: &Path, from: u64) -> u64 {
    for number in from.. {
        let path = dir.join(number.to_string());
        if let Err(error) = fs::write(&path, bytes_of(number)) {
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            fs::remove_file(path).unwrap();
            return number;
        }
    }
    unreachable!("a store without end")
}

#[track_caller]
fn assert_held(dir: &Path, numbers: std::ops::Range<u64>) {
    for number in numbers {
        assert!(fs::read(dir.join(number.to_string())).unwrap() == bytes_of(number), "file {number}");
    }
}

fn resize(target: &Path, size: &str) -> common::Ran {
    espalier(&["resize".as_ref(), target.as_os_str(), size.as_ref()])
}

#[test]
fn a_mount_grows_while_it_is_used() {
    let place = Place::mounted("48M");
    let small = sizes(&place.dir);
    let held = fill(&place.dir, 0);
    // Another thread writes meanwhile, and finds no space at first, and some in the end.
    let (writer, beside) = (place.dir.clone(), place.dir.join("beside"));
    fs::create_dir(&beside).unwrap();
    let writing = std::thread::spawn(move || {
        let (mut written, mut tries_in_large) = (0, 0);
        while tries_in_large < 3 {
            tries_in_large += u32::from(writer.join("large").exists());
            written += u64::from(fs::write(writer.join("beside/x"), bytes_of(written)).is_ok());
        }
        written
    });
    assert!(resize(&place.dir, "96M").ok().contains("now"));
    fs::write(place.dir.join("large"), "").unwrap();
    assert!(writing.join().unwrap() >= 3, "the other thread found no space");
    // What a busy writer overwrites, and has reserved, is free once all of it is in the tree.
    let begun = Instant::now();
    let mut large = sizes(&place.dir);
    while large.1 <= 40 * MIB && begun.elapsed() < Duration::from_secs(30) {
        std::thread::yield_now();
        large = sizes(&place.dir);
    }
    assert_eq!(large.0 - small.0, 48 * MIB);
    assert!(large.1 > 40 * MIB, "{large:?}");
    fs::remove_dir_all(beside).unwrap();
    let all = fill(&place.dir, held);
    assert!(all - held > 35, "{} files fit into 48 MiB more", all - held);
    assert_held(&place.dir, 0..all);
    resize(&place.dir, "64M").refused(1, &["cannot shrink"]);
    assert_eq!(fs::metadata(&place.image).unwrap().len(), 96 * MIB);
    place.remount();
    assert_held(&place.dir, 0..all);
    assert_eq!(sizes(&place.dir).0, large.0);
    // What is killed straight after it has grown is as large.
    resize(&place.dir, "112M").ok();
    place.kill_server();
    place.remount_after_nothing();
    assert_eq!(sizes(&place.dir).0 - large.0, 16 * MIB);
    assert_held(&place.dir, 0..all);
    place.umount().ok();
}

#[test]
fn an_image_grows_that_is_not_mounted() {
    let place = Place::mounted("48M");
    let held = fill(&place.dir, 0);
    let before = sizes(&place.dir);
    place.umount().ok();
    resize(&place.image, "40M").refused(1, &["cannot shrink"]);
    resize(&place.image, "80M").ok();
    place.remount_after_nothing();
    assert_eq!(sizes(&place.dir).0 - before.0, 32 * MIB);
    assert!(fill(&place.dir, held) > held + 20);
    assert_held(&place.dir, 0..held);
    place.umount().ok();
    // All that the file has by now.
    fs::OpenOptions::new().write(true).open(&place.image).unwrap().set_len(100 * MIB).unwrap();
    resize(&place.image, "max").ok();
    place.fsck().ok();
}

#[test]
fn a_block_device_grows_mounted_and_not() {
    let place = Place::with_image("48M");
    let device = Loop::on(&place.image);
    let grow = |mebibytes: u64| {
        let image = fs::OpenOptions::new().write(true).open(&place.image).unwrap();
        image.set_len(mebibytes * MIB).unwrap();
        device.follow();
    };
    device.mount(&place.dir, &[]).ok();
    let first = sizes(&place.dir);
    let held = fill(&place.dir, 0);
    resize(&place.dir, "64M").refused(1, &["48"]);
    grow(64);
    resize(&place.dir, "64M").ok();
    assert_eq!(sizes(&place.dir).0 - first.0, 16 * MIB);
    let more = fill(&place.dir, held);
    assert!(more - held > 8, "{} files fit into 16 MiB more", more - held);
    place.umount().ok();
    grow(96);
    resize(&device.0, "max").ok();
    espalier(&["fsck".as_ref(), device.0.as_os_str()]).ok();
    device.mount(&place.dir, &[]).ok();
    assert_eq!(sizes(&place.dir).0 - first.0, 48 * MIB);
    let all = fill(&place.dir, more);
    assert!(all - more > 24, "{} files fit into 32 MiB more", all - more);
    assert_held(&place.dir, 0..all);
    place.umount().ok();
}

/// Bytes that the image takes on the disk below.
fn taken(place: &Place) -> u64 {
    fs::metadata(&place.image).unwrap().blocks() * 512
}

/// Writes 40 MiB, deletes them, and waits until the space is free; returns what the image took
/// before and takes then.
fn write_and_delete(place: &Place) -> (u64, u64) {
    let free = sizes(&place.dir).1;
    for number in 0..40 {
        fs::write(place.dir.join(number.to_string()), bytes_of(number)).unwrap();
    }
    let sync = || fs::File::open(&place.dir).unwrap().sync_all().unwrap();
    sync();
    let full = taken(place);
    assert!(full > 40 * MIB, "{full}");
    (0..40).for_each(|number| fs::remove_file(place.dir.join(number.to_string())).unwrap());
    while sizes(&place.dir).1 + MIB < free {
        sync();
    }
    (full, taken(place))
}

#[test]
fn trimming_gives_space_back_to_the_disk_below() {
    let place = Place::mounted("96M");
    let (full, after) = write_and_delete(&place);
    assert!(after + 8 * MIB > full, "{full} bytes before and {after} after, with nothing discarded");
    espalier(&["trim".as_ref(), place.dir.as_os_str()]).ok();
    assert!(taken(&place) + 35 * MIB < full, "{full} bytes before and {} after", taken(&place));
    place.remount();
    place.umount().ok();
}

#[test]
fn a_mount_with_discard_gives_space_back_by_itself() {
    let place = Place::with_image("96M");
    place.mount(&["-o", "discard"]).ok();
    let (full, _) = write_and_delete(&place);
    // Discarding goes with the checkpoints that set the blocks free.
    place.umount().ok();
    assert!(taken(&place) + 35 * MIB < full, "{full} bytes before and {} after", taken(&place));
    place.fsck().ok();
}

#[test]
fn a_label_is_shown_and_set_mounted_or_not() {
    let place = Place::with_image("32M");
    let label = |target: &Path, more: &[&str]| {
        let words = ["label".into(), target.as_os_str().to_owned()];
        espalier(&words.into_iter().chain(more.iter().map(Into::into)).collect::<Vec<_>>())
    };
    assert_eq!(label(&place.image, &[]).ok(), "\n");
    label(&place.image, &["first"]).ok();
    assert_eq!(label(&place.image, &[]).ok(), "first\n");
    place.mount(&[]).ok();
    assert_eq!(label(&place.dir, &[]).ok(), "first\n");
    label(&place.dir, &["second one"]).ok();
    assert!(espalier(&["info".as_ref(), place.dir.as_os_str()]).ok().contains("second one"));
    label(&place.dir, &[&"x".repeat(65)]).refused(1, &["65 bytes"]);
    // Other file systems know the ioctl, too: what is not on the mount keeps its label.
    for elsewhere in [Path::new("/proc"), place.base.path()] {
        label(elsewhere, &["x"]).refused(1, &["no Espalier file system is mounted there"]);
        label(elsewhere, &[]).refused(1, &["no Espalier file system is mounted there"]);
    }
    place.umount().ok();
    assert_eq!(label(&place.image, &[]).ok(), "second one\n");
    place.fsck().ok();
}

/// What a directory holds that nothing else does, as `espalier du --exclusive` knows it.
fn exclusive(dir: &Path) -> u64 {
    let said = espalier(&["du".as_ref(), "--exclusive".as_ref(), "--json".as_ref(), dir.as_os_str()]).ok();
    let told: serde_json::Value = serde_json::from_str(said.trim()).unwrap();
    told["exclusive"].as_u64().unwrap_or_else(|| panic!("{said}"))
}

#[test]
fn copies_by_programs_that_know_nothing_of_it_share_data() {
    let place = Place::mounted("512M");
    let path = |name: &str| place.dir.join(name);
    fs::create_dir(path("source")).unwrap();
    fs::write(path("source/large"), Random(1).bytes(8 << 20)).unwrap();
    fs::write(path("source/small"), "small").unwrap();
    let python = "import os\nos.mkdir('python')\nfor name in ['large', 'small']:\n \
        a, b = open('source/' + name, 'rb'), open('python/' + name, 'wb')\n \
        left = os.fstat(a.fileno()).st_size\n while left: left -= os.copy_file_range(a.fileno(), b.fileno(), left)";
    let copies: [(&str, &[&str]); 5] = [
        ("auto", &["cp", "-r", "--reflink=auto", "source", "auto"]),
        ("archive", &["cp", "-a", "source", "archive"]),
        ("plain", &["cp", "-r", "source", "plain"]),
        ("python", &["python3", "-c", python]),
        // It writes what it has read, so this shows that sharing can be seen.
        ("rsync", &["rsync", "-a", "source/", "rsync"]),
    ];
    for (_, words) in copies {
        run(Command::new(words[0]).args(&words[1..]).current_dir(&place.dir));
    }
    // So that all of it lies in the tree.
    place.remount();
    for (name, _) in copies {
        assert_eq!(fs::read(path(name).join("large")).unwrap(), Random(1).bytes(8 << 20), "{name}");
        let alone = exclusive(&path(name));
        assert_eq!(alone > MIB, name == "rsync", "{name}: {alone} bytes of its own");
    }
}
