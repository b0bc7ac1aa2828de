//! Results: figures of all steps in all sites, as a table for people and as JSON.

use super::plan::{Amount, Plan};
use super::recording::Recording;
use super::work::Work;
use espalier_fuse::metrics::Histogram;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// One step in one site in one round.
#[derive(Debug)]
pub struct Outcome {
    round: usize,
    site: String,
    step: &'static str,
    is_cold: bool,
    recording: Recording,
}

impl Outcome {
    pub(super) fn new(
        round: usize,
        site: &str,
        step: &'static str,
        is_cold: bool,
        recording: Recording,
    ) -> Self {
        Self { round, site: site.into(), step, is_cold, recording }
    }
}

/// All that was measured, and under which circumstances.
#[derive(Debug)]
pub struct Results {
    kernel: String,
    processors: usize,
    memory_bytes: u64,
    place: String,
    rounds: usize,
    amount: Amount,
    sites: Vec<String>,
    /// How the kernel reaches the server of a site, if it has one.
    transports: BTreeMap<String, Option<String>>,
    outcomes: Vec<Outcome>,
}

/// What a step came to in a site, over all rounds.
pub(super) struct Summary {
    /// The median of the rounds, until everything was durable.
    pub(super) seconds: f64,
    /// Operations of one round.
    pub(super) operations: u64,
    /// Bytes of one round.
    pub(super) bytes: u64,
    pub(super) times: Histogram,
    pub(super) longest: Duration,
}

impl Summary {
    /// Operations in a second.
    pub(super) fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds.max(1e-9)
    }
}

impl Results {
    pub(super) fn new(plan: &Plan, sites: Vec<String>) -> Self {
        let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let place = match (&plan.device, plan.dirs.is_empty()) {
            (_, false) => "directories as they are".into(),
            (Some(device), true) => format!("all on {}, one after the other", device.display()),
            (None, true) => {
                format!(
                    "loop devices of {} MiB in {}",
                    plan.amount.device_bytes >> 20,
                    plan.scratch.display()
                )
            }
        };
        Self {
            kernel: line("/proc/sys/kernel/osrelease").trim().into(),
            processors: std::thread::available_parallelism().map_or(0, Into::into),
            memory_bytes: memory_bytes(&line("/proc/meminfo")),
            place,
            rounds: plan.rounds,
            amount: plan.amount,
            sites,
            transports: BTreeMap::new(),
            outcomes: Vec::new(),
        }
    }

    /// Notes over what transport a site is served, if that is not known yet.
    pub(super) fn note_transport(&mut self, site: &str, ask: impl FnOnce() -> Option<String>) {
        self.transports.entry(site.to_owned()).or_insert_with(ask);
    }

    pub(super) fn add(&mut self, outcome: Outcome) {
        self.outcomes.push(outcome);
    }

    /// The sites, in the order in which they were named.
    pub(super) fn sites(&self) -> &[String] {
        &self.sites
    }

