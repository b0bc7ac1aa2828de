//! What a command has taken away and cannot put back is the only copy: it is kept beside the data
//! about workspaces, or beside where it was staged, and no command removes it there.

use crate::discard::DISCARDED;
use crate::entry::{Kind, Trust, read};
use crate::error::{AtPath, Error, Result};
use crate::pinned::Pinned;
use crate::stage::{inverse, parts};
use crate::staging::Staging;
use crate::trees::{Step, Trees};
use crate::workspace::{Lock, Workspace, all_changed_paths};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The file that says where each of the kept entries was: lines of a name, a tab and a path.
const PLACES: &str = "places";
/// The file in the scratch directory that says which directories go and were not compared since.
const UNSEEN: &str = "not-put-back";
/// So many directories of one workspace are kept under names of their own.
const MAX_KEPT: usize = 1000;

/// A directory that an apply takes away: its place below the target, and its name where it is
/// staged.
pub(crate) type Left = (PathBuf, PathBuf);

/// The note that directories go, and may have been changed in the last moment. As long as it is
/// there, no command removes what was staged without a look.
#[derive(Debug)]
pub(crate) struct Unseen(Option<PathBuf>);

impl Unseen {
    /// Notes it in the scratch directory, before anything is renamed.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn note(scratch: &Path, left: &[Left]) -> Result<Self> {
        if left.is_empty() {
            return Ok(Self(None));
        }
        let file = scratch.join(UNSEEN);
        let paths = left.iter().flat_map(|(place, name)| [place, name]);
        let text: Vec<u8> = paths.flat_map(|path| [path.as_os_str().as_bytes(), b"\0"].concat()).collect();
        std::fs::write(&file, text).at(&file)?;
        Ok(Self(Some(file)))
    }

    /// What is noted there; `None` without a note. A note of nothing says that everything is kept.
    fn read(scratch: &Path) -> Result<Option<Vec<Left>>> {
        let file = scratch.join(UNSEEN);
        let text = match std::fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            read => read.at(&file)?,
        };
        let paths: Vec<_> =
            text.split(|byte| *byte == 0).map(|path| PathBuf::from(OsStr::from_bytes(path))).collect();
        let pairs = paths.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
        Ok(Some(pairs.collect()))
    }

    /// Everything was compared.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn forget(self) -> Result<()> {
        self.0.map_or(Ok(()), |file| std::fs::remove_file(&file).at(&file))
    }
}

/// The directories of the base that steps take away.
///
/// # Errors
/// Of the system.
pub(crate) fn directories_that_go(steps: &[Step], base: &Arc<Pinned>) -> Result<Vec<Left>> {
    let mut left = Vec::new();
    for step in steps.iter().filter(|step| matches!(step, Step::Leave { .. } | Step::Exchange { .. })) {
        let (place, name) = parts(step);
        if read(base, place)?.is_some_and(|entry| entry.kind == Kind::Directory) {
            left.push((place.to_owned(), name.to_owned()));
        }
    }
    Ok(left)
}

/// The first path in directories that went which was changed while the trees were compared: they
/// are compared with the base once more.
///
/// # Errors
/// Of the system.
pub(crate) fn changed_in(
    trees: &dyn Trees,
    left: &[Left],
    base: &Pinned,
    staged: &Path,
) -> Result<Option<PathBuf>> {
    if left.is_empty() {
        return Ok(None);
    }
    let staged = Pinned::open(staged)?;
    for (place, name) in left {
        let (Some(old), Some(gone)) = (base.below(place)?, staged.below(name)?) else { continue };
        let (old, gone) = (Arc::new(old), Arc::new(gone));
        for (below, _) in all_changed_paths(trees, &old, &gone)? {
            let same = match (read(&old, &below)?, read(&gone, &below)?) {
                (Some(old), Some(gone)) => old.is_like(&gone, Trust::Times)?,
                // The target had removed it, too.
                (_, None) => true,
                (None, Some(_)) => false,
            };
            if !same {
                return Ok(Some(place.join(below)));
            }
        }
    }
    Ok(None)
}

impl Workspace {
    /// Takes back what `steps` did to the target `into`, because of `why`. If that fails, too, what
    /// they took away is kept. Gives the error that says so.
    pub(crate) fn take_back(
        &mut self,
        (trees, lock): (&dyn Trees, &Lock),
        steps: &[Step],
        (staging, into): (&Staging, &Arc<Pinned>),
        why: Error,
    ) -> Error {
        let staged = staging.path();
        let back = inverse(steps, into).and_then(|back| trees.rename_all(staged, into.path(), &back));
        let Err(back) = into.named(staging.named(back)) else { return why };
        let why = format!(
            "the changes were applied in spite of a failure ({}), and cannot be taken back ({})",
            reason(&why),
            reason(&back)
        );
        let gone = steps.iter().filter(|step| matches!(step, Step::Leave { .. } | Step::Exchange { .. }));
        // The names alone tell little, but the entries count more than these.
        let _ = std::fs::write(staged.join(PLACES), places(gone.map(parts)));
        let in_target = staging.in_target().map(|_| into.path());
        let kept = self.keep_aside(staged, in_target).unwrap_or_else(|_| {
            // No command removes what is staged in a target if the record does not name it.
            if in_target.is_some() {
                (self.record.staging, self.record.staging_number) = (None, None);
                let _ = self.store(lock);
            }
            let _ = std::fs::write(self.scratch_dir().join(UNSEEN), "");
            staged.to_owned()
        });
        let kept = into.by_name(&staging.by_name(&kept));
        Error::NotPutBack { place: into.name().to_owned(), kept, why }
    }

