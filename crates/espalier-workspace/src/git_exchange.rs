//! Linked worktrees of git when two trees change places: repository and worktree name each other by
//! path, `.git` of the worktree the repository, and `worktrees/NAME/gitdir` the worktree.
//!
//! A linked worktree stays with the repository that it belongs to, which has all that its head and
//! index lead to. What is done twice does the same, so that a command can do again what a crash
//! interrupted.

use crate::error::Result;
use crate::git_files::{GitDir, normal};
use crate::linked::LINK;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A file that names a path, and has to name another one.
struct Rewrite {
    dir: GitDir,
    file: &'static str,
    text: String,
}

impl Rewrite {
    fn run(&self) -> Result<()> {
        self.dir.rewrite(OsStr::new(self.file), self.text.as_bytes()).map(drop)
    }
}

/// A tree that was moved.
struct Moved<'a> {
    before: &'a Path,
    now: &'a Path,
    /// The other way for the tree that was there.
    other: Option<(&'a Path, &'a Path)>,
}

impl Moved<'_> {
    /// Where something is that was at a path.
    fn now(&self, path: &Path) -> PathBuf {
        let ways = [Some((self.before, self.now)), self.other];
        let moved = ways.into_iter().flatten().find_map(|(before, now)| {
            let below = path.strip_prefix(before).ok()?;
            Some(if below.as_os_str().is_empty() { now.to_owned() } else { now.join(below) })
        });
        moved.unwrap_or_else(|| path.to_owned())
    }

    /// The linked worktrees of its repository: the name of each, and where its `.git` file was.
    fn worktrees(&self) -> Result<Vec<(GitDir, PathBuf)>> {
        let mut all = Vec::new();
        let Some(tree) = GitDir::tree(self.now)? else { return Ok(all) };
        let Some(worktrees) = tree.below(Path::new(".git/worktrees"))? else { return Ok(all) };
        for name in worktrees.directories()? {
            let Some(registration) = worktrees.below(Path::new(&name))? else { continue };
            let Some(back) = registration.text("gitdir")? else { continue };
            let file = normal(&self.before.join(".git/worktrees").join(&name).join(back));
            all.push((registration, file));
        }
        Ok(all)
    }

    /// What the repository and its linked worktrees have to name instead.
    fn repository_links(&self) -> Result<Vec<Rewrite>> {
        let mut all = Vec::new();
        for (registration, was) in self.worktrees()? {
            let name = registration.path().file_name().unwrap_or_default();
            let (before, now) = (self.before.join(".git/worktrees"), self.now.join(".git/worktrees"));
            let file = self.now(&was);
            let (Some(around), Some(above)) = (was.parent(), file.parent()) else { continue };
            // One that cannot be looked at, as on a mount that is dead, keeps no other from it.
            let Ok(Some(dir)) = GitDir::open(above, registration.owner()) else { continue };
            let Some(link) = dir.text(".git")? else { continue };
            let Some(led) = link.strip_prefix(LINK).map(|led| normal(&around.join(led))) else { continue };
            if led == before.join(name) {
                let text = format!("{LINK}{}\n", now.join(name).display());
                all.push(Rewrite { dir, file: ".git", text });
            }
            let back = registration.text("gitdir")?.unwrap_or_default();
            if normal(&now.join(name).join(back)) != file {
                let text = format!("{}\n", file.display());
                all.push(Rewrite { dir: registration, file: "gitdir", text });
            }
        }
        Ok(all)
    }

    /// What has to be named instead if it is a linked worktree itself.
    fn worktree_links(&self) -> Result<Vec<Rewrite>> {
        let mut all = Vec::new();
        let Some(tree) = GitDir::tree(self.now)? else { return Ok(all) };
        let Some(link) = tree.text(".git")? else { return Ok(all) };
        let Some(led) = link.strip_prefix(LINK) else { return Ok(all) };
        let path = normal(&self.before.join(led));
        // A repository that lies in one of the trees was moved with it.
        let path = self.now(&path);
        let Some(registration) = GitDir::open(&path, tree.owner())? else { return Ok(all) };
        let back = registration.text("gitdir")?.map(|back| normal(&path.join(back)));
        if back.is_some_and(|back| back == self.before.join(".git")) {
            let text = format!("{}\n", self.now.join(".git").display());
            all.push(Rewrite { dir: registration, file: "gitdir", text });
        }
        if normal(&self.now.join(led)) != path {
            all.push(Rewrite { dir: tree, file: ".git", text: format!("{LINK}{}\n", path.display()) });
        }
        Ok(all)
    }
}

/// Has the repositories of two trees that changed places, and their linked worktrees, name each
/// other again. `place` has what was at `original`, and the other way.
///
/// # Errors
/// Of the system: if one of the trees cannot be read, before anything was done; else after
/// everything else was.
pub(crate) fn relink(place: &Path, original: &Path) -> Result<()> {
    let moved = [(place, original), (original, place)].map(|(before, now)| Moved {
        before,
        now,
        other: Some((now, before)),
    });
    let mut all = Vec::new();
    // What names what is read before anything is written.
    for tree in &moved {
        all.extend(tree.repository_links()?);
        all.extend(tree.worktree_links()?);
    }
    let done: Vec<Result<()>> = all.iter().map(Rewrite::run).collect();
    done.into_iter().collect()
}

/// The linked worktrees of the repository in `tree` that lie elsewhere and lead to it.
///
/// # Errors
/// Of the system.
pub(crate) fn worktrees_elsewhere(tree: &Path) -> Result<Vec<PathBuf>> {
    let unmoved = Moved { before: tree, now: tree, other: None };
    let mut all = Vec::new();
    for (registration, file) in unmoved.worktrees()? {
        let Some(dir) = file.parent().filter(|dir| !dir.starts_with(tree)) else { continue };
        let link = crate::git_files::read_text(&file);
        let led = link.as_deref().and_then(|link| link.strip_prefix(LINK)).map(|led| normal(&dir.join(led)));
        if led.as_deref() == Some(registration.path()) {
            all.push(dir.to_owned());
        }
    }
    Ok(all)
}
