//! One workspace: where its parts are, and what it has become.

use crate::entry::{self, Kind, Trust};
use crate::error::{AtPath, Error, Result};
use crate::file_lock::FileLock;
use crate::home::Home;
use crate::pinned::Pinned;
use crate::record::Record;
use crate::trees::{Change, Trees};
use espalier_fuse::control::TreeBytes;
use rustix::fs::{FlockOperation, XattrFlags};
use rustix::io::Errno;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The attribute of the top directory.
const ATTRIBUTE: &str = "user.espalier.workspace";
/// The longest value of it.
const ATTRIBUTE_BYTES: usize = 64;

/// A workspace that was found.
#[derive(Debug, Clone)]
pub struct Workspace {
    pub(crate) home: Home,
    pub(crate) record: Record,
}

/// What differs between a workspace and its base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The path below the workspace.
    pub path: PathBuf,
    /// What became of it.
    pub change: Changed,
    /// What it is, or was.
    pub kind: Kind,
}

/// What became of a path of a workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Changed {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Content or attributes differ.
    Modified,
    /// It had another path.
    Renamed {
        /// That path.
        from: PathBuf,
    },
}

/// One command at a time changes a workspace, as long as this lives. Its record is written with
/// this in hand only, and is what was read since.
#[derive(Debug)]
pub(crate) struct Lock(#[allow(dead_code, reason = "it is held, not read")] FileLock);

impl Lock {
    /// Waits until no other command holds the lock of the workspace whose data is in `dir`.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn of(dir: &Path) -> Result<Self> {
        Self::take(dir, FlockOperation::LockExclusive)?.ok_or_else(|| Error::io(dir, Errno::WOULDBLOCK))
    }

    /// The same, without waiting: `None` if another command holds it.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn try_of(dir: &Path) -> Result<Option<Self>> {
        Self::take(dir, FlockOperation::NonBlockingLockExclusive)
    }

    fn take(dir: &Path, operation: FlockOperation) -> Result<Option<Self>> {
        let file = dir.join("lock");
        loop {
            let open = File::options().create(true).append(true).open(&file).at(&file)?;
            let Some(lock) = FileLock::take(open, operation).at(&file)? else { return Ok(None) };
            // Its last holder may have removed it, with the workspace: then it locks nothing.
            let number = |of: std::fs::Metadata| (of.dev(), of.ino());
            if file.metadata().map(number).ok() == Some(lock.file().metadata().map(number).at(&file)?) {
                return Ok(Some(Self(lock)));
            }
        }
    }

    /// True if a command holds the lock of the workspace whose data is in `dir`, which it makes or
    /// changes.
    pub(crate) fn is_held(dir: &Path) -> bool {
        let Ok(file) = File::open(dir.join("lock")) else { return false };
        !matches!(FileLock::take(file, FlockOperation::NonBlockingLockExclusive), Ok(Some(_)))
    }
}

impl Workspace {
    /// What is recorded of it.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Where it is.
    pub fn place(&self) -> PathBuf {
        self.home.absolute(&self.record.place)
    }

    /// The directory that its changes are applied to.
    pub fn original(&self) -> PathBuf {
        self.home.absolute(&self.record.original)
    }

    /// The directory with its data.
    pub(crate) fn dir(&self) -> PathBuf {
        self.home.dir().join(&self.record.id)
    }

    /// What it was when it was made, or when its changes were applied last.
    pub fn base(&self) -> PathBuf {
        self.dir().join("base")
    }

    /// A checkpoint.
    pub(crate) fn checkpoint_dir(&self, number: u64) -> PathBuf {
        self.dir().join(format!("checkpoint-{number}"))
    }

    /// Waits until no other command changes it, reads the record anew, and removes what a crashed
    /// command has left.
    ///
    /// # Errors
    /// [`Error::Gone`]; [`Error::Interrupted`]; of the system.
    pub(crate) fn lock(&mut self, trees: &dyn Trees) -> Result<Lock> {
        let found = self.record.place.clone();
        let lock = self.lock_data()?;
        self.make_ready(trees, &lock, found)?;
        Ok(lock)
    }

