//! What was changed below a directory since an instant, as the mount tells it, and as git's
//! `core.fsmonitor` hook (protocol 2) wants to hear it.

use crate::error::{AtPath, Result};
use crate::procfs::mount_points;
use crate::trees::{ask, cut_off, explain, take_differences};
use espalier_fuse::control;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// What was changed below a directory since an instant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Names the instant of this answer, for the next question.
    pub token: Vec<u8>,
    /// Anything may have changed; no paths are given.
    pub everything: bool,
    /// Paths relative to the directory. One that ends with a slash stands for a directory with
    /// everything below.
    pub paths: Vec<Vec<u8>>,
}

/// Asks the mount what was changed below a directory since the answer that `token` came with.
/// Where the kernel keeps written data to itself (`-o writeback`), the file system is synchronized
/// first.
///
/// # Errors
/// As for [`Trees::differences`](crate::Trees::differences).
pub fn changes_since(dir: &Path, token: &[u8]) -> Result<Changes> {
    let file = File::open(dir).at(dir)?;
    let mut flags = 0;
    loop {
        // A token that is too long is none of the server's.
        let argument = control::changes_argument(token, 0, flags);
        let mut answer = argument.unwrap_or_else(|| vec![0; control::size(control::CHANGES)]);
        ask(&file, control::CHANGES, &mut answer).map_err(|error| explain(error, dir))?;
        let (token, session, said) = control::changes_answer(&answer).ok_or_else(|| cut_off(dir))?;
        if said & control::CHANGES_UNSYNCED != 0 && flags == 0 {
            rustix::fs::syncfs(&file).at(dir)?;
            flags = control::CHANGES_SYNCED;
            continue;
        }
        let everything = said & control::CHANGES_EVERYTHING != 0;
        let mut changes = Changes { token: token.to_vec(), everything, paths: Vec::new() };
        if session != 0 {
            take_differences((&file, dir), &session.to_ne_bytes(), &mut |_, path| {
                changes.paths.push(path.to_vec());
            })?;
        }
        return Ok(changes);
    }
}

impl Changes {
    /// As git reads it: the token, then the paths, each ended by a NUL; the path `/` stands for
    /// everything.
    pub fn for_git(&self) -> Vec<u8> {
        let everything: &[Vec<u8>] = &[b"/".to_vec()];
        let paths = if self.everything { everything } else { &self.paths };
        let mut out = self.token.clone();
        out.push(0);
        for path in paths {
            out.extend_from_slice(path);
            out.push(0);
        }
        out
    }

    /// Adds the places below `dir` where something else is mounted, of which the server of `dir`
    /// knows nothing.
    ///
    /// # Errors
    /// [`Error::NoProc`](crate::Error::NoProc); of the system.
    pub fn add_mounts_below(&mut self, dir: &Path) -> Result<()> {
        let top = dir.canonicalize().at(dir)?;
        for place in mount_points()? {
            if let Ok(below) = place.strip_prefix(&top)
                && below.as_os_str() != ""
            {
                self.paths.push([below.as_os_str().as_bytes(), b"/"].concat());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
