//! Mounting and unmounting: what works, what is refused, and what a server that dies leaves behind.

mod common;

use common::{Loop, Place, content, espalier, run};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn what_is_written_is_there_after_a_remount() {
    let place = Place::mounted("256M");
    fs::create_dir(place.dir.join("d")).unwrap();
    fs::write(place.dir.join("d/f"), "hello").unwrap();
    assert!(!fs::read_dir(&place.dir).unwrap().any(|e| e.unwrap().file_name() == "lost+found"));
    place.remount();
    assert_eq!(fs::read(place.dir.join("d/f")).unwrap(), b"hello");
    place.umount().ok();
    assert!(fs::read_dir(&place.dir).unwrap().next().is_none());
}

#[test]
fn wrong_mount_points_are_refused() {
    let place = Place::with_image("64M");
    let mount = |dir: &Path| espalier(&["mount".as_ref(), place.image.as_os_str(), dir.as_os_str()]);
    mount(&place.path("missing")).refused(1, &["missing", "no such directory", "mkdir"]);
    mount(&place.image).refused(1, &["a.img", "no directory"]);
    fs::write(place.dir.join("precious"), "data").unwrap();
    mount(&place.dir).refused(1, &["mnt", "not empty", "nonempty"]);
    assert_eq!(fs::read(place.dir.join("precious")).unwrap(), b"data");
    place.mount(&["-o", "nonempty"]).ok();
    assert!(!place.dir.join("precious").exists());
    place.umount().ok();
    assert!(place.dir.join("precious").exists());
}

#[test]
fn wrong_options_are_refused() {
    let place = Place::with_image("64M");
    place.mount(&["-o", "colour=red"]).refused(1, &["colour=red", "--help"]);
    place.mount(&["--cache", "1K"]).refused(2, &["--cache"]);
    let small = ["-o".as_ref(), "cache=1K".as_ref()];
    let words = [&["mount".as_ref(), place.image.as_os_str(), place.dir.as_os_str()], &small[..]].concat();
    espalier(&words).refused(1, &["1 KiB", "64 MiB"]);
    place.fsck().ok();
}

#[test]
fn a_mounted_image_is_refused_to_everybody_else() {
    let place = Place::mounted("64M");
    let here = place.dir.to_string_lossy().into_owned();
    let other = place.path("other");
    fs::create_dir(&other).unwrap();
    espalier(&["mount".as_ref(), place.image.as_os_str(), other.as_os_str()])
        .refused(1, &["mounted already", &here]);
    place.mkfs(&["--size", "64M"]).refused(1, &["mounted", &here]);
    place.mkfs(&["--size", "64M", "--force"]).refused(1, &["mounted", &here]);
    place.fsck().refused(8, &["mounted", &here, "umount"]);
    // Another name for the same image makes no difference: the lock is on the file.
    let alias = place.path("alias.img");
    fs::hard_link(&place.image, &alias).unwrap();
    espalier(&["fsck".as_ref(), alias.as_os_str()]).refused(8, &["alias.img", &here]);
    espalier(&["mount".as_ref(), alias.as_os_str(), other.as_os_str()]).refused(1, &["alias.img", &here]);
    fs::write(place.dir.join("f"), "still works").unwrap();
    place.remount();
    assert_eq!(fs::read(place.dir.join("f")).unwrap(), b"still works");
}