    /// The steps that were done, in order, and whether caches were cold.
    pub(super) fn steps(&self) -> impl Iterator<Item = (&'static str, bool)> + '_ {
        let done = |work: &Work| self.outcomes.iter().find(|outcome| outcome.step == work.name());
        Work::ALL
            .into_iter()
            .filter_map(move |work| done(&work).map(|outcome| (work.name(), outcome.is_cold)))
    }

    /// What was recorded of a step in a site in the last round.
    pub(super) fn last(&self, step: &str, site: &str) -> Option<&Recording> {
        let matching = |outcome: &&Outcome| outcome.step == step && outcome.site == site;
        self.outcomes.iter().rev().find(matching).map(|outcome| &outcome.recording)
    }

    /// What a step came to in a site.
    pub(super) fn summary(&self, step: &str, site: &str) -> Option<Summary> {
        let matching = self.outcomes.iter().filter(|outcome| outcome.step == step && outcome.site == site);
        let all: Vec<&Recording> = matching.map(|outcome| &outcome.recording).collect();
        let first = all.first()?;
        let mut times = Histogram::default();
        all.iter().for_each(|recording| times.add(&recording.times()));
        let mut seconds: Vec<f64> = all.iter().map(|recording| recording.seconds()).collect();
        seconds.sort_by(f64::total_cmp);
        let middle = seconds.len() / 2;
        let median = match seconds.len() % 2 {
            0 => (seconds[middle - 1] + seconds[middle]) / 2.0,
            _ => seconds[middle],
        };
        Some(Summary {
            seconds: median,
            operations: first.times().count(),
            bytes: first.bytes(),
            times,
            longest: all.iter().map(|recording| recording.longest()).max().unwrap_or_default(),
        })
    }

    /// The circumstances in a line.
    pub(super) fn circumstances(&self) -> String {
        let served = self.transports.iter().filter_map(|(site, over)| Some((site, over.as_ref()?)));
        let served: String =
            served.map(|(site, over)| format!("; {site} over {}", shown_transport(over))).collect();
        format!(
            "Linux {}, {} processors, {} GiB of memory; {}; {} small files, a file of {} MiB, {} overwrites, {} appends; {}{served}",
            self.kernel,
            self.processors,
            (self.memory_bytes + (1 << 29)) >> 30,
            self.place,
            self.amount.files,
            self.amount.file_bytes >> 20,
            self.amount.overwrites,
            self.amount.appends,
            match self.rounds {
                1 => "one round".into(),
                rounds => format!("medians of {rounds} rounds"),
            }
        )
    }

    /// A table: operations per second until everything is durable, and times of operations. In
    /// colours the best is green, and what takes twice as long or more is red.
    pub fn text(&self, colours: bool) -> String {
        let mut out = format!("{}\n\n{:<14}", self.circumstances(), "per second");
        let widths: Vec<usize> = self.sites.iter().map(|site| site.chars().count().max(20)).collect();
        for (site, &width) in self.sites.iter().zip(&widths) {
            let _ = write!(out, "  {site:>width$}");
        }
        out.push_str("\n(times of 50 and 99 of 100 operations)\n");
        for (step, is_cold) in self.steps() {
            let summaries: Vec<_> = self.sites.iter().map(|site| self.summary(step, site)).collect();
            let best = summaries.iter().flatten().map(Summary::rate).fold(0.0, f64::max);
            let _ = write!(out, "{step:<14}");
            for (summary, &width) in summaries.iter().zip(&widths) {
                let cell = summary.as_ref().map_or_else(|| "-".into(), |of| format!("{:.0}", of.rate()));
                let colour = match summary.as_ref().map(Summary::rate) {
                    Some(rate) if self.sites.len() > 1 && rate >= best => "32",
                    Some(rate) if rate * 2.0 <= best => "31",
                    _ => "",
                };
                let _ = write!(out, "  {}", painted(&format!("{cell:>width$}"), colour, colours));
            }
            let _ = write!(out, "\n{:<14}", if is_cold { "" } else { "  (warm caches)" });
            for (summary, &width) in summaries.iter().zip(&widths) {
                let times = summary.as_ref().map_or_else(String::new, |of| {
                    let at = |share| of.times.quantile(share).map_or_else(|| "-".into(), short_time);
                    format!("{} {}", at(0.5), at(0.99))
                });
                let _ = write!(out, "  {}", painted(&format!("{times:>width$}"), "2", colours));
            }
            out.push('\n');
        }
        out
    }

    /// Everything for programs.
    pub fn json(&self) -> Value {
        let outcomes = self.outcomes.iter().map(|outcome| {
            let recording = &outcome.recording;
            let times = recording.times();
            let at = |share| times.quantile(share).map(|time| time.as_secs_f64());
            let (moment, moments) = recording.moments();
            json!({
                "round": outcome.round, "site": outcome.site, "step": outcome.step, "cold": outcome.is_cold,
                "seconds": recording.seconds(), "operations": times.count(), "bytes": recording.bytes(),
                "p50_seconds": at(0.5), "p90_seconds": at(0.9), "p99_seconds": at(0.99),
                "p999_seconds": at(0.999), "longest_seconds": recording.longest().as_secs_f64(),
                "moment_seconds": moment,
                "operations_in_moments": moments.iter().map(|moment| moment[0]).collect::<Vec<_>>(),
            })
        });
        json!({
            "kernel": self.kernel, "processors": self.processors, "memory_bytes": self.memory_bytes,
            "place": self.place, "rounds": self.rounds, "sites": self.sites,
            "transports": self.transports,
            "files": self.amount.files, "file_bytes": self.amount.file_bytes,
            "overwrites": self.amount.overwrites, "appends": self.amount.appends,
            "outcomes": outcomes.collect::<Vec<_>>(),
        })
    }
}

/// The machine's memory in bytes, from what `/proc/meminfo` holds; 0 if that does not say.
fn memory_bytes(meminfo: &str) -> u64 {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    total.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

/// What tables call a transport that `espalier info --json` names.
fn shown_transport(name: &str) -> &str {
    if name == "classic" { "/dev/fuse" } else { name }
}

fn painted(text: &str, colour: &str, colours: bool) -> String {
    if colours && !colour.is_empty() { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
}

/// A time in at most six characters.
pub fn short_time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    let (value, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    if value < 9.95 { format!("{value:.1}{unit}") } else { format!("{value:.0}{unit}") }
}
