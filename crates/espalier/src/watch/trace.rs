//! `espalier trace`: one line for each request, while it is on.
//!
//! The server keeps a bounded number of lines for us; what it had to drop is told where it is
//! missing.

use super::Watched;
use super::server::{TRACE_BEGIN, TRACE_END, TRACE_READ};
use crate::args::Trace;
use crate::ui::{self, say};
use crate::units;
use anyhow::{Context, Result};
use espalier_bench::compare::short_time;
use espalier_fuse::metrics::TRACE_ABANDONED_AFTER;
use serde_json::{Value, json};
use std::time::Duration;

/// How often the server is asked while nothing comes.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs the command until its reader goes away or the mount ends. A command that is interrupted
/// leaves the trace to the server, which ends it some seconds later.
pub(crate) fn run(args: &Trace) -> Result<()> {
    let watched = Watched::find(&args.dir)?;
    let slow = args.slow.map_or(0, |slow| u64::try_from(slow.0.as_nanos()).unwrap_or(u64::MAX));
    let begin = || {
        let begun = watched.ask(&format!("{TRACE_BEGIN}{slow}.{}", args.pid.unwrap_or(0)))?;
        let told = begun["error"].as_str().unwrap_or("no trace can be begun");
        begun["trace"].as_u64().with_context(|| format!("{}: {told}", watched.dir.display()))
    };
    let mut trace = begin()?;
    let mut left = args.count.unwrap_or(u64::MAX);
    if !args.json {
        say!(
            "{:<15} {:<15} {:>8} {:>7} {:>7} {:>9}  PATH",
            "TIME",
            "KIND",
            "THREAD",
            "QUEUE",
            "WORK",
            "BYTES"
        );
    }
    while left > 0 && ui::is_heard() {
        let part = watched.ask(&format!("{TRACE_READ}{trace}"))?;
        if part["ended"] == Value::Bool(true) {
            // Another server has replaced the one that knew the trace, or it was not read for too
            // long because the reader of our output kept us waiting.
            trace = begin()?;
            tell_lost(args.json, None);
            continue;
        }
        let events = part["events"].as_array().map(Vec::as_slice).unwrap_or_default();
        for event in events.iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
            if args.json { say!("{event}") } else { say!("{}", line(event)) }
        }
        left = left.saturating_sub(events.len() as u64);
        if let Some(lost) = part["lost"].as_u64().filter(|lost| *lost > 0) {
            tell_lost(args.json, Some(lost));
        }
        if part["more"] != Value::Bool(true) && left > 0 {
            std::thread::sleep(PAUSE);
        }
    }
    // An interrupted command leaves that to the server.
    watched.ask(&format!("{TRACE_END}{trace}")).map(drop)
}

/// Says that requests are missing, and how many if that is known.
fn tell_lost(json: bool, count: Option<u64>) {
    match (json, count) {
        (true, count) => say!("{}", json!({ "lost": count })),
        (false, Some(count)) => say!("({count} requests are missing here: they came too fast)"),
        (false, None) => say!(
            "(requests are missing here: the server was replaced, or this output was not read for {} \
             seconds)",
            TRACE_ABANDONED_AFTER.as_secs()
        ),
    }
}

/// A request for people.
fn line(event: &Value) -> String {
    let seconds = |name: &str| event[name].as_f64();
    // What a server of another kind tells need not be a time.
    let duration = |name| seconds(name).and_then(|s| Duration::try_from_secs_f64(s).ok());
    let time = |name| duration(name).map_or_else(|| "-".into(), short_time);
    let at = seconds("unix_seconds").unwrap_or_default();
    let date = units::date(at as u64);
    let clock = date.split(' ').nth(1).unwrap_or_default();
    let mut line = format!(
        "{clock}.{:06} {:<15} {:>8} {:>7} {:>7} {:>9}  {}",
        (at.fract() * 1e6) as u64,
        printable(event["kind"].as_str().unwrap_or_default()),
        event["thread"].to_string(),
        time("queue_seconds"),
        time("work_seconds"),
        event["bytes"].to_string(),
        printable(event["path"].as_str().unwrap_or_default()),
    );
    if let Some(errno) = event["errno"].as_i64().filter(|errno| *errno != 0) {
        let said = std::io::Error::from_raw_os_error(errno as i32).to_string();
        line += &format!("  {}", said.split(" (os error").next().unwrap_or_default());
    }
    line
}

/// A text without what a terminal would obey.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests;
