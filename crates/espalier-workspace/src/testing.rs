//! What tests of this crate have in common: workspaces in an ordinary file system, with copies in
//! place of clones.

use crate::entry::{self, Trust};
use crate::error::{AtPath, Error, Result};
use crate::git_command::git_command;
use crate::home::Home;
use crate::pinned::Pinned;
use crate::record::{Record, Top};
use crate::stage::parts;
use crate::trees::{Change, Step, Trees};
use crate::workspace::{Workspace, set_identifier};
use espalier_fuse::control::TreeBytes;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::collections::BTreeSet;
use std::fs::{create_dir, create_dir_all, remove_dir_all, remove_file, write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A directory with a home, an original and one workspace of it.
pub(crate) struct Ground {
    pub(crate) top: PathBuf,
    pub(crate) workspace: Workspace,
    _dir: TempDir,
}

impl Ground {
    /// Workspace `w` of `base`; each has a file that bears its name.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let home = Home::below(&top);
        let record = Record::new("0123456789abcdef".into(), "w".into(), "w".into(), "base".into());
        let mut workspace = Workspace { home, record };
        for tree in [&top.join("base"), &top.join("w"), &workspace.base()] {
            create_dir_all(tree).unwrap();
        }
        write(top.join("base/base"), "").unwrap();
        write(top.join("w/w"), "").unwrap();
        write(workspace.base().join("w"), "").unwrap();
        set_identifier(&top.join("w"), &workspace.record.id).unwrap();
        workspace.record.note_original(&top.join("base")).unwrap();
        workspace.record.top = Some(Top::of(&top.join("w")).unwrap());
        workspace.record.data_number = Some(Top::of(&workspace.dir()).unwrap().number);
        write_record(&workspace);
        workspace.home.take_name("w", &workspace.record.id).unwrap();
        Self { top, workspace, _dir: dir }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.top.join(path)
    }

    /// The record as it is now.
    pub(crate) fn record(&self) -> Record {
        Record::load(&self.workspace.dir()).unwrap().unwrap()
    }

    /// Moves the workspace to where it is not looked for.
    pub(crate) fn move_far(&self) -> PathBuf {
        let far = self.path("far/away");
        create_dir_all(&far).unwrap();
        std::fs::rename(self.path("w"), far.join("w")).unwrap();
        far.join("w")
    }
}

/// Writes a record as a test wants to have it.
pub(crate) fn write_record(workspace: &Workspace) {
    workspace.record.store(&workspace.dir()).unwrap();
}

/// Trees of an ordinary file system.
pub(crate) struct Plain;

impl Trees for Plain {
    fn clone_tree(&self, source: &Path, destination: &Path) -> Result<()> {
        // Programs have descriptors of their own.
        let source = &source.canonicalize().at(source)?;
        let parent = destination.parent().unwrap_or(Path::new("/"));
        let destination =
            &parent.canonicalize().at(parent)?.join(destination.file_name().unwrap_or_default());
        let copied = Command::new("cp").arg("-a").arg("-T").arg(source).arg(destination).status();
        match copied.at(source)?.success() {
            true => Ok(()),
            false => Err(Error::Exists(destination.to_owned())),
        }
    }

    fn remove_tree(&self, path: &Path) -> Result<()> {
        match path.symlink_metadata().at(path)?.is_dir() {
            true => remove_dir_all(path).at(path),
            false => remove_file(path).at(path),
        }
    }

    fn differences(&self, old: &Path, new: &Path, each: &mut dyn FnMut(Change, &[u8])) -> Result<()> {
        let (before, after) = (paths_below(old)?, paths_below(new)?);
        let [old, new] = [Pinned::open(old)?, Pinned::open(new)?].map(Arc::new);
        for path in before.union(&after) {
            let change = match (entry::read(&old, path)?, entry::read(&new, path)?) {
                (Some(_), None) => Change::Removed,
                (None, Some(_)) => Change::Added,
                (Some(a), Some(b)) if !a.is_like(&b, Trust::Content)? => Change::Changed,
                _ => continue,
            };
            each(change, path.as_os_str().as_bytes());
        }
        Ok(())
    }

    fn restore(&self, dir: &Path, _snapshot: &str) -> Result<()> {
        Err(Error::NotEspalier(dir.to_owned()))
    }

    /// Step by step, and without the time of change, which renames change here.
    fn rename_all(&self, staging: &Path, target: &Path, steps: &[Step]) -> Result<()> {
        for step in steps {
            let (place, name) = parts(step);
            let (place, staged) = (target.join(place), staging.join(name));
            let rename = |from: &Path, to: &Path, flags| renameat_with(CWD, from, CWD, to, flags).at(&place);
            match step {
                Step::Enter { .. } => rename(&staged, &place, RenameFlags::NOREPLACE)?,
                Step::Leave { .. } => rename(&place, &staged, RenameFlags::NOREPLACE)?,
                Step::Exchange { .. } => rename(&place, &staged, RenameFlags::EXCHANGE)?,
                Step::Attributes { .. } => return Err(Error::NotEspalier(place)),
            }
        }
        Ok(())
    }

