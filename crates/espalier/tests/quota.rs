//! `espalier quota` on mounts: what fails with EDQUOT, what `df` shows, and which users set limits.

mod common;

use common::{Place, Ran, Random, espalier, run};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{ErrorKind, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
/// An ordinary user.
const USER: u32 = 4321;
/// A limit is kept but for this: a share of the limit, what writes carry at a time, metadata.
const SLACK_BYTES: u64 = 2 * MIB;

fn quota(words: &[&str], dir: &Path) -> Ran {
    let (verb, rest) = words.split_first().unwrap();
    let mut all = vec!["quota".as_ref(), verb.as_ref(), dir.as_os_str()];
    all.extend(rest.iter().map(std::ffi::OsStr::new));
    espalier(&all)
}

/// The command as the ordinary user.
fn as_user(words: &[&str], dir: &Path) -> Ran {
    let id = USER.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", env!("CARGO_BIN_EXE_espalier"), "quota"]);
    let (verb, rest) = words.split_first().unwrap();
    command.arg(verb).arg(dir).args(rest).stdin(Stdio::null());
    command.output().expect("the program runs").into()
}

/// What `quota show` says a tree holds alone, and its limit.
#[track_caller]
fn shown(dir: &Path) -> (u64, Option<u64>) {
    let told: Value = serde_json::from_str(&quota(&["show", "--json"], dir).ok()).unwrap();
    (told["exclusive_bytes"].as_u64().unwrap_or(0), told["exclusive_limit_bytes"].as_u64())
}

/// Writes bytes that cannot be compressed to a file until that is refused; returns how many.
fn fill(path: &Path, most: u64) -> u64 {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    let mut random = Random(most + path.as_os_str().len() as u64);
    let mut done = 0;
    while done < most {
        match file.write(&random.bytes(256 << 10)) {
            Ok(count) => done += count as u64,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error}");
                break;
            }
        }
    }
    done
}

#[track_caller]
fn about(found: u64, expected: u64) {
    assert!(found + SLACK_BYTES >= expected && found <= expected + SLACK_BYTES, "{found} for {expected}");
}

/// The size of the file system and what is free, as df shows them in a directory.
fn sizes(dir: &Path) -> (u64, u64) {
    let found = rustix::fs::statvfs(dir).unwrap();
    (found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)
}

/// The life of a limit, on a mount with these options.
fn life(options: &[&str]) {
    let place = Place::with_image("512M");
    place.mount(options).ok();
    let dir = place.dir.join("limited");
    fs::create_dir(&dir).unwrap();
    quota(&["set", "16M"], &dir).ok();
    about(fill(&dir.join("file"), 64 * MIB), 16 * MIB);
    let (total, free) = sizes(&dir);
    assert_eq!(total, 16 * MIB);
    assert!(free <= SLACK_BYTES, "{free}");
    assert!(sizes(&place.dir).0 > 256 * MIB);
    // All that adds something is refused, and outside nothing is.
    let refused = fs::write(dir.join("more"), vec![1; 64 << 10]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded, "{refused}");
    fs::write(place.dir.join("outside"), "x").unwrap();
    // A clone holds nothing alone, and has a limit of its own.
    let copy = place.dir.join("copy");
    espalier(&["clone".as_ref(), dir.as_os_str(), copy.as_os_str()]).ok();
    assert_eq!(shown(&copy).1, Some(16 * MIB));
    about(fill(&copy.join("more"), 64 * MIB), 16 * MIB);
    espalier(&["rm".as_ref(), copy.as_os_str()]).ok();
    // Removed, and written again.
    fs::remove_file(dir.join("file")).unwrap();
    about(fill(&dir.join("file"), 64 * MIB), 16 * MIB);
    File::options().write(true).open(dir.join("file")).unwrap().set_len(8 * MIB).unwrap();
    about(shown(&dir).0, 8 * MIB);
    about(fill(&dir.join("again"), 64 * MIB), 8 * MIB);
    // In and out. A file with several names is copied by mv.
    fs::remove_file(dir.join("again")).unwrap();
    let tree = place.dir.join("tree");
    fs::create_dir(&tree).unwrap();
    fill(&tree.join("file"), 12 * MIB);
    assert_eq!(fs::rename(&tree, dir.join("tree")).unwrap_err().kind(), ErrorKind::QuotaExceeded);
    fs::rename(dir.join("file"), place.dir.join("out")).unwrap();
    fs::rename(&tree, dir.join("tree")).unwrap();
    about(shown(&dir).0, 12 * MIB);
    fs::write(dir.join("one"), "1").unwrap();
    fs::hard_link(dir.join("one"), dir.join("two")).unwrap();
    let crossed = fs::hard_link(dir.join("one"), place.dir.join("three")).unwrap_err();
    assert_eq!(crossed.kind(), ErrorKind::CrossesDevices, "{crossed}");
    run(Command::new("mv").arg(dir.join("two")).arg(place.dir.join("three")));
    assert_eq!(fs::read(place.dir.join("three")).unwrap(), b"1");
    // The limit is there after a remount and after a crash, and is seen at the first write.
    place.umount().ok();
    place.fsck().ok();
    place.mount(options).ok();
    about(fill(&dir.join("after"), 64 * MIB), 4 * MIB);
    fs::remove_file(dir.join("after")).unwrap();
    File::open(&place.dir).unwrap().sync_all().unwrap();
    place.kill_server();
    place.fsck().ok();
    place.mount(options).ok();
    assert_eq!(shown(&dir).1, Some(16 * MIB));
    about(fill(&dir.join("after"), 64 * MIB), 4 * MIB);
    quota(&["clear"], &dir).ok();
    assert_eq!(shown(&dir).1, None);
    assert!(sizes(&dir).0 > 256 * MIB);
    assert_eq!(fill(&dir.join("after"), 8 * MIB), 8 * MIB);
    place.umount().ok();
    place.fsck().ok();
}

