//! Bringing the changes of a workspace into its original, or into another directory.

use crate::entry::Kind;
use crate::error::{AtPath, Error, Result};
use crate::file_names::FileNames;
use crate::merge;
use crate::pinned::Pinned;
use crate::plan::{Plan, Sides};
use crate::record::now;
use crate::rescue::{Unseen, changed_in, directories_that_go};
use crate::stage::{Stage, parts};
use crate::three_way::Decision;
use crate::trees::{Change, Step, Trees};
use crate::workspace::{Lock, Workspace};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use crate::plan::{Conflict, Prefer};

/// What is opened is a file that is there, and nothing that waits.
const NO_DETOUR: i32 = libc::O_NOFOLLOW | libc::O_NONBLOCK;

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
    /// [`Error::Meanwhile`]; as for [`Trees::clone_tree`] and [`Trees::rename_all`].
    pub fn run(&self, trees: &dyn Trees, workspace: &mut Workspace) -> Result<ApplyOutcome> {
        let lock = workspace.lock(trees)?;
        let target = match self.to {
            Some(to) => to.canonicalize().at(to)?,
            None => workspace.find_original(&lock)?,
        };
        workspace.note_if_original(&target, &lock)?;
        if target.starts_with(workspace.place()) || workspace.place().starts_with(&target) {
            return Err(Error::Unsuitable(format!(
                "{} and {} lie in one another",
                target.display(),
                workspace.place().display()
            )));
        }
        let scratch = workspace.scratch()?;
        let outcome = self.in_scratch(trees, (workspace, &lock), &target, &scratch);
        if let Err(Error::NotPutBack { kept, .. }) = &outcome
            && kept.starts_with(&scratch)
        {
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
        target: &Path,
        scratch: &Path,
    ) -> Result<ApplyOutcome> {
        // The user that a directory above the target belongs to may put another one in its place.
        let into = Pinned::open_followed(target)?;
        // One state of the workspace is compared, applied, and becomes the base.
        let (frozen, base) = (scratch.join("workspace"), workspace.base());
        let top = workspace.open_top()?;
        top.named(trees.clone_tree(top.path(), &frozen))?;
        let sides = Sides { base: &base, workspace: &frozen, target };
        let wanted = |path: &Path| self.paths.is_empty() || self.paths.iter().any(|p| path.starts_with(p));
        let mut plan = Plan::make(trees, &sides, &wanted, self.prefer)?;
        if self.merge {
            merge::merge_texts(&mut plan, &scratch.join("merged"))?;
        }
        if !plan.conflicts.is_empty() {
            return Ok(ApplyOutcome::Conflicts(plan.conflicts));
        }
        let applied = plan.applied();
        if self.check {
            return Ok(ApplyOutcome::Applied(applied));
        }
        let staging = workspace.staging(trees, (target, &into), scratch, lock)?;
        let names = FileNames::kept(&plan.present);
        let time = Some(SystemTime::now());
        let steps = staging.named(Stage::make(trees, &plan, &frozen, staging.path(), time, names))?;
        let left = match self.prefer {
            Prefer::Workspace => Vec::new(),
            Prefer::Neither | Prefer::Target => directories_that_go(&steps, &base),
        };
        let unseen = Unseen::note(scratch, &left)?;
        into.named(staging.named(trees.rename_all(staging.path(), into.path(), &steps)))?;
        let looked = match staging.named(changed_in(trees, &left, &base, staging.path())) {
            Ok(Some(path)) => Err(Error::Meanwhile(target.join(path))),
            looked => looked.map(drop),
        };
        if let Err(why) = looked {
            return Err(workspace.take_back((trees, lock), &steps, (&staging, target, &into), why));
        }
        unseen.forget()?;
        announce(&steps, into.path());
        self.advance_base(trees, (workspace, lock), &sides, &wanted)?;
        workspace.record.applied = Some(now());
        workspace.store(lock)?;
        Ok(ApplyOutcome::Applied(applied))
    }

    /// What was applied is in the base from now on.
    fn advance_base(
        &self,
        trees: &dyn Trees,
        (workspace, lock): (&mut Workspace, &Lock),
        sides: &Sides<'_>,
        wanted: &dyn Fn(&Path) -> bool,
    ) -> Result<()> {
        if self.paths.is_empty() {
            let exchanged = renameat_with(CWD, sides.workspace, CWD, sides.base, RenameFlags::EXCHANGE);
            return exchanged.at(sides.base);
        }
        let sides = Sides { target: sides.base, ..*sides };
        let plan = Plan::make(trees, &sides, wanted, Prefer::Workspace)?;
        let scratch = sides.workspace.with_file_name("base");
        std::fs::create_dir(&scratch).at(&scratch)?;
        workspace.remove_staging(trees, lock)?;
        let into = Pinned::open(sides.base)?;
        let staging = workspace.staging(trees, (sides.base, &into), &scratch, lock)?;
        // Only compared with, path by path.
        let names = FileNames::apart(&plan.present);
        let steps = staging.named(Stage::make(trees, &plan, sides.workspace, staging.path(), None, names))?;
        staging.named(trees.rename_all(staging.path(), sides.base, &steps))
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
fn announce(steps: &[Step], target: &Path) {
    for step in steps.iter().filter(|step| matches!(step, Step::Enter { .. } | Step::Exchange { .. })) {
        let path = target.join(parts(step).0);
        if crate::entry::read(target, parts(step).0).ok().flatten().is_some_and(|e| e.kind == Kind::File) {
            drop(File::options().append(true).custom_flags(NO_DETOUR).open(path));
        }
    }
}
