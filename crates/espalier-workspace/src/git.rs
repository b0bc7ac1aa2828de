//! What a clone of a git work tree needs so that it is a work tree of its own, and so that the
//! first `git status` in it reads no file.
//!
//! Git's index has times, sizes, owners and inode numbers of files. In a clone the numbers differ.
//! With `core.checkStat=minimal` times and sizes decide, and those are kept. With the
//! `core.fsmonitor` hook git does not even ask for them ([`crate::git_warm`]). Only files are
//! changed, in the clone's own repository; no program is run.

use crate::error::{AtPath, Error, Result};
use crate::git_index::{self, IndexEnd};
use std::io::ErrorKind;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Makes git compare times and sizes only. The last setting in the file counts.
const COMPARE_LESS: &str = "[core]\n\tcheckStat = minimal\n";
/// What a `.git` file begins with.
const LINK: &str = "gitdir: ";

/// Something that was done for git.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitNote {
    /// The index of this repository stays valid.
    KeptWarm(PathBuf),
    /// Git asks the mount what changed, in the clone: `hook_setting`.
    AsksMount,
    /// The same in the original, where git has looked at everything once.
    WarmedOriginal(PathBuf),
    /// The clone is a worktree of its own, of the repository that the original belongs to.
    OwnWorktree(PathBuf),
    /// A link to the original's repository leads to the clone's.
    Relinked(PathBuf),
    /// The repository knew other worktrees, which the clone does not.
    ForgotWorktrees,
}

impl GitNote {
    /// The words for it.
    pub fn words(&self) -> String {
        match self {
            Self::KeptWarm(repository) => {
                format!(
                    "set core.checkStat=minimal in {}, so that git status reads no file",
                    repository.display()
                )
            }
            Self::AsksMount => {
                "set core.fsmonitor, core.fsmonitorHookVersion and core.untrackedCache in .git, \
                so that git status looks only at what changed"
                    .into()
            }
            Self::WarmedOriginal(original) => format!(
                "set core.fsmonitor, core.fsmonitorHookVersion and core.untrackedCache in {}, and had git look at \
                 everything there once; later workspaces begin with that",
                original.display()
            ),
            Self::OwnWorktree(at) => {
                format!(
                    "made {}, with a detached HEAD, because the original is a linked worktree",
                    at.display()
                )
            }
            Self::Relinked(file) => format!("made {} lead to the workspace's own repository", file.display()),
            Self::ForgotWorktrees => "forgot the worktrees that the original's repository has".into(),
        }
    }
}

/// Prepares the clone `tree` of `original`, which will be moved to `place`. `index`: the end of the
/// original's index, if it is known.
///
/// # Errors
/// Of the system.
pub(crate) fn prepare(
    tree: &Path,
    original: &Path,
    place: &Path,
    hook: Option<&str>,
    index: Option<IndexEnd>,
) -> Result<Vec<GitNote>> {
    let mut notes = Vec::new();
    let git = tree.join(".git");
    let Ok(found) = git.symlink_metadata() else { return Ok(notes) };
    if found.is_dir() {
        keep_warm(&git, Path::new(".git"), &mut notes)?;
        if let Some(hook) = hook
            && ask_mount(&git, hook, &mut notes)?
        {
            relocate_index(&git, (original, place), index)?;
        }
        let worktrees = git.join("worktrees");
        if worktrees.is_dir() {
            std::fs::remove_dir_all(&worktrees).at(&worktrees)?;
            notes.push(GitNote::ForgotWorktrees);
        }
        prepare_submodules(tree, original, place, &mut notes)?;
    } else if found.is_file() {
        prepare_worktree(&git, original, place, &mut notes)?;
    }
    Ok(notes)
}

/// Sets what keeps the index of a repository valid.
fn keep_warm(repository: &Path, shown: &Path, notes: &mut Vec<GitNote>) -> Result<()> {
    if add_setting(repository, COMPARE_LESS)? {
        notes.push(GitNote::KeptWarm(shown.to_owned()));
    }
    Ok(())
}

/// Makes git ask the mount what changed in the clone, by the program `hook`; false if the
/// repository has no configuration.
fn ask_mount(git: &Path, hook: &str, notes: &mut Vec<GitNote>) -> Result<bool> {
    let is_set = add_setting(git, &hook_setting(hook))?;
    notes.extend(is_set.then_some(GitNote::AsksMount));
    Ok(is_set)
}

/// Makes git's cache of untracked files one of the clone's place.
fn relocate_index(git: &Path, (from, to): (&Path, &Path), known: Option<IndexEnd>) -> Result<()> {
    let index = git.join("index");
    if index.symlink_metadata().is_ok_and(|found| found.is_file()) {
        git_index::relocate(&index, from, to, known)?;
    }
    Ok(())
}

/// The setting of the hook and of what goes with it.
pub(crate) fn hook_setting(hook: &str) -> String {
    let hook = hook.replace('\\', "\\\\").replace('"', "\\\"");
    format!("[core]\n\tfsmonitor = \"{hook}\"\n\tfsmonitorHookVersion = 2\n\tuntrackedCache = true\n")
}

