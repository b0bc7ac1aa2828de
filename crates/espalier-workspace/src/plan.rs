//! What an apply does, path by path: the three-way rule on real trees, and on the places of paths
//! in them.
//!
//! Only paths that the workspace changed are decided on. Whatever the target changed beside that
//! matters in two ways: a directory that the workspace removed may hold something of the target's,
//! and a path may have been moved on both sides.

use crate::entry::{self, Entry, Kind, Trust};
use crate::error::{AtPath, Error, Result};
use crate::git_files::normal;
use crate::pinned::Pinned;
use crate::three_way::{ConflictKind, Decision, Pick, Side, Triple, decide, pick_attributes};
use crate::trees::{Change, Trees};
use crate::workspace::{all_changed_paths, is_of_version_control};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Which side wins where both changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Prefer {
    /// Neither: it is a conflict.
    #[default]
    Neither,
    /// The workspace.
    Workspace,
    /// The target.
    Target,
}

/// A path on which neither side can be preferred.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The path.
    pub path: PathBuf,
    /// Why.
    pub kind: ConflictKind,
    /// What happened, for people.
    pub what: String,
}

/// The trees that are compared.
#[derive(Debug, Clone)]
pub(crate) struct Sides {
    pub(crate) base: Arc<Pinned>,
    pub(crate) workspace: Arc<Pinned>,
    pub(crate) target: Arc<Pinned>,
}

/// A path that the workspace changed.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) workspace: Option<Entry>,
    pub(crate) target: Option<Entry>,
    pub(crate) base: Option<Entry>,
    pub(crate) decision: Decision,
    /// It was decided by a preference.
    pub(crate) preferred: bool,
    /// Whose attributes it gets if its content is merged.
    pub(crate) attributes: Option<Pick>,
    /// A file with the merged content.
    pub(crate) merged: Option<PathBuf>,
}

impl Item {
    /// Closes what was compared.
    fn release(&mut self) {
        [&mut self.workspace, &mut self.target, &mut self.base]
            .into_iter()
            .flatten()
            .for_each(Entry::release);
    }
}

/// What is to be done.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// By path; parents come before what is below them.
    pub(crate) items: BTreeMap<PathBuf, Item>,
    pub(crate) conflicts: Vec<Conflict>,
    /// By the numbers of files of the workspace of which a name is taken: an entry of the target
    /// that is like the file, at another of its names.
    pub(crate) present: HashMap<u64, Entry>,
    /// Paths that the workspace changed and that are not taken as they are, with those of files by
    /// which version control leads elsewhere.
    left: BTreeSet<PathBuf>,
}

/// What was read of a side. What lies on another mount is not part of it.
fn beside_mounts(read: Result<Option<Entry>>) -> Result<Option<Entry>> {
    match read {
        Err(Error::MountPoint { .. }) => Ok(None),
        read => read,
    }
}

/// The longest file that names a repository, in bytes.
const LINK_MAX_BYTES: u64 = 8192;

/// True for the file of a submodule or of a linked working tree that names a repository which does
/// not come along. `new` has what version control keeps and the workspace changed: a repository
/// that lies there in its directory as a whole comes with it.
fn leads_elsewhere(workspace: &Arc<Pinned>, path: &Path, new: &[(PathBuf, Change)]) -> Result<bool> {
    if !path.ends_with(".git") && !path.ends_with(".jj/repo") {
        return Ok(false);
    }
    let Some(link) = entry::read(workspace, path)?.filter(|entry| entry.kind != Kind::Directory) else {
        return Ok(false);
    };
    let mut text = String::new();
    if link.kind == Kind::File {
        let file = link.hold()?.open(std::fs::File::options().read(true)).at(path)?;
        let read = file.take(LINK_MAX_BYTES).read_to_string(&mut text);
        read.unwrap_or_default();
    }
    let led = text.strip_prefix("gitdir: ").map(|led| Path::new(led.trim_end()));
    let Some(led) = led.filter(|led| led.is_relative()) else { return Ok(true) };
    let led = normal(&Path::new("/").join(path).with_file_name("").join(led));
    let comes = |(known, change): &(PathBuf, Change)| {
        *change == Change::Added && known.ends_with(".git") && led.starts_with(Path::new("/").join(known))
    };
    Ok(!new.iter().any(comes))
}

/// Where entries of the base are in another tree, by their identity.
struct Moves {
    /// From the path in the base to the path there.
    to: HashMap<PathBuf, PathBuf>,
}

