//! ls, find, cat and cp, on mounts and on images that are not mounted, against the ordinary
//! commands.

mod common;

use common::{Place, espalier, make_tree, run};
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

fn inside(place: &Place, path: &str) -> PathBuf {
    PathBuf::from(format!("{}:{path}", place.image.display()))
}

fn call(words: &[&str], paths: &[&Path]) -> common::Ran {
    let mut all: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
    all.extend(paths.iter().map(|path| path.as_os_str().to_owned()));
    espalier(&all)
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The paths that find(1) prints, of a tree in place of another.
fn found(tree: &Path, options: &[&str], shown: &Path) -> Vec<String> {
    let text = run(Command::new("find").arg(tree).args(options));
    sorted(&text.replace(tree.to_str().unwrap(), shown.to_str().unwrap()))
}

#[test]
fn find_finds_what_find_finds() {
    let place = Place::mounted("512M");
    let tree = place.dir.join("tree");
    make_tree(&tree, 5, 200);
    let cases: [(&[&str], &[&str]); 9] = [
        (&[], &[]),
        (&["--name", "n1*"], &["-name", "n1*"]),
        (&["--name", "n[0-5]?"], &["-name", "n[0-5]?"]),
        (&["--type", "d"], &["-type", "d"]),
        (&["--type", "f,l"], &["-type", "f,l"]),
        (&["--min-size", "5000", "--type", "f"], &["-size", "+4999c", "-type", "f"]),
        (&["--max-size", "0", "--type", "f"], &["-size", "0c", "-type", "f"]),
        (&["--newer-than", "7d"], &["-mtime", "-7"]),
        (&["--older-than", "168h", "--newer-than", "99999d"], &["-mtime", "+6"]),
    ];
    // Half of the files are of the year 2001.
    let old = call(&["find", "--type", "f", "--name", "*[02468]"], &[&tree]).ok();
    run(Command::new("touch").args(["-d", "2001-01-01"]).args(old.lines()));
    let mut expected = Vec::new();
    for (options, theirs) in cases {
        let words: Vec<&str> = [&["find"], options].concat();
        let ours = call(&words, &[&tree]).ok();
        assert_eq!(sorted(&ours), found(&tree, theirs, &tree), "{options:?}");
        expected.push((words, found(&tree, theirs, &inside(&place, "/tree"))));
    }
    let with_nuls = call(&["find", "-0"], &[&tree]).ok();
    assert_eq!(
        with_nuls.split_terminator('\0').count(),
        run(Command::new("find").arg(&tree)).lines().count()
    );
    place.umount().ok();
    for (words, expected) in expected {
        assert_eq!(sorted(&call(&words, &[&inside(&place, "tree")]).ok()), expected, "{words:?}");
    }
    let json = call(&["find", "--json", "--type", "l"], &[&inside(&place, "")]).ok();
    for line in json.lines() {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(entry["type"], "symlink");
    }
    call(&["find"], &[&inside(&place, "tree"), &inside(&place, "missing")]).refused(1, &["missing"]);
    call(&["find", "--min-size", "2K", "--max-size", "1K"], &[&inside(&place, "")]).refused(1, &["at least"]);
    let wrong = ["find", "--newer-than", "1h", "--older-than", "2h"];
    call(&wrong, &[&inside(&place, "")]).refused(1, &["no time is within the last 60m and 2h ago"]);
    call(&["find"], &[]).refused(2, &["PATH"]);
}

#[test]
fn ls_lists_what_ls_lists() {
    let place = Place::mounted("256M");
    let tree = place.dir.join("tree");
    make_tree(&tree, 6, 60);
    fs::write(tree.join(".hidden"), b"").unwrap();
    symlink("tree", place.dir.join("link")).unwrap();
    let ls =
        |options: &[&str], path: &Path| run(Command::new("ls").env("LC_ALL", "C").args(options).arg(path));
    assert_eq!(call(&["ls"], &[&tree]).ok(), ls(&["-1"], &tree));
    assert_eq!(call(&["ls", "-a"], &[&tree]).ok(), ls(&["-1A"], &tree));
    assert_eq!(call(&["ls", "-R"], &[&tree]).ok(), ls(&["-1R"], &tree));
    assert_eq!(call(&["ls"], &[&place.dir.join("link")]).ok(), ls(&["-1"], &tree), "a link is followed");
    assert_eq!(call(&["ls", "-d"], &[&tree]).ok(), ls(&["-1d"], &tree));
    let names = ls(&["-1A"], &tree);
    let long = call(&["ls", "-la"], &[&tree]).ok();
    for (ours, theirs) in long.lines().zip(ls(&["-lnA"], &tree).lines().skip(1)) {
        let fields = |line: &str| line.split_whitespace().take(5).map(str::to_owned).collect::<Vec<_>>();
        let (ours, theirs) = (fields(ours), fields(theirs));
        // Sizes of directories are numbers of entries in both.
        assert_eq!(ours[..5], theirs[..5]);
    }
    let times: Vec<i64> = call(&["ls", "--json", "-a"], &[&tree])
        .ok()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["mtime_ns"].as_i64().unwrap())
        .collect();
    let expected: Vec<i64> = names
        .lines()
        .map(|name| tree.join(name).symlink_metadata().unwrap())
        .map(|metadata| metadata.mtime() * 1_000_000_000 + metadata.mtime_nsec())
        .collect();
    assert_eq!(times, expected);
    place.umount().ok();
    assert_eq!(call(&["ls", "-a"], &[&inside(&place, "tree")]).ok(), names);
    assert_eq!(call(&["ls", "-a"], &[&inside(&place, "link")]).ok(), names, "a link is followed");
    assert_eq!(call(&["ls"], &[&inside(&place, "")]).ok(), "link\ntree\n");
    let missing = call(&["ls"], &[&inside(&place, "missing"), &inside(&place, "tree")]);
    assert!(missing.stdout.contains("n1"), "the other one is listed");
    missing.refused(2, &["missing"]);
    call(&["ls"], &[&place.dir.join("missing")]).refused(2, &["No such file"]);
}

