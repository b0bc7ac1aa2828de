//! Removes what is left of workspaces: those whose time is over, or whose process has ended, and
//! what a crash or `rm -rf` has left in a home.

use crate::discard::DISCARDED;
use crate::error::{AtPath, Error, Result};
use crate::home::Home;
use crate::processes::Processes;
use crate::procfs::{Life, check_no_mounts, life_of};
use crate::record::now;
use crate::registry::{NEW_PREFIX, Registry, is_identifier};
use crate::trees::Trees;
use crate::workspace::{Lock, Workspace};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What is known of a workspace that cannot be found is kept for so long, in seconds: it may have
/// been moved to where it is not looked for.
const MISSING_KEPT_SECONDS: u64 = 7 * 24 * 3600;
/// Why what is known of a workspace is kept whose copy no lookup may take for it.
const COPY: &str = "a copy of it is at its place, in a directory that others may write; a command that is given \
                    the path takes the copy for the workspace";
/// What is being made is taken for left behind after so many seconds.
const NEW_KEPT_SECONDS: u64 = 3600;

/// Why something was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Its time to live is over.
    Expired,
    /// The process that it was made for has ended, and nothing is left to apply.
    ProcessEnded,
    /// It was discarded, or removed by other means, and only data about it is left.
    Leftover,
    /// It cannot be looked at.
    Unknown,
}

impl Reason {
    /// The words for it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Expired => "time to live is over",
            Self::ProcessEnded => "process has ended",
            Self::Leftover => "left behind",
            Self::Unknown => "it cannot be looked at",
        }
    }
}

/// How to collect.
#[derive(Debug, Clone, Copy, Default)]
pub struct Collect {
    /// Only say what would be removed.
    pub dry_run: bool,
    /// What is known of workspaces that are not found goes at once, and not after a week.
    pub missing: bool,
}

/// Something that was removed, or would be.
#[derive(Debug, Clone)]
pub struct Collected {
    /// The workspace's name, or what the left data is called.
    pub name: String,
    /// Where it was.
    pub path: PathBuf,
    /// Why.
    pub reason: Reason,
    /// Why it was not removed after all.
    pub kept: Option<String>,
}

impl Registry {
    /// Removes what is not needed any more, in all homes around. Workspaces that processes work in
    /// are kept, and what commands work on at this time. What cannot be removed is kept, and said
    /// with the reason: it hides nothing else.
    ///
    /// # Errors
    /// Of the system, but for what concerns one workspace.
    pub fn collect(
        &mut self,
        trees: &dyn Trees,
        processes: &Processes,
        collect: Collect,
    ) -> Result<Vec<Collected>> {
        let mut all = Vec::new();
        // A home may have no workspace any more, and still something that a crash has left.
        let mut homes = Home::around(&self.at)?;
        for workspace in &mut self.present {
            if !homes.contains(&workspace.home) {
                homes.push(workspace.home.clone());
            }
            match collect_due(trees, workspace, processes, collect) {
                Ok(due) => all.extend(due),
                // Another command has discarded it since.
                Err(Error::Gone(_)) => {}
                Err(error) => all.push(Collected {
                    name: workspace.record.name.clone(),
                    path: workspace.place(),
                    reason: end(workspace).ok().flatten().unwrap_or(Reason::Unknown),
                    kept: Some(error.to_string()),
                }),
            }
        }
        for workspace in &mut self.missing {
            if !homes.contains(&workspace.home) {
                homes.push(workspace.home.clone());
            }
            match collect_missing(trees, workspace, collect) {
                Ok(gone) => all.extend(gone),
                Err(error) => all.push(Collected {
                    name: workspace.record.name.clone(),
                    path: workspace.place(),
                    reason: Reason::Leftover,
                    kept: Some(error.to_string()),
                }),
            }
        }
        all.extend(self.unreadable.iter().map(|unreadable| Collected {
            name: unreadable.path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            path: unreadable.path.clone(),
            reason: Reason::Unknown,
            kept: Some(unreadable.why.clone()),
        }));
        for home in homes {
            if !collect.dry_run {
                home.remove_dangling_names()?;
            }
            collect_unfinished(trees, &home, collect.dry_run, &mut all)?;
        }
        Ok(all)
    }
}

/// Throws a workspace away if that is due, unless processes work in it, or a command does.
fn collect_due(
    trees: &dyn Trees,
    workspace: &mut Workspace,
    processes: &Processes,
    collect: Collect,
) -> Result<Option<Collected>> {
    if collect.dry_run {
        let Some(reason) = due(trees, workspace)? else { return Ok(None) };
        let free = workspace.check_unused(processes).and_then(|()| check_no_mounts(&workspace.place()));
        let kept = free.err().map(|error| error.to_string());
        let (name, path) = (workspace.record.name.clone(), workspace.place());
        return Ok(Some(Collected { name, path, reason, kept }));
    }
    let tidied = workspace.tidy(trees);
    let Some(ended) = end(workspace)? else { return tidied.map(|()| None) };
    let lock = match tidied.and_then(|()| workspace.try_lock(trees)) {
        Err(Error::Io { .. }) if ended == Reason::Expired => Some(workspace.lock_to_remove(trees)?),
        locked => locked?,
    };
    let Some(lock) = lock else { return Ok(None) };
    // What another command did before this one had the lock counts.
    let Some(reason) = due(trees, workspace)? else { return Ok(None) };
    let (name, path) = (workspace.record.name.clone(), workspace.place());
    // A process may have come since `processes` were looked at.
    let unused = workspace.check_unused(processes).and_then(|()| workspace.check_unused_now());
    let kept = match unused {
        Err(error @ Error::InUse { .. }) => Some(error.to_string()),
        looked => {
            looked?;
            workspace.remove(trees, lock)?;
            None
        }
    };
    Ok(Some(Collected { name, path, reason, kept }))
}

