//! Finds workspaces: by the records in the user's homes, and by the attributes of directories.

use crate::error::{AtPath, Error, Result};
use crate::home::Home;
use crate::names::{check_name, taken};
use crate::parallel;
use crate::record::{Record, now};
use crate::workspace::{Lock, Workspace, attribute, identifier};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Directories under this name are being made, or removed.
pub(crate) const NEW_PREFIX: &str = "new-";

/// The workspaces that a user has around a directory.
#[derive(Debug)]
pub struct Registry {
    pub(crate) at: PathBuf,
    /// Those that are where their records say, or near.
    pub(crate) present: Vec<Workspace>,
    /// Those that were not found.
    pub(crate) missing: Vec<Workspace>,
    /// Those of which it cannot be known.
    pub(crate) unreadable: Vec<Unreadable>,
}

/// Data about a workspace that cannot be read or brought up to date.
#[derive(Debug, Clone)]
pub struct Unreadable {
    /// Where the data is.
    pub path: PathBuf,
    /// What is wrong with it.
    pub why: String,
}

impl Unreadable {
    fn at(path: PathBuf, error: &Error) -> Self {
        Self { path, why: error.to_string() }
    }
}

impl Registry {
    /// Looks for all workspaces whose data lies in a directory from `at` up to the root of its
    /// mount. Notes where those are that were moved. One that is damaged hides no other.
    ///
    /// # Errors
    /// Of the system, but for what concerns one workspace.
    pub fn around(at: &Path) -> Result<Self> {
        let at = at.canonicalize().at(at)?;
        let mut records = Vec::new();
        for home in Home::around(&at)? {
            for entry in home.dir().read_dir().at(home.dir())? {
                let name = entry.at(home.dir())?.file_name();
                if is_identifier(&name) {
                    records.push((home.clone(), name));
                }
            }
        }
        let load = |(home, name): &(Home, OsString)| {
            let dir = home.dir().join(name);
            let record = match Record::load(&dir) {
                Ok(Some(record)) => record,
                Ok(None) => return Ok(None),
                Err(error) => return Ok(Some(Err(Unreadable::at(dir, &error)))),
            };
            let known = Workspace { home: home.clone(), record };
            let is_present = known.is_at_its_place();
            Ok(Some(Ok((known, is_present))))
        };
        let mut this = Self { at, present: Vec::new(), missing: Vec::new(), unreadable: Vec::new() };
        for loaded in parallel::map(&records, load)?.into_iter().flatten() {
            let (mut workspace, is_present) = match loaded {
                Ok(loaded) => loaded,
                Err(unreadable) => {
                    this.unreadable.push(unreadable);
                    continue;
                }
            };
            // What completes a promotion concerns several places: one after the other.
            let is_present = if workspace.record.promoting { workspace.is_present() } else { Ok(is_present) };
            match is_present {
                Ok(true) => this.present.push(workspace),
                Ok(false) => this.missing.push(workspace),
                Err(error) => this.unreadable.push(Unreadable::at(workspace.dir(), &error)),
            }
        }
        this.find_moved();
        this.present.sort_by(|a, b| a.record.name.cmp(&b.record.name));
        Ok(this)
    }

    /// The workspace around `at` with a name, or the one at a path, without a look at all others if
    /// that can be.
    ///
    /// # Errors
    /// As for [`Registry::find`].
    pub fn locate(at: &Path, name: &OsStr) -> Result<Workspace> {
        Self::look(at, name, true)
    }

    /// The same for a command that destroys: no copy is taken for the workspace only because the
    /// user has named it by its path.
    ///
    /// # Errors
    /// As for [`Registry::find`].
    pub fn locate_itself(at: &Path, name: &OsStr) -> Result<Workspace> {
        Self::look(at, name, false)
    }

    fn look(at: &Path, name: &OsStr, adopts: bool) -> Result<Workspace> {
        let around = at.canonicalize().at(at)?;
        let mut found = Vec::new();
        if let Some(name) = name.to_str().filter(|name| check_name(name).is_ok()) {
            for home in Home::around(&around)? {
                if let Some(mut known) = home.named(name)?
                    && known.is_present()?
                {
                    found.push(known);
                }
            }
        }
        match found.pop() {
            Some(_) if !found.is_empty() => Err(Error::Ambiguous(name.to_string_lossy().into_owned())),
            Some(known) => Ok(known),
            None => Self::around(at)?.find_among(name, adopts),
        }
    }