#[test]
fn the_life_of_a_limit() {
    life(&[]);
}

#[test]
fn the_life_of_a_limit_on_the_classic_transport() {
    life(&["-o", "transport=classic"]);
}

#[test]
fn a_limit_goes_on_with_another_server() {
    let place = Place::with_image("256M");
    place.mount(&["-o", "transport=classic"]).ok();
    let dir = place.dir.join("limited");
    fs::create_dir(&dir).unwrap();
    quota(&["set", "16M"], &dir).ok();
    let mut nameless = File::options().create_new(true).write(true).open(dir.join("nameless")).unwrap();
    fs::remove_file(dir.join("nameless")).unwrap();
    nameless.write_all(&Random(9).bytes(6 * MIB as usize)).unwrap();
    about(fill(&dir.join("file"), 4 * MIB), 4 * MIB);
    let before = place.server();
    espalier(&["mount".as_ref(), "--replace".as_ref(), place.dir.as_os_str()]).ok();
    assert_ne!(place.server(), before);
    assert_eq!(shown(&dir).1, Some(16 * MIB));
    about(shown(&dir).0, 10 * MIB);
    about(fill(&dir.join("more"), 64 * MIB), 6 * MIB);
    let refused = nameless.write_all(&vec![1; 4 << 20]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded, "{refused}");
    drop(nameless);
    about(fill(&dir.join("again"), 64 * MIB), 6 * MIB);
}

#[test]
fn a_full_tree_is_written_over_through_calls_and_mappings() {
    let place = Place::mounted("256M");
    let dir = place.dir.join("limited");
    fs::create_dir(&dir).unwrap();
    quota(&["set", "8M"], &dir).ok();
    let written = fill(&dir.join("file"), 64 * MIB);
    let mut file = File::options().read(true).write(true).open(dir.join("file")).unwrap();
    let mut random = Random(3);
    for _ in 0..2 {
        file.rewind().unwrap();
        (0..written / (256 << 10)).for_each(|_| file.write_all(&random.bytes(256 << 10)).unwrap());
        file.sync_all().unwrap();
    }
    let refused = fs::write(dir.join("more"), vec![1; 64 << 10]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::QuotaExceeded, "{refused}");
    // A database that has its file maps it.
    let script = "import mmap,sys\nf=open(sys.argv[1],'r+b')\nm=mmap.mmap(f.fileno(),0)\n\
                  m[:4<<20]=b'x'*(4<<20)\nm.flush()\n";
    run(Command::new("python3").args(["-c", script]).arg(dir.join("file")));
    assert_eq!(fs::read(dir.join("file")).unwrap()[..4 << 20], vec![b'x'; 4 << 20]);
}

#[test]
fn with_writeback_the_sync_says_so() {
    let place = Place::with_image("256M");
    place.mount(&["-o", "writeback"]).ok();
    let dir = place.dir.join("limited");
    fs::create_dir(&dir).unwrap();
    quota(&["set", "4M"], &dir).ok();
    let mut file = File::create(dir.join("file")).unwrap();
    let mut random = Random(5);
    let written = (0..64).try_for_each(|_| file.write_all(&random.bytes(256 << 10)));
    let error = written.and_then(|()| file.sync_all()).expect_err("16 MiB do not fit");
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error}");
    drop(file);
    fs::remove_file(dir.join("file")).unwrap();
    fs::write(dir.join("file"), random.bytes(MIB as usize)).unwrap();
    File::open(dir.join("file")).unwrap().sync_all().unwrap();
}

