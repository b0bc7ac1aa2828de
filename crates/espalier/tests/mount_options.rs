//! Options and habits of mount(8): remount, second mounts, nofail, what a server keeps of its
//! caller.

mod common;

use common::{Place, Ran, espalier, run};
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Calls the program as mount(8) calls its helper.
fn helper(place: &Place, words: &[&OsStr]) -> Ran {
    let helper = place.path("mount.fuse.espalier");
    if !helper.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_espalier"), &helper).unwrap();
    }
    Command::new(helper).args(words).stdin(Stdio::null()).output().unwrap().into()
}

/// The options that the kernel shows for the mount at `dir`.
fn shown_options(dir: &Path) -> String {
    run(Command::new("findmnt").args(["-n", "-o", "OPTIONS", "--mountpoint"]).arg(dir)).trim().to_owned()
}

#[test]
fn a_mount_is_remounted_read_only_and_writable_again() {
    let place = Place::mounted("64M");
    fs::write(place.dir.join("f"), "one").unwrap();
    let remount = |options: &str| {
        helper(&place, &[place.image.as_ref(), place.dir.as_ref(), "-o".as_ref(), options.as_ref()])
    };
    remount("remount,ro").ok();
    let refused = fs::write(place.dir.join("f"), "two").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    remount("remount,rw,nosuid,nodev,nosymfollow").ok();
    fs::write(place.dir.join("f"), "three").unwrap();
    let options = shown_options(&place.dir);
    for flag in ["rw", "nosuid", "nodev", "nosymfollow"] {
        assert!(options.split(',').any(|o| o == flag), "{flag} in {options}");
    }
    // The whole list of the fstab comes along, as mount(8) passes it.
    remount("remount,rw,cache=256M,nofail,_netdev,x-systemd.automount").ok();
    assert!(!shown_options(&place.dir).contains("nosuid"));
    for option in ["cache=1G", "writeback", "commit=1", "transport=classic", "noxattr"] {
        remount(&format!("remount,{option}")).refused(1, &[option, "mount it anew"]);
    }
    let elsewhere = [place.image.as_ref(), place.base.path().as_os_str(), "-o".as_ref(), "remount".as_ref()];
    helper(&place, &elsewhere).refused(1, &["no Espalier file system is mounted there"]);
    place.umount().ok();
    place.fsck().ok();
}

#[test]
fn a_remount_does_not_make_a_read_only_server_write() {
    let place = Place::with_image("64M");
    place.mount(&["-o", "ro"]).ok();
    let words = [place.image.as_ref(), place.dir.as_ref(), "-o".as_ref(), OsStr::new("remount,rw")];
    helper(&place, &words).refused(1, &["for reading only", "mount it anew"]);
    assert!(shown_options(&place.dir).starts_with("ro"));
}

#[test]
fn the_rule_for_times_of_last_access_changes_with_a_remount() {
    let place = Place::mounted("64M");
    let file = place.dir.join("f");
    fs::write(&file, "content").unwrap();
    let remount = |options: &str| {
        helper(&place, &[place.image.as_ref(), place.dir.as_ref(), "-o".as_ref(), options.as_ref()]).ok();
    };
    let drop_pages = || fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    let atime = || fs::metadata(&file).map(|m| (m.atime(), m.atime_nsec())).unwrap();
    let read = || {
        fs::File::open(&file).unwrap().sync_all().unwrap();
        drop_pages();
        fs::read(&file).unwrap();
        atime()
    };
    let made = atime();
    remount("remount,noatime");
    assert_eq!(read(), made, "noatime");
    remount("remount,strictatime");
    // A page that is in use for a moment stays in the cache, and is read without a request.
    let later_than = |before| (0..100).map(|_| read()).find(|now| *now > before).expect("strictatime");
    later_than(later_than(made));
    remount("remount,relatime");
    let last = atime();
    assert_eq!(read(), last, "relatime");
}

