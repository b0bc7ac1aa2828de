//! Whole trees on a mount: clone, remove, change owner and mode.

mod common;

use common::{Place, assert_same_tree, espalier, make_tree, run};
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Runs a command of the program on paths.
fn tree(words: &[&str], paths: &[&Path]) -> common::Ran {
    let mut all: Vec<std::ffi::OsString> = words.iter().map(Into::into).collect();
    all.extend(paths.iter().map(|p| p.as_os_str().to_owned()));
    espalier(&all)
}

/// Needs root, which mounts.
#[test]
fn what_is_mounted_below_a_tree_is_not_removed_with_it() {
    let place = Place::mounted("1G");
    fs::set_permissions(place.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&place.dir, fs::Permissions::from_mode(0o777)).unwrap();
    let at = |path: &str| place.dir.join(path);
    run(Command::new("sh").current_dir(&place.dir).args([
        "-ec",
        "mkdir -p mine/deep mine/plain outside; echo x >outside/file; echo x >mine/f; \
         ln -s ../outside mine/link; chown -hR 4321:4321 .; cd mine; mkdir of-root deep/of-root deep/other deep/bound; \
         echo x >of-root/file; echo x >deep/of-root/file",
    ]));
    run(Command::new("mount")
        .args(["-t", "tmpfs", "-o", "uid=4321", "espalier-test"])
        .arg(at("mine/deep/other")));
    fs::write(at("mine/deep/other/file"), "x").unwrap();
    // The same file system, at another place.
    run(Command::new("mount").arg("--bind").args([at("outside"), at("mine/deep/bound")]));
    let removed: common::Ran = common::as_user(Some(4321), env!("CARGO_BIN_EXE_espalier"))
        .arg("rm")
        .arg(at("mine"))
        .output()
        .unwrap()
        .into();
    let are_whole = at("outside/file").exists() && at("mine/deep/other/file").exists();
    for mount in ["mine/deep/other", "mine/deep/bound"] {
        run(Command::new("umount").arg(at(mount)));
    }
    assert!(are_whole, "{removed:?}");
    removed.refused(
        1,
        &["mine/deep/other: something is mounted there", "deep/bound: something", "of-root/file"],
    );
    let mut left: Vec<_> =
        run(Command::new("find").current_dir(&place.dir).arg("mine")).lines().map(str::to_owned).collect();
    left.sort();
    let kept = [
        "",
        "/deep",
        "/deep/bound",
        "/deep/of-root",
        "/deep/of-root/file",
        "/deep/other",
        "/of-root",
        "/of-root/file",
    ];
    assert_eq!(left, kept.map(|path| format!("mine{path}")));
    place.remount();
}

/// A tree that is all the caller's own would go in one step, and the mount with it.
#[test]
fn what_is_mounted_below_an_own_tree_stays() {
    let place = Place::mounted("1G");
    let at = |path: &str| place.dir.join(path);
    for path in ["t/plain/deep", "t/d/cache", "u"] {
        fs::create_dir_all(at(path)).unwrap();
        fs::write(at(path).join("below"), "x").unwrap();
    }
    for point in ["t/d/cache", "u"] {
        run(Command::new("mount").args(["-t", "tmpfs", "espalier-test"]).arg(at(point)));
        fs::write(at(point).join("file"), "x").unwrap();
    }
    let removed = espalier(&["rm".as_ref(), at("t").as_os_str(), at("u").as_os_str()]);
    let are_whole = ["t/d/cache", "u"].map(|point| at(point).join("file").exists());
    for point in ["t/d/cache", "u"] {
        run(Command::new("umount").arg(at(point)));
    }
    assert_eq!(are_whole, [true, true], "{removed:?}");
    removed.refused(1, &["something is mounted there"]);
    assert!(!at("t/plain").exists() && at("t/d/cache/below").exists() && at("u/below").exists());
    espalier(&["rm".as_ref(), at("t").as_os_str(), at("u").as_os_str()]).ok();
}

