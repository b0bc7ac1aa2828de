//! What mkfs, fsck, info and dump do with good and bad input, without a mount.

mod common;

use common::{Place, Ran, content, espalier, poke};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Every command that reads an image; mount comes last.
const READERS: [(&str, i32); 4] = [("fsck", 8), ("info", 1), ("dump", 1), ("mount", 1)];

fn read_with(command: &str, place: &Place) -> Ran {
    match command {
        "mount" => place.mount(&[]),
        _ => espalier(&[command.as_ref(), place.image.as_os_str()]),
    }
}

/// Runs every reader on a bad image; each must refuse it with `words`, and none may change it.
#[track_caller]
fn all_refuse(place: &Place, fsck: i32, words: &[&str]) {
    let before = content(&place.image);
    for (command, code) in READERS {
        let code = if command == "fsck" { fsck } else { code };
        let name = place.image.to_string_lossy().into_owned();
        read_with(command, place).refused(code, &[words, &[name.as_str()]].concat());
        assert!(content(&place.image) == before, "{command} changed a bad image");
    }
}

#[test]
fn a_new_image_is_clean_and_described() {
    let place = Place::new();
    let said = place.mkfs(&["--size", "64M", "--label", "garden", "--compress", "lz4"]).ok();
    assert!(said.contains("64 MiB") && said.contains("lz4"), "{said}");
    assert_eq!(fs::metadata(&place.image).unwrap().len(), 64 << 20);
    assert_eq!(fs::metadata(&place.image).unwrap().permissions().mode() & 0o077, 0, "others may read it");
    assert!(place.fsck().ok().contains("clean"));
    let info = espalier(&["info".as_ref(), place.image.as_os_str()]).ok();
    assert!(info.contains("garden") && info.contains("64 MiB"), "{info}");
    let json = espalier(&["info".as_ref(), "--json".as_ref(), place.image.as_os_str()]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["label"], "garden");
    assert!(!espalier(&["dump".as_ref(), place.image.as_os_str()]).ok().is_empty());
}

#[test]
fn reading_commands_change_nothing() {
    let place = Place::with_image("64M");
    let before = content(&place.image);
    for command in ["fsck", "info", "dump"] {
        read_with(command, &place).ok();
        assert!(content(&place.image) == before, "{command} wrote to the image");
    }
}

#[test]
fn mkfs_wants_a_size_that_makes_sense() {
    let place = Place::new();
    place.mkfs(&[]).refused(1, &["a.img", "--size"]);
    place.mkfs(&["--size", "4K"]).refused(1, &["at least"]);
    assert!(!place.image.exists(), "a failed mkfs left a file behind");
    place.mkfs(&["--size", "twenty"]).refused(2, &["twenty"]);
    place.mkfs(&["--size", "64M", "--label", &"x".repeat(65)]).refused(1, &["label", "64"]);
    place.mkfs(&["--size", "64M", "--compress", "rar"]).refused(2, &["rar", "zstd"]);
    let nowhere = place.path("no/such/dir/a.img");
    espalier(&["mkfs".as_ref(), "--size".as_ref(), "64M".as_ref(), nowhere.as_os_str()])
        .refused(1, &["no/such/dir"]);
    espalier(&["mkfs".as_ref(), place.dir.as_os_str()]).refused(1, &["directory"]);
    // A file of zeros has a size already.
    fs::File::create(&place.image).unwrap().set_len(64 << 20).unwrap();
    place.mkfs(&[]).ok();
}

#[test]
fn mkfs_overwrites_nothing_without_force() {
    let place = Place::with_image("64M");
    let before = content(&place.image);
    place.mkfs(&["--size", "64M"]).refused(1, &["an Espalier file system", "--force"]);
    assert!(content(&place.image) == before);
    place.mkfs(&["--size", "128M", "--force"]).ok();
    assert_eq!(fs::metadata(&place.image).unwrap().len(), 128 << 20);

    fs::write(&place.image, "the only copy of a thesis").unwrap();
    place.mkfs(&["--size", "64M"]).refused(1, &["--force"]);
    assert_eq!(content(&place.image), b"the only copy of a thesis");

    fs::remove_file(&place.image).unwrap();
    fs::File::create(&place.image).unwrap().set_len(64 << 20).unwrap();
    common::run(Command::new("mkfs.ext4").arg("-q").arg(&place.image));
    let before = content(&place.image);
    place.mkfs(&[]).refused(1, &["ext4", "--force"]);
    assert!(content(&place.image) == before);
    place.mkfs(&["--force"]).ok();
    place.fsck().ok();
}

