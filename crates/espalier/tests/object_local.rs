//! What a mount of an object store keeps on the local disk: its cache and its journal.

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
    place.mkfs(&["--size", "1G"]).ok();
    place
}

fn info(place: &Place) -> serde_json::Value {
    let told = espalier(&["info".as_ref(), "--json".as_ref(), place.dir.as_os_str()]).ok();
    serde_json::from_str::<serde_json::Value>(&told).unwrap()["object_store"].clone()
}

/// What `espalier info` and `espalier objects` find out for themselves says nothing of a day.
#[test]
fn only_a_mount_tells_what_a_day_takes() {
    let place = object_place();
    for words in [["info", "--json"], ["objects", "--json"]] {
        let told = espalier(&[words[0].as_ref(), words[1].as_ref(), place.image.as_os_str()]).ok();
        assert!(told.contains("segment_bytes") && !told.contains("a_day_at_this_rate"), "{told}");
    }
    place.mount(&[]).ok();
    assert!(info(&place)["a_day_at_this_rate"].is_object());
    place.umount().ok();
}

fn write_synced(path: &Path, bytes: &[u8]) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(bytes).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_disk_cache_is_used_again_and_its_files_may_be_anything() {
    let place = object_place();
    let (tree, cache) = (place.path("tree"), place.path("cache"));
    make_tree(&tree, 11, 150);
    let options = format!("disk_cache={},disk_cache_size=64M", cache.display());
    place.mount(&["-o", &options]).ok();
    common::run(std::process::Command::new("cp").arg("-a").arg(&tree).arg(place.dir.join("tree")));
    // Every mount needs a directory of its own.
    let second = object_place();
    second.mount(&["-o", &options]).refused(1, &["disk cache", "a directory of its own"]);
    place.umount().ok();

    place.mount(&["-o", &options]).ok();
    assert_same_tree(&tree, &place.dir.join("tree"));
    let told = info(&place);
    let hits = told["disk_cache"]["hits"].as_u64().unwrap();
    assert!(hits > 0 && told["disk_cache"]["damaged"] == 0, "{told}");
    assert!(told["a_day_at_this_rate"]["gets"].as_u64().unwrap() > 0, "{told}");
    place.umount().ok();

    let frames = cache.join("frames");
    let mut bytes = content(&frames);
    let mut random = common::Random(3);
    for _ in 0..bytes.len() / 5000 {
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 0x40;
    }
    fs::write(&frames, &bytes).unwrap();
    place.mount(&["-o", &options]).ok();
    assert_same_tree(&tree, &place.dir.join("tree"));
    assert!(info(&place)["disk_cache"]["damaged"].as_u64().unwrap() > 0, "{}", info(&place));
    fs::remove_dir_all(&cache).unwrap();
    fs::write(place.dir.join("more"), vec![3; 1 << 20]).unwrap();
    place.umount().ok();
    place.mount(&["-o", &options]).ok();
    assert_eq!(content(&place.dir.join("more")), vec![3; 1 << 20]);
    assert_same_tree(&tree, &place.dir.join("tree"));
    place.umount().ok();
    assert!(place.fsck().ok().contains("clean"));
}

#[test]
fn what_was_synced_to_a_journal_survives_the_server() {
    let place = object_place();
    let options = format!("journal={},journal_size=16M", place.path("journal").display());
    for round in 0..6u8 {
        // The journal's lock says that the server of before is dead: its lease is not waited for.
        place.mount(&["-o", &options]).ok();
        for before in 0..round {
            assert_eq!(content(&place.dir.join(format!("synced{before}"))), vec![before; 100_000]);
        }
        write_synced(&place.dir.join(format!("synced{round}")), &vec![round; 100_000]);
        // More than the journal holds.
        if round == 3 {
            fs::write(place.dir.join("large"), common::Random(7).bytes(40 << 20)).unwrap();
            fs::File::open(place.dir.join("large")).unwrap().sync_all().unwrap();
        }
        fs::write(place.dir.join("not synced"), vec![9; 300_000]).unwrap();
        assert_eq!(info(&place)["journal"]["works"], true);
        place.kill_server();
        assert!(place.fsck().ok().contains("clean"));
    }
    // Another one without the journal must not lose what is in it.
    place.mount(&[]).refused(1, &["has it open for writing"]);
    place.mount(&["-o", &options]).ok();
    assert_eq!(content(&place.dir.join("large")), common::Random(7).bytes(40 << 20));
    place.umount().ok();
    // Ended in order: the store has everything, and the journal is not needed.
    place.mount(&[]).ok();
    let names = fs::read_dir(&place.dir).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(names.filter(|name| name != "not synced").count(), 7);
    place.umount().ok();
    place.mount(&["-o", &options]).ok();
    place.umount().ok();
    let words: Vec<&OsStr> = vec!["objects".as_ref(), "--check".as_ref(), place.image.as_os_str()];
    espalier(&words).ok();
    assert!(place.fsck().ok().contains("clean"));
}