    /// The same, without waiting: `None` if another command is at work on it.
    ///
    /// # Errors
    /// As for [`Workspace::lock`].
    pub(crate) fn try_lock(&mut self, trees: &dyn Trees) -> Result<Option<Lock>> {
        let found = self.record.place.clone();
        let Some(lock) = self.try_lock_data()? else { return Ok(None) };
        self.make_ready(trees, &lock, found)?;
        Ok(Some(lock))
    }

    /// As [`Workspace::lock`], for a removal that nothing keeps from happening: an apply that a
    /// crash or an error interrupted is not completed, for which there may be no space.
    ///
    /// # Errors
    /// As for [`Workspace::lock`].
    pub(crate) fn lock_to_remove(&mut self, trees: &dyn Trees) -> Result<Lock> {
        let found = self.record.place.clone();
        let lock = self.lock_data()?;
        self.find_place(&lock, found)?;
        self.keep_doubtful(trees)?;
        // What is staged in the target would stay there for ever, but takes next to nothing.
        let _ = self.remove_staging(trees, &lock);
        Ok(lock)
    }

    /// What [`Workspace::lock`] does before the workspace itself is looked at.
    ///
    /// # Errors
    /// As for [`Workspace::lock`].
    pub(crate) fn lock_data(&mut self) -> Result<Lock> {
        self.read_anew(Lock::of(&self.dir()))
    }

    /// The same, without waiting: `None` if another command is at work on it.
    ///
    /// # Errors
    /// As for [`Workspace::lock`].
    pub(crate) fn try_lock_data(&mut self) -> Result<Option<Lock>> {
        let lock = Lock::try_of(&self.dir()).transpose();
        lock.map(|lock| self.read_anew(lock)).transpose()
    }

    /// Reads the record under the lock: what was read before may have been changed since.
    fn read_anew(&mut self, lock: Result<Lock>) -> Result<Lock> {
        let gone = || Error::Gone(self.record.name.clone());
        let lock = lock.map_err(|error| match error {
            Error::Io { source, .. } if source.kind() == ErrorKind::NotFound => gone(),
            error => error,
        })?;
        let record = Record::load(&self.dir())?.ok_or_else(gone)?;
        self.record = record;
        Ok(lock)
    }

    /// Looks whether it is where the record says, or where it was `found` before.
    fn find_place(&mut self, lock: &Lock, found: PathBuf) -> Result<()> {
        if !self.complete_promotion(lock)? {
            return Err(self.interrupted());
        }
        if !self.is_at_its_place() {
            // Another command had the lock when it was found, so that was not recorded.
            self.record.place = found;
            if !self.is_at_its_place() {
                return Err(Error::Gone(self.record.name.clone()));
            }
            self.record.missing = None;
            self.store(lock)?;
        }
        Ok(())
    }

    /// Finds it, completes an apply whose renames were made before a crash or an error, and removes
    /// what the interrupted command has left.
    fn make_ready(&mut self, trees: &dyn Trees, lock: &Lock, found: PathBuf) -> Result<()> {
        self.find_place(lock, found)?;
        let applied = self.interrupted_apply()?;
        self.keep_doubtful(trees)?;
        self.note_top(lock)?;
        if let Some(note) = applied {
            self.complete_apply(trees, lock, &note)?;
        }
        let scratch = self.scratch_dir();
        if scratch.symlink_metadata().is_ok() {
            trees.remove_tree(&scratch)?;
        }
        self.remove_staging(trees, lock)
    }