    /// True if the workspace with this identifier was found.
    pub(crate) fn has(&self, id: &str) -> bool {
        self.present.iter().any(|known| known.record.id == id)
    }

    /// Looks for missing workspaces among the neighbours of all places.
    fn find_moved(&mut self) {
        if self.missing.is_empty() {
            return;
        }
        let places = self.present.iter().chain(&self.missing).map(Workspace::place);
        let parents: BTreeSet<PathBuf> = places.filter_map(|p| p.parent().map(Path::to_owned)).collect();
        // Other users' directories may have the same attribute.
        let mut found: HashMap<String, Vec<PathBuf>> = HashMap::new();
        for entry in parents.iter().filter_map(|parent| parent.read_dir().ok()).flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && let Some(id) = identifier(&entry.path())
            {
                found.entry(id).or_default().push(entry.path());
            }
        }
        for mut workspace in std::mem::take(&mut self.missing) {
            if workspace.record.promoting {
                // Its place is one of two that changed places, or not.
                self.missing.push(workspace);
                continue;
            }
            let places = found.get(&workspace.record.id);
            let is_there = match places.and_then(|places| places.iter().find(|at| workspace.is_own(at))) {
                Some(place) => workspace.note_place(place).map(|()| true),
                None => workspace.is_restored(),
            };
            match is_there {
                Ok(true) => self.present.push(workspace),
                Ok(false) => self.missing.push(workspace),
                // Another command has discarded it.
                Err(Error::Gone(_)) => {}
                Err(error) => self.unreadable.push(Unreadable::at(workspace.dir(), &error)),
            }
        }
    }

    /// Those that may be there, and of which it cannot be known.
    pub fn unreadable(&self) -> &[Unreadable] {
        &self.unreadable
    }

    /// All that were found, by name.
    pub fn workspaces(&self) -> &[Workspace] {
        &self.present
    }

    /// The workspace with a name, or the one at a path: its top directory, or one below.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Ambiguous`]; of the system.
    pub fn find(&self, name: &OsStr) -> Result<Workspace> {
        self.find_among(name, true)
    }

    fn find_among(&self, name: &OsStr, adopts: bool) -> Result<Workspace> {
        let mut named = self.present.iter().filter(|known| is_named(known, name));
        if let Some(found) = named.next() {
            return match named.next() {
                Some(_) => Err(Error::Ambiguous(found.record.name.clone())),
                None => Ok(found.clone()),
            };
        }
        if let Some(known) = self.missing.iter().find(|known| known.record.promoting && is_named(known, name))
        {
            return Err(known.interrupted());
        }
        // What can be a name may have been meant so, though it leads somewhere from here, too.
        let is_path = name.to_str().is_none_or(|name| check_name(name).is_err());
        match self.at_path(Path::new(name), is_path && adopts)? {
            Some(found) => Ok(found),
            None => Err(Error::NotFound { name: name.to_string_lossy().into_owned(), at: self.at.clone() }),
        }
    }

    /// The workspace that a path lies in. A copy of it at its place becomes the workspace if the
    /// path leads to the copy, and the user has `named` it so.
    fn at_path(&self, path: &Path, named: bool) -> Result<Option<Workspace>> {
        let Ok(path) = path.canonicalize() else { return Ok(None) };
        for dir in path.ancestors() {
            let Some((id, number)) = attribute(dir) else { continue };
            let is_own = dir.symlink_metadata().is_ok_and(|found| found.ino() == number);
            let may_adopt = named && dir == path;
            if !is_own && !may_adopt {
                continue;
            }
            // A copy of the whole file system has the same identifiers, and other places.
            let mut known = self.present.iter().filter(|known| known.record.id == id);
            if let Some(known) = known.find(|known| is_same(&known.place(), dir)) {
                return Ok(Some(known.clone()));
            }
            if !is_identifier(OsStr::new(&id)) {
                continue;
            }
            for home in Home::around(dir)? {
                if let Some(record) = Record::load(&home.dir().join(&id))?
                    && let Some(found) = self.recorded(Workspace { home, record }, dir, may_adopt)?
                {
                    return Ok(Some(found));
                }
            }
        }
        Ok(None)
    }

    /// A workspace, if a directory that bears its identifier is it, or is a copy of it at its place
    /// that this command `may_adopt`.
    fn recorded(&self, mut workspace: Workspace, dir: &Path, may_adopt: bool) -> Result<Option<Workspace>> {
        if !workspace.is_present()? {
            let is_own = workspace.is_own(dir);
            if workspace.record.promoting && identifier(dir).is_some() {
                return Err(workspace.interrupted());
            }
            let id = workspace.record.id.clone();
            // It may lie near under another name: then this is a copy only.
            let is_free = || -> Result<bool> { Ok(!self.has(&id) && !Self::around(dir)?.has(&id)) };
            if is_own {
                workspace.note_place(dir)?;
            } else if !may_adopt || !is_same(&workspace.place(), dir) || !is_free()? || !workspace.adopt()? {
                return Ok(None);
            }
        }
        Ok(is_same(&workspace.place(), dir).then_some(workspace))
    }
}

