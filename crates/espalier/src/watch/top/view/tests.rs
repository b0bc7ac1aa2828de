use super::*;
use crate::watch::samples::figures;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

/// The screen of a terminal of so many columns and lines.
fn screen(width: u16, height: u16) -> String {
    let period = Period::between(None, &figures());
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

#[test]
fn the_screen_is_as_it_was_looked_at() {
    let shown = screen(120, 24);
    assert_eq!(shown, include_str!("screen.txt"), "\n{shown}");
}

#[test]
fn small_terminals_show_what_there_is_room_for() {
    for (width, height) in [(80, 24), (40, 10), (10, 3), (1, 1)] {
        screen(width, height);
    }
}
