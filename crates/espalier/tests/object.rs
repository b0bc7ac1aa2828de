//! File systems in an object store: a local directory of objects, as a server would have them.

mod common;

use common::{Place, assert_same_tree, content, espalier, make_tree};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A place whose image is an object store.
fn object_place() -> Place {
    let mut place = Place::new();
    place.image = PathBuf::from(format!("file://{}", place.path("store").display()));
    place
}

fn espalier_on(command: &[&str], place: &Place) -> common::Ran {
    let words: Vec<&OsStr> = command.iter().map(OsStr::new).chain([place.image.as_os_str()]).collect();
    espalier(&words)
}

/// All objects and their bytes.
fn objects(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        match entry.metadata().unwrap() {
            metadata if metadata.is_dir() => found.extend(objects(&entry.path())),
            metadata => found.push((entry.path(), metadata.len())),
        }
    }
    found
}

#[test]
fn a_store_is_made_mounted_checked_and_described() {
    let place = object_place();
    espalier_on(&["mkfs"], &place).refused(1, &["--size"]);
    let said = place.mkfs(&["--size", "100G", "--label", "far"]).ok();
    assert!(said.contains("100 GiB"), "{said}");
    place.mkfs(&["--size", "1G"]).refused(1, &["a store is there already", "--force"]);
    // What is not used is not stored.
    let bytes = |place: &Place| objects(&place.path("store")).iter().map(|(_, bytes)| bytes).sum::<u64>();
    assert!(bytes(&place) < 4 << 20, "{:?}", objects(&place.path("store")));

    place.mount(&[]).ok();
    let tree = place.path("tree");
    make_tree(&tree, 7, 150);
    common::run(std::process::Command::new("cp").arg("-a").arg(&tree).arg(place.dir.join("tree")));
    espalier(&["clone".as_ref(), place.dir.join("tree").as_os_str(), place.dir.join("again").as_os_str()])
        .ok();
    let mut file = fs::File::create(place.dir.join("synced")).unwrap();
    file.write_all(b"here").unwrap();
    file.sync_all().unwrap();
    drop(file);
    let info = espalier(&["info".as_ref(), "--json".as_ref(), place.dir.as_os_str()]).ok();
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["label"], "far");
    assert!(info["object_store"]["puts"].as_u64().unwrap() > 0, "{info}");
    assert_eq!(info["image"].as_str(), place.image.to_str());
    // By its URL the server is asked, too.
    assert!(espalier_on(&["info"], &place).ok().contains("requests"));
    place.mount(&[]).refused(1, &["mounted already"]);
    // Readers do no harm, however many there are.
    let readers = ["one", "two"].map(|name| place.path(name));
    for dir in &readers {
        fs::create_dir(dir).unwrap();
        let words = ["mount", "-o", "ro"].map(OsStr::new);
        espalier(&[words[0], words[1], words[2], place.image.as_os_str(), dir.as_os_str()]).ok();
        assert_eq!(content(&dir.join("synced")), b"here");
    }
    for dir in &readers {
        espalier(&["umount".as_ref(), dir.as_os_str()]).ok();
    }
    place.umount().ok();

    assert!(place.fsck().ok().contains("clean"));
    let said = espalier_on(&["objects", "--deep"], &place).ok();
    assert!(said.contains("all there") && said.contains("0 orphans"), "{said}");
    assert!(espalier_on(&["info"], &place).ok().contains("object store"));
    place.mount(&["-o", "ro"]).ok();
    assert_same_tree(&tree, &place.dir.join("tree"));
    assert_same_tree(&tree, &place.dir.join("again"));
    assert_eq!(content(&place.dir.join("synced")), b"here");
    place.umount().ok();

    // An object that is missing is missed, and named.
    let (segment, _) =
        objects(&place.path("store/data")).into_iter().max_by_key(|(_, bytes)| *bytes).unwrap();
    let hidden = place.path("hidden");
    fs::rename(&segment, &hidden).unwrap();
    let name = segment.file_name().unwrap().to_str().unwrap();
    espalier_on(&["objects", "--check"], &place).refused(4, &["missing", name, "NOT all there"]);
    fs::rename(&hidden, &segment).unwrap();
    espalier_on(&["objects", "--check"], &place).ok();
    // What is done on images only says so.
    espalier_on(&["fsck", "--repair"], &place).refused(8, &["espalier copy"]);
}