/// The numbers of everything below, hard links once.
fn numbers(root: &Path) -> HashSet<u64> {
    let text = run(Command::new("find").arg(root).args(["-printf", "%i\n"]));
    text.lines().map(|line| line.parse().expect("a number")).collect()
}

#[test]
fn clones_look_like_copies_and_are_removed_at_once() {
    let place = Place::mounted("2G");
    let (src, copy) = (place.dir.join("src"), place.dir.join("copy"));
    // The kernel knows that there is none.
    assert!(!copy.exists());
    make_tree(&src, 7, 300);
    tree(&["clone"], &[&src, &copy]).ok();
    assert_same_tree(&src, &copy);
    assert!(numbers(&src).is_disjoint(&numbers(&copy)));
    // Both sides are written, through a name and through a mapping of what was open before.
    fs::write(copy.join("new"), b"only here").unwrap();
    fs::write(src.join("other"), b"only there").unwrap();
    assert!(!src.join("new").exists() && !copy.join("other").exists());
    tree(&["clone"], &[&src, &copy]).ok();
    assert!(copy.join("src/other").exists(), "into a directory, as cp does");
    tree(&["clone"], &[&src, &copy]).refused(1, &["exists already"]);
    tree(&["clone"], &[&src, Path::new("/tmp/espalier-no-such")]).refused(1, &["different file systems"]);
    let json = tree(&["clone", "--json"], &[&src.join("other"), &place.dir.join("file")]).ok();
    assert!(json.contains("\"microseconds\""), "{json}");
    assert_eq!(fs::read(place.dir.join("file")).unwrap(), b"only there");
    place.remount();
    let open = fs::File::open(copy.join("new")).unwrap();
    let kept = numbers(&copy);
    place_is_listed(&place.dir, &["copy", "file", "src"]);
    tree(&["rm"], &[&copy]).ok();
    assert!(!copy.exists());
    place_is_listed(&place.dir, &["file", "src"]);
    assert_eq!(std::io::read_to_string(&open).unwrap(), "only here", "what is open can be read");
    tree(&["clone"], &[&src, &copy]).ok();
    assert!(numbers(&copy).is_disjoint(&kept), "numbers are not used again");
    drop(open);
    tree(&["rm"], &[&copy, &src, &place.dir.join("file")]).ok();
    place_is_listed(&place.dir, &[]);
    tree(&["rm"], &[&src]).refused(1, &["No such file"]);
    tree(&["rm", "--force"], &[&src]).ok();
    place.remount();
}

fn place_is_listed(dir: &Path, names: &[&str]) {
    let mut found: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    assert_eq!(found, names);
}

#[test]
fn names_outside_a_removed_tree_count_at_once() {
    let place = Place::mounted("1G");
    let (tree_of_names, kept) = (place.dir.join("tree"), place.dir.join("kept"));
    fs::create_dir(&tree_of_names).unwrap();
    fs::write(&kept, b"text").unwrap();
    fs::hard_link(&kept, tree_of_names.join("a")).unwrap();
    fs::hard_link(&kept, tree_of_names.join("b")).unwrap();
    let open = fs::File::open(&tree_of_names).unwrap();
    let links = || kept.metadata().unwrap().nlink();
    assert_eq!((links(), open.metadata().unwrap().len()), (3, 2));
    tree(&["rm"], &[&tree_of_names]).ok();
    assert_eq!(links(), 1);
    assert_eq!(open.metadata().unwrap().len(), 0, "what is left of the directory");
    drop(open);
    place.remount();
    assert_eq!(links(), 1);
}