impl Plan {
    /// Compares, and decides on all paths that `wanted` accepts.
    pub(crate) fn make(
        trees: &dyn Trees,
        sides: &Sides,
        wanted: &dyn Fn(&Path) -> bool,
        prefer: Prefer,
    ) -> Result<Self> {
        let all_ours = all_changed_paths(trees, &sides.base, &sides.workspace)?;
        // A repository below that goes takes its commits along, so what only it keeps counts here.
        let all_theirs = all_changed_paths(trees, &sides.base, &sides.target)?;
        let is_compared = |path: &Path| !is_of_version_control(path.as_os_str().as_bytes());
        let (ours, of_version_control): (Vec<_>, Vec<_>) =
            all_ours.into_iter().partition(|(path, _)| is_compared(path));
        let theirs: Vec<_> = all_theirs.iter().filter(|(path, _)| is_compared(path)).cloned().collect();
        let mut plan = Self::default();
        for (path, _) in ours.iter().filter(|(path, _)| wanted(path)) {
            if let Some(item) = compare(sides, path)? {
                plan.items.insert(path.clone(), item);
            }
        }
        let moved_here = Moves::find(&sides.base, &sides.workspace, &ours)?;
        let moved_there = Moves::find(&sides.base, &sides.target, &theirs)?;
        plan.name_renames(&moved_here, &moved_there);
        plan.resolve(prefer);
        plan.check_removed_directories(sides, &all_theirs, prefer)?;
        plan.check_parents(sides, prefer)?;
        plan.find_present(sides, &ours)?;
        let taken = |path: &Path| plan.items.get(path).is_some_and(|item| item.decision == Decision::Take);
        plan.left = ours.into_iter().map(|(path, _)| path).filter(|path| !taken(path)).collect();
        for (path, _) in &of_version_control {
            if leads_elsewhere(&sides.workspace, path, &of_version_control)? {
                plan.left.insert(path.clone());
            }
        }
        plan.items.retain(|_, item| item.decision != Decision::Keep);
        plan.conflicts.sort();
        plan.conflicts.dedup();
        Ok(plan)
    }

