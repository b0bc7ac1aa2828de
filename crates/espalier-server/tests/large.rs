//! Files that do not fit into one call: they are one file, with the rights and the owner of one.

mod common;

use common::{Mounted, as_user, serve_if_asked};
use espalier_client::{Client, Links, Write, WriteFlags, Xattrs, open_beneath};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

const LARGE: usize = 5 << 20;

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

fn write(client: &Client, file: Write<'_>) -> espalier_client::Result<()> {
    client.write_many(&[file], WriteFlags::default()).remove(0)
}

#[test]
fn an_ordinary_user_makes_files_of_any_mode() {
    let mounted = Mounted::new("");
    let root = mounted.path();
    fs::set_permissions(root, fs::Permissions::from_mode(0o777)).unwrap();
    let content = vec![7u8; LARGE];
    as_user(1000, 1000, &[], || {
        let client = Client::connect(root).unwrap();
        for mode in [0o444, 0o000, 0o4711, 0o640] {
            let path = format!("new/dir/f{mode:o}");
            write(&client, Write::file(&path, &content).with_mode(mode).with_mtime(1_500_000_000)).unwrap();
            let stat = client.stat(&path, Links::Stay).unwrap();
            assert_eq!((stat.mode & 0o7777, stat.size, stat.uid), (mode, LARGE as u64, 1000), "{mode:o}");
            assert_eq!(stat.mtime, 1_500_000_000);
        }
        // Nothing is left beside them, also of what fails.
        fs::create_dir(root.join("new/dir/taken")).unwrap();
        let refused = write(&client, Write::file("new/dir/taken", &content)).unwrap_err();
        assert_eq!(refused.errno(), libc::EISDIR);
        let how = WriteFlags { replace: false, ..WriteFlags::default() };
        let exists = client.write_many(&[Write::file("new/dir/f640", &content)], how).remove(0);
        assert_eq!(exists.unwrap_err().errno(), libc::EEXIST);
        assert_eq!(fs::read_dir(root.join("new/dir")).unwrap().count(), 5);
    });
    let metadata = fs::metadata(root.join("new/dir/f4711")).unwrap();
    assert_eq!((metadata.mode() & 0o7777, metadata.len()), (0o4711, LARGE as u64));
    mounted.end();
}

#[test]
fn owners_and_attributes_of_large_files_are_set() {
    let mounted = Mounted::new("");
    let client = mounted.client();
    let content = vec![7u8; LARGE];
    let mut xattrs = Xattrs::default();
    xattrs.push(b"user.a", b"1");
    let file = Write::file("f", &content).with_mode(0o4755).with_owner(Some(7), Some(8)).with_xattrs(&xattrs);
    write(&client, file.with_atime(1)).unwrap();
    let stat = client.stat("f", Links::Stay).unwrap();
    assert_eq!((stat.mode & 0o7777, stat.uid, stat.gid, stat.atime), (0o4755, 7, 8, 1));
    assert_eq!(client.xattrs("f", Links::Stay).unwrap().len(), 1);
    drop(client);
    mounted.end();
}

/// A file that is replaced meanwhile is read as it was, or as it is.
#[test]
fn a_large_file_is_read_as_one() {
    let mounted = Mounted::new("");
    let root = mounted.path();
    let client = mounted.client();
    let contents = [vec![1u8; LARGE], vec![2u8; LARGE]];
    fs::write(root.join("f"), &contents[0]).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if is_done.load(Ordering::SeqCst) {
                    break;
                }
                fs::write(root.join("g"), &contents[(round + 1) % 2]).unwrap();
                fs::rename(root.join("g"), root.join("f")).unwrap();
            }
        });
        for _ in 0..20 {
            let read = client.read("f").unwrap();
            let is_whole = read.len() == LARGE && read.iter().all(|byte| *byte == read[0]);
            assert!(is_whole, "{} bytes", read.len());
        }
        is_done.store(true, Ordering::SeqCst);
    });
    // A part of it, and a long write, which may make the file.
    let piece = espalier_client::Piece { path: b"f", offset: 10, length: (LARGE - 20) as u64 };
    let mut lengths = Vec::new();
    client
        .read_many(&[piece], &mut |_, data| {
            lengths.push(data.unwrap().len());
            true
        })
        .unwrap();
    assert_eq!(lengths, [LARGE - 20]);
    client.write_at("made", &contents[1], 3, Some(0o600), false).unwrap();
    assert_eq!(fs::metadata(root.join("made")).unwrap().len(), (LARGE + 3) as u64);
    assert_eq!(client.write_at("none", &contents[1], 0, None, false).unwrap_err().errno(), libc::ENOENT);
    drop(client);
    mounted.end();
}

#[test]
fn large_files_are_written_where_the_kernel_gathers_writes() {
    let mounted = Mounted::new("writeback");
    let client = mounted.client();
    let content: Vec<u8> = (0..LARGE).map(|at| (at % 251) as u8).collect();
    write(&client, Write::file("f", &content)).unwrap();
    assert!(fs::read(mounted.path().join("f")).unwrap() == content);
    assert!(client.read("f").unwrap() == content);
    drop(client);
    mounted.end();
}

#[test]
fn what_another_user_has_made_in_a_shared_directory_is_written_as_by_the_kernel() {
    let mounted = Mounted::new("");
    let root = mounted.path();
    fs::create_dir(root.join("tmp")).unwrap();
    fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    let content = vec![7u8; LARGE];
    for (name, uid) in [("other", 1001), ("own", 1000)] {
        let path = root.join("tmp").join(name);
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        std::os::unix::fs::chown(&path, Some(uid), Some(uid)).unwrap();
    }
    as_user(1000, 1000, &[], || {
        let client = Client::connect(root).unwrap();
        for content in [&content[..], b"short"] {
            let create = |path: &str| client.write_at(path, content, 0, Some(0o600), false);
            // As fs.protected_regular of this machine says.
            let mut how = fs::File::options();
            how.write(true).create(true).truncate(false);
            let by_kernel = how.open(root.join("tmp/other")).err().and_then(|error| error.raw_os_error());
            assert_eq!(create("tmp/other").err().map(|error| error.errno()), by_kernel);
            create("tmp/own").unwrap();
            create("tmp/new").unwrap();
            client.write_at("tmp/other", content, 0, None, false).unwrap();
        }
    });
    mounted.end();
}

#[test]
fn what_is_mounted_below_is_not_taken_for_a_part() {
    let mounted = Mounted::new("");
    let root = mounted.path();
    fs::create_dir(root.join("d")).unwrap();
    let open = |path: &str| open_beneath(fs::File::open(root).unwrap(), path, OFlags::RDONLY, Mode::empty());
    assert!(open("d/../d").is_ok() && open("").is_err());
    let mount = |arguments: &[&str]| {
        let mut command = std::process::Command::new(arguments[0]);
        assert!(command.args(&arguments[1..]).arg(root.join("d")).status().unwrap().success());
    };
    mount(&["mount", "-t", "tmpfs", "none"]);
    let errno = open("d/.").map(drop).unwrap_err().raw_os_error();
    mount(&["umount"]);
    assert_eq!(errno, Some(libc::EXDEV));
    mounted.end();
}
