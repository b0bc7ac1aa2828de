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

fn show(
    terminal: &mut DefaultTerminal,
    watched: &Watched,
    mut interval: Duration,
    first: Figures,
) -> Result<()> {
    let mut period = Period::between(None, &first);
    let mut before = first;
    let mut is_paused = false;
    // The first figures of now and not of all time come soon.
    let mut due = Instant::now() + interval.min(Duration::from_millis(300));
    loop {
        let view = View { period: &period, interval, is_paused };
        terminal.draw(|frame| view.draw(frame)).context("the terminal cannot be written")?;
        let left = due.saturating_duration_since(Instant::now());
        match key_within(left)? {
            Some(Key::Quit) => return Ok(()),
            Some(Key::Pause) => is_paused = !is_paused,
            Some(Key::Longer) => interval = (interval * 2).min(Duration::from_secs(60)),
            Some(Key::Shorter) => interval = (interval / 2).max(Duration::from_millis(250)),
            Some(Key::Other) => {}
            None => {
                due = Instant::now() + interval;
                if !is_paused {
                    let now = watched.figures(true)?;
                    period = Period::between(Some(&before), &now);
                    before = now;
                }
            }
        }
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
