//! Makes git in an original ask the mount what changed, so that every workspace that is made of it
//! begins with an index in which nothing has to be looked at.
//!
//! The mount does not accept the first token that it gives out for a directory, nor those of the
//! next second (docs/design/changes.md). So git looks at everything until its token is good, if
//! that takes it so long that something is to be won.

use crate::changes::changes_since;
use crate::error::Result;
use crate::git::{GitNote, add_setting, hook_setting};
use crate::git_command::git_command;
use crate::git_files::{GitDir, effective_user};
use crate::git_index::{self, IndexEnd};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// What any setting of the hook contains.
const SETTING: &str = "fsmonitor";
/// Tokens are good that are given out so long after the first one.
const UNTIL_GOOD: Duration = Duration::from_millis(1100);
/// So often git looks at everything. The second time is enough, if nothing happens in between.
const LOOKS: u32 = 3;
/// Nothing is to be won where looking at everything takes no longer.
const SHORT: Duration = Duration::from_millis(100);

/// What was done in an original.
#[derive(Default)]
pub(crate) struct Warmed {
    pub(crate) note: Option<GitNote>,
    /// The end of its index, if that is good.
    pub(crate) index: Option<IndexEnd>,
}

/// Sets the hook in the repository of `original`, unless a hook is set there or refused, and has
/// git look at everything if the mount cannot tell what changed since the index was written.
/// Nothing is done in a repository of another user than the caller, root included: its settings
/// say which programs git runs.
///
/// # Errors
/// Of the system. What the caller may not change there, or git does not do, is left.
pub(crate) fn warm(original: &Path, hook: &str) -> Result<Warmed> {
    let tree = GitDir::open(original, Some(effective_user()))?;
    let git = tree.map(|tree| tree.below(Path::new(".git"))).transpose()?.flatten();
    let Some(git) = git else { return Ok(Warmed::default()) };
    let mut warmed = look(original, &git, hook)?;
    if warmed.index.as_ref().is_some_and(IndexEnd::lacks_room) {
        warmed.index = match git_index::make_room(&git, original)? {
            true => read_index(&git)?,
            false => None,
        };
    }
    Ok(warmed)
}

fn look(original: &Path, git: &GitDir, hook: &str) -> Result<Warmed> {
    let nothing = Ok(Warmed::default());
    let index = git.file(OsStr::new("index"), OFlags::RDONLY)?;
    let (Some(text), Some(_)) = (read_config(git)?, index) else { return nothing };
    let text = String::from_utf8_lossy(&text);
    let is_set = text.contains(hook_setting(hook).lines().nth(1).unwrap_or(hook).trim());
    if !is_set && text.to_ascii_lowercase().contains(SETTING) {
        return nothing;
    }
    if is_set && let Some(index) = warm_index(original, git)? {
        return Ok(Warmed { note: None, index: Some(index) });
    }
    if !is_set && !add(git, hook)? {
        return nothing;
    }
    let mut end = None;
    for _ in 0..LOOKS {
        let begun = Instant::now();
        if !look_at_everything(original) {
            return nothing;
        }
        end = warm_index(original, git)?;
        if begun.elapsed() < SHORT || end.is_some() {
            break;
        }
        std::thread::sleep(UNTIL_GOOD);
    }
    Ok(Warmed { note: Some(GitNote::WarmedOriginal(original.to_owned())), index: end })
}

/// The configuration; `None` also if the caller may not read it.
fn read_config(git: &GitDir) -> Result<Option<Vec<u8>>> {
    match git.read("config") {
        Err(crate::Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => Ok(None),
        read => read,
    }
}

/// The end of the index.
fn read_index(git: &GitDir) -> Result<Option<IndexEnd>> {
    match git.file(OsStr::new("index"), OFlags::RDONLY)? {
        Some(file) => IndexEnd::read_from(&file, &git.path().join("index")),
        None => Ok(None),
    }
}

/// The end of the index, if the mount can tell what changed since that was written.
fn warm_index(original: &Path, git: &GitDir) -> Result<Option<IndexEnd>> {
    let end = read_index(git)?;
    let Some(token) = end.as_ref().and_then(IndexEnd::fsmonitor_token) else { return Ok(None) };
    let is_warm = changes_since(original, token).is_ok_and(|changes| !changes.everything);
    Ok(end.filter(|_| is_warm))
}

/// Adds the setting; false if the caller may not.
fn add(git: &GitDir, hook: &str) -> Result<bool> {
    match add_setting(git, &hook_setting(hook)) {
        Err(crate::Error::Io { source, .. })
            if matches!(source.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
        {
            Ok(false)
        }
        done => done,
    }
}

/// Has git write its index anew; false if it cannot.
fn look_at_everything(original: &Path) -> bool {
    let mut git = git_command();
    git.arg("-C").arg(original).args(["status", "--porcelain"]);
    let done = git.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    done.is_ok_and(|status| status.success())
}
