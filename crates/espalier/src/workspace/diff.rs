//! `espalier workspace diff`.

use super::asked::{Asked, TREES, paths_below, shown};
use crate::args::WorkspaceDiff;
use crate::problem::Exit;
use crate::ui::{self, say};
use anyhow::{Context, Result};
use espalier_workspace::{Changed, Difference, patch, statistics};
use serde_json::{Value, json};

pub(super) fn run(asked: &Asked<'_>, args: &WorkspaceDiff) -> Result<Exit> {
    let mut workspace = asked.find(&args.name)?;
    workspace.tidy(&TREES)?;
    let mut differences = workspace.differences(&TREES)?;
    let paths = paths_below(&workspace, &args.paths);
    differences.retain(|d| paths.is_empty() || paths.iter().any(|path| d.path.starts_with(path)));
    if args.patch || args.stat {
        let text = if args.patch {
            patch(&TREES, &mut workspace, &differences)?
        } else {
            statistics(&TREES, &mut workspace, &differences)?
        };
        if asked.json {
            say!("{}", json!({"name": workspace.record().name, "text": String::from_utf8_lossy(&text)}));
            return Ok(Exit::Success);
        }
        return ui::print_bytes(&text).context("standard output cannot be written").map(|()| Exit::Success);
    }
    if asked.json {
        let changes: Vec<Value> = differences.iter().map(describe).collect();
        say!("{}", json!({"name": workspace.record().name, "changes": changes}));
        return Ok(Exit::Success);
    }
    for difference in &differences {
        let path = difference.path.display();
        match &difference.change {
            _ if args.name_only => say!("{path}"),
            Changed::Added => say!("+ {path}"),
            Changed::Removed => say!("- {path}"),
            Changed::Modified => say!("~ {path}"),
            Changed::Renamed { from } => say!("> {} -> {path}", from.display()),
        }
    }
    Ok(Exit::Success)
}

fn describe(difference: &Difference) -> Value {
    let (change, from) = match &difference.change {
        Changed::Added => ("added", None),
        Changed::Removed => ("removed", None),
        Changed::Modified => ("changed", None),
        Changed::Renamed { from } => ("renamed", Some(shown(from))),
    };
    json!({"path": shown(&difference.path), "change": change, "kind": difference.kind.word(), "from": from})
}
