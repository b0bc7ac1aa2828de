use super::{MountPoint, Process, Processes, within};
use crate::error::Error;
use std::fs::{File, create_dir, create_dir_all};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn mount(root: &str, at: &str) -> MountPoint {
    MountPoint { root: root.into(), at: at.into() }
}

#[test]
fn paths_lead_back_into_the_file_system() {
    // A workspace lies over its original.
    let mounts = [mount("/", "/pool"), mount("/work/7", "/pool/base")];
    for (seen, inside) in [
        ("/pool/work/7/x", Some("/work/7/x")),
        ("/pool/base/x", Some("/work/7/x")),
        ("/pool/base", Some("/work/7")),
        ("/pool/basement", Some("/basement")),
        ("/srv", None),
    ] {
        assert_eq!(within(&mounts, Path::new(seen)).as_deref(), inside.map(Path::new), "{seen}");
    }
}

#[test]
fn uses_below_a_directory_are_found_and_no_others() {
    let process = |pid| Process { pid, command: "sh".into() };
    let uses = [("/work/7", 1), ("/work/7/a/b", 2), ("/work/7/a", 1), ("/work/70", 3), ("/work", 4)];
    let all = Processes {
        mounts: vec![mount("/", "/pool")],
        uses: uses.iter().map(|(path, pid)| ((*path).into(), process(*pid))).collect(),
    };
    assert_eq!(all.in_tree(Path::new("/pool/work/7")), [process(1), process(2)]);
    assert_eq!(all.in_tree(Path::new("/pool/work/8")), []);
    assert_eq!(all.in_tree(Path::new("/elsewhere")), []);
}

#[test]
fn processes_are_found_by_their_directory_and_by_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let top = dir.path().canonicalize().unwrap();
    let [here, open, unused] = ["here", "open", "unused"].map(|name| top.join(name));
    for dir in [&here, &open, &unused] {
        create_dir(dir).unwrap();
    }
    let file = File::create(open.join("file")).unwrap();
    // They end when their input does.
    let waiting = |dir: &Path, output: Stdio| {
        let mut command = Command::new("cat");
        command.current_dir(dir).stdin(Stdio::piped()).stdout(output).spawn().unwrap()
    };
    let mut processes = [waiting(&here, Stdio::null()), waiting(Path::new("/"), file.into())];
    let found = Processes::look(&top).unwrap();
    let numbers = |dir: &Path| found.in_tree(dir).iter().map(|found| found.pid).collect::<Vec<_>>();
    let expected = [&processes[0], &processes[1]].map(|process| process.id().cast_signed());
    assert_eq!((numbers(&here), numbers(&open)), (vec![expected[0]], vec![expected[1]]));
    assert_eq!(numbers(&unused), [0; 0]);
    for process in &mut processes {
        drop(process.stdin.take());
        process.wait().unwrap();
    }
}

#[test]
fn without_proc_no_directory_counts_as_unused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    for proc in [dir.path(), &missing] {
        assert!(matches!(Processes::look_in(proc, dir.path()), Err(Error::NoProc)));
    }
    // The table of mounts has none for what lies in a root directory below the place of the mount.
    let own = dir.path().join("self");
    create_dir(&own).unwrap();
    for file in ["stat", "mountinfo"] {
        std::fs::write(own.join(file), "").unwrap();
    }
    let why = Processes::look_in(dir.path(), dir.path()).unwrap_err().to_string();
    assert!(why.contains("mountinfo does not show"), "{why}");
}

/// A place with what proc(5) tells of processes that see the file system `top` lies in.
struct FakeProc<'a> {
    dir: TempDir,
    top: &'a Path,
}

impl FakeProc<'_> {
    fn add(&self, name: &str, namespace: u32, links: &[(&str, &Path)], pool: Option<&str>) {
        let process = self.dir.path().join(name);
        create_dir_all(process.join("ns")).unwrap();
        create_dir(process.join("fd")).unwrap();
        std::fs::write(process.join("stat"), "").unwrap();
        std::fs::write(process.join("comm"), name).unwrap();
        symlink(format!("mnt:[{namespace}]"), process.join("ns/mnt")).unwrap();
        for (name, target) in links {
            symlink(target, process.join(name)).unwrap();
        }
        if let Some(pool) = pool {
            let device = self.top.metadata().unwrap().dev();
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            let line = format!("20 1 {major}:{minor} / {pool} rw - fuse espalier rw\n");
            std::fs::write(process.join("mountinfo"), line).unwrap();
        }
    }

    /// The names of the processes that work in a directory of the file system.
    fn workers(&self, dir: &str) -> Vec<String> {
        let found = Processes::look_in(self.dir.path(), self.top).unwrap();
        found.in_tree(Path::new(dir)).into_iter().map(|process| process.command).collect()
    }
}

/// Whichever process is looked at first.
#[test]
fn a_process_that_ends_or_has_another_root_hides_no_other() {
    let top = tempfile::tempdir().unwrap();
    let proc = FakeProc { dir: tempfile::tempdir().unwrap(), top: top.path() };
    let [slash, jail] = ["/", "/jail"].map(Path::new);
    proc.add("self", 1, &[("root", slash)], Some("/pool"));
    // Many, so that one of them is the first; the tables of those that end cannot be read.
    for pid in 100..120 {
        for (from, namespace) in [(0, 1), (100, 2), (200, 3)] {
            proc.add(&(pid + from).to_string(), namespace, &[("root", slash)], None);
        }
        proc.add(&(pid + 300).to_string(), 1, &[("root", jail)], Some("/srv"));
        proc.add(&(pid + 400).to_string(), 2, &[("root", jail)], Some("/pool"));
    }
    let works = |at: &'static str| ("cwd", Path::new(at));
    proc.add("901", 1, &[("root", slash), works("/pool/w")], Some("/pool"));
    // Its own table has the mount at another place, and does not show the one it works by.
    proc.add("902", 1, &[("root", jail), works("/pool/w/deep")], Some("/srv"));
    proc.add("903", 2, &[("root", slash), works("/pool/w")], Some("/pool"));
    // In another namespace with a root directory of its own, alone or beside others.
    proc.add("904", 2, &[("root", jail), works("/jail/pool/w")], Some("/pool"));
    proc.add("905", 3, &[("root", jail), works("/jail/pool/w")], Some("/pool"));
    assert_eq!(proc.workers("/pool/w"), ["901", "902", "903", "904", "905"]);
    assert_eq!(proc.workers("/pool/v"), [""; 0]);
}
