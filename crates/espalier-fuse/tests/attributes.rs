//! Attributes that the server changes by itself are seen at once, and times say what the caller
//! said. These tests need root and FUSE, and fail without.

mod common;

use common::kinds;
use common::store::{Image, output, serve_if_asked};
use rustix::fs::{FallocateFlags, XattrFlags, copy_file_range, fallocate};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use std::fs::{self, File, FileTimes, Permissions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The owner of the program, and the user that writes it.
const OWNER: u32 = 1234;
const WRITER: u32 = 65534;
const PAGE: usize = 4096;

#[test]
fn serves_when_asked() {
    serve_if_asked();
}

/// Runs `body` on a mount of each kind, plain and with write-back.
fn on_each(body: impl Fn(&Path)) {
    for kind in kinds() {
        for options in ["", "writeback"] {
            eprintln!("{kind:?} {options}");
            let image = Image::new(256 << 20);
            let mounted = image.mount(kind, options);
            body(mounted.path());
            mounted.end();
        }
    }
}

/// Runs `body` in a thread that has the rights of another user only.
fn as_writer(body: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (uid, gid) = (rustix::process::Uid::from_raw(WRITER), rustix::process::Gid::from_raw(WRITER));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
            body();
        });
        thread.join().unwrap();
    });
}

/// The effective user of a program that another user starts.
fn effective_user(program: &Path) -> u32 {
    loop {
        let run = output(Command::new(program).arg("-u").uid(WRITER).gid(WRITER));
        match run {
            // A process that another test has just started still holds the file open.
            Err(error) if error.raw_os_error() == Some(libc::ETXTBSY) => std::thread::yield_now(),
            run => return String::from_utf8(run.unwrap().stdout).unwrap().trim().parse().unwrap(),
        }
    }
}

/// Stores something at the beginning of a page through a shared mapping.
fn store_mapped(file: &File, offset: u64, value: u64) {
    // SAFETY: the kernel chooses the place, so nothing of ours lies there, and it is used only
    // here.
    unsafe {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let at = mmap(std::ptr::null_mut(), PAGE, both, MapFlags::SHARED, file, offset).unwrap();
        at.cast::<u64>().write_volatile(value);
        msync(at, PAGE, MsyncFlags::SYNC).unwrap();
        munmap(at, PAGE).unwrap();
    }
}

/// One way to change the data of a file.
type Way = fn(&Path, u64);

