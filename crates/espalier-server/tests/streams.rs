//! Comparisons, watches, and what files have besides content, against what the kernel says.

mod common;
#[path = "common/raw.rs"]
mod raw;

use common::{Mounted, as_user, serve_if_asked};
use espalier_client::wire::{Call, Hello};
use espalier_client::{
    Aspects, Change, Changes, Client, Error, Links, Ranges, Rename, SetXattr, Watch, Write, WriteFlags,
    Xattrs,
};
use raw::{AREA, Raw, address, hello, memory, request};
use rustix::fs::SealFlags;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(3600);

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

fn write(client: &Client, files: &[Write<'_>]) {
    client.write_many(files, WriteFlags::default()).into_iter().for_each(|result| result.unwrap());
}

fn differences(client: &Client, old: &str, new: &str) -> Vec<(Change, String)> {
    let found = client.diff(old, new).unwrap();
    found
        .map(|found| found.unwrap())
        .map(|(change, path)| (change, String::from_utf8(path).unwrap()))
        .collect()
}

#[test]
fn what_differs_between_trees_and_since_a_snapshot() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    let names: Vec<String> = (0..3000).map(|n| format!("a/d{}/f{n:0>60}", n % 7)).collect();
    let files: Vec<Write<'_>> = names.iter().map(|name| Write::file(name, "old")).collect();
    write(&client, &files);
    client.clone_tree("a", "b").unwrap();
    assert_eq!(differences(&client, "a", "b"), []);
    fs::write(root.join("b/d1/new"), "new").unwrap();
    let gone = names[3].strip_prefix("a/").unwrap();
    client.unlink(format!("b/{gone}")).unwrap();
    let changed = names[6].strip_prefix("a/").unwrap();
    fs::set_permissions(root.join("b").join(changed), fs::Permissions::from_mode(0o600)).unwrap();
    let expected: BTreeSet<(u8, String)> =
        [(b'+', "d1/new".into()), (b'-', gone.into()), (b'~', changed.into())].into();
    let shown = |found: Vec<(Change, String)>| -> BTreeSet<(u8, String)> {
        let kind = |change| match change {
            Change::Added => b'+',
            Change::Removed => b'-',
            Change::Changed => b'~',
        };
        found.into_iter().map(|(change, path)| (kind(change), path)).collect()
    };
    assert_eq!(shown(differences(&client, "a", "b")), expected);
    // More than one answer holds, as it was when the comparison began.
    fs::create_dir(root.join("empty")).unwrap();
    let mut many = client.diff("empty", "a").unwrap();
    assert!(many.next().unwrap().is_ok());
    client.remove_tree("a").unwrap();
    assert_eq!(many.filter(|found| found.is_ok()).count(), 3000 + 7 - 1);
    // One that is left alone in the middle costs nothing, and no path is one of the wrong kind.
    drop(client.diff("empty", "b").unwrap());
    let errno = |old: &str, new: &str| client.diff(old, new).err().map_or(0, |error| error.errno());
    assert_eq!(errno("a", "b"), libc::ENOENT);
    assert_eq!(errno("b", "b/d1/new"), libc::ENOTDIR);
    drop(client);
    mounted.end();
}

#[test]
fn a_user_compares_and_watches_what_it_owns() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    write(
        &client,
        &[Write::file("mine/a/f", "x"), Write::file("mine/b/g", "x"), Write::file("other/f", "x")],
    );
    client.own_tree("mine", Some(1000), Some(1000)).unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    as_user(1000, 1000, &[], || {
        let client = Client::connect(root).unwrap();
        let found: Vec<_> = client.diff("mine/a", "mine/b").unwrap().map(|found| found.unwrap()).collect();
        assert_eq!(found, [(Change::Removed, b"f".to_vec()), (Change::Added, b"g".to_vec())]);
        assert_eq!(client.diff("mine", "other").err().unwrap().errno(), libc::EPERM);
        let mut watch = client.watch("mine", b"").unwrap();
        assert!(watch.wait(LONG).unwrap().everything);
        client.write_at("mine/new", b"x", 0, Some(0o600), false).unwrap();
        assert_eq!(watch.wait(LONG).unwrap().paths, [b"new"]);
        let mut other = client.watch("other", b"").unwrap();
        assert_eq!(other.wait(LONG).unwrap_err().errno(), libc::EPERM);
        // On the mount a directory has to be opened to be compared.
        fs::set_permissions(root.join("mine/a"), fs::Permissions::from_mode(0o300)).unwrap();
        assert_eq!(client.diff("mine/a", "mine/b").err().unwrap().errno(), libc::EACCES);
    });
    drop(client);
    mounted.end();
}

