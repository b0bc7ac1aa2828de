//! The note of an apply: that it renames, and what follows when the renames are made.
//!
//! The renames are one step of the file system, but what follows them is not: the base becomes what
//! was applied, and the record gets the time. In between, a crash would leave a target with all of
//! the changes and a workspace of which all of them count as not applied: what was merged would be
//! merged again, and what is changed in the target from then on would be in conflict.
//!
//! So before the renames a note is written to the scratch directory. It has the number of the state
//! of the workspace that is applied, a clone in the scratch directory that becomes the base, and a
//! *proof*: what is staged under one name, which the renames take away or replace. The next command
//! that takes the lock looks at the proof. If the renames were made, it makes what follows them; if
//! not, the apply has changed nothing, and what it left goes.
//!
//! An error after the renames leaves the note, too. So does the lack of space, which keeps what
//! follows from being made until there is some.
//!
//! Invariant: whenever a lock was taken, the target has the changes of an apply if and only if the
//! base has them, and the record has the time of an apply if the base has one. Both parts that
//! follow may be made again. Two kinds of commands are exempt: those of which an error said that
//! changes could not be taken back ([`Error::NotPutBack`]), and removals, after which there is no
//! base.

use crate::entry::expected;
use crate::error::{AtPath, Error, Result};
use crate::file_names::FileNames;
use crate::path_text;
use crate::pinned::Pinned;
use crate::plan::{Plan, Prefer, Sides};
use crate::record::{Top, now};
use crate::stage::{Stage, parts};
use crate::trees::{Step, Trees};
use crate::workspace::{Lock, Workspace};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The clone of the workspace in the scratch directory: one state is compared, applied, and becomes
/// the base.
pub(crate) const FROZEN: &str = "workspace";
/// The note in the scratch directory before the renames are known to be made.
const APPLYING: &str = "applying";
/// Its name from then on.
const APPLIED: &str = "applied";

/// The note of an apply.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ApplyNote {
    /// The number of the clone of the workspace that becomes the base.
    workspace: u64,
    /// `None` if nothing is renamed.
    proof: Option<Proof>,
    /// Only these paths are applied; all if there are none.
    paths: Vec<NotedPath>,
}

/// By what it shows that the renames were made.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Proof {
    /// A name in the staging directory.
    #[serde(with = "path_text")]
    name: PathBuf,
    /// What is there before.
    before: Staged,
}

/// What is at a name in the staging directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Staged {
    /// Nothing.
    Nothing,
    /// What has this number (`st_ino`).
    Entry(u64),
    /// A directory with this number, time of change, mode and owner, whose attributes are
    /// exchanged.
    Attributes(u64, i64, u32, (u32, u32)),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct NotedPath(#[serde(with = "path_text")] PathBuf);

impl Staged {
    fn attributes(of: &Metadata) -> Self {
        Self::Attributes(of.ino(), expected(of).changed, of.mode(), (of.uid(), of.gid()))
    }

    /// What is there now, told in the same way.
    fn now(self, path: &Path) -> Result<Self> {
        match path.symlink_metadata() {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::Nothing),
            found => found.at(path).map(|found| match self {
                Self::Attributes(..) => Self::attributes(&found),
                Self::Nothing | Self::Entry(_) => Self::Entry(found.ino()),
            }),
        }
    }
}

impl Proof {
    /// Takes one of the steps as the proof of all.
    fn of(steps: &[Step], staged: &Path) -> Result<Option<Self>> {
        let is_moved = |step: &&Step| !matches!(step, Step::Attributes { .. });
        let Some(step) = steps.iter().find(is_moved).or(steps.first()) else { return Ok(None) };
        let name = parts(step).1.to_owned();
        let path = staged.join(&name);
        let metadata = || path.symlink_metadata().at(&path);
        let before = match step {
            Step::Leave { .. } => Staged::Nothing,
            Step::Enter { .. } | Step::Exchange { .. } => Staged::Entry(metadata()?.ino()),
            Step::Attributes { .. } => Staged::attributes(&metadata()?),
        };
        Ok(Some(Self { name, before }))
    }

    fn is_made(&self, staged: &Path) -> Result<bool> {
        Ok(self.before.now(&staged.join(&self.name))? != self.before)
    }
}

