//! Staging: what an apply brings is made under names in a scratch directory, as clones, and one
//! call then gives everything its place.
//!
//! Names that lead to one file in the workspace lead to one file here, too, if they are made of the
//! same: the first is a clone, the others are links to it.

use crate::entry::{Entry, Kind, xattrs};
use crate::error::{AtPath, Error, Result};
use crate::file_names::{FileNames, Made};
use crate::pinned::Pinned;
use crate::plan::{Item, Plan};
use crate::three_way::{Decision, Pick};
use crate::trees::{Step, Trees};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, Timespec, Timestamps, UTIME_OMIT, XattrFlags, mknodat, utimensat,
};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A name in the scratch directory that nothing keeps; the others are numbers.
const FREE: &str = "free";

/// What is being staged.
pub(crate) struct Stage<'a> {
    trees: &'a dyn Trees,
    plan: &'a Plan,
    scratch: &'a Path,
    /// The time of modification that files get, so that build tools take them for new.
    time: Option<SystemTime>,
    names: FileNames<'a>,
    steps: Vec<Step>,
}

impl<'a> Stage<'a> {
    /// Makes what `plan` takes from the workspace in the directory `scratch`, and returns the steps
    /// that give it its places.
    ///
    /// # Errors
    /// [`Error::Meanwhile`] if something else is at a path than what was compared; as for
    /// [`Trees::clone_tree`]; of the system.
    pub(crate) fn make(
        trees: &'a dyn Trees,
        plan: &'a Plan,
        scratch: &'a Path,
        time: Option<SystemTime>,
        names: FileNames<'a>,
    ) -> Result<Vec<Step>> {
        let mut this = Self { trees, plan, scratch, time, names, steps: Vec::new() };
        // What lies below a directory that comes or goes, does so with it.
        let mut covered: Option<&Path> = None;
        for (path, item) in &plan.items {
            if covered.is_some_and(|top| path.starts_with(top)) {
                continue;
            }
            if this.item(path, item)? {
                covered = Some(path);
            }
        }
        this.names.renew(&mut this.steps);
        Ok(this.steps)
    }

    fn name(&self) -> String {
        self.steps.len().to_string()
    }

    /// Adds the step of one path; true if that covers all below.
    fn item(&mut self, path: &Path, item: &Item) -> Result<bool> {
        if item.decision == Decision::Keep {
            return Ok(false);
        }
        let name = self.name();
        let (place, staged) = (path.as_os_str().as_bytes().to_vec(), name.clone().into_bytes());
        let at = self.scratch.join(&name);
        let is_directory = |entry: &Option<Entry>| entry.as_ref().is_some_and(|e| e.kind == Kind::Directory);
        let step = match (&item.workspace, &item.target) {
            (None, None) => return Ok(false),
            (None, Some(target)) => Step::Leave { place, staged, expected: target.expected() },
            (Some(source), Some(target))
                if source.kind == Kind::Directory && target.kind == Kind::Directory =>
            {
                std::fs::create_dir(&at).at(&at)?;
                copy_attributes(source, &at)?;
                self.steps.push(Step::Attributes { place, staged, expected: target.expected() });
                return Ok(false);
            }
            (Some(source), target) => {
                self.make_entry(path, item, source, &at)?;
                match target {
                    Some(target) => Step::Exchange { place, staged, expected: target.expected() },
                    None => Step::Enter { place, staged },
                }
            }
        };
        self.steps.push(step);
        Ok(is_directory(&item.workspace) || is_directory(&item.target))
    }

    /// Makes what comes to `path` as `at`.
    fn make_entry(&mut self, path: &Path, item: &Item, source: &Entry, at: &Path) -> Result<()> {
        if source.kind == Kind::Directory {
            return self.make_directory(path, source, at);
        }
        let made = Made::of(item, source);
        if self.names.link(made.as_ref(), at)? {
            return Ok(());
        }
        if let Some(merged) = &item.merged {
            let target = item.target.as_ref().unwrap_or(source);
            self.clone_entry(target, at)?;
            // Its owner may not be allowed to write to it.
            std::fs::set_permissions(at, std::fs::Permissions::from_mode(0o600)).at(at)?;
            std::fs::copy(merged, at).at(at)?;
            // A copy takes the mode of what is copied along.
            copy_attributes(if item.attributes == Some(Pick::Workspace) { source } else { target }, at)?;
        } else if let (Decision::Mix { content, .. }, Some(target)) = (item.decision, &item.target) {
            let (content, attributes) =
                if content == Pick::Workspace { (source, target) } else { (target, source) };
            self.clone_entry(content, at)?;
            copy_attributes(attributes, at)?;
        } else {
            self.clone_entry(source, at)?;
        }
        self.names.add(made, at);
        self.set_time(source.kind, at)
    }