/// What a watch tells next.
fn told(watch: &mut Watch) -> BTreeSet<String> {
    let Changes { everything, paths, .. } = watch.wait(LONG).unwrap();
    assert!(!everything);
    paths.into_iter().map(|path| String::from_utf8(path).unwrap()).collect()
}

#[test]
fn a_watch_is_told_of_each_change_once_when_it_happens() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    client.make_directory("d/e", 0o755, true).unwrap();
    let mut watch = client.watch("d", b"").unwrap();
    assert!(watch.wait(LONG).unwrap().everything, "where it begins nothing is known");
    assert_eq!(watch.wait(Duration::ZERO).unwrap().paths.len(), 0, "and then there is nothing to tell");
    for round in 0..50 {
        let name = format!("f{round}");
        std::thread::scope(|scope| {
            let watching = scope.spawn(|| told(&mut watch));
            fs::write(root.join("outside"), "x").unwrap();
            match round % 2 {
                0 => drop(File::create(root.join("d/e").join(&name)).unwrap()),
                _ => client.make_directory(format!("d/e/{name}"), 0o755, false).unwrap(),
            }
            let all = watching.join().unwrap();
            assert_eq!(all, [format!("e/{name}")].into(), "of this change, and not of others");
            // What was told is there for a client that looks.
            assert!(client.stat(format!("d/e/{name}"), Links::Stay).is_ok());
        });
    }
    // What happens while nothing waits is told with the next question; nothing is told twice.
    fs::rename(root.join("d/e/f0"), root.join("d/moved")).unwrap();
    client.unlink("d/e/f2").unwrap();
    assert_eq!(told(&mut watch), ["e/f0".into(), "moved".into(), "e/f2".into()].into());
    assert_eq!(watch.wait(Duration::from_millis(1)).unwrap().paths.len(), 0);
    // More paths than one answer holds.
    let names: Vec<String> = (0..3000).map(|n| format!("d/e/{n:0>60}")).collect();
    let files: Vec<Write<'_>> = names.iter().map(|name| Write::file(name, "")).collect();
    let mut all = BTreeSet::new();
    write(&client, &files);
    let is_told = |all: &BTreeSet<String>| {
        names.iter().all(|name| all.contains(name.strip_prefix("d/").unwrap()) || all.contains("e/"))
    };
    while !is_told(&all) {
        all.extend(told(&mut watch));
    }
    // When the directory is gone from its place, the watch says so.
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            loop {
                if let Err(error) = watch.wait(LONG) {
                    break error.errno();
                }
            }
        });
        fs::rename(root.join("d"), root.join("elsewhere")).unwrap();
        assert_eq!(waiting.join().unwrap(), libc::ENOENT);
    });
    // A watch keeps the directory of its client open.
    drop(watch);
    let mut watch = client.watch("elsewhere", b"").unwrap();
    assert!(watch.wait(LONG).unwrap().everything);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| watch.wait(LONG).map(|_| watch.wait(LONG)));
        client.remove_tree("elsewhere").unwrap();
        let end = waiting.join().unwrap();
        let errno = end.and_then(|again| again).unwrap_err().errno();
        assert_eq!(errno, libc::ENOENT);
    });
    drop(watch);
    drop(client);
    mounted.end();
}

#[test]
fn a_watch_goes_on_from_a_position_and_from_a_snapshot() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    client.make_directory("d", 0o755, false).unwrap();
    let mut watch = client.watch("d", b"").unwrap();
    // A position is good from the first second of a watch on.
    let position = loop {
        let changes = client.changes("d", watch.position()).unwrap();
        if !changes.everything {
            break changes.position;
        }
        watch.wait(Duration::from_millis(20)).unwrap();
    };
    for name in ["one", "two", "three"] {
        fs::write(root.join("d").join(name), name).unwrap();
    }
    let mut later = client.watch("d", &position).unwrap();
    let expected: BTreeSet<String> = ["one", "two", "three"].map(String::from).into();
    assert!(told(&mut later).is_superset(&expected));
    fs::write(root.join("d/four"), "").unwrap();
    assert_eq!(told(&mut later), ["four".to_owned()].into());
    let again = client.changes("d", later.position()).unwrap();
    assert!(again.everything || again.paths.contains(&b"four".to_vec()), "the last second, for the mount");
    drop((watch, later));
    drop(client);
    mounted.end();
}

