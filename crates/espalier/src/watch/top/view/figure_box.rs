//! A box of figures, a line for each.

use super::text::{MARK, clipped, framed};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

/// A name and its value are not further apart than this lets them be.
const LINE_COLUMNS: usize = 24;

/// A line of a box.
pub(super) struct Figure {
    name: &'static str,
    /// The same in several lengths, the longest first.
    values: Vec<String>,
    style: Style,
}

/// A value under its name.
pub(super) fn figure(name: &'static str, value: String) -> Figure {
    Figure { name, values: vec![value], style: Style::new() }
}

impl Figure {
    /// Shows a shorter value where the first one does not fit.
    pub(super) fn or(mut self, shorter: String) -> Self {
        self.values.push(shorter);
        self
    }

    pub(super) fn color(mut self, color: Color) -> Self {
        self.style = self.style.fg(color);
        self
    }

    /// The longest value that fits, or else [`MARK`].
    fn line(&self, room: usize) -> Line<'static> {
        let wide = |value: &str| self.name.len() + 1 + value.chars().count();
        let value = self.values.iter().map(String::as_str).find(|value| wide(value) <= room);
        let value = value.unwrap_or(MARK);
        let room = room.min(LINE_COLUMNS.max(wide(value)));
        let name = clipped(self.name, room.saturating_sub(value.chars().count() + 1));
        let columns = room.saturating_sub(name.chars().count());
        Line::styled(format!("{name}{value:>columns$}"), self.style)
    }
}

/// See the [module](self).
pub(super) struct FigureBox {
    pub(super) title: &'static str,
    pub(super) figures: [Figure; 6],
}

impl FigureBox {
    /// Lines of a box, its frame included.
    pub(super) const LINES: u16 = 8;
    /// Columns in which the figures of a mount that works have room, the frame included.
    pub(super) const COLUMNS: u16 = 20;

    pub(super) fn draw(&self, frame: &mut Frame<'_>, area: Rect) {
        let room = usize::from(area.width.saturating_sub(2));
        let lines: Vec<Line<'_>> = self.figures.iter().map(|figure| figure.line(room)).collect();
        frame.render_widget(Paragraph::new(lines).block(framed(self.title)), area);
    }
}
