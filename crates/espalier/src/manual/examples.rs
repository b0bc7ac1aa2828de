//! The text at the end of a command's help, taken apart: examples, exit status, and the rest.

/// A piece of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Paragraph {
    /// A section, and text for it.
    Text(&'static str, String),
    /// A command line, and what it does.
    Example(String, Option<String>),
}

const EXAMPLES: &str = "EXAMPLES";

impl Paragraph {
    /// The section that it belongs to.
    pub(super) fn heading(&self) -> &'static str {
        match self {
            Self::Text(heading, _) => heading,
            Self::Example(..) => EXAMPLES,
        }
    }
}

/// Takes help apart; examples come first, and the exit status next.
pub(super) fn paragraphs(help: &str) -> Vec<Paragraph> {
    let mut all = Vec::new();
    for block in help.split("\n\n").filter(|block| !block.trim().is_empty()) {
        // Manual pages have the mount options from the table that this text is made from.
        if block.starts_with("Mount options") {
            continue;
        }
        if let Some(text) = block.strip_prefix("Exit status: ") {
            all.push(Paragraph::Text("EXIT STATUS", joined(text)));
        } else if block.starts_with("  ") || block.starts_with("Examples:") {
            all.extend(block.lines().filter_map(|line| line.strip_prefix("  ")).map(example));
        } else {
            let (text, examples) = block.split_once(":\n  ").map_or((block, None), |(t, e)| (t, Some(e)));
            if let Some(examples) = examples {
                all.push(Paragraph::Text("NOTES", joined(&format!("{text}:"))));
                let lines: Vec<&str> = examples.lines().map(str::trim).collect();
                all.push(Paragraph::Text("NOTES", lines.join(" ")));
            } else {
                all.push(Paragraph::Text("NOTES", joined(text)));
            }
        }
    }
    let rank = |paragraph: &Paragraph| match paragraph.heading() {
        EXAMPLES => 0,
        "EXIT STATUS" => 1,
        _ => 2,
    };
    all.sort_by_key(rank);
    all
}

fn joined(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// Command and meaning stand apart by two blanks or more.
fn example(line: &str) -> Paragraph {
    match line.trim().split_once("  ") {
        Some((command, meaning)) => {
            Paragraph::Example(command.to_owned(), Some(meaning.trim_start().to_owned()))
        }
        None => Paragraph::Example(line.trim().to_owned(), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_taken_apart() {
        let help = "Examples:\n  a b   does c\n  d\n\nExit status: 0 good,\n1 bad\n\nMore\ntext.\n";
        let text = |heading, text: &str| Paragraph::Text(heading, text.into());
        assert_eq!(
            paragraphs(help),
            [
                Paragraph::Example("a b".into(), Some("does c".into())),
                Paragraph::Example("d".into(), None),
                text("EXIT STATUS", "0 good, 1 bad"),
                text("NOTES", "More text."),
            ]
        );
    }
}
