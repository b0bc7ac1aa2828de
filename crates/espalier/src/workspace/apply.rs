//! `espalier workspace apply`.

use super::asked::{Asked, TREES, paths_below, shown};
use crate::args::WorkspaceApply;
use crate::problem::Exit;
use crate::ui::{complain, say};
use anyhow::Result;
use espalier_workspace::{Apply, ApplyOutcome, Change, Conflict, Prefer};
use serde_json::{Value, json};

pub(super) fn run(asked: &Asked<'_>, args: &WorkspaceApply) -> Result<Exit> {
    let mut workspace = asked.find(&args.name)?;
    let prefer = match (args.theirs, args.ours) {
        (true, _) => Prefer::Workspace,
        (_, true) => Prefer::Target,
        _ => Prefer::Neither,
    };
    let target = args.to.clone().unwrap_or_else(|| workspace.original());
    let paths = paths_below(&workspace, &args.paths, &target)?;
    let apply = Apply { to: args.to.as_deref(), check: args.check, paths: &paths, prefer, merge: args.merge };
    match apply.run(&TREES, &mut workspace)? {
        ApplyOutcome::Applied(applied) => {
            if asked.json {
                let all: Vec<Value> = applied
                    .iter()
                    .map(|a| json!({"path": shown(&a.path), "change": word(a.change), "merged": a.merged}))
                    .collect();
                let done = !args.check;
                say!("{}", json!({"applied": all, "to": shown(&target), "done": done, "conflicts": []}));
                return Ok(Exit::Success);
            }
            for one in &applied {
                let merged = if one.merged { "  (merged)" } else { "" };
                say!("{} {}{merged}", sign(one.change), one.path.display());
            }
            Ok(Exit::Success)
        }
        ApplyOutcome::Conflicts(conflicts) => {
            tell_conflicts(asked, &conflicts, &shown(&target));
            Ok(Exit::Failure)
        }
    }
}

fn tell_conflicts(asked: &Asked<'_>, conflicts: &[Conflict], target: &str) {
    if asked.json {
        let all: Vec<Value> = conflicts
            .iter()
            .map(|c| json!({"path": shown(&c.path), "kind": c.kind.word(), "what": c.what}))
            .collect();
        say!("{}", json!({"applied": [], "to": target, "done": false, "conflicts": all}));
        return;
    }
    for conflict in conflicts {
        say!("! {:8} {}: {}", conflict.kind.word(), conflict.path.display(), conflict.what);
    }
    complain!(
        "espalier workspace apply: nothing was changed, because of {}; name paths, or use --merge, --theirs (the \
         workspace's) or --ours (the original's)",
        if conflicts.len() == 1 { "a conflict".into() } else { format!("{} conflicts", conflicts.len()) }
    );
}

fn sign(change: Change) -> char {
    match change {
        Change::Added => '+',
        Change::Removed => '-',
        Change::Changed => '~',
    }
}

fn word(change: Change) -> &'static str {
    match change {
        Change::Added => "added",
        Change::Removed => "removed",
        Change::Changed => "changed",
    }
}
