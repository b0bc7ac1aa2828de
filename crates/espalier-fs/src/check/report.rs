//! What a check has found.

use crate::check::paths::path_of;
use espalier_engine::{Cursor, Key};

/// A rule of the format that the volume breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckProblem {
    /// The path concerned.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// What a check has found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Problems, at most [`MAX_PROBLEMS`] of them.
    pub problems: Vec<CheckProblem>,
    /// Problems beyond those listed.
    pub more_problems: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Everything else; a file with several names once.
    pub files: u64,
    /// Names of files that have, or had, several.
    pub links: u64,
    /// Blocks of data.
    pub blocks: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Bytes of room that the store keeps for reserved blocks.
    pub reserved: u64,
    /// Unlinked files that are still in use, or wait to be removed by the next mount.
    pub orphans: u64,
}

/// Problems listed in a report.
pub const MAX_PROBLEMS: usize = 1000;

/// Keys between calls of the progress function.
pub(crate) const PROGRESS_EVERY_KEYS: u64 = 4096;

/// The report that a check is writing, and its progress.
pub(crate) struct Findings<'a> {
    pub(crate) report: CheckReport,
    pub(crate) keys: u64,
    pub(crate) progress: &'a mut dyn FnMut(u64),
}

impl Findings<'_> {
    pub(crate) fn problem(&mut self, path: impl Into<String>, message: impl Into<String>) {
        if self.report.problems.len() < MAX_PROBLEMS {
            self.report.problems.push(CheckProblem { path: path.into(), message: message.into() });
        } else {
            self.report.more_problems += 1;
        }
    }

    pub(crate) fn count_key(&mut self) {
        self.keys += 1;
        if self.keys.is_multiple_of(PROGRESS_EVERY_KEYS) {
            (self.progress)(self.keys);
        }
    }

    /// The next key and value of a walk; a problem ends it.
    pub(crate) fn next(
        &mut self,
        cursor: &mut Cursor,
        what: &str,
        after: &[u8],
    ) -> Option<(Key, bytes::Bytes)> {
        let entry = cursor.next().and_then(|entry| match entry {
            Some(entry) => cursor.read(&entry.value).map(|value| Some((entry.key, value))),
            None => Ok(None),
        });
        match entry {
            Ok(next) => {
                self.count_key();
                next
            }
            Err(error) => {
                self.problem(path_of(after), format!("{what} behind this cannot be read: {error}"));
                None
            }
        }
    }
}
