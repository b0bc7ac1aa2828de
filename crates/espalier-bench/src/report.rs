//! Figures as a table for people and as JSON for everything else.

use crate::contender::{BEFORE, Counts, is_bound};
use crate::options::Options;
use crate::steps::{self, Setting};
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// What one step of one contender took in one round.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measure {
    pub(crate) round: usize,
    pub(crate) contender: String,
    pub(crate) step: String,
    /// Until everything was durable.
    pub(crate) seconds: f64,
    /// What the device and the server did during the step.
    pub(crate) counts: Counts,
    /// The mount before the step, not part of `seconds`.
    pub(crate) mount_seconds: f64,
    /// The unmount after the last step of the stage, not part of `seconds`.
    pub(crate) unmount_seconds: f64,
    /// Bytes written to the device by that unmount.
    pub(crate) unmount_written: u64,
    /// Most memory the server ever held, in bytes; 0 if there is no server.
    pub(crate) peak_resident: u64,
}

impl Measure {
    /// A measure that is nothing but a time.
    pub(crate) fn plain(round: usize, contender: &str, step: &str, seconds: f64) -> Self {
        Self {
            round,
            contender: contender.into(),
            step: step.into(),
            seconds,
            counts: Counts::default(),
            mount_seconds: 0.0,
            unmount_seconds: 0.0,
            unmount_written: 0,
            peak_resident: 0,
        }
    }
}

/// Everything measured so far, and under which circumstances.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    kernel: String,
    processors: usize,
    memory: String,
    contenders: Vec<String>,
    rounds: usize,
    device_bytes: u64,
    file_bytes: u64,
    overwrites: u64,
    appends: u64,
    tree_bytes: u64,
    cache_bytes: u64,
    touched_bytes: u64,
    measures: Vec<Measure>,
}