/// Ways to change the data of a program behind `end`, where it has nothing that it needs; `other`
/// is a file beside it. What they are called, and whether they take set-id bits away.
const WAYS: [(&str, bool, Way); 10] = [
    ("write", true, |path, end| {
        File::options().write(true).open(path).unwrap().write_all_at(b"x", end).unwrap();
    }),
    ("append", true, |path, _| File::options().append(true).open(path).unwrap().write_all(b"x").unwrap()),
    ("direct I/O", true, |path, end| {
        let file = File::options().write(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
        let mut space = vec![7; 2 * PAGE];
        let start = space.as_ptr().align_offset(PAGE);
        file.write_all_at(&space[start..start + PAGE], end.next_multiple_of(PAGE as u64)).unwrap();
        space.clear();
    }),
    ("allocation", true, |path, end| allocate(path, FallocateFlags::empty(), end + (64 << 10))),
    ("allocation behind the end", true, |path, end| {
        allocate(path, FallocateFlags::KEEP_SIZE, end + (64 << 10))
    }),
    ("hole", true, |path, end| allocate(path, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, end)),
    ("zeros", true, |path, end| allocate(path, FallocateFlags::ZERO_RANGE, end)),
    ("copy of blocks", true, |path, end| copy(path, end.next_multiple_of(64 << 10), 64 << 10)),
    ("copy of bytes", true, |path, end| copy(path, end + 1, 77)),
    // The kernel asks no file system to take the bits away for stores, and ext4 does not either.
    ("mapping", false, |path, end| {
        let file = File::options().read(true).write(true).open(path).unwrap();
        store_mapped(&file, end.next_multiple_of(PAGE as u64), 7);
    }),
];

fn allocate(path: &Path, mode: FallocateFlags, offset: u64) {
    let file = File::options().write(true).open(path).unwrap();
    fallocate(&file, mode, offset, PAGE as u64).unwrap();
}

fn copy(path: &Path, offset: u64, length: usize) {
    let from = File::open(path.with_file_name("other")).unwrap();
    let to = File::options().write(true).open(path).unwrap();
    let copied = copy_file_range(from, Some(&mut 0), to, Some(&mut offset.clone()), length).unwrap();
    assert_eq!(copied, length);
}

fn another_user_writes(root: &Path) {
    fs::write(root.join("other"), vec![5; 128 << 10]).unwrap();
    for (way, takes, change) in WAYS {
        let path = root.join("program");
        fs::copy("/usr/bin/id", &path).unwrap();
        let end = fs::metadata(&path).unwrap().len();
        File::options().append(true).open(&path).unwrap().write_all(&vec![1; 256 << 10]).unwrap();
        chown(&path, Some(OWNER), Some(OWNER)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        assert_eq!(effective_user(&path), OWNER, "{way}: before");
        as_writer(|| change(&path, end));
        let (user, mode) = if takes { (WRITER, 0o777) } else { (OWNER, 0o6777) };
        assert_eq!(effective_user(&path), user, "{way}: afterwards");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, mode, "{way}");
        // Root keeps them.
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        change(&path, end);
        assert_eq!(effective_user(&path), OWNER, "{way}: by root");
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn set_id_bits_end_when_another_user_writes() {
    // The file system of the machine says what is right.
    let plain = tempfile::tempdir().unwrap();
    fs::set_permissions(plain.path(), Permissions::from_mode(0o755)).unwrap();
    another_user_writes(plain.path());
    on_each(another_user_writes);
}

#[test]
fn a_copy_is_a_read_of_its_source() {
    on_each(|root| {
        let path = root.join("program");
        fs::write(root.join("other"), vec![5; 128 << 10]).unwrap();
        fs::write(&path, b"").unwrap();
        let other = || fs::metadata(root.join("other")).unwrap();
        for (offset, length) in [(0, 64 << 10), (64 << 10, 77)] {
            let old = File::options().write(true).open(root.join("other")).unwrap();
            let early = FileTimes::new().set_accessed(fixed()).set_modified(SystemTime::now());
            old.set_times(early).unwrap();
            assert_eq!(other().accessed().unwrap(), fixed());
            copy(&path, offset, length);
            assert_ne!(other().accessed().unwrap(), fixed(), "{length} bytes");
        }
    });
}

/// A time far from now.
fn fixed() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_579_062_896)
}

/// Maps a file, stores, and has `end` end the mapping and whatever else.
fn while_mapped(path: &Path, between: impl FnOnce(&File), end: impl FnOnce(&File)) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    // SAFETY: the kernel chooses the place, so nothing of ours lies there, and it is used only
    // here.
    unsafe {
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let at = mmap(std::ptr::null_mut(), 2 * PAGE, both, MapFlags::SHARED, &file, 0).unwrap();
        at.cast::<u64>().write_volatile(77);
        between(&file);
        end(&file);
        munmap(at, 2 * PAGE).unwrap();
    }
}

