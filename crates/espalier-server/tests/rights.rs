//! A client may do what its process may do through the mount, and nothing else.

mod common;
#[path = "common/raw.rs"]
mod raw;

use common::{Mounted, again, as_user, serve_if_asked};
use espalier_client::{Client, Error, Links, Rename, Write, WriteFlags};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

/// What a child process is to do; see [`acts_when_asked`].
const PLACE: &str = "ESPALIER_TEST_PLACE";
const ACT: &str = "ESPALIER_TEST_ACT";

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

fn errno<T>(result: Result<T, Error>) -> i32 {
    result.err().map_or(0, |error| error.errno())
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn users_and_groups_count_as_for_the_kernel() {
    let mounted = Mounted::new("");
    let root = mounted.path();
    fs::create_dir(root.join("open")).unwrap();
    set_mode(&root.join("open"), 0o1777);
    fs::create_dir(root.join("closed")).unwrap();
    set_mode(&root.join("closed"), 0o700);
    for (name, uid, gid, mode) in [
        ("open/own", 1000, 1000, 0o600),
        ("open/group", 0, 50, 0o640),
        ("open/root", 0, 0, 0o600),
        ("closed/f", 1000, 1000, 0o666),
    ] {
        fs::write(root.join(name), name).unwrap();
        chown(root.join(name), Some(uid), Some(gid)).unwrap();
        set_mode(&root.join(name), mode);
    }
    as_user(1000, 1000, &[50], || {
        let client = Client::connect(root).unwrap();
        for name in ["open/own", "open/group", "open/root", "closed/f", "open"] {
            let kernel = fs::read(root.join(name)).err().and_then(|error| error.raw_os_error()).unwrap_or(0);
            assert_eq!(errno(client.read(name)), kernel, "{name}");
        }
        assert_eq!(errno(client.write_at("open/group", b"x", 0, None, false)), libc::EACCES);
        assert_eq!(errno(client.unlink("open/root")), libc::EPERM, "the sticky bit");
        assert_eq!(errno(client.rename("open/root", "open/mine", Rename::Replace)), libc::EPERM);
        assert_eq!(errno(client.set_owner("open/own", Some(0), None, Links::Follow)), libc::EPERM);
        assert_eq!(errno(client.set_mode("open/root", 0o666)), libc::EPERM);
        assert_eq!(errno(client.make_directory("new", 0o755, false)), libc::EACCES);
        assert_eq!(errno(client.own_tree("open/own", Some(0), None)), libc::EPERM);
        assert_eq!(errno(client.remove_tree("closed")), libc::EACCES);
        let files =
            [Write::file("open/made", "x"), Write::file("closed/made", "x"), Write::file("open/root", "x")];
        let numbers: Vec<i32> =
            client.write_many(&files, WriteFlags::default()).into_iter().map(errno).collect();
        assert_eq!(numbers[..2], [0, libc::EACCES]);
        assert_ne!(numbers[2], 0, "what is another user's in such a directory is not replaced");
        let entries: Vec<_> = client.walk(".", &Default::default()).unwrap().map(Result::unwrap).collect();
        assert!(entries.iter().any(|entry| entry.path == b"closed" && entry.is_closed));
        assert!(!entries.iter().any(|entry| entry.path.starts_with(b"closed/")));
    });
    let made = fs::metadata(root.join("open/made")).unwrap();
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o7777), (1000, 1000, 0o644));
    assert_eq!(fs::read(root.join("open/root")).unwrap(), b"open/root");
    mounted.end();
}

#[test]
fn no_path_leads_out_of_the_directory_of_the_client() {
    let mounted = Mounted::new("");
    let root = mounted.path();
    fs::create_dir_all(root.join("d/e")).unwrap();
    fs::write(root.join("secret"), "secret").unwrap();
    fs::write(root.join("d/inside"), "inside").unwrap();
    std::os::unix::fs::symlink("../../secret", root.join("d/up")).unwrap();
    std::os::unix::fs::symlink("/inside", root.join("d/e/absolute")).unwrap();
    let client = Client::connect(root.join("d")).unwrap();
    for path in ["../secret", "e/../../secret", "/secret", "up", "../../../secret"] {
        assert_eq!(errno(client.read(path)), libc::ENOENT, "{path}");
    }
    assert_eq!(client.read("e/absolute").unwrap(), b"inside");
    assert_eq!(client.read("../../inside").unwrap(), b"inside");
    assert_eq!(errno(client.rename("inside", "../out", Rename::Replace)), 0);
    assert!(root.join("d/out").exists() && !root.join("out").exists());
    drop(client);
    mounted.end();
}

#[test]
fn a_private_mount_lets_its_owner_in_alone() {
    let mounted = Mounted::new("noallow_other");
    let open = File::open(mounted.path()).unwrap();
    assert!(Client::at(open.try_clone().unwrap()).is_ok());
    let name = raw::address(&open).1;
    as_user(1000, 1000, &[], || {
        assert!(Client::at(open).is_err(), "not even with a descriptor of the owner");
        let (answer, _) = raw::Raw::connect(&name).receive().unwrap();
        assert_eq!(answer.errno, libc::EACCES.cast_unsigned(), "before it says anything");
    });
    mounted.end();
}

