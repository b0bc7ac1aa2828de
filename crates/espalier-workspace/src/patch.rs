//! The changes of a workspace as a patch that `git apply` takes, ignored files and binary content
//! included. Git makes it, of clones of what differs, so that nothing else is looked at.

use crate::entry::{self, Kind};
use crate::error::{AtPath, Error, Result, no_git};
use crate::git_command::git_command;
use crate::pinned::Pinned;
use crate::stage::copy_attributes;
use crate::trees::Trees;
use crate::workspace::{Changed, Difference, Workspace};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;

/// Content as it is, whatever `.gitattributes` say.
const ATTRIBUTES: &str = "* -text -eol -ident -filter -working-tree-encoding !diff\n";

/// The patch.
///
/// # Errors
/// [`Error::Program`] without git; as for [`Trees::clone_tree`].
pub fn patch(trees: &dyn Trees, workspace: &mut Workspace, differences: &[Difference]) -> Result<Vec<u8>> {
    git_diff(trees, workspace, differences, &["--binary", "--full-index"])
}

/// How many lines changed, per file, as text.
///
/// # Errors
/// As for [`patch`].
pub fn statistics(
    trees: &dyn Trees,
    workspace: &mut Workspace,
    differences: &[Difference],
) -> Result<Vec<u8>> {
    git_diff(trees, workspace, differences, &["--stat=100"])
}

fn git_diff(
    trees: &dyn Trees,
    workspace: &mut Workspace,
    differences: &[Difference],
    options: &[&str],
) -> Result<Vec<u8>> {
    let _lock = workspace.lock(trees)?;
    let scratch = workspace.scratch()?;
    let (old, new) = (scratch.join("a"), scratch.join("b"));
    for side in [&old, &new] {
        std::fs::create_dir(side).at(side)?;
    }
    let (base, place) = workspace.open_trees()?;
    for difference in differences {
        let before = match &difference.change {
            Changed::Renamed { from } => from,
            _ => &difference.path,
        };
        copy(trees, &base, before, &old)?;
        copy(trees, &place, &difference.path, &new)?;
    }
    let text = diff_of(&scratch, options);
    trees.remove_tree(&scratch)?;
    text
}

/// What git says about the difference of the directories `a` and `b` in `scratch`, from a
/// repository of its own: its configuration and attributes, and not those of the user's repository,
/// say that content is taken as it is.
fn diff_of(scratch: &Path, options: &[&str]) -> Result<Vec<u8>> {
    let git = |tree: &str, arguments: &[&str]| -> Result<Vec<u8>> {
        let mut command = git_command();
        command.current_dir(scratch).stdin(Stdio::null());
        // Those say how differences look, too.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"GIT_"))
        {
            command.env_remove(name);
        }
        command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
        command.args(["--git-dir=git", &format!("--work-tree={tree}")]);
        command.args(["-c", "core.autocrlf=false", "-c", "core.safecrlf=false", "-c", "core.fileMode=true"]);
        let failed = |what: String| Error::Program { program: format!("git {}", arguments[0]), what };
        let out = command.args(arguments).output().map_err(|error| failed(no_git(&error)))?;
        match out.status.success() {
            true => Ok(out.stdout),
            false => Err(failed(String::from_utf8_lossy(&out.stderr).trim().to_owned())),
        }
    };
    git("a", &["init", "-q"])?;
    let info = scratch.join("git/info");
    std::fs::create_dir_all(&info).at(&info)?;
    let attributes = info.join("attributes");
    std::fs::write(&attributes, ATTRIBUTES).at(&attributes)?;
    let mut names = Vec::new();
    for tree in ["a", "b"] {
        git(tree, &["read-tree", "--empty"])?;
        git(tree, &["add", "-A", "-f", "."])?;
        names.push(String::from_utf8_lossy(git(tree, &["write-tree"])?.trim_ascii()).into_owned());
    }
    let mut arguments = vec!["diff", "--no-color", "--no-ext-diff", "--no-textconv", "-M"];
    arguments.extend(options.iter().chain(&[&*names[0], &names[1]]));
    git("b", &arguments)
}

/// Puts a clone of a file or link where git looks for it. A patch has no directories and devices.
fn copy(trees: &dyn Trees, top: &Arc<Pinned>, path: &Path, side: &Path) -> Result<()> {
    let Some(found) = entry::read(top, path)? else { return Ok(()) };
    let to: PathBuf = side.join(path);
    if !matches!(found.kind, Kind::File | Kind::Link) || to.symlink_metadata().is_ok() {
        return Ok(());
    }
    if let Some(parent) = to.parent() {
        std::fs::create_dir_all(parent).at(parent)?;
    }
    if found.kind == Kind::File {
        return found.with_path(|path| trees.clone_tree(path, &to));
    }
    std::os::unix::fs::symlink(found.link_target()?, &to).at(&to)?;
    copy_attributes(&found, &to)
}
