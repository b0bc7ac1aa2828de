//! Idmapped mounts, by which rootless containers and user namespaces see files under their own ids.

mod common;

use common::Place;
use rustix::fs::{AtFlags, CWD};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Users 0 to 65535 of the file system appear as users from here on.
const SHIFT: u32 = 100_000;

/// A mount of `from` at `to` that shifts ids; taken away at the end.
struct Shifted(PathBuf);

impl Shifted {
    fn new(from: &Path, to: PathBuf) -> Self {
        fs::create_dir(&to).unwrap();
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = open_tree(CWD, from, flags).unwrap();
        let mut holder = namespace_holder();
        let namespace = File::open(format!("/proc/{}/ns/user", holder.id())).unwrap();
        let attributes = libc::mount_attr {
            attr_set: libc::MOUNT_ATTR_IDMAP,
            attr_clr: 0,
            propagation: 0,
            userns_fd: namespace.as_raw_fd() as u64,
        };
        // SAFETY: the path is empty and ends with NUL, and the structure has the length that is
        // told; both live for the length of the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mount_setattr,
                tree.as_raw_fd(),
                c"".as_ptr(),
                AtFlags::EMPTY_PATH.bits(),
                &raw const attributes,
                size_of_val(&attributes),
            )
        };
        let error = std::io::Error::last_os_error();
        drop(holder.stdin.take());
        holder.wait().unwrap();
        assert_eq!(result, 0, "an idmapped mount is refused: {error}");
        move_mount(&tree, "", CWD, &to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).unwrap();
        Self(to)
    }

    /// Runs a shell script in the mount as a user that a container would have there.
    fn as_user(&self, user: u32, script: &str) -> bool {
        let id = (SHIFT + user).to_string();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "sh", "-c", script]);
        let output = command.current_dir(&self.0).stdin(Stdio::null()).output().unwrap();
        output.status.success()
    }
}

impl Drop for Shifted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A process in a user namespace with the shift; it ends with its standard input.
fn namespace_holder() -> Child {
    let mut command = Command::new("unshare");
    // The line says that the namespace is there.
    command.args(["--user", "sh", "-c", "echo ready; exec cat"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = command.spawn().unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(holder.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    assert_eq!(line, "ready\n");
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{}/{map}", holder.id()), format!("0 {SHIFT} 65536")).unwrap();
    }
    holder
}

#[test]
fn owners_are_shifted_in_both_directions() {
    let place = Place::mounted("64M");
    fs::set_permissions(&place.dir, fs::Permissions::from_mode(0o755)).unwrap();
    for (name, owner) in [("of-root", 0), ("of-user", 7)] {
        fs::write(place.dir.join(name), name).unwrap();
        chown(place.dir.join(name), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(place.dir.join(name), fs::Permissions::from_mode(0o600)).unwrap();
    }
    let shifted = Shifted::new(&place.dir, place.path("shifted"));
    let owner = |path: PathBuf| fs::metadata(path).map(|m| (m.uid(), m.gid())).unwrap();
    assert_eq!(owner(shifted.0.join("of-root")), (SHIFT, SHIFT));
    assert_eq!(owner(shifted.0.join("of-user")), (SHIFT + 7, SHIFT + 7));

    // The kernel checks by the shifted owners.
    assert!(shifted.as_user(7, "echo more >> of-user && ! cat of-root"));
    assert!(shifted.as_user(0, "echo more >> of-root && mkdir d && touch d/f && mkfifo d/p && ln -s x d/l"));
    assert!(!shifted.as_user(7, "touch d/g || rm d/f || chmod 600 d || chown 7 d"));
    for name in ["d", "d/f", "d/p"] {
        assert_eq!(owner(place.dir.join(name)), (0, 0), "{name}");
    }
    // What a change of owners names is shifted back.
    chown(shifted.0.join("d/f"), Some(SHIFT + 9), Some(SHIFT + 10)).unwrap();
    assert_eq!(owner(place.dir.join("d/f")), (9, 10));
    // An owner without a counterpart in the mount cannot be given to a file.
    assert!(chown(shifted.0.join("d/f"), Some(9), None).is_err());
    drop(shifted);
    place.remount();
}

/// The kernel does not say which user asks there, so nothing that depends on it is done.
#[test]
fn whole_tree_calls_through_an_idmapped_mount_are_refused() {
    let place = Place::mounted("64M");
    fs::create_dir(place.dir.join("tree")).unwrap();
    fs::write(place.dir.join("tree/f"), "kept").unwrap();
    chown(&place.dir, Some(7), Some(7)).unwrap();
    chown(place.dir.join("tree"), Some(7), Some(7)).unwrap();
    chown(place.dir.join("tree/f"), Some(7), Some(7)).unwrap();
    let program = place.path("espalier");
    fs::copy(env!("CARGO_BIN_EXE_espalier"), &program).unwrap();
    let shifted = Shifted::new(&place.dir, place.path("shifted"));
    let program = program.display();
    for words in ["clone tree copy", "chmod -R 700 tree", "snapshot create . s"] {
        assert!(!shifted.as_user(7, &format!("'{program}' {words}")), "{words}");
    }
    assert_eq!(fs::read(place.dir.join("tree/f")).unwrap(), b"kept");
    assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 1);
    // Entry by entry the kernel decides, and knows.
    assert!(shifted.as_user(7, &format!("'{program}' rm tree")));
    assert_eq!(fs::read_dir(&place.dir).unwrap().count(), 0);
    drop(shifted);
    place.remount();
}
