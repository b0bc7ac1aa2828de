//! `espalier scrub`: reads everything of a mounted file system from its device, at a bounded rate.
//!
//! The server does the reading, past its caches, a step at a time; the steps and the pauses between
//! them are ours. A step is asked for by reading an extended attribute whose name says where it
//! begins, and the answer says where the next one does.

use crate::args::Scrub;
use crate::files::tree::show_text;
use crate::info;
use crate::mounts;
use crate::problem::Exit;
use crate::ui::{self, say};
use crate::units::{self, Size};
use anyhow::{Context, Result, bail, ensure};
use espalier_engine::Store;
use espalier_fuse::COMMAND_XATTR;
use serde_json::{Value, json};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Bytes of one step.
const STEP_BYTES: u64 = 8 << 20;
/// Bytes of text that one step tells at most.
const MAX_PROBLEM_BYTES: usize = 40 << 10;
/// Paths told for one piece of damage.
const MAX_PATHS: usize = 16;
/// The longest answer.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// Runs the command.
pub(crate) fn run(args: &Scrub) -> Result<Exit> {
    ensure!(args.rate.0 > 0, "--rate 0 would never end");
    let dir = args.dir.canonicalize().with_context(|| format!("{} cannot be read", args.dir.display()))?;
    let above = dir.ancestors().find_map(|d| mounts::at(d).ok().flatten());
    let Some(mount) = above.filter(mounts::MountEntry::is_espalier) else {
        bail!("{}: no Espalier file system is mounted there; fsck checks an image", dir.display());
    };
    let started = Instant::now();
    let spinner = ui::spinner("scrubbing");
    let (mut next, mut bytes, mut problems) = (Some(0), 0u64, 0u64);
    while let Some(from) = next {
        let name = format!("{COMMAND_XATTR}scrub.{from}.{STEP_BYTES}");
        let answer = info::ask_for(&mount.dir, &name, MAX_ANSWER_BYTES, "scrub")?;
        if let Some(error) = answer["error"].as_str() {
            bail!("{}: {error}", mount.dir.display());
        }
        next = answer["next"].as_u64();
        bytes = bytes.saturating_add(answer["bytes"].as_u64().unwrap_or(0));
        problems = problems.saturating_add(answer["problems"].as_u64().unwrap_or(0));
        for line in answer["told"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            spinner.suspend(|| say!("{}: DAMAGED: {}", mount.dir.display(), show_text(line)));
        }
        spinner.set_message(format!("scrubbing: {} read, {problems} problems", Size(bytes)));
        if next.is_some() {
            std::thread::sleep(ahead(bytes, args.rate, started.elapsed()));
        }
    }
    spinner.finish_and_clear();
    say!(
        "{}: {} read from {} in {}: {}",
        mount.dir.display(),
        Size(bytes),
        mount.source.display(),
        units::duration(started.elapsed()),
        match problems {
            0 => "all of it is what was written".to_owned(),
            1 => "1 problem; restore what is named from a backup".to_owned(),
            n => format!("{n} problems; restore what is named from a backup"),
        }
    );
    Ok(if problems == 0 { Exit::Success } else { Exit::Damaged })
}

/// How long to wait for having read no more than `rate` a second since the beginning.
fn ahead(bytes: u64, rate: Size, elapsed: Duration) -> Duration {
    let due = Duration::try_from_secs_f64(bytes as f64 / rate.0 as f64).unwrap_or(Duration::MAX);
    due.saturating_sub(elapsed)
}

/// What the server of a mount does when it is asked. It holds nothing alive.
pub(crate) fn server_side(store: &Arc<Store>) -> impl Fn(&str) -> Option<String> + Send + Sync + 'static {
    let store: Weak<Store> = Arc::downgrade(store);
    move |command| {
        let mut words = command.strip_prefix("scrub.")?.split('.');
        let (from, bytes) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(step(&*store.upgrade()?, from, bytes).to_string())
    }
}

fn step(store: &Store, from: u64, bytes: u64) -> Value {
    let scrubbed = match store.scrub(from, bytes.min(STEP_BYTES)) {
        Ok(scrubbed) => scrubbed,
        Err(error) => return json!({ "error": error.to_string() }),
    };
    let mut told: Vec<String> = Vec::new();
    for problem in &scrubbed.damaged {
        if told.iter().map(String::len).sum::<usize>() > MAX_PROBLEM_BYTES {
            break;
        }
        if problem.is_copy {
            told.push(problem.message.clone());
        } else if problem.keys.is_empty() {
            told.push(format!("nothing that is in use now: {}", problem.message));
        }
        for (index, range) in problem.keys.iter().take(MAX_PATHS) {
            let mut place = espalier_fs::describe_range(*index, range);
            place.truncate(place.floor_char_boundary(500));
            told.push(format!("{place}: {}", problem.message));
        }
    }
    json!({
        "next": scrubbed.next,
        "bytes": scrubbed.bytes,
        "problems": scrubbed.damaged.len(),
        "told": told,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_read_than_the_rate_allows() {
        const MIB: u64 = 1 << 20;
        let rate = Size(16 * MIB);
        let mut elapsed = Duration::ZERO;
        // Steps that take no time are spread over the time that the rate gives them.
        for step in 1..=10 {
            elapsed += ahead(step * STEP_BYTES, rate, elapsed);
            assert_eq!(elapsed, Duration::from_millis(500 * step));
        }
        // A device that is slower than the rate waits for nothing.
        assert_eq!(ahead(STEP_BYTES, rate, Duration::from_secs(9)), Duration::ZERO);
        assert_eq!(ahead(1, Size(u64::MAX), Duration::ZERO), Duration::ZERO);
        // What a faulty server says that it has read may be anything.
        assert_eq!(ahead(u64::MAX, Size(1), Duration::ZERO), Duration::MAX);
    }
}
