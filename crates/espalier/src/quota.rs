//! `espalier quota`: limits on the space of trees.

use crate::args::{Quota, QuotaCommand, QuotaDirs, QuotaSet};
use crate::control;
use crate::ui::say;
use crate::units::Size;
use anyhow::{Result, anyhow};
use espalier_fuse::control::{LIMITS_BYTES, QUOTA, SET_LIMITS, TreeBytes};
use serde_json::json;
use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Runs the command.
pub(crate) fn run(args: &Quota) -> Result<()> {
    match &args.what {
        QuotaCommand::Set(args) => set(args),
        QuotaCommand::Show(args) => show(args),
        QuotaCommand::Clear(QuotaDirs { dirs, json }) => {
            for dir in dirs {
                set_limits(dir, TreeBytes::default())?;
                if *json {
                    say!("{}", described(dir, TreeBytes::default()));
                }
            }
            Ok(())
        }
    }
}

fn set(args: &QuotaSet) -> Result<()> {
    let bytes = |size: Option<Size>| size.map(|size| size.0);
    let limits = TreeBytes { exclusive: bytes(args.size), total: bytes(args.total) };
    set_limits(&args.dir, limits)?;
    if args.json {
        say!("{}", described(&args.dir, limits));
    }
    Ok(())
}

fn set_limits(dir: &Path, limits: TreeBytes) -> Result<()> {
    let asked = control::ask(&control::open(dir)?, SET_LIMITS, &mut limits.encode());
    asked.map_err(|error| {
        let shown = dir.display();
        match error.raw_os_error() {
            Some(libc::EPERM) => anyhow!(
                "{shown}: its limits are set by root, or by a user that owns it and the directory above"
            ),
            Some(libc::EOPNOTSUPP) => anyhow!("{shown}: {}", crossing(dir)),
            Some(libc::ENOTDIR) => anyhow!("{shown} is no directory: only directories have limits"),
            _ => control::explain(error, dir),
        }
    })
}

/// Why a directory can have no limit: a file in it has names outside.
fn crossing(dir: &Path) -> String {
    let mut inside: HashMap<u64, (u64, u64, PathBuf)> = HashMap::new();
    let mut waiting = vec![dir.to_path_buf()];
    while let Some(at) = waiting.pop() {
        for entry in std::fs::read_dir(at).into_iter().flatten().filter_map(Result::ok) {
            let Ok(attr) = entry.metadata() else { continue };
            if attr.is_dir() {
                waiting.push(entry.path());
            } else if attr.nlink() > 1 {
                inside.entry(attr.ino()).or_insert_with(|| (attr.nlink(), 0, entry.path())).1 += 1;
            }
        }
    }
    let crossing = inside.into_values().filter(|(all, names, _)| names < all);
    let found = crossing.min_by(|a, b| a.2.cmp(&b.2)).map(|(all, names, path)| {
        format!("{} has {all} names (hard links), and {} of them outside", path.display(), all - names)
    });
    let found = found.unwrap_or_else(|| "a file in it has names (hard links) outside".into());
    format!(
        "{found}, so it cannot count for this directory alone; remove those names, limit a directory \
         above all of them, or make a clone (espalier clone), which has all its names inside, and limit that"
    )
}

fn described(dir: &Path, limits: TreeBytes) -> serde_json::Value {
    json!({
        "path": dir.to_string_lossy(),
        "exclusive_limit_bytes": limits.exclusive,
        "total_limit_bytes": limits.total,
    })
}

fn show(args: &QuotaDirs) -> Result<()> {
    let mut rows = vec![["OWN", "LIMIT", "ALL", "LIMIT", "PATH"].map(str::to_owned)];
    for dir in &args.dirs {
        let mut answer = [0; 2 * LIMITS_BYTES];
        control::ask(&control::open(dir)?, QUOTA, &mut answer)
            .map_err(|error| control::explain(error, dir))?;
        let (limits, held) = answer.split_at(LIMITS_BYTES);
        let (limits, held) = (TreeBytes::decode(limits.try_into()?), TreeBytes::decode(held.try_into()?));
        if args.json {
            let mut told = described(dir, limits);
            told["exclusive_bytes"] = json!(held.exclusive);
            told["total_bytes"] = json!(held.total);
            say!("{told}");
        }
        let size = |bytes: Option<u64>| bytes.map_or("-".into(), |bytes| Size(bytes).to_string());
        let numbers = [held.exclusive, limits.exclusive, held.total, limits.total].map(size);
        let [own, limit, all, all_limit] = numbers;
        rows.push([own, limit, all, all_limit, dir.display().to_string()]);
    }
    if !args.json {
        for [own, limit, all, all_limit, path] in rows {
            say!("{own:>10} {limit:>10} {all:>10} {all_limit:>10}  {path}");
        }
    }
    Ok(())
}
