//! `espalier workspace create`.

use super::asked::{Asked, TREES, not_run, shown};
use crate::args::WorkspaceCreate;
use crate::problem::Exit;
use crate::ui::say;
use anyhow::{Result, bail};
use espalier_workspace::{Create, Created, GitNote};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) fn run(asked: &Asked<'_>, args: &WorkspaceCreate) -> Result<Exit> {
    if args.count == Some(0) {
        bail!("--count 0 makes nothing");
    }
    let hook = hook();
    let (mut all, mut said) = (Vec::new(), HashSet::new());
    for number in 1..=args.count.unwrap_or(1) {
        let (name, place) = match args.count {
            Some(_) => (format!("{}-{number}", args.name), args.at.as_deref().map(|at| numbered(at, number))),
            None => (args.name.clone(), args.at.clone()),
        };
        let process = (!args.command.is_empty()).then(|| std::process::id().cast_signed());
        let create = Create {
            name: &name,
            from: &args.from,
            around: asked.at,
            place: place.as_deref(),
            time_to_live: args.ttl.map(|span| span.0),
            quota: args.quota.map(|size| size.0),
            prepare_git: !args.no_git,
            hook: hook.as_deref(),
            process,
        };
        let begun = std::time::Instant::now();
        let created = match create.run(&TREES) {
            Err(error) => {
                // Those that were made stay; programs have to know of them.
                if asked.json && !all.is_empty() {
                    say!("{}", json!({ "created": all }));
                }
                return Err(error.into());
            }
            created => created?,
        };
        all.push(describe(&created, begun.elapsed().as_micros() as u64));
        if !asked.json {
            tell(&created, &mut said);
        }
        if let [program, arguments @ ..] = &args.command[..] {
            if asked.json {
                say!("{}", json!({ "created": all }));
            }
            let place = created.workspace.place();
            let error = Command::new(program).args(arguments).current_dir(&place).exec();
            return Ok(not_run(program, &error));
        }
    }
    if asked.json {
        say!("{}", json!({ "created": all }));
    }
    Ok(Exit::Success)
}

/// The command by which git asks this program what changed: by its name, if that leads here.
fn hook() -> Option<String> {
    let own = std::env::current_exe().ok()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let first = std::env::split_paths(&path).map(|dir| dir.join("espalier")).find(|file| file.is_file());
    if first.and_then(|file| file.canonicalize().ok()) == own.canonicalize().ok() {
        return Some("espalier fsmonitor".into());
    }
    let quoted = own.to_str()?.replace('\'', "'\\''");
    (!quoted.contains('\n')).then(|| format!("'{quoted}' fsmonitor"))
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    let mut text = path.as_os_str().to_owned();
    text.push(format!("-{number}"));
    text.into()
}

fn describe(created: &Created, microseconds: u64) -> Value {
    let record = created.workspace.record();
    json!({
        "name": record.name,
        "path": shown(&created.workspace.place()),
        "original": shown(&created.workspace.original()),
        "from": record.made_from,
        "id": record.id,
        "git": created.git.iter().map(GitNote::words).collect::<Vec<_>>(),
        "microseconds": microseconds,
    })
}

/// Says where a workspace is, and what was done to git's files in it that was not `said` of another
/// one: hundreds may be made at once.
fn tell(created: &Created, said: &mut HashSet<String>) {
    say!("{}", created.workspace.place().display());
    for words in created.git.iter().map(GitNote::words) {
        if said.insert(words.clone()) {
            // No output to be read by programs.
            crate::ui::complain!("git: {words}");
        }
    }
}
