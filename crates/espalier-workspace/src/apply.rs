//! Bringing the changes of a workspace into its original, or into another directory.
//!
//! All three sides are held open, and what lies below them is read by their descriptors: if the
//! target belongs to another user than the caller, root, that user may put something else in the
//! place of any entry at any time. Such an exchange ends the apply or shows as a change of the
//! target, and leads to no access outside of the target.

use crate::apply_note::{ApplyNote, FROZEN};
use crate::entry::{self, Kind};
use crate::error::{AtPath, Error, Result};
use crate::file_names::FileNames;
use crate::merge;
use crate::pinned::Pinned;
use crate::plan::{Plan, Sides};
use crate::rescue::{Unseen, changed_in, directories_that_go};
use crate::stage::{Stage, parts};
use crate::three_way::Decision;
use crate::trees::{Change, Step, Trees};
use crate::workspace::{Lock, Workspace};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

pub use crate::plan::{Conflict, Prefer};

/// How changes are applied.
#[derive(Debug, Clone, Default)]
pub struct Apply<'a> {
    /// Where; by default to the original.
    pub to: Option<&'a Path>,
    /// Only say what would be done.
    pub check: bool,
    /// Only what is at or below these paths, relative to the workspace; everything if there are
    /// none.
    pub paths: &'a [PathBuf],
    /// Which side wins where both changed.
    pub prefer: Prefer,
    /// Whether text that both changed is merged line by line.
    pub merge: bool,
}

/// What was done to a path of the target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    /// The path.
    pub path: PathBuf,
    /// What became of it there.
    pub change: Change,
    /// Its text was merged.
    pub merged: bool,
}

/// What came of it.
#[derive(Debug, Clone)]
pub enum ApplyOutcome {
    /// These paths of the target were changed, or would be.
    Applied(Vec<Applied>),
    /// Nothing was changed, because of these.
    Conflicts(Vec<Conflict>),
}

impl Apply<'_> {
    /// Applies the changes, all or none.
    ///
    /// # Errors
    /// [`Error::Meanwhile`]; [`Error::MountPoint`] if something is mounted where the target would
    /// change; as for [`Trees::clone_tree`] and [`Trees::rename_all`].
    pub fn run(&self, trees: &dyn Trees, workspace: &mut Workspace) -> Result<ApplyOutcome> {
        let lock = workspace.lock(trees)?;
        let target = match self.to {
            Some(to) => to.canonicalize().at(to)?,
            None => workspace.find_original(&lock)?.canonicalize().at(&workspace.original())?,
        };
        workspace.note_if_original(&target, &lock)?;
        if target.starts_with(workspace.place()) || workspace.place().starts_with(&target) {
            return Err(Error::Unsuitable(format!(
                "{} and {} lie in one another",
                target.display(),
                workspace.place().display()
            )));
        }
        // The user that a directory above the target belongs to may put another one in its place.
        let into = Arc::new(Pinned::open_resolved(&target)?.within_its_mount());
        let scratch = workspace.scratch()?;
        let outcome = self.in_scratch(trees, (workspace, &lock), &into, &scratch);
        if let Err(Error::NotPutBack { kept, .. }) = &outcome
            && kept.starts_with(&scratch)
        {
            return outcome;
        }
        if outcome.is_err() && ApplyNote::is_there(&scratch) {
            // The target has the changes. The next command makes what is left of it.
            return outcome;
        }
        let removed = workspace.remove_staging(trees, &lock).and_then(|()| trees.remove_tree(&scratch));
        let outcome = outcome?;
        removed?;
        Ok(outcome)
    }

    fn in_scratch(
        &self,
        trees: &dyn Trees,
        (workspace, lock): (&mut Workspace, &Lock),
        into: &Arc<Pinned>,
        scratch: &Path,
    ) -> Result<ApplyOutcome> {
        let base = Arc::new(Pinned::open(&workspace.base())?);
        let frozen = scratch.join(FROZEN);
        let top = workspace.open_top()?;
        top.named(trees.clone_tree(top.path(), &frozen))?;
        let frozen = Arc::new(Pinned::open(&frozen)?);
        let sides = Sides { base, workspace: frozen, target: Arc::clone(into) };
        let wanted = |path: &Path| self.paths.is_empty() || self.paths.iter().any(|p| path.starts_with(p));
        let mut plan = Plan::make(trees, &sides, &wanted, self.prefer)?;
        if self.merge {
            merge::merge_texts(&mut plan, &scratch.join("merged"))?;
        }
        if !plan.conflicts.is_empty() {
            return Ok(ApplyOutcome::Conflicts(plan.conflicts));
        }
        plan.check_mounts(into)?;
        let applied = plan.applied();
        if self.check {
            return Ok(ApplyOutcome::Applied(applied));
        }
        let staging = workspace.staging(trees, into, scratch, lock)?;
        let names = FileNames::kept(&plan.present);
        let time = Some(SystemTime::now());
        let steps = staging.named(Stage::make(trees, &plan, staging.path(), time, names))?;
        let left = match self.prefer {
            Prefer::Workspace => Vec::new(),
            Prefer::Neither | Prefer::Target => directories_that_go(&steps, &sides.base)?,
        };
        let unseen = Unseen::note(scratch, &left)?;
        let note = ApplyNote::write(scratch, &sides.workspace, (&steps, staging.path()), self.paths)?;
        if let Err(why) = into.named(staging.named(trees.rename_all(staging.path(), into.path(), &steps))) {
            // If it stays because the server is gone, the next command finds out what was done.
            let _ = ApplyNote::forget(scratch);
            return Err(why);
        }
        let looked = match staging.named(changed_in(trees, &left, &sides.base, staging.path())) {
            Ok(Some(path)) => Err(Error::Meanwhile(into.name().join(path))),
            looked => looked.map(drop),
        };
        if let Err(why) = looked {
            let why = workspace.take_back((trees, lock), &steps, (&staging, into), why);
            let _ = ApplyNote::forget(scratch);
            return Err(why);
        }
        ApplyNote::confirm(scratch)?;
        unseen.forget()?;
        announce(&steps, into);
        workspace.complete_apply(trees, lock, &note)?;
        Ok(ApplyOutcome::Applied(applied))
    }
}

impl Plan {
    /// What it does to the target.
    fn applied(&self) -> Vec<Applied> {
        let done = self.items.iter().filter(|(_, item)| item.decision != Decision::Keep);
        let done = done.filter_map(|(path, item)| {
            let change = match (&item.workspace, &item.target) {
                (None, None) => return None,
                (None, Some(_)) => Change::Removed,
                (Some(_), None) => Change::Added,
                (Some(_), Some(_)) => Change::Changed,
            };
            Some(Applied { path: path.clone(), change, merged: item.merged.is_some() })
        });
        done.collect()
    }
}

/// Programs that watch the target hear of each file as if it had been written. A hint: where it
/// fails they do not.
fn announce(steps: &[Step], target: &Arc<Pinned>) {
    for step in steps.iter().filter(|step| matches!(step, Step::Enter { .. } | Step::Exchange { .. })) {
        let found = entry::read(target, parts(step).0).ok().flatten();
        if let Some(file) = found.filter(|found| found.kind == Kind::File)
            && let Ok(held) = file.hold()
        {
            drop(held.open(File::options().append(true)));
        }
    }
}

#[cfg(test)]
mod tests;