    /// Refuses if something is mounted where the target would change, of which the file system
    /// knows nothing: on a path, above it, or below what goes or is replaced.
    ///
    /// # Errors
    /// [`Error::MountPoint`]; [`Error::NoProc`].
    pub(crate) fn check_mounts(&self, target: &Pinned) -> Result<()> {
        let is_directory = |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| e.kind == Kind::Directory);
        let stays = |item: &Item| is_directory(&item.workspace) && is_directory(&item.target);
        for mount in target.mounts_below()? {
            let changes = |(path, item): (&PathBuf, &Item)| {
                path.starts_with(&mount) || (mount.starts_with(path) && !stays(item))
            };
            if self.items.iter().any(changes) {
                let at = target.name().join(&mount);
                return Err(Error::MountPoint { target: target.name().to_owned(), at });
            }
        }
        Ok(())
    }

    /// True if the workspace has a new directory at a path, and all in it is taken as it is. In one
    /// that the target removed only what the workspace changed comes back.
    pub(crate) fn is_whole(&self, path: &Path) -> bool {
        let base = self.items.get(path).and_then(|item| item.base.as_ref());
        base.is_none_or(|base| base.kind != Kind::Directory)
            && !self.left.range(path.to_owned()..).next().is_some_and(|left| left.starts_with(path))
    }

    /// Finds what the target has already of files of which further names are taken.
    fn find_present(&mut self, sides: &Sides, ours: &[(PathBuf, Change)]) -> Result<()> {
        let is_taken = |item: &&Item| item.decision == Decision::Take;
        let files = self.items.values().filter(is_taken).filter_map(|item| item.workspace.as_ref());
        let wanted: BTreeSet<u64> = files.filter(|file| file.has_names()).map(|file| file.number).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        // A new name changes the file, so all of its names are among the changed paths.
        for (path, _) in ours.iter().filter(|(_, change)| *change != Change::Removed) {
            if self.items.get(path).is_some_and(|item| item.decision != Decision::Keep) {
                continue;
            }
            let Some(file) = entry::read(&sides.workspace, path)? else { continue };
            if !wanted.contains(&file.number) || self.present.contains_key(&file.number) {
                continue;
            }
            if let Some(mut target) = beside_mounts(entry::read(&sides.target, path))?
                && file.is_like(&target, Trust::Content)?
            {
                target.release();
                self.present.insert(file.number, target);
            }
        }
        Ok(())
    }

    /// Conflicts of paths that were moved are conflicts of renames.
    fn name_renames(&mut self, here: &Moves, there: &Moves) {
        for (path, item) in &mut self.items {
            let moved = (here.to.get(path), there.to.get(path));
            let what = match (&item.decision, moved) {
                (Decision::Conflict(ConflictKind::Deletion), (Some(to), None)) => {
                    format!("the workspace moved it to {}, the target changed it", to.display())
                }
                (Decision::Conflict(ConflictKind::Deletion), (None, Some(to))) => {
                    format!("the target moved it to {}, the workspace changed it", to.display())
                }
                (Decision::Keep, (Some(to), Some(other))) if to != other => {
                    format!("the workspace moved it to {}, the target to {}", to.display(), other.display())
                }
                _ => continue,
            };
            item.decision = Decision::Conflict(ConflictKind::Rename);
            self.conflicts.push(Conflict { path: path.clone(), kind: ConflictKind::Rename, what });
        }
    }

    /// Lists the conflicts, or decides them as preferred.
    fn resolve(&mut self, prefer: Prefer) {
        for (path, item) in &mut self.items {
            let Decision::Conflict(kind) = item.decision else { continue };
            if let Some(decision) = preferred(prefer) {
                (item.decision, item.preferred) = (decision, true);
            } else if kind != ConflictKind::Rename {
                let what = words(kind, item);
                self.conflicts.push(Conflict { path: path.clone(), kind, what });
            }
        }
        if prefer != Prefer::Neither {
            self.conflicts.clear();
        }
    }

    /// A directory that goes must hold nothing that only the target has.
    fn check_removed_directories(
        &mut self,
        sides: &Sides,
        theirs: &[(PathBuf, Change)],
        prefer: Prefer,
    ) -> Result<()> {
        for (path, change) in theirs {
            if *change == Change::Removed {
                continue;
            }
            let known = self.items.get(path);
            let stays = match known {
                Some(item) => item.decision == Decision::Keep && item.target.is_some(),
                None => true,
            };
            let Some(top) = path.ancestors().skip(1).find(|above| self.removes_directory(above)) else {
                continue;
            };
            if !stays || (known.is_none() && !is_changed(sides, path)?) {
                continue;
            }
            let top = top.to_owned();
            match prefer {
                Prefer::Workspace => {}
                Prefer::Target => self.keep_above(path),
                Prefer::Neither => self.conflicts.push(Conflict {
                    path: path.clone(),
                    kind: ConflictKind::Deletion,
                    what: format!("the workspace removed {}, the target has this in it", top.display()),
                }),
            }
        }
        Ok(())
    }

    /// True if there is a directory in the target that goes, or is replaced by something else.
    fn removes_directory(&self, path: &Path) -> bool {
        let gone = |item: &Item| {
            item.decision == Decision::Take
                && item.target.as_ref().is_some_and(|target| target.kind == Kind::Directory)
                && item.workspace.as_ref().is_none_or(|workspace| workspace.kind != Kind::Directory)
        };
        self.items.get(path).is_some_and(gone)
    }

    /// The directories above a path stay, because the path does.
    fn keep_above(&mut self, path: &Path) {
        for above in path.ancestors().skip(1) {
            if self.removes_directory(above)
                && let Some(item) = self.items.get_mut(above)
            {
                (item.decision, item.preferred) = (Decision::Keep, true);
            }
        }
    }

    /// What is taken must have a directory to lie in.
    fn check_parents(&mut self, sides: &Sides, prefer: Prefer) -> Result<()> {
        let paths: Vec<PathBuf> = self.items.keys().cloned().collect();
        for path in paths {
            let Some(item) = self.items.get(&path) else { continue };
            let arrives = matches!(item.decision, Decision::Take | Decision::Mix { .. });
            if !arrives || item.workspace.is_none() {
                continue;
            }
            let mut missing = Vec::new();
            for above in path.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty()) {
                match self.items.get(above).map(|item| item.decision) {
                    // The workspace has a directory there, because it has something in it.
                    Some(Decision::Take) => continue,
                    Some(Decision::Conflict(_)) => continue,
                    _ => {}
                }
                let mut there = entry::read(&sides.target, above)?;
                there.iter_mut().for_each(Entry::release);
                if there.as_ref().is_none_or(|there| there.kind != Kind::Directory) {
                    missing.push((above.to_owned(), there));
                }
            }
            self.settle_parents(sides, &path, missing, prefer)?;
        }
        Ok(())
    }

    /// Directories above a path are missing in the target: a conflict if the target removed or
    /// replaced them, and no matter if the workspace made them.
    fn settle_parents(
        &mut self,
        sides: &Sides,
        path: &Path,
        missing: Vec<(PathBuf, Option<Entry>)>,
        prefer: Prefer,
    ) -> Result<()> {
        for (above, there) in missing {
            let base = entry::read(&sides.base, &above)?;
            let workspace = entry::read(&sides.workspace, &above)?;
            let made_here = base.is_none() && there.is_none();
            if made_here || prefer == Prefer::Workspace {
                let mut item = Item {
                    workspace,
                    target: there,
                    base,
                    decision: Decision::Take,
                    preferred: !made_here,
                    attributes: None,
                    merged: None,
                };
                item.release();
                self.items.insert(above, item);
                continue;
            }
            if prefer == Prefer::Target {
                if let Some(item) = self.items.get_mut(path) {
                    (item.decision, item.preferred) = (Decision::Keep, true);
                }
                continue;
            }
            let (kind, word) = match there {
                None => (ConflictKind::Deletion, "removed"),
                Some(_) => (ConflictKind::Type, "replaced"),
            };
            let what = format!("the target {word} {}, the workspace has this in it", above.display());
            self.conflicts.push(Conflict { path: path.to_owned(), kind, what });
        }
        Ok(())
    }
}

