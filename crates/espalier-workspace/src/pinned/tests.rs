use super::{BENEATH, Pinned, descriptor_path, open_below, walk};
use crate::error::Error;
use rustix::fs::{OFlags, ResolveFlags};
use rustix::io::Errno;
use std::fs::{File, create_dir, read_dir, rename, write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A directory with a file below it, and links to that.
fn ground() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap().join("top");
    create_dir(&top).unwrap();
    create_dir(top.join("d")).unwrap();
    write(top.join("d/f"), "text").unwrap();
    write(top.with_file_name("outside"), "").unwrap();
    symlink("d", top.join("link")).unwrap();
    (dir, top)
}

#[test]
fn a_path_leads_through_no_link_and_not_out_of_the_directory() {
    let (_dir, top) = ground();
    let pinned = Pinned::open(&top).unwrap();
    let file = pinned.hold(Path::new("d/f")).unwrap().unwrap();
    assert_eq!(std::io::read_to_string(file.open(File::options().read(true)).unwrap()).unwrap(), "text");
    for nothing in ["link/f", "d/f/x", "d/missing"] {
        assert!(pinned.hold(Path::new(nothing)).unwrap().is_none(), "{nothing}");
    }
    assert!(pinned.hold(Path::new("../outside")).is_err());
    let link = pinned.hold(Path::new("link")).unwrap().unwrap();
    assert_eq!(link.link_target().unwrap(), Path::new("d"));
    assert!(link.metadata().unwrap().is_symlink());
    assert!(pinned.hold(Path::new("")).unwrap().unwrap().metadata().unwrap().is_dir());
    assert!(pinned.below(Path::new("link")).unwrap().is_none());
    assert_eq!(pinned.below(Path::new("d")).unwrap().unwrap().name(), top.join("d"));
}

#[test]
fn what_is_held_stays_whatever_takes_its_place() {
    let (_dir, top) = ground();
    let pinned = Pinned::open(&top).unwrap();
    let file = pinned.hold(Path::new("d/f")).unwrap().unwrap();
    rename(top.join("d"), top.join("away")).unwrap();
    symlink("/", top.join("d")).unwrap();
    assert_eq!(std::io::read_to_string(file.open(File::options().read(true)).unwrap()).unwrap(), "text");
    assert!(Pinned::open(&top.join("d")).is_err());
    let way = top.join("away");
    assert!(Pinned::open_resolved(&way).is_ok());
    symlink(&top, top.with_file_name("other")).unwrap();
    let through_link = Pinned::open_resolved(&top.with_file_name("other/away"));
    assert!(matches!(through_link, Err(Error::Meanwhile(_))), "{through_link:?}");
}

#[test]
fn an_earlier_kernel_follows_the_same_paths() {
    let (_dir, top) = ground();
    let dir = File::open(&top).unwrap();
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let absolute = top.join("d/f");
    let through_link = top.join("link/f");
    let paths = [".", "d", "d/f", "link", "link/f", "d/f/x", "missing", "../outside"];
    let all = paths.into_iter().map(|path| (Path::new(path), BENEATH));
    let whole = [(&*absolute, ResolveFlags::NO_SYMLINKS), (&*through_link, ResolveFlags::NO_SYMLINKS)];
    for (path, resolve) in all.chain(whole) {
        let number = |opened: rustix::io::Result<_>| match opened {
            Ok(file) => Ok(rustix::fs::fstat(file).unwrap().st_ino),
            // A link above the last name is no directory.
            Err(Errno::LOOP) => Err(Errno::NOTDIR),
            Err(error) => Err(error),
        };
        let walked = number(walk(dir.as_fd(), path, flags, resolve));
        assert_eq!(walked, number(open_below(dir.as_fd(), path, flags, resolve)), "{}", path.display());
    }
}

#[test]
fn a_mount_below_is_named() {
    let top = Pinned::open(Path::new("/")).unwrap();
    let stat = Path::new("proc/self/stat");
    assert!(top.mounts_below().unwrap().contains(&PathBuf::from("proc")));
    let within = top.within_its_mount();
    let crossed = within.hold(stat).unwrap_err().to_string();
    assert!(crossed.contains("something is mounted on /proc,"), "{crossed}");
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    assert_eq!(walk(within.file.as_fd(), stat, flags, within.resolve).unwrap_err(), Errno::XDEV);
}

#[test]
fn without_proc_nothing_is_held() {
    let (_dir, top) = ground();
    let file = File::open(&top).unwrap();
    for proc in [top.clone(), top.join("missing")] {
        assert!(matches!(descriptor_path(&proc, &file), Err(Error::NoProc)));
    }
    // Something that is no proc(5), with a file of the descriptor's name.
    let fds = top.join("self/fd");
    std::fs::create_dir_all(&fds).unwrap();
    write(fds.join(file.as_raw_fd().to_string()), "").unwrap();
    assert!(matches!(descriptor_path(&top, &file), Err(Error::NoProc)));
    assert_eq!(read_dir(&fds).unwrap().count(), 1);
}