    /// The error for what was moved to `what`, in the place of the workspace, and is none. Keeps it
    /// if it could not be moved `back`.
    pub(crate) fn not_own(&self, back: rustix::io::Result<()>, what: &Path) -> Error {
        let Err(error) = back else { return Error::Gone(self.record.name.clone()) };
        let why = format!("it is not workspace '{}', and cannot be put back ({error})", self.record.name);
        let kept = self.keep_aside(what, None).unwrap_or_else(|_| what.to_owned());
        Error::NotPutBack { place: self.place(), kept, why }
    }

    /// Moves aside what commands that did not end, or could move nothing aside, have taken away
    /// and is not the workspace's, before what they left is removed.
    ///
    /// # Errors
    /// [`Error::NotPutBack`] if something cannot be moved; of the system.
    pub(crate) fn keep_doubtful(&self, trees: &dyn Trees) -> Result<()> {
        let (discarded, tree) = (self.dir().join(DISCARDED), self.scratch_dir().join("tree"));
        let is_foreign = |path: &Path| path.symlink_metadata().is_ok() && !self.is_own(path);
        if is_foreign(&discarded) {
            self.keep_or_say(&discarded, None)?;
        }
        // That of an undo is exchanged after this is recorded.
        if self.record.undoing.is_some() && is_foreign(&tree) {
            self.keep_or_say(&tree, None)?;
        }
        let Some(left) = Unseen::read(&self.scratch_dir())? else { return Ok(()) };
        let Some(staging) = self.left_staging()? else { return Ok(()) };
        let staged = staging.path();
        if !left.is_empty() && matches!(self.changed_in_left(trees, &left, staged), Ok(None)) {
            return Ok(());
        }
        if !left.is_empty() {
            let _ = std::fs::write(
                staged.join(PLACES),
                places(left.iter().map(|(place, name)| (&**place, &**name))),
            );
        }
        // Wherever the directory in the target is by now.
        let above = staging.in_target().map(|dir| dir.path().join(".."));
        self.keep_or_say(staged, above.as_deref()).map_err(|error| match error {
            Error::NotPutBack { place, kept, why } => {
                Error::NotPutBack { place, kept: staging.by_name(&kept), why }
            }
            error => error,
        })
    }

    fn changed_in_left(&self, trees: &dyn Trees, left: &[Left], staged: &Path) -> Result<Option<PathBuf>> {
        changed_in(trees, left, &Pinned::open(&self.base())?, staged)
    }

    fn keep_or_say(&self, what: &Path, in_target: Option<&Path>) -> Result<()> {
        match self.keep_aside(what, in_target) {
            Ok(_) => Ok(()),
            Err(error) => Err(Error::NotPutBack {
                place: self.place(),
                kept: what.to_owned(),
                why: format!("a command took something away, and it cannot be moved aside ({error})"),
            }),
        }
    }

    /// Moves what is at a path of a command's own to where no command removes it, and gives the new
    /// path: in the home, or in a directory `in_target`.
    fn keep_aside(&self, what: &Path, in_target: Option<&Path>) -> rustix::io::Result<PathBuf> {
        let id = &self.record.id;
        let name = |number: usize| match in_target {
            Some(dir) => dir.join(format!(".espalier-kept-{id}-{number}")),
            None => self.home.dir().join(format!("kept-{id}-{number}")),
        };
        for kept in (1..MAX_KEPT).map(name) {
            match renameat_with(CWD, what, CWD, &kept, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                done => return done.map(|()| kept),
            }
        }
        Err(Errno::EXIST)
    }
}

/// What a failure says, but for that nothing was applied.
fn reason(error: &Error) -> String {
    match error {
        Error::Meanwhile(path) => format!("{}: something was changed there meanwhile", path.display()),
        error => error.to_string(),
    }
}

/// Where the entries were that were taken away, by place and name.
fn places<'a>(gone: impl Iterator<Item = (&'a Path, &'a Path)>) -> Vec<u8> {
    let lines = gone.flat_map(|(place, name)| {
        [name.as_os_str().as_bytes(), b"\t", place.as_os_str().as_bytes(), b"\n"].concat()
    });
    lines.collect()
}

#[cfg(test)]
mod tests;
