//! Samples of named figures, what is asked of them, and their table.

use super::column::Column;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// What a row shows of the samples.
#[derive(Debug, Clone, Copy)]
enum Of {
    Median,
    /// The 99th percentile.
    P99,
}

/// A row of the table: a figure (its unit stands at the end of its name), what of it, and at most
/// how much Espalier may have there.
struct Row(&'static str, Of, Option<f64>);

const ROWS: &[Row] = &[
    Row("create_first_ms", Of::Median, None),
    Row("create_ms", Of::Median, Some(10.0)),
    Row("create_ms", Of::P99, Some(10.0)),
    Row("create_beside_build_ms", Of::Median, Some(20.0)),
    Row("create_beside_build_ms", Of::P99, Some(20.0)),
    Row("discard_ms", Of::Median, Some(10.0)),
    Row("discard_ms", Of::P99, None),
    Row("discard_beside_build_ms", Of::Median, None),
    Row("discard_beside_build_ms", Of::P99, None),
    Row("status_original_ms", Of::Median, None),
    Row("status_first_ms", Of::Median, None),
    Row("status_first_by_original", Of::Median, Some(1.5)),
    Row("workspace_takes_kib", Of::Median, Some(64.0)),
    Row("diff_100_ms", Of::Median, Some(50.0)),
    Row("apply_100_ms", Of::Median, Some(200.0)),
    Row("checkpoint_ms", Of::Median, None),
    Row("undo_ms", Of::Median, Some(10.0)),
    Row("undo_ms", Of::P99, None),
    Row("list_first_ms", Of::Median, None),
    Row("list_1000_ms", Of::Median, Some(200.0)),
    Row("list_all_ms", Of::Median, None),
    Row("create_limited_ms", Of::Median, Some(10.0)),
    Row("create_limited_ms", Of::P99, None),
    Row("quota_show_ms", Of::Median, None),
    Row("quota_set_ms", Of::Median, None),
    Row("write_limited_by_plain", Of::Median, None),
    Row("clone_ms", Of::Median, None),
    Row("clone_ms", Of::P99, None),
    Row("rm_pending_ms", Of::Median, None),
    Row("rm_pending_ms", Of::P99, Some(10.0)),
    Row("rm_pending_200_ms", Of::Median, Some(500.0)),
    Row("rm_cold_ms", Of::Median, None),
    Row("rm_cold_ms", Of::P99, Some(10.0)),
    Row("rm_cold_200_ms", Of::Median, Some(500.0)),
    Row("discard_200_ms", Of::Median, None),
    Row("space_back_s", Of::Median, Some(5.0)),
    Row("mount_ms", Of::Median, None),
    Row("memory_mib", Of::Median, None),
    Row("memory_peak_mib", Of::Median, None),
    Row("grow_each_ms", Of::Median, None),
    Row("shrink_each_ms", Of::Median, None),
];

#[derive(Serialize)]
struct Samples {
    #[serde(flatten)]
    column: Column,
    name: String,
    values: Vec<f64>,
}

/// Everything told so far.
#[derive(Serialize)]
pub(super) struct Figures {
    entries: usize,
    figures: Vec<Samples>,
}

impl Figures {
    pub(super) fn new(entries: usize) -> Self {
        Self { entries, figures: Vec::new() }
    }

    pub(super) fn add(&mut self, column: &Column, name: &str, value: f64) {
        match self.figures.iter_mut().find(|f| f.column == *column && f.name == name) {
            Some(samples) => samples.values.push(value),
            None => {
                self.figures.push(Samples { column: column.clone(), name: name.into(), values: vec![value] })
            }
        }
    }

    pub(super) fn write_json(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    fn value(&self, column: &Column, name: &str, of: Of) -> Option<f64> {
        let samples = self.figures.iter().find(|f| f.column == *column && f.name == name)?;
        let mut values = samples.values.clone();
        values.sort_by(f64::total_cmp);
        let at = match of {
            Of::Median => values.len() / 2,
            Of::P99 => (values.len() * 99).div_ceil(100) - 1,
        };
        values.get(at).copied()
    }

    /// The median of what was told under `name`.
    pub(super) fn median(&self, column: &Column, name: &str) -> Option<f64> {
        self.value(column, name, Of::Median)
    }

    /// The table. `!` stands behind a figure of Espalier that misses its goal.
    pub(super) fn text(&self) -> String {
        let mut columns: Vec<&Column> = Vec::new();
        for samples in &self.figures {
            if !columns.contains(&&samples.column) {
                columns.push(&samples.column);
            }
        }
        let titles: Vec<String> = columns.iter().map(|column| column.title()).collect();
        let mut out = format!("\n| {:<28} | {:>5} |", "", "goal");
        for title in &titles {
            let _ = write!(out, " {title:>10} |");
        }
        let _ = write!(out, "\n|---|---:|{}\n", "---:|".repeat(columns.len()));
        for Row(name, of, goal) in ROWS {
            let row: Vec<_> = columns.iter().map(|column| self.value(column, name, *of)).collect();
            if row.iter().all(Option::is_none) {
                continue;
            }
            let suffix = if matches!(of, Of::P99) { " p99" } else { "" };
            let goal_text = goal.map_or(String::new(), |goal| format!("{goal}"));
            let _ = write!(out, "| {:<28} | {goal_text:>5} |", format!("{name}{suffix}"));
            for ((value, column), title) in row.iter().zip(&columns).zip(&titles) {
                let missed = |value: f64| column.is_ours() && goal.is_some_and(|goal| value > goal);
                let text = value
                    .map_or(String::new(), |v| format!("{}{}", short(v), if missed(v) { " !" } else { "" }));
                let _ = write!(out, " {text:>width$} |", width = title.len().max(10));
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

#[cfg(test)]
mod tests;
