//! What is said to the user, progress on a terminal, and logging.
//!
//! Who listens may go away (`espalier info IMAGE | head -1`): that neither ends what a command does
//! nor makes it a failure. So nothing here panics, as `println!` would; what cannot be printed for
//! another reason fails the command in the end.

use indicatif::{ProgressBar, ProgressStyle};
use parking_lot::Mutex;
use std::fmt::Arguments;
use std::io::{Error, ErrorKind, IsTerminal, Write};
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// Prints a line to standard output.
macro_rules! say {
    ($($what:tt)*) => { $crate::ui::print_line(format_args!($($what)*)) };
}

/// Prints a line to standard error.
macro_rules! complain {
    ($($what:tt)*) => { $crate::ui::print_complaint(format_args!($($what)*)) };
}

pub(crate) use {complain, say};

/// Why nothing can be printed any more.
static SILENCED: Mutex<Option<Error>> = Mutex::new(None);

/// Prints a line, if anybody listens.
pub(crate) fn print_line(text: Arguments<'_>) {
    let mut silenced = SILENCED.lock();
    if silenced.is_none() {
        *silenced = writeln!(std::io::stdout(), "{text}").err();
    }
}

/// Prints a line to standard error; there is nobody to tell if that fails.
pub(crate) fn print_complaint(text: Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// True as long as printing makes sense.
pub(crate) fn is_heard() -> bool {
    SILENCED.lock().is_none()
}

/// Why something was not printed that somebody waits for, if there was such a thing.
pub(crate) fn not_printed() -> Option<Error> {
    let failed = SILENCED.lock().take().or_else(|| std::io::stdout().flush().err());
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

fn filter(verbose: u8) -> EnvFilter {
    let level = match verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level))
}

/// Logs to stderr.
pub(crate) fn log_to_stderr(verbose: u8) {
    let format = tracing_subscriber::fmt().with_env_filter(filter(verbose)).with_writer(std::io::stderr);
    let format = format.log_internal_errors(false);
    // Fails only if logging was set up before, and then there is nothing to do.
    let _ = format.with_ansi(std::io::stderr().is_terminal()).try_init();
}

/// Logs to syslog, for a server without a terminal.
pub(crate) fn log_to_syslog(verbose: u8) {
    let format = tracing_subscriber::fmt().with_env_filter(filter(verbose)).with_ansi(false).without_time();
    let _ = format.with_writer(|| Syslog).try_init();
}

/// One message of syslog(3) per write; tracing writes an event at a time.
struct Syslog;

impl std::io::Write for Syslog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let printable: Vec<u8> = bytes.trim_ascii_end().iter().copied().filter(|&b| b != 0).collect();
        if let Ok(message) = std::ffi::CString::new(printable) {
            let priority = libc::LOG_DAEMON | severity(bytes);
            // SAFETY: the format takes one string, and both strings end with NUL and outlive the
            // call.
            unsafe { libc::syslog(priority, c"%s".as_ptr(), message.as_ptr()) };
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// tracing's formatter begins a line with the level.
fn severity(line: &[u8]) -> libc::c_int {
    match line.trim_ascii_start() {
        l if l.starts_with(b"ERROR") => libc::LOG_ERR,
        l if l.starts_with(b"WARN") => libc::LOG_WARNING,
        l if l.starts_with(b"INFO") => libc::LOG_INFO,
        _ => libc::LOG_DEBUG,
    }
}