/// What a command prints, and with how many calls it was written: each is a packet of a socket.
fn written(words: &[&str], path: &Path) -> (Vec<u8>, usize) {
    use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (ours, theirs) = socketpair(kind.0, kind.1, kind.2, None).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
    let mut child = command.args(words).arg(path).stdout(theirs).spawn().unwrap();
    drop(command);
    let (mut all, mut packets, mut packet) = (Vec::new(), 0, vec![0; 1 << 20]);
    loop {
        let (length, _) = recv(&ours, &mut packet[..], RecvFlags::empty()).unwrap();
        if length == 0 {
            break;
        }
        all.extend_from_slice(&packet[..length]);
        packets += 1;
    }
    assert!(child.wait().unwrap().success());
    (all, packets)
}

#[test]
fn long_lists_are_written_in_large_pieces() {
    let place = Place::mounted("256M");
    let tree = place.dir.join("tree");
    for n in 0..3000 {
        let directory = tree.join(format!("d{}", n / 1000));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("file-with-a-name-{n}")), b"").unwrap();
    }
    for words in [&["find"][..], &["find", "-0"], &["find", "--json"], &["ls", "-R"], &["ls", "-lR"]] {
        let (all, packets) = written(words, &tree);
        assert_eq!(all, call(words, &[&tree]).ok().as_bytes(), "{words:?}");
        let most = all.len() / (32 << 10) + 1;
        assert!((1..=most).contains(&packets), "{words:?}: {packets} calls for {} bytes", all.len());
    }
    // A reader that goes away ends it.
    let mut child = Command::new(env!("CARGO_BIN_EXE_espalier"))
        .args(["find".as_ref(), tree.as_os_str()])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert!(child.wait().unwrap().success());
    place.umount().ok();
}

