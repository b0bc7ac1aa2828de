//! Named figures, what is asked of them, and their table.

use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;

/// What is asked of a figure of Espalier.
enum Goal {
    /// No more than this.
    AtMost(f64),
    /// At most the best peer's figure divided by this.
    Faster(f64),
    /// Nothing; it is told for comparison.
    Nothing,
}

/// Names (with their units at the end), and goals; the table is in this order.
const GOALS: &[(&str, &[Goal])] = &[
    ("clone_fresh_and_use_ms", &[Goal::AtMost(20.0), Goal::Faster(100.0)]),
    ("clone_ms", &[Goal::AtMost(10.0)]),
    ("clone_with_links_ms", &[Goal::Nothing]),
    ("clone_of_ten_trees_ms", &[Goal::Nothing]),
    ("clone_of_ten_by_one", &[Goal::AtMost(1.5)]),
    ("clone_with_links_by_without", &[Goal::AtMost(1.5)]),
    ("clone_adds_kib", &[Goal::AtMost(256.0)]),
    ("move_ms", &[Goal::AtMost(10.0)]),
    ("chown_ms", &[Goal::AtMost(10.0)]),
    ("remove_clone_ms", &[Goal::Nothing]),
    ("remove_ms", &[Goal::AtMost(10.0)]),
    ("space_back_s", &[Goal::AtMost(5.0)]),
    ("diff_nodes", &[Goal::AtMost(200.0)]),
    ("diff_ms", &[Goal::Nothing]),
    ("rounds_head_tail_clone_ms", &[Goal::Nothing]),
    ("rounds_head_tail_growth", &[Goal::AtMost(1.5)]),
    ("rounds_head_tail_grep_ms", &[Goal::Faster(1.0)]),
    ("rounds_head_tail_grep_growth", &[Goal::AtMost(1.1)]),
    ("rounds_head_tail_space_mib", &[Goal::AtMost(4.0)]),
    ("rounds_head_head_clone_ms", &[Goal::Nothing]),
    ("rounds_head_head_growth", &[Goal::AtMost(1.5)]),
    ("rounds_head_head_grep_ms", &[Goal::Faster(1.0)]),
    ("rounds_head_head_grep_growth", &[Goal::AtMost(1.1)]),
    ("rounds_head_head_space_mib", &[Goal::AtMost(4.0)]),
    ("rounds_tail_tail_clone_ms", &[Goal::Nothing]),
    ("rounds_tail_tail_growth", &[Goal::AtMost(1.5)]),
    ("rounds_tail_tail_grep_ms", &[Goal::Faster(1.0)]),
    ("rounds_tail_tail_grep_growth", &[Goal::AtMost(1.1)]),
    ("rounds_tail_tail_space_mib", &[Goal::AtMost(4.0)]),
    ("snapshot_ms", &[Goal::Nothing]),
    ("snapshots_height_added", &[Goal::AtMost(0.0)]),
    ("snapshots_mount_growth", &[Goal::AtMost(1.1)]),
    ("snapshots_lookup_growth", &[Goal::AtMost(1.1)]),
    ("snapshots_space_left_kib", &[Goal::AtMost(256.0)]),
    ("device_flush_ms", &[Goal::Nothing]),
    ("rename_median_ms", &[Goal::AtMost(5.0)]),
    ("rename_worst_beyond_flush_ms", &[Goal::AtMost(20.0)]),
    ("unlink_us_of_100k", &[Goal::Nothing]),
    ("unlink_us_of_1m", &[Goal::Nothing]),
    ("unlink_growth", &[Goal::AtMost(1.2)]),
    ("remove_two_trees_ms", &[Goal::Faster(1.0)]),
];

#[derive(Serialize)]
struct Figure {
    contender: String,
    name: String,
    value: f64,
}

/// Everything told so far.
#[derive(Serialize)]
pub(super) struct Figures {
    contenders: Vec<String>,
    figures: Vec<Figure>,
}

impl Figures {
    pub(super) fn new(contenders: &[String]) -> Self {
        Self { contenders: contenders.to_vec(), figures: Vec::new() }
    }

    pub(super) fn add(&mut self, contender: &str, name: &str, value: f64) {
        self.figures.push(Figure { contender: contender.into(), name: name.into(), value });
    }

    pub(super) fn write_json(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text).with_context(|| format!("{} cannot be written", path.display()))
    }

    /// The median of what `contender` told under `name`.
    pub(super) fn median(&self, contender: &str, name: &str) -> Option<f64> {
        let told = self.figures.iter().filter(|f| f.contender == contender && f.name == name);
        let mut values: Vec<f64> = told.map(|f| f.value).collect();
        values.sort_by(f64::total_cmp);
        match values.len() {
            0 => None,
            n if n % 2 == 1 => Some(values[n / 2]),
            n => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
        }
    }

    /// The table: medians, and whether Espalier's reach what is asked.
    pub(super) fn text(&self) -> String {
        let mut out = format!("\n| {:<32} |", "");
        for contender in &self.contenders {
            let _ = write!(out, " {contender:>12} |");
        }
        out.push_str(" goals |\n|---|");
        out.push_str(&"---:|".repeat(self.contenders.len()));
        out.push_str("---|\n");
        for (name, goals) in GOALS {
            let row: Vec<_> = self.contenders.iter().map(|c| self.median(c, name)).collect();
            if row.iter().all(Option::is_none) {
                continue;
            }
            let _ = write!(out, "| {name:<32} |");
            for value in &row {
                let text = value.map_or(String::new(), |v| format!("{v:.3}"));
                let _ = write!(out, " {text:>12} |");
            }
            let _ = writeln!(out, " {} |", self.verdicts(name, goals));
        }
        out
    }

    fn verdicts(&self, name: &str, goals: &[Goal]) -> String {
        let (ours, peers): (Vec<_>, Vec<_>) = self.contenders.iter().partition(|c| c.starts_with("espalier"));
        let ours = ours.iter().find_map(|c| self.median(c, name));
        let best = peers.iter().filter_map(|c| self.median(c, name)).min_by(f64::total_cmp);
        let verdict = |kept: bool| if kept { "kept" } else { "MISSED" };
        let say = |goal: &Goal| match (goal, ours, best) {
            (Goal::AtMost(limit), Some(value), _) => {
                Some(format!("at most {limit}: {}", verdict(value <= *limit)))
            }
            (Goal::Faster(times), Some(value), Some(best)) => {
                let ratio = best / value;
                Some(format!("{times} times the best peer: {ratio:.2}, {}", verdict(ratio >= *times)))
            }
            _ => None,
        };
        goals.iter().filter_map(say).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_goals_are_told() {
        let mut figures = Figures::new(&["xfs".into(), "espalier".into()]);
        for value in [900.0, 1000.0, 5000.0] {
            figures.add("xfs", "clone_fresh_and_use_ms", value);
        }
        for value in [30.0, 9.0] {
            figures.add("espalier", "clone_fresh_and_use_ms", value);
        }
        assert_eq!(figures.median("espalier", "clone_fresh_and_use_ms"), Some(19.5));
        let text = figures.text();
        assert!(text.contains("at most 20: kept"), "{text}");
        assert!(text.contains("100 times the best peer: 51.28, MISSED"), "{text}");
    }
}