fn is_named(known: &Workspace, name: &OsStr) -> bool {
    OsStr::new(&known.record.name) == name
}

/// True if two paths lead to one directory: one is seen at several paths where it is mounted twice.
fn is_same(one: &Path, other: &Path) -> bool {
    let number = |path: &Path| path.metadata().map(|found| (found.dev(), found.ino())).ok();
    number(one).is_some_and(|found| number(other) == Some(found))
}

impl Workspace {
    /// Records that it is at `place`, where it was found, unless a command is at work on it: a
    /// lookup waits for no command, and what was found is kept in memory.
    fn note_place(&mut self, place: &Path) -> Result<()> {
        let place = self.home.relative(place);
        let lock = self.try_lock_data()?;
        if lock.is_some() && (self.record.promoting || self.is_at_its_place()) {
            // Another command has recorded something since it was looked for.
            return Ok(());
        }
        self.record.place = place;
        self.record.missing = None;
        lock.map_or(Ok(()), |lock| self.store(&lock))
    }

    /// Records that it was not found, and says since when.
    pub(crate) fn note_missing(&mut self, lock: &Lock) -> Result<u64> {
        match self.record.missing {
            Some(since) => Ok(since),
            None => {
                self.record.missing = Some(now());
                self.store(lock)?;
                Ok(now())
            }
        }
    }

    /// True if it is where its record says, and its promotion, if a crash interrupted one, could be
    /// completed.
    pub(crate) fn is_present(&mut self) -> Result<bool> {
        if self.record.promoting {
            match self.lock_data() {
                Ok(lock) if self.complete_promotion(&lock)? => {}
                Ok(_) | Err(Error::Gone(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(self.is_at_its_place())
    }

    /// True if it is at its place, and nothing else.
    pub(crate) fn is_at_its_place(&self) -> bool {
        self.is_own(&self.place())
    }
}

/// Refuses if a workspace around `parent` has the name. Frees the name of one that is gone.
///
/// # Errors
/// [`Error::Name`]; of the system.
pub(crate) fn check_free(parent: &Path, name: &str) -> Result<()> {
    for home in Home::around(parent)? {
        let Some(mut known) = home.named(name)? else {
            home.free_dangling_name(name)?;
            continue;
        };
        // One that is being made is at its place when its lock is free.
        let is_made = known.is_present()? || known.record.promoting || Lock::is_held(&known.dir());
        if is_made || Registry::around(parent)?.has(&known.record.id) {
            return Err(taken(name));
        }
        home.free_name(name, &known.record.id)?;
    }
    Ok(())
}

/// True for the name of a directory with the data of a workspace.
pub(crate) fn is_identifier(name: &OsStr) -> bool {
    let name = name.as_bytes();
    name.len() == 16 && name.iter().all(u8::is_ascii_hexdigit)
}

#[cfg(test)]
mod tests;