fn preferred(prefer: Prefer) -> Option<Decision> {
    match prefer {
        Prefer::Neither => None,
        Prefer::Workspace => Some(Decision::Take),
        Prefer::Target => Some(Decision::Keep),
    }
}

fn words(kind: ConflictKind, item: &Item) -> String {
    match kind {
        ConflictKind::Content if item.base.is_none() => "both made it, with different content".into(),
        ConflictKind::Content => "both changed its content".into(),
        ConflictKind::Mode => "both changed mode, owner or extended attributes".into(),
        ConflictKind::Deletion if item.workspace.is_none() => {
            "the workspace removed it, the target changed it".into()
        }
        ConflictKind::Deletion => "the target removed it, the workspace changed it".into(),
        ConflictKind::Rename => "both moved it".into(),
        ConflictKind::Type => {
            let word = |entry: &Option<Entry>| entry.as_ref().map_or("nothing", |entry| entry.kind.word());
            format!(
                "it is a {} in the workspace, a {} in the target",
                word(&item.workspace),
                word(&item.target)
            )
        }
    }
}

/// True if a path of the target is not as in the base.
fn is_changed(sides: &Sides, path: &Path) -> Result<bool> {
    match (entry::read(&sides.base, path)?, entry::read(&sides.target, path)?) {
        (Some(base), Some(target)) => Ok(!base.is_like(&target, Trust::Times)?),
        (base, target) => Ok(base.is_some() || target.is_some()),
    }
}

/// Decides on one path; `None` if the workspace has not changed it after all.
fn compare(sides: &Sides, path: &Path) -> Result<Option<Item>> {
    // The target first: what changes afterwards is found by the number and time that were read.
    let target = entry::read(&sides.target, path)?;
    let (base, workspace) = (entry::read(&sides.base, path)?, entry::read(&sides.workspace, path)?);
    let all = [&base, &workspace, &target];
    let mut sides = [None; 3];
    for at in 0..all.len() {
        let Some(entry) = all[at] else { continue };
        let mut side = Side { kind: entry.kind, content: at as u32, attributes: at as u32 };
        for (index, (before, known)) in all[..at].iter().zip(&sides).enumerate() {
            let (Some(before), Some(known)) = (before, known) else { continue };
            let known: &Side = known;
            let trust = if index == 0 { Trust::Times } else { Trust::Content };
            if before.kind != entry.kind {
                continue;
            }
            if side.content == at as u32 && entry.has_content_of(before, trust)? {
                side.content = known.content;
            }
            if side.attributes == at as u32 && entry.has_attributes_of(before, trust)? {
                side.attributes = known.attributes;
            }
        }
        sides[at] = Some(side);
    }
    let [base_side, workspace_side, target_side] = sides;
    if base_side == workspace_side {
        return Ok(None);
    }
    let triple = Triple { base: base_side, workspace: workspace_side, target: target_side };
    let (decision, attributes) = (decide(triple), pick_attributes(triple));
    let mut item = Item { workspace, target, base, decision, preferred: false, attributes, merged: None };
    item.release();
    Ok(Some(item))
}

impl Moves {
    /// Finds what is gone here and new there with the same identity.
    fn find(base: &Arc<Pinned>, tree: &Arc<Pinned>, changes: &[(PathBuf, Change)]) -> Result<Self> {
        let (old_top, new_top) = (base.number()?, tree.number()?);
        let mut gone = HashMap::new();
        for (path, _) in changes.iter().filter(|(_, change)| *change == Change::Removed) {
            if let Some(entry) = entry::read(base, path)? {
                gone.insert(entry.number.wrapping_sub(old_top), path);
            }
        }
        let mut to = HashMap::new();
        if gone.is_empty() {
            return Ok(Self { to });
        }
        for (path, _) in changes.iter().filter(|(_, change)| *change == Change::Added) {
            if let Some(entry) = beside_mounts(entry::read(tree, path))?
                && let Some(from) = gone.get(&entry.number.wrapping_sub(new_top))
            {
                to.insert((*from).clone(), path.clone());
            }
        }
        Ok(Self { to })
    }
}

#[cfg(test)]
mod tests;
