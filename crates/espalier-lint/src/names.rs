//! Names in documents: the tests and functions that they name must exist.

use crate::findings::{Check, Finding};
use crate::links::prose;
use crate::workspace::Workspace;
use std::collections::BTreeSet;

/// A name with so many underscores is one of this repository, and mostly that of a test.
const LEAST_UNDERSCORES: usize = 3;

/// What begins with this is put together at run time: the names of metrics.
const MADE_OF_PARTS: &str = "espalier_";

/// Documents that tell of the past.
const PAST: [&str; 2] = ["CHANGELOG.md", "docs/benchmarks/"];

/// Every name between backticks in a document that no file has which is not one.
pub(crate) fn names(workspace: &Workspace) -> Vec<Finding> {
    let sources = workspace.files.iter().filter(|(path, _)| !path.ends_with(".md"));
    let known: BTreeSet<&str> =
        sources.flat_map(|(_, text)| words(text)).filter(|word| is_name(word)).collect();
    let mut findings = Vec::new();
    for (path, text) in workspace.with_extension("md") {
        if PAST.iter().any(|past| path.starts_with(past)) {
            continue;
        }
        for (line, prose) in prose(text) {
            for quoted in prose.split('`').skip(1).step_by(2) {
                if is_name(quoted) && !quoted.starts_with(MADE_OF_PARTS) && !known.contains(quoted) {
                    let message = format!("{quoted}: no file has this name");
                    findings.push(Finding::new(Check::Name, path, line, message));
                }
            }
        }
    }
    findings
}

/// The identifiers of a text.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

fn is_name(word: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    let begins = word.starts_with(|c: char| c.is_ascii_lowercase());
    begins && word.chars().all(fits) && word.matches('_').count() >= LEAST_UNDERSCORES
}

#[cfg(test)]
mod tests;