#[test]
fn a_wait_takes_no_turn_and_ends_with_its_client() {
    let mounted = Mounted::new("");
    let client = mounted.client();
    client.make_directory("d", 0o755, false).unwrap();
    let root = File::open(mounted.path()).unwrap();
    let exact = {
        let mut watch = client.watch("d", b"").unwrap();
        assert!(watch.wait(LONG).unwrap().everything);
        watch.position().to_vec()
    };
    // Far more than the server has threads.
    let begin = || {
        let raw = second_version(&root);
        let wait = Call::Wait { path: b"d", position: &exact };
        assert!(raw.send(&request(2, wait.number(), &wait.encode()), &[]));
        // A first position is answered with "everything", and the next one is waited with.
        let (head, body) = raw.receive().unwrap();
        assert_eq!((head.id, head.errno), (2, 0));
        let answer = espalier_client::wire::WaitHead::decode(&mut espalier_client::wire::Reader::new(&body));
        let next = answer.unwrap().exact.to_vec();
        let wait = Call::Wait { path: b"d", position: &next };
        assert!(raw.send(&request(3, wait.number(), &wait.encode()), &[]));
        raw
    };
    let waiting: Vec<Raw> = (0..40).map(|_| begin()).collect();
    assert!(client.stat("d", Links::Stay).is_ok());
    // Another call than for more is a breach; more ends the wait, and says that there is no stream.
    let stat = Call::Stat { follow: true, paths: vec![b"."] };
    assert!(waiting[0].send(&request(4, stat.number(), &stat.encode()), &[]));
    assert!(waiting[0].receive().is_none());
    assert!(waiting[1].send(&request(4, Call::More.number(), b""), &[]));
    let (ended, more) = (waiting[1].receive().unwrap().0, waiting[1].receive().unwrap().0);
    assert_eq!((ended.id, ended.errno, ended.more), (3, 0, false));
    assert_eq!((more.id, more.errno), (4, libc::EBADF.cast_unsigned()));
    // Half of them die; the others are told.
    let rest: Vec<Raw> = waiting.into_iter().skip(20).collect();
    client.write_at("d/f", b"x", 0, Some(0o644), false).unwrap();
    for raw in &rest {
        let (head, _) = raw.receive().unwrap();
        assert_eq!((head.id, head.errno), (3, 0));
    }
    drop((rest, root, client));
    mounted.end();
}

/// A session of the second version of the protocol.
fn second_version(directory: &File) -> Raw {
    let (token, name) = address(directory);
    let raw = Raw::connect(&name);
    let memory = memory(2 * u64::from(AREA), SealFlags::SHRINK | SealFlags::GROW);
    let hello = Hello { versions: (1, 7), ..hello(token) };
    assert!(raw.send(&request(1, Hello::NUMBER, &hello.encode()), &[directory.as_fd(), memory.as_fd()]));
    let (head, body) = raw.receive().unwrap();
    assert_eq!((head.errno, &body[..2]), (0, &[2, 0][..]), "the newest version that both speak");
    raw
}

#[test]
fn a_session_of_the_first_version_has_no_later_calls() {
    let mounted = Mounted::new("");
    let root = File::open(mounted.path()).unwrap();
    let stat = Call::Stat { follow: true, paths: vec![b"."] };
    let diff = Call::Diff { old: b".", new: b"." };
    for (call, is_served) in [(stat, true), (diff, false)] {
        let raw = Raw::begin(&root);
        assert!(raw.send(&request(2, call.number(), &call.encode()), &[]));
        assert_eq!(raw.receive().is_some(), is_served);
    }
    drop(root);
    mounted.end();
}

#[test]
fn a_server_that_goes_away_ends_waits_and_comparisons() {
    let mut mounted = Mounted::new("");
    let client = mounted.client();
    client.make_directory("d", 0o755, false).unwrap();
    client.sync().unwrap();
    let mut watch = client.watch("d", b"").unwrap();
    assert!(watch.wait(LONG).unwrap().everything);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| watch.wait(LONG));
        mounted.kill();
        let end = waiting.join().unwrap();
        assert!(matches!(end, Err(Error::NoServer(_) | Error::Lost { .. })), "{end:?}");
    });
    drop(watch);
    mounted.serve_again("");
    let client = mounted.client();
    assert!(client.watch("d", b"").unwrap().wait(LONG).unwrap().everything);
    drop(client);
    mounted.end();
}