#[test]
fn mount_shows_a_mounted_image_at_a_second_place() {
    for transport in ["io_uring", "classic"] {
        let place = Place::with_image("64M");
        place.mount(&["-o", &format!("transport={transport}")]).ok();
        fs::write(place.dir.join("f"), "same").unwrap();
        let second = place.path("second");
        fs::create_dir(&second).unwrap();
        let call = |options: &str| {
            let words = [place.image.as_os_str(), second.as_os_str(), "-o".as_ref(), options.as_ref()];
            helper(&place, &words)
        };
        for refused in ["writeback", "commit=1", "inode32", "noxattr", "snapshot=other"] {
            call(refused).refused(1, &[refused, "same options"]);
        }
        call(&format!("ro,cache=256M,relatime,nofail,x-systemd.automount,transport={transport}")).ok();
        assert_eq!(fs::read(second.join("f")).unwrap(), b"same");
        assert_eq!(fs::write(second.join("f"), "x").unwrap_err().raw_os_error(), Some(libc::EROFS));
        fs::write(place.dir.join("g"), "seen at both").unwrap();
        assert_eq!(fs::read(second.join("g")).unwrap(), b"seen at both");
        assert!(shown_options(&second).starts_with("ro,") && shown_options(&place.dir).starts_with("rw,"));
        // By hand no server is started beside the one that runs.
        let third = place.path("third");
        fs::create_dir(&third).unwrap();
        espalier(&["mount".as_ref(), "--foreground".as_ref(), place.image.as_os_str(), third.as_os_str()])
            .refused(1, &["mounted"]);
        place.umount().ok();
        assert_eq!(fs::read(second.join("g")).unwrap(), b"seen at both", "the server ended too early");
        espalier(&["umount".as_ref(), second.as_os_str()]).ok();
        place.fsck().ok();
    }
}

/// Names, numbers and positions of the entries of a directory.
fn entries(dir: &Path) -> Vec<(Vec<u8>, u64, u64)> {
    let open = fs::File::open(dir).unwrap();
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut raw = rustix::fs::RawDir::new(open, buffer.spare_capacity_mut());
    let mut all = Vec::new();
    while let Some(entry) = raw.next() {
        let entry = entry.unwrap();
        all.push((entry.file_name().to_bytes().to_vec(), entry.ino(), entry.next_entry_cookie()));
    }
    all
}

#[test]
fn programs_of_32_bits_can_list_directories_and_clones() {
    for transport in ["io_uring", "classic"] {
        let place = Place::with_image("64M");
        place.mount(&["-o", &format!("inode32,transport={transport}")]).ok();
        let source = place.dir.join("source");
        fs::create_dir_all(source.join("sub")).unwrap();
        (0..300).for_each(|n| fs::write(source.join(format!("file-{n}")), "").unwrap());
        fs::hard_link(source.join("file-0"), source.join("sub/second")).unwrap();
        let copies = ["one", "two", "one/three"].map(|name| place.dir.join(name));
        for copy in &copies {
            espalier(&["clone".as_ref(), source.as_os_str(), copy.as_os_str()]).ok();
        }
        let mut numbers = std::collections::BTreeSet::new();
        for dir in copies.iter().chain([&source]) {
            let all = entries(dir);
            assert!(all.len() >= 303);
            for (name, ino, position) in all.iter().filter(|(name, ..)| !name.starts_with(b".")) {
                let shown = String::from_utf8_lossy(name);
                assert!(*ino < 1 << 32 && *position < 1 << 31, "{shown}: {ino:#x}, {position:#x}");
                assert_eq!(fs::symlink_metadata(dir.join(OsStr::from_bytes(name))).unwrap().ino(), *ino);
                assert!(numbers.insert(*ino), "{shown}: {ino}");
            }
        }
        place.umount().ok();
        place.fsck().ok();
    }
}

