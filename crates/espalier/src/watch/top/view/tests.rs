use super::*;
use crate::watch::figures::{CallerFigures, Figures, ObjectFigures};
use crate::watch::samples::{figures, object_figures};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use std::collections::BTreeSet;

/// The screen of a terminal of so many columns and lines.
fn screen(figures: &Figures, width: u16, height: u16) -> String {
    let period = Period::between(None, figures);
    let view = View { period: &period, interval: Duration::from_secs(1), is_paused: false };
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| view.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    let lines = (0..height).map(|y| {
        let line: String = (0..width).map(|x| buffer[(x, y)].symbol()).collect();
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

/// Figures that are longer than any of a mount that works.
fn long_figures() -> Figures {
    let mut long = object_figures();
    long.mount.directory = format!("/{}", "directory/".repeat(12));
    for kind in &mut long.kinds {
        (kind.requests, kind.bytes_in) = (u64::MAX >> 8, u64::MAX >> 8);
    }
    long.callers.push(CallerFigures { name: "x".repeat(40), ..long.callers[0].clone() });
    long.kernel_requests = Some(u64::MAX >> 8);
    long.memory.budget_bytes = u64::MAX;
    long.log.used_bytes = u64::MAX;
    long.checkpoints.count = u64::MAX >> 8;
    long.back_pressure.waited_seconds = 1e30;
    long.device.read_bytes = u64::MAX;
    long.space.total_bytes = u64::MAX;
    long.objects =
        long.objects.map(|objects| ObjectFigures { puts: u64::MAX, journal_records: u64::MAX, ..objects });
    long
}

/// What stands on a screen between blanks and lines.
fn words(screen: &str) -> BTreeSet<&str> {
    let breaks = |c: char| c.is_whitespace() || "│─┌┐└┘".contains(c);
    screen.split(breaks).filter(|word| !word.is_empty()).collect()
}

#[test]
fn the_screens_are_as_they_were_looked_at() {
    let small = object_figures();
    for (shown, is) in [
        (screen(&figures(), 120, 24), include_str!("screen.txt")),
        (screen(&figures(), 80, 24), include_str!("screen_small.txt")),
        (screen(&small, 80, 30), include_str!("screen_objects.txt")),
    ] {
        assert_eq!(shown, is, "\n{shown}");
    }
}

#[test]
fn no_value_is_cut_at_any_width() {
    for figures in [figures(), object_figures(), long_figures()] {
        // There is room for everything.
        let all = screen(&figures, 1000, 60);
        let whole = words(&all);
        for width in 40..=200 {
            for height in [24, 50] {
                let shown = screen(&figures, width, height);
                // What does not fit is marked.
                let cut: Vec<&str> = words(&shown)
                    .into_iter()
                    .filter(|word| !whole.contains(word) && !word.contains('…'))
                    .collect();
                assert!(cut.is_empty(), "{width}x{height}: {cut:?}\n{shown}");
            }
        }
    }
}

#[test]
fn small_terminals_show_what_there_is_room_for() {
    let shown = screen(&figures(), 80, 24);
    for value in ["213us", "9.4ms", "17G 85%", "written 5.0M/s", "4500", "7.7us"] {
        assert!(shown.contains(value), "{value}\n{shown}");
    }
    for (width, height) in [(40, 10), (30, 24), (10, 3), (3, 3), (1, 1)] {
        screen(&object_figures(), width, height);
    }
}