#[test]
fn removal_and_rename_below_open_streams_harm_nothing() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    let names: Vec<String> = (0..4000).map(|n| format!("d/s{}/f{n:0>60}", n % 5)).collect();
    let files: Vec<Write<'_>> = names.iter().map(|name| Write::file(name, name)).collect();
    write(&client, &files);
    let mut walk = client.walk("d", &Default::default()).unwrap();
    assert!(walk.next().unwrap().is_ok());
    fs::rename(root.join("d"), root.join("e")).unwrap();
    client.remove_tree("e/s3").unwrap();
    fs::remove_dir_all(root.join("e")).unwrap();
    assert_eq!(walk.filter(|entry| entry.is_ok()).count(), 4000 + 5 - 1, "of the instant when it began");
    // Reads that are asked for in parts: what is gone in between is an error of that file.
    let large = vec![7u8; 3 << 20];
    write(&client, &[Write::file("large", &large), Write::file("small", "small")]);
    let pieces = ["large", "small"].map(|path| espalier_client::Piece {
        path: path.as_bytes(),
        offset: 0,
        length: u64::MAX,
    });
    let mut seen = Vec::new();
    client
        .read_many(&pieces, &mut |at, data| {
            seen.push((at, data.map(<[u8]>::len).map_err(|error| error.errno())));
            let _ = client_of(root).unlink("large");
            true
        })
        .unwrap();
    seen.sort_unstable_by_key(|(at, _)| *at);
    assert_eq!(seen.len(), 2, "one answer for each");
    assert!(seen[0].1 == Err(libc::ENOENT) || seen[0].1 == Ok(3 << 20), "{seen:?}");
    drop(client);
    mounted.end();
}

fn client_of(root: &Path) -> Client {
    Client::connect(root).unwrap()
}

#[test]
fn files_are_made_with_all_that_files_have() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    client.make_directory("d", 0o755, false).unwrap();
    let mut xattrs = Xattrs::default();
    xattrs.push(b"user.comment", b"words");
    xattrs.push(b"trusted.mark", b"\0\xff");
    // Version 2, and entries: the owner rw-, user 7 r--, the group r--, the mask r--, others none.
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let list: Vec<u8> = [2u32.to_le_bytes().to_vec()]
        .into_iter()
        .chain([entry(1, 6, none), entry(2, 4, 7), entry(4, 4, none), entry(16, 4, none), entry(32, 0, none)])
        .flatten()
        .collect();
    xattrs.push(b"system.posix_acl_access", &list);
    let ranges = Ranges::new([4096..8192, 100_000..100_003]);
    let content = [&[5u8; 4096][..], b"end"].concat();
    let big = vec![9u8; 2 << 20];
    let big_ranges = Ranges::new(std::iter::once(1 << 20..3 << 20));
    let nodes = [("fifo", libc::S_IFIFO, 0), ("socket", libc::S_IFSOCK, 0), ("zero", libc::S_IFCHR, 0x105)];
    let mut files = vec![
        Write::file("d/all", "all").with_mode(0o640).with_atime(-5).with_mtime(7).with_xattrs(&xattrs),
        Write::sparse("d/holes", 200_000, &ranges, &content).with_mtime(1),
        Write::sparse("d/large", 5 << 20, &big_ranges, &big)
            .with_mode(0o750)
            .with_xattrs(&xattrs)
            .with_atime(3),
        Write::symlink("d/link", "all").with_atime(11).with_mtime(12),
    ];
    let paths = nodes.map(|(name, ..)| format!("d/{name}"));
    files.extend(nodes.iter().zip(&paths).map(|((_, kind, device), path)| Write::node(path, *kind, *device)));
    write(&client, &files);
    let value = |path: &str, name: &str| {
        let mut buffer = vec![0; 256];
        let length = rustix::fs::lgetxattr(root.join(path), name, &mut buffer[..]).unwrap();
        buffer.truncate(length);
        buffer
    };
    for path in ["d/all", "d/large"] {
        assert_eq!(value(path, "user.comment"), b"words");
        assert_eq!(value(path, "trusted.mark"), b"\0\xff");
        assert_eq!(value(path, "system.posix_acl_access"), list);
    }
    let seen = fs::symlink_metadata(root.join("d/all")).unwrap();
    assert_eq!((seen.atime(), seen.atime_nsec(), seen.mtime_nsec()), (-1, 999_999_995, 7));
    assert_eq!(fs::symlink_metadata(root.join("d/large")).unwrap().atime_nsec(), 3);
    let link = fs::symlink_metadata(root.join("d/link")).unwrap();
    assert_eq!((link.atime_nsec(), link.mtime_nsec()), (11, 12));
    let holes = fs::read(root.join("d/holes")).unwrap();
    assert!(holes.len() == 200_000 && holes[4096..8192] == [5; 4096] && &holes[100_000..100_003] == b"end");
    assert!(holes.iter().filter(|byte| **byte != 0).count() == 4099);
    let kind = |name: &str| fs::symlink_metadata(root.join("d").join(name)).unwrap().file_type();
    assert!(kind("fifo").is_fifo() && kind("socket").is_socket() && kind("zero").is_char_device());
    assert_eq!(fs::symlink_metadata(root.join("d/zero")).unwrap().rdev(), 0x105);
    check_details(&client, root, &list);
    drop(client);
    mounted.end();
}

