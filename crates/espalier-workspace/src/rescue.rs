//! What a command has taken away and cannot put back is the only copy: it is kept beside the data
//! about workspaces, or beside where it was staged, and no command removes it there.

use crate::error::Error;
use crate::pinned::Pinned;
use crate::stage::{inverse, parts};
use crate::staging::Staging;
use crate::trees::{Step, Trees};
use crate::workspace::{Lock, Workspace};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The file that says where each of the kept entries was: lines of a name, a tab and a path.
const PLACES: &str = "places";
/// So many directories of one workspace are kept under names of their own.
const MAX_KEPT: usize = 1000;

impl Workspace {
    /// Takes back what `steps` did to `target`, which is open as `into`, because of `why`.
    /// If that fails, too, what they took away is kept. Gives the error that says so.
    pub(crate) fn take_back(
        &mut self,
        (trees, lock): (&dyn Trees, &Lock),
        steps: &[Step],
        (staging, target, into): (&Staging, &Path, &Pinned),
        why: Error,
    ) -> Error {
        let staged = staging.path();
        let back = inverse(steps, into.path()).and_then(|back| trees.rename_all(staged, into.path(), &back));
        let Err(back) = into.named(staging.named(back)) else { return why };
        let why = format!(
            "the changes were applied in spite of a failure ({}), and cannot be taken back ({})",
            reason(&why),
            reason(&back)
        );
        // The names alone tell little, but the entries count more than these.
        let _ = std::fs::write(staged.join(PLACES), places(steps));
        let kept = staging.by_name(&self.keep_aside(staged, lock));
        Error::NotPutBack { place: target.to_owned(), kept, why }
    }

    /// The error for what was moved to `what`, in the place of the workspace, and is none. Keeps it
    /// if it could not be moved `back`.
    pub(crate) fn not_own(&mut self, back: rustix::io::Result<()>, what: &Path, lock: &Lock) -> Error {
        let Err(error) = back else { return Error::Gone(self.record.name.clone()) };
        let why = format!("it is not workspace '{}', and cannot be put back ({error})", self.record.name);
        Error::NotPutBack { place: self.place(), kept: self.keep_aside(what, lock), why }
    }

    /// Moves what is at a path of a command's own to where no command removes it, and gives the new
    /// path; that of before if it cannot be moved.
    pub(crate) fn keep_aside(&mut self, what: &Path, lock: &Lock) -> PathBuf {
        let id = &self.record.id;
        let staging = self.record.staging.as_ref().map(|staging| self.home.absolute(staging));
        let name = |number: usize| match &staging {
            Some(staging) => staging.with_file_name(format!(".espalier-kept-{id}-{number}")),
            None => self.home.dir().join(format!("kept-{id}-{number}")),
        };
        for kept in (1..MAX_KEPT).map(name) {
            match renameat_with(CWD, what, CWD, &kept, RenameFlags::NOREPLACE) {
                Ok(()) => return kept,
                Err(Errno::EXIST) => {}
                Err(_) => break,
            }
        }
        // No command removes what is staged in a target if the record does not name it.
        if self.record.staging.take().is_some() {
            let _ = self.store(lock);
        }
        what.to_owned()
    }
}

/// What a failure says, but for that nothing was applied.
fn reason(error: &Error) -> String {
    match error {
        Error::Meanwhile(path) => format!("{}: something was changed there meanwhile", path.display()),
        error => error.to_string(),
    }
}

/// Where the entries were that steps took away.
fn places(steps: &[Step]) -> Vec<u8> {
    let mut text = Vec::new();
    for step in steps.iter().filter(|step| matches!(step, Step::Leave { .. } | Step::Exchange { .. })) {
        let (place, name) = parts(step);
        text.extend([name.as_os_str().as_bytes(), b"\t", place.as_os_str().as_bytes(), b"\n"].concat());
    }
    text
}

#[cfg(test)]
mod tests;