#[test]
fn a_time_that_was_set_stays_when_earlier_stores_arrive() {
    on_each(|root| {
        let path = root.join("f");
        let modified = || fs::metadata(&path).unwrap().modified().unwrap();
        /// How a file is let go of, with its name.
        type End = (&'static str, fn(&File));
        let ends: [End; 3] = [
            ("munmap", |_| ()),
            ("fsync", |file| file.sync_all().unwrap()),
            ("wait", |_| std::thread::sleep(Duration::from_millis(500))),
        ];
        for (name, end) in ends {
            fs::write(&path, [1; 2 * PAGE]).unwrap();
            while_mapped(&path, |file| file.set_modified(fixed()).unwrap(), end);
            assert_eq!(modified(), fixed(), "{name}");
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(modified(), fixed(), "{name}, later");
            // From then on, what is stored counts again.
            if name != "wait" {
                std::thread::sleep(Duration::from_millis(200));
            }
            while_mapped(&path, |_| (), |_| ());
            assert_ne!(modified(), fixed(), "{name}, stored again");
            fs::remove_file(&path).unwrap();
        }
    });
}

#[test]
fn a_store_after_a_time_was_set_counts() {
    on_each(|root| {
        let path = root.join("f");
        fs::write(&path, [1; 2 * PAGE]).unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(fixed()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), fixed());
        std::thread::sleep(Duration::from_millis(300));
        while_mapped(&path, |_| (), |_| ());
        assert_ne!(fs::metadata(&path).unwrap().modified().unwrap(), fixed());
    });
}

#[test]
fn times_are_in_the_order_of_the_calls() {
    on_each(|root| {
        for n in 0..200 {
            let (q, p, d) = (root.join("q"), root.join("p"), root.join("d"));
            let time = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
            fs::write(&q, b"q").unwrap();
            fs::write(&p, b"p").unwrap();
            fs::create_dir(&d).unwrap();
            let touched = File::options().write(true).open(&q).unwrap();
            rustix::fs::futimens(&touched, &now()).unwrap();
            assert!(time(&q) >= time(&p), "round {n}: {:?}", time(&p).duration_since(time(&q)));
            assert!(time(&q) >= time(&d), "round {n}: {:?}", time(&d).duration_since(time(&q)));
            fs::write(&p, b"again").unwrap();
            assert!(time(&p) >= time(&q), "round {n}: {:?}", time(&q).duration_since(time(&p)));
            [&q, &p].into_iter().for_each(|path| fs::remove_file(path).unwrap());
            fs::remove_dir(&d).unwrap();
        }
    });
}

#[test]
fn times_stay_when_the_kernel_forgets_files() {
    for kind in kinds() {
        for options in ["", "writeback"] {
            let image = Image::new(256 << 20);
            let mounted = image.mount(kind, options);
            let time = |root: &Path, n: i32| {
                let seen = fs::metadata(root.join(n.to_string())).unwrap();
                (seen.modified().unwrap(), seen.ctime())
            };
            let mut seen = Vec::new();
            for n in 0..10 {
                let path = mounted.path().join(n.to_string());
                let mut file = File::create_new(&path).unwrap();
                file.write_all(b"within the tick of the clock in which it was made").unwrap();
                std::thread::sleep(Duration::from_millis(n as u64 * 2));
                if n % 3 == 0 {
                    file.write_all(b"and once more").unwrap();
                }
                if n % 4 == 1 {
                    file.set_modified(fixed()).unwrap();
                }
                drop(file);
                seen.push(time(mounted.path(), n));
            }
            mounted.end();
            let mounted = image.mount(kind, options);
            for (n, before) in seen.into_iter().enumerate() {
                assert_eq!(time(mounted.path(), n as i32), before, "{kind:?} {options} {n}");
            }
            mounted.end();
        }
    }
}

fn now() -> rustix::fs::Timestamps {
    let now = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW };
    rustix::fs::Timestamps { last_access: now, last_modification: now }
}