/// What has ended a workspace, whatever it has become.
///
/// # Errors
/// [`Error::NoProc`] if it is the end of a process, and cannot be known.
fn end(workspace: &Workspace) -> Result<Option<Reason>> {
    end_by(workspace, life_of)
}

/// The same with what tells whether a process runs.
fn end_by(workspace: &Workspace, life: impl Fn(i32) -> Result<Life>) -> Result<Option<Reason>> {
    if workspace.record.expires.is_some_and(|expires| expires <= now()) {
        // Whose time is over goes with its changes: that is what the user said.
        return Ok(Some(Reason::Expired));
    }
    let Some((process, start)) = workspace.record.process else { return Ok(None) };
    Ok(match life(process)? {
        Life::Runs(since) if since == start => None,
        // It may be the one, or another that has got its number.
        Life::Hidden => None,
        Life::Runs(_) | Life::Ended => Some(Reason::ProcessEnded),
    })
}

/// Why a workspace may go.
fn due(trees: &dyn Trees, workspace: &Workspace) -> Result<Option<Reason>> {
    let reason = end(workspace)?;
    if reason != Some(Reason::ProcessEnded) {
        return Ok(reason);
    }
    match workspace.check_applied(trees) {
        Err(
            Error::Unapplied { .. }
            | Error::SetAside { .. }
            | Error::Commits { .. }
            | Error::MayHaveCommits { .. }
            | Error::Worktrees { .. },
        ) => Ok(None),
        done => done.map(|()| reason),
    }
}

/// Removes the data about a workspace that is gone.
fn collect_missing(
    trees: &dyn Trees,
    workspace: &mut Workspace,
    collect: Collect,
) -> Result<Option<Collected>> {
    let dir = workspace.dir();
    let lock = match collect.dry_run {
        true if Lock::is_held(&dir) => return Ok(None),
        true => None,
        false => match workspace.try_lock_data() {
            // It is being made or discarded.
            Ok(None) | Err(Error::Gone(_)) => return Ok(None),
            locked => locked?,
        },
    };
    let is_settled = match &lock {
        Some(lock) => workspace.complete_promotion(lock)?,
        None => !workspace.record.promoting,
    };
    if is_settled && workspace.is_at_its_place() {
        // A command has found it since it was looked for.
        return Ok(None);
    }
    let (name, path) = (workspace.record.name.clone(), workspace.place());
    if !is_settled && !collect.missing {
        // It may well be there, under the name of the original.
        let kept = Some(workspace.interrupted().to_string());
        return Ok(Some(Collected { name, path, reason: Reason::Leftover, kept }));
    }
    // What a discard moved and is not the workspace is none of its data.
    let discarded = workspace.is_own(&dir.join(DISCARDED));
    // Made, but never moved to its place.
    let unfinished = dir.join("tree").symlink_metadata().is_ok();
    if !discarded && !unfinished && !collect.missing && workspace.is_copy_at_its_place() {
        let kept = Some(COPY.to_owned());
        return Ok(Some(Collected { name, path, reason: Reason::Leftover, kept }));
    }
    let since = match &lock {
        Some(lock) => workspace.note_missing(lock)?,
        None => workspace.record.missing.unwrap_or(now()),
    };
    let over = collect.missing || now().saturating_sub(since) >= MISSING_KEPT_SECONDS;
    if !discarded && !unfinished && !over {
        return Ok(None);
    }
    if let Some(lock) = lock {
        workspace.keep_doubtful(trees)?;
        workspace.remove_staging(trees, &lock)?;
        workspace.remove_data(trees, lock)?;
    }
    Ok(Some(Collected { name, path, reason: Reason::Leftover, kept: None }))
}

/// Removes what a crash has left of workspaces that were being made or removed.
fn collect_unfinished(trees: &dyn Trees, home: &Home, dry_run: bool, all: &mut Vec<Collected>) -> Result<()> {
    for entry in home.dir().read_dir().at(home.dir())? {
        let entry = entry.at(home.dir())?;
        let (name, path) = (entry.file_name(), entry.path());
        let old = || {
            let age = entry.metadata().ok().and_then(|m| m.modified().ok()?.elapsed().ok());
            age.is_some_and(|age| age.as_secs() > NEW_KEPT_SECONDS)
        };
        let new = name.as_bytes().starts_with(NEW_PREFIX.as_bytes());
        let without_record = is_identifier(&name) && !path.join("record").exists();
        if !(new || without_record) || Lock::is_held(&path) {
            continue;
        }
        // What was discarded is not wanted any more, unless a command removes it, the lock already;
        // the rest may be about to be made. That it is the workspace was looked at before the data
        // got this name.
        let discarded = new && path.join("lock").exists() && path.join(DISCARDED).exists();
        if !discarded && !old() {
            continue;
        }
        let removed = if dry_run { Ok(()) } else { trees.remove_tree(&path) };
        let kept = removed.err().map(|error| error.to_string());
        let name = name.to_string_lossy().into_owned();
        all.push(Collected { name, path, reason: Reason::Leftover, kept });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