#[test]
fn owners_and_modes_change_at_once_also_for_what_the_kernel_knows() {
    let place = Place::mounted("1G");
    let src = place.dir.join("src");
    make_tree(&src, 3, 100);
    let open = fs::File::open(&src).unwrap();
    let before = numbers(&src);
    tree(&["chown", "-R", "1234:5678"], &[&src]).ok();
    let owners = run(Command::new("find").arg(&src).args(["-printf", "%U:%G\n"]));
    assert!(owners.lines().all(|line| line == "1234:5678"), "{owners}");
    assert_eq!(open.metadata().unwrap().uid(), 1234);
    assert_eq!(place.dir.metadata().unwrap().uid(), 0);
    tree(&["chmod", "-R", "u=rwX,go="], &[&src]).ok();
    let modes = run(Command::new("find").arg(&src).args(["!", "-type", "l", "-printf", "%y %m\n"]));
    assert!(modes.lines().all(|line| line == "d 700" || line == "f 600"), "{modes}");
    tree(&["chmod", "700"], &[&src]).refused(1, &["-R"]);
    assert_eq!(numbers(&src), before);
    drop(open);
    place.remount();
    let owners = run(Command::new("find").arg(&src).args(["-printf", "%U:%G\n"]));
    assert!(owners.lines().all(|line| line == "1234:5678"), "{owners}");
    assert_eq!(src.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
}

#[test]
fn a_change_of_a_small_tree_leaves_the_kernel_what_it_knows_of_the_rest() {
    let place = Place::mounted("1G");
    let (large, small) = (place.dir.join("large"), place.dir.join("small"));
    make_tree(&large, 3, 100);
    make_tree(&small, 1, 20);
    // A name elsewhere of a file in it, by which the kernel knows it too.
    fs::write(small.join("linked"), "text").unwrap();
    fs::hard_link(small.join("linked"), large.join("linked")).unwrap();
    let walk = |dir: &Path| run(Command::new("find").arg(dir).args(["-printf", "%U:%G %m %s\n"]));
    let asked = |kind: &str| {
        let said = tree(&["info", "--json"], &[&place.dir]).ok();
        let value: serde_json::Value = serde_json::from_str(&said).unwrap();
        value["mount"]["requests"][kind].as_u64().unwrap_or(0)
    };
    let owners = |dir: &Path| walk(dir).lines().filter(|line| line.starts_with("12:34 ")).count();
    walk(&large);
    walk(&small);
    let before = ["lookup", "readdirplus"].map(asked);
    tree(&["chown", "-R", "12:34"], &[&small]).ok();
    let (in_large, in_small) = (owners(&large), owners(&small));
    assert_eq!(in_large, 1, "the file with a name in both");
    assert_eq!(in_small, walk(&small).lines().count());
    assert_eq!(
        ["lookup", "readdirplus"].map(asked),
        before,
        "the kernel asks for names that have not changed"
    );
    assert!(asked("getattr") > 20, "and for what has");
}

#[test]
fn users_clone_and_remove_what_is_theirs() {
    let place = Place::mounted("1G");
    fs::set_permissions(place.base.path(), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&place.dir, fs::Permissions::from_mode(0o777)).unwrap();
    let as_user = |words: &[&str], paths: &[&Path]| -> common::Ran {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            "4321",
            "--regid",
            "4321",
            "--clear-groups",
            env!("CARGO_BIN_EXE_espalier"),
        ]);
        command.args(words).args(paths).output().expect("setpriv runs").into()
    };
    let (mine, copy) = (place.dir.join("mine"), place.dir.join("copy"));
    make_tree(&mine, 5, 60);
    tree(&["chown", "-R", "4321:4321"], &[&mine]).ok();
    as_user(&["clone"], &[&mine, &copy]).ok();
    assert_same_tree(&mine, &copy);
    // Nothing is made where the user may not write, and nothing of others is copied or removed.
    fs::create_dir(place.dir.join("locked")).unwrap();
    as_user(&["clone"], &[&mine, &place.dir.join("locked/copy")]).refused(1, &["may not make"]);
    fs::create_dir(mine.join("of root")).unwrap();
    fs::write(mine.join("of root/file"), b"x").unwrap();
    as_user(&["clone"], &[&mine, &place.dir.join("more")]).refused(1, &["another user"]);
    as_user(&["rm"], &[&mine]).refused(1, &["of root"]);
    assert_eq!(numbers(&mine).len(), 3, "the rest is gone");
    as_user(&["rm"], &[&copy]).ok();
    as_user(&["chown", "-R", "0"], &[&mine]).refused(1, &["only root"]);
    // Every user sees which snapshots there are.
    tree(&["snapshot", "create"], &[&place.dir, Path::new("of all")]).ok();
    assert!(as_user(&["snapshot", "list"], &[&place.dir]).ok().ends_with("of all\n"));
    as_user(&["scrub"], &[&place.dir]).refused(1, &["only root"]);
    place.remount();
}

