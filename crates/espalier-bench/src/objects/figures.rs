//! Named figures, by contender and delay, and their table.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// Figures of Espalier that a link or a plain client bounds, and the part of that which they reach
/// at least.
const GOALS: &[(&str, f64)] =
    &[("write_seq_by_plain", 0.8), ("read_seq_by_plain", 0.8), ("grep_cold_by_plain", 0.7)];

#[derive(Serialize)]
struct Samples {
    contender: String,
    delay_ms: u64,
    name: String,
    values: Vec<f64>,
}

/// Everything told so far.
#[derive(Default, Serialize)]
pub(super) struct Figures {
    figures: Vec<Samples>,
}

impl Figures {
    /// Adds a figure, whose unit stands at the end of its name, and prints it.
    pub(super) fn tell(&mut self, contender: &str, delay_ms: u64, name: &str, value: f64) {
        println!("{delay_ms:>4} ms  {contender:<20} {name:<28} {value:>12.3}");
        let alike = |f: &&mut Samples| f.contender == contender && f.delay_ms == delay_ms && f.name == name;
        match self.figures.iter_mut().find(alike) {
            Some(samples) => samples.values.push(value),
            None => self.figures.push(Samples {
                contender: contender.into(),
                delay_ms,
                name: name.into(),
                values: vec![value],
            }),
        }
    }

    /// The median of what was told.
    pub(super) fn median(&self, contender: &str, delay_ms: u64, name: &str) -> Option<f64> {
        let alike = |f: &&Samples| f.contender == contender && f.delay_ms == delay_ms && f.name == name;
        let mut values = self.figures.iter().find(alike)?.values.clone();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }

    pub(super) fn write_json(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// The table: a row for each figure, a column for each contender and delay. `!` stands behind a
    /// figure of Espalier that misses its goal.
    pub(super) fn text(&self) -> String {
        let mut columns: Vec<(&str, u64)> = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for samples in &self.figures {
            let column = (samples.contender.as_str(), samples.delay_ms);
            if !columns.contains(&column) {
                columns.push(column);
            }
            if !names.contains(&samples.name.as_str()) {
                names.push(&samples.name);
            }
        }
        columns.sort_by_key(|(contender, delay)| (*delay, *contender));
        let mut out = format!("\n| {:<28} |", "");
        for (contender, delay) in &columns {
            let _ = write!(out, " {contender} {delay} |");
        }
        let _ = writeln!(out, "\n|---|{}", "---:|".repeat(columns.len()));
        for name in names {
            let _ = write!(out, "| {name:<28} |");
            for (contender, delay) in &columns {
                let goal = GOALS.iter().find(|(goal, _)| *goal == name).map(|(_, least)| *least);
                let text = self.median(contender, *delay, name).map_or(String::new(), |value| {
                    let missed = contender.starts_with("espalier") && goal.is_some_and(|goal| value < goal);
                    format!("{}{}", short(value), if missed { " !" } else { "" })
                });
                let _ = write!(out, " {text} |");
            }
            out.push('\n');
        }
        out
    }
}

/// Three digits that count.
fn short(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}