#[test]
fn users_set_what_could_not_hold_them() {
    let place = Place::mounted("256M");
    fs::set_permissions(place.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (home, given) = (place.dir.join("home"), place.dir.join("given"));
    for dir in [&home, &home.join("own"), &given, &given.join("sub")] {
        fs::create_dir(dir).unwrap();
        chown(dir, Some(USER), Some(USER)).unwrap();
    }
    as_user(&["set", "8M"], &home.join("own")).ok();
    as_user(&["clear"], &home.join("own")).ok();
    quota(&["set", "8M"], &given).ok();
    as_user(&["set", "64M"], &given).refused(1, &["set by root"]);
    as_user(&["clear"], &given).refused(1, &["set by root"]);
    as_user(&["set", "4M"], &home).refused(1, &["set by root"]);
    assert!(as_user(&["show"], &given).ok().contains("8 MiB"));
    as_user(&["set", "64M"], &given.join("sub")).ok();
    about(fill(&given.join("sub/file"), 64 * MIB), 8 * MIB);
    quota(&["set", "1M"], &place.dir.join("home")).ok();
    quota(&["set", "32M", "--total", "64M"], &given).ok();
    assert!(quota(&["show"], &given).ok().contains("64 MiB"));
    File::create(place.dir.join("file")).unwrap();
    quota(&["set", "1M"], &place.dir.join("file")).refused(1, &["only directories"]);
}

#[test]
fn a_workspace_is_limited_in_what_it_writes() {
    let place = Place::mounted("512M");
    fs::set_permissions(place.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let top = place.dir.join("top");
    fs::create_dir_all(top.join("base")).unwrap();
    fill(&top.join("base/file"), 24 * MIB);
    run(Command::new("chown").args(["-R", &format!("{USER}:{USER}")]).arg(&top));
    let ws = |words: &str| -> Ran {
        let id = USER.to_string();
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            &id,
            "--regid",
            &id,
            "--clear-groups",
            env!("CARGO_BIN_EXE_espalier"),
            "ws",
        ]);
        command.args(words.split(' ')).current_dir(&top).env("HOME", &top).stdin(Stdio::null());
        command.output().expect("the program runs").into()
    };
    ws("create w --from base --quota 8M").ok();
    assert!(ws("list").ok().contains("8 MiB"));
    let listed: Value = serde_json::from_str(&ws("list --json").ok()).unwrap();
    assert_eq!(listed["workspaces"][0]["quota_bytes"], 8 * MIB);
    about(fill(&top.join("w/more"), 64 * MIB), 8 * MIB);
    fs::remove_file(top.join("w/more")).unwrap();
    ws("checkpoint w").ok();
    as_user(&["set", "6M"], &top.join("w")).ok();
    ws("undo w").ok();
    assert_eq!(shown(&top.join("w")).1, Some(6 * MIB), "the limit of now");
    about(fill(&top.join("w/more"), 64 * MIB), 6 * MIB);
    ws("discard w --force").ok();
    assert!(top.join("base/file").metadata().unwrap().size() >= 24 * MIB);
    place.remount();
}

#[test]
fn hard_links_go_along_and_those_that_lead_out_are_named() {
    let place = Place::mounted("256M");
    let (dir, packages) = (place.dir.join("dir"), place.dir.join("packages"));
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::create_dir(&packages).unwrap();
    fs::write(dir.join("one"), Random(1).bytes(2 * MIB as usize)).unwrap();
    fs::hard_link(dir.join("one"), dir.join("sub/two")).unwrap();
    fs::write(packages.join("package"), "contents").unwrap();
    fs::hard_link(packages.join("package"), dir.join("sub/package")).unwrap();
    quota(&["set", "8M"], &dir)
        .refused(1, &["sub/package has 2 names", "1 of them outside", "espalier clone"]);
    assert_eq!(shown(&dir).1, None);
    fs::remove_file(packages.join("package")).unwrap();
    let number = dir.join("one").metadata().unwrap().ino();
    quota(&["set", "8M"], &dir).ok();
    about(shown(&dir).0, 2 * MIB);
    for name in ["one", "sub/two"] {
        let attr = dir.join(name).metadata().unwrap();
        assert_eq!((attr.ino(), attr.nlink()), (number, 2));
    }
    assert_eq!(fs::read(dir.join("sub/package")).unwrap(), b"contents");
    let crossed = fs::hard_link(dir.join("one"), packages.join("one")).unwrap_err();
    assert_eq!(crossed.kind(), ErrorKind::CrossesDevices, "{crossed}");
    about(fill(&dir.join("more"), 64 * MIB), 6 * MIB);
    place.umount().ok();
    place.fsck().ok();
}