#[test]
fn nofail_forgives_an_image_that_is_not_there() {
    let place = Place::new();
    place.mount(&["-o", "nofail"]).ok();
    place.mount(&[]).refused(1, &["no such image"]);
    place.mkfs(&["--size", "64M"]).ok();
    place.mount(&["-o", "nofail"]).ok();
    assert!(!shown_options(&place.dir).is_empty());
}

#[test]
fn a_server_keeps_no_descriptor_of_its_caller() {
    let place = Place::with_image("64M");
    let lock = place.path("lock");
    let script = "exec 9>\"$1\" && flock 9 && shift && exec \"$@\"";
    let program = env!("CARGO_BIN_EXE_espalier");
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(&lock).args([program, "mount"]).args([&place.image, &place.dir]);
    run(&mut command);
    run(Command::new("flock").arg("--nonblock").arg(&lock).arg("true"));
    let pid = place.server();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).unwrap() {
        let target = fs::read_link(entry.unwrap().path()).unwrap_or_default();
        assert_ne!(target, lock);
    }
}

/// Processes of the program that work with `image`.
fn servers_of(image: &Path) -> Vec<PathBuf> {
    let processes = fs::read_dir("/proc").unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let uses = |process: &PathBuf| {
        let line = fs::read(process.join("cmdline")).unwrap_or_default();
        line.split(|b| *b == 0).any(|word| word == image.as_os_str().as_bytes())
    };
    processes.filter(uses).collect()
}

#[test]
fn an_interrupted_mount_does_not_go_on_in_the_background() {
    let place = Place::with_image("64M");
    let held = fs::OpenOptions::new().read(true).write(true).open(&place.image).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mut mount = Command::new(env!("CARGO_BIN_EXE_espalier"))
        .arg("mount")
        .args([&place.image, &place.dir])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(mount.stderr.take().unwrap()).read_line(&mut said).unwrap();
    // The process that holds the lock is this one.
    assert!(said.contains(&format!("process {} ", std::process::id())), "{said}");
    run(Command::new("kill").args(["-INT", &mount.id().to_string()]));
    mount.wait().unwrap();
    while !servers_of(&place.image).is_empty() {
        std::thread::yield_now();
    }
    drop(held);
    assert!(fs::read_dir(&place.dir).unwrap().next().is_none());
    place.mount(&[]).ok();
}

#[test]
fn names_that_are_not_utf8_are_names() {
    let place = Place::new();
    let image = place.base.path().join(OsStr::from_bytes(b"im\xffage, \\ disk.img"));
    let words = |command: &'static str| [OsStr::new(command), image.as_os_str()];
    espalier(&[OsStr::new("mkfs"), "--size".as_ref(), "64M".as_ref(), image.as_os_str()]).ok();
    espalier(&[OsStr::new("mount"), image.as_os_str(), place.dir.as_os_str()]).ok();
    let text = espalier(&words("info")).ok();
    assert!(text.contains("disk.img"), "{text}");
    let second = place.path("second");
    fs::create_dir(&second).unwrap();
    espalier(&[OsStr::new("mount"), image.as_os_str(), second.as_os_str()]).refused(1, &["mounted already"]);
    espalier(&words("fsck")).refused(8, &["mounted at"]);
    place.umount().ok();
    espalier(&words("fsck")).ok();
}

#[test]
fn a_server_in_the_background_logs_to_the_file_it_is_given() {
    let place = Place::with_image("64M");
    let log = place.path("log");
    let option = format!("logfile={}", log.display());
    place.mount(&["--verbose", "-o", &option]).ok();
    place.umount().ok();
    let lines = fs::read_to_string(&log).unwrap();
    for word in ["INFO", "mounted", "unmounted", "a.img"] {
        assert!(lines.contains(word), "'{word}' is not in {lines}");
    }
    // Several servers may have one log.
    let mount = format!("mount={:?}", place.dir);
    assert!(lines.lines().all(|line| line.contains(&mount)), "{mount} is not in each of {lines}");
    place.mount(&["-o", "logfile=/proc/none/log"]).ok();
}