#[test]
fn times_beyond_what_is_stored_are_cut_at_once() {
    for kind in kinds() {
        for options in ["", "writeback"] {
            let image = Image::new(64 << 20);
            let far = rustix::fs::Timespec { tv_sec: 20_000_000_000, tv_nsec: 5 };
            let times = rustix::fs::Timestamps { last_access: far, last_modification: far };
            let see = |root: &Path| {
                ["f", "d"].map(|name| {
                    let seen = fs::symlink_metadata(root.join(name)).unwrap();
                    (seen.mtime(), seen.mtime_nsec(), seen.atime())
                })
            };
            let mounted = image.mount(kind, options);
            fs::write(mounted.path().join("f"), b"text").unwrap();
            fs::create_dir(mounted.path().join("d")).unwrap();
            let set = ["f", "d"].map(|name| {
                let file = File::open(mounted.path().join(name)).unwrap();
                rustix::fs::futimens(&file, &times).map_err(|error| error.raw_os_error())
            });
            // What the kernel keeps by itself can only be refused.
            let refused = if options == "writeback" { Err(libc::EOVERFLOW) } else { Ok(()) };
            assert_eq!(set, [refused, Ok(())], "{options}");
            let before = see(mounted.path());
            assert_eq!(before[1], (9_223_372_036, 854_775_807, 9_223_372_036), "{options}");
            mounted.end();
            let mounted = image.mount(kind, options);
            assert_eq!(see(mounted.path()), before, "{options}");
            mounted.end();
        }
    }
}

/// A backup program reads without being seen.
#[test]
fn a_read_with_noatime_changes_no_time() {
    on_each(|root| {
        let paths = ["quiet", "loud"].map(|name| root.join(name));
        let read = |path: &Path, flags: i32| {
            let mut file = fs::OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap();
            std::io::copy(&mut file, &mut std::io::sink()).unwrap()
        };
        for path in &paths {
            fs::write(path, [7; 3 * PAGE]).unwrap();
            File::open(path).unwrap().sync_all().unwrap();
            File::open(path).unwrap().set_times(FileTimes::new().set_accessed(fixed())).unwrap();
        }
        // The pages have to come from the server.
        fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
        assert_eq!(read(&paths[0], libc::O_NOATIME), 3 * PAGE as u64);
        assert_eq!(fs::metadata(&paths[0]).unwrap().accessed().unwrap(), fixed());
        assert_eq!(read(&paths[1], 0), 3 * PAGE as u64);
        assert!(fs::metadata(&paths[1]).unwrap().accessed().unwrap() > fixed());
    });
}

/// Runs `chattr`, or another program on a path; true if it says that all is well.
fn said(program: &str, arguments: &[&str], path: &Path) -> Result<String, String> {
    let run = output(Command::new(program).args(arguments).arg(path)).unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if run.status.success() { Ok(text(&run.stdout)) } else { Err(text(&run.stderr)) }
}

/// Fails if a call did not fail with EPERM.
#[track_caller]
fn refused(result: std::io::Result<()>) {
    assert_eq!(result.map_err(|error| error.raw_os_error()), Err(Some(libc::EPERM)));
}

/// What root is refused on a mount with immutable and append-only files.
fn changes_are_forbidden(root: &Path, is_write_back: bool) {
    let path = |name: &str| root.join(name);
    assert!(said("lsattr", &["-d"], &path("fixed")).unwrap().starts_with("----i"));
    assert!(said("lsattr", &["-d"], &path("log")).unwrap().starts_with("-----ad"));
    refused(File::create(path("fixed")).map(drop));
    // A file is opened without the server's knowledge.
    let mut fixed = File::options().append(true).open(path("fixed")).unwrap();
    match fixed.write_all(b"x") {
        Ok(()) if is_write_back => refused(fixed.sync_all()),
        written => refused(written),
    }
    drop(fixed);
    refused(File::options().write(true).open(path("fixed")).unwrap().set_len(1));
    refused(fs::remove_file(path("fixed")));
    refused(fs::rename(path("fixed"), path("moved")));
    refused(fs::rename(path("other"), path("fixed")));
    refused(fs::hard_link(path("fixed"), path("second")));
    refused(fs::set_permissions(path("fixed"), Permissions::from_mode(0o600)));
    refused(chown(path("fixed"), Some(OWNER), None));
    refused(rustix::fs::setxattr(path("fixed"), "user.x", b"y", XattrFlags::empty()).map_err(Into::into));
    refused(File::create(path("log")).map(drop));
    refused(fs::remove_file(path("log")));
    refused(fs::write(path("dir/new"), b"text"));
    refused(fs::remove_file(path("dir/file")));
    refused(fs::rename(path("dir/file"), path("file")));
    fs::write(path("dir/file"), b"changed").unwrap();
    let log = File::options().append(true).open(path("log")).unwrap();
    (&log).write_all(b", second").unwrap();
    log.sync_all().unwrap();
    refused(log.set_len(0));
    let inside = File::options().write(true).open(path("log")).unwrap();
    match inside.write_at(b"x", 0) {
        Ok(_) if is_write_back => refused(inside.sync_all()),
        written => refused(written.map(drop)),
    }
    let other = output(Command::new("chattr").arg("-i").arg(path("fixed")).uid(WRITER).gid(WRITER));
    assert!(!other.unwrap().status.success(), "another user takes the flag away");
}