    fn exclusive_bytes(&self, _path: &Path) -> Result<Option<u64>> {
        Ok(None)
    }

    fn limits(&self, _path: &Path) -> Result<TreeBytes> {
        Ok(TreeBytes::default())
    }

    fn set_limits(&self, _path: &Path, _limits: TreeBytes) -> Result<()> {
        Ok(())
    }
}

/// A call of [`Trees`] that changes something.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Call {
    Clone,
    Remove,
    RenameAll,
}

/// [`Plain`], with what a test does before each call. If that gives an error, it is the call's. All
/// directories have a limit if `limited`.
pub(crate) struct Hooked<F: Fn(Call) -> Result<()>> {
    pub(crate) before: F,
    pub(crate) limited: bool,
}

impl<F: Fn(Call) -> Result<()>> Trees for Hooked<F> {
    fn clone_tree(&self, source: &Path, destination: &Path) -> Result<()> {
        (self.before)(Call::Clone)?;
        Plain.clone_tree(source, destination)
    }

    fn remove_tree(&self, path: &Path) -> Result<()> {
        (self.before)(Call::Remove)?;
        Plain.remove_tree(path)
    }

    fn differences(&self, old: &Path, new: &Path, each: &mut dyn FnMut(Change, &[u8])) -> Result<()> {
        Plain.differences(old, new, each)
    }

    fn restore(&self, dir: &Path, snapshot: &str) -> Result<()> {
        Plain.restore(dir, snapshot)
    }

    fn rename_all(&self, staging: &Path, target: &Path, steps: &[Step]) -> Result<()> {
        (self.before)(Call::RenameAll)?;
        Plain.rename_all(staging, target, steps)
    }

    fn exclusive_bytes(&self, path: &Path) -> Result<Option<u64>> {
        Plain.exclusive_bytes(path)
    }

    fn limits(&self, _path: &Path) -> Result<TreeBytes> {
        Ok(TreeBytes { exclusive: self.limited.then_some(1 << 30), total: None })
    }

    fn set_limits(&self, path: &Path, limits: TreeBytes) -> Result<()> {
        Plain.set_limits(path, limits)
    }
}

impl Plain {
    /// A copy, which says what is copied.
    pub(crate) fn copy(&self, from: &Path, to: &Path) {
        self.clone_tree(from, to).unwrap();
    }
}

/// All paths below a directory.
fn paths_below(top: &Path) -> Result<BTreeSet<PathBuf>> {
    let (mut all, mut waiting) = (BTreeSet::new(), vec![PathBuf::new()]);
    while let Some(below) = waiting.pop() {
        let dir = top.join(&below);
        for found in dir.read_dir().at(&dir)? {
            let found = found.at(&dir)?;
            let path = below.join(found.file_name());
            if found.file_type().at(&dir)?.is_dir() {
                waiting.push(path.clone());
            }
            all.insert(path);
        }
    }
    Ok(all)
}

/// A copy of a tree, with its attributes, that counts as its own.
pub(crate) fn copy_with_identifier(from: &Path, to: &Path, id: &str) {
    create_dir(to).unwrap();
    Plain.clone_tree(from, to).unwrap();
    set_identifier(to, id).unwrap();
}

/// Gives a command to a workspace, and has a process come to `dir` after the caller looked for
/// processes, and before the command has the workspace to itself.
pub(crate) fn with_late_process<T>(
    ground: &Ground,
    dir: &str,
    command: impl FnOnce(&dyn Trees, &mut Workspace) -> Result<T>,
) -> Result<T> {
    // What a crash has left is removed under the lock.
    ground.workspace.scratch().unwrap();
    let came = Mutex::new(None);
    let before = |call: Call| {
        let mut came = came.lock().unwrap();
        if matches!(call, Call::Remove) && came.is_none() {
            let mut sleeper = Command::new("sleep");
            *came = Some(sleeper.arg("1000").current_dir(ground.path(dir)).spawn().unwrap());
        }
        Ok(())
    };
    let done = command(&Hooked { before, limited: false }, &mut ground.workspace.clone());
    let mut sleeper = came.into_inner().unwrap().unwrap();
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    done
}

/// Carries out a shell's commands; git's are made by `t`.
#[track_caller]
pub(crate) fn sh(dir: &Path, commands: &str) -> String {
    let mut shell = Command::new("sh");
    // The environment of the test may be one that git would follow.
    for (name, _) in git_command().get_envs() {
        shell.env_remove(name);
    }
    for name in ["GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"] {
        shell.env(name, "t");
    }
    shell.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    let out = shell.args(["-euc", commands]).current_dir(dir).output().unwrap();
    assert!(out.status.success(), "{commands}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}
