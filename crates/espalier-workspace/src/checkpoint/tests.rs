use crate::error::Result;
use crate::processes::Processes;
use crate::testing::{Ground, Plain};
use crate::trees::{Change, Step, Trees};
use espalier_fuse::control::TreeBytes;
use std::fs::{read_to_string, write};
use std::path::{Path, PathBuf};

/// Trees in which a program writes to a file just after a clone was made.
struct Busy(PathBuf);

impl Trees for Busy {
    fn clone_tree(&self, source: &Path, destination: &Path) -> Result<()> {
        Plain.clone_tree(source, destination)?;
        write(&self.0, "late").unwrap();
        Ok(())
    }

    fn remove_tree(&self, path: &Path) -> Result<()> {
        Plain.remove_tree(path)
    }

    fn differences(&self, old: &Path, new: &Path, each: &mut dyn FnMut(Change, &[u8])) -> Result<()> {
        Plain.differences(old, new, each)
    }

    fn restore(&self, dir: &Path, snapshot: &str) -> Result<()> {
        Plain.restore(dir, snapshot)
    }

    fn rename_all(&self, staging: &Path, target: &Path, steps: &[Step]) -> Result<()> {
        Plain.rename_all(staging, target, steps)
    }

    fn exclusive_bytes(&self, path: &Path) -> Result<Option<u64>> {
        Plain.exclusive_bytes(path)
    }

    fn limits(&self, path: &Path) -> Result<TreeBytes> {
        Plain.limits(path)
    }

    fn set_limits(&self, path: &Path, limits: TreeBytes) -> Result<()> {
        Plain.set_limits(path, limits)
    }
}

#[test]
fn what_is_written_while_a_step_is_undone_is_in_the_checkpoint_of_before() {
    let ground = Ground::new();
    let mut workspace = ground.workspace.clone();
    let file = ground.path("w/w");
    write(&file, "first").unwrap();
    let first = workspace.checkpoint(&Plain, "first").unwrap();
    write(&file, "second").unwrap();
    let undone = workspace.undo(&Busy(file.clone()), None, &Processes::default(), true).unwrap();
    assert_eq!((undone.to.number, read_to_string(&file).unwrap().as_str()), (first.number, "first"));
    workspace.undo(&Plain, Some(undone.before.number), &Processes::default(), true).unwrap();
    assert_eq!(read_to_string(&file).unwrap(), "late");
}