#[test]
fn many_snapshots_with_long_names_are_listed_and_checked() {
    let place = Place::mounted("1G");
    let src = place.dir.join("src");
    make_tree(&src, 11, 10);
    // More than one answer of the server, or one description of it, can hold.
    let names: Vec<String> = (0..330).map(|n| format!("{n:04}{}", "x".repeat(196))).collect();
    for name in &names {
        tree(&["snapshot", "create"], &[&place.dir, Path::new(name)]).ok();
    }
    tree(&["snapshot", "create"], &[&src, Path::new("of src")]).ok();
    let listed = |source: &Path| -> Vec<String> {
        let said = tree(&["snapshot", "list", "--json"], &[source]).ok();
        let all: Vec<serde_json::Value> = serde_json::from_str(&said).unwrap();
        all.iter().map(|snapshot| snapshot["name"].as_str().unwrap().to_owned()).collect()
    };
    let mut all = names.clone();
    all.push("of src".into());
    let mut found = listed(&place.dir);
    found.sort();
    assert_eq!(found, all);
    assert_eq!(listed(&src), ["of src"]);
    let info: serde_json::Value =
        serde_json::from_str(&tree(&["info", "--json"], &[&place.dir]).ok()).unwrap();
    assert_eq!(info["snapshots"], 331);
    place_is_listed(&place.dir.join(".snapshots"), &names.iter().map(String::as_str).collect::<Vec<_>>());
    espalier(&["umount".as_ref(), place.dir.as_os_str()]).ok();
    let said = tree(&["fsck", "--snapshots"], &[&place.image]).ok();
    assert!(said.contains(", and 331 snapshots") && said.contains("clean"), "{said}");
    tree(&["fsck", "--snapshots", "--repair"], &[&place.image]).refused(8, &["cannot be used with"]);
}

#[test]
fn snapshots_are_seen_kept_mounted_and_restored() {
    let place = Place::mounted("1G");
    let src = place.dir.join("src");
    make_tree(&src, 11, 80);
    let reference = place.path("reference");
    run(Command::new("cp").arg("-a").arg(&src).arg(&reference));
    let before = numbers(&src);
    let name = |words: &[&str], of: &Path, name: &str| {
        let mut all: Vec<std::ffi::OsString> = vec!["snapshot".into()];
        all.extend(words.iter().map(Into::into));
        all.extend([of.as_os_str().to_owned(), name.into()]);
        espalier(&all)
    };
    name(&["create"], &place.dir, "one").ok();
    name(&["create"], &place.dir, "one").refused(1, &["already"]);
    fs::write(src.join("later"), b"x").unwrap();
    name(&["create", "--writable"], &place.dir, "two").ok();
    let inside = place.dir.join(".snapshots/one/src");
    assert_same_tree(&reference, &inside);
    assert!(numbers(&inside).is_disjoint(&numbers(&src)), "both are seen in one mount");
    assert!(fs::write(inside.join("new"), b"").is_err_and(|e| e.raw_os_error() == Some(libc::EROFS)));
    place_is_listed(&place.dir, &["src"]);
    place_is_listed(&place.dir.join(".snapshots"), &["one", "two"]);
    // What one takes out of a snapshot is an ordinary copy.
    run(Command::new("cp").arg("-a").arg(&inside).arg(place.dir.join("back")));
    assert_same_tree(&reference, &place.dir.join("back"));
    let list = espalier(&["snapshot".as_ref(), "list".as_ref(), place.dir.as_os_str()]).ok();
    assert!(list.contains("read-only  one") && list.contains("writable   two"), "{list}");
    tree(&["rm"], &[&src]).ok();
    name(&["restore"], &place.dir, "one").refused(1, &["unmount"]);
    place.umount().ok();
    place.fsck().ok();
    place.mount(&["-o", "snapshot=one"]).ok();
    assert_same_tree(&reference, &src);
    assert_eq!(numbers(&src), before, "alone it has the numbers of the original");
    assert!(fs::write(src.join("new"), b"").is_err());
    place.umount().ok();
    place.mount(&["-o", "snapshot=two"]).ok();
    fs::write(src.join("new"), b"changed").unwrap();
    place.umount().ok();
    place.mount(&["-o", "snapshot=none"]).refused(1, &["snapshot list"]);
    name(&["restore"], &place.image, "one").ok();
    place.mount(&[]).ok();
    assert_same_tree(&reference, &src);
    assert_eq!(fs::read(place.dir.join(".snapshots/two/src/new")).unwrap(), b"changed");
    name(&["delete"], &place.dir, "one").ok();
    name(&["delete"], &place.dir, "one").refused(1, &["no snapshot"]);
    assert!(!place.dir.join(".snapshots/one").exists());
    place.umount().ok();
    name(&["delete"], &place.image, "two").ok();
    place.fsck().ok();
    place.mount(&[]).ok();
    assert_same_tree(&reference, &src);
}