/// What the client says of the files of the test above is what was made, also after changes.
fn check_details(client: &Client, root: &Path, list: &[u8]) {
    let asked = Aspects { attributes: true, xattrs: true, target: true, extents: true };
    let paths = ["d/all", "d/holes", "d/large", "d/link", "d/fifo", "d/none", "d"];
    let all = client.describe_many(&paths, asked, Links::Stay).unwrap();
    let of = |at: usize| all[at].as_ref().unwrap();
    let names: BTreeSet<&[u8]> = of(0).xattrs.iter().map(|(name, _)| &name[..]).collect();
    assert_eq!(names, [&b"user.comment"[..], b"trusted.mark", b"system.posix_acl_access"].into());
    assert!(of(0).xattrs.iter().any(|(_, value)| value == list));
    assert_eq!(of(1).extents.0, 200_000);
    let file = File::open(root.join("d/holes")).unwrap();
    let mut data = vec![0; 4096];
    file.read_exact_at(&mut data, 4096).unwrap();
    let (mut at, mut expected) = (0, Vec::new());
    while let Ok(begin) = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
        at = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(begin)).unwrap();
        expected.push(begin..at);
    }
    assert_eq!(of(1).extents.1, expected, "the holes that the kernel is told of");
    assert_eq!(of(3).target, b"all");
    assert!(of(4).extents.1.is_empty() && of(4).stat.unwrap().mode & libc::S_IFMT == libc::S_IFIFO);
    assert_eq!(all[5].as_ref().unwrap_err().errno(), libc::ENOENT);
    assert!(of(6).stat.unwrap().is_directory());
    // Set and removed, and seen by the kernel that has asked before.
    let get = |name: &str| {
        let mut buffer = [0; 64];
        let got = rustix::fs::getxattr(root.join("d/all"), name, &mut buffer[..]);
        got.map(|length| buffer[..length].to_vec())
    };
    assert_eq!(get("user.comment").unwrap(), b"words");
    let set = |xattr, how| client.set_xattr("d/all", xattr, how, Links::Follow).err().map(|e| e.errno());
    assert_eq!(set((b"user.comment", b"x"), SetXattr::Create), Some(libc::EEXIST));
    assert_eq!(set((b"user.none", b"x"), SetXattr::Replace), Some(libc::ENODATA));
    assert_eq!(set((b"user.comment", b"other"), SetXattr::Replace), None);
    assert_eq!(get("user.comment").unwrap(), b"other");
    client.remove_xattr("d/all", b"user.comment", Links::Follow).unwrap();
    assert_eq!(get("user.comment").unwrap_err(), rustix::io::Errno::NODATA);
    assert_eq!(set((b"security.selinux", b"x"), SetXattr::Set), Some(libc::EOPNOTSUPP));
    assert_eq!(set((b"security.capability", b"x"), SetXattr::Set), Some(libc::EINVAL));
    client.rename("d/all", "d/again", Rename::Replace).unwrap();
    assert_eq!(client.xattrs("d/again", Links::Stay).unwrap().len(), 2);
}