#[test]
fn a_read_only_file_is_refused_or_mounted_read_only() {
    let place = Place::mounted("64M");
    fs::write(place.dir.join("f"), "kept").unwrap();
    place.umount().ok();
    let before = content(&place.image);
    place.mount(&["-o", "ro"]).ok();
    assert_eq!(fs::read(place.dir.join("f")).unwrap(), b"kept");
    let refused = fs::write(place.dir.join("g"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::remove_file(place.dir.join("f")).unwrap_err().raw_os_error(), Some(libc::EROFS));
    place.umount().ok();
    assert!(content(&place.image) == before, "a read-only mount wrote to the image");

    // Root may write what no mode allows: an immutable file stops root, a mode stops others.
    run(Command::new("chattr").arg("+i").arg(&place.image));
    let ran = place.mount(&[]);
    run(Command::new("chattr").arg("-i").arg(&place.image));
    ran.refused(1, &["a.img", "ro"]);
    place.mount(&[]).ok();
}

#[test]
fn a_full_file_system_says_so_and_loses_nothing() {
    let place = Place::mounted("64M");
    fs::write(place.dir.join("kept"), "kept").unwrap();
    let chunk = common::Random(3).bytes(1 << 20);
    let mut file = fs::File::create(place.dir.join("large")).unwrap();
    let mut written = 0u64;
    let error = loop {
        match file.write(&chunk) {
            Ok(n) => written += n as u64,
            Err(error) => break error,
        }
        assert!(written < 64 << 20, "more fits in than there is room");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));
    assert!(written > 24 << 20, "only {written} bytes fit into 64 MiB");
    file.sync_all().expect("what was accepted can be made durable");
    drop(file);
    place.remount();
    assert_eq!(fs::read(place.dir.join("kept")).unwrap(), b"kept");
    let large = content(&place.dir.join("large"));
    assert_eq!(large.len() as u64, written);
    assert!(large.chunks(1 << 20).all(|c| c == &chunk[..c.len()]));
    // Removing needs no room, and gives it back.
    fs::remove_file(place.dir.join("large")).unwrap();
    fs::File::open(&place.dir).unwrap().sync_all().unwrap();
    fs::write(place.dir.join("again"), &chunk).expect("there is room again");
    place.remount();
    assert_eq!(fs::read(place.dir.join("again")).unwrap(), chunk);
}

