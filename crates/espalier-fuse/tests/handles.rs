//! File handles of the kernel (`name_to_handle_at`, `open_by_handle_at`), which NFS servers, backup
//! programs and fanotify use. These tests need root and FUSE, and fail without.

mod common;

use common::kinds;
use common::store::{Image, Mounted, output};
use espalier_sync::Mutex;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes of a handle at most (`MAX_HANDLE_SZ`).
const MAX_HANDLE_BYTES: usize = 128;

#[test]
fn serves_when_asked() {
    common::store::serve_if_asked();
}

/// `struct file_handle` with room for every handle.
#[repr(C)]
#[derive(Clone)]
struct Handle {
    bytes: libc::c_uint,
    kind: libc::c_int,
    content: [u8; MAX_HANDLE_BYTES],
}

impl Handle {
    /// The handle of what `path` names; a symbolic link is not followed.
    fn of(path: &Path) -> Self {
        let mut handle = Self { bytes: MAX_HANDLE_BYTES as u32, kind: 0, content: [0; MAX_HANDLE_BYTES] };
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut mount = 0;
        let place = (&raw mut handle).cast::<libc::file_handle>();
        // SAFETY: the path ends with a zero byte, and the handle has the room that it says.
        let result = unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), place, &mut mount, 0) };
        assert_eq!(result, 0, "{}", io::Error::last_os_error());
        handle
    }

    /// Opens what it names in the mount at `root`.
    fn open(&self, root: &Path, flags: i32) -> io::Result<File> {
        let mount = File::open(root)?;
        let mut handle = self.clone();
        let place = (&raw mut handle).cast::<libc::file_handle>();
        // SAFETY: the handle is as long as it says, and the kernel only reads it.
        let descriptor = unsafe { libc::open_by_handle_at(mount.as_raw_fd(), place, flags) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and belongs to no other owner.
        Ok(unsafe { File::from_raw_fd(descriptor) })
    }

    /// Where it leads to: the path below `root`, and the number of the file.
    fn leads_to(&self, root: &Path) -> io::Result<(PathBuf, u64)> {
        let file = self.open(root, libc::O_PATH)?;
        let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        // A file that was not looked up by its name since has none in the kernel.
        let path = path.strip_prefix(root).unwrap_or(Path::new("?")).to_owned();
        Ok((path, file.metadata()?.ino()))
    }

    #[track_caller]
    fn assert_stale(&self, root: &Path) {
        let error = self.leads_to(root).expect_err("the handle is stale").raw_os_error();
        assert_eq!(error, Some(libc::ESTALE));
    }
}

/// One test at a time: what one drops from the kernel's caches, another has just looked at.
static CACHES: Mutex<()> = Mutex::new(());

/// Has the kernel give up all names and files that are not in use.
fn drop_caches() {
    // Twice: what only the first round made unused goes with the second.
    for _ in 0..2 {
        fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
    }
}

fn on_each_mount(test: impl Fn(&Mounted, &Path)) {
    let _alone = CACHES.lock();
    for kind in kinds() {
        let image = Image::new(256 << 20);
        let mounted = image.mount(kind, "handles");
        test(&mounted, mounted.path());
        mounted.end();
    }
}

