//! Import and export: round trips of trees of all kinds against GNU tar, hostile archives, and an
//! import that is killed and begun again.

mod common;

use common::{Place, Random, espalier, make_tree, run};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A tree with everything that a file system has.
fn make_full_tree(root: &Path, seed: u64) {
    make_tree(root, seed, 120);
    let at = |name: &str| root.join(name);
    let long = "long name ".repeat(20);
    let deep = root.join(&long).join(&long).join("deep");
    fs::create_dir_all(&deep).unwrap();
    fs::write(deep.join(&long), b"deep").unwrap();
    fs::hard_link(deep.join(&long), deep.join("again")).unwrap();
    symlink("x".repeat(300), at("long link")).unwrap();
    symlink("/etc", at("absolute")).unwrap();
    run(Command::new("mkfifo").arg(at("fifo")));
    run(Command::new("mknod").arg(at("char")).args(["c", "5", "1"]));
    run(Command::new("mknod").arg(at("block")).args(["b", "259", "70000"]));
    run(Command::new("mkdir").args(["-m", "3571"]).arg(at("sticky")));
    for (name, length) in [("empty hole", 5_000_000), ("no hole", 0)] {
        fs::File::create(at(name)).unwrap().set_len(length).unwrap();
    }
    let large = fs::File::create(at("large")).unwrap();
    let bytes = Random(seed).bytes(1 << 20);
    for n in [0, 3, 4, 7] {
        large.write_all_at(&bytes, n << 20).unwrap();
    }
    large.set_len(9 << 20).unwrap();
    fs::write(at("set-id"), b"#!").unwrap();
    run(Command::new("chown").arg("1234:5678").arg(at("set-id")));
    fs::set_permissions(at("set-id"), fs::Permissions::from_mode(0o6755)).unwrap();
    run(Command::new("chown").args(["-h", "70000:3000000000"]).arg(at("long link")));
    run(Command::new("setfattr").args(["-n", "user.text", "-v", "a=b\nc\n"]).arg(at("set-id")));
    run(Command::new("setfattr").args(["-n", "user.bytes", "-v", "0x000aff3d20"]).arg(at("large")));
    run(Command::new("setfattr").args(["-n", "trusted.t", "-v", "t"]).arg(at("sticky")));
    run(Command::new("setfacl").args(["-m", "u:7:rw,g:8:r,m:rw"]).arg(at("set-id")));
    run(Command::new("setfacl").args(["-d", "-m", "u:7:rwx"]).arg(at("sticky")));
    for (name, time) in [
        ("empty hole", "1969-12-31T23:59:58.123456789Z"),
        ("no hole", "1902-01-01T00:00:00.5Z"),
        ("set-id", "2261-05-04T03:02:01.000000001Z"),
        ("long link", "2040-01-01T00:00:00.999999999Z"),
        ("sticky", "2001-02-03T04:05:06.789Z"),
    ] {
        run(Command::new("touch").args(["-h", "-d", time]).arg(at(name)));
        run(Command::new("touch").args(["-h", "-a", "-d", "2011-11-11T11:11:11.111Z"]).arg(at(name)));
    }
}

/// What find sees of a tree: everything but numbers and times that nothing sets.
fn seen(root: &Path) -> String {
    let format = "%P %y %m %U:%G %s %T@ %l %n\n";
    let mut find = Command::new("find");
    find.current_dir(root).args([
        ".",
        "-type",
        "d",
        "-printf",
        "%P %y %m %U:%G %T@\n",
        "-o",
        "-printf",
        format,
    ]);
    let mut lines: Vec<String> = run(&mut find).lines().map(str::to_owned).collect();
    lines.sort();
    lines.join("\n")
}