#[test]
fn a_full_disk_below_a_sparse_image_is_an_error_and_no_loss() {
    let place = Place::new();
    let small = place.path("small");
    fs::create_dir(&small).unwrap();
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=40m", "tmpfs"]).arg(&small));
    let image = small.join("b.img");
    let outcome = std::panic::catch_unwind(|| {
        espalier(&["mkfs".as_ref(), "--size".as_ref(), "1G".as_ref(), image.as_os_str()]).ok();
        espalier(&["mount".as_ref(), image.as_os_str(), place.dir.as_os_str()]).ok();
        fs::write(place.dir.join("early"), "durable").unwrap();
        fs::File::open(&place.dir).unwrap().sync_all().unwrap();
        let chunk = common::Random(4).bytes(1 << 20);
        let mut failed = false;
        for number in 0..200 {
            let path = place.dir.join(format!("f{number}"));
            let written = fs::write(&path, &chunk).and_then(|()| fs::File::open(&path)?.sync_all());
            if written.is_err() {
                failed = true;
                break;
            }
        }
        assert!(failed, "200 MiB fit into 40");
        // The store is read-only now, and still answers.
        assert_eq!(fs::read(place.dir.join("early")).unwrap(), b"durable");
        let _ = place.umount();
        run(Command::new("mount").args(["-o", "remount,size=400m"]).arg(&small));
        espalier(&["fsck".as_ref(), image.as_os_str()]).ok();
        espalier(&["mount".as_ref(), image.as_os_str(), place.dir.as_os_str()]).ok();
        assert_eq!(fs::read(place.dir.join("early")).unwrap(), b"durable");
        place.umount().ok();
    });
    let _ = espalier(&["umount".as_ref(), "--lazy".as_ref(), place.dir.as_os_str()]);
    run(Command::new("umount").arg("-l").arg(&small));
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_busy_mount_is_not_unmounted() {
    let place = Place::mounted("64M");
    let held = fs::File::create(place.dir.join("held")).unwrap();
    place.umount().refused(1, &["busy", "fuser"]);
    // It says which process that is.
    place.umount().refused(1, &[&format!("({})", std::process::id())]);
    held.write_all_at(b"works", 0).unwrap();
    // SIGTERM does not take it away either: the server makes everything durable and stays.
    let pid = place.server();
    run(Command::new("kill").args(["-TERM", &pid.to_string()]));
    held.write_all_at(b"still", 5).unwrap();
    assert_eq!(place.server(), pid);
    drop(held);
    place.remount();
    assert_eq!(fs::read(place.dir.join("held")).unwrap(), b"worksstill");
    espalier(&["umount".as_ref(), place.base.path().as_os_str()]).refused(1, &["nothing is mounted"]);
    espalier(&["umount", "/proc"]).refused(1, &["umount(8)"]);
    espalier(&["umount", "/no/such/dir"]).refused(1, &["no such directory"]);
}

#[test]
fn umount_does_not_wait_for_another_mount_namespace() {
    let place = Place::mounted("64M");
    let server = place.server();
    let mut holder = Command::new("unshare")
        .args(["--mount", "sh", "-c", "echo ready; read line; exit 0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
    fs::write(place.dir.join("f"), "kept").unwrap();
    let left = place.umount();
    let told = left.stderr.clone();
    left.ok();
    assert!(told.contains(&holder.id().to_string()) && told.contains("namespace"), "{told}");
    assert!(fs::read_dir(&place.dir).unwrap().next().is_none(), "it is still mounted here");
    assert!(Path::new(&format!("/proc/{server}")).exists(), "it is served there");
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(holder.wait().unwrap().success());
    while Path::new(&format!("/proc/{server}")).exists() {
        std::thread::yield_now();
    }
    place.mount(&[]).ok();
    assert_eq!(fs::read(place.dir.join("f")).unwrap(), b"kept");
}

#[test]
fn sigterm_unmounts_and_keeps_everything() {
    let place = Place::mounted("64M");
    fs::write(place.dir.join("f"), "kept").unwrap();
    let pid = place.server();
    run(Command::new("kill").args(["-TERM", &pid.to_string()]));
    while Path::new(&format!("/proc/{pid}")).exists() {
        std::thread::yield_now();
    }
    assert!(fs::read_dir(&place.dir).unwrap().next().is_none(), "it is still mounted");
    place.fsck().ok();
    place.mount(&[]).ok();
    assert_eq!(fs::read(place.dir.join("f")).unwrap(), b"kept");
}

#[test]
fn a_server_in_the_foreground_ends_with_its_mount() {
    let place = Place::with_image("64M");
    let mut server = Command::new(env!("CARGO_BIN_EXE_espalier"))
        .args(["mount", "--foreground"])
        .args([&place.image, &place.dir])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = std::io::BufReader::new(server.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    assert!(line.contains("is mounted"), "{line}");
    fs::write(place.dir.join("f"), "x").unwrap();
    place.umount().ok();
    assert!(server.wait().unwrap().success());
    place.fsck().ok();
}

#[test]
fn info_on_a_mount_without_xattrs_says_why_it_cannot_ask() {
    let place = Place::with_image("64M");
    place.mount(&["-o", "noxattr"]).ok();
    fs::write(place.dir.join("f"), "hello").unwrap();
    let info = || espalier(&["info".as_ref(), place.dir.as_os_str()]);
    for _ in 0..2 {
        info().refused(1, &["mnt", "noxattr", "unmounted"]);
    }
    for command in ["scrub", "trim"] {
        espalier(&[command.as_ref(), place.dir.as_os_str()]).refused(1, &["mnt", "noxattr"]);
    }
    place.umount().ok();
    espalier(&["info".as_ref(), place.image.as_os_str()]).ok();
}

/// Nothing can be made there, of which the kernel must not conclude what can be made elsewhere.
#[test]
fn who_tries_to_make_files_in_a_snapshot_is_refused_and_others_make_theirs_as_before() {
    use std::os::unix::fs::OpenOptionsExt;
    let place = Place::mounted("64M");
    espalier(&["snapshot".as_ref(), "create".as_ref(), place.dir.as_os_str(), "then".as_ref()]).ok();
    let made = || {
        let json = espalier(&["info".as_ref(), "--json".as_ref(), place.dir.as_os_str()]).ok();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let count = |kind: &str| json["mount"]["requests"][kind].as_u64().unwrap_or(0);
        (count("create"), count("mknod"))
    };
    // With the first file the kernel learns that files are made by MKNOD here.
    fs::write(place.dir.join("first"), "first").unwrap();
    let (before, then) = (made(), fs::write(place.dir.join("a"), "a").map(|()| made()).unwrap());
    for below in [".snapshots/then", ".snapshots"] {
        let dir = place.dir.join(below);
        let refused = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EROFS), "{below}");
        };
        refused(fs::write(dir.join("x"), "x"));
        refused(fs::OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(&dir).map(drop));
    }
    let tried = made();
    fs::write(place.dir.join("b"), "b").unwrap();
    let after = made();
    assert_eq!((then.0 - before.0, then.1 - before.1), (after.0 - tried.0, after.1 - tried.1));
    fs::OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(&place.dir).unwrap();
    place.umount().ok();
    place.fsck().ok();
}

#[test]
fn info_on_a_mount_asks_the_server() {
    let place = Place::mounted("64M");
    let text = espalier(&["info".as_ref(), place.dir.as_os_str()]).ok();
    assert!(text.contains("a.img"), "{text}");
    // The image's name leads to the same server.
    let json = espalier(&["info".as_ref(), "--json".as_ref(), place.image.as_os_str()]).ok();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["mount"]["pid"], i64::from(place.server()));
    assert!(["io_uring", "classic"].contains(&json["mount"]["transport"].as_str().unwrap()));
    espalier(&["info".as_ref(), place.base.path().as_os_str()]).refused(1, &["no Espalier"]);
}

