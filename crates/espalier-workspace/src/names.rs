//! Names: for each a symbolic link in the home, to the data of the workspace that bears it. So a
//! name is found, and is known to be taken, without reading the records of all workspaces.
//!
//! Invariant: a name belongs to one workspace of a home, because making a link fails where one is.
//! Links say nothing that records do not say. One that leads to no workspace is left by a crash or
//! by `rm -rf`: the name can be taken all the same, and `gc` removes the link. A name without a
//! link is looked for among all records.

use crate::error::{AtPath, Error, Result};
use crate::file_lock::FileLock;
use crate::home::Home;
use crate::record::Record;
use crate::workspace::Workspace;
use rustix::fs::FlockOperation;
use std::fs::{DirBuilder, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

/// The directory of the links in a home.
const NAMES: &str = "names";

impl Home {
    /// The link of a name.
    pub(crate) fn name_link(&self, name: &str) -> PathBuf {
        self.dir().join(NAMES).join(name)
    }

    /// The workspace that bears a name here, wherever it is now.
    ///
    /// # Errors
    /// Of the system; [`Error::Damaged`].
    pub(crate) fn named(&self, name: &str) -> Result<Option<Workspace>> {
        let link = self.name_link(name);
        let Ok(data) = std::fs::read_link(&link) else { return Ok(None) };
        let Some(id) = data.file_name() else { return Ok(None) };
        let record = Record::load(&self.dir().join(id))?;
        // Not what a user has linked there by hand.
        let record = record.filter(|record| record.name == name);
        Ok(record.map(|record| Workspace { home: self.clone(), record }))
    }

    /// Gives a name to the workspace with the data in `id`.
    ///
    /// # Errors
    /// [`Error::Name`] if another has it; of the system.
    pub(crate) fn take_name(&self, name: &str, id: &str) -> Result<()> {
        let (dir, link) = (self.dir().join(NAMES), self.name_link(name));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(Error::io(&dir, error)),
            _ => {}
        }
        let _names = self.lock_names(FlockOperation::LockExclusive)?;
        match symlink(Path::new("..").join(id), &link) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(taken(name)),
            made => made.at(&link),
        }
    }

    /// Frees a name, if it is that of the workspace with the data in `id`.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn free_name(&self, name: &str, id: &str) -> Result<()> {
        let _names = self.lock_names(FlockOperation::LockExclusive)?;
        let link = self.name_link(name);
        match std::fs::read_link(&link) {
            Ok(data) if data.ends_with(id) => std::fs::remove_file(&link).at(&link),
            _ => Ok(()),
        }
    }

    /// Frees a name that is none of a workspace.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn free_dangling_name(&self, name: &str) -> Result<()> {
        let _names = self.lock_names(FlockOperation::LockExclusive)?;
        let link = self.name_link(name);
        match link.symlink_metadata().is_ok() && self.named(name)?.is_none() {
            true => std::fs::remove_file(&link).at(&link),
            false => Ok(()),
        }
    }

    /// As long as it lives no other command changes names: each looks what a name is before it
    /// frees it. `None` if there are none, or if another command has the lock and `operation` does
    /// not wait.
    fn lock_names(&self, operation: FlockOperation) -> Result<Option<FileLock>> {
        let dir = self.dir().join(NAMES);
        let open = match File::open(&dir) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            open => open.at(&dir)?,
        };
        FileLock::take(open, operation).at(&dir)
    }

    /// Removes links that lead to no data, unless a command changes names at this time.
    ///
    /// # Errors
    /// Of the system.
    pub(crate) fn remove_dangling_names(&self) -> Result<()> {
        let Some(_names) = self.lock_names(FlockOperation::NonBlockingLockExclusive)? else {
            return Ok(());
        };
        let Ok(links) = self.dir().join(NAMES).read_dir() else { return Ok(()) };
        for link in links {
            let link = link.at(self.dir())?.path();
            if link.metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound) {
                std::fs::remove_file(&link).at(&link)?;
            }
        }
        Ok(())
    }
}

/// Refuses names that would be taken for paths or options.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let bad = name.is_empty()
        || name.len() > 200
        || name.starts_with(['.', '-'])
        || name.contains('/')
        || name.chars().any(char::is_control);
    match bad {
        true => Err(Error::Name(format!(
            "'{name}' cannot be the name of a workspace: up to 200 bytes, no '/', and no '.' or '-' in front"
        ))),
        false => Ok(()),
    }
}

/// The error for a name that another workspace has.
pub(crate) fn taken(name: &str) -> Error {
    Error::Name(format!("there is a workspace '{name}' already"))
}
