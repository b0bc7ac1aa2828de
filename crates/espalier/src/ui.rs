//! What is said to the user, and progress on a terminal.
//!
//! The reader of the output may go away (`espalier info IMAGE | head -1`): that neither ends what a
//! command does nor makes it a failure. So nothing here panics, as `println!` would; what cannot be
//! printed for another reason fails the command in the end.

use espalier_sync::Mutex;
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Arguments;
use std::io::{Error, ErrorKind, IsTerminal, Write};
use std::time::Duration;

/// Prints a line to standard output.
macro_rules! say {
    ($($what:tt)*) => { $crate::ui::print_line(format_args!($($what)*)) };
}

/// Prints a line to standard error.
macro_rules! complain {
    ($($what:tt)*) => { $crate::ui::print_complaint(format_args!($($what)*)) };
}

pub(crate) use {complain, say};

/// What is kept of lists before it is written, in bytes.
const GATHERED_BYTES: usize = 32 << 10;

/// What goes to standard output.
struct Output {
    /// Why nothing can be printed any more.
    silenced: Option<Error>,
    /// Lines that are gathered; `None`: each is written by itself.
    gathered: Option<Vec<u8>>,
}

static OUTPUT: Mutex<Output> = Mutex::new(Output { silenced: None, gathered: None });

impl Output {
    fn print(&mut self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) {
        let Some(gathered) = &mut self.gathered else {
            self.silenced = write(&mut std::io::stdout()).err();
            return;
        };
        // Memory takes everything.
        let _ = write(gathered);
        if gathered.len() >= GATHERED_BYTES {
            self.write_gathered();
        }
    }

    /// Writes what was gathered.
    fn write_gathered(&mut self) {
        let Some(gathered) = &mut self.gathered else { return };
        if self.silenced.is_none() && !gathered.is_empty() {
            let mut out = std::io::stdout();
            self.silenced = out.write_all(gathered).and_then(|()| out.flush()).err();
        }
        gathered.clear();
    }
}

/// Gathers what is printed, until it is dropped: for lists of any length, of which each line would
/// be a call of the system. A terminal gets each line when it is known, and what is printed to
/// standard error comes behind the lines before it.
pub(crate) struct Gathering(());

impl Gathering {
    /// Begins, unless standard output is a terminal.
    pub(crate) fn begin() -> Self {
        if !std::io::stdout().is_terminal() {
            OUTPUT.lock().gathered = Some(Vec::with_capacity(2 * GATHERED_BYTES));
        }
        Self(())
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        let mut output = OUTPUT.lock();
        output.write_gathered();
        output.gathered = None;
    }
}

/// Prints a line, if the reader is still there.
pub(crate) fn print_line(text: Arguments<'_>) {
    let mut output = OUTPUT.lock();
    if output.silenced.is_none() {
        output.print(|to| writeln!(to, "{text}"));
    }
}

/// Prints part of a list as it is, if the reader is still there.
pub(crate) fn print_part(bytes: &[u8]) {
    let mut output = OUTPUT.lock();
    if output.silenced.is_none() {
        output.print(|to| to.write_all(bytes));
    }
}

/// Prints bytes to standard output as they are, if the reader is still there.
///
/// # Errors
/// What the system says, unless the reader has gone away.
pub(crate) fn print_bytes(bytes: &[u8]) -> std::io::Result<()> {
    match std::io::stdout().write_all(bytes) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Prints a line to standard error; a failure of that cannot be reported.
pub(crate) fn print_complaint(text: Arguments<'_>) {
    OUTPUT.lock().write_gathered();
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// True as long as printing makes sense.
pub(crate) fn is_heard() -> bool {
    OUTPUT.lock().silenced.is_none()
}

/// Why something was not printed that the reader waits for, if there was such a thing.
pub(crate) fn not_printed() -> Option<Error> {
    let failed = OUTPUT.lock().silenced.take().or_else(|| std::io::stdout().flush().err());
    failed.filter(|error| error.kind() != ErrorKind::BrokenPipe)
}

/// A bar on stderr that counts bytes; invisible if stderr is no terminal.
pub(crate) fn byte_bar(what: &str, total: u64) -> ProgressBar {
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(total) } else { ProgressBar::hidden() };
    let template = "{msg} [{bar:32}] {bytes} of {total_bytes}, {eta} left";
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_owned());
    bar
}

/// A sign of life for work of unknown length; invisible if stderr is no terminal.
pub(crate) fn spinner(what: &str) -> ProgressBar {
    let spinner =
        if std::io::stderr().is_terminal() { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    spinner.set_message(what.to_owned());
    spinner.enable_steady_tick(Duration::from_millis(120));
    spinner
}
