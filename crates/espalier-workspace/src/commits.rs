//! Commits that a workspace alone has: made in it, fetched neither by its original nor pushed to
//! where a remote-tracking branch shows them.

use crate::error::{Error, Result};
use crate::git_command::ask_git;
use crate::linked::Linked;
use crate::repositories::{Repositories, is_repository};
use crate::trees::Trees;
use crate::workspace::Workspace;
use std::path::{Path, PathBuf};

/// Commits that are told; there may be more.
const LIMIT: usize = 100;

/// The commits of one repository that would be gone with a workspace.
pub(crate) struct Lonely {
    /// Newest first, each with its subject.
    pub(crate) commits: Vec<String>,
    /// The repository.
    pub(crate) place: PathBuf,
    /// The original's.
    pub(crate) original: PathBuf,
}

impl Workspace {
    /// The commits that would be gone with the workspace, of the first repository that has some in
    /// `place`: the workspace, or one of its checkpoints.
    ///
    /// # Errors
    /// [`Error::MayHaveCommits`] if commits may have been made, and it cannot be told which; as for
    /// [`Trees::differences`].
    pub(crate) fn lonely_commits(&self, trees: &dyn Trees, place: &Path) -> Result<Option<Lonely>> {
        let repositories = self.changed_repositories(trees, place)?;
        let own = repositories.own.iter().map(|repository| (repository, false));
        for (repository, is_linked) in own.chain(repositories.linked.iter().map(|dir| (dir, true))) {
            // The work tree is what the user knows, if it lies around.
            let below = match repository.file_name() {
                Some(name) if name == ".git" => repository.parent().unwrap_or(repository),
                _ => repository,
            };
            let (place, original) = (below_of(place, below), below_of(&self.original(), below));
            let commits = match is_linked {
                true => linked_commits(&place),
                false => own_commits(&place, &original),
            };
            let commits = commits.map_err(|error| match error {
                // Not installed, or the repository is damaged or belongs to another user.
                Error::Program { program, what } => self.untold(format!("{program}: {what}")),
                error => error,
            })?;
            if !commits.is_empty() {
                return Ok(Some(Lonely { commits, place, original }));
            }
        }
        match repositories.jj.first() {
            Some(jj) => Err(self.untold(format!("jj changed {}, which jj alone reads", jj.display()))),
            None => Ok(None),
        }
    }

    fn untold(&self, why: String) -> Error {
        Error::MayHaveCommits { name: self.record.name.clone(), why }
    }

    /// The repositories that are not as they were.
    fn changed_repositories<'a>(&self, trees: &dyn Trees, place: &'a Path) -> Result<Repositories<'a>> {
        let mut found = Repositories::of(place);
        // The base follows what is applied, with commits that are nowhere else.
        let before = match self.record.applied {
            None => self.base(),
            Some(_) => self.original(),
        };
        match before.is_dir() {
            true => trees.differences(&before, place, &mut |_, path| found.add(path))?,
            // The original is gone, so anything may be nowhere else.
            false => found.add_all()?,
        }
        Ok(found)
    }
}

/// A directory below another, or that itself.
fn below_of(top: &Path, below: &Path) -> PathBuf {
    // Without a slash at the end.
    if below.as_os_str().is_empty() { top.to_owned() } else { top.join(below) }
}

/// What a repository has that neither that of the original nor a remote-tracking branch has.
fn own_commits(place: &Path, original: &Path) -> Result<Vec<String>> {
    let mut known = String::new();
    if original.join(".git").exists() || is_repository(original) {
        known = ask_git(original, &["rev-list", "--no-walk", "--ignore-missing", "--all"], "")?;
    }
    // What the original has is left out of all of them: an older one may be the only lonely one.
    let limit = known.is_empty().then_some(LIMIT);
    let ours = list(place, &["--all", "--not", "--remotes"], known.lines(), limit)?;
    if ours.is_empty() || known.is_empty() {
        return Ok(ours);
    }
    // What the original has, and no branch there leads to, is there all the same.
    let hashes: String =
        ours.iter().filter_map(|line| Some(format!("{}\n", line.split(' ').next()?))).collect();
    let there = ask_git(original, &["cat-file", "--batch-check"], &hashes)?;
    let is_missing = |line: &str| line.ends_with(" missing");
    let found = ours.into_iter().zip(there.lines()).filter(|(_, there)| is_missing(there));
    Ok(found.map(|(commit, _)| commit).take(LIMIT).collect())
}

/// What only the head of a linked worktree leads to: branches stay in the repository.
fn linked_commits(place: &Path) -> Result<Vec<String>> {
    let heads = Linked::of(place).map(|linked| linked.other_heads()).unwrap_or_default();
    let which = ["--single-worktree", "--all", "--not", "--glob=*"];
    list(place, &which, heads.iter().map(String::as_str), Some(LIMIT))
}

/// Commits with their subjects, without those that `without` lead to, up to a limit.
fn list<'a>(
    place: &Path,
    which: &[&str],
    without: impl Iterator<Item = &'a str>,
    limit: Option<usize>,
) -> Result<Vec<String>> {
    let limit = limit.map(|limit| format!("--max-count={limit}"));
    let words = ["rev-list", "--ignore-missing", "--oneline", "--no-abbrev-commit"];
    let words: Vec<&str> = words.into_iter().chain(limit.as_deref()).collect();
    let without: String = without.map(|hash| format!("^{hash}\n")).collect();
    let said = ask_git(place, &[&words[..], which, &["--not", "--stdin"]].concat(), &without)?;
    Ok(said.lines().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests;
