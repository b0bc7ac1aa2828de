use super::{MountPoint, Process, Processes, unescape_mount_path, within};
use std::path::Path;

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
fn escapes_are_undone() {
    assert_eq!(unescape_mount_path(br"/mnt/two\040words\134"), Path::new(r"/mnt/two words\"));
}
