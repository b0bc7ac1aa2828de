//! Widths of comments and documents, and the words that stand for people.

use crate::findings::{Check, Finding};
use crate::lexer::{Kind, pieces};
use crate::workspace::Workspace;

/// Most columns of a line with a comment, or of a document.
const MAX_COLUMNS: usize = 100;

/// Words for people: a piece of code has a name (reader, writer, committer, flusher, kernel).
// lint: quotation
const WORDS: &str = "who whoever whom somebody someone nobody anybody everybody he him his himself";

/// A line with one of these, and the line after it, may use the words.
const ESCAPES: [&str; 2] = ["lint: quotation", "lint: people"];

/// Every line that is too wide and every word of the list.
pub(crate) fn text(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in &workspace.files {
        let lines: Vec<&str> = text.lines().collect();
        let mut report =
            |check, line: usize, message| findings.push(Finding::new(check, path, line, message));
        for (line, prose) in prose(path, text) {
            let whole = lines.get(line - 1).copied().unwrap_or_default();
            let is_literal = prose.kind == Kind::Literal;
            let columns = whole.chars().count();
            if columns > MAX_COLUMNS && !is_literal && !may_be_wide(path, whole) {
                report(Check::Width, line, format!("{columns} columns"));
            }
            let before = line.checked_sub(2).and_then(|at| lines.get(at)).copied().unwrap_or_default();
            if ESCAPES.iter().any(|escape| whole.contains(escape) || before.contains(escape)) {
                continue;
            }
            // A literal without blanks is a name or data, such as that of a user.
            if is_literal && path.ends_with(".rs") && !prose.text.trim().contains(' ') {
                continue;
            }
            for word in words(&prose.text, is_literal) {
                report(Check::Word, line, format!("\"{word}\": {}", whole.trim()));
            }
        }
    }
    findings
}

struct Prose {
    kind: Kind,
    text: String,
}

/// The lines of a file that hold prose, with their numbers.
fn prose(path: &str, text: &str) -> Vec<(usize, Prose)> {
    let all = |kind| -> Vec<(usize, Prose)> {
        let lines = text.lines().enumerate();
        lines.map(|(n, line)| (n + 1, Prose { kind, text: line.into() })).collect()
    };
    let is_c = path.ends_with(".h") || path.ends_with(".c");
    if path.ends_with(".rs") || is_c {
        let pieces = pieces(text).into_iter();
        return pieces
            .map(|piece| (piece.line, Prose { kind: piece.kind, text: piece.text.into() }))
            .collect();
    }
    if path.ends_with(".md") {
        return all(Kind::Comment);
    }
    let is_script = |line: &(usize, Prose)| !line.1.text.trim_start().starts_with('#');
    let mut lines = all(Kind::Comment);
    if path.ends_with(".toml") {
        lines.retain(|line| !is_script(line));
    }
    // Code of scripts may be wide.
    lines.iter_mut().filter(|line| is_script(line)).for_each(|line| line.1.kind = Kind::Literal);
    lines
}

/// Whether a line may be wider: a row of a table, a line that ends in a link or address that is too
/// long by itself, or one that is a quotation.
fn may_be_wide(path: &str, line: &str) -> bool {
    let is_document = path.ends_with(".md");
    let is_row = is_document && line.trim_start().starts_with('|');
    let is_quotation = is_document && line.trim_start().starts_with("> ");
    let has_address = line.contains("://") && {
        let widest = line.split_whitespace().map(|word| word.chars().count()).max().unwrap_or(0);
        line.chars().count() - widest < MAX_COLUMNS / 4
    };
    is_row || is_quotation || has_address
}

/// The words of the list in a line; what stands between backticks is a name.
fn words(text: &str, is_literal: bool) -> Vec<String> {
    let mut text: String = text.split('`').step_by(2).collect::<Vec<_>>().join(" ` ");
    if is_literal {
        text = without_placeholders(&text);
        for escape in ["\\n", "\\t", "\\r", "\\0"] {
            text = text.replace(escape, " ");
        }
    }
    text.split(|c: char| !c.is_alphanumeric() && c != '_')
        .map(str::to_lowercase)
        .filter(|word| WORDS.split(' ').any(|listed| listed == word))
        .collect()
}

/// A literal without `{name}` and the like.
fn without_placeholders(text: &str) -> String {
    let parts = text.split('{').enumerate();
    parts
        .map(|(n, part)| if n == 0 { part } else { part.split_once('}').map_or(part, |(_, rest)| rest) })
        .collect()
}

#[cfg(test)]
mod tests;
