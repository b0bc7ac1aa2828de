//! Making workspaces. A new workspace is made in the user's home as a whole, and then moved to its
//! place, where nothing may be.

use crate::error::{AtPath, Error, Result};
use crate::git::{self, GitNote, Prepared};
use crate::git_warm::{self, Warmed};
use crate::home::Home;
use crate::linked::Registration;
use crate::names::check_name;
use crate::procfs::{Life, life_of};
use crate::record::{Record, Top, now};
use crate::registry::{NEW_PREFIX, Registry, check_free};
use crate::source::{Source, is_mount};
use crate::trees::Trees;
use crate::workspace::{Lock, Workspace, set_identifier};
use espalier_fuse::control::TreeBytes;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::rand::{GetRandomFlags, getrandom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is to be made.
#[derive(Debug, Clone)]
pub struct Create<'a> {
    /// The name.
    pub name: &'a str,
    /// A directory, a workspace, or a snapshot of a directory (`DIR/.snapshots/NAME`).
    pub from: &'a Path,
    /// Where a workspace is looked for that is named by its name.
    pub around: &'a Path,
    /// The place; by default beside the original, under the name.
    pub place: Option<&'a Path>,
    /// After which time `gc` may throw it away.
    pub time_to_live: Option<Duration>,
    /// How many bytes it may hold alone.
    pub quota: Option<u64>,
    /// Whether git's files are prepared.
    pub prepare_git: bool,
    /// The command that git runs to ask what changed, as its `core.fsmonitor` names it; `None`: git
    /// is not told to ask.
    pub hook: Option<&'a str>,
    /// The process that it is made for; when that has ended, `gc` may throw it away if all its
    /// changes were applied.
    pub process: Option<i32>,
}

/// What was made.
#[derive(Debug, Clone)]
pub struct Created {
    /// The workspace.
    pub workspace: Workspace,
    /// What was done for git.
    pub git: Vec<GitNote>,
}

/// What the new workspace is made from, what its changes will be applied to, and its place.
struct Way {
    source: Source,
    original: PathBuf,
    place: PathBuf,
    made_from: String,
}

