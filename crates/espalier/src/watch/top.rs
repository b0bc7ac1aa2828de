//! `espalier top`: what a mount does, live on a terminal.

mod view;

use super::{Figures, MAX_INTERVAL, Period, Watched};
use crate::args::Top;
use anyhow::{Context, Result, bail, ensure};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use view::View;

/// Keys do not make the interval longer than this, nor shorter than the other.
const MAX_KEY_INTERVAL: Duration = Duration::from_secs(60);
const MIN_KEY_INTERVAL: Duration = Duration::from_millis(250);
/// The first interval is no longer.
const MAX_FIRST_INTERVAL: Duration = Duration::from_millis(300);

/// Runs the command until a key ends it, or the mount ends.
pub(crate) fn run(args: &Top) -> Result<()> {
    let interval = Duration::try_from_secs_f64(args.interval).unwrap_or_default();
    let is_known = (Duration::from_millis(100)..=MAX_INTERVAL).contains(&interval);
    ensure!(is_known, "--interval is a number of seconds from 0.1 to 86400");
    let watched = Watched::find(&args.dir)?;
    if !std::io::stdout().is_terminal() {
        bail!("standard output is no terminal; espalier stat is for scripts");
    }
    // Asked for before the screen changes: a refusal is for the shell's screen.
    let first = watched.figures(true)?;
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let shown = show(&mut terminal, &watched, interval, first);
    ratatui::restore();
    shown
}

/// What a key asks for.
enum Key {
    Quit,
    Pause,
    Longer,
    Shorter,
    Other,
}

fn show(terminal: &mut DefaultTerminal, watched: &Watched, interval: Duration, first: Figures) -> Result<()> {
    let mut period = Period::between(None, &first);
    let mut before = first;
    let mut is_paused = false;
    let mut pace = Pace::new(interval, Instant::now());
    loop {
        let view = View { period: &period, interval: pace.interval, is_paused };
        terminal.draw(|frame| view.draw(frame)).context("the terminal cannot be written")?;
        let left = pace.due.saturating_duration_since(Instant::now());
        match key_within(left)? {
            Some(Key::Quit) => return Ok(()),
            Some(Key::Pause) => is_paused = !is_paused,
            Some(Key::Longer) => pace.lengthen(),
            Some(Key::Shorter) => pace.shorten(),
            Some(Key::Other) => {}
            None => {
                pace.go_on(Instant::now());
                if !is_paused {
                    let now = watched.figures(true)?;
                    period = Period::between(Some(&before), &now);
                    before = now;
                }
            }
        }
    }
}

/// When the next figures are due.
struct Pace {
    interval: Duration,
    asked: Instant,
    due: Instant,
}

impl Pace {
    /// The first figures of now and not of all time come soon.
    fn new(interval: Duration, asked: Instant) -> Self {
        Self { interval, asked, due: asked + interval.min(MAX_FIRST_INTERVAL) }
    }

    /// The figures are asked for.
    fn go_on(&mut self, asked: Instant) {
        (self.asked, self.due) = (asked, asked + self.interval);
    }

    /// A key does not shorten an interval of the command line that is longer already.
    fn lengthen(&mut self) {
        self.interval = self.interval.max((self.interval * 2).min(MAX_KEY_INTERVAL));
    }

    /// The figures that are waited for come earlier, too.
    fn shorten(&mut self) {
        self.interval = self.interval.min((self.interval / 2).max(MIN_KEY_INTERVAL));
        self.due = self.due.min(self.asked + self.interval);
    }
}

/// The next key, or another event of the terminal, if one comes in time.
fn key_within(time: Duration) -> Result<Option<Key>> {
    if !event::poll(time).context("the terminal cannot be read")? {
        return Ok(None);
    }
    let Event::Key(key) = event::read().context("the terminal cannot be read")? else {
        return Ok(Some(Key::Other));
    };
    let interrupts = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    Ok(Some(match key.code {
        _ if key.kind == KeyEventKind::Release => Key::Other,
        _ if interrupts => Key::Quit,
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char(' ' | 'p') => Key::Pause,
        KeyCode::Char('+') => Key::Longer,
        KeyCode::Char('-') => Key::Shorter,
        _ => Key::Other,
    }))
}

#[cfg(test)]
mod tests;
