//! What a source says when something fails.

use std::collections::BTreeSet;

/// Calls that make an error of a text.
const CALLS: [&str; 14] = [
    "bail!(",
    "ensure!(",
    "anyhow!(",
    ".context(",
    "with_context(",
    "Err(",
    "ok_or(",
    "ok_or_else(",
    "map_err(",
    "Error::new(",
    "Failure::new(",
    "SourceFailed(",
    "fail(",
    "complain!(",
];

/// Those whose text is their first argument, or, of `ensure!`, the second one; the others may have
/// more around it.
const MACROS: [&str; 4] = ["bail!(", "ensure!(", "anyhow!(", "complain!("];

/// A text of a source, without its quotes, or another character outside of texts and comments.
enum Piece<'s> {
    Text(&'s str),
    Mark(char),
}

/// The pieces of a source, and where each begins.
fn pieces(source: &str) -> Vec<(usize, Piece<'_>)> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first == '"' {
            let mut escaped = false;
            let end = rest[1..].find(|c: char| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            });
            let end = end.unwrap_or(rest.len() - 2);
            pieces.push((at, Piece::Text(&rest[1..=end])));
            end + 2
        } else if rest.starts_with("'\\") {
            // A character that is no piece: it may be a quote or a bracket.
            3 + rest[3..].find('\'').map_or(0, |end| end + 1)
        } else if first == '\'' && rest.chars().nth(2) == Some('\'') {
            2 + rest.chars().nth(1).map_or(1, char::len_utf8)
        } else {
            pieces.push((at, Piece::Mark(first)));
            first.len_utf8()
        };
        at += length;
    }
    pieces
}

/// What stands from `from` to the end of the call, or of the statement, in which that is.
fn part<'p, 's>(
    pieces: &'p [(usize, Piece<'s>)],
    from: usize,
    mut ends: impl FnMut(usize, char) -> bool,
) -> &'p [(usize, Piece<'s>)] {
    let first = pieces.partition_point(|(at, _)| *at < from);
    let mut depth = 0;
    let end = pieces[first..].iter().position(|(_, piece)| {
        let Piece::Mark(mark) = piece else { return false };
        match mark {
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' if depth == 0 => return true,
            ')' | ']' | '}' => depth -= 1,
            _ => {}
        }
        ends(depth, *mark)
    });
    &pieces[first..end.map_or(pieces.len(), |end| first + end)]
}

fn texts(pieces: &[(usize, Piece<'_>)]) -> Vec<String> {
    let texts = pieces.iter().filter_map(|(_, piece)| match piece {
        Piece::Text(text) => Some(in_one_line(text)),
        Piece::Mark(_) => None,
    });
    texts.collect()
}

/// Without the ends of lines that the source has in a text.
fn in_one_line(text: &str) -> String {
    let mut lines = text.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |said, line| said + line.trim_start())
}

/// What remains of a text without what is filled in.
fn fixed(text: &str) -> String {
    let mut kept = String::new();
    let mut depth = 0;
    for c in text.chars() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            c if depth == 0 => kept.push(c),
            _ => {}
        }
    }
    kept
}

/// True if a text says something itself, and does not only hand on what another one says.
fn says_something(text: &str) -> bool {
    // Notices begin with the name of the command.
    let behind_name = text.strip_prefix("espalier").and_then(|text| text.split_once(": "));
    let fixed = fixed(behind_name.map_or(text, |(_, text)| text));
    let words = fixed.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| word.len() > 1);
    words.count() > 1
}

fn names(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|name| !name.is_empty())
}

/// A text, and whether it is the context of another error, which follows it.
pub(super) struct Said {
    pub(super) text: String,
    pub(super) is_context: bool,
}

/// The texts of the errors that a source makes. A text that stands in a variable, in a closure or
/// in a function of the same source is found there.
pub(super) fn messages(source: &str) -> Vec<Said> {
    let source = source.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let pieces = pieces(source);
    let mut said: Vec<Said> = Vec::new();
    let calls = CALLS.iter().flat_map(|call| source.match_indices(call));
    for (at, call) in calls {
        let before = source[..at].chars().next_back();
        if call.starts_with(char::is_alphabetic) && before.is_some_and(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let all = part(&pieces, at + call.len(), |_, _| false);
        let arguments = match call {
            "ensure!(" => {
                let condition = part(&pieces, at + call.len(), |depth, mark| depth == 0 && mark == ',');
                &all[condition.len()..]
            }
            _ => all,
        };
        let mut found = texts(arguments);
        if MACROS.contains(&call) {
            found.truncate(1);
        }
        if !found.iter().any(|text| says_something(text)) {
            let code: String = arguments
                .iter()
                .map(|(_, piece)| match piece {
                    Piece::Text(text) => (*text).to_owned(),
                    Piece::Mark(mark) => mark.to_string(),
                })
                .collect();
            found.extend(names(&code).flat_map(|name| elsewhere(source, &pieces, at, name)));
        }
        let is_context = call.ends_with("context(") || call == "complain!(";
        let found = found.into_iter().filter(|text| says_something(text));
        said.extend(found.map(|text| Said { text, is_context }));
    }
    let contexts: BTreeSet<String> =
        said.iter().filter(|said| said.is_context).map(|said| said.text.clone()).collect();
    said.retain(|said| said.is_context || !contexts.contains(&said.text));
    said
}

/// The texts of a variable or closure that is made before `at`, or of a function.
fn elsewhere(source: &str, pieces: &[(usize, Piece<'_>)], at: usize, name: &str) -> Vec<String> {
    let made = source[..at].rfind(&format!("let {name} = "));
    let begun = source[..at].rfind("\nfn ").max(source[..at].rfind("    fn ")).unwrap_or(0);
    if let Some(made) = made.filter(|made| *made > begun) {
        return texts(part(pieces, made, |depth, mark| depth == 0 && mark == ';'));
    }
    let Some(made) = source.find(&format!("\nfn {name}(")) else { return Vec::new() };
    let end = source[made..].find("\n}").map_or(source.len(), |end| made + end);
    let first = pieces.partition_point(|(at, _)| *at < made);
    let behind = pieces.partition_point(|(at, _)| *at < end);
    texts(&pieces[first..behind])
}
