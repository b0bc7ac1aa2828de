//! Figures, and their table: a row for each step, a column for each way to do it.

use super::goals::{self, Peer};
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// The column of clients of our mount,
pub(super) const CLIENT: &str = "client";
/// of clients that are written in Python,
pub(super) const PYTHON: &str = "python";
/// and of the library on an image that is not mounted.
pub(super) const EMBEDDED: &str = "embedded";
/// The columns that are no contender, in their order.
const WAYS: [&str; 3] = [CLIENT, PYTHON, EMBEDDED];

/// What a figure is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct What {
    /// On which tree.
    pub(super) work: &'static str,
    /// What was done.
    pub(super) step: String,
    /// By how many clients; 0: by a command, or by no client.
    pub(super) clients: usize,
    pub(super) unit: &'static str,
}

impl What {
    /// A time in seconds.
    pub(super) fn seconds(work: &'static str, step: &str, clients: usize) -> Self {
        Self { work, step: step.into(), clients, unit: "s" }
    }

    pub(super) fn title(&self) -> String {
        let Self { work, step, clients, unit } = self;
        match clients {
            0 => format!("{work}: {step}, {unit}"),
            clients => format!("{work}: {step}, {clients} cl, {unit}"),
        }
    }
}

#[derive(Serialize)]
struct Figure {
    column: String,
    #[serde(flatten)]
    what: What,
    value: f64,
}

/// Everything told so far.
#[derive(Serialize)]
pub(super) struct Figures {
    columns: Vec<String>,
    figures: Vec<Figure>,
}

impl Figures {
    pub(super) fn new(contenders: &[String]) -> Self {
        let columns = contenders.iter().cloned().chain(WAYS.map(str::to_owned)).collect();
        Self { columns, figures: Vec::new() }
    }

    pub(super) fn add(&mut self, column: &str, what: &What, value: f64) {
        self.figures.push(Figure { column: column.into(), what: what.clone(), value });
    }

    pub(super) fn write_json(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// The median of what was told in a column.
    fn median(&self, column: &str, what: &What) -> Option<f64> {
        let told = self.figures.iter().filter(|figure| figure.column == column && figure.what == *what);
        let mut values: Vec<f64> = told.map(|figure| figure.value).collect();
        values.sort_by(f64::total_cmp);
        match values.len() {
            0 => None,
            n if n % 2 == 1 => Some(values[n / 2]),
            n => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
        }
    }

    /// The table: medians, and beside our best figure how it compares and what is asked.
    pub(super) fn text(&self) -> String {
        let is_used = |column: &&String| self.figures.iter().any(|figure| figure.column == **column);
        let columns: Vec<&String> = self.columns.iter().filter(is_used).collect();
        let mut out = format!("\n| {:<38} |", "");
        for column in &columns {
            let _ = write!(out, " {column:>9} |");
        }
        out.push_str(" ratio, goal |\n|---|");
        out.push_str(&"---:|".repeat(columns.len()));
        out.push_str("---|\n");
        let mut rows: Vec<&What> = Vec::new();
        for figure in &self.figures {
            if !rows.contains(&&figure.what) {
                rows.push(&figure.what);
            }
        }
        for what in rows {
            let _ = write!(out, "| {:<38} |", what.title());
            for column in &columns {
                let text = self.median(column, what).map_or(String::new(), |value| format!("{value:.3}"));
                let _ = write!(out, " {text:>9} |");
            }
            let _ = writeln!(out, " {} |", self.verdict(what).unwrap_or_default());
        }
        out
    }

    /// The ratio to the peer, and whether it is what is asked.
    fn verdict(&self, what: &What) -> Option<String> {
        let goal = goals::of(&what.step)?;
        let ours = self.median(CLIENT, what).or_else(|| self.median(EMBEDDED, what))?;
        let kernels = || self.columns.iter().filter(|c| !is_ours(c) && !WAYS.contains(&c.as_str()));
        let best =
            |what: &What| kernels().filter_map(|column| self.median(column, what)).min_by(f64::total_cmp);
        let (peer, name) = match goal.peer {
            Peer::Best => (best(what)?, "the best".into()),
            Peer::BestIn("device") => {
                let what = What::seconds(what.work, "device", 0);
                let found = self.columns.iter().find_map(|column| self.median(column, &what));
                (found?, "the device".into())
            }
            Peer::BestIn(step) => (best(&What::seconds(what.work, step, 0))?, format!("the best {step}")),
            Peer::Ext4 => (self.median("ext4", what)?, "ext4".into()),
            Peer::Mount => {
                let mount = self.columns.iter().find(|column| is_ours(column))?;
                (self.median(mount, what)?, "our mount".into())
            }
        };
        let ratio = peer / ours;
        let verdict = match goal.times {
            0.0 => String::new(),
            times if ratio >= times => format!(", goal {times}: met"),
            times => format!(", goal {times}: MISSED"),
        };
        Some(format!("{ratio:.2} times {name}{verdict}"))
    }
}

fn is_ours(column: &str) -> bool {
    column.starts_with("espalier")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_and_goals_are_told() {
        let mut figures = Figures::new(&["ext4".into(), "xfs".into(), "espalier".into()]);
        let (list, tar) = (What::seconds("files", "list warm", 1), What::seconds("files", "tar", 0));
        for (column, value) in [("ext4", 6.0), ("ext4", 8.0), ("xfs", 9.0), (CLIENT, 1.0)] {
            figures.add(column, &list, value);
        }
        figures.add("xfs", &tar, 5.0);
        figures.add(CLIENT, &What::seconds("files", "create", 4), 2.0);
        let text = figures.text();
        assert!(text.contains("7.00 times the best, goal 5: met"), "{text}");
        assert!(text.contains("2.50 times the best tar, goal 3: MISSED"), "{text}");
        assert!(!text.contains(PYTHON), "a column without a figure is not shown: {text}");
    }
}