#[test]
fn what_is_no_image_is_refused() {
    let place = Place::new();
    for (command, code) in READERS {
        read_with(command, &place).refused(code, &["a.img", "no such"]);
    }
    fs::write(&place.image, vec![b'x'; 1 << 20]).unwrap();
    all_refuse(&place, 8, &["no Espalier file system"]);
    fs::write(&place.image, "").unwrap();
    all_refuse(&place, 8, &["no Espalier file system"]);
    fs::write(&place.image, vec![0; 12345]).unwrap();
    all_refuse(&place, 8, &["no Espalier file system"]);
    espalier(&["fsck".as_ref(), place.dir.as_os_str()]).refused(8, &["directory"]);
}

#[test]
fn a_truncated_image_is_refused() {
    let place = Place::with_image("64M");
    let whole = content(&place.image);
    for length in [32 << 20, 1 << 20, 128 << 10] {
        fs::write(&place.image, &whole[..length]).unwrap();
        all_refuse(&place, 4, &["truncated"]);
    }
    // Nothing was lost: with the missing end, it is what it was.
    fs::write(&place.image, &whole).unwrap();
    place.fsck().ok();
}

#[test]
fn an_image_of_a_newer_format_is_refused() {
    let place = Place::with_image("64M");
    for block in [0u64, 16] {
        let mut superblock = content(&place.image)[block as usize * 4096..][..512].to_vec();
        superblock[8..12].copy_from_slice(&99u32.to_le_bytes());
        let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&superblock[..504], block);
        superblock[504..].copy_from_slice(&sum.to_le_bytes());
        poke(&place.image, block * 4096, &superblock);
    }
    all_refuse(&place, 8, &["newer", "99"]);
}

#[test]
fn damage_is_found_wherever_it_is() {
    let place = Place::with_image("64M");
    place.mount(&[]).ok();
    common::make_tree(&place.dir.join("tree"), 11, 300);
    place.umount().ok();
    let whole = content(&place.image);
    // One superblock lost: there is another. Both: nothing works, and nothing is made worse.
    poke(&place.image, 100, b"damage");
    poke(&place.image, 16 * 4096 + 100, b"damage");
    all_refuse(&place, 4, &["superblock"]);
    fs::write(&place.image, &whole).unwrap();

    // A byte of every stored block in turn would take long: a sample of those that are not empty.
    let used: Vec<usize> =
        (17..whole.len() / 4096).filter(|b| whole[b * 4096..][..4096].iter().any(|&x| x != 0)).collect();
    let mut random = common::Random(5);
    let mut found = 0;
    for _ in 0..40 {
        let block = used[random.below(used.len() as u64) as usize];
        let at = block * 4096 + random.below(4096) as usize;
        poke(&place.image, at as u64, &[whole[at] ^ 0x40]);
        let ran = place.fsck();
        assert!(matches!(ran.code, Some(0 | 4)), "byte {at}: {ran:?}");
        found += usize::from(ran.code == Some(4));
        poke(&place.image, at as u64, &[whole[at]]);
    }
    // Some blocks hold the log of what a checkpoint has taken over, or padding; most do not.
    assert!(found >= 15, "only {found} of 40 damaged bytes were found");
    assert!(content(&place.image) == whole);
}

