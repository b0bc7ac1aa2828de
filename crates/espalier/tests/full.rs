//! A mount filled to the last byte and emptied, again and again. `ESPALIER_CYCLES=100` says how
//! often.

mod common;

use common::{Place, Random, espalier};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Writes `bytes` to a new file, as much as fits; true if all did.
fn write(path: &Path, bytes: &[u8]) -> bool {
    let full = |error: std::io::Error| assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
    let mut file = match File::create(path) {
        Ok(file) => file,
        Err(error) => {
            full(error);
            return false;
        }
    };
    match file.write_all(bytes) {
        // What was accepted can be made durable: a full store says so at the write.
        Ok(()) => {
            file.sync_all().unwrap();
            true
        }
        Err(error) => {
            full(error);
            file.sync_all().unwrap();
            false
        }
    }
}

/// Files of ever smaller sizes, until not a byte more fits.
fn fill(place: &Place, random: &mut Random) -> u64 {
    let (mut number, mut written) = (0, 0);
    for most in [1 << 20, 64 << 10, 4096, 100, 1] {
        let mut refused = 0;
        while refused < 3 {
            let directory = place.dir.join(format!("d{}", number % 7));
            let length = 1 + random.below(most) as usize;
            if !directory.exists() && fs::create_dir(&directory).is_err() {
                refused += 1;
            } else if write(&directory.join(format!("f{number}")), &random.bytes(length)) {
                written += length as u64;
            } else {
                refused += 1;
            }
            number += 1;
        }
    }
    written
}

fn free(place: &Place) -> u64 {
    let told = rustix::fs::statvfs(&place.dir).unwrap();
    told.f_bfree * told.f_frsize
}

