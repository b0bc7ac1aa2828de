//! A mounted file system in use. These tests need root and FUSE, and fail without.

mod common;

use common::kinds;
use common::store::Image;
use espalier_fuse::{control, linux_ioctl};
use rustix::process::Uid;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// A user without rights.
const OTHER: u32 = 65534;

#[test]
fn serves_when_asked() {
    common::store::serve_if_asked();
}

/// Runs `body` on a mount of each kind, plain and with write-back; `then` on it mounted again.
fn on_each(body: impl Fn(&Path), then: impl Fn(&Path)) {
    for kind in kinds() {
        for options in ["", "writeback"] {
            let image = Image::new(256 << 20);
            for step in [&body as &dyn Fn(&Path), &then] {
                let mounted = image.mount(kind, options);
                step(mounted.path());
                mounted.end();
            }
        }
    }
}

fn content(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|n| ((n + seed) / 13 % 251) as u8).collect()
}

#[test]
fn files_keep_what_is_written() {
    let sizes = [0, 1, 4095, 4096, 65_537, 1 << 20, (9 << 20) + 77];
    on_each(
        |root| {
            for size in sizes {
                fs::write(root.join(size.to_string()), content(size, size)).unwrap();
            }
        },
        |root| {
            for size in sizes {
                assert!(
                    fs::read(root.join(size.to_string())).unwrap() == content(size, size),
                    "{size} bytes"
                );
            }
        },
    );
}

#[test]
fn large_directories_are_listed_whole_while_they_shrink() {
    on_each(
        |root| {
            (0..5000).for_each(|n| drop(File::create_new(root.join(format!("file-{n}"))).unwrap()));
            (0..300).for_each(|n| fs::create_dir(root.join(format!("dir-{n}"))).unwrap());
        },
        |root| {
            let names: BTreeSet<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(names.len(), 5300);
            // Every entry is removed as it is seen, and each is seen.
            let mut seen = 0;
            for entry in fs::read_dir(root).unwrap() {
                let entry = entry.unwrap();
                match entry.file_type().unwrap().is_dir() {
                    true => fs::remove_dir(entry.path()).unwrap(),
                    false => fs::remove_file(entry.path()).unwrap(),
                }
                seen += 1;
            }
            assert_eq!((seen, fs::read_dir(root).unwrap().count()), (5300, 0));
        },
    );
}

#[test]
fn a_file_without_a_name_gets_one() {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
    on_each(
        |root| {
            let make = || {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                File::from(open(root, flags, Mode::from_raw_mode(0o640)).unwrap())
            };
            let (mut file, mut lost) = (make(), make());
            lost.write_all(b"never seen").unwrap();
            file.write_all(&content(300_000, 1)).unwrap();
            assert_eq!(file.metadata().unwrap().nlink(), 0);
            assert_eq!(fs::read_dir(root).unwrap().count(), 0);
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
            linkat(CWD, path, CWD, root.join("f"), AtFlags::SYMLINK_FOLLOW).unwrap();
            assert_eq!(file.metadata().unwrap().nlink(), 1);
            file.write_all(b"behind").unwrap();
            file.sync_all().unwrap();
            let only = open(root, OFlags::TMPFILE | OFlags::RDWR | OFlags::EXCL, Mode::empty()).unwrap();
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&only));
            assert!(linkat(CWD, path, CWD, root.join("g"), AtFlags::SYMLINK_FOLLOW).is_err());
        },
        |root| {
            let names: Vec<_> = fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name()).collect();
            assert_eq!(names, ["f"]);
            assert!(fs::read(root.join("f")).unwrap() == [&content(300_000, 1)[..], b"behind"].concat());
            assert_eq!(fs::metadata(root.join("f")).unwrap().permissions().mode() & 0o7777, 0o640);
        },
    );
}

#[test]
fn a_rename_leaves_a_whiteout() {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    on_each(
        |root| {
            fs::write(root.join("f"), b"text").unwrap();
            renameat_with(CWD, root.join("f"), CWD, root.join("g"), RenameFlags::WHITEOUT).unwrap();
        },
        |root| {
            assert_eq!(fs::read(root.join("g")).unwrap(), b"text");
            let left = fs::symlink_metadata(root.join("f")).unwrap();
            assert_eq!((left.mode(), left.rdev(), left.nlink()), (libc::S_IFCHR, 0, 1));
        },
    );
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    on_each(
        |root| {
            let path = root.join("f");
            let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
            file.write_all(b"before").unwrap();
            fs::remove_file(&path).unwrap();
            fs::write(&path, b"another").unwrap();
            file.write_all(b" and after").unwrap();
            let mut back = [0; 16];
            file.read_exact_at(&mut back, 0).unwrap();
            assert_eq!(&back, b"before and after");
            assert_eq!(file.metadata().unwrap().nlink(), 0);
        },
        |root| assert_eq!(fs::read(root.join("f")).unwrap(), b"another"),
    );
}