#[test]
fn the_doctor_finds_that_mounts_work_and_how_one_is_served() {
    let place = Place::with_image("64M");
    place.mount(&["-o", "transport=classic"]).ok();
    let text = espalier(&["doctor".as_ref(), place.dir.as_os_str()]).ok();
    assert!(text.contains("classic transport"), "{text}");
    let json = espalier(&["doctor", "--json"]).ok();
    let findings: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert!(findings.iter().any(|finding| finding["what"] == "kernel"), "{json}");
    assert!(findings.iter().all(|finding| finding["grade"] != "broken"), "{json}");
    espalier(&["doctor".as_ref(), place.base.path().as_os_str()]).refused(1, &["no Espalier"]);
}

#[test]
fn an_ordinary_user_can_mount() {
    let place = Place::new();
    // The user needs a way in, and an image of their own.
    let opened = common::open_way_to(&place);
    place.mkfs(&["--size", "64M"]).ok();
    run(Command::new("chown").arg("nobody").args([&place.image, &place.dir]));
    let program = place.path("espalier");
    fs::copy(env!("CARGO_BIN_EXE_espalier"), &program).unwrap();
    let as_user = |words: &[&Path]| -> common::Ran {
        let user = ["-u", "nobody", "--"];
        let out = Command::new("runuser").args(user).arg(&program).args(words).stdin(Stdio::null()).output();
        out.unwrap().into()
    };
    as_user(&["mount".as_ref(), &place.image, &place.dir]).ok();
    let owner = run(Command::new("runuser").args(["-u", "nobody", "--", "stat", "-c", "%U"]).arg(&place.dir));
    assert!(!owner.is_empty());
    as_user(&["info".as_ref(), &place.dir]).ok();
    as_user(&["umount".as_ref(), &place.dir]).ok();
    as_user(&["fsck".as_ref(), &place.image]).ok();
    common::close_way(opened);
}

#[test]
fn a_server_that_dies_takes_its_mount_along_if_asked() {
    let place = Place::with_image("64M");
    place.mount(&["-o", "auto_unmount"]).ok();
    fs::write(place.dir.join("f"), "x").unwrap();
    fs::File::open(&place.dir).unwrap().sync_all().unwrap();
    run(Command::new("kill").args(["-KILL", &place.server().to_string()]));
    let here = place.dir.to_string_lossy().into_owned();
    while fs::read_to_string("/proc/self/mounts").unwrap().contains(&here) {
        std::thread::yield_now();
    }
    place.mount(&["-o", "auto_unmount"]).ok();
    assert_eq!(fs::read(place.dir.join("f")).unwrap(), b"x");
    // A mount that ends in order leaves nothing behind that would unmount the next one.
    place.umount().ok();
    place.mount(&[]).ok();
    assert_eq!(fs::read(place.dir.join("f")).unwrap(), b"x");
}