#[test]
fn handles_outlive_the_caches() {
    on_each_mount(|mounted, root| {
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a/b/file"), "content").unwrap();
        symlink("target", root.join("a/link")).unwrap();
        let paths = ["", "a", "a/b", "a/b/file", "a/link"];
        let known = paths.map(|path| (path, root.join(path).symlink_metadata().unwrap().ino()));
        let handles = paths.map(|path| Handle::of(&root.join(path)));
        for round in 0..3 {
            for (handle, (path, ino)) in handles.iter().zip(&known) {
                drop_caches();
                let (found, number) = handle.leads_to(root).unwrap_or_else(|e| panic!("{path}: {e}"));
                assert_eq!(number, *ino, "{path} in round {round}");
                // Directories are connected with the root.
                assert!(
                    found == Path::new(path) || path.contains("file") || path.contains("link"),
                    "{path}: {found:?}"
                );
            }
        }
        assert!(mounted.count("lookup") > 0);
        drop_caches();
        let mut text = String::new();
        let mut file = handles[3].open(root, libc::O_RDWR | libc::O_APPEND).unwrap();
        file.read_to_string(&mut text).unwrap();
        file.write_all(b" and more").unwrap();
        assert_eq!(
            (text.as_str(), fs::read_to_string(root.join("a/b/file")).unwrap().as_str()),
            ("content", "content and more")
        );
        // By a handle of the directory, names in it are found.
        drop_caches();
        let directory = handles[2].open(root, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
        let inside = format!("/proc/self/fd/{}/file", directory.as_raw_fd());
        assert_eq!(fs::read_to_string(inside).unwrap(), "content and more");
    });
}

#[test]
fn handles_outlive_the_mount_where_that_is_asked_for() {
    let _alone = CACHES.lock();
    for kind in kinds() {
        for (options, kept) in [("handles,nfs_export", true), ("handles", false), ("", false)] {
            let image = Image::new(256 << 20);
            let mounted = image.mount(kind, options);
            fs::create_dir_all(mounted.path().join("a/b")).unwrap();
            fs::write(mounted.path().join("a/b/file"), "content").unwrap();
            let handles = ["a/b/file", "a/b", "a"].map(|path| Handle::of(&mounted.path().join(path)));
            mounted.end();
            let mounted = image.mount(kind, options);
            let root = mounted.path();
            // No file made since is taken for another one.
            fs::write(root.join("new"), "").unwrap();
            fs::create_dir(root.join("dir")).unwrap();
            for handle in &handles {
                if !kept {
                    handle.assert_stale(root);
                }
            }
            if kept {
                let file = handles[0].open(root, libc::O_RDONLY).unwrap();
                assert_eq!(io::read_to_string(file).unwrap(), "content");
                assert_eq!(handles[1].leads_to(root).unwrap().0, Path::new("a/b"));
                fs::rename(root.join("a"), root.join("moved")).unwrap();
                drop_caches();
                assert_eq!(handles[1].leads_to(root).unwrap().0, Path::new("moved/b"));
            }
            mounted.end();
        }
    }
}

/// Without the option: the kernel would find lower files by their handles, and take the dentries
/// that it makes of these for stale.
#[test]
fn overlayfs_works_while_caches_are_dropped() {
    let _alone = CACHES.lock();
    for kind in kinds() {
        let image = Image::new(256 << 20);
        let mounted = image.mount(kind, "");
        let root = mounted.path();
        let paths = ["lower", "upper", "work", "merged"].map(|name| root.join(name));
        paths.iter().for_each(|path| fs::create_dir(path).unwrap());
        let [lower, upper, work, merged] = paths;
        fs::write(lower.join("file"), "a").unwrap();
        let options =
            format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
        let overlay = ["-t", "overlay", "overlay", "-o", &options];
        assert!(output(Command::new("mount").args(overlay).arg(&merged)).unwrap().status.success());
        for round in 1..30 {
            let mut file = File::options().append(true).open(merged.join("file")).unwrap();
            file.write_all(b"b").unwrap();
            drop(file);
            drop_caches();
            // Twice: once it is looked up, and once what is known is looked at again.
            for _ in 0..2 {
                let content = fs::read(merged.join("file")).unwrap();
                assert_eq!(content.len(), round + 1);
                assert_eq!(fs::read_dir(&merged).unwrap().count(), 1);
            }
        }
        assert!(output(Command::new("umount").arg(&merged)).unwrap().status.success());
        mounted.end();
    }
}

#[test]
fn handles_follow_renames() {
    on_each_mount(|_, root| {
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::create_dir(root.join("other")).unwrap();
        fs::write(root.join("a/b/c/file"), "content").unwrap();
        let (file, dir) = (Handle::of(&root.join("a/b/c/file")), Handle::of(&root.join("a/b/c")));
        let (file_ino, dir_ino) = (
            fs::metadata(root.join("a/b/c/file")).unwrap().ino(),
            fs::metadata(root.join("a/b/c")).unwrap().ino(),
        );
        let moves = [
            ("a/b/c/file", "a/b/c/name"),
            ("a/b", "other/b"),
            ("other/b/c/name", "a/name"),
            ("other", "last"),
        ];
        for (from, to) in moves {
            drop_caches();
            fs::rename(root.join(from), root.join(to)).unwrap();
            drop_caches();
            assert_eq!(file.leads_to(root).unwrap().1, file_ino, "after {from} to {to}");
            drop_caches();
            assert_eq!(dir.leads_to(root).unwrap().1, dir_ino, "after {from} to {to}");
        }
        assert_eq!(dir.leads_to(root).unwrap().0, Path::new("last/b/c"));
        fs::hard_link(root.join("a/name"), root.join("last/b/second")).unwrap();
        fs::remove_file(root.join("a/name")).unwrap();
        drop_caches();
        assert_eq!(file.leads_to(root).unwrap().1, file_ino);
    });
}

#[test]
fn handles_of_removed_files_are_stale() {
    on_each_mount(|_, root| {
        for name in ["file", "open"] {
            fs::write(root.join(name), name).unwrap();
        }
        fs::create_dir_all(root.join("tree/inner")).unwrap();
        let paths = ["file", "tree", "tree/inner"];
        let handles = paths.map(|path| Handle::of(&root.join(path)));
        let (open, handle) = (File::open(root.join("open")).unwrap(), Handle::of(&root.join("open")));
        drop_caches();
        fs::remove_file(root.join("file")).unwrap();
        fs::remove_file(root.join("open")).unwrap();
        fs::remove_dir_all(root.join("tree")).unwrap();
        handles.iter().for_each(|handle| handle.assert_stale(root));
        // As long as it is open it can be opened again.
        assert_eq!(io::read_to_string(handle.open(root, libc::O_RDONLY).unwrap()).unwrap(), "open");
        drop(open);
        drop_caches();
        handle.assert_stale(root);
        // Others get their names and places.
        for name in ["file", "open", "tree"] {
            fs::write(root.join(name), "another").unwrap();
        }
        drop_caches();
        handles.iter().chain([&handle]).for_each(|handle| handle.assert_stale(root));
    });
}

/// `struct fanotify_event_metadata`, and in front of a handle the header of an information record
/// with the identifier of the file system.
const EVENT_BYTES: usize = 24;
const RECORD_BYTES: usize = 12;

/// A group of fanotify that reports directories by handle, with names.
fn fanotify_with_names() -> File {
    let flags = libc::FAN_REPORT_DFID_NAME | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
    // SAFETY: it takes numbers only.
    let group = unsafe { libc::fanotify_init(flags, libc::O_RDONLY as u32) };
    assert!(group >= 0, "{}", io::Error::last_os_error());
    // SAFETY: the descriptor is new, and belongs to no other owner.
    unsafe { File::from_raw_fd(group) }
}

fn watch(group: &File, path: &Path, what: u32) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let events = libc::FAN_CREATE | libc::FAN_DELETE | libc::FAN_EVENT_ON_CHILD;
    let events = if what == 0 { events } else { events & !libc::FAN_EVENT_ON_CHILD };
    // SAFETY: the path ends with a zero byte.
    let result = unsafe {
        libc::fanotify_mark(
            group.as_raw_fd(),
            libc::FAN_MARK_ADD | what,
            events,
            libc::AT_FDCWD,
            path.as_ptr(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The handle of the directory and the name in the first event of `group`.
fn first_event(group: &mut File) -> (Handle, String) {
    let mut event = [0; 4096];
    let length = group.read(&mut event).expect("an event");
    let record = &event[EVENT_BYTES + RECORD_BYTES..length];
    let number = |at: usize| u32::from_ne_bytes(*record[at..].first_chunk().unwrap());
    let bytes = number(0) as usize;
    let mut handle = Handle { bytes: number(0), kind: number(4) as i32, content: [0; MAX_HANDLE_BYTES] };
    handle.content[..bytes].copy_from_slice(&record[8..8 + bytes]);
    let name = &record[8 + bytes..];
    let end = name.iter().position(|byte| *byte == 0).unwrap();
    (handle, String::from_utf8(name[..end].to_vec()).unwrap())
}

#[test]
fn fanotify_reports_handles_and_names_of_directories() {
    on_each_mount(|_, root| {
        fs::create_dir(root.join("dir")).unwrap();
        let mut group = fanotify_with_names();
        watch(&group, &root.join("dir"), 0).unwrap();
        fs::write(root.join("dir/new"), "").unwrap();
        let (handle, name) = first_event(&mut group);
        assert_eq!(name, "new");
        fs::rename(root.join("dir"), root.join("moved")).unwrap();
        drop(group);
        drop_caches();
        assert_eq!(handle.leads_to(root).unwrap().0, Path::new("moved"));
        // What docs/semantics.md says that the kernel refuses.
        let mut stat = Command::new("stat");
        let identifier = output(stat.args(["--file-system", "--format=%i"]).arg(root)).unwrap().stdout;
        assert_eq!(identifier, b"0\n");
        let group = fanotify_with_names();
        for what in [libc::FAN_MARK_FILESYSTEM, libc::FAN_MARK_MOUNT] {
            let refused = watch(&group, root, what).expect_err("it has no identifier");
            assert!(matches!(refused.raw_os_error(), Some(libc::ENODEV | libc::EINVAL)), "{refused}");
        }
    });
}