#[test]
fn a_server_that_was_killed_loses_nothing_that_was_synced() {
    let place = object_place();
    place.mkfs(&["--size", "1G"]).ok();
    for round in 0..3u8 {
        // The lease of the one that was killed still runs.
        if round > 0 {
            place.mount(&[]).refused(1, &["has it open for writing", "--take-over"]);
        }
        place.mount(&["--take-over"]).ok();
        for before in 0..round {
            assert_eq!(content(&place.dir.join(format!("synced{before}"))), vec![before; 100_000]);
        }
        let mut file = fs::File::create(place.dir.join(format!("synced{round}"))).unwrap();
        file.write_all(&vec![round; 100_000]).unwrap();
        file.sync_all().unwrap();
        drop(file);
        fs::write(place.dir.join("not synced"), vec![9; 300_000]).unwrap();
        place.kill_server();
        assert!(place.fsck().ok().contains("clean"));
    }
    espalier_on(&["objects", "--deep"], &place).ok();
}

/// Says that the root was put so long ago, by the clock of the directory.
fn make_root_older(place: &Place, seconds: u64) {
    let root = fs::File::options().write(true).open(place.path("store/root")).unwrap();
    let modified = root.metadata().unwrap().modified().unwrap();
    root.set_modified(modified - std::time::Duration::from_secs(seconds)).unwrap();
}

#[test]
fn the_lease_is_given_back_by_an_unmount_and_runs_out_after_a_death() {
    let place = object_place();
    place.mkfs(&["--size", "1G"]).ok();
    for round in 0..3 {
        place.mount(&[]).ok();
        fs::write(place.dir.join(format!("{round}")), b"here").unwrap();
        place.umount().ok();
    }
    // A mount that does not come about keeps nothing.
    place.mount(&["-o", "snapshot=none"]).refused(1, &["none"]);
    place.mount(&[]).ok();
    // A server that is asked to end by a signal does the same as one that is unmounted.
    let server = rustix::process::Pid::from_raw(place.server()).unwrap();
    let watched = rustix::process::pidfd_open(server, rustix::process::PidfdFlags::empty()).unwrap();
    rustix::process::kill_process(server, rustix::process::Signal::TERM).unwrap();
    let mut polled = [rustix::event::PollFd::new(&watched, rustix::event::PollFlags::IN)];
    while rustix::event::poll(&mut polled, None).is_err() {}
    place.mount(&[]).ok();
    place.kill_server();
    place.mount(&[]).refused(1, &["has it open for writing", "60 s"]);
    make_root_older(&place, 50);
    place.mount(&[]).refused(1, &["has it open for writing"]);
    make_root_older(&place, 11);
    place.mount(&[]).ok();
    assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 3);
    place.umount().ok();
}

/// A second machine has nothing of the first but the store: here it is a second mount point, and
/// the first server does not know of it.
#[test]
fn a_mount_whose_store_was_taken_over_says_so_and_changes_nothing() {
    let place = object_place();
    place.mkfs(&["--size", "1G"]).ok();
    let log = place.path("log");
    place.mount(&["-o", &format!("logfile={}", log.display())]).ok();
    fs::write(place.dir.join("first"), b"1").unwrap();
    fs::File::open(place.dir.join("first")).unwrap().sync_all().unwrap();

    // Through another name the mount command does not find the first mount.
    let mut second = Place::new();
    std::os::unix::fs::symlink(place.path("store"), second.path("other")).unwrap();
    second.image = PathBuf::from(format!("file://{}", second.path("other").display()));
    second.mount(&[]).refused(1, &["has it open for writing"]);
    second.mount(&["--take-over"]).ok();
    assert_eq!(content(&second.dir.join("first")), b"1");
    fs::write(second.dir.join("second"), b"2").unwrap();
    fs::File::open(second.dir.join("second")).unwrap().sync_all().unwrap();

    let written = fs::write(place.dir.join("lost"), b"3")
        .and_then(|()| fs::File::open(place.dir.join("lost"))?.sync_all());
    assert!(written.is_err(), "a mount that was taken over made something durable");
    let said = String::from_utf8_lossy(&content(&log)).into_owned();
    assert!(said.contains("took the store over"), "{said}");
    let _ = place.umount();
    second.umount().ok();
    let said = second.fsck().ok();
    assert!(said.contains("clean") && said.contains("2 files"), "{said}");
}

