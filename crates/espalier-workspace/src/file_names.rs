//! Files with several names (hard links) in what is staged: which names lead to one file.
//!
//! Names that lead to one file in the workspace, and that an apply brings, lead to one file in the
//! target, if they are made of the same. If the target has the file already, because another name
//! of it is alike on both sides, they become names of that. All else is decided path by path: which
//! names share a file is no change by itself.

use crate::entry::{Entry, expected};
use crate::error::{AtPath, Error, Result};
use crate::plan::Item;
use crate::three_way::{Decision, Pick};
use crate::trees::{Expected, Step};
use rustix::fs::{AtFlags, CWD, linkat};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What a file is made of: names of which this is equal are names of one file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Made {
    /// The number of the workspace's file.
    workspace: u64,
    /// That of the target's, if something of it is kept.
    target: Option<u64>,
    /// The file with the merged text: names of the same two files may have different ones, because
    /// they had different files before.
    text: Option<PathBuf>,
    /// Which side has the content (none if it is merged), and which the attributes.
    picks: (Option<Pick>, Option<Pick>),
}

impl Made {
    /// What the file of a path is made of; `None` if the workspace has no other name of it.
    pub(crate) fn of(item: &Item, source: &Entry) -> Option<Self> {
        if !source.has_names() {
            return None;
        }
        let target = item.target.as_ref().map(|target| target.number);
        let (workspace, both) = (source.number, Some(Pick::Workspace));
        Some(match item.decision {
            _ if item.merged.is_some() => {
                Self { workspace, target, text: item.merged.clone(), picks: (None, item.attributes) }
            }
            Decision::Mix { content, attributes } => {
                Self { workspace, target, text: None, picks: (Some(content), Some(attributes)) }
            }
            _ => Self { workspace, target: None, text: None, picks: (both, both) },
        })
    }

    /// True if it is the workspace's file as it is.
    fn is_taken(&self) -> bool {
        self.target.is_none()
    }
}

/// The files that were staged so far.
pub(crate) struct FileNames<'a> {
    /// Where the first name of each is; `None`: each name becomes a file of its own.
    files: Option<HashMap<Made, PathBuf>>,
    /// What the target has already, by the number of the workspace's file.
    present: &'a HashMap<u64, Entry>,
    /// Files of the target that got names here, by number: as what they were compared, and what
    /// they are now. A further name changes the time of change.
    linked: HashMap<u64, (Expected, Expected)>,
}

impl<'a> FileNames<'a> {
    /// Names of one file stay such.
    pub(crate) fn kept(present: &'a HashMap<u64, Entry>) -> Self {
        Self { files: Some(HashMap::new()), present, linked: HashMap::new() }
    }

    /// Each name becomes a file of its own.
    pub(crate) fn apart(present: &'a HashMap<u64, Entry>) -> Self {
        Self { files: None, present, linked: HashMap::new() }
    }

    /// Notes that `at` is the first name of a file.
    pub(crate) fn add(&mut self, made: Option<Made>, at: &Path) {
        if let (Some(made), Some(files)) = (made, &mut self.files) {
            files.entry(made).or_insert_with(|| at.to_owned());
        }
    }

    /// Makes `at`, where nothing is, a name of the file that is made of the same. False if there is
    /// none.
    ///
    /// # Errors
    /// [`Error::Meanwhile`] if the file is not what was compared; of the system.
    pub(crate) fn link(&mut self, made: Option<&Made>, at: &Path) -> Result<bool> {
        let (Some(made), Some(files)) = (made, &mut self.files) else { return Ok(false) };
        if let Some(first) = files.get(made) {
            return is_linked(linkat(CWD, first, CWD, at, AtFlags::empty()), at);
        }
        let Some(present) = self.present.get(&made.workspace).filter(|_| made.is_taken()) else {
            return Ok(false);
        };
        // A link gives the file a new time of change, by which a change by others no longer shows.
        let compared = self.linked.get(&present.number).map_or(present.expected(), |(_, now)| *now);
        let meanwhile = || Error::Meanwhile(present.name());
        let held = present.hold()?;
        if expected(&held.metadata().at(&present.name())?) != compared {
            return Err(meanwhile());
        }
        if !is_linked(linkat(CWD, held.path(), CWD, at, AtFlags::SYMLINK_FOLLOW), at)? {
            return Ok(false);
        }
        files.insert(made.clone(), at.to_owned());
        let now = at.symlink_metadata().at(at)?;
        if !is_same(&now, &present.metadata) {
            return Err(meanwhile());
        }
        self.linked.insert(present.number, (present.expected(), expected(&now)));
        Ok(true)
    }

    /// The same for `at` where a copy of the file is, which goes; `free` is where nothing is. True
    /// without a change if both are one file.
    ///
    /// # Errors
    /// As for [`FileNames::link`].
    pub(crate) fn link_over(&mut self, made: Option<&Made>, at: &Path, free: &Path) -> Result<bool> {
        let (Some(of), Some(files)) = (made, &self.files) else { return Ok(false) };
        let number = |path: &Path| path.symlink_metadata().at(path).map(|found| found.ino());
        if let Some(first) = files.get(of)
            && number(first)? == number(at)?
        {
            return Ok(true);
        }
        if !self.link(made, free)? {
            return Ok(false);
        }
        std::fs::rename(free, at).at(at)?;
        if let Some(first) = self.files.as_mut().and_then(|files| files.get_mut(of)).filter(|f| *f == free) {
            *first = at.to_owned();
        }
        Ok(true)
    }

    /// Steps expect files of the target as they are since they got names.
    pub(crate) fn renew(&self, steps: &mut [Step]) {
        for step in steps {
            let (Step::Leave { expected, .. }
            | Step::Exchange { expected, .. }
            | Step::Attributes { expected, .. }) = step
            else {
                continue;
            };
            if let Some((compared, now)) = self.linked.get(&expected.number)
                && compared == expected
            {
                *expected = *now;
            }
        }
    }
}

/// False if the system has refused `at` as a further name of a file, because of a limit on the tree
/// or on names, or because the file is not the caller's.
fn is_linked(done: rustix::io::Result<()>, at: &Path) -> Result<bool> {
    match done {
        Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::ACCESS) => Ok(false),
        done => done.at(at).map(|()| true),
    }
}

/// True if the file is what was compared, but for its names.
fn is_same(now: &Metadata, compared: &Metadata) -> bool {
    let told =
        |of: &Metadata| (of.ino(), of.size(), of.mtime(), of.mtime_nsec(), of.mode(), of.uid(), of.gid());
    told(now) == told(compared)
}