    /// Completes and removes what a command that did not end has left, if there is anything, and no
    /// command is at work. Commands that change nothing do that first, so that changes that were
    /// applied before a crash show as such.
    ///
    /// # Errors
    /// If the record is gone; as for [`Trees::remove_tree`]; of the system, but not for a file
    /// system that is mounted to be read only.
    pub fn tidy(&mut self, trees: &dyn Trees) -> Result<()> {
        if self.record.staging.is_none() && self.scratch_dir().symlink_metadata().is_err() {
            return Ok(());
        }
        match self.try_lock(trees) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::ReadOnlyFilesystem => Ok(()),
            locked => locked.map(drop),
        }
    }

    pub(crate) fn scratch_dir(&self) -> PathBuf {
        self.dir().join("scratch")
    }

    /// An empty directory for the files of a command that holds the lock.
    pub(crate) fn scratch(&self) -> Result<PathBuf> {
        let dir = self.scratch_dir();
        std::fs::create_dir(&dir).at(&dir)?;
        Ok(dir)
    }

    /// Writes the record, which was read since the lock was taken.
    pub(crate) fn store(&self, _lock: &Lock) -> Result<()> {
        self.record.store(&self.dir())
    }

    /// What the workspace has become since its base, by path; without `.git` and what is below.
    ///
    /// # Errors
    /// As for [`Trees::differences`].
    pub fn differences(&self, trees: &dyn Trees) -> Result<Vec<Difference>> {
        self.of_trees(|base, place| told(changed_paths(trees, base, place)?, base, place))
    }

    /// What it had become since its base when a checkpoint was made.
    ///
    /// # Errors
    /// As for [`Trees::differences`].
    pub(crate) fn differences_at(&self, trees: &dyn Trees, number: u64) -> Result<Vec<Difference>> {
        let [base, kept] =
            [Pinned::open(&self.base())?, Pinned::open(&self.checkpoint_dir(number))?].map(Arc::new);
        told(changed_paths(trees, &base, &kept)?, &base, &kept)
    }

    /// What `look` finds in the base and in itself, held open. If another command has replaced one
    /// of them meanwhile, they are looked at once more.
    fn of_trees<T>(&self, look: impl Fn(&Arc<Pinned>, &Arc<Pinned>) -> Result<T>) -> Result<T> {
        let (base, place) = self.open_trees()?;
        let found = look(&base, &place);
        let (base_now, place_now) = self.open_trees()?;
        match (base.number()?, place.number()?) == (base_now.number()?, place_now.number()?) {
            true => found,
            false => look(&base_now, &place_now),
        }
    }

    /// Its base and itself, held open.
    ///
    /// # Errors
    /// [`Error::NoProc`]; of the system.
    pub(crate) fn open_trees(&self) -> Result<(Arc<Pinned>, Arc<Pinned>)> {
        Ok((Arc::new(Pinned::open(&self.base())?), Arc::new(Pinned::open(&self.place())?)))
    }

    /// The same, with the bytes that nothing else shares with it (`None` if the user may not
    /// know), and its limits.
    ///
    /// # Errors
    /// As for [`Trees::survey`].
    pub(crate) fn survey(&self, trees: &dyn Trees) -> Result<(Vec<Difference>, Option<u64>, TreeBytes)> {
        self.of_trees(|base, place| {
            let mut paths = Vec::new();
            let mut each = |change, path: &[u8]| add(&mut paths, change, path);
            let (own, limits) =
                place.named(base.named(trees.survey(base.path(), place.path(), &mut each)))?;
            Ok((told(in_order(paths), base, place)?, own, limits))
        })
    }
}

/// What has become of paths that may differ.
fn told(paths: Vec<(PathBuf, Change)>, base: &Arc<Pinned>, place: &Arc<Pinned>) -> Result<Vec<Difference>> {
    let mut found = Vec::new();
    for (path, change) in paths {
        let (old, new) = (entry::read(base, &path)?, entry::read(place, &path)?);
        if change == Change::Changed
            && let (Some(old), Some(new)) = (&old, &new)
            && old.is_like(new, Trust::Times)?
        {
            continue;
        }
        let (change, shown) = match (old, new) {
            (None, None) => continue,
            (None, Some(new)) => (Changed::Added, new),
            (Some(old), None) => (Changed::Removed, old),
            (Some(_), Some(new)) => (Changed::Modified, new),
        };
        found.push((Difference { path, change, kind: shown.kind }, shown.number));
    }
    match found.is_empty() {
        true => Ok(Vec::new()),
        false => Ok(pair_renames(found, base.number()?, place.number()?)),
    }
}