    /// A new directory: a clone, if all of it is taken.
    fn make_directory(&mut self, path: &Path, source: &Entry, at: &Path) -> Result<()> {
        let plan = self.plan;
        let below = || plan.items.range(path.to_owned()..).take_while(|(p, _)| p.starts_with(path));
        if plan.is_whole(path) {
            source.with_path(|path| self.trees.clone_tree(path, at))?;
            for (path, item) in below() {
                if let Some(entry) = item.workspace.as_ref().filter(|entry| entry.kind == Kind::File) {
                    let at = at.join(entry.below.strip_prefix(&source.below).unwrap_or(path));
                    // Names of one file in the directory are such in the clone.
                    let made = Made::of(item, entry);
                    if !self.names.link_over(made.as_ref(), &at, &self.scratch.join(FREE))? {
                        self.names.add(made, &at);
                        self.set_time(entry.kind, &at)?;
                    }
                }
            }
            return Ok(());
        }
        std::fs::create_dir(at).at(at)?;
        for (below_path, item) in below().filter(|(p, _)| p.parent() == Some(path)) {
            if let Some(entry) = &item.workspace
                && matches!(item.decision, Decision::Take | Decision::Mix { .. })
            {
                let name = below_path.file_name().unwrap_or_default();
                self.make_entry(below_path, item, entry, &at.join(name))?;
            }
        }
        copy_attributes(source, at)
    }

    /// Makes `at` like an entry that is no directory.
    fn clone_entry(&self, entry: &Entry, at: &Path) -> Result<()> {
        match entry.kind {
            Kind::File | Kind::Directory => return entry.with_path(|path| self.trees.clone_tree(path, at)),
            Kind::Link => {
                std::os::unix::fs::symlink(entry.link_target()?, at).at(at)?;
            }
            Kind::Special => {
                let mode = entry.metadata.mode();
                let kind = FileType::from_raw_mode(mode);
                mknodat(CWD, at, kind, Mode::from_raw_mode(mode), entry.metadata.rdev()).at(at)?;
            }
        }
        copy_attributes(entry, at)
    }

    fn set_time(&self, kind: Kind, at: &Path) -> Result<()> {
        let Some(time) = self.time.filter(|_| kind == Kind::File) else { return Ok(()) };
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let omit = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let time = Timespec { tv_sec: since.as_secs() as i64, tv_nsec: since.subsec_nanos().into() };
        let times = Timestamps { last_access: omit, last_modification: time };
        utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW).at(at)
    }
}

/// Gives `at` mode, owner and extended attributes of an entry.
pub(crate) fn copy_attributes(entry: &Entry, at: &Path) -> Result<()> {
    let (wanted, found) = (&entry.metadata, at.symlink_metadata().at(at)?);
    if (wanted.uid(), wanted.gid()) != (found.uid(), found.gid()) {
        std::os::unix::fs::lchown(at, Some(wanted.uid()), Some(wanted.gid())).at(at)?;
    }
    let (wanted_xattrs, there) = (entry.xattrs()?, xattrs(at)?);
    for (name, _) in there.iter().filter(|(name, _)| !wanted_xattrs.iter().any(|(wanted, _)| wanted == name))
    {
        rustix::fs::lremovexattr(at, &name[..]).at(at)?;
    }
    for pair in wanted_xattrs.iter().filter(|pair| !there.contains(pair)) {
        rustix::fs::lsetxattr(at, &pair.0[..], &pair.1, XattrFlags::empty()).at(at)?;
    }
    if entry.kind != Kind::Link {
        let mode = std::fs::Permissions::from_mode(wanted.mode() & 0o7777);
        std::fs::set_permissions(at, mode).at(at)?;
    }
    Ok(())
}

/// The path of a step below the target, and its name in the scratch directory.
pub(crate) fn parts(step: &Step) -> (&Path, &Path) {
    let (Step::Enter { place, staged }
    | Step::Leave { place, staged, .. }
    | Step::Exchange { place, staged, .. }
    | Step::Attributes { place, staged, .. }) = step;
    (path_of(place), path_of(staged))
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// The steps that take back what `steps` did to `target`.
///
/// # Errors
/// [`Error::Meanwhile`] if something is gone by now; of the system.
pub(crate) fn inverse(steps: &[Step], target: &Arc<Pinned>) -> Result<Vec<Step>> {
    let mut back = Vec::new();
    for step in steps.iter().rev() {
        let (place, staged) = parts(step);
        let now = crate::entry::read(target, place)?;
        let (place, staged) = (place.as_os_str().as_bytes().to_vec(), staged.as_os_str().as_bytes().to_vec());
        let expected = now.as_ref().map(Entry::expected);
        back.push(match (step, expected) {
            (Step::Leave { .. }, _) => Step::Enter { place, staged },
            (Step::Enter { .. }, Some(expected)) => Step::Leave { place, staged, expected },
            (Step::Exchange { .. }, Some(expected)) => Step::Exchange { place, staged, expected },
            (Step::Attributes { .. }, Some(expected)) => Step::Attributes { place, staged, expected },
            (_, None) => return Err(Error::Meanwhile(target.name().join(parts(step).0))),
        });
    }
    Ok(back)
}