#[test]
fn opening_truncates_appends_and_insists() {
    on_each(
        |root| {
            let path = root.join("f");
            fs::write(&path, b"long content").unwrap();
            File::options().write(true).truncate(true).open(&path).unwrap().write_all(b"short").unwrap();
            File::options().append(true).open(&path).unwrap().write_all(b" and more").unwrap();
            let error = File::create_new(&path).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EEXIST));
            let error = File::options().read(true).open(root.join("g")).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
        },
        |root| assert_eq!(fs::read(root.join("f")).unwrap(), b"short and more"),
    );
}

#[test]
fn hard_links_are_one_file() {
    on_each(
        |root| {
            fs::create_dir(root.join("d")).unwrap();
            fs::write(root.join("a"), b"one").unwrap();
            let early = File::open(root.join("a")).unwrap();
            fs::hard_link(root.join("a"), root.join("d/b")).unwrap();
            fs::write(root.join("d/b"), b"three").unwrap();
            let mut text = String::new();
            (&early).read_to_string(&mut text).unwrap();
            assert_eq!(text, "three");
            assert_eq!(early.metadata().unwrap().nlink(), 2);
        },
        |root| {
            let (a, b) = (fs::metadata(root.join("a")).unwrap(), fs::metadata(root.join("d/b")).unwrap());
            assert_eq!((a.ino(), a.nlink()), (b.ino(), 2));
            fs::remove_file(root.join("a")).unwrap();
            assert_eq!(fs::read(root.join("d/b")).unwrap(), b"three");
        },
    );
}

#[test]
fn renames_replace_and_move_whole_trees() {
    on_each(
        |root| {
            fs::create_dir_all(root.join("a/b/c")).unwrap();
            fs::write(root.join("a/b/c/file"), content(300_000, 3)).unwrap();
            let open = File::open(root.join("a/b/c/file")).unwrap();
            let number = open.metadata().unwrap().ino();
            fs::create_dir(root.join("x")).unwrap();
            fs::rename(root.join("a"), root.join("x/y")).unwrap();
            assert_eq!(fs::metadata(root.join("x/y/b/c/file")).unwrap().ino(), number);
            let mut back = Vec::new();
            (&open).read_to_end(&mut back).unwrap();
            assert!(back == content(300_000, 3));
            assert!(fs::metadata(root.join("a")).is_err());
            fs::write(root.join("new"), b"new").unwrap();
            fs::rename(root.join("new"), root.join("x/y/b/c/file")).unwrap();
        },
        |root| assert_eq!(fs::read(root.join("x/y/b/c/file")).unwrap(), b"new"),
    );
}

#[test]
fn direct_and_buffered_access_agree() {
    on_each(
        |root| {
            let path = root.join("f");
            fs::write(&path, content(1 << 20, 1)).unwrap();
            let direct =
                File::options().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
            let mut space = vec![9; 3 * 4096];
            let start = space.as_ptr().align_offset(4096);
            let page = &mut space[start..start + 4096];
            direct.write_all_at(page, 8192).unwrap();
            let mut expected = content(1 << 20, 1);
            expected[8192..12288].fill(9);
            assert!(fs::read(&path).unwrap() == expected);
            File::options().write(true).open(&path).unwrap().write_all_at(b"buffered", 4096).unwrap();
            direct.read_exact_at(page, 4096).unwrap();
            assert_eq!(&page[..8], b"buffered");
        },
        |root| assert_eq!(fs::metadata(root.join("f")).unwrap().len(), 1 << 20),
    );
}

#[test]
fn writing_takes_set_id_bits_from_ordinary_users() {
    on_each(
        |root| {
            let path = root.join("f");
            fs::write(&path, b"program").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o6777)).unwrap();
            File::options().write(true).open(&path).unwrap().write_all(b"P").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6777, "root keeps them");
            let mut command = std::process::Command::new("setpriv");
            command
                .args(["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", "echo x >> \"$0\""])
                .arg(&path);
            assert!(common::store::run(&mut command));
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
        },
        |_| (),
    );
}

#[test]
fn a_read_only_mount_refuses_changes() {
    for kind in kinds() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "");
        fs::write(mounted.path().join("f"), b"kept").unwrap();
        mounted.end();
        let mounted = image.mount(kind, "ro");
        assert_eq!(fs::read(mounted.path().join("f")).unwrap(), b"kept");
        let error = fs::write(mounted.path().join("g"), b"").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
        mounted.end();
    }
}