/// Compares two trees; also holes if both lie on the same file system.
#[track_caller]
fn assert_equal(one: &Path, other: &Path, has_holes: bool) {
    let (left, right) = (seen(one), seen(other));
    for (left, right) in left.lines().zip(right.lines()) {
        assert_eq!(left, right, "{} and {} differ", one.display(), other.display());
    }
    assert_eq!(left.lines().count(), right.lines().count());
    let options = ["-aHAXnic", "--specials", "--devices", "--delete", "--no-inc-recursive", "-O"];
    let different = run(Command::new("rsync").args(options).arg(one.join(".")).arg(other.join(".")));
    assert_eq!(different, "", "{} and {} differ", one.display(), other.display());
    if has_holes {
        let blocks = |root: &Path| {
            let text =
                run(Command::new("find").current_dir(root).args([".", "-type", "f", "-printf", "%P %b\n"]));
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(blocks(one), blocks(other));
    }
}

/// A path in an image, as the command line has it.
fn inside(image: &Path, path: &str) -> PathBuf {
    PathBuf::from(format!("{}:{path}", image.display()))
}

fn call(words: &[&str], paths: &[&Path]) -> common::Ran {
    let mut all: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
    all.extend(paths.iter().map(|path| path.as_os_str().to_owned()));
    espalier(&all)
}

/// A mount with a full tree, and another image that is not mounted.
fn places(seed: u64) -> (Place, PathBuf, Place) {
    let (place, other) = (Place::mounted("1G"), Place::with_image("1G"));
    let tree = place.dir.join("tree");
    make_full_tree(&tree, seed);
    (place, tree, other)
}

#[test]
fn directories_come_through_an_image_as_they_are() {
    let (place, tree, other) = places(1);
    let image = inside(&other.image, "in/it");
    let told = call(&["import", "--json"], &[&tree, &image]).ok();
    assert!(told.contains("\"failed\":0"), "{told}");
    other.fsck().ok();
    let back = place.dir.join("back");
    call(&["export"], &[&image, &back]).ok();
    assert_equal(&tree, &back, true);
    // Once more all is there.
    let told = call(&["import", "--json", "--resume"], &[&tree, &image]).ok();
    let json: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(json["skipped"].as_u64().unwrap() > 80, "{told}");
    // Over what is there, and by way of another place of the image.
    call(&["import"], &[&tree, &image]).ok();
    call(&["cp", "-r"], &[&image, &inside(&other.image, "copy")]).ok();
    call(&["cp", "-r"], &[&inside(&other.image, "copy"), &place.dir]).ok();
    assert_equal(&tree, &place.dir.join("copy"), true);
    other.mount(&[]).ok();
    assert_equal(&tree, &other.dir.join("in/it"), true);
    assert_equal(&tree, &other.dir.join("copy"), true);
    other.remount();
}

#[test]
fn gnu_tar_reads_what_is_exported() {
    let (place, tree, other) = places(2);
    for name in ["a.tar", "a.tar.zst"] {
        let archive = other.path(name);
        call(&["export"], &[&tree, &archive]).ok();
        let out = place.dir.join(name);
        fs::create_dir(&out).unwrap();
        let mut tar = Command::new("tar");
        tar.args(["--xattrs", "--xattrs-include=*", "--acls", "--same-owner", "-xpf"]).arg(&archive);
        run(tar.arg("-C").arg(&out));
        // GNU tar does not set times of the last read, which are not compared.
        assert_equal(&tree, &out, false);
    }
    // To standard output, and from there into an image.
    let image = inside(&other.image, "piped");
    let program = env!("CARGO_BIN_EXE_espalier");
    let mut export =
        Command::new(program).arg("export").arg(&tree).arg("-").stdout(Stdio::piped()).spawn().unwrap();
    let output = export.stdout.take().unwrap();
    let imported = Command::new(program).arg("import").arg("-").arg(&image).stdin(output).output().unwrap();
    assert!(imported.status.success(), "{imported:?}");
    assert!(export.wait().unwrap().success());
    let back = place.dir.join("back");
    call(&["export"], &[&image, &back]).ok();
    assert_equal(&tree, &back, true);
    // A single file.
    call(&["export"], &[&tree.join("large"), &other.path("one.tar")]).ok();
    let list = run(Command::new("tar").arg("-tf").arg(other.path("one.tar")));
    assert_eq!(list, "large\n");
    other.fsck().ok();
}

#[test]
fn what_gnu_tar_writes_is_imported() {
    let (place, tree, other) = places(3);
    let posix: &[&str] = &["--format=posix", "--xattrs", "--xattrs-include=*", "--acls"];
    let archive = other.path("a.tar");
    for (number, (options, is_exact)) in [
        (&["--sparse", "--sparse-version=1.0"][..], true),
        (&["--sparse", "--sparse-version=0.1"], true),
        (&["--sparse", "--sparse-version=0.0"], true),
        (&[], true),
        (&["--format=gnu", "--sparse"], false),
    ]
    .into_iter()
    .enumerate()
    {
        let mut tar = Command::new("tar");
        tar.arg("-cf").arg(&archive);
        if is_exact {
            tar.args(posix);
        }
        run(tar.args(options).arg("-C").arg(&tree).arg("."));
        let image = inside(&other.image, &format!("{number}"));
        call(&["import"], &[&archive, &image]).ok();
        // And into the mount.
        let out = place.dir.join(format!("mounted{number}"));
        call(&["import"], &[&archive, &out]).ok();
        let back = place.dir.join(format!("back{number}"));
        call(&["export"], &[&image, &back]).ok();
        if is_exact {
            assert_equal(&tree, &back, options.contains(&"--sparse"));
            assert_equal(&tree, &out, options.contains(&"--sparse"));
        } else {
            let whole = |root: &Path| {
                let text = run(Command::new("rsync")
                    .args(["-rlHDnic", "--delete"])
                    .arg(tree.join("."))
                    .arg(root.join(".")));
                text.lines().filter(|line| !line.starts_with(".d") && !line.contains("..t")).count()
            };
            assert_eq!((whole(&back), whole(&out)), (0, 0));
        }
    }
    other.fsck().ok();
}

/// A header of an archive with its checksum.
fn header(name: &[u8], kind: u8, size: &[u8], link: &[u8]) -> Vec<u8> {
    let mut block = vec![0; 512];
    block[..name.len()].copy_from_slice(name);
    block[100..107].copy_from_slice(b"0000644");
    block[108..115].copy_from_slice(b"0000000");
    block[116..123].copy_from_slice(b"0000000");
    block[124..124 + size.len()].copy_from_slice(size);
    block[136..147].copy_from_slice(b"00000000000");
    block[156] = kind;
    block[157..157 + link.len()].copy_from_slice(link);
    block[257..265].copy_from_slice(b"ustar\x0000");
    block[148..156].fill(b' ');
    let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

fn file(name: &[u8], content: &[u8]) -> Vec<u8> {
    let mut bytes = header(name, b'0', format!("{:011o}", content.len()).as_bytes(), b"");
    bytes.extend_from_slice(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn link(name: &[u8], kind: u8, target: &[u8]) -> Vec<u8> {
    header(name, kind, b"00000000000", target)
}

fn archive(members: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = members.concat();
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// Imports an archive from standard input.
fn import(archive: &[u8], target: &Path, options: &[&str]) -> common::Ran {
    let mut child = Command::new(env!("CARGO_BIN_EXE_espalier"))
        .arg("import")
        .args(options)
        .arg("-")
        .arg(target)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may end before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(archive);
    child.wait_with_output().unwrap().into()
}

#[test]
fn hostile_archives_write_nothing_outside() {
    let place = Place::mounted("256M");
    let other = Place::with_image("64M");
    let outside = place.dir.join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("secret"), b"secret").unwrap();
    let out = outside.to_str().unwrap().as_bytes();
    let cases: Vec<(&str, Vec<Vec<u8>>)> = vec![
        ("leads out by ..", vec![file(b"../outside/evil", b"evil")]),
        ("leads out by ..", vec![file(b"a/../../outside/evil", b"evil")]),
        ("is absolute", vec![file(&[out, b"/evil"].concat(), b"evil")]),
        ("symbolic link", vec![link(b"a", b'2', out), file(b"a/evil", b"evil")]),
        ("symbolic link", vec![link(b"a", b'2', b"../outside"), file(b"a/evil", b"evil")]),
        ("symbolic link", vec![link(b"a", b'2', b"."), link(b"b", b'2', b"a"), file(b"b/evil", b"evil")]),
        ("symbolic link", vec![link(b"a", b'2', out), header(b"a/d/", b'5', b"00000000000", b"")]),
        ("leads out", vec![link(b"hard", b'1', b"../outside/secret")]),
        ("leads out", vec![link(b"hard", b'1', &[out, b"/secret"].concat())]),
        ("symbolic link", vec![link(b"a", b'2', out), link(b"hard", b'1', b"a/secret")]),
        ("hard", vec![link(b"hard", b'1', b"missing")]),
        ("not known", vec![header(b"odd", b'Q', b"00000000000", b"")]),
        (".espalier-part", vec![file(b".espalier-part", b"evil")]),
        ("", vec![file(b"", b"evil")]),
    ];
    for (number, (word, members)) in cases.into_iter().enumerate() {
        // What is good in it is written all the same.
        let bytes = archive(&[members, vec![file(b"good", b"good")]].concat());
        let (mounted, image) = (place.dir.join(format!("in{number}")), format!("in{number}"));
        import(&bytes, &mounted, &[]).refused(1, &[word]);
        assert_eq!(fs::read(mounted.join("good")).unwrap(), b"good");
        import(&bytes, &inside(&other.image, &image), &[]).refused(1, &[word]);
        assert_eq!(call(&["cat"], &[&inside(&other.image, &format!("{image}/good"))]).ok(), "good");
        let names: Vec<_> = fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["secret"], "case {number}");
        assert_eq!(fs::metadata(outside.join("secret")).unwrap().nlink(), 1);
        assert!(!place.dir.join("evil").exists());
    }
    let names = call(&["ls", "--json"], &[&inside(&other.image, "")]).ok();
    assert!(names.lines().all(|line| line.contains("/in")), "{names}");
    other.fsck().ok();
}

#[test]
fn damaged_archives_are_reported() {
    let place = Place::mounted("256M");
    let whole = archive(&[file(b"first", b"first"), file(b"large", &[7; 100_000])]);
    let mut enormous = file(b"first", b"first");
    enormous.extend(header(b"huge", b'0', b"77777777777", b""));
    enormous.extend(vec![1; 100_000]);
    let mut beyond = file(b"first", b"first");
    beyond.extend(header(b"huge", b'0', b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff", b""));
    let mut extension = file(b"first", b"first");
    extension.extend(header(b"x", b'x', b"77777777777", b""));
    let mut wrong = whole.clone();
    wrong[1024 + 20] ^= 1;
    let pax = |records: &[u8]| {
        let mut bytes = header(b"x", b'x', format!("{:011o}", records.len()).as_bytes(), b"");
        bytes.extend_from_slice(records);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        archive(&[file(b"first", b"first"), bytes, file(b"second", b"second")])
    };
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("cut off", whole[..1024 + 512].to_vec()),
        ("cut off", whole[..1024 + 51_000].to_vec()),
        ("cut off", whole[..1024].to_vec()),
        ("cut off", enormous),
        ("cut off", beyond),
        ("header of", extension),
        ("checksum", wrong),
        ("pax header is damaged", pax(b"99 path=x\n")),
        ("no number", pax(b"12 size=abc\n")),
        ("cut off", pax(b"15 size=999999\n")),
        ("cut off", pax(b"28 size=9223372036854775807\n")),
    ];
    for (number, (word, bytes)) in cases.into_iter().enumerate() {
        let target = place.dir.join(format!("{number}"));
        import(&bytes, &target, &[]).refused(1, &[word]);
        // What precedes the damage is there, and nothing in part.
        let names: Vec<_> = fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["first"], "case {number}");
        assert_eq!(fs::read(target.join("first")).unwrap(), b"first");
    }
    for (word, bytes) in
        [("gzip", &b"\x1f\x8b\x08\0"[..]), ("xz", b"\xfd7zXZ\0"), ("no tar archive", &[b'x'; 512])]
    {
        import(bytes, &place.dir.join("none"), &[]).refused(1, &[word]);
    }
    import(b"", &place.dir.join("none"), &[]).refused(1, &["cut off"]);
    // Without its end mark it is not known whether something is missing.
    import(&whole[..whole.len() - 1024], &place.dir.join("endless"), &[]).refused(1, &["cut off"]);
    assert_eq!(fs::read(place.dir.join("endless/large")).unwrap(), [7; 100_000]);
    // Any bytes.
    let mut random = Random(77);
    for _ in 0..30 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.below(256) as u8;
        }
        let ran = import(&bytes, &place.dir.join("any"), &[]);
        assert!(matches!(ran.code, Some(0 | 1)) && !ran.stderr.contains("panicked"), "{ran:?}");
    }
    call(&["import"], &[&place.dir.join("missing"), &place.dir]).refused(1, &["missing"]);
    place.remount();
}

#[test]
fn an_import_that_was_killed_goes_on() {
    let (place, tree, other) = places(4);
    let archive = other.path("a.tar");
    call(&["export"], &[&tree, &archive]).ok();
    let bytes = fs::read(&archive).unwrap();
    for (number, part) in [bytes.len() / 2, bytes.len() / 5].into_iter().enumerate() {
        let mounted = place.dir.join(format!("resumed{number}"));
        for target in [inside(&other.image, &format!("{number}")), mounted.clone()] {
            let mut child = Command::new(env!("CARGO_BIN_EXE_espalier"))
                .args(["import", "-"])
                .arg(&target)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            let mut input = child.stdin.take().unwrap();
            input.write_all(&bytes[..part]).unwrap();
            // It has taken all but what fits into the pipe.
            child.kill().unwrap();
            child.wait().unwrap();
            drop(input);
            other.fsck().ok();
            call(&["import", "--resume"], &[&archive, &target]).ok();
        }
        assert_equal(&tree, &mounted, true);
        let back = place.dir.join(format!("back{number}"));
        call(&["export"], &[&inside(&other.image, &format!("{number}")), &back]).ok();
        assert_equal(&tree, &back, true);
    }
    // A directory, with nothing left of files that were not complete.
    let target = place.dir.join("again");
    call(&["import"], &[&tree, &target]).ok();
    fs::remove_file(target.join("large")).unwrap();
    fs::write(target.join(".espalier-part"), b"half").unwrap();
    fs::write(target.join("set-id"), b"other").unwrap();
    let told = call(&["import", "--resume", "--json"], &[&tree, &target]).ok();
    let json: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(json["skipped"].as_u64().unwrap() > 80, "{told}");
    assert_equal(&tree, &target, true);
    other.fsck().ok();
}

#[test]
fn a_full_image_says_so() {
    let place = Place::new();
    place.mkfs(&["--size", "24M"]).ok();
    let source = place.path("source");
    fs::create_dir(&source).unwrap();
    let mut random = Random(9);
    for n in 0..80 {
        fs::write(source.join(format!("{n:02}")), random.bytes(500_000)).unwrap();
    }
    call(&["import"], &[&source, &inside(&place.image, "")]).refused(1, &["full"]);
    place.fsck().ok();
    // What is there is whole.
    let back = place.path("back");
    call(&["export"], &[&inside(&place.image, ""), &back]).ok();
    let mut count = 0;
    for entry in fs::read_dir(&back).unwrap() {
        let path = entry.unwrap().path();
        let (mut one, mut other) = (Vec::new(), Vec::new());
        fs::File::open(&path).unwrap().read_to_end(&mut one).unwrap();
        fs::File::open(source.join(path.file_name().unwrap())).unwrap().read_to_end(&mut other).unwrap();
        assert!(one == other, "{}", path.display());
        count += 1;
    }
    assert!(count > 5 && count < 80, "{count}");
}

#[test]
fn owners_are_kept_by_root_alone() {
    let place = Place::mounted("256M");
    let opened = common::open_way_to(&place);
    let bytes = archive(&[file(b"f", b"content")]);
    let path = place.path("a.tar");
    fs::write(&path, bytes).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let own = place.dir.join("own");
    fs::create_dir(&own).unwrap();
    run(Command::new("chown").arg("1234").arg(&own));
    let program = env!("CARGO_BIN_EXE_espalier");
    run(common::as_user(Some(1234), program).arg("import").arg(&path).arg(&own));
    assert_eq!(fs::metadata(own.join("f")).unwrap().uid(), 1234);
    call(&["import", "--no-owners"], &[&path, &place.dir.join("root")]).ok();
    let refused = common::as_user(Some(1235), program).arg("import").arg(&path).arg(&own).output().unwrap();
    common::Ran::from(refused).refused(1, &["ermission denied"]);
    common::close_way(opened);
}
