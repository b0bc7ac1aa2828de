//! The screen of `espalier top`: a head of two lines, operations and callers side by side, and four
//! boxes of figures below.

use super::Period;
use crate::units;
use crate::watch::stat::{percent, short_size};
use espalier_bench::compare::short_time;
use espalier_fuse::metrics::Histogram;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Paragraph, Row, Table};
use std::time::Duration;

/// Lines of the boxes at the bottom, their frames included.
const BOX_LINES: u16 = 8;

/// Part of the time of all writers from which on back-pressure is shown as a warning.
const MUCH_BACK_PRESSURE: f64 = 0.05;

/// What is shown.
pub(super) struct View<'a> {
    pub(super) period: &'a Period,
    pub(super) interval: Duration,
    pub(super) is_paused: bool,
}

impl View<'_> {
    /// Draws the screen.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let [head, middle, bottom] =
            Layout::vertical([Constraint::Length(2), Constraint::Min(4), Constraint::Length(BOX_LINES)])
                .areas(frame.area());
        let [operations, callers] =
            Layout::horizontal([Constraint::Percentage(62), Constraint::Percentage(38)]).areas(middle);
        let boxes: [Rect; 4] = Layout::horizontal([Constraint::Ratio(1, 4); 4]).areas(bottom);
        self.head(frame, head);
        self.operations(frame, operations);
        self.callers(frame, callers);
        for (area, (title, lines)) in
            boxes.into_iter().zip([self.memory(), self.log(), self.device(), self.space()])
        {
            frame.render_widget(Paragraph::new(lines).block(framed(title)), area);
        }
    }

    fn head(&self, frame: &mut Frame<'_>, area: Rect) {
        let period = self.period;
        let mount = &period.after.mount;
        // The server may be another user's, and say anything.
        let up = Duration::try_from_secs_f64(period.after.up_seconds).unwrap_or_default();
        let up = units::duration(up);
        let date = units::date(period.after.unix_seconds as u64);
        let first = Line::from(vec![
            Span::styled("espalier top ", Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(format!("{}  ", mount.directory)),
            Span::styled(
                format!("({}, {}, pid {}, up {up})", mount.source, mount.transport, mount.pid),
                Style::new().fg(Color::DarkGray),
            ),
        ]);
        let [requests, errors, ..] = period.totals();
        let [read, written] = period.data();
        let held = period.after.kernel_requests.map_or_else(|| "?".into(), |held| held.to_string());
        let second = Line::from(format!(
            "requests {:.0}/s  errors {:.0}/s  read {}/s  written {}/s  held by the kernel {held}",
            period.rate(requests),
            period.rate(errors),
            short_size(period.rate(read)),
            short_size(period.rate(written)),
        ));
        let state =
            if self.is_paused { "paused".into() } else { format!("every {}", short_time(self.interval)) };
        let keys = "q quit  space pause  +/- interval";
        let right = vec![
            Line::from(format!("{}  {state}", date.split(' ').nth(1).unwrap_or_default())),
            Line::styled(keys, Style::new().fg(Color::DarkGray)),
        ];
        frame.render_widget(Paragraph::new(vec![first, second]), area);
        // Last, as it is the shorter one: on a narrow terminal it hides the end of the other.
        let width = (keys.len() as u16).min(area.width);
        let corner = Rect { x: area.right() - width, width, ..area };
        frame.render_widget(Paragraph::new(right).alignment(Alignment::Right), corner);
    }

    fn operations(&self, frame: &mut Frame<'_>, area: Rect) {
        let period = self.period;
        let all: u64 = period.kinds.iter().map(|kind| kind.work.sum_nanos()).sum();
        let rows = period.kinds.iter().map(|kind| {
            let errors = period.rate(kind.errors);
            let style = Style::new().fg(if errors >= 1.0 { Color::Yellow } else { Color::Reset });
            cells([
                kind.kind.clone(),
                format!("{:.0}", period.rate(kind.requests)),
                format!("{errors:.0}"),
                time(&kind.work, 0.5),
                time(&kind.work, 0.99),
                time(&kind.queue, 0.99),
                short_size(period.rate(kind.bytes_in + kind.bytes_out)),
                percent(kind.work.sum_nanos(), all),
            ])
            .style(style)
        });
        let widths = [15, 7, 6, 7, 7, 7, 7, 5].map(Constraint::Length);
        let head = ["operation", "per s", "errors", "p50", "p99", "queue99", "bytes/s", "time"];
        frame
            .render_widget(table(rows, widths, head, " operations (time at work, time in the queue) "), area);
    }

    fn callers(&self, frame: &mut Frame<'_>, area: Rect) {
        let period = self.period;
        let rows = period.callers.iter().map(|caller| {
            let name = match caller.processes {
                1 => format!("{} ({})", caller.name, caller.pid),
                many => format!("{} x{many}", caller.name),
            };
            cells([
                name.chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
                format!("{:.0}", period.rate(caller.requests)),
                short_size(period.rate(caller.bytes)),
                format!("{:.0}%", caller.work_nanos as f64 / 1e7 / period.seconds),
            ])
        });
        let widths =
            [Constraint::Fill(1), Constraint::Length(7), Constraint::Length(7), Constraint::Length(6)];
        let head = ["process", "per s", "bytes/s", "server"];
        frame.render_widget(table(rows, widths, head, " callers "), area);
    }

    fn memory(&self) -> (&'static str, Vec<Line<'static>>) {
        let memory = &self.period.after.memory;
        let found = |[found, wanted]: [u64; 2]| percent(found, wanted);
        let lines = vec![
            figure("budget", short_size(memory.budget_bytes as f64)),
            figure("cache", short_size(memory.cache_bytes as f64)),
            figure("names", short_size(memory.names_bytes as f64)),
            figure("dirty", short_size((memory.dirty_bytes + memory.memtable_bytes) as f64)),
            figure("found: data", found(self.period.pieces)),
            figure("found: names", found(self.period.names)),
        ];
        (" memory and caches ", lines)
    }

    fn log(&self) -> (&'static str, Vec<Line<'static>>) {
        let period = self.period;
        let after = &period.after;
        let [wrote, slowed, waited] = period.stalls;
        let pressed = (slowed + waited) / period.seconds;
        let color = if pressed > MUCH_BACK_PRESSURE { Color::Red } else { Color::Reset };
        let lines = vec![
            figure("log in use", percent(after.log.used_bytes, after.log.capacity_bytes)),
            figure("log written/s", short_size(period.rate(period.log_bytes))),
            figure("log syncs/s", format!("{:.1}", period.rate(period.log_syncs))),
            figure("checkpoints", format!("{} (+{})", after.checkpoints.count, period.checkpoints)),
            figure("writers log", share(wrote / period.seconds)),
            figure("writers wait", share(pressed)).style(Style::new().fg(color)),
        ];
        (" log, back-pressure ", lines)
    }

    fn device(&self) -> (&'static str, Vec<Line<'static>>) {
        let device = &self.period.device;
        let lines = vec![
            figure("read/s", short_size(self.period.rate(device.read_bytes))),
            figure("written/s", short_size(self.period.rate(device.written_bytes))),
            figure("read p99", time(&device.reads, 0.99)),
            figure("write p99", time(&device.writes, 0.99)),
            figure("sync p99", time(&device.syncs, 0.99)),
            figure("queue", format!("{:.1}", self.period.device_queue())),
        ];
        (" device ", lines)
    }

    fn space(&self) -> (&'static str, Vec<Line<'static>>) {
        let space = &self.period.after.space;
        let used = space.total_bytes - space.free_bytes.min(space.total_bytes);
        let set_aside = space.fixed_bytes + space.reserved_bytes + space.kept_bytes;
        let color = match space.free_bytes {
            free if free < space.total_bytes / 20 => Color::Red,
            free if free < space.total_bytes / 10 => Color::Yellow,
            _ => Color::Reset,
        };
        let lines = vec![
            figure("size", short_size(space.total_bytes as f64)),
            figure("free", short_size(space.free_bytes as f64)).style(Style::new().fg(color)),
            figure("used", format!("{} {}", short_size(used as f64), percent(used, space.total_bytes))),
            figure("log, reserve", short_size(set_aside as f64)),
            figure("to be freed", short_size(space.deferred_bytes as f64)),
            figure("dead", short_size(space.dead_value_bytes as f64)),
        ];
        (" space ", lines)
    }
}

fn framed(title: &str) -> Block<'_> {
    Block::bordered().title(title).border_style(Style::new().fg(Color::DarkGray))
}

fn table<'a, const N: usize>(
    rows: impl Iterator<Item = Row<'a>>,
    widths: [Constraint; N],
    head: [&'static str; N],
    title: &'a str,
) -> Table<'a> {
    let head = cells(head.map(str::to_owned)).style(Style::new().add_modifier(Modifier::BOLD));
    Table::new(rows, widths).header(head).block(framed(title))
}

/// A row of a table: a name, and figures at the right of their columns.
fn cells<const N: usize>(texts: [String; N]) -> Row<'static> {
    let line = |(at, text): (usize, String)| match at {
        0 => Line::from(text),
        _ => Line::from(text).right_aligned(),
    };
    Row::new(texts.into_iter().enumerate().map(line))
}

/// A line of a box.
fn figure(name: &'static str, value: String) -> Line<'static> {
    Line::from(format!("{name:<13} {value}"))
}

fn time(times: &Histogram, share: f64) -> String {
    times.quantile(share).map_or_else(|| "-".into(), short_time)
}

/// A part of the time of one writer, or of several.
fn share(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

#[cfg(test)]
mod tests;
