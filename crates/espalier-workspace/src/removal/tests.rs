use super::Removal;
use std::fs::{File, create_dir_all, rename, write};
use std::io::{Error, Result};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// What a mount that does not know the call says, or that refuses it.
fn refuse(_: &File, _: &std::ffi::OsStr) -> Result<()> {
    Err(Error::from_raw_os_error(libc::EPERM))
}

/// A tree to be removed, with a link to a directory outside.
fn ground() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    create_dir_all(top.join("tree/d/e")).unwrap();
    create_dir_all(top.join("outside")).unwrap();
    for file in ["tree/f", "tree/d/e/f", "outside/f"] {
        write(top.join(file), "").unwrap();
    }
    symlink("../../outside", top.join("tree/d/link")).unwrap();
    (dir, top)
}

fn mount(arguments: &[&str], at: &Path) {
    assert!(Command::new("mount").args(arguments).arg(at).status().unwrap().success());
}

fn unmount(at: &Path) {
    assert!(Command::new("umount").arg(at).status().unwrap().success());
}

#[test]
fn a_tree_goes_and_links_are_not_followed() {
    let (_dir, top) = ground();
    let removal = Removal::run(&top.join("tree"), &refuse).unwrap();
    assert!(removal.left.is_empty() && removal.steps == 5, "{:?}", removal.left);
    assert!(!top.join("tree").exists() && top.join("outside/f").exists());
    // A link in its place is none.
    symlink("outside", top.join("tree")).unwrap();
    assert_eq!(Removal::run(&top.join("tree"), &refuse).unwrap().left.len(), 1);
    assert!(top.join("tree").is_symlink() && top.join("outside/f").exists());
}

/// As root, which mounts.
#[test]
fn what_is_mounted_below_stays_whole() {
    let (_dir, top) = ground();
    let places = ["tree/d/other", "tree/twice", "tree/d/file"].map(|place| top.join(place));
    places[..2].iter().for_each(|place| create_dir_all(place).unwrap());
    write(&places[2], "").unwrap();
    mount(&["-t", "tmpfs", "espalier-test"], &places[0]);
    write(places[0].join("f"), "").unwrap();
    // The same file system, which its device does not tell.
    let (outside, file) = (top.join("outside"), top.join("outside/f"));
    mount(&["--bind", outside.to_str().unwrap()], &places[1]);
    mount(&["--bind", file.to_str().unwrap()], &places[2]);
    // Where whole directories can go, too.
    let in_one_step = |dir: &File, name: &std::ffi::OsStr| match name == "e" {
        true => std::fs::remove_dir_all(format!("/proc/self/fd/{}/e", std::os::fd::AsRawFd::as_raw_fd(dir))),
        false => refuse(dir, name),
    };
    let removal = Removal::run(&top.join("tree"), &in_one_step).unwrap();
    let are_whole = [&places[0].join("f"), &top.join("outside/f")].map(|file| file.exists());
    // Nor is what is mounted on the tree itself entered.
    let itself = top.join("outside");
    mount(&["-t", "tmpfs", "espalier-test"], &itself);
    write(itself.join("g"), "").unwrap();
    let refused = Removal::run(&itself, &refuse).unwrap();
    let is_whole = itself.join("g").exists();
    unmount(&itself);
    places.iter().for_each(|place| unmount(place));
    assert_eq!((are_whole, is_whole, refused.left.len()), ([true; 2], true, 1), "{:?}", removal.left);
    let mut left: Vec<PathBuf> = removal.left.into_iter().map(|(path, _)| path).collect();
    left.sort();
    let mut expected = places.clone();
    expected.sort();
    assert_eq!(left, expected);
    assert!(!top.join("tree/d/e").exists() && !top.join("tree/f").exists());
}

#[test]
fn what_takes_the_place_of_a_directory_meanwhile_is_not_removed() {
    let (_dir, top) = ground();
    // After `d` was looked at, a link leads elsewhere from there.
    let swap = |_: &File, name: &std::ffi::OsStr| {
        if name == "d" {
            rename(top.join("tree/d"), top.join("d")).unwrap();
            symlink("../outside", top.join("tree/d")).unwrap();
        }
        refuse(&File::open("/").unwrap(), name)
    };
    let removal = Removal::run(&top.join("tree"), &swap).unwrap();
    assert_eq!(removal.left.len(), 1, "{:?}", removal.left);
    assert!(top.join("outside/f").exists() && top.join("d/e/f").exists());
}