#[test]
fn umask_and_default_acls_decide_modes() {
    on_each(
        |root| {
            let make = |script: &str| {
                let mut command = std::process::Command::new("sh");
                assert!(common::store::run(command.args(["-c", script]).current_dir(root)), "{script}");
            };
            make("umask 027; touch f; mkdir d; umask 0; touch g");
            let mode = |name: &str| fs::symlink_metadata(root.join(name)).unwrap().mode() & 0o7777;
            assert_eq!((mode("f"), mode("d"), mode("g")), (0o640, 0o750, 0o666));
        },
        |root| assert_eq!(fs::metadata(root.join("f")).unwrap().mode() & 0o7777, 0o640),
    );
}

#[test]
fn a_killed_server_leaves_errors_and_what_was_synced() {
    for kind in kinds() {
        let image = Image::new(256 << 20);
        let mounted = image.mount(kind, "");
        let synced = File::create_new(mounted.path().join("synced")).unwrap();
        synced.write_all_at(&content(3 << 20, 5), 0).unwrap();
        synced.sync_all().unwrap();
        File::open(mounted.path()).unwrap().sync_all().unwrap();
        fs::write(mounted.path().join("later"), b"may be lost").unwrap();
        mounted.kill(|root| {
            let gone = |result: std::io::Result<()>| {
                let errno = result.unwrap_err().raw_os_error().unwrap();
                let expected = [libc::ENOTCONN, libc::ECONNABORTED, libc::ECANCELED, libc::EIO];
                assert!(expected.contains(&errno), "{errno:?}");
            };
            gone(synced.sync_all());
            gone(fs::metadata(root).map(drop));
            gone(fs::write(root.join("new"), b""));
            drop(synced);
        });
        let mounted = image.mount(kind, "");
        assert!(fs::read(mounted.path().join("synced")).unwrap() == content(3 << 20, 5));
        mounted.end();
    }
}

/// Carries out an ioctl whose argument is `argument`.
fn ioctl(file: &File, command: u32, argument: &mut [u8]) -> std::io::Result<()> {
    assert_eq!(argument.len(), control::size(command));
    // SAFETY: the kernel reads and writes as many bytes as the number says, and the slice has that
    // many.
    match unsafe { libc::ioctl(file.as_raw_fd(), command as libc::Ioctl, argument.as_mut_ptr()) } {
        -1 => Err(std::io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Carries out a command as another user.
fn refused_to_others(file: &File, command: u32) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let user = Uid::from_raw(OTHER);
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            let refused = ioctl(file, command, &mut vec![0; control::size(command)]);
            assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM), "{command:#x}");
        });
        thread.join().unwrap();
    });
}

#[test]
fn a_label_is_set_for_good() {
    on_each(
        |root| {
            let file = File::open(root).unwrap();
            refused_to_others(&file, linux_ioctl::SET_LABEL);
            let long =
                ioctl(&file, linux_ioctl::SET_LABEL, &mut linux_ioctl::label_bytes(&"x".repeat(65)).unwrap());
            assert_eq!(long.unwrap_err().raw_os_error(), Some(libc::EINVAL));
            ioctl(&file, linux_ioctl::SET_LABEL, &mut linux_ioctl::label_bytes("home").unwrap()).unwrap();
        },
        |root| {
            let mut label = [1; linux_ioctl::LABEL_BYTES];
            ioctl(&File::open(root).unwrap(), linux_ioctl::GET_LABEL, &mut label).unwrap();
            assert_eq!(label[..], linux_ioctl::label_bytes("home").unwrap());
        },
    );
}

#[test]
fn a_shutdown_keeps_what_was_synced_and_lets_nothing_more_be_written() {
    for kind in kinds() {
        let image = Image::new(64 << 20);
        let mounted = image.mount(kind, "");
        let path = |name: &str| mounted.path().join(name);
        let mut synced = File::create(path("synced")).unwrap();
        synced.write_all(b"text").unwrap();
        synced.sync_all().unwrap();
        fs::write(path("other"), b"text").unwrap();
        let root = File::open(mounted.path()).unwrap();
        refused_to_others(&root, linux_ioctl::SHUTDOWN);
        fs::write(path("more"), b"text").unwrap();
        ioctl(&root, linux_ioctl::SHUTDOWN, &mut [0; 4]).unwrap();
        let failed = |result: std::io::Result<()>| {
            assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EIO));
        };
        failed(fs::write(path("late"), b"text"));
        failed(synced.write_all(b"x"));
        failed(synced.sync_all());
        failed(fs::remove_file(path("synced")));
        failed(
            fs::read_dir(mounted.path())
                .and_then(|mut all| all.next().map_or(Ok(()), |entry| entry.map(drop))),
        );
        failed(fs::metadata(path("unknown")).map(drop));
        drop((synced, root));
        mounted.kill(|_| ());
        let mounted = image.mount(kind, "");
        assert_eq!(fs::read(mounted.path().join("synced")).unwrap(), b"text");
        assert!(!mounted.path().join("late").exists());
        mounted.end();
    }
}