/// Appends a setting to the configuration of a repository, unless it is there; false if the
/// repository has none.
pub(crate) fn add_setting(repository: &Path, setting: &str) -> Result<bool> {
    let config = repository.join("config");
    let text = match std::fs::read(&config) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        read => read.at(&config)?,
    };
    if text.windows(setting.len()).any(|part| part == setting.as_bytes()) {
        return Ok(true);
    }
    let mut out = std::fs::File::options().append(true).open(&config).at(&config)?;
    let newline = if text.last().is_none_or(|last| *last == b'\n') { "" } else { "\n" };
    out.write_all([newline, setting].concat().as_bytes()).at(&config)?;
    Ok(true)
}

/// The repositories of submodules, which lie in the repository, and the `.git` files that lead to
/// them.
fn prepare_submodules(tree: &Path, original: &Path, place: &Path, notes: &mut Vec<GitNote>) -> Result<()> {
    let mut waiting = vec![PathBuf::from(".git/modules")];
    while let Some(below) = waiting.pop() {
        let Ok(entries) = tree.join(&below).read_dir() else { continue };
        for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let repository = below.join(entry.file_name());
            if !entry.path().join("HEAD").is_file() {
                // Names of submodules may contain slashes.
                waiting.push(repository);
                continue;
            }
            keep_warm(&entry.path(), &repository, notes)?;
            relink_submodule(tree, &repository, original, place, notes)?;
            waiting.push(repository.join("modules"));
        }
    }
    Ok(())
}

/// Older versions of git write absolute paths, which would lead into the original.
fn relink_submodule(
    tree: &Path,
    repository: &Path,
    original: &Path,
    place: &Path,
    notes: &mut Vec<GitNote>,
) -> Result<()> {
    let config = tree.join(repository).join("config");
    let text = std::fs::read_to_string(&config).unwrap_or_default();
    let worktree = text.lines().find_map(|line| line.trim().strip_prefix("worktree = ").map(PathBuf::from));
    let Some(worktree) = worktree else { return Ok(()) };
    let below = match worktree.strip_prefix(original) {
        Ok(below) => {
            let new = place.join(below);
            let text = text.replace(&*worktree.to_string_lossy(), &new.to_string_lossy());
            std::fs::write(&config, text).at(&config)?;
            below.to_owned()
        }
        Err(_) => normal(&repository.join(&worktree)),
    };
    let link = tree.join(&below).join(".git");
    let led = std::fs::read_to_string(&link).unwrap_or_default();
    if let Some(to) = led.trim_end().strip_prefix(LINK)
        && let Ok(inside) = Path::new(to).strip_prefix(original)
    {
        std::fs::write(&link, format!("{LINK}{}\n", place.join(inside).display())).at(&link)?;
        notes.push(GitNote::Relinked(below.join(".git")));
    }
    Ok(())
}

/// A relative path without `..` behind a name.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

/// The original is a linked worktree, or a submodule: its `.git` file leads to a directory with the
/// index and the head, which two trees must not share.
fn prepare_worktree(git: &Path, original: &Path, place: &Path, notes: &mut Vec<GitNote>) -> Result<()> {
    let text = std::fs::read_to_string(git).at(git)?;
    let Some(led) = text.trim_end().strip_prefix(LINK) else { return Ok(()) };
    let old = original.join(led);
    let (Some(worktrees), true) = (old.parent(), old.join("commondir").is_file()) else {
        return Err(Error::Unsuitable(format!(
            "{}: it is a submodule, whose repository lies outside; make a workspace of the repository around it, \
             or use --no-git",
            original.display()
        )));
    };
    let name = place.file_name().unwrap_or_default().to_string_lossy();
    let new = (0u32..)
        .map(|number| worktrees.join(if number == 0 { name.to_string() } else { format!("{name}{number}") }))
        .find(|path| path.symlink_metadata().is_err())
        .unwrap_or_default();
    std::fs::create_dir(&new).at(&new)?;
    for file in ["index", "commondir", "ORIG_HEAD"] {
        match std::fs::copy(old.join(file), new.join(file)) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            done => done.map(drop).at(&old.join(file))?,
        }
    }
    let head = new.join("HEAD");
    std::fs::write(&head, head_commit(&old)?).at(&head)?;
    let back = new.join("gitdir");
    std::fs::write(&back, format!("{}\n", place.join(".git").display())).at(&back)?;
    std::fs::write(git, format!("{LINK}{}\n", new.display())).at(git)?;
    notes.push(GitNote::OwnWorktree(new));
    Ok(())
}

/// The commit that a worktree is at, as a detached head; as it is if that cannot be told.
fn head_commit(worktree: &Path) -> Result<String> {
    let file = worktree.join("HEAD");
    let head = std::fs::read_to_string(&file).at(&file)?;
    let Some(reference) = head.trim_end().strip_prefix("ref: ") else { return Ok(head) };
    let common = worktree.join("commondir");
    let common = worktree.join(std::fs::read_to_string(&common).at(&common)?.trim_end());
    if let Ok(commit) = std::fs::read_to_string(common.join(reference)) {
        return Ok(commit);
    }
    let packed = std::fs::read_to_string(common.join("packed-refs")).unwrap_or_default();
    let found = packed.lines().find_map(|line| line.strip_suffix(reference)?.strip_suffix(' '));
    Ok(found.map_or(head.clone(), |commit| format!("{commit}\n")))
}