#[test]
fn commands_on_a_dead_mount_say_so() {
    let place = Place::mounted("64M");
    run(Command::new("kill").args(["-KILL", &place.server().to_string()]));
    while rustix::fs::statfs(&place.dir).is_ok() {
        std::thread::yield_now();
    }
    espalier(&["info".as_ref(), place.dir.as_os_str()]).refused(1, &["has died", "espalier umount"]);
    place.umount().ok();
    place.mount(&[]).ok();
}

#[test]
fn a_mount_takes_the_place_of_one_whose_server_died() {
    let place = Place::mounted("64M");
    fs::write(place.dir.join("f"), "kept").unwrap();
    fs::File::open(&place.dir).unwrap().sync_all().unwrap();
    run(Command::new("kill").args(["-KILL", &place.server().to_string()]));
    while rustix::fs::statfs(&place.dir).is_ok() {
        std::thread::yield_now();
    }
    let again = place.mount(&[]);
    assert!(again.stderr.contains("has died"), "{again:?}");
    again.ok();
    assert_eq!(fs::read(place.dir.join("f")).unwrap(), b"kept");
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    assert_eq!(table.matches(&*place.dir.to_string_lossy()).count(), 1, "the dead mount is still there");
}

#[test]
fn an_ordinary_user_mounts_again_after_a_server_has_died() {
    let place = Place::new();
    let opened = common::open_way_to(&place);
    fs::write(&place.image, "").unwrap();
    run(Command::new("chown").arg("nobody").args([&place.image, &place.dir]));
    let program = place.path("espalier");
    fs::copy(env!("CARGO_BIN_EXE_espalier"), &program).unwrap();
    let here = place.dir.to_string_lossy().into_owned();
    let is_mounted = || fs::read_to_string("/proc/self/mounts").unwrap().contains(&here);
    let as_user = |words: &[&str]| -> common::Ran {
        let mut command = Command::new("runuser");
        command.args(["-u", "nobody", "--"]).args(words).stdin(Stdio::null());
        command.output().unwrap().into()
    };
    let (espalier, image) = (program.to_string_lossy(), place.image.to_string_lossy());
    as_user(&[&espalier, "mkfs", "--size", "64M", &image]).ok();
    for options in ["rw", "auto_unmount"] {
        as_user(&[&espalier, "mount", "-o", options, &image, &here]).ok();
        as_user(&["sh", "-ec", &format!("echo {options} > '{here}/f'; sync '{here}/f'")]).ok();
        // Root is not let in.
        let info = as_user(&[&espalier, "info", "--json", &here]).ok();
        let info: serde_json::Value = serde_json::from_str(&info).unwrap();
        let server = info["mount"]["pid"].to_string();
        run(Command::new("kill").args(["-KILL", &server]));
        let is_there = || Path::new("/proc").join(&server).exists();
        while is_there() || (options == "auto_unmount" && is_mounted()) {
            std::thread::yield_now();
        }
        let again = as_user(&[&espalier, "mount", "-o", options, &image, &here]);
        assert_eq!(again.stderr.contains("has died"), options == "rw", "{again:?}");
        again.ok();
        let kept = as_user(&["cat", &format!("{here}/f")]).ok();
        assert_eq!(kept.trim(), options);
        as_user(&[&espalier, "umount", &here]).ok();
        as_user(&[&espalier, "fsck", &image]).ok();
    }
    common::close_way(opened);
}

#[test]
fn a_mount_of_a_block_device_reads_ahead_and_leaves_the_device_alone() {
    let place = Place::with_image("64M");
    let device = Loop::on(&place.image);
    let number = fs::metadata(&device.0).unwrap().rdev();
    let name = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let window = |of: &str| {
        fs::read_to_string(format!("/sys/class/bdi/{name}{of}/read_ahead_kb")).unwrap().trim().to_owned()
    };
    let before = window("");
    device.mount(&place.dir, &["-o", "readahead=768"]).ok();
    assert_eq!((window("-fuseblk"), window("")), ("768".into(), before));
    place.umount().ok();
}
