use super::{MountPoint, Process, Processes, within};
use crate::error::Error;
use std::fs::{File, create_dir};
use std::path::Path;
use std::process::{Command, Stdio};

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
