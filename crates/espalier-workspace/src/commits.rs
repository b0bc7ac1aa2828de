//! Commits that a workspace alone has: made in it, fetched neither by its original nor pushed to
//! where a remote-tracking branch shows them.

use crate::error::{Error, Result, no_git};
use crate::trees::Trees;
use crate::workspace::Workspace;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Commits that are looked for; there may be more.
const LIMIT: usize = 100;
/// What of a repository tells that commits were made.
const TRACES: [&str; 4] = [".git/HEAD", ".git/refs", ".git/packed-refs", ".git/logs"];

impl Workspace {
    /// The commits that would be gone with the workspace, newest first, each with its subject.
    ///
    /// # Errors
    /// [`Error::Program`] if commits may have been made, and git cannot tell which; as for
    /// [`Trees::differences`].
    pub fn lonely_commits(&self, trees: &dyn Trees) -> Result<Vec<String>> {
        let place = self.place();
        // Worktrees keep their commits in the repository that they belong to.
        if !place.join(".git").is_dir() || !self.may_have_commits(trees)? {
            return Ok(Vec::new());
        }
        let original = self.original();
        let mut known = String::new();
        if original.join(".git").exists() {
            known = git(&original, &["rev-parse", "--all", "HEAD"], "")?;
        }
        let without: String =
            known.lines().filter(|line| is_hash(line)).map(|hash| format!("^{hash}\n")).collect();
        let limit = format!("--max-count={LIMIT}");
        let list =
            ["rev-list", "--ignore-missing", &limit, "--oneline", "--no-abbrev-commit", "--all", "HEAD"];
        let ours = git(&place, &[&list[..], &["--not", "--remotes", "--not", "--stdin"]].concat(), &without)?;
        if ours.is_empty() || known.is_empty() {
            return Ok(ours.lines().map(str::to_owned).collect());
        }
        // What the original has, and no branch there leads to, is there all the same.
        let hashes: String =
            ours.lines().filter_map(|line| Some(format!("{}\n", line.split(' ').next()?))).collect();
        let there = git(&original, &["cat-file", "--batch-check"], &hashes)?;
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

fn is_hash(text: &str) -> bool {
    text.len() >= 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// What git says in a directory.
fn git(dir: &Path, words: &[&str], input: &str) -> Result<String> {
    let failed =
        |what: String| Error::Program { program: format!("git {} in {}", words[0], dir.display()), what };
    let mut command = Command::new("git");
    // The directories are the caller's choice, as the owner of the workspace.
    command.args(["-c", "safe.directory=*", "-C"]).arg(dir).args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(no_git(&error)))?;
    let stdin = child.stdin.take();
    // Git says why it does not read on; input and output are too short to fill both pipes at once.
    let written = stdin.map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let out = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    // A repository without commits has no HEAD.
    match out.status.success() || (out.stdout.is_empty() && words.contains(&"HEAD") && is_unborn(dir)) {
        true => {
            written.map_err(|error| failed(error.to_string()))?;
            Ok(String::from_utf8_lossy(&out.stdout).into_owned())
        }
        false => Err(failed(String::from_utf8_lossy(&out.stderr).trim().to_owned())),
    }
}

/// True if a repository has no commit.
fn is_unborn(dir: &Path) -> bool {
    let mut command = Command::new("git");
    command.args(["-c", "safe.directory=*", "-C"]).arg(dir).args(["rev-parse", "-q", "--verify", "HEAD"]);
    let asked = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.code() == Some(1))
}
