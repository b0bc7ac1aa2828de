//! What a clone of a git work tree needs so that it is a work tree of its own, and so that the
//! first `git status` in it reads no file.
//!
//! Git's index has times, sizes, owners and inode numbers of files. In a clone the numbers differ.
//! With `core.checkStat=minimal` times and sizes decide, and those are kept. With the
//! `core.fsmonitor` hook git does not even ask for them ([`crate::git_warm`]). Only files are
//! changed, in the clone's own repository; no program is run. What is a symbolic link is left alone
//! ([`crate::git_files`]).

use crate::error::{AtPath, Error, Result};
use crate::git_files::{GitDir, effective_user, is_commit, normal};
use crate::git_index::{self, IndexEnd};
use crate::linked::{LINK, Registration};
use rustix::fs::{Mode, OFlags};
use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Makes git compare times and sizes only. The last setting in the file counts.
const COMPARE_LESS: &str = "[core]\n\tcheckStat = minimal\n";

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

/// What was done for git in a clone.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    pub(crate) notes: Vec<GitNote>,
    /// Where a repository outside has the clone registered as a linked worktree.
    pub(crate) registration: Option<Registration>,
}

/// Prepares the clone `tree` of `original`, which will be moved to `place`. `index`: the end of the
/// original's index, if it is known.
///
/// # Errors
/// [`Error::Unsuitable`] if the original is a submodule, or a linked worktree that git has
/// registered where another user writes; of the system.
pub(crate) fn prepare(
    tree: &Path,
    original: &Path,
    place: &Path,
    hook: Option<&str>,
    index: Option<IndexEnd>,
) -> Result<Prepared> {
    let mut done = Prepared::default();
    // No other process has seen the clone yet; so links count here, and not to which user files
    // belong.
    let Some(tree) = GitDir::open(tree, None)? else { return Ok(done) };
    if let Some(git) = tree.below(Path::new(".git"))? {
        keep_warm(&git, Path::new(".git"), &mut done.notes)?;
        if let Some(hook) = hook
            && ask_mount(&git, hook, &mut done.notes)?
        {
            relocate_index(&git, (original, place), index)?;
        }
        if git.below(Path::new("worktrees"))?.is_some() {
            git.remove(OsStr::new("worktrees"))?;
            done.notes.push(GitNote::ForgotWorktrees);
        }
        prepare_submodules(&tree, original, place, &mut done.notes)?;
    } else if let Some(link) = tree.text(".git")? {
        prepare_worktree(&tree, &link, (original, place), &mut done)?;
    }
    Ok(done)
}

/// Sets what keeps the index of a repository valid.
fn keep_warm(repository: &GitDir, shown: &Path, notes: &mut Vec<GitNote>) -> Result<()> {
    if add_setting(repository, COMPARE_LESS)? {
        notes.push(GitNote::KeptWarm(shown.to_owned()));
    }
    Ok(())
}

/// Makes git ask the mount what changed in the clone, by the program `hook`; false if the
/// repository has no configuration.
fn ask_mount(git: &GitDir, hook: &str, notes: &mut Vec<GitNote>) -> Result<bool> {
    let is_set = add_setting(git, &hook_setting(hook))?;
    notes.extend(is_set.then_some(GitNote::AsksMount));
    Ok(is_set)
}

/// Makes git's cache of untracked files one of the clone's place.
fn relocate_index(git: &GitDir, (from, to): (&Path, &Path), known: Option<IndexEnd>) -> Result<()> {
    if let Some(index) = git.file(OsStr::new("index"), OFlags::RDWR)? {
        git_index::relocate(&index, &git.path().join("index"), (from, to), known)?;
    }
    Ok(())
}

/// The setting of the hook and of what goes with it.
pub(crate) fn hook_setting(hook: &str) -> String {
    let hook = hook.replace('\\', "\\\\").replace('"', "\\\"");
    format!("[core]\n\tfsmonitor = \"{hook}\"\n\tfsmonitorHookVersion = 2\n\tuntrackedCache = true\n")
}

