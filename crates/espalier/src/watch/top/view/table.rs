//! A table: names, and figures at the right of their columns.
//!
//! Columns are as wide as what stands in them. Where there is no room for all of them, those that
//! matter least are left out.

use super::text::{clipped, framed, width};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

/// The widest column of names.
const MAX_NAME_COLUMNS: usize = 32;
/// The most blanks before a figure.
const MAX_GAP_COLUMNS: usize = 3;

/// A column of figures.
pub(super) struct Column {
    pub(super) head: &'static str,
    /// How wide it is at least, so that the columns stand still.
    pub(super) columns: usize,
    /// Of two columns, the one with the higher rank is left out first.
    pub(super) rank: u8,
}

/// A line of the table.
pub(super) struct TableRow<const N: usize> {
    /// Cut where there is no room for it.
    pub(super) name: String,
    /// What follows the name, whole.
    pub(super) suffix: String,
    pub(super) figures: [String; N],
    pub(super) style: Style,
}

/// See the [module](self).
pub(super) struct FigureTable<const N: usize> {
    /// The first one that there is room for is shown.
    pub(super) titles: [&'static str; 2],
    pub(super) name_head: &'static str,
    /// How wide the names are at least.
    pub(super) name_columns: usize,
    pub(super) columns: [Column; N],
    pub(super) rows: Vec<TableRow<N>>,
    /// Stands in the frame below.
    pub(super) foot: &'static str,
}

/// The columns that are shown, with their widths.
struct Shown {
    name: usize,
    gap: usize,
    figures: Vec<(usize, usize)>,
}

impl<const N: usize> FigureTable<N> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>, area: Rect) {
        let room = usize::from(area.width.saturating_sub(2));
        let fits = |title: &&str| width(title) <= room;
        let title = self.titles.into_iter().find(fits).unwrap_or_default();
        let foot = Some(self.foot).filter(fits).unwrap_or_default();
        let shown = self.shown(room);
        let head = shown.line(self.name_head, "", &self.columns.each_ref().map(|column| column.head));
        let head = Line::styled(head, Style::new().add_modifier(Modifier::BOLD));
        let rows = self.rows.iter().map(|row| {
            let figures = row.figures.each_ref().map(String::as_str);
            Line::styled(shown.line(&row.name, &row.suffix, &figures), row.style)
        });
        let lines: Vec<Line<'_>> = std::iter::once(head).chain(rows).collect();
        frame.render_widget(Paragraph::new(lines).block(framed(title).title_bottom(foot)), area);
    }

    /// What there is room for.
    fn shown(&self, room: usize) -> Shown {
        let name = self.name_columns.min(room);
        let mut left = room - name;
        let mut by_rank: Vec<usize> = (0..N).collect();
        by_rank.sort_by_key(|at| self.columns[*at].rank);
        let mut figures = Vec::new();
        for at in by_rank {
            let wide = self.columns_of(at);
            if wide < left {
                left -= wide + 1;
                figures.push((at, wide));
            }
        }
        figures.sort_unstable();
        let more = (left / figures.len().max(1)).min(MAX_GAP_COLUMNS - 1);
        left -= more * figures.len();
        Shown { name: (name + left).min(MAX_NAME_COLUMNS.max(name)), gap: 1 + more, figures }
    }

    /// How wide a column is.
    fn columns_of(&self, at: usize) -> usize {
        let Column { head, columns, .. } = self.columns[at];
        let longest = self.rows.iter().map(|row| row.figures[at].len()).max();
        columns.max(head.len()).max(longest.unwrap_or_default())
    }
}

impl Shown {
    fn line(&self, name: &str, suffix: &str, figures: &[&str]) -> String {
        let mut line = clipped(name, self.name.saturating_sub(width(suffix)));
        line += &clipped(suffix, self.name - width(&line));
        line += &" ".repeat(self.name - width(&line));
        for (at, wide) in &self.figures {
            line += &format!("{:>columns$}", figures[*at], columns = wide + self.gap);
        }
        line
    }
}