impl Report {
    pub(crate) fn new(options: &Options, setting: &Setting) -> Self {
        let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let memory = line("/proc/meminfo");
        Self {
            kernel: line("/proc/sys/kernel/osrelease").trim().into(),
            processors: std::thread::available_parallelism().map_or(0, Into::into),
            memory: memory.lines().next().unwrap_or_default().replace("MemTotal:", "").trim().into(),
            contenders: options.contenders.clone(),
            rounds: options.rounds,
            device_bytes: options.device_size,
            file_bytes: setting.file_bytes,
            overwrites: setting.overwrites,
            appends: setting.appends,
            tree_bytes: std::fs::metadata(&setting.tarball).map_or(0, |m| m.len()),
            cache_bytes: options.cache,
            touched_bytes: options.touch,
            measures: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, measure: Measure) {
        self.measures.push(measure);
    }

    pub(crate) fn write_json(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// The tables.
    pub(crate) fn text(&self) -> String {
        let mut out = format!(
            "\nLinux {}, {} processors, {}; devices of {} MiB, file of {} MiB, {} overwrites, {} appends, \
             tree of {} MiB, cache of {} MiB, {} MiB of memory touched before each step; medians of {} rounds\n\n",
            self.kernel,
            self.processors,
            self.memory,
            self.device_bytes >> 20,
            self.file_bytes >> 20,
            self.overwrites,
            self.appends,
            self.tree_bytes >> 20,
            self.cache_bytes >> 20,
            self.touched_bytes >> 20,
            self.rounds
        );
        self.times(&mut out);
        self.figures(&mut out, "MiB written to the device, the unmount included", |m| {
            (m.counts.written + m.unmount_written) as f64 / 1048576.0
        });
        self.figures(&mut out, "seconds of the unmount after it, not in the table above", |m| {
            m.unmount_seconds
        });
        self.figures(&mut out, "reads of the device", |m| m.counts.reads as f64);
        self.figures(&mut out, "MiB read from the device", |m| m.counts.read as f64 / 1048576.0);
        self.requests(&mut out);
        self.server(&mut out);
        out
    }

    /// Which requests the kernel made, the most frequent first, in the last round.
    fn requests(&self, out: &mut String) {
        for name in self.contenders.iter().filter(|c| is_ours(c)) {
            let _ = writeln!(out, "\nrequests to {name}:\n\n| step | all | of which |\n|---|---:|---|");
            for step in self.steps() {
                let mut mine = self.measures.iter().rev().filter(|m| m.contender == **name);
                let Some(measure) = mine.find(|m| m.step == step) else { continue };
                let mut kinds: Vec<_> = measure.counts.requests.iter().collect();
                kinds.sort_by_key(|(_, number)| std::cmp::Reverse(**number));
                let all: u64 = kinds.iter().map(|(_, number)| **number).sum();
                // One in a hundred is not what takes the time.
                let many = kinds.iter().filter(|(_, number)| **number * 100 >= all);
                let shown: Vec<_> = many.map(|(kind, number)| format!("{number} {kind}")).collect();
                let _ = writeln!(out, "| {step} | {all} | {} |", shown.join(", "));
            }
        }
    }

    /// Times, the ratio of the best kernel file system to each Espalier, and of each Espalier to
    /// the build before.
    fn times(&self, out: &mut String) {
        self.heading(out, "seconds");
        let ours: Vec<_> = self.contenders.iter().filter(|c| is_ours(c)).collect();
        for name in &ours {
            let _ = write!(out, " {:>22} |", format!("ratio of {name}"));
        }
        let bounds: Vec<_> = self.contenders.iter().filter(|c| is_bound(c)).collect();
        for name in &bounds {
            let _ = write!(out, " {:>22} |", format!("ratio of {name}"));
        }
        let before = self.contenders.iter().find(|c| c.starts_with(BEFORE));
        let after: Vec<_> = ours.iter().filter(|c| before.is_some() && !c.starts_with(BEFORE)).collect();
        for name in &after {
            let _ = write!(out, " {:>22} |", format!("{name} by before"));
        }
        self.rule(out, ours.len() + bounds.len() + after.len());
        for step in self.steps() {
            let times: Vec<_> =
                self.contenders.iter().map(|c| self.median(c, &step, |m| m.seconds)).collect();
            let others = self.contenders.iter().zip(&times).filter(|(c, _)| !is_ours(c) && !is_bound(c));
            let best = others.filter_map(|(_, t)| *t).min_by(f64::total_cmp);
            self.row(out, &step, &times);
            for name in &ours {
                let time = self.median(name, &step, |m| m.seconds);
                let cell = match (best, time) {
                    (Some(best), Some(time)) => verdict(&step, best / time),
                    _ => String::new(),
                };
                let _ = write!(out, " {cell:>22} |");
            }
            for bound in &bounds {
                let cell = best.zip(self.median(bound, &step, |m| m.seconds));
                let cell = cell.map_or(String::new(), |(best, time)| format!("{:.2}", best / time));
                let _ = write!(out, " {cell:>22} |");
            }
            for name in &after {
                let ratio = before.and_then(|before| self.paired(name, before, &step));
                let cell = ratio.map_or(String::new(), |ratio| format!("{ratio:.2}"));
                let _ = write!(out, " {cell:>22} |");
            }
            out.push('\n');
        }
    }

    fn figures(&self, out: &mut String, title: &str, figure: impl Fn(&Measure) -> f64) {
        let _ = writeln!(out, "\n{title}:\n");
        self.heading(out, "");
        self.rule(out, 0);
        for step in self.steps() {
            if step == steps::RECOVERY {
                continue;
            }
            let row: Vec<_> = self.contenders.iter().map(|c| self.median(c, &step, &figure)).collect();
            self.row(out, &step, &row);
            out.push('\n');
        }
    }

    /// Memory and recovery, which only a server has.
    fn server(&self, out: &mut String) {
        for name in self.contenders.iter().filter(|c| is_ours(c)) {
            let mine = || self.measures.iter().filter(|m| m.contender == **name);
            let Some(peak) = mine().map(|m| m.peak_resident).max() else { continue };
            let limit = self.cache_bytes + (64 << 20);
            let _ = writeln!(
                out,
                "\n{name}: peak resident memory {} MiB, limit {} MiB ({})",
                peak >> 20,
                limit >> 20,
                if peak <= limit { "kept" } else { "EXCEEDED" }
            );
            let recoveries = mine().filter(|m| m.step == "recovery").map(|m| m.seconds);
            if let Some(worst) = recoveries.max_by(f64::total_cmp) {
                let kept = if worst < 5.0 { "kept" } else { "EXCEEDED" };
                let _ =
                    writeln!(out, "{name}: longest recovery after a kill {worst:.3} s, limit 5 s ({kept})");
            }
        }
    }

    fn heading(&self, out: &mut String, corner: &str) {
        let _ = write!(out, "| {corner:<14} |");
        for name in &self.contenders {
            let _ = write!(out, " {name:>10} |");
        }
    }

    fn rule(&self, out: &mut String, ratios: usize) {
        let _ = write!(out, "\n|{}|", "-".repeat(16));
        for name in &self.contenders {
            let _ = write!(out, "{}:|", "-".repeat(name.len().max(10) + 1));
        }
        out.push_str(&format!("{}:|", "-".repeat(23)).repeat(ratios));
        out.push('\n');
    }

    fn row(&self, out: &mut String, step: &str, cells: &[Option<f64>]) {
        let _ = write!(out, "| {step:<14} |");
        for (cell, name) in cells.iter().zip(&self.contenders) {
            let text = cell.map_or(String::new(), |c| format!("{c:.*}", if c < 100.0 { 2 } else { 0 }));
            let _ = write!(out, " {text:>width$} |", width = name.len().max(10));
        }
    }

    /// Steps in the order in which they ran.
    fn steps(&self) -> Vec<String> {
        let mut steps: Vec<String> = Vec::new();
        for measure in &self.measures {
            if !steps.contains(&measure.step) {
                steps.push(measure.step.clone());
            }
        }
        steps
    }

    fn median(&self, contender: &str, step: &str, figure: impl Fn(&Measure) -> f64) -> Option<f64> {
        let matching = self.measures.iter().filter(|m| m.contender == contender && m.step == step);
        middle(matching.map(figure).collect())
    }

    /// The median of what a step took in a round by what it took with the other one in the same
    /// round.
    fn paired(&self, contender: &str, other: &str, step: &str) -> Option<f64> {
        let of = |name: &str| -> Vec<&Measure> {
            self.measures.iter().filter(|m| m.contender == name && m.step == step).collect()
        };
        let others = of(other);
        let same_round =
            |m: &&Measure| others.iter().find(|o| o.round == m.round).map(|o| m.seconds / o.seconds);
        middle(of(contender).iter().filter_map(same_round).collect())
    }
}

/// The median.
pub(crate) fn middle(mut figures: Vec<f64>) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => None,
        n if n % 2 == 1 => Some(figures[middle]),
        _ => Some((figures[middle - 1] + figures[middle]) / 2.0),
    }
}

fn is_ours(contender: &str) -> bool {
    contender.starts_with("espalier")
}

/// A ratio and what is asked of it.
fn verdict(step: &str, ratio: f64) -> String {
    match steps::goal(step) {
        Some(goal) if ratio >= goal => format!("{ratio:.2} (goal {goal:.2})"),
        Some(goal) => format!("{ratio:.2} BELOW {goal:.2}"),
        None => format!("{ratio:.2}"),
    }
}