#[test]
fn a_mount_is_filled_to_the_last_byte_and_emptied() {
    let cycles = std::env::var("ESPALIER_CYCLES").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let seed = std::env::var("ESPALIER_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let place = Place::mounted("64M");
    let before = free(&place);
    let mut first = None;
    for cycle in 0..cycles {
        let mut random = Random(0x9e37_79b9 + (seed + cycle) * 0x1234_5677);
        let what = format!("ESPALIER_SEED={seed}, cycle {cycle}");
        let written = fill(&place, &mut random);
        println!("{what}: {written} bytes in {before}, {} said to be free", free(&place));
        let least = *first.get_or_insert(written) / 10 * 9;
        assert!(written >= least, "{what}: {written} bytes fit, {least} were expected");
        // Everything is there, is sound, and can be read and removed.
        place.remount();
        for entry in fs::read_dir(&place.dir).unwrap() {
            let directory = entry.unwrap().path();
            for file in fs::read_dir(&directory).unwrap() {
                fs::read(file.unwrap().path()).unwrap();
            }
            fs::remove_dir_all(directory).unwrap();
        }
        place.remount();
        // What was deleted is looked for when the store is idle or synced.
        let mut tries = 0;
        while free(&place) + (before / 50) < before {
            File::open(&place.dir).unwrap().sync_all().unwrap();
            tries += 1;
            assert!(tries < 100_000, "{what}: {} bytes are free, {before} were", free(&place));
        }
    }
}

/// Where the kernel collects writes, it is `fsync` that says that there is no room, if no write
/// did. No call reports as durable what is not, and what was reported so before stays.
#[test]
fn who_has_writes_collected_hears_of_a_full_store_by_fsync() {
    let place = Place::with_image("64M");
    place.mount(&["-o", "writeback"]).ok();
    let mut random = Random(3);
    let mut kept = Vec::new();
    let refused = loop {
        let bytes = random.bytes(3 << 20);
        let path = place.dir.join(kept.len().to_string());
        let written = File::create(&path).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        match written {
            Ok(()) => kept.push(bytes),
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::StorageFull, "{refused}");
    assert!(kept.len() > 10, "{} files fit", kept.len());
    place.kill_server();
    place.remount_after_nothing();
    for (number, bytes) in kept.iter().enumerate() {
        assert!(&fs::read(place.dir.join(number.to_string())).unwrap() == bytes, "file {number}");
    }
    place.umount().ok();
}

/// Whatever gives space back works on a full store, one after the other, and does give it back.
#[test]
fn a_full_mount_takes_whatever_frees_space() {
    const MIB: usize = 1 << 20;
    let place = Place::mounted("96M");
    let command = |words: &[&str], last: &[&Path]| {
        let mut all: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
        all.extend(last.iter().map(|path| path.as_os_str().to_owned()));
        espalier(&all)
    };
    let path = |name: &str| place.dir.join(name);
    let mut random = Random(5);
    let mut make = |name: &str| {
        fs::create_dir_all(path(name).parent().unwrap()).unwrap();
        let bytes = random.bytes(6 * MIB);
        fs::write(path(name), &bytes).unwrap();
        bytes
    };
    let kept = make("kept");
    make("snapped/file");
    command(&["snapshot", "create"], &[&place.dir, Path::new("then")]).ok();
    fs::remove_dir_all(path("snapped")).unwrap();
    make("truncated");
    make("removed");
    make("tree/in/it");
    command(&["clone"], &[&path("tree"), &path("copy")]).ok();
    command(&["rm"], &[&path("tree")]).ok();

    let truncated = || File::options().write(true).open(path("truncated"))?.set_len(10);
    let frees: [(&str, &dyn Fn()); 4] = [
        ("truncating", &|| truncated().unwrap()),
        ("deleting", &|| fs::remove_file(path("removed")).unwrap()),
        ("espalier rm", &|| drop(command(&["rm"], &[&path("copy")]).ok())),
        ("dropping a snapshot", &|| {
            drop(command(&["snapshot", "delete"], &[&place.dir, Path::new("then")]).ok())
        }),
    ];
    for (what, act) in frees {
        let mut filling = Random(11);
        let mut written = 0;
        for most in [MIB as u64, 4096, 1] {
            while write(&path(&format!("fill-{what}-{written}")), &filling.bytes(most as usize)) {
                written += most;
            }
        }
        assert!(fs::read(path("kept")).unwrap() == kept, "{what}: a full store cannot be read");
        let full = free(&place);
        act();
        let mut tries = 0;
        while free(&place) < full + 5 * MIB as u64 {
            File::open(&place.dir).unwrap().sync_all().unwrap();
            tries += 1;
            assert!(tries < 100_000, "{what}: {} bytes are free, {full} were", free(&place));
        }
        // What is free can be used, and a full store can be unmounted.
        assert!(write(&path(&format!("new-{what}")), &random_bytes(4 * MIB)), "{what}: no room for 4 MiB");
        place.remount();
    }
    assert!(fs::read(path("kept")).unwrap() == kept);
    place.umount().ok();
    place.fsck().ok();
}

fn random_bytes(length: usize) -> Vec<u8> {
    Random(77).bytes(length)
}

/// One line when it becomes full and one when there is room again, however many calls fail.
#[test]
fn the_log_says_when_a_store_is_full_and_when_it_has_room_again() {
    let place = Place::with_image("64M");
    let log = place.path("log");
    let mut server = std::process::Command::new(env!("CARGO_BIN_EXE_espalier"))
        .args(["mount", "--foreground", "-o", "commit=1"])
        .args([&place.image, &place.dir])
        .stdout(std::process::Stdio::piped())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(server.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let said = |what: &str| fs::read_to_string(&log).unwrap().matches(what).count();
    let (full, again) = ("the file system is full", "the file system has room again");
    // More than is free is refused, and the store is not full.
    let file = File::create(place.dir.join("large")).unwrap();
    let all = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 1 << 30);
    assert_eq!(all, Err(rustix::io::Errno::NOSPC));
    drop(file);
    assert_eq!((said(full), said(again)), (0, 0));
    for episode in 1..=2 {
        fill(&place, &mut Random(episode));
        assert_eq!((said(full), said(again)), (episode as usize, episode as usize - 1));
        for number in 0..7 {
            fs::remove_dir_all(place.dir.join(format!("d{number}"))).unwrap_or(());
        }
        while said(again) < episode as usize {
            // Asking for the free space has it collected.
            free(&place);
        }
    }
    place.umount().ok();
    server.wait().unwrap();
    place.fsck().ok();
}
