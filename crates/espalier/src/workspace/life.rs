//! `espalier workspace checkpoint`, `log`, `undo`, `promote`, `exec`, `discard` and `gc`.

use super::asked::{Asked, TREES, not_run, processes_around, shown};
use crate::args::{
    WorkspaceCheckpoint, WorkspaceDiscard, WorkspaceExec, WorkspaceForce, WorkspaceGc, WorkspaceName,
    WorkspaceUndo,
};
use crate::problem::Exit;
use crate::ui::{complain, say};
use crate::units::date;
use anyhow::Result;
use espalier_workspace::{Checkpoint, Collect, Collected, Discard, Processes, Workspace, enter};
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::process::Command;

fn describe(checkpoint: &Checkpoint) -> Value {
    json!({
        "number": checkpoint.number,
        "created_unix_seconds": checkpoint.created,
        "message": checkpoint.message,
    })
}

pub(super) fn checkpoint(asked: &Asked<'_>, args: &WorkspaceCheckpoint) -> Result<Exit> {
    let checkpoint = asked.find(&args.name)?.checkpoint(&TREES, &args.message)?;
    match asked.json {
        true => say!("{}", describe(&checkpoint)),
        false => say!("{}", checkpoint.number),
    }
    Ok(Exit::Success)
}

pub(super) fn log(asked: &Asked<'_>, args: &WorkspaceName) -> Result<Exit> {
    let workspace = asked.find(&args.name)?;
    let checkpoints = &workspace.record().checkpoints;
    if asked.json {
        let all: Vec<Value> = checkpoints.iter().map(describe).collect();
        say!("{}", json!({"name": workspace.record().name, "checkpoints": all}));
        return Ok(Exit::Success);
    }
    for checkpoint in checkpoints.iter().rev() {
        say!("{:>4}  {}  {}", checkpoint.number, date(checkpoint.created), checkpoint.message);
    }
    Ok(Exit::Success)
}

pub(super) fn undo(asked: &Asked<'_>, args: &WorkspaceUndo) -> Result<Exit> {
    let mut workspace = asked.find(&args.name)?;
    let processes = processes_around(&workspace)?;
    let undone = workspace.undo(&TREES, args.checkpoint, &processes, args.force)?;
    if asked.json {
        say!("{}", json!({"to": describe(&undone.to), "before": describe(&undone.before)}));
    } else {
        let name = &workspace.record().name;
        say!("{name} is as at checkpoint {}; what it was is {}", undone.to.number, undone.before.number);
    }
    Ok(Exit::Success)
}

pub(super) fn promote(asked: &Asked<'_>, args: &WorkspaceForce) -> Result<Exit> {
    let mut workspace = asked.find(&args.name)?;
    let processes = processes_around(&workspace)?;
    let promoted = workspace.promote(&TREES, &processes, args.force)?;
    let (original, place) = (shown(&workspace.original()), shown(&workspace.place()));
    if asked.json {
        say!(
            "{}",
            json!({
                "name": workspace.record().name,
                "original": original,
                "kept": place,
                "kept_from_gc": promoted.kept_from_gc,
            })
        );
    } else {
        let kept = if promoted.kept_from_gc { ", and gc does not remove it any more" } else { "" };
        let name = &workspace.record().name;
        say!("{original} is what workspace {name} was; what it was is kept in {place}{kept}");
    }
    Ok(Exit::Success)
}

pub(super) fn exec(asked: &Asked<'_>, args: &WorkspaceExec) -> Result<Exit> {
    let dir = enter(&asked.find(&args.name)?)?;
    let [program, arguments @ ..] = &args.command[..] else { return Ok(Exit::Usage) };
    let error = Command::new(program).args(arguments).current_dir(&dir).env("PWD", &dir).exec();
    Ok(not_run(program, &error))
}

pub(super) fn discard(asked: &Asked<'_>, args: &WorkspaceDiscard) -> Result<Exit> {
    let (mut left, mut gone) = (Vec::new(), Vec::new());
    for name in &args.names {
        match asked.find_itself(name).and_then(|workspace| discard_one(workspace, args.force)) {
            Ok(place) => gone.push(place),
            Err(error) => left.push((name, format!("{error:#}"))),
        }
    }
    if asked.json {
        let left = left.iter().map(|(name, why)| json!({"name": name.to_string_lossy(), "why": why}));
        say!("{}", json!({"discarded": gone, "left": left.collect::<Vec<_>>()}));
    } else {
        left.iter().for_each(|(_, why)| complain!("espalier workspace: {why}"));
    }
    Ok(if left.is_empty() { Exit::Success } else { Exit::Failure })
}

fn discard_one(mut workspace: Workspace, force: bool) -> Result<String> {
    let place = shown(&workspace.place());
    // Processes are looked at for each one: names may lead to several mounts, and what was seen
    // before the first one went says little about the last.
    Discard { force }.run(&TREES, &mut workspace, &Processes::default())?;
    Ok(place)
}

pub(super) fn gc(asked: &Asked<'_>, args: &WorkspaceGc) -> Result<Exit> {
    let mut registry = asked.registry()?;
    let processes = match registry.workspaces().first() {
        Some(first) => processes_around(first)?,
        None => Processes::default(),
    };
    let collect = Collect { dry_run: args.dry_run, missing: args.missing };
    let all = registry.collect(&TREES, &processes, collect)?;
    if asked.json {
        let all: Vec<Value> = all.iter().map(describe_collected).collect();
        say!("{}", json!({"collected": all, "done": !args.dry_run}));
        return Ok(Exit::Success);
    }
    for one in &all {
        let Collected { name, path, reason, kept } = one;
        match kept {
            Some(why) => say!("kept {name}: {}, but {why}", reason.words()),
            None if args.dry_run => say!("would remove {name} ({}): {}", path.display(), reason.words()),
            None => say!("removed {name} ({}): {}", path.display(), reason.words()),
        }
    }
    Ok(Exit::Success)
}

fn describe_collected(one: &Collected) -> Value {
    json!({
        "name": one.name,
        "path": shown(&one.path),
        "reason": one.reason.words(),
        "kept": one.kept,
    })
}