#[test]
fn a_journal_whose_store_went_on_without_it_is_kept_and_not_applied() {
    let place = object_place();
    let journal = place.path("journal");
    let options = format!("journal={},journal_size=8M", journal.display());
    place.mount(&["-o", &options]).ok();
    write_synced(&place.dir.join("first"), b"1");
    place.kill_server();
    // Even when the lease has run out.
    let root = fs::File::options().write(true).open(place.path("store/root")).unwrap();
    let modified = root.metadata().unwrap().modified().unwrap();
    root.set_modified(modified - std::time::Duration::from_secs(100)).unwrap();
    place.mount(&[]).refused(1, &["had a journal", "--take-over"]);
    place.mount(&["--take-over"]).ok();
    write_synced(&place.dir.join("second"), b"2");
    place.umount().ok();
    let before = content(&journal);
    for take_over in [&["--take-over", "-o", &options][..], &["-o", &options]] {
        place.mount(take_over).refused(1, &["the journal is kept", "another writer"]);
    }
    assert!(content(&journal) == before, "the journal changed");
    fs::rename(&journal, place.path("kept")).unwrap();
    place.mount(&["-o", &options]).ok();
    assert_eq!(content(&place.dir.join("second")), b"2");
    // One journal is of one mount.
    let second = object_place();
    second.mount(&["-o", &options]).refused(1, &["journal"]);
    place.umount().ok();
    second.mount(&["-o", &options]).ok();
    second.umount().ok();
    // What is something else is left alone.
    fs::write(place.path("other"), vec![7; 8 << 20]).unwrap();
    place.mount(&["-o", &format!("journal={}", place.path("other").display())]).refused(1, &["no journal"]);
    assert!(content(&place.path("other")) == vec![7; 8 << 20]);
    let image = Place::with_image("100M");
    image.mount(&["-o", &options]).refused(1, &["for object stores"]);
}

/// Waits until something holds; the test's limit of time is that of its group.
fn wait_until(holds: impl Fn() -> bool) {
    while !holds() {
        std::thread::yield_now();
    }
}

#[test]
fn a_reader_follows_a_writer() {
    let place = object_place();
    place.mount(&[]).ok();
    write_synced(&place.dir.join("first"), b"1");
    fs::create_dir(place.dir.join("directory")).unwrap();
    write_synced(&place.dir.join("directory/inside"), b"i1");
    // A second machine has nothing of the first but the store: here it has another name for it.
    let mut reader = Place::new();
    std::os::unix::fs::symlink(place.path("store"), reader.path("other")).unwrap();
    reader.image = PathBuf::from(format!("file://{}", reader.path("other").display()));
    reader.mount(&["-o", "follow"]).refused(1, &["with ro"]);
    let options = format!("ro,follow,disk_cache={}", reader.path("cache").display());
    reader.mount(&["-o", &options]).ok();
    let read = |name: &str| fs::read(reader.dir.join(name)).ok();
    assert_eq!(read("first").unwrap(), b"1");
    assert_eq!(read("directory/inside").unwrap(), b"i1");
    assert_eq!(read("later"), None);
    let mut open = fs::File::open(reader.dir.join("first")).unwrap();
    assert_eq!(fs::read_dir(&reader.dir).unwrap().count(), 2);

    write_synced(&place.dir.join("first"), b"22");
    write_synced(&place.dir.join("directory/inside"), b"i2");
    write_synced(&place.dir.join("later"), b"l");
    wait_until(|| read("later").is_some_and(|found| found == b"l"));
    assert_eq!(read("first").unwrap(), b"22");
    assert_eq!(read("directory/inside").unwrap(), b"i2");
    assert_eq!(fs::read_dir(&reader.dir).unwrap().count(), 3);
    // What was open is as it was when it was opened.
    let mut found = Vec::new();
    std::io::Read::read_to_end(&mut open, &mut found).unwrap();
    assert_eq!(found, b"1");
    for round in 0..3u8 {
        write_synced(&place.dir.join("first"), &vec![round; 100_000]);
        wait_until(|| read("first").is_some_and(|found| found == vec![round; 100_000]));
    }
    fs::remove_file(place.dir.join("later")).unwrap();
    fs::rename(place.dir.join("directory"), place.dir.join("moved")).unwrap();
    fs::File::open(&place.dir).unwrap().sync_all().unwrap();
    wait_until(|| read("later").is_none());
    assert_eq!((read("directory/inside"), read("moved/inside").unwrap()), (None, b"i2".to_vec()));
    assert!(fs::write(reader.dir.join("mine"), b"x").is_err());
    assert!(info(&reader)["disk_cache"]["frames"].as_u64().unwrap() > 0);
    drop(open);
    reader.umount().ok();
    place.umount().ok();
    assert!(place.fsck().ok().contains("clean"));
}

