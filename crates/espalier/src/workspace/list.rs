//! `espalier workspace list`.

use super::asked::{Asked, TREES, processes_around, shown};
use crate::problem::Exit;
use crate::ui::{complain, say};
use crate::units::{Size, Span};
use anyhow::Result;
use espalier_workspace::{Listed, Record};
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub(super) fn run(asked: &Asked<'_>) -> Result<Exit> {
    let registry = asked.registry()?;
    let all = registry.workspaces();
    let processes = match all.first() {
        Some(first) => processes_around(first)?,
        None => espalier_workspace::Processes::default(),
    };
    let listed = Listed::all(&TREES, all, &processes)?;
    let problems = listed.iter().any(|one| one.problem.is_some()) || !registry.unreadable().is_empty();
    let exit = if problems { Exit::Failure } else { Exit::Success };
    if asked.json {
        let all: Vec<Value> = listed.iter().map(describe).collect();
        let unreadable = registry.unreadable().iter();
        let unreadable = unreadable.map(|one| json!({"path": shown(&one.path), "why": one.why}));
        say!("{}", json!({ "workspaces": all, "unreadable": unreadable.collect::<Vec<_>>() }));
        return Ok(exit);
    }
    let mut rows = vec![
        ["NAME", "AGE", "LEFT", "OWN", "QUOTA", "CHANGED", "IN USE BY", "PATH", "FROM"].map(str::to_owned),
    ];
    rows.extend(listed.iter().map(row));
    if rows.len() > 1 {
        print(&rows);
    }
    for (listed, why) in listed.iter().filter_map(|one| one.problem.as_ref().map(|why| (one, why))) {
        complain!("espalier workspace: {} cannot be looked at: {why}", listed.workspace.record().name);
    }
    for unreadable in registry.unreadable() {
        complain!("espalier workspace: {}: {}", shown(&unreadable.path), unreadable.why);
    }
    Ok(exit)
}

const COLUMNS: usize = 9;

/// What is shown of a workspace.
type Row = [String; COLUMNS];

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn describe(listed: &Listed) -> Value {
    let record = listed.workspace.record();
    let processes = listed.processes.iter().map(|p| json!({"pid": p.pid, "command": p.command}));
    json!({
        "name": record.name,
        "path": shown(&listed.workspace.place()),
        "original": shown(&listed.workspace.original()),
        "from": record.made_from,
        "id": record.id,
        "created_unix_seconds": record.created,
        "age_seconds": now().saturating_sub(record.created),
        "expires_unix_seconds": record.expires,
        "applied_unix_seconds": record.applied,
        "own_bytes": listed.own_bytes,
        "quota_bytes": listed.quota,
        "changed": listed.changed,
        "problem": listed.problem,
        "checkpoints": record.checkpoints.len(),
        "processes": processes.collect::<Vec<_>>(),
    })
}

/// What is left of the time to live.
fn left(record: &Record) -> String {
    match record.expires.map(|expires| expires.saturating_sub(now())) {
        None => "-".into(),
        Some(0) => "over".into(),
        Some(left) => Span(Duration::from_secs(left)).to_string(),
    }
}

fn row(listed: &Listed) -> Row {
    let record = listed.workspace.record();
    let processes: Vec<String> =
        listed.processes.iter().take(3).map(|p| format!("{} ({})", p.command, p.pid)).collect();
    let more = if listed.processes.len() > 3 { ", ..." } else { "" };
    [
        record.name.clone(),
        Span(Duration::from_secs(now().saturating_sub(record.created))).to_string(),
        left(record),
        listed.own_bytes.map_or("-".into(), |bytes| Size(bytes).to_string()),
        listed.quota.map_or("-".into(), |bytes| Size(bytes).to_string()),
        listed.changed.map_or("?".into(), |changed| changed.to_string()),
        if processes.is_empty() { "-".into() } else { processes.join(", ") + more },
        shown(&listed.workspace.place()),
        record.made_from.clone(),
    ]
}

fn print(rows: &[Row]) {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}", width = *width)).collect();
        say!("{}", cells.join("  ").trim_end());
    }
}