/// Appends a setting to the configuration of a repository, unless it is there; false if the
/// repository has none that is an ordinary file.
pub(crate) fn add_setting(repository: &GitDir, setting: &str) -> Result<bool> {
    let Some(text) = repository.read("config")? else { return Ok(false) };
    if text.windows(setting.len()).any(|part| part == setting.as_bytes()) {
        return Ok(true);
    }
    let Some(mut out) = repository.file(OsStr::new("config"), OFlags::WRONLY | OFlags::APPEND)? else {
        return Ok(false);
    };
    let newline = if text.last().is_none_or(|last| *last == b'\n') { "" } else { "\n" };
    out.write_all([newline, setting].concat().as_bytes()).at(&repository.path().join("config"))?;
    Ok(true)
}

/// The repositories of submodules, which lie in the repository, and the `.git` files that lead to
/// them.
fn prepare_submodules(tree: &GitDir, original: &Path, place: &Path, notes: &mut Vec<GitNote>) -> Result<()> {
    let mut waiting = vec![PathBuf::from(".git/modules")];
    while let Some(below) = waiting.pop() {
        let Some(dir) = tree.below(&below)? else { continue };
        for name in dir.directories()? {
            let path = below.join(&name);
            let Some(repository) = dir.below(Path::new(&name))? else { continue };
            if repository.file(OsStr::new("HEAD"), OFlags::RDONLY)?.is_none() {
                // Names of submodules may contain slashes.
                waiting.push(path);
                continue;
            }
            keep_warm(&repository, &path, notes)?;
            relink_submodule(tree, (&repository, &path), (original, place), notes)?;
            waiting.push(path.join("modules"));
        }
    }
    Ok(())
}

/// Older versions of git write absolute paths, which would lead into the original.
fn relink_submodule(
    tree: &GitDir,
    (repository, path): (&GitDir, &Path),
    (original, place): (&Path, &Path),
    notes: &mut Vec<GitNote>,
) -> Result<()> {
    let text = repository.read("config")?.and_then(|text| String::from_utf8(text).ok()).unwrap_or_default();
    let worktree = text.lines().find_map(|line| line.trim().strip_prefix("worktree = ").map(PathBuf::from));
    let Some(worktree) = worktree else { return Ok(()) };
    let below = match worktree.strip_prefix(original) {
        Ok(below) => {
            let new = place.join(below);
            let text = text.replace(&*worktree.to_string_lossy(), &new.to_string_lossy());
            repository.rewrite(OsStr::new("config"), text.as_bytes())?;
            below.to_owned()
        }
        Err(_) => normal(&path.join(&worktree)),
    };
    let Some(dir) = tree.below(&below)? else { return Ok(()) };
    let link = dir.text(".git")?.unwrap_or_default();
    if let Some(to) = link.strip_prefix(LINK)
        && let Ok(inside) = Path::new(to).strip_prefix(original)
    {
        let link = format!("{LINK}{}\n", place.join(inside).display());
        dir.rewrite(OsStr::new(".git"), link.as_bytes())?;
        notes.push(GitNote::Relinked(below.join(".git")));
    }
    Ok(())
}

/// The original is a linked worktree, or a submodule: its `.git` file leads to a directory with the
/// index and the head, which two trees must not share.
fn prepare_worktree(
    tree: &GitDir,
    link: &str,
    (original, place): (&Path, &Path),
    done: &mut Prepared,
) -> Result<()> {
    let Some(led) = link.strip_prefix(LINK) else { return Ok(()) };
    let old = Registered::of(original, &original.join(led))?;
    let (new, registration) = old.register(place)?;
    let made = old.fill(&new, place).and_then(|()| {
        let link = format!("{LINK}{}\n", new.path().display());
        tree.rewrite(OsStr::new(".git"), link.as_bytes())
    });
    if let Err(error) = made {
        // The error that matters is the first; git forgets what leads nowhere.
        let _ = registration.forget();
        return Err(error);
    }
    done.notes.push(GitNote::OwnWorktree(new.path().to_owned()));
    done.registration = Some(registration);
    Ok(())
}

