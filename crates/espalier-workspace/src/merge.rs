//! Merges text that both sides changed, by `git merge-file`.

use crate::entry::{Entry, Kind};
use crate::error::{AtPath, Error, Result, no_git};
use crate::git_command::git_command;
use crate::plan::{Conflict, Item, Plan};
use crate::three_way::{ConflictKind, Decision, Pick};
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
    for conflict in conflicts {
        let item = plan.items.get_mut(&conflict.path).filter(|_| conflict.kind == ConflictKind::Content);
        let Some(item) = item else {
            left.push(conflict);
            continue;
        };
        match merge_item(item, into)? {
            Ok(merged) => item.merged = Some(merged),
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

/// A file with the merged text, or the kind of the conflict that is left.
fn merge_item(item: &Item, into: &Path) -> Result<std::result::Result<PathBuf, ConflictKind>> {
    let (Some(base), Some(workspace), Some(target)) = (&item.base, &item.workspace, &item.target) else {
        return Ok(Err(ConflictKind::Content));
    };
    for entry in [base, workspace, target] {
        if entry.kind != Kind::File || !is_text(entry)? {
            return Ok(Err(ConflictKind::Content));
        }
    }
    let mut command = git_command();
    command.args(["merge-file", "-p", "-q"]).args([&target.path, &base.path, &workspace.path]);
    let out = command.stdin(Stdio::null()).output();
    let failed = |what: String| Error::Program { program: "git merge-file".into(), what };
    let out = out.map_err(|error| failed(no_git(&error)))?;
    match out.status.code() {
        Some(0) if item.attributes.is_none() => Ok(Err(ConflictKind::Mode)),
        Some(0) => {
            std::fs::create_dir_all(into).at(into)?;
            let number = into.read_dir().at(into)?.count();
            let file = into.join(number.to_string());
            std::fs::write(&file, &out.stdout).at(&file)?;
            Ok(Ok(file))
        }
        // So many conflicts.
        Some(1..=127) => Ok(Err(ConflictKind::Content)),
        _ => Err(failed(String::from_utf8_lossy(&out.stderr).trim().to_owned())),
    }
}

fn is_text(entry: &Entry) -> Result<bool> {
    let mut head = Vec::new();
    let file = std::fs::File::open(&entry.path).at(&entry.path)?;
    file.take(TEXT_BYTES).read_to_end(&mut head).at(&entry.path)?;
    Ok(!head.contains(&0))
}
