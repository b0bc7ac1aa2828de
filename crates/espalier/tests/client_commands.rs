//! The commands for files by the server of a mount, and by the kernel, on one mount: they print,
//! make and complain of the same, for root and for an ordinary user.
//!
//! A process that has given privileges up (`no_new_privs`) is not taken by the server, and so is
//! one that goes by the kernel.

mod common;

use common::{Place, Ran, make_tree, run};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

const USER: u32 = 4321;
/// What is logged of a session.
const SESSION: &str = "the server of the mount is asked";

/// How a command goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Server,
    Kernel,
}

fn command(user: Option<u32>, way: Way) -> Command {
    let program = env!("CARGO_BIN_EXE_espalier");
    if user.is_none() && way == Way::Server {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    if let Some(user) = user {
        let id = user.to_string();
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups"]);
    }
    if way == Way::Kernel {
        command.arg("--no-new-privs");
    }
    command.arg(program);
    command
}

fn ran(command: &mut Command) -> Ran {
    command.stdin(Stdio::null()).output().unwrap().into()
}

/// Runs a command that reads both ways; what it says and prints must be equal.
fn reads(user: Option<u32>, words: &[&str], path: &Path) -> Ran {
    let run = |way| ran(command(user, way).args(words).arg(path));
    let (server, kernel) = (run(Way::Server), run(Way::Kernel));
    assert_eq!(server.code, kernel.code, "{words:?} {}: {server:?} {kernel:?}", path.display());
    assert_eq!(server.stderr, kernel.stderr, "{words:?} {}", path.display());
    assert!(server.stdout == kernel.stdout, "{words:?} {}: {server:?}\n{kernel:?}", path.display());
    server
}

/// True if a command has a session.
fn has_session(user: Option<u32>, way: Way, path: &Path) -> bool {
    let said = ran(command(user, way).env("RUST_LOG", "debug").args(["ls"]).arg(path));
    said.stderr.contains(SESSION)
}

/// A mount with a tree that has all that files have, and a part of which is closed to users.
fn filled(place: &Place) {
    let tree = place.dir.join("tree");
    make_tree(&tree, 11, 300);
    for name in ["fifo", "other fifo"] {
        run(Command::new("mkfifo").arg(tree.join(name)));
    }
    run(Command::new("mknod").arg(tree.join("zero")).args(["c", "1", "5"]));
    symlink("zero", tree.join("link")).unwrap();
    fs::create_dir_all(tree.join(".hidden/below")).unwrap();
    fs::write(tree.join(".hidden/below/f"), "hidden").unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    fs::write(tree.join("marked"), "marked").unwrap();
    run(Command::new("setfattr").args(["-n", "user.mark", "-v", "value"]).arg(tree.join("marked")));
    run(Command::new("setfattr").args(["-n", "trusted.mark", "-v", "value"]).arg(tree.join("empty")));
    run(Command::new("setfacl").args(["-m", "u:7:r"]).arg(tree.join("marked")));
    run(Command::new("touch").args(["-d", "1969-07-20 20:17:40.123456789"]).arg(tree.join("marked")));
    fs::write(tree.join("secret"), "secret").unwrap();
    fs::set_permissions(tree.join("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    // What users may list but not search, search but not list, and neither.
    for (name, mode) in [("listed", 0o744), ("searched", 0o711), ("closed", 0o700)] {
        fs::create_dir_all(tree.join(name).join("in")).unwrap();
        fs::write(tree.join(name).join("f"), name).unwrap();
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::create_dir(tree.join("own")).unwrap();
    chown(tree.join("own"), Some(USER), Some(USER)).unwrap();
}

#[test]
fn what_is_read_is_the_same_both_ways() {
    let place = Place::with_image("512M");
    // What is read first would not change what is read then.
    place.mount(&["-o", "noatime"]).ok();
    let opened = common::open_way_to(&place);
    filled(&place);
    let tree = place.dir.join("tree");
    for user in [None, Some(USER)] {
        assert!(has_session(user, Way::Server, &tree) && !has_session(user, Way::Kernel, &tree));
        for words in [
            &["ls"][..],
            &["ls", "-R"],
            &["ls", "-laR"],
            &["ls", "-a"],
            &["find"],
            &["find", "-0", "--type", "f,l,p,c"],
            &["find", "--name", "n1*", "--min-size", "200"],
            &["find", "--name", "*/f"],
            &["find", "--newer-than", "1d", "--older-than", "0s", "--type", "f"],
            &["find", "--older-than", "7d"],
        ] {
            let said = reads(user, words, &tree);
            assert!(user.is_some() || !said.stdout.is_empty(), "{words:?}");
            for below in ["empty", "listed", "searched", "closed", "none", "zero", "link", "own"] {
                reads(user, words, &tree.join(below));
            }
        }
        for name in ["marked", "secret", "closed/f", "searched/f", "fifo", "none", "empty"] {
            reads(user, &["cat"], &tree.join(name));
        }
        // Many files of one directory, with some that cannot be read, in the order in which they
        // are given.
        let mut names: Vec<_> = fs::read_dir(&tree).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        names.push(tree.join("none"));
        names.extend([tree.join("closed/f"), tree.join("marked"), tree.join("marked")]);
        names.retain(|name| !name.ends_with("zero") && !name.ends_with("link"));
        let many = |way| {
            let out = command(user, way).arg("cat").args(&names).output().unwrap();
            (out.status.code(), String::from_utf8(out.stderr).unwrap(), out.stdout)
        };
        let (server, kernel) = (many(Way::Server), many(Way::Kernel));
        assert_eq!((server.0, &server.1), (kernel.0, &kernel.1));
        assert!(server.2 == kernel.2 && server.2.len() > 100_000);
        let logged = command(user, Way::Server).env("RUST_LOG", "debug").arg("cat").args(&names).output();
        assert!(String::from_utf8(logged.unwrap().stderr).unwrap().contains(SESSION));
        // An archive has all of it, in the order of the store, holes included.
        let archive = |way| {
            let mut command = command(user, way);
            let out = command.args(["export", "--format", "tar"]).arg(&tree).arg("-").output().unwrap();
            (out.status.code(), String::from_utf8(out.stderr).unwrap(), out.stdout)
        };
        let (server, kernel) = (archive(Way::Server), archive(Way::Kernel));
        assert_eq!((server.0, &server.1), (kernel.0, &kernel.1));
        assert!(server.2 == kernel.2, "{} and {} bytes of archives", server.2.len(), kernel.2.len());
        assert_eq!(server.0, Some(if user.is_none() { 0 } else { 1 }));
    }
    // What is not looked for stays with the server.
    let said = |words: &[&str]| {
        ran(command(None, Way::Server).env("RUST_LOG", "debug").arg("find").args(words).arg(&tree))
    };
    for words in [["--name", "marked"], ["--older-than", "7d"]] {
        let found = said(&words);
        assert_eq!(found.stdout, format!("{}\n", tree.join("marked").display()), "{words:?}");
        assert!(found.stderr.contains("gave 1 entries"), "{}", found.stderr);
    }
    common::close_way(opened);
    place.umount().ok();
    place.fsck().ok();
}

/// Lists a tree with everything that is compared, times of directories too.
fn listed(tree: &Path) -> Vec<serde_json::Value> {
    let said = ran(command(None, Way::Kernel).args(["find", "--json"]).arg(tree)).ok();
    let entry = |line: &str| {
        let mut entry: serde_json::Value = serde_json::from_str(line).unwrap();
        let shown = entry["path"].as_str().unwrap().strip_prefix(tree.to_str().unwrap()).unwrap().to_owned();
        entry["path"] = shown.into();
        // Reading has changed them, and each tree has numbers of its own.
        for name in ["inode", "ctime_ns", "atime_ns"] {
            entry[name].take();
        }
        // An archive does not have the top.
        if entry["path"] == "" {
            entry["mtime_ns"].take();
        }
        entry
    };
    said.lines().map(entry).collect()
}

#[test]
fn what_is_written_is_the_same_both_ways() {
    let place = Place::mounted("512M");
    let opened = common::open_way_to(&place);
    filled(&place);
    let tree = place.dir.join("tree");
    let archive = place.path("a.tar");
    ran(command(None, Way::Kernel).args(["export"]).args([&tree, &archive])).ok();
    fs::set_permissions(&archive, fs::Permissions::from_mode(0o644)).unwrap();
    for user in [None, Some(USER)] {
        let top = tree.join("own");
        let mut results = Vec::new();
        for (way, name) in [(Way::Server, "server"), (Way::Kernel, "kernel")] {
            let at = |what: &str| top.join(format!("{what}-{name}"));
            let mut said = Vec::new();
            let mut act = |words: &[&OsStr]| {
                let Ran { code, stderr, .. } = ran(command(user, way).args(words));
                said.push((code, stderr.replace(name, "WAY")));
            };
            let words = |words: &[&str], paths: &[&Path]| -> Vec<OsString> {
                let words = words.iter().map(OsString::from);
                words.chain(paths.iter().map(|path| path.as_os_str().to_owned())).collect()
            };
            // From an archive, again in its place, and where something else is in the way.
            let import = words(&["import"], &[&archive, &at("import")]);
            let copy =
                words(&["cp", "-r"], &[&place.dir.join("tree/n1"), &tree.join("marked"), &at("import")]);
            for call in [&import, &import, &copy] {
                act(&call.iter().map(OsString::as_os_str).collect::<Vec<_>>());
            }
            fs::remove_file(at("import").join("marked")).unwrap();
            fs::create_dir(at("import").join("marked")).unwrap();
            act(&import.iter().map(OsString::as_os_str).collect::<Vec<_>>());
            fs::remove_dir(at("import").join("marked")).unwrap();
            act(&import.iter().map(OsString::as_os_str).collect::<Vec<_>>());
            results.push((said, at("import")));
        }
        let (server, kernel) = (&results[0], &results[1]);
        assert_eq!(server.0, kernel.0);
        if user.is_none() {
            common::assert_same_tree(&server.1, &kernel.1);
        }
        assert_eq!(listed(&server.1), listed(&kernel.1));
    }
    common::close_way(opened);
    place.umount().ok();
    place.fsck().ok();
}

#[test]
fn where_the_kernel_knows_more_it_is_asked() {
    let place = Place::mounted("256M");
    fs::create_dir_all(place.dir.join("d/covered")).unwrap();
    fs::write(place.dir.join("d/covered/below"), "x").unwrap();
    assert!(has_session(None, Way::Server, &place.dir));
    // Something that is mounted below is shown, and not what it covers.
    run(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(place.dir.join("d/covered")));
    let found = ran(command(None, Way::Server).arg("find").arg(&place.dir)).ok();
    let has =
        (has_session(None, Way::Server, &place.dir), has_session(None, Way::Server, &place.dir.join("d")));
    run(Command::new("umount").arg(place.dir.join("d/covered")));
    assert!(found.contains("covered") && !found.contains("below"), "{found}");
    assert_eq!(has, (false, false));
    // A snapshot is no part of the live tree.
    let words = ["snapshot".as_ref(), "create".as_ref(), place.dir.as_os_str(), "s".as_ref()];
    common::espalier(&words).ok();
    let snapshot = place.dir.join(".snapshots/s");
    assert!(!has_session(None, Way::Server, &snapshot));
    assert!(ran(command(None, Way::Server).arg("find").arg(&snapshot)).ok().contains("d/covered/below"));
    place.umount().ok();
    // The kernel has sizes to itself.
    place.mount(&["-o", "writeback"]).ok();
    assert!(!has_session(None, Way::Server, &place.dir));
    place.umount().ok();
    place.mount(&["-o", "ro"]).ok();
    assert!(has_session(None, Way::Server, &place.dir));
    let target = place.dir.join("d/new");
    ran(command(None, Way::Server).args(["cp", "-r"]).arg(place.dir.join("d")).arg(&target))
        .refused(1, &["into itself"]);
    let into = ran(command(None, Way::Server)
        .arg("cp")
        .arg(place.dir.join("d/covered/below"))
        .arg(place.dir.join("d")));
    into.refused(1, &["Read-only"]);
    place.umount().ok();
    place.fsck().ok();
}