/// Tries to be a client at a place, in a process that was started for that in some sandbox.
#[test]
fn acts_when_asked() {
    let (Ok(place), Ok(act)) = (std::env::var(PLACE), std::env::var(ACT)) else { return };
    let expect_refusal = |result: Result<Client, Error>| match result {
        Err(Error::NoServer(error)) => println!("refused, as it should be: {error}"),
        other => panic!("it was let in: {}", other.is_ok()),
    };
    match act.as_str() {
        "let in" => drop(Client::connect(&place).unwrap().stat(".", Links::Follow).unwrap()),
        "refused" => expect_refusal(Client::connect(&place)),
        "read-only" => {
            let client = Client::connect(&place).unwrap();
            assert!(client.flags().unwrap().read_only);
            assert!(client.read("f").is_ok());
            assert_eq!(errno(client.write_at("f", b"x", 0, None, false)), libc::EROFS);
            assert_eq!(errno(client.unlink("f")), libc::EROFS);
        }
        "in another root" => {
            let directory = File::open(&place).unwrap();
            let other = tempfile::tempdir().unwrap();
            rustix::process::chroot(other.path()).unwrap();
            std::env::set_current_dir("/").unwrap();
            expect_refusal(Client::at(directory));
            // What is removed at its end lies outside.
            std::process::exit(0);
        }
        other => panic!("{other}"),
    }
}

fn act(wrapper: &[&str], place: &Path, act: &str) {
    let place = place.to_str().unwrap();
    assert!(again(wrapper, "acts_when_asked", &[(PLACE, place), (ACT, act)]), "{wrapper:?} {act}");
}

#[test]
fn sandboxes_do_not_reach_out() {
    let mounted = Mounted::new("");
    let root = mounted.path();
    fs::create_dir_all(root.join("d/hidden")).unwrap();
    fs::write(root.join("d/f"), "f").unwrap();
    act(&[], root, "let in");
    act(&[], root, "in another root");
    act(&["setpriv", "--no-new-privs"], root, "refused");
    act(&["setpriv", "--bounding-set", "-dac_override"], root, "refused");
    act(&["setpriv", "--reuid", "65534", "--clear-groups"], root, "refused");
    act(&["setpriv", "--reuid", "1000", "--clear-groups"], root, "let in");
    act(&["unshare", "--net"], root, "refused");
    mounted.end();
}

#[test]
fn what_a_process_sees_of_the_mount_counts() {
    let mounted = Mounted::new("");
    let root = mounted.path();
    fs::create_dir_all(root.join("d/hidden")).unwrap();
    fs::write(root.join("d/f"), "f").unwrap();
    let place = tempfile::tempdir().unwrap();
    let (from, to) = (root.to_str().unwrap(), place.path().to_str().unwrap());
    let inside = |script: &str, rest: &[&str], at: &Path, what: &str| {
        let script = format!("{script} && exec \"$@\"");
        let mut words = vec!["unshare", "--mount", "sh", "-ec", &script, "sh"];
        words.extend(rest);
        act(&words, at, what);
    };
    let read_only = format!("mount --bind {from}/d {to} && mount -o remount,bind,ro {to}");
    inside(&read_only, &[], place.path(), "read-only");
    let hidden = format!("mount -t tmpfs none {from}/d/hidden");
    let weak = ["setpriv", "--bounding-set", "-sys_admin"];
    inside(&hidden, &weak, root, "refused");
    inside(&hidden, &weak, &root.join("d"), "refused");
    inside(&hidden, &[], root, "let in");
    let beside = format!("mkdir {from}/other && mount -t tmpfs none {from}/other");
    inside(&beside, &weak, &root.join("d"), "let in");
    mounted.end();
}

#[test]
fn with_writeback_nothing_is_changed_that_the_kernel_keeps() {
    let mounted = Mounted::new("writeback");
    let (root, client) = (mounted.path(), mounted.client());
    fs::write(root.join("f"), "data").unwrap();
    File::open(root.join("f")).unwrap().sync_all().unwrap();
    assert!(client.flags().unwrap().write_back);
    assert_eq!(client.read("f").unwrap(), b"data");
    assert_eq!(errno(client.write_at("f", b"x", 0, None, false)), libc::EOPNOTSUPP);
    assert_eq!(errno(client.truncate("f", 0)), libc::EOPNOTSUPP);
    assert_eq!(errno(client.changes(".", b"")), libc::EOPNOTSUPP);
    let files = [Write::file("f", "longer than before"), Write::file("new", "new")];
    client.write_many(&files, WriteFlags::default()).into_iter().for_each(|result| result.unwrap());
    assert_eq!(fs::read(root.join("f")).unwrap(), b"longer than before");
    assert_eq!(fs::read(root.join("new")).unwrap(), b"new");
    drop(client);
    mounted.end();
}