#[test]
fn users_make_and_see_what_the_kernel_lets_them() {
    let mounted = Mounted::new("");
    let (root, client) = (mounted.path(), mounted.client());
    client.make_directory("d", 0o777, false).unwrap();
    client.set_mode("d", 0o777).unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    write(&client, &[Write::file("d/secret", "x").with_mode(0o600)]);
    as_user(1000, 1000, &[], || {
        let client = Client::connect(root).unwrap();
        let mut own = Xattrs::default();
        own.push(b"user.a", b"b");
        let mut trusted = Xattrs::default();
        trusted.push(b"trusted.a", b"b");
        let files = [
            Write::file("d/own", "x").with_xattrs(&own),
            Write::file("d/no", "x").with_xattrs(&trusted),
            Write::node("d/fifo", libc::S_IFIFO, 0),
            Write::node("d/device", libc::S_IFBLK, 0x801),
            Write::node("d/whiteout", libc::S_IFCHR, 0),
        ];
        let results = client.write_many(&files, WriteFlags::default());
        let numbers: Vec<i32> = results.iter().map(|r| r.as_ref().err().map_or(0, Error::errno)).collect();
        assert_eq!(numbers, [0, libc::EPERM, 0, libc::EPERM, 0]);
        let asked = Aspects { extents: true, ..Aspects::default() };
        let described = client.describe_many(&["d/secret", "d/own"], asked, Links::Stay).unwrap();
        assert_eq!(described[0].as_ref().unwrap_err().errno(), libc::EACCES, "holes are content");
        assert!(described[1].is_ok());
        let refused = client.set_xattr("d/secret", (b"user.a", b"b"), SetXattr::Set, Links::Stay);
        assert_eq!(refused.unwrap_err().errno(), libc::EACCES);
    });
    drop(client);
    mounted.end();
}

#[test]
fn odd_paths_are_refused_by_every_call() {
    let mounted = Mounted::new("");
    let client = mounted.client();
    let deep = b"d/".repeat(100_000);
    // The longest one that a call takes, and one that is longer.
    let (long, longer) = (b"./".repeat(1 << 19), b"./".repeat((1 << 19) + 1));
    let odd: [(&[u8], i32); 6] = [
        (b"", libc::ENOENT),
        (b"a\0b", libc::EINVAL),
        (b"\xff\xfe/\x01", libc::ENOENT),
        (&[b'x'; 256], libc::ENAMETOOLONG),
        (&deep, libc::ENOENT),
        (&longer, libc::ENAMETOOLONG),
    ];
    let asked = Aspects { attributes: true, xattrs: true, target: true, extents: true };
    let of = |path: &[u8]| -> Result<(), Error> {
        client.describe_many(&[path], asked, Links::Follow)?.remove(0).map(drop)
    };
    for (path, errno) in odd {
        let set = client.set_xattr(path, (b"user.a", b"b"), SetXattr::Set, Links::Follow);
        let results = [
            of(path),
            client.diff(path, ".").map(drop),
            client.diff(".", path).map(drop),
            set,
            client.remove_xattr(path, b"user.a", Links::Follow),
            client.changes(path, b"").map(drop),
            client.watch(path, b"").map(drop),
        ];
        let numbers = results.map(|result| result.map_or_else(|error| error.errno(), |()| 0));
        assert_eq!(numbers, [errno; 7], "{:?}", &path[..path.len().min(9)]);
    }
    assert!(of(&long).is_ok());
    // As the name of a new file, of any kind.
    let mut xattrs = Xattrs::default();
    xattrs.push(b"user.a", b"b");
    for (path, errno) in
        [(&b"a\0b"[..], libc::EINVAL), (&[b'x'; 256], libc::ENAMETOOLONG), (b"", libc::ENOENT)]
    {
        let files = [Write::file(path, "x").with_xattrs(&xattrs), Write::node(path, libc::S_IFIFO, 0)];
        for result in client.write_many(&files, WriteFlags::default()) {
            assert_eq!(result.unwrap_err().errno(), errno, "{path:?}");
        }
    }
    let long_name = Write::file(&longer, "x");
    assert_eq!(
        client.write_many(&[long_name], WriteFlags::default()).remove(0).unwrap_err().errno(),
        libc::ENAMETOOLONG
    );
    write(&client, &[Write::file(b"\xff\xfe\x01", "odd")]);
    assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 1);
    drop(client);
    mounted.end();
}