#[test]
fn stores_are_copied_from_an_image_and_back() {
    let place = Place::with_image("300M");
    place.mount(&[]).ok();
    let tree = place.path("tree");
    make_tree(&tree, 3, 120);
    common::run(std::process::Command::new("cp").arg("-a").arg(&tree).arg(place.dir.join("tree")));
    // What was deleted is not copied.
    fs::write(place.dir.join("gone"), common::Random(5).bytes(40 << 20)).unwrap();
    fs::File::open(place.dir.join("gone")).unwrap().sync_all().unwrap();
    fs::remove_file(place.dir.join("gone")).unwrap();
    let url = format!("file://{}", place.path("store").display());
    let copy = |words: &[&OsStr]| {
        let mut all: Vec<&OsStr> = vec!["copy".as_ref()];
        all.extend(words);
        espalier(&all)
    };
    copy(&[place.image.as_ref(), url.as_ref()]).refused(1, &["is mounted at"]);
    // A server that dies leaves a log, which the copy has in it.
    fs::write(place.dir.join("last"), b"words").unwrap();
    fs::File::open(place.dir.join("last")).unwrap().sync_all().unwrap();
    place.kill_server();
    let before = content(&place.image);
    copy(&[place.image.as_ref(), url.as_ref()]).ok();
    assert!(content(&place.image) == before, "the source changed");
    copy(&[place.image.as_ref(), url.as_ref()]).refused(1, &["there already"]);
    // Once more changes nothing.
    copy(&["--resume".as_ref(), place.image.as_ref(), url.as_ref()]).ok();

    let mut far = Place::new();
    far.image = url.clone().into();
    assert!(far.fsck().ok().contains("clean"));
    espalier_on(&["objects", "--deep"], &far).ok();
    let stored: u64 = objects(&place.path("store")).iter().map(|(_, bytes)| bytes).sum();
    assert!(stored < 60 << 20, "{stored} bytes are stored");

    let mut back = Place::new();
    copy(&[url.as_ref(), back.image.as_ref()]).ok();
    assert_eq!(fs::metadata(&back.image).unwrap().len(), 300 << 20);
    assert!(back.fsck().ok().contains("clean"));
    for place in [&mut far, &mut back] {
        place.mount(&[]).ok();
        assert_same_tree(&tree, &place.dir.join("tree"));
        assert_eq!(content(&place.dir.join("last")), b"words");
        assert!(!place.dir.join("gone").exists());
        place.umount().ok();
    }
}

#[test]
fn urls_that_are_none_are_refused_and_secrets_are_not_repeated() {
    let place = Place::new();
    for (url, word) in [
        ("s3://", "bucket"),
        ("file://here", "absolute"),
        ("s3://bucket/p?endpoint=http://user:hunter2@host", "without a password"),
        ("s3://bucket/p?secret=hunter2", "environment"),
        ("s3://key:hunter2@bucket/p", "s3://bucket/p"),
        ("gs://bucket/p?token=hunter2", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://container/p?sig=hunter2", "AZURE_STORAGE_ACCOUNT_KEY"),
        ("az://container/p", "AZURE_STORAGE_ACCOUNT_NAME"),
        ("https://account.blob.core.windows.net/container/p?sig=hunter2", "environment"),
        ("https://example.org/bucket", "no known host"),
    ] {
        let ran = espalier(&["mount".as_ref(), OsStr::new(url), place.dir.as_os_str()]);
        assert!(!ran.stderr.contains("hunter2"), "{url}: {}", ran.stderr);
        ran.refused(1, &[word]);
    }
    let missing = format!("file://{}", place.path("nothing").display());
    espalier(&["fsck", &missing]).refused(8, &[]);
    espalier(&["objects", "--check", "disk.img"]).refused(1, &["name an object store"]);
}