#[test]
fn helpers_find_themselves_by_their_names() {
    let place = Place::new();
    let program = env!("CARGO_BIN_EXE_espalier");
    for name in ["mkfs.espalier", "fsck.espalier", "mount.fuse.espalier", "umount.fuse.espalier"] {
        std::os::unix::fs::symlink(program, place.path(name)).unwrap();
    }
    let call = |name: &str, words: &[&Path]| -> Ran {
        let words = words.iter().map(|w| w.as_os_str());
        Command::new(place.path(name)).args(words).output().unwrap().into()
    };
    fs::File::create(&place.image).unwrap().set_len(64 << 20).unwrap();
    call("mkfs.espalier", &["-F".as_ref(), &place.image]).ok();
    call("fsck.espalier", &["-a".as_ref(), "-C0".as_ref(), &place.image]).ok();
    let options: [&Path; 2] = ["-o".as_ref(), "rw,noatime,cache=128M,x-systemd.automount".as_ref()];
    call("mount.fuse.espalier", &[&place.image, &place.dir, options[0], options[1]]).ok();
    fs::write(place.dir.join("f"), "kept").unwrap();
    call("umount.fuse.espalier", &[&place.dir]).ok();
    call("fsck.espalier", &[&place.image]).ok();
    call("fsck.espalier", &["--frobnicate".as_ref()]).refused(8, &["--frobnicate"]);
}

#[test]
fn help_explains_everything() {
    for command in ["mkfs", "mount", "umount", "fsck", "info", "dump", "demo"] {
        let help = espalier(&[command, "--help"]).ok();
        assert!(help.contains("Usage"), "{help}");
    }
    assert!(espalier(&["--help"]).ok().contains("Examples"));
    assert!(espalier(&["--version"]).ok().contains(env!("CARGO_PKG_VERSION")));
    espalier::<&str>(&[]).refused(2, &["Usage"]);
    let odd = std::ffi::OsStr::from_bytes(b"\xff\xfe.img");
    espalier(&["fsck".as_ref(), odd]).refused(8, &["no such"]);
}

/// A command with its output and its complaints in the same place.
fn told_to(out: impl Fn() -> Stdio, words: &[&std::ffi::OsStr]) -> Option<i32> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    command.args(words).stdin(Stdio::null()).stdout(out()).stderr(out()).status().unwrap().code()
}

#[test]
fn who_does_not_listen_does_not_make_a_command_fail() {
    let place = Place::new();
    let gone = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        Stdio::from(writer)
    };
    let image = place.image.as_os_str();
    let mkfs: &[&std::ffi::OsStr] = &["mkfs".as_ref(), "--size".as_ref(), "16M".as_ref(), image];
    assert_eq!(told_to(gone, mkfs), Some(0));
    let mut root = image.to_owned();
    root.push(":/");
    let commands: [&[&std::ffi::OsStr]; 8] = [
        &["info".as_ref(), image],
        &["info".as_ref(), "--json".as_ref(), image],
        &["fsck".as_ref(), image],
        &["fsck".as_ref(), "--repair".as_ref(), image],
        &["dump".as_ref(), image],
        &["snapshot".as_ref(), "create".as_ref(), image, "one".as_ref()],
        &["snapshot".as_ref(), "list".as_ref(), image],
        &["diff".as_ref(), &root, &root],
    ];
    for words in commands {
        assert_eq!(told_to(gone, words), Some(0), "{words:?}");
    }
    assert_eq!(
        told_to(gone, &["info".as_ref(), "/nowhere".as_ref()]),
        Some(1),
        "a failure is one all the same"
    );
    // The work was done: the snapshot is there, and nothing is damaged.
    place.fsck().ok();
    let listed = espalier(&["snapshot".as_ref(), "list".as_ref(), image]).ok();
    assert!(listed.contains("one"), "{listed}");
}

#[test]
fn what_cannot_be_printed_makes_a_command_fail() {
    let place = Place::with_image("16M");
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    for command in ["info", "fsck", "dump"] {
        assert_ne!(told_to(full, &[command.as_ref(), place.image.as_os_str()]), Some(0), "{command}");
    }
    let mut info = Command::new(env!("CARGO_BIN_EXE_espalier"));
    let out = info.arg("info").arg(&place.image).stdout(full()).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(said.contains("standard output cannot be written") && !said.contains("panicked"), "{said}");
}