#[test]
fn snapshots_of_directories_are_seen_kept_mounted_and_restored() {
    let place = Place::mounted("1G");
    let src = place.dir.join("top/src");
    fs::create_dir(place.dir.join("top")).unwrap();
    make_tree(&src, 13, 80);
    let reference = place.path("reference");
    run(Command::new("cp").arg("-a").arg(&src).arg(&reference));
    let (before, ino) = (numbers(&src), src.metadata().unwrap().ino());
    let name = |words: &[&str], of: &Path, name: &str| {
        let mut all: Vec<std::ffi::OsString> = vec!["snapshot".into()];
        all.extend(words.iter().map(Into::into));
        all.extend([of.as_os_str().to_owned(), name.into()]);
        espalier(&all)
    };
    let list = |of: &Path| -> Vec<serde_json::Value> {
        let words = ["snapshot".as_ref(), "list".as_ref(), "--json".as_ref(), of.as_os_str()];
        serde_json::from_str(&espalier(&words).ok()).expect("JSON")
    };
    // The kernel knows that there is none.
    assert!(!src.join(".snapshots").exists());
    name(&["create"], &src, "one").ok();
    name(&["create"], &src, "one").refused(1, &["already"]);
    // One of another directory, and one of the whole volume, may have the same name.
    name(&["create"], &place.dir.join("top"), "one").ok();
    name(&["create"], &place.dir, "one").ok();
    fs::write(src.join("later"), b"x").unwrap();
    let inside = src.join(".snapshots/one");
    assert_same_tree(&reference, &inside);
    assert!(numbers(&inside).is_disjoint(&numbers(&src)), "both are seen in one mount");
    assert!(fs::write(inside.join("new"), b"").is_err_and(|e| e.raw_os_error() == Some(libc::EROFS)));
    assert!(!src.join(".snapshots/two").exists());
    name(&["create", "--writable"], &src, "two").ok();
    place_is_listed(&src.join(".snapshots"), &["one", "two"]);
    place_is_listed(&place.dir.join(".snapshots"), &["one"]);
    assert!(!fs::read_dir(&src).unwrap().any(|entry| entry.unwrap().file_name() == ".snapshots"));
    assert_eq!((list(&src).len(), list(&place.dir).len()), (2, 4));
    assert!(list(&src).iter().all(|one| one["directory"] == ino));
    assert_eq!(tree(&["diff"], &[&inside, &src]).ok().trim(), "+ later");
    // It moves along. What was open is as if removed.
    let moved = place.dir.join("moved");
    fs::rename(&src, &moved).unwrap();
    let open = fs::File::open(moved.join("later")).unwrap();
    name(&["restore"], &moved, "one").ok();
    assert_same_tree(&reference, &moved);
    assert_eq!(moved.metadata().unwrap().ino(), ino);
    assert_eq!(std::io::read_to_string(&open).unwrap(), "x");
    assert!(!moved.join("later").exists());
    drop(open);
    name(&["restore"], &moved, "none").refused(1, &["no snapshot"]);
    place_is_listed(&moved.join(".snapshots"), &["one", "two"]);
    place.umount().ok();
    place.fsck().ok();
    let number = |name: &str| format!("snapshot={ino}/{name}");
    place.mount(&["-o", &number("one")]).ok();
    assert_same_tree(&reference, &place.dir);
    assert_eq!(numbers(&place.dir), before, "alone it has the numbers of the original");
    place.umount().ok();
    place.mount(&["-o", &number("two")]).ok();
    fs::write(place.dir.join("new"), b"changed").unwrap();
    place.umount().ok();
    place.mount(&[]).ok();
    assert_eq!(fs::read(moved.join(".snapshots/two/new")).unwrap(), b"changed");
    // They outlive the directory.
    tree(&["rm"], &[&moved]).ok();
    name(&["delete"], &place.dir, &format!("{ino}/one")).ok();
    fs::create_dir(place.dir.join("back")).unwrap();
    name(&["restore"], &place.dir.join("back"), &format!("{ino}/two")).ok();
    assert_eq!(fs::read(place.dir.join("back/new")).unwrap(), b"changed");
    name(&["delete"], &place.dir.join("top"), "one").ok();
    assert!(!place.dir.join("top/.snapshots").exists());
    name(&["delete"], &place.dir.join("top"), "one").refused(1, &["no snapshot"]);
    assert_eq!(list(&place.dir).len(), 2);
    place.umount().ok();
    place.fsck().ok();
}

