//! Commits that a workspace alone has: made in it, fetched neither by its original nor pushed to
//! where a remote-tracking branch shows them.

use crate::error::{Error, Result};
use crate::git_command::ask_git;
use crate::trees::Trees;
use crate::workspace::Workspace;

/// Commits that are looked for; there may be more.
const LIMIT: usize = 100;
/// What of a repository tells that commits were made.
const TRACES: [&str; 4] = [".git/HEAD", ".git/refs", ".git/packed-refs", ".git/logs"];

impl Workspace {
    /// The commits that would be gone with the workspace, newest first, each with its subject.
    ///
    /// # Errors
    /// [`Error::MayHaveCommits`] if commits may have been made, and git does not tell which; as for
    /// [`Trees::differences`].
    pub fn lonely_commits(&self, trees: &dyn Trees) -> Result<Vec<String>> {
        // Worktrees keep their commits in the repository that they belong to.
        if !self.place().join(".git").is_dir() || !self.may_have_commits(trees)? {
            return Ok(Vec::new());
        }
        self.ask_commits().map_err(|error| match error {
            // Not installed, or the repository is damaged or belongs to another user.
            Error::Program { program, what } => {
                let name = self.record.name.clone();
                Error::MayHaveCommits { name, why: format!("{program}: {what}") }
            }
            error => error,
        })
    }

    fn ask_commits(&self) -> Result<Vec<String>> {
        let (place, original) = (self.place(), self.original());
        let mut known = String::new();
        if original.join(".git").exists() {
            known = ask_git(&original, &["rev-list", "--no-walk", "--ignore-missing", "--all"], "")?;
        }
        let without: String = known.lines().map(|hash| format!("^{hash}\n")).collect();
        let limit = format!("--max-count={LIMIT}");
        let list = ["rev-list", "--ignore-missing", &limit, "--oneline", "--no-abbrev-commit", "--all"];
        let ours = [&list[..], &["--not", "--remotes", "--not", "--stdin"]].concat();
        let ours = ask_git(&place, &ours, &without)?;
        if ours.is_empty() || known.is_empty() {
            return Ok(ours.lines().map(str::to_owned).collect());
        }
        // What the original has, and no branch there leads to, is there all the same.
        let hashes: String =
            ours.lines().filter_map(|line| Some(format!("{}\n", line.split(' ').next()?))).collect();
        let there = ask_git(&original, &["cat-file", "--batch-check"], &hashes)?;
        let is_missing = |line: &str| line.ends_with(" missing");
        let found = ours.lines().zip(there.lines()).filter(|(_, there)| is_missing(there));
        Ok(found.map(|(commit, _)| commit.to_owned()).collect())
    }

    /// True unless nothing in the workspace's repository shows that commits were made.
    fn may_have_commits(&self, trees: &dyn Trees) -> Result<bool> {
        // The base follows what is applied, with commits that are nowhere else.
        if self.record.applied.is_some() {
            return Ok(true);
        }
        let mut found = false;
        trees.differences(&self.base(), &self.place(), &mut |_, path| {
            found |= TRACES.iter().any(|trace| path.starts_with(trace.as_bytes()));
        })?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