/// Root is refused too, and a remount changes nothing about it.
#[test]
fn flags_that_forbid_changes_are_kept() {
    for kind in kinds() {
        for options in ["", "writeback"] {
            eprintln!("{kind:?} {options}");
            let image = Image::new(64 << 20);
            let mounted = image.mount(kind, options);
            let path = |name: &str| mounted.path().join(name);
            for name in ["fixed", "log", "other"] {
                fs::write(path(name), b"first").unwrap();
            }
            fs::create_dir(path("dir")).unwrap();
            fs::write(path("dir/file"), b"text").unwrap();
            said("chattr", &["+ad"], &path("log")).unwrap();
            said("chattr", &["+i"], &path("dir")).unwrap();
            // What is stored before is kept.
            let file = File::options().read(true).write(true).open(path("fixed")).unwrap();
            (&file).write_all(b"FI").unwrap();
            let before = file.metadata().unwrap().ctime_nsec();
            said("chattr", &["+i"], &path("fixed")).unwrap();
            if options.is_empty() {
                // With write-back the kernel shows its own time of change.
                assert_ne!(file.metadata().unwrap().ctime_nsec(), before);
            }
            drop(file);
            mounted.end();
            let mounted = image.mount(kind, options);
            changes_are_forbidden(mounted.path(), options == "writeback");
            mounted.end();
            let mounted = image.mount(kind, options);
            let path = |name: &str| mounted.path().join(name);
            assert_eq!(fs::read(path("log")).unwrap(), b"first, second");
            assert_eq!(fs::read(path("fixed")).unwrap(), b"FIrst");
            for name in ["fixed", "log", "dir"] {
                said("chattr", &["-ia"], &path(name)).unwrap();
            }
            fs::remove_file(path("fixed")).unwrap();
            fs::remove_file(path("log")).unwrap();
            fs::remove_dir_all(path("dir")).unwrap();
            assert!(said("fstrim", &["-v"], mounted.path()).unwrap().contains("trimmed"));
            mounted.end();
        }
    }
}

/// `ls -l` asks for a label of each file until one answers that there are none.
#[test]
fn a_missing_label_is_unsupported_and_another_missing_attribute_is_not() {
    use rustix::fs::{getxattr, removexattr, setxattr};
    use rustix::io::Errno;
    const LABEL: &str = "security.selinux";
    assert!(!Path::new("/sys/fs/selinux").exists(), "this kernel gives labels itself; test without SELinux");
    on_each(|dir| {
        let path = dir.join("file");
        fs::write(&path, "x").unwrap();
        let asked = |path: &Path, name: &str| getxattr(path, name, &mut [0; 64]);
        for path in [&path, &dir.to_path_buf(), &dir.join(".snapshots")] {
            assert_eq!(asked(path, LABEL), Err(Errno::OPNOTSUPP), "{}", path.display());
            assert_eq!(asked(path, "security.other"), Err(Errno::NODATA));
            assert_eq!(asked(path, "user.selinux"), Err(Errno::NODATA));
        }
        setxattr(&path, LABEL, b"label", XattrFlags::CREATE).unwrap();
        assert_eq!(asked(&path, LABEL), Ok(5));
        removexattr(&path, LABEL).unwrap();
        assert_eq!(asked(&path, LABEL), Err(Errno::OPNOTSUPP));
    });
}