#[test]
fn trees_of_an_image_that_is_not_mounted_are_changed_the_same_way() {
    let place = Place::mounted("1G");
    let src = place.dir.join("src");
    make_tree(&src, 19, 60);
    let reference = place.path("reference");
    run(Command::new("cp").arg("-a").arg(&src).arg(&reference));
    let at = |path: &str| std::path::PathBuf::from(format!("{}:{path}", place.image.display()));
    let snapshot = |command: &str, path: &str, name: &str| {
        espalier(&["snapshot".as_ref(), command.as_ref(), at(path).as_os_str(), name.as_ref()])
    };
    tree(&["clone"], &[&at("src"), &at("copy")]).refused(1, &["is mounted at"]);
    place.umount().ok();
    tree(&["clone"], &[&at("src"), &at("copy")]).ok();
    let json = tree(&["clone", "--json"], &[&at("/src"), &at("copy")]).ok();
    assert!(json.contains(":/copy/src"), "{json}");
    tree(&["clone"], &[&at("none"), &at("more")]).refused(1, &["nothing of that name"]);
    tree(&["clone"], &[&at("src"), Path::new("/tmp/elsewhere")]).refused(1, &["in the image too"]);
    tree(&["diff"], &[&at("src"), &at("copy")]).ok();
    tree(&["rm"], &[&at("copy/src")]).ok();
    assert_eq!(tree(&["diff"], &[&at("src"), &at("copy")]).ok(), "");
    snapshot("create", "copy", "then").ok();
    snapshot("create", "copy", "then").refused(1, &["already"]);
    tree(&["chown", "-R", "12:34"], &[&at("copy")]).ok();
    tree(&["chmod", "-R", "go="], &[&at("copy")]).ok();
    assert_eq!(tree(&["diff"], &[&at("copy/.snapshots/then"), &at("src")]).ok(), "");
    assert!(tree(&["diff"], &[&at("copy/.snapshots/then"), &at("copy")]).ok().starts_with('~'));
    tree(&["rm"], &[&at("copy/.snapshots/then/x")]).refused(1, &["nothing of that name"]);
    let space: serde_json::Value =
        serde_json::from_str(&tree(&["du", "--json"], &[&at("copy")]).ok()).expect("JSON");
    assert!(space["bytes"].as_u64().unwrap() > 0);
    place.mount(&[]).ok();
    let copy = place.dir.join("copy");
    let owners = run(Command::new("find").arg(&copy).args(["-printf", "%U:%G\n"]));
    assert!(owners.lines().all(|line| line == "12:34"), "{owners}");
    assert_same_tree(&reference, &copy.join(".snapshots/then"));
    place.umount().ok();
    snapshot("restore", "copy", "then").ok();
    snapshot("restore", "copy", "none").refused(1, &["no snapshot"]);
    tree(&["rm"], &[&at("src"), &at("missing")]).refused(1, &["missing: there is nothing"]);
    tree(&["rm", "--force"], &[&at("missing")]).ok();
    place.fsck().ok();
    place.mount(&[]).ok();
    assert_same_tree(&reference, &copy);
    place_is_listed(&place.dir, &["copy"]);
    place.umount().ok();
    snapshot("delete", "copy", "then").ok();
    let list = espalier(&["snapshot".as_ref(), "list".as_ref(), place.image.as_os_str()]).ok();
    assert_eq!(list, "");
    place.fsck().ok();
}