/// Makes one rename of what is gone here and new there with the same identity: the number less that
/// of the top directory.
fn pair_renames(found: Vec<(Difference, u64)>, base: u64, place: u64) -> Vec<Difference> {
    // A file may have lost several names.
    let mut gone: HashMap<u64, VecDeque<PathBuf>> = HashMap::new();
    for (difference, number) in found.iter().filter(|(one, _)| one.change == Changed::Removed) {
        gone.entry(number.wrapping_sub(base)).or_default().push_back(difference.path.clone());
    }
    let mut moved = HashSet::new();
    let mut all: Vec<Difference> = found
        .into_iter()
        .map(|(mut difference, number)| {
            if difference.change == Changed::Added
                && let Some(from) = gone.get_mut(&number.wrapping_sub(place)).and_then(VecDeque::pop_front)
            {
                moved.insert(from.clone());
                difference.change = Changed::Renamed { from };
            }
            difference
        })
        .collect();
    all.retain(|d| d.change != Changed::Removed || !moved.contains(&d.path));
    all
}

/// What version control keeps for itself, by names of its own; only it can merge that.
const OF_VERSION_CONTROL: [&[u8]; 2] = [b".git", b".jj"];

/// The paths that differ, sorted, with what the comparison says about each; without what version
/// control keeps for itself.
///
/// # Errors
/// As for [`Trees::differences`].
pub(crate) fn changed_paths(trees: &dyn Trees, old: &Pinned, new: &Pinned) -> Result<Vec<(PathBuf, Change)>> {
    let mut all = all_changed_paths(trees, old, new)?;
    all.retain(|(path, _)| !is_of_version_control(path.as_os_str().as_bytes()));
    Ok(all)
}

/// The same with what version control keeps.
///
/// # Errors
/// As for [`Trees::differences`].
pub(crate) fn all_changed_paths(
    trees: &dyn Trees,
    old: &Pinned,
    new: &Pinned,
) -> Result<Vec<(PathBuf, Change)>> {
    let mut all = Vec::new();
    let mut each = |change, path: &[u8]| all.push((PathBuf::from(OsStr::from_bytes(path)), change));
    new.named(old.named(trees.differences(old.path(), new.path(), &mut each)))?;
    Ok(in_order(all))
}

/// Adds a path that may differ, but not what version control keeps.
fn add(all: &mut Vec<(PathBuf, Change)>, change: Change, path: &[u8]) {
    if !is_of_version_control(path) {
        all.push((PathBuf::from(OsStr::from_bytes(path)), change));
    }
}

/// True for what version control keeps for itself: it is neither compared nor applied.
pub(crate) fn is_of_version_control(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| OF_VERSION_CONTROL.contains(&name))
}

/// Each path once: a file with several names may be told twice.
fn in_order(mut all: Vec<(PathBuf, Change)>) -> Vec<(PathBuf, Change)> {
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all.dedup_by(|a, b| a.0 == b.0);
    all
}

/// The identifier in the attribute of a directory that is a workspace, and no copy of one.
pub(crate) fn identifier(dir: &Path) -> Option<String> {
    let (id, number) = attribute(dir)?;
    let own = dir.symlink_metadata().ok()?.ino();
    (number == own).then_some(id)
}

/// What the attribute of a workspace, or of a copy of one, says: the identifier, and the number of
/// the workspace's top directory.
pub(crate) fn attribute(dir: &Path) -> Option<(String, u64)> {
    let mut value = [0; ATTRIBUTE_BYTES];
    let length = rustix::fs::lgetxattr(dir, ATTRIBUTE, &mut value).ok()?;
    let (id, number) = std::str::from_utf8(value.get(..length)?).ok()?.split_once(' ')?;
    Some((id.to_owned(), number.parse().ok()?))
}

/// Makes a directory the one that bears an identifier.
pub(crate) fn set_identifier(dir: &Path, id: &str) -> Result<()> {
    let number = dir.metadata().at(dir)?.ino();
    let value = format!("{id} {number}");
    rustix::fs::setxattr(dir, ATTRIBUTE, value.as_bytes(), XattrFlags::empty()).map_err(|error| match error {
        Errno::OPNOTSUPP => Error::Unsuitable(format!(
            "{}: the file system is mounted without extended attributes (-o noxattr); workspaces need them",
            dir.display()
        )),
        error => Error::io(dir, error),
    })
}

/// Takes the identifier from a directory, if it has one.
pub(crate) fn clear_identifier(dir: &Path) -> Result<()> {
    match rustix::fs::removexattr(dir, ATTRIBUTE) {
        Err(Errno::NODATA) => Ok(()),
        done => done.at(dir),
    }
}

#[cfg(test)]
mod tests;
