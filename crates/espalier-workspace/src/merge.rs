//! Merges text that both sides changed, by `git merge-file`.

use crate::entry::Kind;
use crate::error::{AtPath, Error, Result, no_git};
use crate::git_command::git_command;
use crate::plan::{Conflict, Item, Plan};
use crate::three_way::{ConflictKind, Decision, Pick};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// Git takes a file for binary if it has a zero byte among the first so many.
const TEXT_BYTES: u64 = 8000;

/// Merges the files with conflicts of content for which that succeeds, into the directory `into`.
///
/// # Errors
/// [`Error::Program`] without git; of the system.
pub(crate) fn merge_texts(plan: &mut Plan, into: &Path) -> Result<()> {
    let (mut left, conflicts) = (Vec::new(), std::mem::take(&mut plan.conflicts));
    let mut merged = Merged { into, files: HashMap::new() };
    for conflict in conflicts {
        let item = plan.items.get_mut(&conflict.path).filter(|_| conflict.kind == ConflictKind::Content);
        let Some(item) = item else {
            left.push(conflict);
            continue;
        };
        match merged.merge(item)? {
            Ok(file) => item.merged = Some(file),
            Err(kind) => {
                let what = match kind {
                    ConflictKind::Mode => "both changed mode, owner or extended attributes".into(),
                    _ => conflict.what,
                };
                left.push(Conflict { path: conflict.path, kind, what });
            }
        }
        if let (true, Some(attributes)) = (item.merged.is_some(), item.attributes) {
            item.decision = Decision::Mix { content: Pick::Target, attributes };
        }
    }
    plan.conflicts = left;
    Ok(())
}

/// What was merged so far.
struct Merged<'a> {
    /// The directory of the files.
    into: &'a Path,
    /// By their texts: one text is in one file.
    files: HashMap<Vec<u8>, PathBuf>,
}

impl Merged<'_> {
    /// The file with a merged text.
    fn file(&mut self, text: Vec<u8>) -> Result<PathBuf> {
        let file = self.into.join(self.files.len().to_string());
        match self.files.entry(text) {
            Entry::Occupied(known) => Ok(known.get().clone()),
            Entry::Vacant(new) => {
                std::fs::create_dir_all(self.into).at(self.into)?;
                std::fs::write(&file, new.key()).at(&file)?;
                Ok(new.insert(file).clone())
            }
        }
    }

    /// A file with the merged text of a path, or the kind of the conflict that is left.
    fn merge(&mut self, item: &Item) -> Result<std::result::Result<PathBuf, ConflictKind>> {
        match merge_item(item, self.into)? {
            Ok(text) => self.file(text).map(Ok),
            Err(kind) => Ok(Err(kind)),
        }
    }
}

/// The merged text, or the kind of the conflict that is left. Git gets copies in the directory
/// `into`: it opens files by name, and what another user puts there would not be what was compared.
fn merge_item(item: &Item, into: &Path) -> Result<std::result::Result<Vec<u8>, ConflictKind>> {
    let (Some(base), Some(workspace), Some(target)) = (&item.base, &item.workspace, &item.target) else {
        return Ok(Err(ConflictKind::Content));
    };
    for entry in [base, workspace, target] {
        if entry.kind != Kind::File || !is_text(entry)? {
            return Ok(Err(ConflictKind::Content));
        }
    }
    std::fs::create_dir_all(into).at(into)?;
    let mut command = git_command();
    command.args(["merge-file", "-p", "-q"]);
    for (name, entry) in [("target", target), ("base", base), ("workspace", workspace)] {
        let copy = into.join(name);
        let (mut from, mut to) = (entry.open()?, File::create(&copy).at(&copy)?);
        std::io::copy(&mut from, &mut to).at(&entry.name())?;
        command.arg(copy);
    }
    let out = command.stdin(Stdio::null()).output();
    let failed = |what: String| Error::Program { program: "git merge-file".into(), what };
    let out = out.map_err(|error| failed(no_git(&error)))?;
    match out.status.code() {
        Some(0) if item.attributes.is_none() => Ok(Err(ConflictKind::Mode)),
        Some(0) => Ok(Ok(out.stdout)),
        // So many conflicts.
        Some(1..=127) => Ok(Err(ConflictKind::Content)),
        _ => Err(failed(String::from_utf8_lossy(&out.stderr).trim().to_owned())),
    }
}

fn is_text(entry: &crate::entry::Entry) -> Result<bool> {
    let mut head = Vec::new();
    entry.open()?.take(TEXT_BYTES).read_to_end(&mut head).at(&entry.name())?;
    Ok(!head.contains(&0))
}

#[cfg(test)]
mod tests;