impl Create<'_> {
    /// Makes the workspace.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Name`], [`Error::Unsuitable`], [`Error::NoProc`]; as for
    /// [`Trees::clone_tree`].
    pub fn run(&self, trees: &dyn Trees) -> Result<Created> {
        check_name(self.name)?;
        let way = self.way()?;
        let parent = way.place.parent().unwrap_or(Path::new("/"));
        let home = Home::make(parent, way.source.directory())?;
        check_free(parent, self.name)?;
        let id = new_identifier()?;
        let mut record = Record::new(
            id.clone(),
            self.name.into(),
            home.relative(&way.place),
            home.relative(&way.original),
        );
        record.made_from = way.made_from;
        record.note_original(&way.original)?;
        record.expires = self.time_to_live.map(|time| now().saturating_add(time.as_secs()));
        if let Some(process) = self.process
            && let Life::Runs(start) = life_of(process)?
        {
            record.process = Some((process, start));
        }
        let mut workspace = Workspace { home, record };
        let new = workspace.home.dir().join(format!("{NEW_PREFIX}{id}"));
        std::fs::create_dir(&new).at(&new)?;
        let made = self.make(trees, &mut workspace, &new, (&way.source, &way.place));
        if made.is_err() {
            // The error that matters is the first; gc removes what is left.
            let _ = std::fs::rename(workspace.dir(), &new);
            let _ = trees.remove_tree(&new);
            let _ = workspace.home.free_name(self.name, &workspace.record.id);
        }
        Ok(Created { git: made?, workspace })
    }

    fn make(
        &self,
        trees: &dyn Trees,
        workspace: &mut Workspace,
        new: &Path,
        (source, place): (&Source, &Path),
    ) -> Result<Vec<GitNote>> {
        // Until it is at its place: else its name would count as free.
        let _lock = Lock::of(new)?;
        let tree = new.join("tree");
        let hook = self.hook.filter(|_| self.prepare_git);
        let warmed = match (hook, source) {
            (Some(hook), Source::Directory(original)) => git_warm::warm(original, hook)?,
            _ => Warmed::default(),
        };
        source.clone_to(trees, &tree).map_err(|error| name_source(error, &tree, source))?;
        let mut git = match self.prepare_git {
            true => git::prepare(&tree, source.directory(), place, hook, warmed.index)?,
            false => Prepared::default(),
        };
        if let Err(error) = self.finish(trees, workspace, new, place) {
            // The error that matters is the first; git forgets what leads nowhere.
            let _ = git.registration.map(Registration::forget);
            return Err(error);
        }
        git.notes.extend(warmed.note);
        Ok(git.notes)
    }

    /// Makes a workspace of the clone that lies in `new`, and moves it to its place.
    fn finish(&self, trees: &dyn Trees, workspace: &mut Workspace, new: &Path, place: &Path) -> Result<()> {
        let tree = new.join("tree");
        trees.clone_tree(&tree, &new.join("base"))?;
        set_identifier(&tree, &workspace.record.id)?;
        if self.quota.is_some() {
            trees.set_limits(&tree, TreeBytes { exclusive: self.quota, total: None })?;
        }
        workspace.record.top = Some(Top::of(&tree)?);
        workspace.record.data_number = Some(Top::of(new)?.number);
        workspace.record.store(new)?;
        std::fs::rename(new, workspace.dir()).at(new)?;
        workspace.home.take_name(self.name, &workspace.record.id)?;
        let tree = workspace.dir().join("tree");
        match renameat_with(CWD, &tree, CWD, place, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::EXIST) => Err(Error::Exists(place.to_owned())),
            done => done.at(place),
        }
    }

    fn way(&self) -> Result<Way> {
        // Only a name has to be looked for among all workspaces.
        let known = match self.from.is_dir() {
            true => None,
            false => {
                Registry::around(self.around).and_then(|registry| registry.find(self.from.as_os_str())).ok()
            }
        };
        let source = match &known {
            Some(workspace) => {
                let place = workspace.place();
                Source::Directory(place.canonicalize().at(&place)?)
            }
            None => Source::of(self.from)?,
        };
        if is_mount(source.directory())? {
            return Err(Error::Unsuitable(format!(
                "{}: the root of a mount cannot be made a workspace of; name a directory below",
                self.from.display()
            )));
        }
        // A workspace of a workspace brings its changes back to that.
        let original = source.directory().to_owned();
        let wanted = match self.place {
            Some(place) => place.to_owned(),
            None => original.with_file_name(self.name),
        };
        let (parent, name) = match (wanted.parent(), wanted.file_name()) {
            (Some(parent), Some(name)) if parent.as_os_str().is_empty() => (Path::new("."), name),
            (Some(parent), Some(name)) => (parent, name),
            _ => return Err(Error::Name(format!("{} does not end with a name", wanted.display()))),
        };
        let parent = parent.canonicalize().at(parent)?;
        let place = parent.join(name);
        if place.symlink_metadata().is_ok() {
            return Err(Error::Exists(place));
        }
        if place.starts_with(&original) {
            return Err(Error::Unsuitable(format!(
                "{} lies in {}, of which it would be a workspace: it would be part of its own original, and \
                 its changes could not be applied; put it beside that: --at {}",
                place.display(),
                original.display(),
                original.with_file_name(name).display()
            )));
        }
        let device = |of: &Path| of.metadata().at(of).map(|found| found.dev());
        if device(&parent)? != device(&original)? {
            return Err(Error::Unsuitable(format!(
                "{} and {} lie in different file systems; a workspace lies on the mount of its original",
                original.display(),
                place.display()
            )));
        }
        let made_from = match &known {
            Some(workspace) => format!("workspace {}", workspace.record.name),
            None => self.from.canonicalize().at(self.from)?.to_string_lossy().into_owned(),
        };
        Ok(Way { source, original, place, made_from })
    }
}

/// Messages name what the user named, and not the place where the clone is made.
fn name_source(error: Error, tree: &Path, source: &Source) -> Error {
    match error {
        Error::NotEspalier(path) | Error::NotOwned(path) if path == tree => {
            Error::NotOwned(source.directory().to_owned())
        }
        error => error,
    }
}

fn new_identifier() -> Result<String> {
    let mut bytes = [0u8; 8];
    let filled = getrandom(&mut bytes[..], GetRandomFlags::empty()).at(Path::new("/dev/random"))?;
    match filled == bytes.len() {
        true => Ok(format!("{:016x}", u64::from_be_bytes(bytes))),
        false => Err(Error::io(Path::new("/dev/random"), rustix::io::Errno::AGAIN)),
    }
}

#[cfg(test)]
mod tests;