impl ApplyNote {
    /// Notes that `steps` are about to be made, after which `frozen`, a clone of the workspace,
    /// becomes the base, as far as `paths` say.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn write(
        scratch: &Path,
        frozen: &Pinned,
        (steps, staged): (&[Step], &Path),
        paths: &[PathBuf],
    ) -> Result<Self> {
        let paths = paths.iter().cloned().map(NotedPath).collect();
        let note = Self { workspace: frozen.number()?, proof: Proof::of(steps, staged)?, paths };
        let file = scratch.join(APPLYING);
        let text = serde_json::to_vec(&note)
            .map_err(|error| Error::Damaged { path: file.clone(), what: error.to_string() })?;
        std::fs::write(&file, text).at(&file)?;
        Ok(note)
    }

    /// Says that the renames were made, and are not taken back.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn confirm(scratch: &Path) -> Result<()> {
        let file = scratch.join(APPLYING);
        std::fs::rename(&file, scratch.join(APPLIED)).at(&file)
    }

    /// Forgets it.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn forget(scratch: &Path) -> Result<()> {
        for file in [APPLYING, APPLIED].map(|name| scratch.join(name)) {
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                done => done.at(&file)?,
            }
        }
        Ok(())
    }

    /// True if there is one: of an apply whose renames may have been made.
    pub(crate) fn is_there(scratch: &Path) -> bool {
        [APPLYING, APPLIED].iter().any(|name| scratch.join(name).symlink_metadata().is_ok())
    }

    /// The note under this name; `None` if there is none. One that is cut off was not written to
    /// its end, so nothing came after it.
    fn read(scratch: &Path, name: &str) -> Result<Option<Self>> {
        let file = scratch.join(name);
        match std::fs::read(&file) {
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            read => Ok(serde_json::from_slice(&read.at(&file)?).ok()),
        }
    }

    /// True if a path is applied.
    pub(crate) fn wants(&self, path: &Path) -> bool {
        self.paths.is_empty() || self.paths.iter().any(|wanted| path.starts_with(&wanted.0))
    }
}

impl Workspace {
    /// The note of an apply that a crash has interrupted after its renames. `None` if there is
    /// none, or what was staged is gone.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn interrupted_apply(&self) -> Result<Option<ApplyNote>> {
        let scratch = self.scratch_dir();
        // If everything was copied, no number says anything.
        let trees = [scratch.join(FROZEN), self.base()];
        let is_own = |note: &ApplyNote| {
            let is_noted = |tree: &PathBuf| Top::of(tree).is_ok_and(|top| top.number == note.workspace);
            trees.iter().any(is_noted)
        };
        if let Some(note) = ApplyNote::read(&scratch, APPLIED)?.filter(is_own) {
            return Ok(Some(note));
        }
        let Some(note) = ApplyNote::read(&scratch, APPLYING)?.filter(is_own) else { return Ok(None) };
        let Some(staging) = self.left_staging()? else { return Ok(None) };
        let is_made = match &note.proof {
            Some(proof) => staging.named(proof.is_made(staging.path()))?,
            None => true,
        };
        if !is_made {
            return Ok(None);
        }
        ApplyNote::confirm(&scratch)?;
        Ok(Some(note))
    }

    /// Makes what follows the renames of an apply: what was applied is in the base from now on.
    ///
    /// # Errors
    /// As for [`Trees::clone_tree`] and [`Trees::rename_all`].
    pub(crate) fn complete_apply(&mut self, trees: &dyn Trees, lock: &Lock, note: &ApplyNote) -> Result<()> {
        self.advance_base(trees, lock, note)?;
        self.record.applied = Some(now());
        if note.paths.is_empty() {
            self.record.settle();
        }
        self.store(lock)?;
        ApplyNote::forget(&self.scratch_dir())
    }

    /// What was applied is in the base from now on.
    fn advance_base(&mut self, trees: &dyn Trees, lock: &Lock, note: &ApplyNote) -> Result<()> {
        let (frozen, base) = (self.scratch_dir().join(FROZEN), self.base());
        let into = Pinned::open(&base)?;
        if note.paths.is_empty() && into.number()? == note.workspace {
            return Ok(());
        }
        if note.paths.is_empty() {
            return renameat_with(CWD, &frozen, CWD, &base, RenameFlags::EXCHANGE).at(&base);
        }
        let (from, into) = (Arc::new(Pinned::open(&frozen)?), Arc::new(into));
        let sides = Sides { base: Arc::clone(&into), workspace: from, target: Arc::clone(&into) };
        let plan = Plan::make(trees, &sides, &|path| note.wants(path), Prefer::Workspace)?;
        let scratch = self.scratch_dir().join("base");
        if scratch.symlink_metadata().is_ok() {
            trees.remove_tree(&scratch)?;
        }
        std::fs::create_dir(&scratch).at(&scratch)?;
        self.remove_staging(trees, lock)?;
        let staging = self.staging(trees, &into, &scratch, lock)?;
        // Only compared with, path by path.
        let names = FileNames::apart(&plan.present);
        let steps = staging.named(Stage::make(trees, &plan, staging.path(), None, names))?;
        into.named(staging.named(trees.rename_all(staging.path(), into.path(), &steps)))
    }
}

#[cfg(test)]
mod tests;
