//! Texts that take no more columns than there are.

use ratatui::style::{Color, Style};
use ratatui::text::Span;
use ratatui::widgets::Block;

/// Stands for what there is no room for.
pub(super) const MARK: &str = "…";

/// How many columns a text takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// The beginning of a text, with [`MARK`] for the rest of it if it takes more columns.
pub(super) fn clipped(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    if columns == 0 {
        return String::new();
    }
    let mut left = columns - 1;
    let fits = |c: &char| {
        let wide = width(c.encode_utf8(&mut [0; 4]));
        let fits = wide <= left;
        left = left.saturating_sub(wide);
        fits
    };
    text.chars().take_while(fits).chain(MARK.chars()).collect()
}

/// Those of the parts that there is room for, whole.
pub(super) fn fitting(parts: impl IntoIterator<Item = String>, columns: usize) -> String {
    let mut line = String::new();
    for part in parts {
        let gap = if line.is_empty() { "" } else { "  " };
        if width(&line) + gap.len() + width(&part) <= columns {
            line += gap;
            line += &part;
        }
    }
    line
}

/// A text of a server, which may be another user's and say anything.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A box with a title.
pub(super) fn framed(title: &str) -> Block<'_> {
    Block::bordered().title(title).border_style(Style::new().fg(Color::DarkGray))
}
