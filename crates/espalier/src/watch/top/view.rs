//! The screen of `espalier top`: a head of two lines, operations and callers side by side, and
//! boxes of figures below, as many in a row as there is room for.
//!
//! No value is cut, for the rest of it would look like another value. What has no room is left out,
//! or is marked.

mod figure_box;
mod table;
mod text;

use super::Period;
use crate::units;
use crate::watch::stat::{percent, short_size};
use espalier_bench::compare::short_time;
use espalier_fuse::metrics::Histogram;
use figure_box::{FigureBox, figure};
use ratatui::Frame;
use ratatui::layout::{Constraint, Direction, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use std::time::Duration;
use table::{Column, FigureTable, TableRow};
use text::{clipped, fitting, printable, width};

/// Lines of the head.
const HEAD_LINES: u16 = 2;
/// Lines that the tables have at least, before there are boxes.
const MIN_TABLE_LINES: u16 = 6;
/// From so many columns on the tables stand side by side.
const PAIR_COLUMNS: u16 = 60;
/// The widest table of operations.
const MAX_OPERATION_COLUMNS: u16 = 94;

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
        let [head, below] =
            Layout::vertical([Constraint::Length(HEAD_LINES), Constraint::Fill(1)]).areas(frame.area());
        let boxes = self.boxes();
        let fit = usize::from(below.width / FigureBox::COLUMNS).clamp(1, boxes.len());
        let wanted = boxes.len().div_ceil(fit);
        let possible = usize::from(below.height.saturating_sub(MIN_TABLE_LINES) / FigureBox::LINES);
        let lines = wanted.min(possible);
        let in_row = if lines == wanted { boxes.len().div_ceil(wanted) } else { fit };
        let heights = std::iter::once(Constraint::Fill(1))
            .chain(std::iter::repeat_n(Constraint::Length(FigureBox::LINES), lines));
        let areas = Layout::vertical(heights).split(below);
        self.head(frame, head);
        self.tables(frame, areas[0]);
        for (row, area) in boxes.chunks(in_row).zip(&areas[1..]) {
            let places = Layout::horizontal(row.iter().map(|_| Constraint::Fill(1))).split(*area);
            row.iter().zip(&*places).for_each(|(figures, place)| figures.draw(frame, *place));
        }
    }

    fn head(&self, frame: &mut Frame<'_>, area: Rect) {
        let period = self.period;
        let columns = usize::from(area.width);
        let date = units::date(period.after.unix_seconds as u64);
        let clock = date.split(' ').nth(1).unwrap_or_default().to_owned();
        let state =
            if self.is_paused { "paused".into() } else { format!("every {}", short_time(self.interval)) };
        let corner = fitting([clock, state], columns / 2);
        let left = columns - width(&corner);
        let [requests, errors, ..] = period.totals();
        let [read, written] = period.data();
        let held = period.after.kernel_requests.map_or_else(|| "?".into(), |held| held.to_string());
        let second = fitting(
            [
                format!("requests {:.0}/s", period.rate(requests)),
                format!("errors {:.0}/s", period.rate(errors)),
                format!("read {}/s", short_size(period.rate(read))),
                format!("written {}/s", short_size(period.rate(written))),
                format!("kernel holds {held}"),
            ],
            columns,
        );
        let lines = vec![self.identity(left.saturating_sub(2)), Line::from(second)];
        frame.render_widget(Paragraph::new(lines), area);
        let corner_area = Rect { x: area.x + left as u16, width: area.width - left as u16, ..area };
        frame.render_widget(Paragraph::new(corner), corner_area);
    }

    /// What is mounted where.
    fn identity(&self, columns: usize) -> Line<'static> {
        let mount = &self.period.after.mount;
        let title = clipped("espalier top ", columns);
        let directory = clipped(&printable(&mount.directory), columns - width(&title));
        let left = columns - width(&title) - width(&directory);
        // The server may be another user's, and say anything.
        let up = Duration::try_from_secs_f64(self.period.after.up_seconds).unwrap_or_default();
        let more = fitting(
            [
                printable(&mount.source),
                printable(&mount.transport),
                format!("pid {}", mount.pid),
                format!("up {}", units::duration(up)),
            ],
            left.saturating_sub(2),
        );
        Line::from(vec![
            Span::styled(title, Style::new().add_modifier(Modifier::BOLD)),
            Span::raw(directory),
            Span::styled(format!("  {more}"), Style::new().fg(Color::DarkGray)),
        ])
    }

    /// Operations and callers, side by side or one below the other; callers are left out first.
    fn tables(&self, frame: &mut Frame<'_>, area: Rect) {
        let (direction, first) = match area.width {
            PAIR_COLUMNS.. => {
                let share = Constraint::Percentage(62);
                let [first, _] = Layout::horizontal([share, Constraint::Fill(1)]).areas(area);
                (Direction::Horizontal, first.width.min(MAX_OPERATION_COLUMNS))
            }
            _ if area.height >= 2 * MIN_TABLE_LINES => (Direction::Vertical, area.height / 2),
            _ => (Direction::Vertical, area.height),
        };
        let lengths = [Constraint::Length(first), Constraint::Fill(1)];
        let [operations, callers] = Layout::default().direction(direction).constraints(lengths).areas(area);
        self.operations().draw(frame, operations);
        self.callers().draw(frame, callers);
    }

    fn operations(&self) -> FigureTable<7> {
        let period = self.period;
        let all: u64 = period.kinds.iter().map(|kind| kind.work.sum_nanos()).sum();
        let rows = period.kinds.iter().map(|kind| {
            let errors = period.rate(kind.errors);
            TableRow {
                name: printable(&kind.kind),
                suffix: String::new(),
                figures: [
                    format!("{:.0}", period.rate(kind.requests)),
                    format!("{errors:.0}"),
                    time(&kind.work, 0.5),
                    time(&kind.work, 0.99),
                    time(&kind.queue, 0.99),
                    short_size(period.rate(kind.bytes_in.saturating_add(kind.bytes_out))),
                    percent(kind.work.sum_nanos(), all),
                ],
                style: Style::new().fg(if errors >= 1.0 { Color::Yellow } else { Color::Reset }),
            }
        });
        FigureTable {
            titles: [" operations (time at work, time in the queue) ", " operations "],
            name_head: "operation",
            name_columns: 15,
            columns: [
                Column { head: "per s", columns: 6, rank: 0 },
                Column { head: "err", columns: 4, rank: 3 },
                Column { head: "p50", columns: 5, rank: 4 },
                Column { head: "p99", columns: 5, rank: 2 },
                Column { head: "queue99", columns: 5, rank: 6 },
                Column { head: "bytes/s", columns: 4, rank: 5 },
                Column { head: "time", columns: 4, rank: 1 },
            ],
            rows: rows.collect(),
            foot: " q quit  space pause  +/- interval ",
        }
    }

    fn callers(&self) -> FigureTable<3> {
        let period = self.period;
        let rows = period.callers.iter().map(|caller| TableRow {
            name: printable(&caller.name),
            suffix: match caller.processes {
                1 => format!(" ({})", caller.pid),
                many => format!(" x{many}"),
            },
            figures: [
                format!("{:.0}", period.rate(caller.requests)),
                short_size(period.rate(caller.bytes)),
                format!("{:.0}%", caller.work_nanos as f64 / 1e7 / period.seconds),
            ],
            style: Style::new(),
        });
        FigureTable {
            titles: [" callers "; 2],
            name_head: "process",
            name_columns: 12,
            columns: [
                Column { head: "per s", columns: 6, rank: 0 },
                Column { head: "bytes/s", columns: 4, rank: 2 },
                Column { head: "server", columns: 4, rank: 1 },
            ],
            rows: rows.collect(),
            foot: "",
        }
    }

    fn boxes(&self) -> Vec<FigureBox> {
        let mut boxes = vec![self.memory(), self.log(), self.device(), self.space()];
        // Before those that go first where there is no room for all.
        self.objects().into_iter().for_each(|objects| boxes.insert(2, objects));
        boxes
    }

    fn memory(&self) -> FigureBox {
        let memory = &self.period.after.memory;
        let found = |[found, wanted]: [u64; 2]| percent(found, wanted);
        let figures = [
            figure("budget", short_size(memory.budget_bytes as f64)),
            figure("cache", short_size(memory.cache_bytes as f64)),
            figure("names", short_size(memory.names_bytes as f64)),
            figure("dirty", short_size((memory.dirty_bytes + memory.memtable_bytes) as f64)),
            figure("found: data", found(self.period.pieces)),
            figure("found: names", found(self.period.names)),
        ];
        FigureBox { title: " memory, caches ", figures }
    }

    fn log(&self) -> FigureBox {
        let period = self.period;
        let after = &period.after;
        let [wrote, slowed, waited] = period.stalls;
        let pressed = (slowed + waited) / period.seconds;
        let color = if pressed > MUCH_BACK_PRESSURE { Color::Red } else { Color::Reset };
        let count = after.checkpoints.count;
        let figures = [
            figure("log in use", percent(after.log.used_bytes, after.log.capacity_bytes)),
            figure("log written/s", short_size(period.rate(period.log_bytes))),
            figure("log syncs/s", few(period.rate(period.log_syncs))),
            figure("checkpoints", format!("{count} (+{})", period.checkpoints)).or(count.to_string()),
            figure("writers log", share(wrote / period.seconds)),
            figure("writers wait", share(pressed)).color(color),
        ];
        FigureBox { title: " log and writers ", figures }
    }

    /// Of a mount that is on an object store.
    fn objects(&self) -> Option<FigureBox> {
        let objects = self.period.objects.as_ref()?;
        let rate = |count| format!("{}/s", few(self.period.rate(count)));
        let both = |count, bytes| format!("{} {}/s", rate(count), short_size(self.period.rate(bytes)));
        let color = if objects.repeats > 0 { Color::Yellow } else { Color::Reset };
        let figures = [
            figure("puts", both(objects.puts, objects.put_bytes)).or(rate(objects.puts)),
            figure("gets", both(objects.gets, objects.got_bytes)).or(rate(objects.gets)),
            figure("repeats", rate(objects.repeats)).color(color),
            figure("stored", short_size(objects.stored_bytes as f64)),
            figure("dead", short_size(objects.dead_bytes as f64)),
            figure("journal", objects.journal_records.to_string()),
        ];
        Some(FigureBox { title: " object store ", figures })
    }

    fn device(&self) -> FigureBox {
        let device = &self.period.device;
        let figures = [
            figure("read/s", short_size(self.period.rate(device.read_bytes))),
            figure("written/s", short_size(self.period.rate(device.written_bytes))),
            figure("read p99", time(&device.reads, 0.99)),
            figure("write p99", time(&device.writes, 0.99)),
            figure("sync p99", time(&device.syncs, 0.99)),
            figure("queue", few(self.period.device_queue())),
        ];
        FigureBox { title: " device ", figures }
    }

    fn space(&self) -> FigureBox {
        let space = &self.period.after.space;
        let used = space.total_bytes - space.free_bytes.min(space.total_bytes);
        let set_aside = space.fixed_bytes + space.reserved_bytes + space.kept_bytes;
        let color = match space.free_bytes {
            free if free < space.total_bytes / 20 => Color::Red,
            free if free < space.total_bytes / 10 => Color::Yellow,
            _ => Color::Reset,
        };
        let part = percent(used, space.total_bytes);
        let figures = [
            figure("size", short_size(space.total_bytes as f64)),
            figure("free", short_size(space.free_bytes as f64)).color(color),
            figure("used", format!("{} {part}", short_size(used as f64))).or(part),
            figure("log, reserve", short_size(set_aside as f64)),
            figure("to be freed", short_size(space.deferred_bytes as f64)),
            figure("dead", short_size(space.dead_value_bytes as f64)),
        ];
        FigureBox { title: " space ", figures }
    }
}

fn time(times: &Histogram, share: f64) -> String {
    times.quantile(share).map_or_else(|| "-".into(), short_time)
}

/// A part of the time of one writer, or of several.
fn share(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

/// A number that may be below one.
fn few(number: f64) -> String {
    if number < 99.95 { format!("{number:.1}") } else { format!("{number:.0}") }
}

#[cfg(test)]
mod tests;
