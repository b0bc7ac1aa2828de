//! How git is run: in the repository that is meant, whatever the environment says.
//!
//! Git takes the place of the repository, of its index and its objects, and settings, from
//! variables, before it looks at the directory it is run in. Hooks and `git rebase --exec` set
//! them, so a question about one repository would be answered by another.

use crate::error::{Error, Result, no_git};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// What `git rev-parse --local-env-vars` names, in any version.
const LOCAL_VARIABLES: [&str; 18] = [
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_ATTR_SOURCE",
    "GIT_COMMON_DIR",
    "GIT_CONFIG",
    "GIT_CONFIG_COUNT",
    "GIT_CONFIG_PARAMETERS",
    "GIT_DIR",
    "GIT_GRAFT_FILE",
    "GIT_IMPLICIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_INTERNAL_SUPER_PREFIX",
    "GIT_NAMESPACE",
    "GIT_NO_REPLACE_OBJECTS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_PREFIX",
    "GIT_REPLACE_REF_BASE",
    "GIT_SHALLOW_FILE",
    "GIT_WORK_TREE",
];
/// Settings by which a repository has no program run while it is asked: none of its hooks, nothing
/// that fetches, no pager.
const NO_PROGRAMS: [&str; 7] = [
    "--no-pager",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "-c",
    "protocol.allow=never",
];

/// Git, which goes by the directory that it is run in.
pub(crate) fn git_command() -> Command {
    let mut command = Command::new("git");
    for name in LOCAL_VARIABLES {
        command.env_remove(name);
    }
    command
}

/// What git says about the repository at `dir`, be that a work tree or git's own directory; none
/// further up is asked. A repository of another user is refused by git, as its settings would
/// count.
///
/// # Errors
/// [`Error::Program`].
pub(crate) fn ask_git(dir: &Path, words: &[&str], input: &str) -> Result<String> {
    let failed =
        |what: String| Error::Program { program: format!("git {} in {}", words[0], dir.display()), what };
    let mut command = git_command();
    command.args(NO_PROGRAMS).arg("-C").arg(dir).args(words);
    command.env("GIT_CEILING_DIRECTORIES", dir.parent().unwrap_or(dir));
    // A commit that is not there is not there, although another place may have it.
    command.env("GIT_NO_LAZY_FETCH", "1");
    // What is said goes into messages, and is looked at.
    command.env("LC_ALL", "C");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(no_git(&error)))?;
    let stdin = child.stdin.take();
    // Git answers before it has read everything.
    let answered = std::thread::scope(|scope| {
        let write = || stdin.map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
        match std::thread::Builder::new().spawn_scoped(scope, write) {
            Ok(writer) => {
                let out = child.wait_with_output();
                Ok((writer.join().unwrap_or(Ok(())), out))
            }
            // The work was dropped, and git's input with it; git must not answer without that.
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    });
    let no_thread = |error: std::io::Error| failed(format!("no thread can write its input: {error}"));
    let (written, out) = answered.map_err(no_thread)?;
    let out = out.map_err(|error| failed(error.to_string()))?;
    if !out.status.success() {
        // The lines that follow the first say how to have git trust the repository all the same.
        let said = String::from_utf8_lossy(&out.stderr);
        return Err(failed(said.trim().lines().next().unwrap_or_default().to_owned()));
    }
    written.map_err(|error| failed(error.to_string()))?;
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

#[cfg(test)]
mod tests;