#[test]
fn a_reader_has_a_snapshot_beside_the_writer_and_metrics_count_requests() {
    let place = object_place();
    let socket = place.path("metrics");
    place.mount(&["-o", &format!("metrics=unix:{}", socket.display())]).ok();
    write_synced(&place.dir.join("file"), b"before");
    espalier(&["snapshot".as_ref(), "create".as_ref(), place.dir.as_os_str(), "one".as_ref()]).ok();
    write_synced(&place.dir.join("file"), b"after");
    let mut reader = Place::new();
    std::os::unix::fs::symlink(place.path("store"), reader.path("other")).unwrap();
    reader.image = PathBuf::from(format!("file://{}", reader.path("other").display()));
    reader.mount(&["-o", "ro,snapshot=one"]).ok();
    assert_eq!(content(&reader.dir.join("file")), b"before");
    assert_eq!(content(&place.dir.join("file")), b"after");
    assert!(fs::write(reader.dir.join("mine"), b"x").is_err());
    reader.umount().ok();
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let mut metrics = String::new();
    std::io::Read::read_to_string(&mut stream, &mut metrics).unwrap();
    let puts = "espalier_object_requests_total{verb=\"put\"} ";
    let line = metrics.lines().find_map(|line| line.strip_prefix(puts)).expect("puts are counted");
    assert!(line.parse::<f64>().unwrap() >= 4.0, "{line}");
    place.umount().ok();
    assert!(place.fsck().ok().contains("clean"));
}

/// The objects with blocks that a store has, and which a check does not miss when they are away:
/// the writer would delete them when the grace time has passed.
fn delete_dead(place: &Place, before: &[PathBuf]) -> usize {
    let check = |url: &Path| {
        let words = ["objects".as_ref(), url.as_os_str(), "--check".as_ref()];
        espalier::<&OsStr>(&words).code == Some(0)
    };
    let away = place.path("away");
    let is_dead = |object: &&PathBuf| {
        fs::rename(object, &away).unwrap();
        let is_dead = check(&place.image);
        if !is_dead {
            fs::rename(&away, object).unwrap();
        }
        is_dead
    };
    before.iter().filter(is_dead).count()
}

#[test]
fn a_reader_whose_state_was_deleted_is_told_that_it_is_stale() {
    let place = object_place();
    place.mount(&[]).ok();
    let mut bytes = vec![0; 24 << 20];
    let mut random = common::Random(5);
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
    write_synced(&place.dir.join("large"), &bytes);
    let mut reader = Place::new();
    std::os::unix::fs::symlink(place.path("store"), reader.path("other")).unwrap();
    reader.image = PathBuf::from(format!("file://{}", reader.path("other").display()));
    reader.mount(&["-o", "ro"]).ok();
    let data = place.path("store").join("data");
    let before: Vec<PathBuf> = fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path()).collect();
    // Nothing is deleted in time, and the object that is missing while the state is the newest is
    // damage.
    let largest = before.iter().max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap();
    fs::rename(largest, place.path("kept")).unwrap();
    let error = fs::read(reader.dir.join("large")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
    fs::rename(place.path("kept"), largest).unwrap();

    fs::remove_file(place.dir.join("large")).unwrap();
    fs::write(place.dir.join("small"), "small").unwrap();
    place.umount().ok();
    assert!(delete_dead(&place, &before) > 0);
    let error = fs::read(reader.dir.join("large")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE), "{error}");
    let scrub = espalier(&["scrub".as_ref(), reader.dir.as_os_str()]);
    scrub.refused(1, &["was replaced", "mount again"]);
    reader.umount().ok();
    reader.mount(&["-o", "ro"]).ok();
    assert_eq!(content(&reader.dir.join("small")), b"small");
    reader.umount().ok();
    assert!(place.fsck().ok().contains("clean"));
}