#[test]
fn cat_prints_files() {
    let place = Place::mounted("256M");
    let (text, holes) = (place.dir.join("text"), place.dir.join("holes"));
    fs::write(&text, b"text\n").unwrap();
    fs::File::create(&holes).unwrap().set_len(3_000_000).unwrap();
    symlink("text", place.dir.join("link")).unwrap();
    assert_eq!(call(&["cat"], &[&text, &holes, &text]).ok().len(), 3_000_010);
    call(&["cat"], &[&place.dir]).refused(1, &["directory"]);
    espalier(&["snapshot".as_ref(), "create".as_ref(), place.dir.as_os_str(), "before".as_ref()]).ok();
    fs::write(&text, b"later\n").unwrap();
    place.umount().ok();
    assert_eq!(call(&["cat"], &[&inside(&place, "text"), &inside(&place, "/link")]).ok(), "later\nlater\n");
    assert_eq!(call(&["cat"], &[&inside(&place, ".snapshots/before/text")]).ok(), "text\n");
    assert_eq!(call(&["cat"], &[&inside(&place, "holes")]).ok(), "\0".repeat(3_000_000));
    let some = call(&["cat"], &[&inside(&place, "missing"), &inside(&place, "text")]);
    assert_eq!(some.stdout, "later\n");
    some.refused(1, &["missing"]);
    call(&["cat"], &[&inside(&place, "")]).refused(1, &["directory"]);
}

#[test]
fn cp_copies_as_cp_does() {
    let place = Place::mounted("512M");
    let tree = place.dir.join("tree");
    make_tree(&tree, 8, 80);
    fs::create_dir(place.dir.join("dir")).unwrap();
    fs::write(place.dir.join("file"), b"file").unwrap();
    call(&["cp", "-r"], &[&tree, &place.dir.join("copy")]).ok();
    common::assert_same_tree(&tree, &place.dir.join("copy"));
    call(&["cp", "-r"], &[&tree, &place.dir.join("file"), &place.dir.join("dir")]).ok();
    common::assert_same_tree(&tree, &place.dir.join("dir/tree"));
    call(&["cp"], &[&place.dir.join("file"), &place.dir.join("other")]).ok();
    assert_eq!(fs::read(place.dir.join("other")).unwrap(), b"file");
    call(&["cp"], &[&tree, &place.dir.join("no")]).refused(1, &["-r"]);
    call(&["cp", "-r"], &[&tree, &tree.join("in")]).refused(1, &["into itself"]);
    call(&["cp"], &[&place.dir.join("file"), &place.dir.join("none/there")]).refused(1, &["none"]);
    call(&["cp"], &[&place.dir.join("file"), &tree, &place.dir.join("other")]).refused(1, &["directory"]);
    call(&["cp"], &[&place.dir.join("missing"), &place.dir.join("x")]).refused(1, &["missing"]);
    place.umount().ok();
    let out = place.path("out");
    call(&["cp", "-r"], &[&inside(&place, "tree"), &out]).ok();
    call(&["cp"], &[&inside(&place, "file"), &out.join("renamed")]).ok();
    assert_eq!(fs::read(out.join("renamed")).unwrap(), b"file");
    fs::remove_file(out.join("renamed")).unwrap();
    call(&["cp", "-rT"], &[&out, &inside(&place, "dir")]).ok();
    call(&["cp", "-r"], &[&out, &inside(&place, "dir")]).ok();
    call(&["cp", "-r"], &[&inside(&place, "dir/out"), &inside(&place, "within")]).ok();
    call(&["cp", "-r"], &[&inside(&place, "dir"), &inside(&place, "dir/dir")]).refused(1, &["into itself"]);
    place.mount(&[]).ok();
    common::assert_same_tree(&place.dir.join("tree"), &place.dir.join("dir/out"));
    common::assert_same_tree(&place.dir.join("tree"), &place.dir.join("within"));
    place.remount();
}