#[test]
fn differences_are_those_that_were_made() {
    let place = Place::mounted("2G");
    let (src, copy) = (place.dir.join("src"), place.dir.join("copy"));
    make_tree(&src, 17, 400);
    fs::create_dir(src.join("dir")).unwrap();
    for name in ["a", "b", "c", "linked"] {
        fs::write(src.join("dir").join(name), name).unwrap();
    }
    fs::hard_link(src.join("dir/linked"), src.join("dir/other")).unwrap();
    tree(&["clone"], &[&src, &copy]).ok();
    espalier(&["snapshot".as_ref(), "create".as_ref(), place.dir.as_os_str(), "then".as_ref()]).ok();
    let diff = |a: &Path, b: &Path| {
        let mut lines: Vec<_> = tree(&["diff"], &[a, b]).ok().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert!(diff(&src, &copy).is_empty());
    fs::write(copy.join("dir/a"), b"changed").unwrap();
    fs::remove_file(copy.join("dir/b")).unwrap();
    fs::rename(copy.join("dir/c"), copy.join("dir/d")).unwrap();
    fs::write(copy.join("dir/linked"), b"both names").unwrap();
    fs::create_dir(copy.join("new")).unwrap();
    fs::write(copy.join("new/file"), b"").unwrap();
    let expected =
        ["+ dir/d", "+ new", "+ new/file", "- dir/b", "- dir/c", "~ dir/a", "~ dir/linked", "~ dir/other"];
    assert_eq!(diff(&src, &copy), expected);
    assert_eq!(diff(&place.dir.join(".snapshots/then/copy"), &copy), expected);
    assert_eq!(diff(&place.dir.join(".snapshots/then/src"), &src), [""; 0]);
    let json: serde_json::Value =
        serde_json::from_str(&tree(&["diff", "--json"], &[&src, &copy]).ok()).expect("JSON");
    assert_eq!(json["changed"].as_array().map(Vec::len), Some(3));
    assert!(json["nodes_read"].is_u64());
    // What was cloned takes the space of the source and has little for itself.
    let space = |path: &Path| -> serde_json::Value {
        serde_json::from_str(&tree(&["du", "--json"], &[path]).ok()).expect("JSON")
    };
    let (used, own) = (space(&copy)["bytes"].as_u64().unwrap(), space(&copy)["exclusive"].as_u64().unwrap());
    assert!(own < used, "{own} of {used} bytes");
    place.remount();
    assert_eq!(diff(&src, &copy), expected);
}