/// Where git has a linked worktree registered. All of it belongs to the user that the worktree
/// belongs to; only what several users of a repository share may belong to others, and not if root
/// acts, which may read and write everything.
struct Registered {
    dir: GitDir,
    worktrees: GitDir,
    common: GitDir,
}

impl Registered {
    fn of(original: &Path, path: &Path) -> Result<Self> {
        let unfit = |why: &str| Error::Unsuitable(format!("{}: {why}, or use --no-git", original.display()));
        let foreign = || {
            unfit(&format!(
                "git has it registered in {}, where symbolic links or files of another user are; \
             let the owner make the workspace",
                path.display()
            ))
        };
        let owner = GitDir::tree(original)?.and_then(|tree| tree.owner());
        let dir = GitDir::open(path, owner)?.filter(|_| owner.is_some()).ok_or_else(foreign)?;
        let Some(common) = dir.text("commondir")? else {
            return Err(unfit(
                "it is a submodule, whose repository lies outside; make a workspace of the repository around it",
            ));
        };
        let around = |dir: &GitDir| -> Result<Option<GitDir>> {
            match effective_user() {
                0 => dir.around(),
                _ => dir.clone_of_any()?.around(),
            }
        };
        let worktrees = around(&dir)?.ok_or_else(foreign)?;
        let above = around(&worktrees)?.filter(|above| above.is_at(&path.join(common)));
        let common = above.ok_or_else(foreign)?;
        Ok(Self { dir, worktrees, common })
    }

    /// Makes a directory beside it, for the worktree at `place`.
    fn register(&self, place: &Path) -> Result<(GitDir, Registration)> {
        let name = place.file_name().unwrap_or_default();
        for number in 0u32.. {
            let mut free = name.to_owned();
            if number > 0 {
                free.push(number.to_string());
            }
            if let Some(made) = self.worktrees.make_directory(&free)? {
                let registration = Registration::in_dir(&made)?;
                return Ok((made, registration));
            }
        }
        Err(Error::Exists(self.worktrees.path().join(name)))
    }

    /// Writes what git keeps of a worktree: as of this one, with a detached head.
    fn fill(&self, new: &GitDir, place: &Path) -> Result<()> {
        for name in ["index", "commondir", "ORIG_HEAD"].map(OsStr::new) {
            let Some(mut old) = self.dir.file(name, OFlags::RDONLY)? else {
                // Without an index everything would count as removed.
                let is_there = self.dir.path().join(name).symlink_metadata().is_ok();
                if is_there && name == "index" {
                    return Err(Error::Unsuitable(format!(
                        "{}: it is a symbolic link or belongs to another user (after sudo git, say); let the owner \
                         of the working tree have it, or use --no-git",
                        self.dir.path().join(name).display()
                    )));
                }
                continue;
            };
            let mode = Mode::from_raw_mode(0o666);
            std::io::copy(&mut old, &mut new.make_file(name, mode)?).at(&new.path().join(name))?;
        }
        new.write_new(OsStr::new("HEAD"), self.head_commit()?.as_bytes())?;
        let back = format!("{}\n", place.join(".git").display());
        new.write_new(OsStr::new("gitdir"), back.as_bytes())
    }

    /// The commit that the worktree is at, as a detached head; as it is if that cannot be told.
    fn head_commit(&self) -> Result<String> {
        let head = self.dir.text("HEAD")?.ok_or_else(|| {
            Error::Unsuitable(format!(
                "{}: there is no file HEAD of git; use --no-git",
                self.dir.path().display()
            ))
        })?;
        let reference = head.strip_prefix("ref: ").filter(|name| name.starts_with("refs/"));
        let Some(reference) = reference else { return Ok(format!("{head}\n")) };
        if let Some(commit) = self.common.text(reference)?.filter(|text| is_commit(text)) {
            return Ok(format!("{commit}\n"));
        }
        let packed = self.common.text("packed-refs")?.unwrap_or_default();
        let found = packed.lines().find_map(|line| line.strip_suffix(reference)?.strip_suffix(' '));
        Ok(format!("{}\n", found.filter(|commit| is_commit(commit)).unwrap_or(&head)))
    }
}
